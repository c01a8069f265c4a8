//! The tests that need no probe.

use std::os::unix::net::UnixListener;

use adapter::discover::End;
use anyhow::Context as _;
use probe_user::RunEnvironment;
use probe_user::cpu::CpuSampler;
use probe_user::discover::{Engine, PickError, Topology};
use probe_user::handoff;
use probe_user::peers::Holder;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use sources::attach::{FeatureRow, FeatureState, Reason};
use sources::splice::Located;

/// Row about the search for engines: missing without an engine, degraded if some processes could not be examined.
pub(super) fn engine_row(has_engine: bool, topology: &Topology) -> FeatureRow {
    let mut reasons: Vec<Reason> = topology.blind_spots.iter().map(Reason::from).collect();
    // A process that cannot be read may be a part of the engine.
    let state = if !has_engine {
        FeatureState::Missing
    } else if reasons.is_empty() {
        FeatureState::Works
    } else {
        FeatureState::Degraded
    };
    let candidates = topology.candidate_pids();
    if !has_engine && !candidates.is_empty() {
        reasons.push(Reason::new(&PickError::Unconfirmed(candidates)));
    }
    if !has_engine && reasons.is_empty() {
        reasons.push(Reason {
            why: "no engine was found".to_owned(),
            fix: Some(RunEnvironment::current().pid_namespace_remedy().to_owned()),
        });
    }
    FeatureRow { name: "engine", state, tried: "search of /proc and sockets".to_owned(), reasons }
}

/// Tests access to the CPU times of threads in `/proc`.
pub(super) fn thread_times_row(engine: &Engine) -> FeatureRow {
    /// Number of threads read per process: a refusal shows at the first ones.
    const THREADS: usize = 8;
    let refused = engine.processes.iter().find_map(|process| {
        let sampled = CpuSampler::new(process.id.pid, 0..THREADS).and_then(|mut sampler| sampler.sample());
        sampled.err()
    });
    let tried = format!("reads of /proc/PID/task of {} processes", engine.processes.len());
    FeatureRow::with_reasons("thread times", tried, refused.as_ref().map(Reason::new))
}

/// Tests whether hops can be moved behind the relay. The listeners must be known, their folders writable, and it must be possible to borrow
/// a sender's socket.
pub(super) fn splice_row(engine: &Engine) -> FeatureRow {
    let mut row = FeatureRow::with_reasons(
        "splice",
        "found the engine's listeners and their folders; copied a descriptor",
        check_folders_writable(engine).err().map(|error| Reason::new(&format_args!("{error:#}"))),
    );
    // A lane is one connection of a hop.
    let mut connections = engine.routes().into_iter().flat_map(|route| route.lanes);
    // One sender stands for all: the same permission is needed for each.
    let first_sender = connections.find_map(|connection| connection.from);
    if let Some(End { pid, fd, .. }) = first_sender
        && let Err(error) = handoff::check_duplicable(Holder { pid, fd })
    {
        row.state = FeatureState::Missing;
        row.reasons.push(Reason::new(&error));
    }
    row
}

/// Fails if the engine's listeners are not found, or a new file cannot be created beside one of them.
fn check_folders_writable(engine: &Engine) -> anyhow::Result<()> {
    let all_hops = None;
    for folder in Located::find(engine, all_hops)?.folders() {
        // Without a file name, `shown` is the path of the folder itself.
        accessat(CWD, folder.path(), Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .with_context(|| format!("cannot write to {}", folder.shown("").display()))?;
    }
    Ok(())
}

/// Listens on a TCP port and on a Unix socket, and closes both again.
fn try_listening() -> std::io::Result<()> {
    // Each socket is closed at the end of its statement.
    std::net::TcpListener::bind("127.0.0.1:0")?;
    let folder = tempfile::tempdir()?;
    UnixListener::bind(folder.path().join("tap"))?;
    Ok(())
}

/// Tests listening on a socket, which `tap` and all ports opened by tokengap need.
pub(super) fn tap_row() -> FeatureRow {
    let reason = try_listening().err().map(|error| Reason {
        why: format!("cannot listen: {error}"),
        fix: Some("set TMPDIR to a writable folder, or listen on tcp://127.0.0.1:PORT".to_owned()),
    });
    FeatureRow::with_reasons("tap", "a TCP port of 127.0.0.1 and a Unix socket in the temporary folder", reason)
}

/// Tests whether a recording can be written to the working folder.
pub(super) fn recording_row() -> FeatureRow {
    let folder = std::env::current_dir().unwrap_or_default();
    let created = tempfile::tempfile_in(&folder);
    let reason = created.err().map(|error| Reason {
        why: format!("cannot create a file in {}: {error}", folder.display()),
        fix: Some(match RunEnvironment::current() {
            RunEnvironment::Host | RunEnvironment::Unit => "use --record with a writable folder".to_owned(),
            _ => "--record into a volume, or /proc/1/root/tmp/run.tgap in the engine's container".to_owned(),
        }),
    });
    FeatureRow::with_reasons("recording", format!("a file in {}", folder.display()), reason)
}
