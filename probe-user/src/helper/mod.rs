//! A process of its own for what needs capabilities. The process that reads messages, files and `/proc` entries of others holds none of
//! these rights: it asks the helper to attach a program of the embedded object, or to open a socket for socket diagnostics.
//!
//! This is the side that asks; [`crate::prober`] is the helper.

pub(crate) mod request;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::channel;
use crate::programs::{Group, LoadedFacts, PointSet, Refusal};
use request::{REPLY_BYTES, Request, parse_reply};

/// The helper of this process.
static HELPER: OnceLock<Helper> = OnceLock::new();

/// This end of the socket pair to a helper.
#[derive(Debug)]
pub(crate) struct Helper(Mutex<OwnedFd>);

/// Uses the helper at the other end of `socket` for all probes and sockets from now on. A second call has no effect.
pub fn connect(socket: OwnedFd) {
    let _ = HELPER.set(Helper::new(socket));
}

/// The helper of this process, if it has one.
pub(crate) fn connected() -> Option<&'static Helper> {
    HELPER.get()
}

impl Helper {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(socket))
    }

    /// The maps of the loaded programs, and their properties.
    pub(crate) fn map_descriptors(&self) -> Result<Answer, Refusal> {
        self.ask(&Request::Maps, None)
    }

    pub(crate) fn attach_group(&self, group: Group) -> Result<(), Refusal> {
        self.ask(&Request::AttachGroup(group), None).map(drop)
    }

    /// Attaches a set of probe points to process `pid`, which is the target with this index and has `library` mapped.
    pub(crate) fn attach_set(
        &self,
        target: u32,
        pid: u32,
        set: PointSet,
        library: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        self.ask_about(&Request::AttachUprobes { target, pid, set }, library)
    }

    /// Has a library analysed that process `pid` has mapped.
    pub(crate) fn analyse(&self, pid: u32, set: PointSet, library: BorrowedFd<'_>) -> Result<(), Refusal> {
        self.ask_about(&Request::Analyse { pid, set }, library)
    }

    fn ask_about(&self, request: &Request, library: BorrowedFd<'_>) -> Result<(), Refusal> {
        // The prober must be able to end although the library's file system does not answer: it gets a descriptor without open file.
        let located = foreign::located(library).map_err(|error| Refusal::Kernel(format!("the library: {error}")))?;
        self.ask(request, Some(located.as_fd())).map(drop)
    }

    pub(crate) fn detach(&self, target: u32) {
        // Without a helper, nothing is attached.
        let _ = self.ask(&Request::Detach { target }, None);
    }

    pub(crate) fn detach_targets(&self) {
        let _ = self.ask(&Request::DetachTargets, None);
    }

    /// A netlink socket in the network namespace of process `pid`.
    pub(crate) fn diag_socket(&self, pid: u32) -> Result<OwnedFd, Refusal> {
        self.ask(&Request::DiagSocket { pid }, None)?.descriptors.pop().ok_or_else(ended)
    }

    fn ask(&self, request: &Request, file: Option<BorrowedFd<'_>>) -> Result<Answer, Refusal> {
        // Held until the reply has arrived, so that it is the reply to this request.
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        channel::send(socket.as_fd(), &request.to_bytes(), file.as_slice()).map_err(|_| ended())?;
        let mut buffer = [0; REPLY_BYTES];
        let received = channel::receive(socket.as_fd(), &mut buffer).map_err(|_| ended())?;
        let reply = parse_reply(&buffer[..received.bytes]).ok_or_else(ended)?;
        Ok(Answer { facts: reply?, descriptors: received.descriptors })
    }
}

/// Result of a request. Only that for the maps has facts.
pub(crate) struct Answer {
    pub(crate) facts: LoadedFacts,
    pub(crate) descriptors: Vec<OwnedFd>,
}

fn ended() -> Refusal {
    Refusal::Kernel(String::from("the process that attaches probes for tokengap has exited"))
}
