//! Attaching the probe's programs, and detaching them.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use aya::Ebpf;
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{ProgramError, RawTracePoint, UProbe};
use probe_ebpf::{Cookie, ProbePoint};

use crate::library::Library;
use crate::probe::Options;
use crate::probe::multi::{Multi, MultiError};
use crate::probe_points::{ProbePoints, Refused, SitesError};

/// A program and the raw tracepoint it attaches to.
type Tracepoint = (&'static str, &'static str);

const SCHEDULER: [Tracepoint; 2] = [("sched_switch", "sched_switch"), ("sched_wakeup", "sched_wakeup")];
const EGRESS_STATE: Tracepoint = ("egress_state", "inet_sock_set_state");
/// Return of a write on a socket (Linux 6.5 and later), and return of any system call.
const EGRESS_WRITES: [Tracepoint; 2] = [("egress_sent", "sock_send_length"), ("egress_written", "sys_exit")];
const EGRESS_READS: Tracepoint = ("egress_received", "sock_recv_length");

/// Uprobe programs, each of which may be attached at many addresses at once.
pub(crate) const UPROBES: [&str; 4] = [ZMQ, ZMQ_RETURNED, POLL_ENTERED, POLL_LEFT];

const ZMQ: &str = "zmq";
const ZMQ_RETURNED: &str = "zmq_returned";
const POLL_ENTERED: &str = "poll_entered";
const POLL_LEFT: &str = "poll_left";

/// Error of attaching a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    ProbePoints(#[from] SitesError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Multi(#[from] MultiError),
}

/// Maximum number of threads that detach links in parallel.
const DETACHERS: usize = 32;

/// An attached program. Dropping it detaches, which takes a kernel grace period: see [`detach`].
#[derive(Debug)]
pub(crate) enum Link {
    Multi(#[expect(dead_code, reason = "held for its drop")] OwnedFd),
    Uprobe(#[expect(dead_code, reason = "held for its drop")] UProbeLink),
    RawTracepoint(#[expect(dead_code, reason = "held for its drop")] RawTracePointLink),
}

/// Detaches links in parallel. For each link the kernel waits until no CPU can still run its program; waits that begin together end
/// together.
pub(crate) fn detach(links: Vec<Link>) {
    let mut shares: Vec<Vec<Link>> = std::iter::repeat_with(Vec::new)
        .take(DETACHERS.min(links.len()))
        .collect();
    for (n, link) in links.into_iter().enumerate() {
        shares[n % DETACHERS].push(link);
    }
    thread::scope(|scope| {
        for share in shares {
            // If no thread can be started, the closure drops its links here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(share));
        }
    });
}

/// A program with its probe points in one library: file offsets, each with a cookie for the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    program: &'static str,
    /// Attach at the returns of the functions that begin at these offsets.
    returns: bool,
    points: Points,
}

impl Batch {
    /// A batch whose cookies are all zero.
    pub(crate) fn of<const N: usize>(program: &'static str, returns: bool, offsets: [u64; N]) -> Self {
        Self {
            program,
            returns,
            points: offsets.map(|offset| (offset, Cookie(0))).to_vec(),
        }
    }

    /// The same probe points with another program.
    pub(crate) fn with(self, program: &'static str) -> Self {
        Self { program, ..self }
    }
}

/// Offsets in a library's file, each with its cookie.
type Points = Vec<(u64, Cookie)>;

/// Probe points in libzmq. Entries come before returns, so that no return lacks its entry.
pub(crate) fn messages(
    library: &Library,
    probe_points: &ProbePoints,
    target: u32,
    options: &Options,
) -> Result<Vec<Batch>, SitesError> {
    let (mut entries, mut returns) = (Points::new(), Points::new());
    let at = |probe_point| Cookie::new(probe_point, target);
    let (recv, send) = (probe_points.entry("zmq_msg_recv")?, probe_points.entry("zmq_msg_send")?);
    if let Some(done) = probe_points.received {
        let cookie = Cookie::received(target, done.socket, done.message);
        if let Some(waits) = probe_points.waits.filter(|_| options.processed) {
            // A non-blocking receive requests its message at the point where it has it.
            entries.push((done.at, cookie.and_processed()));
            entries.push((waits.at, Cookie::within(ProbePoint::Waits, target, waits.socket)));
        } else {
            entries.push((done.at, cookie));
            if options.processed {
                entries.push((recv, at(ProbePoint::Recv)));
            }
        }
    } else {
        entries.push((recv, at(ProbePoint::Recv).and_return()));
        returns.push((recv, at(ProbePoint::RecvReturn)));
    }
    match probe_points.refused.filter(|_| options.refused) {
        None if options.refused => {
            entries.push((send, at(ProbePoint::Send).and_return()));
            returns.push((send, at(ProbePoint::SendReturn)));
        }
        refused => {
            entries.push((send, at(ProbePoint::Send)));
            let cookie_of =
                |refused: Refused| (refused.at, Cookie::within(ProbePoint::Refused, target, refused.socket));
            entries.extend(refused.map(cookie_of));
        }
    }
    if options.processed {
        entries.push(match probe_points.option_request {
            Some(request) => (
                request.at,
                Cookie::within(ProbePoint::OptionAsked, target, request.socket),
            ),
            None => (probe_points.entry("zmq_getsockopt")?, at(ProbePoint::Option)),
        });
    }
    if library.buffers {
        let recv = probe_points.entry("zmq_recv")?;
        entries.push((recv, at(ProbePoint::BufferRecv).and_return()));
        returns.push((recv, at(ProbePoint::BufferRecvReturn)));
        for symbol in ["zmq_send", "zmq_send_const"] {
            let send = probe_points.entry(symbol)?;
            if options.refused {
                entries.push((send, at(ProbePoint::BufferSend).and_return()));
                returns.push((send, at(ProbePoint::SendReturn)));
            } else {
                entries.push((send, at(ProbePoint::BufferSend)));
            }
        }
    }
    Ok(batches([(ZMQ, false, entries), (ZMQ_RETURNED, true, returns)]))
}

/// Probe points in libc. If no scheduler program measures the time in a poll, they include the returns of polls. Return probes are attached
/// first; the return of a poll whose entry was not observed is ignored.
pub(crate) fn polls(probe_points: &ProbePoints, target: u32, with_returns: bool) -> Result<Vec<Batch>, SitesError> {
    let at = |probe_point| Cookie::new(probe_point, target);
    let epolls = [probe_points.entry("epoll_wait")?, probe_points.entry("epoll_pwait")?];
    let (entered, returns) = if with_returns {
        let returns = epolls.map(|entry| (entry, at(ProbePoint::EpollReturn)));
        (at(ProbePoint::Epoll).and_return(), returns.to_vec())
    } else {
        (at(ProbePoint::Epoll), Points::new())
    };
    let mut entries = epolls.map(|entry| (entry, entered)).to_vec();
    entries.push((probe_points.entry("poll")?, at(ProbePoint::Poll)));
    Ok(batches([(POLL_LEFT, true, returns), (POLL_ENTERED, false, entries)]))
}

fn batches<const N: usize>(parts: [(&'static str, bool, Points); N]) -> Vec<Batch> {
    let filled = parts.into_iter().filter(|(.., points)| !points.is_empty());
    filled
        .map(|(program, returns, points)| Batch {
            program,
            returns,
            points,
        })
        .collect()
}

/// Mechanism for attaching uprobes.
#[derive(Debug)]
pub(crate) enum Way {
    /// One link per batch (Linux 6.6 and later).
    Multi(Multi),
    /// One perf event per probe point.
    Perf,
}

impl Way {
    /// Loads all programs, so that none has to be loaded at an attach.
    pub(crate) fn load_all(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        match self {
            Self::Multi(multi) => Ok(multi.load_all()?),
            Self::Perf => {
                for name in UPROBES {
                    let program: &mut UProbe = program(ebpf, name)?;
                    loaded(program.load())?;
                }
                Ok(())
            }
        }
    }

    /// Attaches a batch to process `pid`, which has the library at `path` mapped.
    pub(crate) fn attach(
        &mut self,
        ebpf: &mut Ebpf,
        batch: &Batch,
        path: &Path,
        pid: NonZeroU32,
    ) -> Result<Vec<Link>, AttachError> {
        match self {
            Self::Multi(multi) => {
                let link = multi.attach(batch.program, batch.returns, path, pid.get(), &batch.points)?;
                Ok(vec![Link::Multi(link)])
            }
            Self::Perf => Ok(one_by_one(ebpf, batch, path, pid)?),
        }
    }
}

fn one_by_one(ebpf: &mut Ebpf, batch: &Batch, path: &Path, pid: NonZeroU32) -> Result<Vec<Link>, ProgramError> {
    let program: &mut UProbe = program(ebpf, batch.program)?;
    loaded(program.load())?;
    let mut links = Vec::with_capacity(batch.points.len());
    for (offset, cookie) in &batch.points {
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(*offset),
            cookie: Some(cookie.0),
        };
        let id = program.attach(point, path, UProbeScope::OneProcess(pid))?;
        links.push(Link::Uprobe(program.take_link(id)?));
    }
    Ok(links)
}

/// Attaches the scheduler programs, for all targets.
pub(crate) fn scheduler(ebpf: &mut Ebpf) -> Result<Vec<Link>, ProgramError> {
    tracepoints(ebpf, &SCHEDULER)
}

/// Attaches the programs that observe responses to clients, for all serving targets. Uses tracepoints on socket writes where the kernel has
/// them, unless `every_call` requests the tracepoint on all system calls.
pub(crate) fn egress(ebpf: &mut Ebpf, every_call: bool) -> Result<Vec<Link>, ProgramError> {
    let mut links = tracepoints(ebpf, &[EGRESS_STATE])?;
    let [sockets, calls] = EGRESS_WRITES;
    if !every_call {
        match tracepoints(ebpf, &[sockets]) {
            Ok(writes) => {
                links.extend(writes);
                return Ok(links);
            }
            Err(error) => tracing::debug!("writes are observed through all system calls: {error}"),
        }
    }
    links.extend(tracepoints(ebpf, &[calls])?);
    Ok(links)
}

/// Attaches the program that observes reads from clients (Linux 6.5 and later).
pub(crate) fn egress_reads(ebpf: &mut Ebpf) -> Result<Vec<Link>, ProgramError> {
    tracepoints(ebpf, &[EGRESS_READS])
}

/// Loads the program that observes reads from clients, without attaching it.
pub(crate) fn load_egress_reads(ebpf: &mut Ebpf) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = program(ebpf, EGRESS_READS.0)?;
    loaded(program.load())
}

fn tracepoints(ebpf: &mut Ebpf, points: &[Tracepoint]) -> Result<Vec<Link>, ProgramError> {
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
