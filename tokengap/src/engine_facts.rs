//! Facts about an engine behind a relay that come from its processes instead of its frames.

use trace::engine::{Mode, Waiter};
use trace::event::{self, Event, What};

/// The engine according to its command line, environment and packages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EngineFacts {
    name: Option<String>,
    version: Option<String>,
    mode: Option<Mode>,
    waiter: Option<Waiter>,
    turnaround: Option<u8>,
}

impl EngineFacts {
    /// Completes `self` with the facts from frames.
    pub(crate) fn or<'a>(&'a self, from_frames: event::Engine<'a>) -> event::Engine<'a> {
        event::Engine {
            name: self.name.as_deref().or(from_frames.name),
            version: self.version.as_deref().or(from_frames.version),
            mode: self.mode.or(from_frames.mode),
            waiter: self.waiter.or(from_frames.waiter),
            turnaround: self.turnaround.or(from_frames.turnaround),
        }
    }

    /// Forwards an event, completing one about the engine.
    pub(crate) fn forward(&self, event: &Event<'_>, sink: &mut dyn FnMut(&Event<'_>)) {
        match event.what {
            What::Engine(engine) => sink(&Event::new(event.at, What::Engine(self.or(engine)))),
            _ => sink(event),
        }
    }
}

impl From<event::Engine<'_>> for EngineFacts {
    fn from(engine: event::Engine<'_>) -> Self {
        Self {
            name: engine.name.map(str::to_owned),
            version: engine.version.map(str::to_owned),
            mode: engine.mode,
            waiter: engine.waiter,
            turnaround: engine.turnaround,
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::{FrameId, HopId, MonoNs};

    use super::*;

    const FRAME: FrameId = FrameId::new(HopId(0), 0, 0);

    #[test]
    fn engine_events_are_completed_and_others_pass_unchanged() {
        let none = event::Engine::default();
        let known = EngineFacts::from(event::Engine { mode: Some(Mode::Incremental), ..none });
        let from_frames = event::Engine { version: Some("0.5.9"), ..none };
        let at = MonoNs(7);
        let mut received = Vec::new();
        let mut sink = |event: &Event<'_>| received.push(format!("{:?}", event.what));
        for what in [What::Engine(from_frames), What::Processed(FRAME)] {
            known.forward(&Event { at, what }, &mut sink);
        }
        let both = event::Engine { mode: Some(Mode::Incremental), ..from_frames };
        let expected = [What::Engine(both), What::Processed(FRAME)].map(|what| format!("{what:?}"));
        assert_eq!(received, expected);
    }
}
