//! The helper process of [`crate::helper`], which attaches programs on request. It parses only requests and answers of bounded size, and of
//! `/proc/PID/maps` the numbers and names that decide whether a file is a library of the process. Where a library is probed, a process
//! of its own finds out ([`crate::locator`]). It ends with its peer.

mod check;

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use probe_ebpf::MAX_TARGETS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::channel;
use crate::discover::diag_socket::DiagSocket;
use crate::helper::request::{HelperReply, HelperRequest, REQUEST_BYTES, encode_content_in_pieces};
use crate::kernel_side::KernelSide;
use crate::locator::Locator;
use crate::message::{decode_message, encode_message};
use crate::probe::batches;
use crate::probe_options::ProbeOptions;
use crate::proc::ProcDir;
use crate::programs::{Batch, LoadedFacts, PointSet, Refusal};
use adapter::discover::InnerServer;

/// Interval at which the kernel's log is shown, if it is.
const LOG_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What the prober attaches, and where.
pub struct ProberSettings {
    /// The probe's options.
    pub options: ProbeOptions,
    /// All servers inside processes of engines.
    pub servers: Vec<InnerServer>,
    /// Socket to the process that starts the analyses of libraries ([`crate::locator::supervise_analyses`]).
    pub locator: OwnedFd,
}

/// Runs the prober, a process that loads and attaches eBPF programs for another process of tokengap, the peer. Serves requests on `socket`
/// until its other end is closed. Calls `drop_rights` once all programs are loaded, unless the right to load is needed later.
pub fn serve_probe_requests(
    socket: BorrowedFd<'_>,
    settings: ProberSettings,
    drop_rights: impl FnOnce(),
) -> io::Result<()> {
    let mut kernel = KernelSide::load(settings.options);
    // The peer gets its answer before the further programs are loaded, so that it need not wait for them.
    let slow_connection = answer_first_request_and_take_slow_connection(socket, &kernel)?;
    // When later requests need these programs, the right to load is gone.
    if let Ok(kernel) = &mut kernel {
        kernel.preload_programs_and_attach_groups();
    }
    // At every attach by a perf event, aya loads a program to test whether the kernel has cookies.
    let needs_rights_later = kernel.as_ref().is_ok_and(|kernel| kernel.loaded_facts().uses_perf_events);
    if !needs_rights_later {
        drop_rights();
    }
    let server = Arc::new(ProberServer {
        kernel: Mutex::new(kernel),
        servers: settings.servers,
        locator: Locator::new(settings.locator),
    });
    // Requests that take long have a connection and a thread of their own, so that the others need not wait for them.
    if let Some(connection) = slow_connection {
        let slow_server = Arc::clone(&server);
        thread::Builder::new().name("slow".into()).spawn(move || slow_server.serve_connection(connection.as_fd()))?;
    }
    let served = server.serve_connection(socket);
    // Drops and so detaches all programs together, which takes less time than at the end of the process.
    *server.lock_kernel() = Err(Refusal::Kernel(String::from("the run has ended")));
    served
}

/// Answers the first request with the ring, or with the refusal. Returns the second connection, which came with the request. `None` if the
/// peer has ended.
fn answer_first_request_and_take_slow_connection(
    socket: BorrowedFd<'_>,
    kernel: &Result<KernelSide, Refusal>,
) -> io::Result<Option<OwnedFd>> {
    let mut buffer = [0; REQUEST_BYTES];
    let mut received = channel::receive_message(socket, &mut buffer)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let request = decode_message(&buffer[..received.bytes]);
    // The second connection is for requests that take long, such as an analysis.
    let (Some(HelperRequest::Start), Some(slow_connection)) = (request, received.descriptors.pop()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    match ring_and_facts(kernel) {
        Ok((ring, facts)) => send_reply(socket, Ok(facts), &[ring])?,
        Err(refusal) => send_reply(socket, Err(refusal), &[])?,
    }
    Ok(Some(slow_connection))
}

/// The ring of the loaded programs, and what they can do. The error says why they could not be loaded.
fn ring_and_facts(kernel: &Result<KernelSide, Refusal>) -> Result<(BorrowedFd<'_>, LoadedFacts), Refusal> {
    let kernel = kernel.as_ref().map_err(Clone::clone)?;
    Ok((kernel.ring_descriptor()?, kernel.loaded_facts()))
}

struct ProberServer {
    kernel: Mutex<Result<KernelSide, Refusal>>,
    servers: Vec<InnerServer>,
    locator: Locator,
}

impl ProberServer {
    fn lock_kernel(&self) -> MutexGuard<'_, Result<KernelSide, Refusal>> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the programs. Returns the refusal if the programs could not be loaded.
    fn with_kernel<T>(&self, work: impl FnOnce(&mut KernelSide) -> Result<T, Refusal>) -> Result<T, Refusal> {
        match &mut *self.lock_kernel() {
            Ok(kernel) => work(kernel),
            Err(refusal) => Err(refusal.clone()),
        }
    }

    /// Answers requests until the connection is closed.
    fn serve_connection(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let mut buffer = [0; REQUEST_BYTES];
        loop {
            self.wait_for_request(socket)?;
            let received = match channel::receive_message(socket, &mut buffer) {
                // The message is longer than any request. It is refused, and the connection goes on.
                Err(Errno::MSGSIZE) => {
                    send_reply(socket, Err(not_a_request()), &[])?;
                    continue;
                }
                received => received?,
            };
            if received.bytes == 0 {
                return Ok(());
            }
            self.answer_request(socket, &buffer[..received.bytes], &received.descriptors)?;
        }
    }

    /// Waits for a request and shows the kernel's log meanwhile. Returns at once if there is no log to show.
    fn wait_for_request(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while self.flush_log_and_may_have_more() {
            if poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&LOG_INTERVAL))? > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Shows new lines of the kernel's log. Returns whether there may be further ones.
    fn flush_log_and_may_have_more(&self) -> bool {
        let mut kernel = self.lock_kernel();
        let Ok(kernel) = kernel.as_mut() else { return false };
        kernel.flush_log();
        kernel.has_log()
    }

    /// Executes a request and sends the reply. A malformed request is refused.
    fn answer_request(&self, socket: BorrowedFd<'_>, message: &[u8], files: &[OwnedFd]) -> io::Result<()> {
        let Some(request) = decode_message(message) else {
            return send_reply(socket, Err(not_a_request()), &[]);
        };
        let result = match request {
            HelperRequest::Start => Err(not_a_request()),
            HelperRequest::DiagSocket { pid } => {
                return match open_diag_socket(pid) {
                    Ok(diag) => send_reply(socket, Ok(LoadedFacts::default()), &[diag.as_fd()]),
                    Err(refusal) => send_reply(socket, Err(refusal), &[]),
                };
            }
            HelperRequest::Losses => {
                let counts = self.with_kernel(KernelSide::read_losses);
                return send_content(socket, counts.map(|counts| encode_message(&counts)));
            }
            HelperRequest::Threads => {
                let threads = self.with_kernel(|kernel| kernel.read_threads());
                return send_content(socket, threads.map(|threads| encode_message(&threads)));
            }
            HelperRequest::AttachGroup(group) => self.with_kernel(|kernel| kernel.attach_group(group)),
            HelperRequest::ChangeTable(change) => self.with_kernel(|kernel| kernel.change_table(change)),
            HelperRequest::AttachUprobes { target, pid, set } => match files {
                [library] => {
                    self.attach_to_running_process(target, &ClaimedLibrary { pid, set, file: library.as_fd() }, socket)
                }
                _ => Err(not_a_request()),
            },
            HelperRequest::Analyse { pid, set } => match files {
                [library] => {
                    let library = ClaimedLibrary { pid, set, file: library.as_fd() };
                    // The call only fills the cache of analyses, which does not depend on the target.
                    let any_target = 0;
                    self.check_library_and_find_batches(any_target, &library, socket).map(drop)
                }
                _ => Err(not_a_request()),
            },
            HelperRequest::Detach { target } => self.with_kernel(|kernel| {
                kernel.detach_target(target);
                Ok(())
            }),
            HelperRequest::DetachTargets => self.with_kernel(|kernel| {
                kernel.detach_targets();
                Ok(())
            }),
        };
        send_reply(socket, result.map(|()| LoadedFacts::default()), &[])
    }

    /// Checks that the process has mapped the library, and finds the probe points for the target with this index. Waits for the analysis as
    /// long as `requester_socket` is open.
    fn check_library_and_find_batches(
        &self,
        target_index: u32,
        library: &ClaimedLibrary<'_>,
        requester_socket: BorrowedFd<'_>,
    ) -> Result<Vec<Batch>, Refusal> {
        if target_index >= MAX_TARGETS {
            return Err(Refusal::Kernel(format!("no target has number {target_index}")));
        }
        let ClaimedLibrary { pid, set, file } = *library;
        let code = check::check_library_and_find_code(pid, set, file, &self.servers).map_err(Refusal::Kernel)?;
        let found = self
            .locator
            .find_probe_points(code.sought_number, code.identity, file, requester_socket)
            .map_err(Refusal::Kernel)?;
        let batches =
            batches::batches_of_set(set, &found, target_index).map_err(|error| Refusal::from_error(&error))?;
        // The analysis runs elsewhere on bytes that the target controls, so its answer is checked.
        if !batches.iter().all(|batch| code.contains(batch)) {
            return Err(Refusal::Kernel(format!("a probe point is outside the code of process {pid}")));
        }
        Ok(batches)
    }

    /// Attaches the set of probe points to the process. Fails and detaches it if the process has exited meanwhile, because another process
    /// may then have its id.
    fn attach_to_running_process(
        &self,
        target_index: u32,
        library: &ClaimedLibrary<'_>,
        requester_socket: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        // The system call and the kernel side take the id as different types.
        let valid_id = i32::try_from(library.pid).ok().and_then(Pid::from_raw);
        let id = valid_id.ok_or_else(|| process_has_exited(library.pid))?;
        let pid = NonZeroU32::new(library.pid).ok_or_else(|| process_has_exited(library.pid))?;
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|error| Refusal::from_error(&error))?;
        let batches = self.check_library_and_find_batches(target_index, library, requester_socket)?;
        self.with_kernel(|kernel| {
            for batch in &batches {
                kernel.attach_uprobes(target_index, pid, batch, library.file)?;
            }
            // If the process still runs after the attach, the attach has reached it, and not a later process with its id.
            if has_exited(&pidfd) {
                kernel.detach_target(target_index);
                return Err(process_has_exited(library.pid));
            }
            Ok(())
        })
    }
}

/// Whether the process of a pidfd has exited, which makes the pidfd readable.
fn has_exited(pidfd: &OwnedFd) -> bool {
    let ready_count = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default()));
    ready_count.is_ok_and(|ready| ready > 0)
}

/// Opens a socket for `sock_diag` in the network namespace of the process.
fn open_diag_socket(pid: u32) -> Result<DiagSocket, Refusal> {
    let process = ProcDir::open(pid).map_err(|error| Refusal::from_error(&error))?;
    DiagSocket::open_for_namespace_of(&process).map_err(|error| Refusal::from_error(&error))
}

/// A file that a process is said to have mapped as a library for a set of probe points.
struct ClaimedLibrary<'l> {
    pid: u32,
    set: PointSet,
    file: BorrowedFd<'l>,
}

/// Sends content in as many messages as it needs, or the refusal in one.
fn send_content(socket: BorrowedFd<'_>, content: Result<Vec<u8>, Refusal>) -> io::Result<()> {
    match content {
        Ok(content) => {
            for piece in encode_content_in_pieces(&content) {
                channel::send_message(socket, &piece, &[])?;
            }
            Ok(())
        }
        Err(refusal) => send_reply(socket, Err(refusal), &[]),
    }
}

/// Sends the reply to a request, with descriptors if it has some.
fn send_reply(
    socket: BorrowedFd<'_>,
    result: Result<LoadedFacts, Refusal>,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    Ok(channel::send_message(socket, &encode_message(&HelperReply::from_result(result)), descriptors)?)
}

fn process_has_exited(pid: u32) -> Refusal {
    Refusal::Kernel(format!("process {pid} has exited"))
}

fn not_a_request() -> Refusal {
    Refusal::Kernel(String::from("not a request"))
}

#[cfg(test)]
mod tests {
    use probe_ebpf::egress::Serves;
    use std::fs::File;

    use super::*;
    use crate::helper::Helper;
    use crate::helper::request::REPLY_BYTES;
    use crate::programs::{LossCounts, TableChange};

    #[test]
    fn requests_are_served_until_the_other_end_closes() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: loading eBPF programs needs root");
        }
        let (ours, theirs) = channel::message_pair().unwrap();
        let options = ProbeOptions { ring_bytes: 64 << 10, scheduler: false, polls: false, ..ProbeOptions::default() };
        let locator = OwnedFd::from(File::open("/dev/null").unwrap());
        let settings = ProberSettings { options, servers: Vec::new(), locator };
        let served = thread::spawn(move || serve_probe_requests(theirs.as_fd(), settings, || ()));
        let helper = Helper::new(ours.try_clone().unwrap()).unwrap();
        match helper.take_ring() {
            Err(Refusal::Kernel(text)) => return eprintln!("SKIPPED: {text}"),
            ring => drop(ring.unwrap()),
        }
        assert!(helper.take_ring().is_err(), "it has one reader");
        let mut buffer = [0; REPLY_BYTES];
        for message in [&[3; REQUEST_BYTES + 1][..], b"not a request"] {
            channel::send_message(ours.as_fd(), message, &[]).unwrap();
            let received = channel::receive_message(ours.as_fd(), &mut buffer).unwrap();
            assert_eq!(decode_message(&buffer[..received.bytes]), Some(HelperReply::Refused(not_a_request())));
            assert!(received.descriptors.is_empty());
        }
        let us = std::process::id();
        let set = PointSet::Polls { with_returns: false };
        let refused = helper.attach_probe_points(0, us, set, File::open("/proc/self/exe").unwrap().as_fd());
        assert!(refused.unwrap_err().to_string().contains("neither libzmq"));
        assert!(helper.open_diag_socket(us).is_ok());
        assert!(helper.open_diag_socket(u32::MAX).is_err());
        assert_eq!(helper.read_losses().unwrap(), LossCounts::default());
        assert_eq!(helper.read_threads().unwrap(), []);
        helper.change_table(TableChange::EnterTarget { target: 0, pid: us }).unwrap();
        let of_no_target = TableChange::Serve { target: MAX_TARGETS, serves: Serves::default() };
        assert!(helper.change_table(of_no_target).is_err());
        helper.detach_target(0);
        drop(ours);
        drop(helper);
        served.join().unwrap().unwrap();
    }
}
