//! Result of an attach per feature, before any token flows. `tokengap doctor` reports it.

use std::time::{Duration, Instant};

use probe_user::discover::BlindSpot;
use probe_user::{Degraded, Feature};
use serde::Serialize;
use session::{About as _, LiveSource as _};
use trace::event::What;
use trace::words::missing_feature;

use super::Attach;

/// Availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeatureState {
    /// Works for the whole engine.
    Works,
    /// Works for some of the engine's processes.
    Degraded,
    /// Does not work.
    Missing,
}

impl FeatureState {
    /// Name in outputs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }

    /// `Works`, or `Missing`.
    fn of(works: bool) -> Self {
        if works { Self::Works } else { Self::Missing }
    }
}

/// Reason why a feature is unavailable, with its fix, in the wording of attach's `degraded`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The cause.
    pub why: String,
    /// `null` if tokengap knows no fix.
    pub fix: Option<String>,
}

impl Reason {
    /// A reason without a known fix.
    pub fn new(why: &(impl ToString + ?Sized)) -> Self {
        Self { why: why.to_string(), fix: None }
    }
}

impl From<&Degraded> for Reason {
    fn from(degraded: &Degraded) -> Self {
        Self { why: degraded.to_string(), fix: Some(degraded.remedy()) }
    }
}

impl From<&BlindSpot> for Reason {
    fn from(blind: &BlindSpot) -> Self {
        Self { why: blind.to_string(), fix: blind.remedy() }
    }
}

/// Result of the test of a feature.
#[derive(Clone, Debug, Serialize)]
pub struct FeatureRow {
    /// Name of the feature.
    pub name: &'static str,
    /// Whether it works.
    pub state: FeatureState,
    /// Description of the test.
    pub tried: String,
    /// Why it does not work, or not everywhere.
    pub reasons: Vec<Reason>,
}

impl FeatureRow {
    /// A feature that works unless there are reasons why not.
    pub fn of(name: &'static str, tried: impl Into<String>, reasons: impl IntoIterator<Item = Reason>) -> Self {
        let reasons: Vec<Reason> = reasons.into_iter().collect();
        Self { name, state: FeatureState::of(reasons.is_empty()), tried: tried.into(), reasons }
    }
}

/// Formats a blind spot in the wording of `degraded`.
pub(super) fn with_remedy(blind: &BlindSpot) -> String {
    match blind.remedy() {
        Some(remedy) => format!("{blind}; {remedy}"),
        None => blind.to_string(),
    }
}

impl Attach {
    /// Polls the attach for at most `patience` and reports the result per feature. Needs no traffic.
    pub fn outcomes(&mut self, patience: Duration) -> Vec<FeatureRow> {
        let mut has_queue_sample = false;
        let until = Instant::now() + patience;
        loop {
            self.poll(&mut |event| has_queue_sample |= matches!(event.what, What::Queue(_)));
            if has_queue_sample && self.is_stack_sampling_settled() || Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Feature::ALL.into_iter().map(|feature| self.outcome(feature, has_queue_sample)).collect()
    }

    /// Returns whether it is known if Python stacks can be read: one was read, or the reader has failed.
    fn is_stack_sampling_settled(&self) -> bool {
        if self.sampling().is_none_or(|cost| cost.readings > cost.failed) {
            return true;
        }
        let node = self.node.lock();
        node.python.as_ref().is_some_and(|python| python.has_ended() || !python.refused(self.run).is_empty())
    }

    /// Result for a feature. `has_queue_sample`: the kernel has answered at least one query of queues.
    fn outcome(&self, feature: Feature, has_queue_sample: bool) -> FeatureRow {
        let processes = self.probed.len();
        let (mut why, seen) = self.refused(feature);
        let works = FeatureState::of(why.is_empty());
        let of_processes = match seen {
            0 => FeatureState::Missing,
            some if some < processes => FeatureState::Degraded,
            _ => FeatureState::Works,
        };
        let (state, tried) = match feature {
            Feature::Processed | Feature::Queues if self.passes_inside() => {
                let what = "frames stay inside a process that serves its clients itself";
                why.push(Reason::new(what));
                (FeatureState::Missing, "nothing: there is no socket".to_owned())
            }
            Feature::Messages if self.passes_inside() => {
                let tried = "a uprobe on the method that passes frames to the server inside the process".to_owned();
                (self.frames(&mut why), tried)
            }
            Feature::Messages | Feature::Processed => {
                let tried = format!("uprobes on the libzmq of {processes} processes; sockets looked up");
                (self.frames(&mut why), tried)
            }
            Feature::Scheduler => (works, "raw tracepoints of the scheduler".to_owned()),
            Feature::Polls => {
                if processes == 0 {
                    self.blind(&mut why);
                }
                (of_processes, format!("uprobes on the libc of {processes} processes"))
            }
            Feature::Queues => {
                why.extend(self.queues.problems().refused.iter().map(Reason::new));
                if !has_queue_sample && why.is_empty() {
                    self.blind(&mut why);
                }
                let tried = "the engine's sockets queried from the kernel".to_owned();
                (FeatureState::of(has_queue_sample), tried)
            }
            Feature::Egress => (self.deliveries(&mut why), "raw tracepoints of writes".to_owned()),
            Feature::Arrivals => (works, "raw tracepoints of sockets".to_owned()),
            Feature::SocketReads => {
                let tried = match self.interpreter.reads.connections() {
                    0 if why.is_empty() => "not needed: no process receives without libzmq".to_owned(),
                    count => format!("raw tracepoint of socket reads; {count} connections"),
                };
                (works, tried)
            }
            Feature::Tls => (of_processes, "uprobes on OpenSSL".to_owned()),
            Feature::PythonStacks => (self.stacks(&mut why), "stacks read from the tokenizers' memory".to_owned()),
        };
        if state == FeatureState::Works {
            why.clear();
        }
        FeatureRow { name: feature.name(), state, tried, reasons: why }
    }

    /// Reasons why a feature is refused, and the number of processes for which it is not.
    fn refused(&self, feature: Feature) -> (Vec<Reason>, usize) {
        let missing_parts = self.missing_parts();
        let refused: Vec<&Degraded> = missing_parts.iter().filter(|missing| missing.feature == feature).collect();
        let observed_count = if refused.iter().any(|missing| missing.pid.is_none()) {
            // A refusal without a pid is for all processes.
            0
        } else {
            self.probed.iter().filter(|pid| refused.iter().all(|missing| missing.pid != Some(**pid))).count()
        };
        (refused.into_iter().map(Reason::from).collect(), observed_count)
    }

    /// Availability of frames. A frame is useful only if its sender and receiver are known. Adds the reasons for a lack to `why`.
    fn frames(&self, why: &mut Vec<Reason>) -> FeatureState {
        let (refused, seen) = self.refused(Feature::Messages);
        for reason in refused {
            if !why.contains(&reason) {
                why.push(reason);
            }
        }
        let connected = self.engine.routes().iter().flat_map(|route| &route.lanes).any(|lane| {
            let watched = |end: Option<adapter::discover::End>| end.is_some_and(|end| self.probed.contains(&end.pid));
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
                why.push(Reason::new(what));
            }
            return FeatureState::Missing;
        }
        if seen < self.probed.len() { FeatureState::Degraded } else { FeatureState::Works }
    }

    /// Whether a probed process passes its frames to a server inside it.
    fn passes_inside(&self) -> bool {
        self.engine
            .processes
            .iter()
            .any(|process| process.inner_server.is_some() && self.probed.contains(&process.id.pid))
    }

    /// A delivery is useful only if the frames it came from are observed.
    fn deliveries(&self, why: &mut Vec<Reason>) -> FeatureState {
        let unserved = self.degraded.iter().filter(|line| line.starts_with("egress: "));
        why.extend(unserved.map(Reason::new));
        let frames = self.frames(&mut Vec::new());
        if self.interpreter.egress.capabilities() && frames != FeatureState::Missing {
            return frames;
        }
        if frames == FeatureState::Missing {
            self.blind(why);
        }
        if why.is_empty() {
            let what = "no process of the engine that receives tokens listens for clients on a TCP port";
            why.push(Reason::new(what));
        }
        FeatureState::Missing
    }

    /// Availability of Python stacks: at least one reading was complete. Adds the reasons for a lack to `why`.
    fn stacks(&self, why: &mut Vec<Reason>) -> FeatureState {
        let node = self.node.lock();
        let Some(python) = &node.python else {
            why.push(Reason::new(&missing_feature("python-stacks")));
            return FeatureState::Missing;
        };
        let refused = python.refused(self.run);
        why.extend(refused.iter().map(Reason::from));
        let cost = python.cost();
        if cost.readings > cost.failed {
            return if refused.is_empty() { FeatureState::Works } else { FeatureState::Degraded };
        }
        if why.is_empty() {
            why.push(Reason::new(&format_args!("{} readings, none of them complete", cost.readings)));
        }
        FeatureState::Missing
    }

    /// Adds the processes that discovery cannot inspect.
    fn blind(&self, why: &mut Vec<Reason>) {
        why.extend(self.node.lock().lookout.topology().blind_spots.iter().map(Reason::from));
    }
}
