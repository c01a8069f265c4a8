//! A process of its own for what needs capabilities. The process that reads messages, files and `/proc` entries of others holds none of
//! these rights: it asks the helper to attach a program of the embedded object, or to open a socket for socket diagnostics.
//!
//! This is the side that asks; [`crate::prober`] is the helper.

pub(crate) mod request;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use aya::maps::{MapData, RingBuf};

use crate::channel;
use crate::message::{decode_message, encode_message};
use crate::programs::{Group, LoadedFacts, LossCounts, PointSet, Refusal, TableChange, ThreadEntry, open_ring};
use request::{HelperReply, HelperRequest, PIECE_BYTES, REPLY_BYTES};

/// The helper of this process.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// Maximum size of content: more than 8,192 threads.
const MAX_CONTENT_BYTES: usize = 2 << 20;

/// This process's side of the connections to a helper.
pub(crate) struct Helper {
    requests: Mutex<OwnedFd>,
    /// For requests whose answers may take long, of threads that do not read observations.
    slow_requests: Mutex<OwnedFd>,
    /// The ring, until it is taken.
    ring: Mutex<Result<Option<LoadedRing>, Refusal>>,
}

/// The ring of the loaded programs.
pub(crate) struct LoadedRing {
    pub(crate) records: RingBuf<MapData>,
    pub(crate) facts: LoadedFacts,
}

/// Uses the helper at the other end of `socket` for all probes and sockets from now on. Also opens the ring with the observations, so that
/// this process can then give up the system calls for that. A second call keeps the first helper.
pub fn connect_helper(socket: OwnedFd) -> io::Result<()> {
    // An error means that there is a helper already.
    let _ = HELPER.set(Helper::new(socket)?);
    Ok(())
}

/// The helper of this process, if it has one.
pub(crate) fn connected_helper() -> Option<&'static Helper> {
    HELPER.get()
}

impl Helper {
    /// Starts the service of the process behind the socket. If that fails, [`Self::take_ring`] returns the reason.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        // A second connection, on which slow requests do not delay the others.
        let (our_end, helper_end) = channel::message_pair()?;
        let requests = Mutex::new(socket);
        let ring = start_service_and_open_ring(&requests, helper_end.as_fd());
        // `None` once the ring is taken.
        let untaken_ring = ring.map(Some);
        Ok(Self { requests, slow_requests: Mutex::new(our_end), ring: Mutex::new(untaken_ring) })
    }

    /// Takes the ring of the loaded programs. A second call fails, because the ring has only one reader.
    pub(crate) fn take_ring(&self) -> Result<LoadedRing, Refusal> {
        match &mut *self.ring.lock().unwrap_or_else(PoisonError::into_inner) {
            Ok(ring) => {
                ring.take().ok_or_else(|| Refusal::Kernel(String::from("the observations have another reader")))
            }
            Err(refusal) => Err(refusal.clone()),
        }
    }

    pub(crate) fn change_table(&self, change: TableChange) -> Result<(), Refusal> {
        self.send_request(&HelperRequest::ChangeTable(change), None).map(drop)
    }

    pub(crate) fn read_losses(&self) -> Result<LossCounts, Refusal> {
        decode_message(&self.request_content(&HelperRequest::Losses)?).ok_or_else(helper_exited)
    }

    pub(crate) fn read_threads(&self) -> Result<Vec<ThreadEntry>, Refusal> {
        decode_message(&self.request_content(&HelperRequest::Threads)?).ok_or_else(helper_exited)
    }

    pub(crate) fn attach_group(&self, group: Group) -> Result<(), Refusal> {
        self.send_request(&HelperRequest::AttachGroup(group), None).map(drop)
    }

    /// Asks the helper to attach a set of probe points to process `pid`. The process is the target with this index, and has `library`
    /// mapped.
    pub(crate) fn attach_probe_points(
        &self,
        target_index: u32,
        pid: u32,
        set: PointSet,
        library: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        send_request_about_library(
            &self.requests,
            &HelperRequest::AttachUprobes { target: target_index, pid, set },
            library,
        )
    }

    /// Has a library analysed that process `pid` has mapped.
    pub(crate) fn analyse_library(&self, pid: u32, set: PointSet, library: BorrowedFd<'_>) -> Result<(), Refusal> {
        send_request_about_library(&self.slow_requests, &HelperRequest::Analyse { pid, set }, library)
    }

    pub(crate) fn detach_target(&self, target_index: u32) {
        // Without a helper, nothing is attached.
        let _ = self.send_request(&HelperRequest::Detach { target: target_index }, None);
    }

    pub(crate) fn detach_targets(&self) {
        // Without a helper, nothing is attached.
        let _ = self.send_request(&HelperRequest::DetachTargets, None);
    }

    /// Opens a netlink socket in the network namespace of process `pid`.
    pub(crate) fn open_diag_socket(&self, pid: u32) -> Result<OwnedFd, Refusal> {
        let mut answer =
            send_request_and_receive_answer(&self.slow_requests, &HelperRequest::DiagSocket { pid }, None)?;
        answer.descriptors.pop().ok_or_else(helper_exited)
    }

    fn send_request(&self, request: &HelperRequest, file: Option<BorrowedFd<'_>>) -> Result<HelperAnswer, Refusal> {
        send_request_and_receive_answer(&self.requests, request, file)
    }

    /// Sends a request whose answer comes in pieces, and joins the pieces.
    fn request_content(&self, request: &HelperRequest) -> Result<Vec<u8>, Refusal> {
        let socket = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        channel::send_message(socket.as_fd(), &encode_message(request), &[]).map_err(|_| helper_exited())?;
        let mut buffer = vec![0; PIECE_BYTES];
        let mut content = Vec::new();
        loop {
            let piece = receive_piece(socket.as_fd(), &mut buffer)?;
            content.extend(piece.content);
            if piece.is_last {
                return Ok(content);
            }
            // A limit, so that a broken helper cannot fill the memory of this process.
            if content.len() > MAX_CONTENT_BYTES {
                return Err(helper_exited());
            }
        }
    }
}

/// Sends the first request, with the helper's end of the second connection, and opens the ring of the answer.
fn start_service_and_open_ring(requests: &Mutex<OwnedFd>, helper_end: BorrowedFd<'_>) -> Result<LoadedRing, Refusal> {
    let mut answer = send_request_and_receive_answer(requests, &HelperRequest::Start, Some(helper_end))?;
    // The answer brings one descriptor, that of the ring. `facts` are properties of the loaded programs.
    let ring = answer.descriptors.pop().ok_or_else(helper_exited)?;
    Ok(LoadedRing { records: open_ring(ring)?, facts: answer.facts })
}

/// Sends a request about an open library.
fn send_request_about_library(
    connection: &Mutex<OwnedFd>,
    request: &HelperRequest,
    library: BorrowedFd<'_>,
) -> Result<(), Refusal> {
    // The helper must be able to end although the library's file system does not answer. So it gets a descriptor that only locates the
    // file.
    let located = foreign::locate_only(library).map_err(|error| Refusal::Kernel(format!("the library: {error}")))?;
    send_request_and_receive_answer(connection, request, Some(located.as_fd())).map(drop)
}

/// A part of the content that was requested.
struct ContentPiece {
    content: Vec<u8>,
    is_last: bool,
}

/// Receives the next piece of a reply, or the helper's refusal.
fn receive_piece(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<ContentPiece, Refusal> {
    let received = channel::receive_message(socket, buffer).map_err(|_| helper_exited())?;
    match decode_message(&buffer[..received.bytes]) {
        Some(HelperReply::Content { content, is_last }) => Ok(ContentPiece { content, is_last }),
        Some(HelperReply::Refused(refusal)) => Err(refusal),
        // The connection was closed, or the reply is malformed.
        _ => Err(helper_exited()),
    }
}

/// Sends a request, with a file if it needs one, and waits for the reply.
fn send_request_and_receive_answer(
    connection: &Mutex<OwnedFd>,
    request: &HelperRequest,
    file: Option<BorrowedFd<'_>>,
) -> Result<HelperAnswer, Refusal> {
    // The lock is held until the reply has arrived, so that no other thread receives it.
    let socket = connection.lock().unwrap_or_else(PoisonError::into_inner);
    channel::send_message(socket.as_fd(), &encode_message(request), file.as_slice()).map_err(|_| helper_exited())?;
    let mut buffer = [0; REPLY_BYTES];
    let received = channel::receive_message(socket.as_fd(), &mut buffer).map_err(|_| helper_exited())?;
    match decode_message(&buffer[..received.bytes]) {
        Some(HelperReply::Done(facts)) => Ok(HelperAnswer { facts, descriptors: received.descriptors }),
        Some(HelperReply::Refused(refusal)) => Err(refusal),
        // The connection was closed, or the reply is malformed.
        _ => Err(helper_exited()),
    }
}

/// Result of a request. Only that for the first has facts.
pub(crate) struct HelperAnswer {
    pub(crate) facts: LoadedFacts,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Refusal for a helper that has exited, or whose reply is malformed.
fn helper_exited() -> Refusal {
    Refusal::Kernel(String::from("the process that attaches probes for tokengap has exited"))
}
