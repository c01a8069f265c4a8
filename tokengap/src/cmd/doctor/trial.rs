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
pub(super) fn try_on_engine(watcher: Watcher, engine: Engine) -> Vec<FeatureRow> {
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
pub(super) fn try_on_tokengap() -> Vec<FeatureRow> {
    let mut probe = match Probe::attach(&[], ProbeOptions::default()) {
        Ok(probe) => probe,
        Err(ProbeError::Unavailable(degraded)) => return refused_rows(&(&degraded).into(), "an empty probe"),
        Err(error) => return refused_rows(&Reason::new(&error), "an empty probe"),
    };
    let serves = Serves { written: CAPTURE, ..Serves::default() };
    let writes = probe.observe_serving(std::process::id(), serves);
    let arrivals = probe.observe_arrivals(std::process::id(), ListeningPorts::default());
    let reads = probe.observe_zmtp_reads(std::process::id(), &BTreeSet::new());
    let uprobe = probe_self_with_multi_uprobe();
    let permissions = Permissions::current();
    let rows = Feature::ALL.into_iter().map(|feature| {
        let mut reasons: Vec<Reason> =
            probe.degraded().iter().filter(|degraded| degraded.feature == feature).map(Reason::from).collect();
        let tried = match feature {
            Feature::Messages | Feature::Processed | Feature::Polls | Feature::Tls => {
                let refusal = uprobe.as_ref().err();
                reasons.extend(refusal.map(|degraded| Reason::from(&Degraded { feature, ..degraded.clone() })));
                "a uprobe on tokengap itself"
            }
            Feature::Scheduler => "raw tracepoints of the scheduler",
            Feature::Egress => {
                reasons.extend(writes.as_ref().err().map(Reason::new));
                "raw tracepoints of writes"
            }
            Feature::Arrivals => {
                reasons.extend(arrivals.as_ref().err().map(Reason::new));
                "raw tracepoints of sockets"
            }
            Feature::SocketReads => {
                reasons.extend(reads.as_ref().err().map(Reason::new));
                "a raw tracepoint of socket reads"
            }
            Feature::Queues | Feature::PythonStacks => "capabilities only; --try tests a running engine",
        };
        let capabilities = permissions.missing_for(feature);
        // Reading one's own memory always works; that of another user's process needs capabilities.
        if reasons.is_empty() && !capabilities.is_empty() {
            let missing = Missing::Capabilities(capabilities);
            reasons.push(Reason::from(&Degraded { feature, pid: None, missing }));
        }
        FeatureRow::with_reasons(feature.name(), tried, reasons)
    });
    rows.collect()
}

/// A row of each feature with the same reason.
fn refused_rows(reason: &Reason, tried: &str) -> Vec<FeatureRow> {
    Feature::ALL.into_iter().map(|feature| FeatureRow::with_reasons(feature.name(), tried, [reason.clone()])).collect()
}
