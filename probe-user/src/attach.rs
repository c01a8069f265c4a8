//! Which program goes where, and how all of it is taken away again.

use std::num::NonZeroU32;

use aya::Ebpf;
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::uprobe::{UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{ProgramError, RawTracePoint, UProbe};

use crate::library::Library;

/// Program and symbol.
type Point = (&'static str, &'static str);

/// Entries before returns, so that no return lacks its entry.
const RECEIVES: [Point; 2] = [("msg_recv", "zmq_msg_recv"), ("msg_received", "zmq_msg_recv")];
const BUFFER_RECEIVES: [Point; 2] = [("buffer_recv", "zmq_recv"), ("buffer_received", "zmq_recv")];
const SENDS: [Point; 1] = [("msg_send", "zmq_msg_send")];
const BUFFER_SENDS: [Point; 2] = [("buffer_send", "zmq_send"), ("buffer_send", "zmq_send_const")];
const REFUSED: [Point; 1] = [("send_returned", "zmq_msg_send")];
const BUFFER_REFUSED: [Point; 2] = [("send_returned", "zmq_send"), ("send_returned", "zmq_send_const")];
const HANDLED: [Point; 1] = [("getsockopt", "zmq_getsockopt")];

/// Each with its tracepoint.
const SCHEDULER: [Point; 2] = [("sched_switch", "sched_switch"), ("sched_wakeup", "sched_wakeup")];
const EGRESS: [Point; 2] = [("egress_state", "inet_sock_set_state"), ("egress_written", "sys_exit")];

/// Returns first: the return of a poll that was entered before is not a poll of ours.
const POLLS: [Point; 5] = [
    ("epoll_left", "epoll_wait"),
    ("epoll_left", "epoll_pwait"),
    ("epoll_entered", "epoll_wait"),
    ("epoll_entered", "epoll_pwait"),
    ("poll_entered", "poll"),
];

/// A group of uprobes on one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// What it takes.
    Receives,
    /// What it sends.
    Sends,
    /// Which of its sends were refused.
    Refused,
    /// When it is done with what it took.
    Handled,
    /// When it goes to its poll; on libc.
    Polls,
}

/// Something attached; detached when dropped. That takes the kernel 50 ms each, one after the other whoever asks.
#[derive(Debug)]
pub(crate) enum Link {
    Uprobe(#[expect(dead_code, reason = "held for its drop")] UProbeLink),
    RawTracepoint(#[expect(dead_code, reason = "held for its drop")] RawTracePointLink),
}

impl Group {
    /// Where its programs go; those on plain buffers only where the application may use them.
    fn points(self, buffers: bool) -> impl Iterator<Item = &'static Point> {
        let (messages, plain): (&[Point], &[Point]) = match self {
            Self::Receives => (&RECEIVES, &BUFFER_RECEIVES),
            Self::Sends => (&SENDS, &BUFFER_SENDS),
            Self::Refused => (&REFUSED, &BUFFER_REFUSED),
            Self::Handled => (&HANDLED, &[]),
            Self::Polls => (&POLLS, &[]),
        };
        messages.iter().chain(plain.iter().filter(move |_| buffers))
    }
}

/// A library of a process, and the number that the process's records carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) library: &'a Library,
    pub(crate) pid: NonZeroU32,
    pub(crate) target: u32,
}

/// Attaches one group.
pub(crate) fn uprobes(ebpf: &mut Ebpf, group: Group, place: Place<'_>) -> Result<Vec<Link>, ProgramError> {
    let mut links = Vec::new();
    for (name, symbol) in group.points(place.library.buffers) {
        let program: &mut UProbe = program(ebpf, name)?;
        loaded(program.load())?;
        let point = UProbeAttachPoint {
            location: (*symbol).into(),
            cookie: Some(u64::from(place.target)),
        };
        let id = program.attach(point, &place.library.path, UProbeScope::OneProcess(place.pid))?;
        links.push(Link::Uprobe(program.take_link(id)?));
    }
    Ok(links)
}

/// Attaches the scheduler's programs, for every target.
pub(crate) fn scheduler(ebpf: &mut Ebpf) -> Result<Vec<Link>, ProgramError> {
    tracepoints(ebpf, &SCHEDULER)
}

/// Attaches the programs that see what is written for clients, for every target that serves.
pub(crate) fn egress(ebpf: &mut Ebpf) -> Result<Vec<Link>, ProgramError> {
    tracepoints(ebpf, &EGRESS)
}

fn tracepoints(ebpf: &mut Ebpf, points: &[Point]) -> Result<Vec<Link>, ProgramError> {
    let mut links = Vec::new();
    for (name, tracepoint) in points {
        let program: &mut RawTracePoint = program(ebpf, name)?;
        loaded(program.load())?;
        let id = program.attach(tracepoint)?;
        links.push(Link::RawTracepoint(program.take_link(id)?));
    }
    Ok(links)
}

fn program<'a, T>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T, ProgramError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let unknown = || ProgramError::InvalidName { name: name.to_owned() };
    ebpf.program_mut(name).ok_or_else(unknown)?.try_into()
}

fn loaded(result: Result<(), ProgramError>) -> Result<(), ProgramError> {
    match result {
        Err(ProgramError::AlreadyLoaded) => Ok(()),
        other => other,
    }
}
