//! What the application needs of a source, and the sources that are only wiring.

use serde_json::Value;
use trace::Event;
use trace::report::SourceKind;
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
    fn kind(&self) -> SourceKind;

    /// Hands over what has been observed since the last call, a bounded amount at a time. Never waits.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow;

    /// Asks the source to end. What is under way is still handed over, until [`Flow::Ended`].
    fn stop(&mut self);

    /// What the report shows under `demo`: the truth that the demo's own peers kept.
    fn truth(&self) -> Option<Value> {
        None
    }
}

/// The relay as a source.
pub(crate) struct TapSource {
    tap: Tap,
    stopping: bool,
}

impl TapSource {
    pub(crate) fn new(tap: Tap) -> Self {
        Self { tap, stopping: false }
    }
}

/// Frames decoded in one turn: some milliseconds of work, so that ticks and signals are not kept waiting.
const FRAMES_A_TURN: usize = 256;

impl Source for TapSource {
    fn kind(&self) -> SourceKind {
        SourceKind::Tap
    }

    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        match self.tap.poll(FRAMES_A_TURN, sink) {
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
