//! A feature's line, and those that need no probe.

use std::os::unix::net::UnixListener;

use anyhow::Context as _;
use probe_user::Place;
use probe_user::cpu::Sampler;
use probe_user::discover::{Engine, Topology};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::Serialize;

use crate::splice::plan;

/// How much of a feature there is.
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

/// Why something is not there, and what helps here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Reason {
    pub(super) why: String,
    /// `null` where nothing of ours helps.
    pub(super) fix: Option<String>,
}

/// One feature.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) state: State,
    /// What was done to find out.
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

/// Whether there is an engine to see.
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
        tried: "/proc and sockets looked through".to_owned(),
        reasons,
    }
}

/// CPU times of threads, from `/proc`.
pub(super) fn thread_times(engine: &Engine) -> Row {
    const THREADS: usize = 8;
    let refused = engine.processes.iter().find_map(|process| {
        let sampled = Sampler::new(process.id.pid, THREADS).and_then(|mut sampler| sampler.sample());
        sampled.err()
    });
    let tried = format!("/proc/PID/task of {} processes read", engine.processes.len());
    let reason = refused.map(|error| Reason {
        why: error.to_string(),
        fix: None,
    });
    Row::of("thread times", tried, reason)
}

/// Whether hops could be moved behind the relay: who listens where, and that its folder may be written. A sender's socket is
/// borrowed for it as for the kernel's queues.
pub(super) fn splice(engine: &Engine, queues: Option<&Row>) -> Row {
    let opened = plan(engine, None).and_then(|planned| {
        planned.iter().try_for_each(|planned| {
            let folder = planned.folder.display();
            accessat(
                CWD,
                &planned.folder,
                Access::WRITE_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            )
            .with_context(|| format!("{folder} may not be written"))
        })
    });
    let mut row = Row::of(
        "splice",
        "the engine's listeners and their folders; a descriptor borrowed",
        opened.err().map(|error| Reason {
            why: format!("{error:#}"),
            fix: None,
        }),
    );
    if let Some(queues) = queues.filter(|row| row.state != State::Works) {
        row.state = State::Missing;
        row.reasons.extend(queues.reasons.iter().cloned());
    }
    row
}

/// What `tap` needs, and every port that tokengap itself opens: a socket to listen on.
pub(super) fn tap() -> Row {
    let listened = std::net::TcpListener::bind("127.0.0.1:0").map(drop);
    let listened = listened.and_then(|()| {
        let folder = tempfile::tempdir()?;
        UnixListener::bind(folder.path().join("tap")).map(drop)
    });
    let reason = listened.err().map(|error| Reason {
        why: format!("cannot listen: {error}"),
        fix: Some("set TMPDIR to a folder that may be written, or listen on tcp://127.0.0.1:PORT".to_owned()),
    });
    Row::of(
        "tap",
        "a TCP port of 127.0.0.1 and a Unix socket in the temporary folder",
        reason,
    )
}

/// Whether a recording may be written where we stand.
pub(super) fn recording() -> Row {
    let folder = std::env::current_dir().unwrap_or_default();
    let written = tempfile::tempfile_in(&folder);
    let reason = written.err().map(|error| Reason {
        why: format!("no file can be made in {}: {error}", folder.display()),
        fix: Some(match Place::here() {
            Place::Host | Place::Unit => "--record with a folder that may be written".to_owned(),
            _ => "--record into a volume, or /proc/1/root/tmp/run.tgap in the engine's container".to_owned(),
        }),
    });
    Row::of("recording", format!("a file in {}", folder.display()), reason)
}
