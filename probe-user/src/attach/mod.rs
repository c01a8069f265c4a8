//! Attaching the probe's programs, and detaching them.

mod multi;

use std::num::NonZeroU32;
use std::path::Path;
use std::thread;

use aya::maps::{Map, MapData};
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{FEntry, ProgramError, RawTracePoint, UProbe};
use aya::{Btf, Ebpf};

use crate::degraded::error_with_causes;
use crate::discover::ReadError;
use crate::probe_points::ProbePointsError;
use crate::programs::{Batch, Refusal};

use multi::{MultiUprobeError, MultiUprobes};

/// A program of the embedded object and the raw tracepoint it attaches to.
#[derive(Clone, Copy)]
pub(crate) struct TracepointProgram {
    program: &'static str,
    tracepoint: &'static str,
}

impl TracepointProgram {
    const fn new(program: &'static str, tracepoint: &'static str) -> Self {
        Self { program, tracepoint }
    }
}

/// A program at one of the kernel's own poll functions.
#[derive(Clone, Copy)]
pub(crate) struct KernelPollProgram {
    program: &'static str,
    pub(crate) function: &'static str,
    /// Index of the function's parameter with the timeout.
    pub(crate) timeout_index: usize,
}

pub(crate) const SCHEDULER: [TracepointProgram; 2] =
    [TracepointProgram::new("sched_switch", "sched_switch"), TracepointProgram::new("sched_wakeup", "sched_wakeup")];
pub(crate) const KERNEL_POLLS: [KernelPollProgram; 2] = [
    KernelPollProgram { program: "kernel_epoll", function: "do_epoll_wait", timeout_index: 3 },
    KernelPollProgram { program: "kernel_poll_entered", function: "do_sys_poll", timeout_index: 2 },
];
const CONNECTION_STATES: TracepointProgram = TracepointProgram::new("egress_state", "inet_sock_set_state");
/// Return of a write on a socket (Linux 6.5 and later).
const SOCKET_WRITES: TracepointProgram = TracepointProgram::new("egress_sent", "sock_send_length");
/// Return of any system call.
const ALL_CALLS: TracepointProgram = TracepointProgram::new("egress_written", "sys_exit");
/// Reads from clients (Linux 6.5 and later).
pub(crate) const CLIENT_READS: TracepointProgram = TracepointProgram::new("egress_received", "sock_recv_length");
/// Arrivals of requests, and their reads by the server (Linux 6.5 and later).
pub(crate) const ARRIVALS: [TracepointProgram; 2] = [
    TracepointProgram::new("request_arrived", "sk_data_ready"),
    TracepointProgram::new("request_read", "sock_recv_length"),
];
/// Reads of ZMTP connections without libzmq (Linux 6.5 and later).
pub(crate) const ZMTP_READS: TracepointProgram = TracepointProgram::new("zmtp_read", "sock_recv_length");

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error(transparent)]
    ProbePoints(#[from] ProbePointsError),
    #[error(transparent)]
    Library(#[from] ReadError),
    #[error("the extension of its server is not mapped")]
    NoExtension,
    #[error("{path}")]
    InLibrary { path: String, source: Box<Self> },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    MultiUprobe(#[from] MultiUprobeError),
    #[error(transparent)]
    Types(#[from] aya::BtfError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl AttachError {
    /// Names the library in which a program could not be attached.
    pub(crate) fn in_library(path: &Path, source: Self) -> Self {
        Self::InLibrary { path: path.display().to_string(), source: Box::new(source) }
    }
}

/// Maximum number of threads that detach links in parallel.
const MAX_DETACHING_THREADS: usize = 32;

/// An attached program. Dropping it detaches, which takes a kernel grace period: see [`detach_links`].
pub(crate) type Link = Box<dyn Send>;

/// Detaches links in parallel. A link keeps a program attached. For each link the kernel waits until no CPU can still run its program.
/// Waits that begin together also end together, so several threads need less time than one.
pub(crate) fn detach_links(links: Vec<Link>) {
    let thread_count = MAX_DETACHING_THREADS.min(links.len());
    let mut shares: Vec<Vec<Link>> = std::iter::repeat_with(Vec::new).take(thread_count).collect();
    for (index, link) in links.into_iter().enumerate() {
        shares[index % thread_count].push(link);
    }
    thread::scope(|scope| {
        for share in shares {
            // Dropping a link detaches it. If no thread can be started, the closure drops its links here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(share));
        }
    });
}

#[derive(Debug)]
pub(crate) enum AttachMethod {
    /// One link per batch (Linux 6.6 and later).
    MultiUprobes(MultiUprobes),
    /// One perf event per probe point, for these programs.
    PerfEvents(&'static [&'static str]),
}

impl AttachMethod {
    /// Uses one link for many probe points if the kernel supports it, otherwise one perf event per point.
    pub(crate) fn choose(ebpf: &Ebpf, program_names: &'static [&'static str]) -> Self {
        match MultiUprobes::prepare(ebpf, program_names) {
            Ok(multi) => Self::MultiUprobes(multi),
            Err(error) => {
                tracing::debug!("one perf event per probe point: {}", error_with_causes(&error));
                Self::PerfEvents(program_names)
            }
        }
    }

    /// Loads all programs, so that none has to be loaded at an attach.
    pub(crate) fn load_all_programs(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        match self {
            Self::MultiUprobes(multi) => Ok(multi.load_all_programs()?),
            Self::PerfEvents(programs) => {
                for name in *programs {
                    let program: &mut UProbe = program_mut(ebpf, name)?;
                    accept_already_loaded(program.load())?;
                }
                Ok(())
            }
        }
    }

    /// Attaches a batch, which is a program with its probe points, to process `pid`. The points are in the library at `library_path`. The
    /// path names an open descriptor, so that it still leads to this file if another one has taken its place.
    pub(crate) fn attach_batch(
        &mut self,
        ebpf: &mut Ebpf,
        batch: &Batch,
        library_path: &Path,
        pid: NonZeroU32,
    ) -> Result<Vec<Link>, AttachError> {
        match self {
            Self::MultiUprobes(multi) => Ok(vec![Box::new(multi.attach_batch(batch, library_path, pid)?) as Link]),
            Self::PerfEvents(_) => Ok(attach_by_perf_events(ebpf, batch, library_path, pid)?),
        }
    }
}

/// Attaches the program of the batch to each of its points, by a separate perf event. A point is an offset in the library with a cookie,
/// which the program reads to tell the points apart.
fn attach_by_perf_events(
    ebpf: &mut Ebpf,
    batch: &Batch,
    library_path: &Path,
    pid: NonZeroU32,
) -> Result<Vec<Link>, ProgramError> {
    let program: &mut UProbe = program_mut(ebpf, batch.program)?;
    accept_already_loaded(program.load())?;
    let mut links = Vec::with_capacity(batch.points.len());
    for (offset, cookie) in &batch.points {
        let point =
            UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(*offset), cookie: Some(cookie.0) };
        let id = program.attach(point, library_path, UProbeScope::OneProcess(pid))?;
        links.push(Box::new(program.take_link(id)?) as Link);
    }
    Ok(links)
}

/// Attaches the programs that count polls in the kernel, for all targets. Few kernels allow it, because the programs need fentry.
pub(crate) fn attach_kernel_poll_counters(ebpf: &mut Ebpf) -> Result<Vec<Link>, AttachError> {
    let types = Btf::from_sys_fs()?;
    let mut links = Vec::new();
    for poll in KERNEL_POLLS {
        let program: &mut FEntry = program_mut(ebpf, poll.program)?;
        accept_already_loaded(program.load(poll.function, &types))?;
        let id = program.attach()?;
        links.push(Box::new(program.take_link(id)?) as Link);
    }
    Ok(links)
}

/// Attaches the programs that observe responses to clients, for all targets that serve clients. Uses tracepoints on socket writes where the
/// kernel has them, unless `at_every_system_call` requests the tracepoint on all system calls.
pub(crate) fn attach_client_writes(ebpf: &mut Ebpf, at_every_system_call: bool) -> Result<Vec<Link>, ProgramError> {
    // Always needed, because a write does not show when a connection is opened or closed.
    let mut links = attach_tracepoints(ebpf, &[CONNECTION_STATES])?;
    let on_socket_writes = if at_every_system_call { None } else { try_attach_socket_writes(ebpf) };
    let on_writes = match on_socket_writes {
        Some(attached) => attached,
        None => attach_tracepoints(ebpf, &[ALL_CALLS])?,
    };
    links.extend(on_writes);
    Ok(links)
}

/// Attaches the program for writes to its tracepoint on socket writes. `None` if the kernel refuses it, as one without this tracepoint
/// does.
fn try_attach_socket_writes(ebpf: &mut Ebpf) -> Option<Vec<Link>> {
    match attach_tracepoints(ebpf, &[SOCKET_WRITES]) {
        Ok(links) => Some(links),
        Err(error) => {
            tracing::debug!("writes are observed through all system calls: {error}");
            None
        }
    }
}

/// Loads the program, unless it is loaded.
pub(crate) fn load_tracepoint_program(ebpf: &mut Ebpf, program: TracepointProgram) -> Result<(), ProgramError> {
    let program: &mut RawTracePoint = program_mut(ebpf, program.program)?;
    accept_already_loaded(program.load())
}

/// Attaches programs to their tracepoints, for all targets.
pub(crate) fn attach_tracepoints(ebpf: &mut Ebpf, programs: &[TracepointProgram]) -> Result<Vec<Link>, ProgramError> {
    let mut links = Vec::new();
    for TracepointProgram { program, tracepoint } in programs {
        let program: &mut RawTracePoint = program_mut(ebpf, program)?;
        accept_already_loaded(program.load())?;
        let id = program.attach(tracepoint)?;
        links.push(Box::new(program.take_link(id)?) as Link);
    }
    Ok(links)
}

/// The program of the object with this name, as the type for its kind of attachment. An error if there is none, or if it is of another
/// kind.
fn program_mut<'a, T>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T, ProgramError>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(name).ok_or_else(|| ProgramError::InvalidName { name: name.to_owned() })?.try_into()
}

/// Treats a program that is already loaded as success. A program is loaded once, however many links it has.
fn accept_already_loaded(result: Result<(), ProgramError>) -> Result<(), ProgramError> {
    match result {
        Err(ProgramError::AlreadyLoaded) => Ok(()),
        other => other,
    }
}

/// Data of one of the probe's maps, whatever the type of the map. `None` for a type that the probe does not use.
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
