//! The helper process of [`crate::helper`], which attaches programs on request. It parses only requests and answers of fixed size, and of
//! `/proc/PID/maps` the numbers and names that decide whether a file is a library of the process. Where a library is probed, a process
//! of its own finds out ([`crate::locator`]). It ends with its peer.

mod check;

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use probe_ebpf::MAX_TARGETS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::channel;
use crate::discover::diag::Diag;
use crate::helper::request::{REQUEST_BYTES, Reply, Request, reply_to_bytes};
use crate::kernel_side::KernelSide;
use crate::locator::Locator;
use crate::options::Options;
use crate::probe::batches;
use crate::proc::ProcDir;
use crate::programs::{Batch, LoadedFacts, PointSet, Refusal};
use adapter::discover::InnerServer;

/// Interval at which the kernel's log is shown, if it is.
const LOG_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What the prober attaches, and where.
pub struct ProberSettings {
    /// The probe's options.
    pub options: Options,
    /// All servers inside processes of engines.
    pub servers: Vec<InnerServer>,
    /// Socket to the process that starts the analyses of libraries ([`crate::locator::supervise`]).
    pub locator: OwnedFd,
}

/// Serves requests on `socket` until its other end is closed. Calls `drop_rights` once all programs are loaded, unless uprobes need perf
/// events.
pub fn serve(socket: BorrowedFd<'_>, settings: ProberSettings, drop_rights: impl FnOnce()) -> io::Result<()> {
    let mut server = Server {
        kernel: KernelSide::load(settings.options),
        servers: settings.servers,
        locator: Locator::new(settings.locator),
    };
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
        let received = match channel::receive(socket, &mut buffer) {
            Err(Errno::MSGSIZE) => {
                reply(socket, &Err(not_a_request()), &[])?;
                continue;
            }
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(());
        }
        server.answer(socket, &buffer[..received.bytes], &received.descriptors)?;
    }
}

struct Server {
    kernel: Result<KernelSide, Refusal>,
    servers: Vec<InnerServer>,
    locator: Locator,
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
        let Some(request) = Request::parse(message) else {
            return reply(socket, &Err(not_a_request()), &[]);
        };
        let Self { kernel, servers, locator } = self;
        let kernel = match kernel {
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
            Request::AttachUprobes { target, pid, set } => match files {
                [library] => {
                    let library = ClaimedLibrary { pid, set, file: library.as_fd() };
                    library.attach(target, kernel, &mut Analysis { servers, locator, peer: socket })
                }
                _ => Err(not_a_request()),
            },
            Request::Analyse { pid, set } => match files {
                [library] => {
                    let library = ClaimedLibrary { pid, set, file: library.as_fd() };
                    library.find(0, &mut Analysis { servers, locator, peer: socket }).map(drop)
                }
                _ => Err(not_a_request()),
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

fn not_a_request() -> Refusal {
    Refusal::Kernel(String::from("not a request"))
}

/// What an analysis of a library needs.
struct Analysis<'a> {
    servers: &'a [InnerServer],
    locator: &'a mut Locator,
    peer: BorrowedFd<'a>,
}

/// A file that a process is said to have mapped as a library for a set of probe points.
struct ClaimedLibrary<'l> {
    pid: u32,
    set: PointSet,
    file: BorrowedFd<'l>,
}

impl ClaimedLibrary<'_> {
    /// Checks the claim, and finds the probe points for the target with this index.
    fn find(&self, target: u32, analysis: &mut Analysis<'_>) -> Result<Vec<Batch>, Refusal> {
        if target >= MAX_TARGETS {
            return Err(Refusal::Kernel(format!("no target has number {target}")));
        }
        let code = check::check_library(self.pid, self.set, self.file, analysis.servers).map_err(Refusal::Kernel)?;
        let found = analysis.locator.find(code.sought, code.identity, self.file, analysis.peer);
        let found = found.as_ref().map_err(|why| Refusal::Kernel(why.clone()))?;
        let batches = batches::of_set(self.set, found, target).map_err(|error| Refusal::of(&error))?;
        if !batches.iter().all(|batch| code.contains(batch)) {
            return Err(Refusal::Kernel(format!("a probe point is outside the code of process {}", self.pid)));
        }
        Ok(batches)
    }

    /// Attaches the set. The process must live on until it is attached, so that its id cannot mean another one in between.
    fn attach(&self, target: u32, kernel: &mut KernelSide, analysis: &mut Analysis<'_>) -> Result<(), Refusal> {
        let gone = || Refusal::Kernel(format!("process {} has exited", self.pid));
        let id = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|error| Refusal::of(&error))?;
        for batch in self.find(target, analysis)? {
            kernel.attach_uprobes(target, NonZeroU32::new(self.pid).ok_or_else(gone)?, &batch, self.file)?;
        }
        let has_exited = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec::default()));
        if has_exited.is_ok_and(|ready| ready > 0) {
            kernel.detach(target);
            return Err(gone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs::File;

    use super::*;
    use crate::helper::Helper;
    use crate::helper::request::{REPLY_BYTES, parse_reply};
    use crate::kernel_side::open_maps;
    use crate::programs::MAPS;

    #[test]
    fn requests_are_served_until_the_other_end_closes() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: loading eBPF programs needs root");
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.unwrap();
        let options = Options { ring_bytes: 64 << 10, scheduler: false, polls: false, ..Options::default() };
        let locator = OwnedFd::from(File::open("/dev/null").unwrap());
        let settings = ProberSettings { options, servers: Vec::new(), locator };
        let served = std::thread::spawn(move || serve(theirs.as_fd(), settings, || ()));
        let mut buffer = [0; REPLY_BYTES];
        channel::send(ours.as_fd(), &[3; REQUEST_BYTES + 1], &[]).unwrap();
        let longer = channel::receive(ours.as_fd(), &mut buffer).unwrap();
        assert_eq!(parse_reply(&buffer[..longer.bytes]), Some(Err(not_a_request())), "a longer message ends nothing");
        channel::send(ours.as_fd(), b"not a request", &[]).unwrap();
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
        let set = PointSet::Polls { with_returns: false };
        let refused = helper.attach_set(0, us, set, File::open("/proc/self/exe").unwrap().as_fd());
        assert!(refused.unwrap_err().to_string().contains("neither libzmq"));
        assert!(helper.diag_socket(us).is_ok());
        assert!(helper.diag_socket(u32::MAX).is_err());
        helper.detach(0);
        drop(helper);
        served.join().unwrap().unwrap();
    }
}
