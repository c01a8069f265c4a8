//! Result row of a feature, and the tests that need no probe.

use std::os::unix::net::UnixListener;

use anyhow::Context as _;
use probe_user::Place;
use probe_user::cpu::Sampler;
use probe_user::discover::{End, Engine, Topology};
use probe_user::handoff;
use probe_user::peers::Holder;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::Serialize;

use crate::splice::plan;

/// Availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    Works,
    Degraded,
    Missing,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// Reason why a feature is unavailable, with its fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Reason {
    pub(super) why: String,
    /// `null` if tokengap knows no fix.
    pub(super) fix: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) state: State,
    /// Description of the test.
    pub(super) tried: String,
    pub(super) reasons: Vec<Reason>,
}

impl Row {
    fn of(name: &'static str, tried: impl Into<String>, reason: Option<Reason>) -> Self {
        Self {
            name,
            state: if reason.is_none() { State::Works } else { State::Missing },
            tried: tried.into(),
            reasons: reason.into_iter().collect(),
        }
    }
}

/// Tests whether an engine is visible.
pub(super) fn engine(engine: Option<&Engine>, topology: &Topology) -> Row {
    let mut reasons: Vec<Reason> = topology
        .blind
        .iter()
        .map(|blind| Reason {
            why: blind.to_string(),
            fix: blind.remedy(),
        })
        .collect();
    let state = match engine {
        None => State::Missing,
        Some(_) if reasons.is_empty() => State::Works,
        Some(_) => State::Degraded,
    };
    if engine.is_none() && reasons.is_empty() {
        reasons.push(Reason {
            why: "no engine was found".to_owned(),
            fix: Some(Place::here().same_processes().to_owned()),
        });
    }
    Row {
        name: "engine",
        state,
        tried: "search of /proc and sockets".to_owned(),
        reasons,
    }
}

/// Tests access to the CPU times of threads in `/proc`.
pub(super) fn thread_times(engine: &Engine) -> Row {
    const THREADS: usize = 8;
    let refused = engine.processes.iter().find_map(|process| {
        let sampled = Sampler::new(process.id.pid, 0..THREADS).and_then(|mut sampler| sampler.sample());
        sampled.err()
    });
    let tried = format!("reads of /proc/PID/task of {} processes", engine.processes.len());
    let reason = refused.map(|error| Reason {
        why: error.to_string(),
        fix: None,
    });
    Row::of("thread times", tried, reason)
}

/// Tests whether hops can be moved behind the relay: the listeners are known, their folders writable, and a sender's socket can be
/// borrowed.
pub(super) fn splice(engine: &Engine) -> Row {
    let opened = plan(engine, None).and_then(|planned| {
        planned.iter().try_for_each(|planned| {
            let folder = planned.folder.display();
            accessat(
                CWD,
                &planned.folder,
                Access::WRITE_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            )
            .with_context(|| format!("cannot write to {folder}"))
        })
    });
    let mut row = Row::of(
        "splice",
        "found the engine's listeners and their folders; copied a descriptor",
        opened.err().map(|error| Reason {
            why: format!("{error:#}"),
            fix: None,
        }),
    );
    let lanes = engine.routes().into_iter().flat_map(|route| route.lanes);
    let mut senders = lanes
        .filter_map(|lane| lane.from)
        .map(|End { pid, fd, .. }| Holder { pid, fd });
    if let Some(Err(error)) = senders.next().map(handoff::check) {
        row.state = State::Missing;
        row.reasons.push(Reason {
            why: error.to_string(),
            fix: None,
        });
    }
    row
}

/// Tests listening on a socket, which `tap` and all ports opened by tokengap need.
pub(super) fn tap() -> Row {
    let listened = std::net::TcpListener::bind("127.0.0.1:0").map(drop);
    let listened = listened.and_then(|()| {
        let folder = tempfile::tempdir()?;
        UnixListener::bind(folder.path().join("tap")).map(drop)
    });
    let reason = listened.err().map(|error| Reason {
        why: format!("cannot listen: {error}"),
        fix: Some("set TMPDIR to a writable folder, or listen on tcp://127.0.0.1:PORT".to_owned()),
    });
    Row::of(
        "tap",
        "a TCP port of 127.0.0.1 and a Unix socket in the temporary folder",
        reason,
    )
}

/// Tests whether a recording can be written to the working folder.
pub(super) fn recording() -> Row {
    let folder = std::env::current_dir().unwrap_or_default();
    let written = tempfile::tempfile_in(&folder);
    let reason = written.err().map(|error| Reason {
        why: format!("cannot create a file in {}: {error}", folder.display()),
        fix: Some(match Place::here() {
            Place::Host | Place::Unit => "use --record with a writable folder".to_owned(),
            _ => "--record into a volume, or /proc/1/root/tmp/run.tgap in the engine's container".to_owned(),
        }),
    });
    Row::of("recording", format!("a file in {}", folder.display()), reason)
}
