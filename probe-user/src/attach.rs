//! Which program goes where, and how all of it is taken away again.

use std::num::NonZeroU32;
use std::path::Path;
use std::thread;

use aya::Ebpf;
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::uprobe::{UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{ProgramError, RawTracePoint, UProbe};

/// Program and symbol, in the order of the attach: takes before sends, so that no frame seen sent was taken unseen, and
/// entries before returns, so that no return lacks its entry.
const RECEIVES: [(&str, &str); 4] = [
    ("msg_recv", "zmq_msg_recv"),
    ("msg_received", "zmq_msg_recv"),
    ("buffer_recv", "zmq_recv"),
    ("buffer_received", "zmq_recv"),
];
const SENDS: [(&str, &str); 3] = [
    ("msg_send", "zmq_msg_send"),
    ("buffer_send", "zmq_send"),
    ("buffer_send", "zmq_send_const"),
];
const REFUSED: [(&str, &str); 3] = [
    ("send_returned", "zmq_msg_send"),
    ("send_returned", "zmq_send"),
    ("send_returned", "zmq_send_const"),
];
const HANDLED: [(&str, &str); 1] = [("getsockopt", "zmq_getsockopt")];

const SCHEDULER: [&str; 2] = ["sched_switch", "sched_wakeup"];

/// Returns first: the return of a poll that was entered before is not a poll of ours.
const POLLS: [(&str, &str); 5] = [
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

/// Something attached; detached when dropped, which takes the kernel tens of milliseconds each.
#[derive(Debug)]
pub(crate) enum Link {
    Uprobe(#[expect(dead_code, reason = "held for its drop")] UProbeLink),
    RawTracepoint(#[expect(dead_code, reason = "held for its drop")] RawTracePointLink),
}

/// Attaches one group to `library` of process `pid`; its records carry `target`.
pub(crate) fn uprobes(
    ebpf: &mut Ebpf,
    group: Group,
    library: &Path,
    pid: NonZeroU32,
    target: u32,
) -> Result<Vec<Link>, ProgramError> {
    let points: &[(&str, &str)] = match group {
        Group::Receives => &RECEIVES,
        Group::Sends => &SENDS,
        Group::Refused => &REFUSED,
        Group::Handled => &HANDLED,
        Group::Polls => &POLLS,
    };
    let mut links = Vec::new();
    for (name, symbol) in points {
        let program: &mut UProbe = program(ebpf, name)?;
        loaded(program.load())?;
        let point = UProbeAttachPoint {
            location: (*symbol).into(),
            cookie: Some(u64::from(target)),
        };
        let id = program.attach(point, library, UProbeScope::OneProcess(pid))?;
        links.push(Link::Uprobe(program.take_link(id)?));
    }
    Ok(links)
}

/// Attaches the scheduler's programs, for every target.
pub(crate) fn scheduler(ebpf: &mut Ebpf) -> Result<Vec<Link>, ProgramError> {
    let mut links = Vec::new();
    for name in SCHEDULER {
        let program: &mut RawTracePoint = program(ebpf, name)?;
        loaded(program.load())?;
        let id = program.attach(name)?;
        links.push(Link::RawTracepoint(program.take_link(id)?));
    }
    Ok(links)
}

/// Drops all links at once: the kernel waits for a grace period per link, and those overlap.
pub(crate) fn detach(links: Vec<Link>) {
    thread::scope(|scope| {
        for link in links {
            scope.spawn(move || drop(link));
        }
    });
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
