//! Attaching the probe's programs, and detaching them.

mod multi;

use std::num::NonZeroU32;
use std::path::Path;
use std::thread;

use aya::maps::{Map, MapData};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{FEntry, ProgramError, RawTracePoint, UProbe};
use aya::{Btf, Ebpf};

use crate::degraded::with_causes;
use crate::discover::ReadError;
use crate::probe_points::ProbePointsError;
use crate::programs::{Batch, Refusal};

use multi::{Multi, MultiError};

/// A program and the raw tracepoint it attaches to.
type Tracepoint = (&'static str, &'static str);

pub(crate) const SCHEDULER: [Tracepoint; 2] = [("sched_switch", "sched_switch"), ("sched_wakeup", "sched_wakeup")];
/// Programs at the kernel's own poll functions, with the functions and the positions of their timeouts.
pub(crate) const KERNEL_POLLS: [(&str, &str, usize); 2] =
    [("kernel_epoll", "do_epoll_wait", 3), ("kernel_poll_entered", "do_sys_poll", 2)];
const EGRESS_STATE: Tracepoint = ("egress_state", "inet_sock_set_state");
/// Return of a write on a socket (Linux 6.5 and later), and return of any system call.
const EGRESS_WRITES: [Tracepoint; 2] = [("egress_sent", "sock_send_length"), ("egress_written", "sys_exit")];
/// Reads from clients (Linux 6.5 and later).
pub(crate) const EGRESS_READS: Tracepoint = ("egress_received", "sock_recv_length");
/// Reads of ZMTP connections without libzmq (Linux 6.5 and later).
pub(crate) const ZMTP_READS: Tracepoint = ("zmtp_read", "sock_recv_length");

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    ProbePoints(#[from] ProbePointsError),
    #[error(transparent)]
    Library(#[from] ReadError),
    #[error("the extension of its server is not mapped")]
    NoExtension,
    #[error("{path}")]
    At { path: String, source: Box<Self> },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Multi(#[from] MultiError),
    #[error(transparent)]
    Types(#[from] aya::BtfError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl AttachError {
    /// Names the library in which a program could not be attached.
    pub(crate) fn at(path: &Path, source: Self) -> Self {
        Self::At { path: path.display().to_string(), source: Box::new(source) }
    }
}

/// Maximum number of threads that detach links in parallel.
const DETACHERS: usize = 32;

/// An attached program. Dropping it detaches, which takes a kernel grace period: see [`detach`].
pub(crate) type Link = Box<dyn Send>;

/// Detaches links in parallel. For each link the kernel waits until no CPU can still run its program; waits that begin together end
/// together.
pub(crate) fn detach(links: Vec<Link>) {
    let mut shares: Vec<Vec<Link>> = std::iter::repeat_with(Vec::new).take(DETACHERS.min(links.len())).collect();
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

#[derive(Debug)]
pub(crate) enum AttachMethod {
    /// One link per batch (Linux 6.6 and later).
    Multi(Multi),
    /// One perf event per probe point, for these programs.
    Perf(&'static [&'static str]),
}

impl AttachMethod {
    /// Uses one link for many probe points if the kernel supports it, otherwise one perf event per point.
    pub(crate) fn of(ebpf: &Ebpf, programs: &'static [&'static str]) -> Self {
        match Multi::load(ebpf, programs) {
            Ok(multi) => Self::Multi(multi),
            Err(error) => {
                tracing::debug!("one perf event per probe point: {}", with_causes(&error));
                Self::Perf(programs)
            }
        }
    }

    /// Loads all programs, so that none has to be loaded at an attach.
    pub(crate) fn load_all(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        match self {
            Self::Multi(multi) => Ok(multi.load_all()?),
            Self::Perf(programs) => {
                for name in *programs {
                    let program: &mut UProbe = program(ebpf, name)?;
                    loaded(program.load())?;
                }
                Ok(())
            }
        }
    }

    /// Attaches a batch to process `pid`, which has the library at `path` mapped: the path of an open descriptor, so that no other file is reached.
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
                Ok(vec![Box::new(link) as Link])
            }
            Self::Perf(_) => Ok(one_by_one(ebpf, batch, path, pid)?),
        }
    }
}

fn one_by_one(ebpf: &mut Ebpf, batch: &Batch, path: &Path, pid: NonZeroU32) -> Result<Vec<Link>, ProgramError> {
    let program: &mut UProbe = program(ebpf, batch.program)?;
    loaded(program.load())?;
    let mut links = Vec::with_capacity(batch.points.len());
    for (offset, cookie) in &batch.points {
        let point =
            UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(*offset), cookie: Some(cookie.0) };
        let id = program.attach(point, path, UProbeScope::OneProcess(pid))?;
        links.push(Box::new(program.take_link(id)?) as Link);
    }
    Ok(links)
}

/// Attaches the programs that count polls in the kernel, for all targets. Few kernels allow it: it needs fentry.
pub(crate) fn kernel_polls(ebpf: &mut Ebpf) -> Result<Vec<Link>, AttachError> {
    let types = Btf::from_sys_fs()?;
    let mut links = Vec::new();
    for (name, function, _) in KERNEL_POLLS {
        let program: &mut FEntry = program(ebpf, name)?;
        loaded(program.load(function, &types))?;
        let id = program.attach()?;
        links.push(Box::new(program.take_link(id)?) as Link);
    }
    Ok(links)
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

pub(crate) fn load(ebpf: &mut Ebpf, (name, _): Tracepoint) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = program(ebpf, name)?;
    loaded(program.load())
}

/// Attaches programs to their tracepoints, for all targets.
pub(crate) fn tracepoints(ebpf: &mut Ebpf, points: &[Tracepoint]) -> Result<Vec<Link>, ProgramError> {
    let mut links = Vec::new();
    for (name, tracepoint) in points {
        let program: &mut RawTracePoint = program(ebpf, name)?;
        loaded(program.load())?;
        let id = program.attach(tracepoint)?;
        links.push(Box::new(program.take_link(id)?) as Link);
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

/// One of the probe's maps, of any type.
pub(crate) fn map_data(map: &Map) -> Option<&MapData> {
    let (Map::Array(data)
    | Map::HashMap(data)
    | Map::LruHashMap(data)
    | Map::PerCpuArray(data)
    | Map::PerCpuHashMap(data)
    | Map::PerfEventArray(data)
    | Map::ProgramArray(data)
    | Map::RingBuf(data)
    | Map::StackTraceMap(data)) = map
    else {
        return None;
    };
    Some(data)
}
