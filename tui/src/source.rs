//! What the application needs of a source, and the sources that are only wiring.

use serde_json::Value;
#[cfg(target_os = "linux")]
use serde_json::json;
use trace::Event;
use trace::report::SamplingCost;
#[cfg(target_os = "linux")]
use zmq_tap::tap::Tap;

/// What one call of [`Source::poll`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// There was something; there may be more at once.
    Busy,
    /// Nothing for now.
    Idle,
    /// Nothing, and nothing will come.
    Ended,
}

/// Where events come from. All sources are driven alike, live or recorded.
pub(crate) trait Source {
    /// What the report calls it.
    fn kind(&self) -> &'static str;

    /// Hands over what has been observed since the last call, a bounded amount at a time. Never waits.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow;

    /// Asks the source to end. What is under way is still handed over, until [`Flow::Ended`].
    fn stop(&mut self);

    /// Whether the engine's messages pass through this process, which then has to go on whatever becomes of the analysis.
    fn is_in_the_path(&self) -> bool {
        false
    }

    /// Asked before the first event, where token ids may be recorded: events carry them from now on.
    fn keep_ids(&mut self);

    /// What is still under way after [`Source::stop`], in words, where that can take a while.
    fn under_way(&self) -> Option<String> {
        None
    }

    /// What the report shows under `source.wire`: the forms in which messages came.
    fn wire(&self) -> Option<Value> {
        None
    }

    /// What could not be attached or seen, each with what to do about it.
    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }

    /// What reading the engine's Python stacks cost, if it was asked for.
    fn sampling(&self) -> Option<SamplingCost> {
        None
    }

    /// What the report shows under `demo`: the truth that the demo's own peers kept.
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

/// Frames decoded in one turn: some milliseconds of work, so that ticks and signals are not kept waiting.
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

/// The forms in which messages came through `tap`, and the relay's own counters.
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
