//! Tests the probe's features by attaching briefly.

use std::collections::BTreeSet;
use std::time::Duration;

use probe_user::discover::{Engine, Watcher};
use probe_user::egress::{CAPTURE, ListeningPorts, Serves};
use probe_user::empty_probes::probe_self_with_multi_uprobe;
use probe_user::{Degraded, Feature, Missing, Permissions, Probe, ProbeError, ProbeOptions};
use sources::attach::{Attach, AttachOptions, FeatureRow, PythonOptions, Reason};

/// Allows for the first stack sample of an interpreter, which takes some hundred milliseconds.
const MAX_WAIT: Duration = Duration::from_secs(2);
const HERTZ: u32 = 50;
/// Bytes copied per message; the content is not used.
const CAPTURE_BYTES: u32 = 64;

/// Rows of the probe's features after a brief attach to this engine. If the attach fails, all rows have its error.
pub(super) fn try_features_on_engine(watcher: Watcher, engine: Engine) -> Vec<FeatureRow> {
    let samples_every_role = false;
    let options = AttachOptions {
        capture: CAPTURE_BYTES,
        egress: true,
        // Without a sampler, the rows say so.
        python: PythonOptions::start(HERTZ, samples_every_role).ok(),
        ..AttachOptions::default()
    };
    match Attach::start(watcher, engine, &options) {
        Ok(mut attach) => attach.try_features(MAX_WAIT),
        Err(error) => {
            let reason = match error.downcast_ref::<ProbeError>() {
                Some(ProbeError::Unavailable(degraded)) => degraded.into(),
                _ => Reason::new(&format_args!("{error:#}")),
            };
            refused_rows(&reason, "attach to the engine's processes")
        }
    }
}

/// Tests the parts of the probe that need no engine, with a uprobe on this program. Reading the memory of another process is judged by the
/// capabilities for it.
pub(super) fn try_features_on_tokengap() -> Vec<FeatureRow> {
    let mut probe = match Probe::attach(&[], ProbeOptions::default()) {
        Ok(probe) => probe,
        Err(ProbeError::Unavailable(degraded)) => return refused_rows(&(&degraded).into(), "an empty probe"),
        Err(error) => return refused_rows(&Reason::new(&error), "an empty probe"),
    };
    let refusals = TrialRefusals::try_parts_of_probe(&mut probe);
    let mut rows = Vec::new();
    for feature in Feature::ALL {
        let mut reasons: Vec<Reason> =
            probe.degraded().iter().filter(|degraded| degraded.feature == feature).map(Reason::from).collect();
        reasons.extend(refusals.refusal_of(feature));
        let capabilities = Permissions::current().capabilities_missing_for(feature);
        // Reading one's own memory always works; that of another user's process needs capabilities.
        if reasons.is_empty() && !capabilities.is_empty() {
            let missing = Missing::Capabilities(capabilities);
            reasons.push(Reason::from(&Degraded { feature, pid: None, missing }));
        }
        rows.push(FeatureRow::with_reasons(feature.name(), describe_trial(feature), reasons));
    }
    rows
}

/// Why the kernel refused parts of a probe of this process; `None` for each part that works.
struct TrialRefusals {
    uprobe: Option<Degraded>,
    writes: Option<Reason>,
    arrivals: Option<Reason>,
    reads: Option<Reason>,
}

impl TrialRefusals {
    /// Attaches each part to this process once.
    fn try_parts_of_probe(probe: &mut Probe) -> Self {
        let own_pid = std::process::id();
        let serves = Serves { written: CAPTURE, ..Serves::default() };
        let writes = probe.observe_serving(own_pid, serves);
        let arrivals = probe.observe_arrivals(own_pid, ListeningPorts::default());
        let reads = probe.observe_zmtp_reads(own_pid, &BTreeSet::new());
        Self {
            uprobe: probe_self_with_multi_uprobe().err(),
            writes: writes.err().map(|error| Reason::new(&error)),
            arrivals: arrivals.err().map(|error| Reason::new(&error)),
            reads: reads.err().map(|error| Reason::new(&error)),
        }
    }

    /// Why the part that this feature needs was refused; `None` if it works, or was not tried.
    fn refusal_of(&self, feature: Feature) -> Option<Reason> {
        match feature {
            Feature::Messages | Feature::Processed | Feature::Polls | Feature::Tls => {
                let refused = self.uprobe.clone()?;
                // The same uprobe stands for all four features, so the reason names this one.
                Some(Reason::from(&Degraded { feature, ..refused }))
            }
            Feature::Egress => self.writes.clone(),
            Feature::Arrivals => self.arrivals.clone(),
            Feature::SocketReads => self.reads.clone(),
            Feature::Scheduler | Feature::Queues | Feature::PythonStacks => None,
        }
    }
}

/// What was tried for a feature, for its row.
fn describe_trial(feature: Feature) -> &'static str {
    match feature {
        Feature::Messages | Feature::Processed | Feature::Polls | Feature::Tls => "a uprobe on tokengap itself",
        Feature::Scheduler => "raw tracepoints of the scheduler",
        Feature::Egress => "raw tracepoints of writes",
        Feature::Arrivals => "raw tracepoints of sockets",
        Feature::SocketReads => "a raw tracepoint of socket reads",
        Feature::Queues | Feature::PythonStacks => "capabilities only; --try tests a running engine",
    }
}

/// A row of each feature with the same reason.
fn refused_rows(reason: &Reason, tried: &str) -> Vec<FeatureRow> {
    Feature::ALL.into_iter().map(|feature| FeatureRow::with_reasons(feature.name(), tried, [reason.clone()])).collect()
}
