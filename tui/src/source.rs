//! Interface of sources, and the relay as a source.

use serde_json::Value;
#[cfg(target_os = "linux")]
use serde_json::json;
use trace::Event;
use trace::report::SamplingCost;
#[cfg(target_os = "linux")]
use zmq_tap::tap::Tap;

/// Result of [`Source::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Events were delivered; more may be available.
    Busy,
    /// Nothing available at the moment.
    Idle,
    /// Nothing available, and nothing will follow.
    Ended,
}

/// Source of events, live or recorded.
pub(crate) trait Source {
    /// Name of the source in the report.
    fn kind(&self) -> &'static str;

    /// Delivers a bounded number of new events. Never blocks.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow;

    /// Asks the source to end. Events in flight are still delivered, until [`Flow::Ended`].
    fn stop(&mut self);

    /// Returns whether the engine's messages pass through this process, which must then survive a failure of the analysis.
    fn is_in_the_path(&self) -> bool {
        false
    }

    /// Makes events carry token ids. Called before the first event if ids may be recorded.
    fn keep_ids(&mut self);

    /// Description of work in flight after [`Source::stop`], if draining can take a while.
    fn under_way(&self) -> Option<String> {
        None
    }

    /// Content of `source.wire` in the report: the observed message formats.
    fn wire(&self) -> Option<Value> {
        None
    }

    /// Attachments and observations that failed, each with its fix.
    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }

    /// Cost of sampling the engine's Python stacks, if enabled.
    fn sampling(&self) -> Option<SamplingCost> {
        None
    }

    /// Content of `demo` in the report: the ground truth kept by the demo's own peers.
    fn truth(&self) -> Option<Value> {
        None
    }
}

/// The relay as a source.
#[cfg(target_os = "linux")]
pub(crate) struct TapSource {
    tap: Tap,
    stopping: bool,
}

#[cfg(target_os = "linux")]
impl TapSource {
    pub(crate) fn new(tap: Tap) -> Self {
        Self { tap, stopping: false }
    }

    pub(crate) fn tap(&self) -> &Tap {
        &self.tap
    }

    pub(crate) fn tap_mut(&mut self) -> &mut Tap {
        &mut self.tap
    }
}

/// Maximum number of frames decoded per poll. Bounds a poll to some milliseconds, so that ticks and signals are not delayed.
const FRAMES_A_TURN: usize = 256;

#[cfg(target_os = "linux")]
impl Source for TapSource {
    fn kind(&self) -> &'static str {
        "tap"
    }

    fn is_in_the_path(&self) -> bool {
        true
    }

    fn keep_ids(&mut self) {
        self.tap.keep_ids();
    }

    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        match self.tap.poll(FRAMES_A_TURN, &mut |event, _| sink(event)) {
            0 if self.stopping && self.tap.has_ended() => Flow::Ended,
            0 => Flow::Idle,
            _ => Flow::Busy,
        }
    }

    fn wire(&self) -> Option<Value> {
        Some(wire_forms(&self.tap))
    }

    fn degraded(&self) -> Vec<String> {
        self.tap.degraded()
    }

    fn stop(&mut self) {
        self.tap.stop();
        self.stopping = true;
    }
}

/// Message formats observed by `tap`, and the relay's own counters.
#[cfg(target_os = "linux")]
pub(crate) fn wire_forms(tap: &Tap) -> Value {
    let forms = tap
        .forms()
        .iter()
        .map(|form| json!({"class": form.class, "codec": form.codec, "schema": form.schema, "frames": form.frames}));
    let relay = tap.stats();
    json!({"forms": forms.collect::<Vec<_>>(), "relay": {
        "connections": relay.connections_total,
        "accept_errors": relay.accept_errors,
        "connections_refused": relay.connections_refused,
        "connections_unanswered": relay.connections_unanswered,
        "bytes_forward": relay.bytes_forward,
        "bytes_backward": relay.bytes_backward,
    }})
}
