//! Tests the probe's features by attaching briefly.

use std::collections::BTreeSet;
use std::time::Duration;

use probe_user::discover::{Engine, Watcher};
use probe_user::egress::{CAPTURE, Serves};
use probe_user::empty_probes::own_uprobe;
use probe_user::{Degraded, Feature, Missing, Options, Permissions, Probe, ProbeError};

use super::row::{Reason, Row, State};
use crate::attach::{self, Attach, AttachOptions, Outcome, PythonOptions};

/// Allows for the first stack sample of an interpreter, which takes some hundred milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
const HERTZ: u32 = 50;
/// Bytes copied per message; the content is not used.
const LITTLE: u32 = 64;

/// Attaches to this engine as `attach` does.
pub(super) fn on_engine(watcher: Watcher, engine: Engine) -> Vec<Row> {
    let options = AttachOptions {
        named: BTreeSet::new(),
        capture: LITTLE,
        egress: true,
        logs: Vec::new(),
        tokenizer: None,
        probe: Options::default(),
        python: PythonOptions::new(HERTZ, false).ok(),
    };
    match Attach::start(watcher, engine, options) {
        Ok(mut attach) => attach.outcomes(PATIENCE).into_iter().map(seen).collect(),
        Err(error) => {
            let reason = match error.downcast_ref::<ProbeError>() {
                Some(ProbeError::Unavailable(degraded)) => reason(degraded),
                _ => Reason {
                    why: format!("{error:#}"),
                    fix: None,
                },
            };
            refused(&reason, "attach to the engine's processes")
        }
    }
}

/// Tests the global parts and a uprobe on this program. Reading another process may need more privileges.
pub(super) fn on_ourselves() -> Vec<Row> {
    let mut probe = match Probe::attach(&[], Options::default()) {
        Ok(probe) => probe,
        Err(ProbeError::Unavailable(degraded)) => return refused(&reason(&degraded), "an empty probe"),
        Err(error) => {
            let why = error.to_string();
            return refused(&Reason { why, fix: None }, "an empty probe");
        }
    };
    let serves = Serves {
        written: CAPTURE,
        ..Serves::default()
    };
    let served = probe.serve(std::process::id(), serves);
    let read = probe.read_zmtp(std::process::id(), &BTreeSet::new());
    let uprobe = own_uprobe();
    let permissions = Permissions::here();
    let row = |feature: Feature| {
        let mut reasons: Vec<Reason> = probe
            .degraded()
            .iter()
            .filter(|d| d.feature == feature)
            .map(reason)
            .collect();
        let tried = match feature {
            Feature::Messages | Feature::Processed | Feature::Polls | Feature::Tls => {
                if let Err(error) = &uprobe {
                    let Degraded { missing, .. } = error.0.clone();
                    let pid = None;
                    reasons.push(reason(&Degraded { feature, pid, missing }));
                }
                "a uprobe on tokengap itself"
            }
            Feature::Scheduler => "raw tracepoints of the scheduler",
            Feature::Egress => {
                if let Err(error) = &served {
                    reasons.push(Reason {
                        why: error.to_string(),
                        fix: None,
                    });
                }
                "raw tracepoints of writes"
            }
            Feature::SocketReads => {
                if let Err(error) = &read {
                    reasons.push(Reason {
                        why: error.to_string(),
                        fix: None,
                    });
                }
                "a raw tracepoint of socket reads"
            }
            Feature::Queues | Feature::PythonStacks => "capabilities only; --try tests a running engine",
        };
        let lacking = permissions.lacks(feature);
        // Reading one's own memory always works; that of another user's process needs capabilities.
        if reasons.is_empty() && !lacking.is_empty() {
            let missing = Missing::Capabilities(lacking);
            reasons.push(reason(&Degraded {
                feature,
                pid: None,
                missing,
            }));
        }
        let state = if reasons.is_empty() {
            State::Works
        } else {
            State::Missing
        };
        Row {
            name: feature.name(),
            state,
            tried: tried.to_owned(),
            reasons,
        }
    };
    Feature::ALL.into_iter().map(row).collect()
}

fn reason(degraded: &Degraded) -> Reason {
    let (why, fix) = attach::reason(degraded);
    Reason { why, fix }
}

fn refused(reason: &Reason, tried: &str) -> Vec<Row> {
    let row = |feature: Feature| Row {
        name: feature.name(),
        state: State::Missing,
        tried: tried.to_owned(),
        reasons: vec![reason.clone()],
    };
    Feature::ALL.into_iter().map(row).collect()
}

fn seen(outcome: Outcome) -> Row {
    let state = match outcome.state {
        attach::State::Works => State::Works,
        attach::State::Degraded => State::Degraded,
        attach::State::Missing => State::Missing,
    };
    let reasons = outcome.why.into_iter().map(|(why, fix)| Reason { why, fix });
    Row {
        name: outcome.feature.name(),
        state,
        tried: outcome.tried,
        reasons: reasons.collect(),
    }
}
