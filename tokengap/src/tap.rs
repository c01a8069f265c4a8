//! The relay as a source.

use serde_json::{Value, json};
use session::{About, Flow, LiveSource};
use trace::Event;
use zmq_tap::tap::Tap;

/// The relay as a source.
pub(crate) struct TapSource {
    tap: Tap,
    stopping: bool,
}

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

impl About for TapSource {
    fn kind(&self) -> &'static str {
        "tap"
    }

    fn wire(&self) -> Option<Value> {
        Some(wire_forms(&self.tap))
    }

    fn degraded(&self) -> Vec<String> {
        self.tap.degraded()
    }
}

impl LiveSource for TapSource {
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

    fn stop(&mut self) {
        self.tap.stop();
        self.stopping = true;
    }
}

/// Message formats observed by `tap`, and the relay's own counters.
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
