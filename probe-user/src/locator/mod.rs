//! Analysis of a library's code in a process of its own, which has no other file, no capability and no further request.
//!
//! A library is written by somebody else, so its parser may be taken over. A uprobe inside an instruction would change that instruction in
//! the process that is probed. So neither the process that reads other untrusted data nor the one that attaches probes chooses offsets:
//! each library is analysed by a fresh process ([`answer_once`]), and a hostile library only misleads the probes of itself.
//!
//! The prober may start no process. [`supervise_analyses`] starts them for it: a process that reads only the prober's requests. A request
//! is the number of a [`Sought`], with the descriptors of the library and of a pipe for the answer.

pub(crate) mod answer;

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use foreign::{CachedIdentity, RegularFile};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, setrlimit};

use crate::channel::{self, ReceivedMessage};
use crate::discarded_output::discarded_output;
use crate::message::decode_message;
use crate::probe_points::{MAX_CACHED, ProbePoints, read_library_file};
use adapter::discover::InnerServer;
use answer::{ANSWER_BYTES, LocatorAnswer, answer_to_bytes};

pub use crate::probe_points::Sought;

/// Limits of an analysis. The largest extensions take a fraction of them.
const TIME_LIMIT: Duration = Duration::from_secs(5);
const CPU_LIMIT_S: u64 = 5;
const MEMORY_LIMIT_BYTES: u64 = 1 << 30;
/// How long the prober waits for the supervisor to end an analysis.
const GRACE: Duration = Duration::from_secs(1);
/// Length of a request.
const REQUEST_BYTES: usize = 4;

/// The [`Sought`] of a request with this number: 0 is the functions, others are the method of a server, counted from 1. `None` if there is
/// no such server.
pub fn sought_by_number(number: u32, servers: &[InnerServer]) -> Option<Sought> {
    let Some(server) = number.checked_sub(1) else { return Some(Sought::Functions) };
    Some(Sought::Method(servers.get(server as usize)?.methods))
}

/// Limits the memory and time of this process, so that no library keeps it busy. Call it before [`answer_once`].
pub fn limit_own_resources() -> io::Result<()> {
    setrlimit(Resource::As, hard_limit(MEMORY_LIMIT_BYTES))?;
    setrlimit(Resource::Cpu, hard_limit(CPU_LIMIT_S))?;
    Ok(())
}

fn hard_limit(limit: u64) -> Rlimit {
    Rlimit { current: Some(limit), maximum: Some(limit) }
}

/// Analyses one library, and writes the answer.
pub fn answer_once(sought: Sought, library: &RegularFile, mut output: impl io::Write) -> io::Result<()> {
    let found = read_library_file(library).and_then(|image| ProbePoints::find_in_image(sought, &image));
    output.write_all(&answer_to_bytes(found.map_err(|error| error.to_string())))
}

/// Serves requests on `socket` until its other end is closed. Starts a process for each request, which analyses a library. A request has
/// the number of a [`Sought`], which says what to find, and `command_for` returns the command for this number. The process receives the
/// library through its standard input ([`receive_library`]), and writes the answer to its standard output.
pub fn supervise_analyses(socket: BorrowedFd<'_>, command_for: impl Fn(u32) -> Command) -> io::Result<()> {
    // Processes that took too long. Each is kept until it has ended, because its parent must wait for it.
    let mut killed: Vec<Child> = Vec::new();
    let mut buffer = [0; REQUEST_BYTES];
    loop {
        let received = channel::receive_message(socket, &mut buffer)?;
        if received.bytes == 0 {
            return Ok(());
        }
        // Keeps only the killed processes that have not ended yet. One whose file system does not answer may end only later.
        killed.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        // A malformed request gets no answer.
        let Some(request) = AnalysisRequest::from_message(received, buffer) else { continue };
        let AnalysisRequest { sought_number, library, answer_pipe } = request;
        // The prober waits until all writing ends of the pipe are closed. The command has one, so the call drops it.
        let child = start_analysis(command_for(sought_number), sought_number, &library, answer_pipe)?;
        killed.extend(kill_unless_ended_in_time(child, socket)?);
    }
}

/// A request to analyse a library, with the number of what to find in it.
struct AnalysisRequest {
    sought_number: u32,
    library: OwnedFd,
    answer_pipe: OwnedFd,
}

impl AnalysisRequest {
    /// Takes the request from a message, whose bytes are in `buffer`. `None` if it is malformed, and its descriptors are then closed.
    fn from_message(received: ReceivedMessage, buffer: [u8; REQUEST_BYTES]) -> Option<Self> {
        if received.bytes != REQUEST_BYTES {
            return None;
        }
        let [library, answer_pipe] = <[OwnedFd; 2]>::try_from(received.descriptors).ok()?;
        Some(Self { sought_number: u32::from_le_bytes(buffer), library, answer_pipe })
    }
}

/// Waits until an analysis has ended. If that takes too long, or if `socket` is closed meanwhile, kills its process and returns it.
fn kill_unless_ended_in_time(mut child: Child, socket: BorrowedFd<'_>) -> io::Result<Option<Child>> {
    if wait_for_end_in_time(&child, socket)? {
        child.wait()?;
        return Ok(None);
    }
    child.kill()?;
    Ok(Some(child))
}

/// Starts the process that analyses a library. Through its standard input, it gets the library and the number of what it must find. It
/// writes its answer to the pipe.
fn start_analysis(
    mut command: Command,
    sought_number: u32,
    library: &OwnedFd,
    answer_pipe: OwnedFd,
) -> io::Result<Child> {
    // The library's descriptor is passed in a message, because it only locates the file (`O_PATH`). A Rust program takes such a standard
    // input for closed, and replaces it by `/dev/null`. Where that does not exist, the program exits.
    let (our_end, child_end) = channel::message_pair()?;
    channel::send_message(our_end.as_fd(), &sought_number.to_le_bytes(), &[library.as_fd()])?;
    command.stdin(child_end).stdout(answer_pipe).stderr(discarded_output()?).spawn()
}

/// The library that the process at the other end of `socket` sent to be analysed. Its descriptor only locates it.
pub fn receive_library(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut descriptors = channel::receive_message(socket, &mut [0; REQUEST_BYTES])?.descriptors;
    descriptors.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Waits until the process ends, for at most [`TIME_LIMIT`] and as long as `socket` is open. Returns whether the process has ended.
fn wait_for_end_in_time(child: &Child, socket: BorrowedFd<'_>) -> io::Result<bool> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let pidfd = pidfd_open(id, PidfdFlags::empty())?;
    Ok(wait_until_readable(pidfd.as_fd(), socket, Instant::now() + TIME_LIMIT)?)
}

/// Waits until `file` is readable or closed, and then returns `true`. Returns `false` once `deadline` has passed or `requester_socket` is
/// closed.
fn wait_until_readable(
    file: BorrowedFd<'_>,
    requester_socket: BorrowedFd<'_>,
    deadline: Instant,
) -> Result<bool, Errno> {
    // Without a requested event, a poll still reports that the peer has closed.
    let mut watched = [PollFd::new(&file, PollFlags::IN), PollFd::new(&requester_socket, PollFlags::empty())];
    retry_on_intr(|| {
        let remaining = deadline.saturating_duration_since(Instant::now());
        poll(&mut watched, Some(&remaining.try_into().unwrap_or_default()))
    })?;
    Ok(!watched[0].revents().is_empty())
}

/// The prober's side: asks for analyses, and remembers the answers.
pub(crate) struct Locator {
    supervisor: Mutex<OwnedFd>,
    cached: Mutex<HashMap<AnalysisKey, LocatorAnswer>>,
}

/// A library, and the number of the [`Sought`] in it ([`sought_by_number`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct AnalysisKey {
    library: CachedIdentity,
    sought_number: u32,
}

impl Locator {
    pub(crate) fn new(supervisor: OwnedFd) -> Self {
        Self { supervisor: Mutex::new(supervisor), cached: Mutex::default() }
    }

    /// Finds the probe points of a library for the [`Sought`] with this number, and remembers them. `identity` is that of the library's
    /// file. `library` is a descriptor of the file, and `O_PATH` is enough for it. Unless the library is known, waits for its analysis as
    /// long as `requester_socket` is open.
    pub(crate) fn find_probe_points(
        &self,
        sought_number: u32,
        identity: CachedIdentity,
        library: BorrowedFd<'_>,
        requester_socket: BorrowedFd<'_>,
    ) -> LocatorAnswer {
        let key = AnalysisKey { library: identity, sought_number };
        if let Some(answer) = self.cached_answer(key) {
            return answer;
        }
        // Only one analysis runs at a time. While this thread waits for the lock, another one may get the same answer.
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = self.cached_answer(key) {
            return answer;
        }
        let asked = request_analysis(supervisor.as_fd(), sought_number, library, requester_socket);
        let answer = asked.unwrap_or_else(|error| Err(format!("cannot analyse its code: {error}")));
        self.remember_answer(key, answer.clone());
        answer
    }

    /// Remembers the answer of an analysis. After the limit, libraries are analysed again, which costs time only.
    fn remember_answer(&self, key: AnalysisKey, answer: LocatorAnswer) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.len() == MAX_CACHED {
            cached.clear();
        }
        cached.insert(key, answer);
    }

    /// Answer of an earlier analysis.
    fn cached_answer(&self, key: AnalysisKey) -> Option<LocatorAnswer> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }
}

/// Sends a request to the supervisor and receives the answer of the process that it starts.
fn request_analysis(
    supervisor: BorrowedFd<'_>,
    sought_number: u32,
    library: BorrowedFd<'_>,
    requester_socket: BorrowedFd<'_>,
) -> io::Result<LocatorAnswer> {
    let (answer_reader, answer_writer) = io::pipe()?;
    channel::send_message(supervisor, &sought_number.to_le_bytes(), &[library, answer_writer.as_fd()])?;
    // Otherwise the pipe would stay open when the process has ended.
    drop(answer_writer);
    receive_answer(answer_reader, requester_socket)
}

/// Receives the answer of an analysis that has just begun. `requester_socket` is the socket whose other end asked for it. An outer error
/// means that the pipe failed. An inner error says why the analysis has no result.
fn receive_answer(mut pipe: io::PipeReader, requester_socket: BorrowedFd<'_>) -> io::Result<LocatorAnswer> {
    // The supervisor kills the process at the time limit. That closes the pipe a little later.
    let deadline = Instant::now() + TIME_LIMIT + GRACE;
    // The analysed file decides what the process writes, so the length of the answer is limited.
    let mut bytes = [0; ANSWER_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        if !wait_until_readable(pipe.as_fd(), requester_socket, deadline)? {
            return Ok(Err(format!("the analysis of its code took more than {} s", TIME_LIMIT.as_secs())));
        }
        match pipe.read(&mut bytes[filled..])? {
            // The process has ended.
            0 => break,
            count => filled += count,
        }
    }
    Ok(decode_message(&bytes[..filled]).unwrap_or_else(|| {
        Err(String::from("the analysis of its code ended early: it exceeded its limits, or its file does not answer"))
    }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;

    use super::*;
    use crate::library::open_libc;

    /// A locator whose supervisor starts `script` for each request.
    fn with_script(script: &'static str) -> Locator {
        let (ours, theirs) = channel::message_pair().unwrap();
        thread::spawn(move || {
            supervise_analyses(theirs.as_fd(), |number| {
                let mut command = Command::new("sh");
                command.args(["-c", script, "sh", &number.to_string()]);
                command
            })
        });
        Locator::new(ours)
    }

    fn find(locator: &Locator, sought: u32) -> LocatorAnswer {
        let library = File::open("/proc/self/exe").unwrap();
        let (peer, _other_end) = io::pipe().unwrap();
        let identity = CachedIdentity::of_file(&library).unwrap();
        locator.find_probe_points(sought, identity, library.as_fd(), peer.as_fd())
    }

    #[test]
    fn an_answer_comes_from_a_fresh_process_and_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let library = open_libc(std::process::id()).unwrap().remove(0);
        let mut written = Vec::new();
        answer_once(Sought::Functions, &library.file, &mut written).unwrap();
        let file = folder.path().join("answer");
        std::fs::write(&file, &written).unwrap();
        let script = format!("echo >> {0}.starts; test $1 = 0 && cat {0}", file.display());
        let locator = with_script(script.leak());
        let found = find(&locator, 0).unwrap();
        assert!(found.entry_offset_of("poll").is_ok() && found.entry_offset_of("zmq_send").is_err());
        assert_eq!(find(&locator, 0), Ok(found));
        assert!(find(&locator, 1).unwrap_err().contains("ended early"));
        assert_eq!(std::fs::read(file.with_extension("starts")).unwrap().len(), 2);
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_and_the_next_one_answers() {
        let locator = with_script("test $1 = 1 && exec sleep 100");
        let began = Instant::now();
        let why = find(&locator, 1).unwrap_err();
        assert!(why.contains("ended early"), "{why}");
        assert!(began.elapsed() < TIME_LIMIT + GRACE, "{:?}", began.elapsed());
        assert!(find(&locator, 0).unwrap_err().contains("ended early"));
    }

    #[test]
    fn an_analysis_is_abandoned_with_the_peer() {
        let library = File::open("/proc/self/exe").unwrap();
        let locator = with_script("exec sleep 3");
        let (peer, other_end) = io::pipe().unwrap();
        drop(other_end);
        let began = Instant::now();
        let identity = CachedIdentity::of_file(&library).unwrap();
        assert!(locator.find_probe_points(0, identity, library.as_fd(), peer.as_fd()).is_err());
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
