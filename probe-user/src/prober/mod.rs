//! The helper process of [`crate::helper`], which attaches programs on request. It parses only requests of fixed size, and of
//! `/proc/PID/maps` the numbers and names that decide whether a probe point is in a library of the process. It ends with its peer.

mod check;

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::channel;
use crate::discover::diag::Diag;
use crate::helper::request::{REQUEST_BYTES, Reply, Request, reply_to_bytes};
use crate::kernel_side::KernelSide;
use crate::options::Options;
use crate::proc::ProcDir;
use crate::programs::{Batch, LoadedFacts, Refusal};

pub use check::IsExtension;

/// Interval at which the kernel's log is shown, if it is.
const LOG_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Serves requests on `socket` until its other end is closed. Calls `drop_rights` once all programs are loaded, unless uprobes need perf
/// events.
pub fn serve(
    socket: BorrowedFd<'_>,
    options: Options,
    is_extension: IsExtension,
    drop_rights: impl FnOnce(),
) -> io::Result<()> {
    let mut server = Server { kernel: KernelSide::load(options), is_extension };
    if let Ok(kernel) = &mut server.kernel {
        kernel.load_programs();
    }
    // At every attach by a perf event, aya loads a program to test whether the kernel has cookies.
    let loads_later = server.kernel.as_ref().is_ok_and(|kernel| kernel.facts().uses_perf_events);
    if !loads_later {
        drop_rights();
    }
    let mut buffer = [0; REQUEST_BYTES];
    loop {
        server.wait(socket)?;
        let received = channel::receive(socket, &mut buffer)?;
        if received.bytes == 0 {
            return Ok(());
        }
        server.answer(socket, &buffer[..received.bytes], &received.descriptors)?;
    }
}

struct Server {
    kernel: Result<KernelSide, Refusal>,
    is_extension: IsExtension,
}

impl Server {
    /// Waits for a request, and shows the kernel's log meanwhile.
    fn wait(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Ok(kernel) = &mut self.kernel else { return Ok(()) };
        while kernel.has_log() {
            kernel.flush_log();
            if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&LOG_INTERVAL))? > 0 {
                break;
            }
        }
        Ok(())
    }

    fn answer(&mut self, socket: BorrowedFd<'_>, message: &[u8], files: &[OwnedFd]) -> io::Result<()> {
        let invalid = || Refusal::Kernel(String::from("not a request"));
        let Some(request) = Request::parse(message) else {
            return reply(socket, &Err(invalid()), &[]);
        };
        let kernel = match &mut self.kernel {
            Ok(kernel) => kernel,
            Err(refusal) => return reply(socket, &Err(refusal.clone()), &[]),
        };
        let done = match request {
            Request::Maps => {
                let facts = kernel.facts();
                return match kernel.map_descriptors() {
                    Ok(maps) => reply(socket, &Ok(facts), &maps),
                    Err(error) => reply(socket, &Err(Refusal::of(&error)), &[]),
                };
            }
            Request::DiagSocket { pid } => {
                let opened = ProcDir::of(pid).map_err(|error| Refusal::of(&error));
                let opened = opened.and_then(|process| Diag::of(&process).map_err(|error| Refusal::of(&error)));
                return match opened {
                    Ok(diag) => reply(socket, &Ok(LoadedFacts::default()), &[diag.as_fd()]),
                    Err(refusal) => reply(socket, &Err(refusal), &[]),
                };
            }
            Request::AttachGroup(group) => kernel.attach_group(group),
            Request::AttachUprobes { target, pid, batch } => match files {
                [library] => attach_uprobes(kernel, target, pid, &batch, library.as_fd(), self.is_extension),
                _ => Err(invalid()),
            },
            Request::Detach { target } => {
                kernel.detach(target);
                Ok(())
            }
            Request::DetachTargets => {
                kernel.detach_targets();
                Ok(())
            }
        };
        reply(socket, &done.map(|()| LoadedFacts::default()), &[])
    }
}

fn reply(socket: BorrowedFd<'_>, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    Ok(channel::send(socket, &reply_to_bytes(reply), descriptors)?)
}

/// Attaches a checked batch. The process must live on until it is attached, so that its id cannot mean another one in between.
fn attach_uprobes(
    kernel: &mut KernelSide,
    target: u32,
    pid: u32,
    batch: &Batch,
    library: BorrowedFd<'_>,
    is_extension: IsExtension,
) -> Result<(), Refusal> {
    let gone = || Refusal::Kernel(format!("process {pid} has exited"));
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|error| Refusal::of(&error))?;
    check::check_batch(target, pid, batch, library, is_extension).map_err(Refusal::Kernel)?;
    kernel.attach_uprobes(target, NonZeroU32::new(pid).ok_or_else(gone)?, batch, library)?;
    let has_exited = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec::default()));
    if has_exited.is_ok_and(|ready| ready > 0) {
        kernel.detach(target);
        return Err(gone());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use probe_ebpf::{Cookie, ProbePoint};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::helper::Helper;
    use crate::helper::request::{REPLY_BYTES, parse_reply};
    use crate::kernel_side::open_maps;
    use crate::programs::{MAPS, POLL_ENTERED};

    fn never(_: &Path) -> bool {
        false
    }

    #[test]
    fn requests_are_served_until_the_other_end_closes() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: loading eBPF programs needs root");
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.unwrap();
        let options = Options { ring_bytes: 64 << 10, scheduler: false, polls: false, ..Options::default() };
        let served = std::thread::spawn(move || serve(theirs.as_fd(), options, never, || ()));
        channel::send(ours.as_fd(), b"not a request", &[]).unwrap();
        let mut buffer = [0; REPLY_BYTES];
        let received = channel::receive(ours.as_fd(), &mut buffer).unwrap();
        let answer = parse_reply(&buffer[..received.bytes]).unwrap();
        if let Err(Refusal::Kernel(text)) = &answer
            && text != "not a request"
        {
            return eprintln!("SKIPPED: {text}");
        }
        assert!(answer.is_err() && received.descriptors.is_empty());
        let helper = Helper::new(ours);
        assert_eq!(open_maps(helper.map_descriptors().unwrap().descriptors).unwrap().len(), MAPS.len());
        let us = std::process::id();
        let points = vec![(4096, Cookie::new(ProbePoint::Poll, 0))];
        let batch = Batch { program: POLL_ENTERED, returns: false, points };
        let refused = helper.attach_uprobes(0, us, batch, File::open("/proc/self/exe").unwrap().as_fd());
        assert!(refused.unwrap_err().to_string().contains("neither libzmq"));
        assert!(helper.diag_socket(us).is_ok());
        assert!(helper.diag_socket(u32::MAX).is_err());
        helper.detach(0);
        drop(helper);
        served.join().unwrap().unwrap();
    }
}
