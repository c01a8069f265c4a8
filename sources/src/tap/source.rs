//! The relay as a source.

use probe_user::discover::Engine;
use serde_json::{Value, json};
use session::{About, Flow, LiveSource};
use trace::event::{self, What};
use trace::{Event, MonoNs};

use super::Tap;

/// The relay as a source.
pub struct TapSource {
    tap: Tap,
    stopping: bool,
    /// The engine behind the relay, if its processes are known, and whether it was reported.
    engine: Option<(Engine, bool)>,
}

impl TapSource {
    /// A source of the events of this relay.
    pub fn new(tap: Tap) -> Self {
        Self { tap, stopping: false, engine: None }
    }

    /// Reports the properties of this engine, and completes those found in frames.
    pub fn set_engine(&mut self, engine: Engine) {
        self.engine = Some((engine, false));
    }

    /// The relay.
    pub fn tap_mut(&mut self) -> &mut Tap {
        &mut self.tap
    }
}

/// Maximum number of frames decoded per poll. Bounds a poll to some milliseconds, so that ticks and signals are not delayed.
const FRAMES_A_TURN: usize = 256;

impl About for TapSource {
    fn kind(&self) -> &'static str {
        "tap"
    }

    /// The observed message formats, and the relay's own counters.
    fn wire(&self) -> Option<Value> {
        let forms = self.tap.forms().iter();
        let forms = forms.map(
            |form| json!({"class": form.class, "codec": form.codec, "schema": form.schema, "frames": form.frames}),
        );
        let relay = self.tap.stats();
        Some(json!({"forms": forms.collect::<Vec<_>>(), "relay": {
            "connections": relay.connections_total,
            "accept_errors": relay.accept_errors,
            "connections_refused": relay.connections_refused,
            "connections_unanswered": relay.connections_unanswered,
            "upstreams_distrusted": relay.upstreams_distrusted,
            "upstreams_forbidden": relay.upstreams_forbidden,
            "reads_shortened": relay.reads_shortened,
            "bytes_forward": relay.bytes_forward,
            "bytes_backward": relay.bytes_backward,
        }}))
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
        if let Some((engine, reported @ false)) = &mut self.engine {
            *reported = true;
            sink(&Event::new(MonoNs::now(), What::Engine(engine.event())));
        }
        let known = self.engine.as_ref().map(|(engine, _)| engine.event()).unwrap_or_default();
        let mut complete = |event: &Event<'_>| match event.what {
            What::Engine(found) => sink(&Event::new(event.at, What::Engine(completed(known, found)))),
            _ => sink(event),
        };
        match self.tap.poll(FRAMES_A_TURN, &mut complete) {
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

/// Lowers the priority of this thread, which decodes, so that the relay's thread is scheduled first.
pub fn lower_priority() {
    if let Err(error) = zmq_tap::relay::lower_priority() {
        tracing::info!("cannot lower the priority of decoding: {error}");
    }
}

/// `known` properties of an engine, completed by those found in frames.
pub(crate) fn completed<'a>(known: event::Engine<'a>, found: event::Engine<'a>) -> event::Engine<'a> {
    event::Engine {
        name: known.name.or(found.name),
        version: known.version.or(found.version),
        mode: known.mode.or(found.mode),
        waiter: known.waiter.or(found.waiter),
        turnaround: known.turnaround.or(found.turnaround),
    }
}

#[cfg(test)]
mod tests {
    use trace::engine::Mode;

    use super::*;

    #[test]
    fn known_properties_take_precedence_over_those_found_in_frames() {
        let none = event::Engine::default();
        let known = event::Engine { mode: Some(Mode::Incremental), ..none };
        let found = event::Engine { version: Some("0.5.9"), mode: Some(Mode::Cumulative), ..none };
        assert_eq!(completed(known, found), event::Engine { mode: known.mode, ..found });
    }
}
