//! Result of an attach per feature, before any token flows. `tokengap doctor` reports it.

use std::time::{Duration, Instant};

use probe_user::discover::{Blind, Process};
use probe_user::{Degraded, Feature};
use session::{About as _, LiveSource as _};
use trace::event::{Event, What};

use super::Attach;
use crate::advice::missing;

/// Availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Works,
    /// Works for some of the engine's processes.
    Degraded,
    Missing,
}

/// Result for one feature.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) feature: Feature,
    pub(crate) state: State,
    /// Description of the test.
    pub(crate) tried: String,
    /// Reasons for failure, each with its fix, in the wording of attach's `degraded`.
    pub(crate) why: Vec<(String, Option<String>)>,
}

/// Formats a blind spot in the wording of `degraded`.
pub(super) fn with_remedy(blind: &Blind) -> String {
    match blind.remedy() {
        Some(remedy) => format!("{blind}; {remedy}"),
        None => blind.to_string(),
    }
}

/// Reason and fix.
pub(crate) fn reason(degraded: &Degraded) -> (String, Option<String>) {
    (degraded.to_string(), Some(degraded.remedy()))
}

impl Attach {
    /// Polls the attach for at most `patience` and reports the result per feature. Needs no traffic.
    pub(crate) fn outcomes(&mut self, patience: Duration) -> Vec<Outcome> {
        let (mut queues, until) = (false, Instant::now() + patience);
        loop {
            let mut see = |event: &Event<'_>| queues |= matches!(event.what, What::Queue(_));
            self.poll(&mut see);
            let read = self.sampling().is_none_or(|cost| cost.readings > cost.failed);
            let settled = read || self.python.as_ref().is_some_and(|python| !python.refused().is_empty());
            if settled && queues || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Feature::ALL
            .into_iter()
            .map(|feature| self.outcome(feature, queues))
            .collect()
    }

    fn outcome(&self, feature: Feature, queues: bool) -> Outcome {
        let processes = self.probed.len();
        let refused: Vec<&Degraded> = self.probe.degraded().iter().filter(|d| d.feature == feature).collect();
        let mut why: Vec<(String, Option<String>)> = refused.iter().map(|d| reason(d)).collect();
        let lost = |pid: &u32| refused.iter().any(|d| d.pid.is_none_or(|p| p == *pid));
        let of_processes = match self.probed.iter().filter(|pid| lost(pid)).count() {
            _ if processes == 0 => State::Missing,
            0 => State::Works,
            some if some < processes => State::Degraded,
            _ => State::Missing,
        };
        let (state, tried) = match feature {
            Feature::Processed | Feature::Queues if self.passes_inside() => {
                let what = "frames stay inside a process that serves its clients itself";
                why.push((what.to_owned(), None));
                (State::Missing, "nothing: there is no socket".to_owned())
            }
            Feature::Messages if self.passes_inside() => {
                let tried = "a uprobe on the method that passes frames to the server inside the process".to_owned();
                (self.frames(&mut why), tried)
            }
            Feature::Messages | Feature::Processed => {
                let tried = format!("uprobes on the libzmq of {processes} processes; sockets looked up");
                (self.frames(&mut why), tried)
            }
            Feature::Scheduler if refused.is_empty() => (State::Works, "raw tracepoints of the scheduler".to_owned()),
            Feature::Scheduler => (State::Missing, "raw tracepoints of the scheduler".to_owned()),
            Feature::Polls => {
                if processes == 0 {
                    self.blind(&mut why);
                }
                (of_processes, format!("uprobes on the libc of {processes} processes"))
            }
            Feature::Queues => {
                why.extend(self.queues.refused.iter().map(|why| (why.clone(), None)));
                if !queues && why.is_empty() {
                    self.blind(&mut why);
                }
                let tried = "the engine's sockets queried from the kernel".to_owned();
                (if queues { State::Works } else { State::Missing }, tried)
            }
            Feature::Egress => (self.deliveries(&mut why), "raw tracepoints of writes".to_owned()),
            Feature::SocketReads => {
                let state = if refused.is_empty() {
                    State::Works
                } else {
                    State::Missing
                };
                let tried = match self.reads.connections() {
                    0 if refused.is_empty() => "not needed: no process receives without libzmq".to_owned(),
                    count => format!("raw tracepoint of socket reads; {count} connections"),
                };
                (state, tried)
            }
            Feature::Tls => (of_processes, "uprobes on OpenSSL".to_owned()),
            Feature::PythonStacks => (
                self.stacks(&mut why),
                "stacks read from the tokenizers' memory".to_owned(),
            ),
        };
        if state == State::Works {
            why.clear();
        }
        Outcome {
            feature,
            state,
            tried,
            why,
        }
    }

    /// A frame is useful only if its sender and receiver are known.
    fn frames(&self, why: &mut Vec<(String, Option<String>)>) -> State {
        let refused: Vec<&Degraded> = self.probe.degraded().iter().collect();
        let lost = |pid: &u32| {
            refused
                .iter()
                .any(|d| d.feature == Feature::Messages && d.pid.is_none_or(|p| p == *pid))
        };
        let seen = self.probed.iter().filter(|pid| !lost(pid)).count();
        for d in refused.iter().filter(|d| d.feature == Feature::Messages) {
            if !why.contains(&reason(d)) {
                why.push(reason(d));
            }
        }
        let connected = self.engine.routes().iter().flat_map(|route| &route.lanes).any(|lane| {
            let watched =
                |end: Option<probe_user::discover::End>| end.is_some_and(|end| self.probed.contains(&end.pid));
            watched(lane.from) && watched(lane.to)
        });
        if seen == 0 || !(connected || self.passes_inside()) {
            self.blind(why);
            if why.is_empty() {
                let what = if seen == 0 {
                    "no process of the engine has loaded libzmq"
                } else {
                    "no connection between processes of the engine was found: the hop of a frame is unknown"
                };
                why.push((what.to_owned(), None));
            }
            return State::Missing;
        }
        if seen < self.probed.len() {
            State::Degraded
        } else {
            State::Works
        }
    }

    /// Whether a probed process passes its frames to a server inside it.
    fn passes_inside(&self) -> bool {
        let inner = |process: &Process| process.inner_server.is_some() && self.probed.contains(&process.id.pid);
        self.engine.processes.iter().any(inner)
    }

    /// A delivery is useful only if the frames it came from are observed.
    fn deliveries(&self, why: &mut Vec<(String, Option<String>)>) -> State {
        let unserved = self.degraded.iter().filter(|line| line.starts_with("egress: "));
        why.extend(unserved.map(|line| (line.clone(), None)));
        let frames = self.frames(&mut Vec::new());
        if self.egress.capabilities() && frames != State::Missing {
            return frames;
        }
        if frames == State::Missing {
            self.blind(why);
        }
        if why.is_empty() {
            let what = "no process of the engine that receives tokens listens for clients on a TCP port";
            why.push((what.to_owned(), None));
        }
        State::Missing
    }

    fn stacks(&self, why: &mut Vec<(String, Option<String>)>) -> State {
        let Some(python) = &self.python else {
            why.push((missing("python-stacks"), None));
            return State::Missing;
        };
        let refused = python.refused();
        why.extend(refused.iter().map(reason));
        let cost = python.cost();
        if cost.readings > cost.failed {
            return if refused.is_empty() {
                State::Works
            } else {
                State::Degraded
            };
        }
        if why.is_empty() {
            why.push((format!("{} readings, none of them complete", cost.readings), None));
        }
        State::Missing
    }

    /// Adds the processes that discovery cannot inspect.
    fn blind(&self, why: &mut Vec<(String, Option<String>)>) {
        let blind = self.lookout.topology().blind.iter();
        why.extend(blind.map(|blind| (blind.to_string(), blind.remedy())));
    }
}
