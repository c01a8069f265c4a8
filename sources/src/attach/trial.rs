//! Result of an attach per feature, before any token flows. `tokengap doctor` reports it.

use std::time::{Duration, Instant};

use probe_user::discover::BlindSpot;
use probe_user::{Degraded, Feature};
use serde::Serialize;
use session::{About as _, LiveSource as _};
use trace::event::What;
use trace::words::missing_feature_error;

use super::Attach;

/// Pause between two polls of a trial.
const POLL_PAUSE: Duration = Duration::from_millis(10);

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
    fn works_or_missing(works: bool) -> Self {
        if works { Self::Works } else { Self::Missing }
    }

    /// State of a feature that works in `observed_count` of `probed_count` processes.
    fn for_process_counts(observed_count: usize, probed_count: usize) -> Self {
        match observed_count {
            0 => Self::Missing,
            _ if observed_count < probed_count => Self::Degraded,
            _ => Self::Works,
        }
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
    pub fn with_reasons(
        name: &'static str,
        tried: impl Into<String>,
        reasons: impl IntoIterator<Item = Reason>,
    ) -> Self {
        let reasons: Vec<Reason> = reasons.into_iter().collect();
        Self { name, state: FeatureState::works_or_missing(reasons.is_empty()), tried: tried.into(), reasons }
    }
}

/// Formats a blind spot in the wording of `degraded`.
pub(super) fn describe_with_remedy(blind_spot: &BlindSpot) -> String {
    match blind_spot.remedy() {
        Some(remedy) => format!("{blind_spot}; {remedy}"),
        None => blind_spot.to_string(),
    }
}

/// Result of the attach for one feature.
struct Refusals {
    reasons: Vec<Reason>,
    /// Number of probed processes for which the feature is not refused.
    observed_processes: usize,
}

impl Attach {
    /// Tries for at most `patience` which features work on the attached engine, and returns a row for each. Needs no traffic.
    pub fn try_features(&mut self, patience: Duration) -> Vec<FeatureRow> {
        let mut has_queue_sample = false;
        let deadline = Instant::now() + patience;
        // Only queues and Python stacks take time. Everything else is known once attached.
        loop {
            self.poll(&mut |event| {
                if matches!(event.what, What::Queue(_)) {
                    has_queue_sample = true;
                }
            });
            let is_all_known = has_queue_sample && self.is_stack_sampling_settled();
            if is_all_known || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(POLL_PAUSE);
        }
        Feature::ALL.into_iter().map(|feature| self.try_feature(feature, has_queue_sample)).collect()
    }

    /// Returns whether the trial of Python stacks is decided. That is so once a stack was read, or the reader has failed.
    fn is_stack_sampling_settled(&self) -> bool {
        // Without a cost there is no reader in this build.
        let Some(cost) = self.stack_sampling_cost() else { return true };
        let has_read_stack = cost.readings > cost.failed;
        if has_read_stack {
            return true;
        }
        let node = self.node.lock();
        let Some(python) = &node.python else { return false };
        let is_refused = !python.refusals_of_run(self.run).is_empty();
        python.has_ended() || is_refused
    }

    /// Whether a feature works, how that was tested, and why it does not. `has_queue_sample` says whether the kernel has answered at least
    /// one query of socket queues.
    fn try_feature(&self, feature: Feature, has_queue_sample: bool) -> FeatureRow {
        let processes = self.probed.len();
        let Refusals { reasons: mut reasons_to_report, observed_processes } = self.refusals_of(feature);
        // So far, the reasons are refusals only. Those added below are not.
        let tried = self.describe_test(feature, reasons_to_report.is_empty());
        let works_unless_refused = FeatureState::works_or_missing(reasons_to_report.is_empty());
        let works_where_observed = FeatureState::for_process_counts(observed_processes, processes);
        let state = match feature {
            Feature::Processed | Feature::Queues if self.passes_frames_inside_process() => {
                let what = "frames stay inside a process that serves its clients itself";
                reasons_to_report.push(Reason::new(what));
                FeatureState::Missing
            }
            Feature::Messages | Feature::Processed => self.availability_of_frames(&mut reasons_to_report),
            Feature::Scheduler | Feature::Arrivals | Feature::SocketReads => works_unless_refused,
            Feature::Polls => {
                if processes == 0 {
                    self.add_blind_spots(&mut reasons_to_report);
                }
                works_where_observed
            }
            Feature::Queues => self.availability_of_queues(has_queue_sample, &mut reasons_to_report),
            Feature::Egress => self.availability_of_deliveries(&mut reasons_to_report),
            Feature::Tls => works_where_observed,
            Feature::PythonStacks => self.availability_of_stacks(&mut reasons_to_report),
        };
        // What was refused does not matter to a feature that works.
        if state == FeatureState::Works {
            reasons_to_report.clear();
        }
        FeatureRow { name: feature.name(), state, tried, reasons: reasons_to_report }
    }

    /// Describes how a feature is tested. `is_allowed` says that nothing of it was refused.
    fn describe_test(&self, feature: Feature, is_allowed: bool) -> String {
        let processes = self.probed.len();
        let test = match feature {
            Feature::Processed | Feature::Queues if self.passes_frames_inside_process() => {
                "nothing: there is no socket"
            }
            Feature::Messages if self.passes_frames_inside_process() => {
                "a uprobe on the method that passes frames to the server inside the process"
            }
            Feature::Messages | Feature::Processed => {
                return format!("uprobes on the libzmq of {processes} processes; sockets looked up");
            }
            Feature::Scheduler => "raw tracepoints of the scheduler",
            Feature::Polls => return format!("uprobes on the libc of {processes} processes"),
            Feature::Queues => "the engine's sockets queried from the kernel",
            Feature::Egress => "raw tracepoints of writes",
            Feature::Arrivals => "raw tracepoints of sockets",
            Feature::SocketReads => match self.interpreter.reads.connection_count() {
                0 if is_allowed => "not needed: no process receives without libzmq",
                count => return format!("raw tracepoint of socket reads; {count} connections"),
            },
            Feature::Tls => "uprobes on OpenSSL",
            Feature::PythonStacks => "stacks read from the tokenizers' memory",
        };
        test.to_owned()
    }

    /// Availability of samples of queues: the kernel has answered a query. Adds the reasons for a lack to `reasons_to_report`.
    fn availability_of_queues(&self, has_queue_sample: bool, reasons_to_report: &mut Vec<Reason>) -> FeatureState {
        reasons_to_report.extend(self.queues.problems().refused.iter().map(Reason::new));
        if !has_queue_sample && reasons_to_report.is_empty() {
            self.add_blind_spots(reasons_to_report);
        }
        FeatureState::works_or_missing(has_queue_sample)
    }

    /// Why a feature is refused, and the number of probed processes for which it is not.
    fn refusals_of(&self, feature: Feature) -> Refusals {
        let missing_parts = self.missing_parts();
        let refused: Vec<&Degraded> = missing_parts.iter().filter(|missing| missing.feature == feature).collect();
        // A refusal without a pid is for all processes.
        let is_refused_everywhere = refused.iter().any(|missing| missing.pid.is_none());
        let mut observed_processes = 0;
        for pid in &self.probed {
            if !is_refused_everywhere && refused.iter().all(|missing| missing.pid != Some(*pid)) {
                observed_processes += 1;
            }
        }
        Refusals { reasons: refused.into_iter().map(Reason::from).collect(), observed_processes }
    }

    /// Availability of frames, the messages with tokens. A frame is useful only if the hop that it crosses is known: its sender and
    /// receiver. Adds the reasons for a lack to `reasons_to_report`.
    fn availability_of_frames(&self, reasons_to_report: &mut Vec<Reason>) -> FeatureState {
        let Refusals { reasons, observed_processes } = self.refusals_of(Feature::Messages);
        for reason in reasons {
            // Several processes may be refused for the same reason, which is listed once.
            if !reasons_to_report.contains(&reason) {
                reasons_to_report.push(reason);
            }
        }
        let are_hops_known = self.has_connection_between_probed() || self.passes_frames_inside_process();
        if observed_processes == 0 || !are_hops_known {
            self.add_blind_spots(reasons_to_report);
            if reasons_to_report.is_empty() {
                let what = if observed_processes == 0 {
                    "no process of the engine has loaded libzmq"
                } else {
                    "no connection between processes of the engine was found: the hop of a frame is unknown"
                };
                reasons_to_report.push(Reason::new(what));
            }
            return FeatureState::Missing;
        }
        FeatureState::for_process_counts(observed_processes, self.probed.len())
    }

    /// Whether a connection between two probed processes was found.
    fn has_connection_between_probed(&self) -> bool {
        let routes = self.engine.routes();
        let mut connections = routes.iter().flat_map(|route| &route.lanes);
        connections.any(|connection| self.is_probed(connection.from) && self.is_probed(connection.to))
    }

    fn is_probed(&self, end: Option<adapter::discover::End>) -> bool {
        end.is_some_and(|end| self.probed.contains(&end.pid))
    }

    /// Whether a probed process passes its frames to a server inside it.
    fn passes_frames_inside_process(&self) -> bool {
        self.engine
            .processes
            .iter()
            .any(|process| process.inner_server.is_some() && self.probed.contains(&process.id.pid))
    }

    /// Availability of deliveries. A delivery is useful only if the frames it came from are observed. Adds the reasons for a lack to
    /// `reasons_to_report`.
    fn availability_of_deliveries(&self, reasons_to_report: &mut Vec<Reason>) -> FeatureState {
        // Lines with this prefix are about processes whose writes to clients cannot be observed.
        let unserved = self.degraded.iter().filter(|line| line.starts_with("egress: "));
        reasons_to_report.extend(unserved.map(Reason::new));
        // Not reported here, because the row of frames lists them.
        let mut reasons_of_frames = Vec::new();
        let frames_state = self.availability_of_frames(&mut reasons_of_frames);
        if self.interpreter.egress.shows_deliveries() && frames_state != FeatureState::Missing {
            return frames_state;
        }
        if frames_state == FeatureState::Missing {
            self.add_blind_spots(reasons_to_report);
        }
        if reasons_to_report.is_empty() {
            let what = "no process of the engine that receives tokens listens for clients on a TCP port";
            reasons_to_report.push(Reason::new(what));
        }
        FeatureState::Missing
    }

    /// Availability of Python stacks: at least one reading was complete. Adds the reasons for a lack to `reasons_to_report`.
    fn availability_of_stacks(&self, reasons_to_report: &mut Vec<Reason>) -> FeatureState {
        let node = self.node.lock();
        let Some(python) = &node.python else {
            reasons_to_report.push(Reason::new(&missing_feature_error("python-stacks")));
            return FeatureState::Missing;
        };
        let refused = python.refusals_of_run(self.run);
        reasons_to_report.extend(refused.iter().map(Reason::from));
        let cost = python.cost();
        let has_complete_reading = cost.readings > cost.failed;
        if has_complete_reading {
            return if refused.is_empty() { FeatureState::Works } else { FeatureState::Degraded };
        }
        if reasons_to_report.is_empty() {
            reasons_to_report.push(Reason::new(&format_args!("{} readings, none of them complete", cost.readings)));
        }
        FeatureState::Missing
    }

    /// Adds the processes that discovery cannot inspect.
    fn add_blind_spots(&self, reasons_to_report: &mut Vec<Reason>) {
        reasons_to_report.extend(self.node.lock().discovery.topology().blind_spots.iter().map(Reason::from));
    }
}
