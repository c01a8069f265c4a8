//! Facts about an engine behind a relay that come from its processes instead of its frames.

use trace::engine::{Mode, Waiter};
use trace::event::{self, Event, What};

/// The engine according to its command line, environment and packages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    version: Option<String>,
    mode: Option<Mode>,
    waiter: Option<Waiter>,
    turnaround: Option<u8>,
}

impl Known {
    /// Completes `self` with the facts from frames.
    pub(crate) fn or<'a>(&'a self, said: event::Engine<'a>) -> event::Engine<'a> {
        event::Engine {
            version: self.version.as_deref().or(said.version),
            mode: self.mode.or(said.mode),
            waiter: self.waiter.or(said.waiter),
            turnaround: self.turnaround.or(said.turnaround),
        }
    }

    /// Forwards an event, completing one about the engine.
    pub(crate) fn hand_on(&self, event: &Event<'_>, sink: &mut dyn FnMut(&Event<'_>)) {
        match event.what {
            What::Engine(said) => sink(&Event {
                at: event.at,
                what: What::Engine(self.or(said)),
            }),
            _ => sink(event),
        }
    }
}

impl From<event::Engine<'_>> for Known {
    fn from(said: event::Engine<'_>) -> Self {
        Self {
            version: said.version.map(str::to_owned),
            mode: said.mode,
            waiter: said.waiter,
            turnaround: said.turnaround,
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::{FrameId, HopId, MonoNs};

    use super::*;

    const FRAME: FrameId = FrameId {
        hop: HopId(0),
        lane: 0,
        seq: 0,
    };

    #[test]
    fn an_event_about_the_engine_is_completed_and_others_pass() {
        let nothing = event::Engine::default();
        let known = Known::from(event::Engine {
            mode: Some(Mode::Incremental),
            ..nothing
        });
        let said = event::Engine {
            version: Some("0.5.9"),
            ..nothing
        };
        let at = MonoNs(7);
        let mut heard = Vec::new();
        let mut sink = |event: &Event<'_>| heard.push(format!("{:?}", event.what));
        for what in [What::Engine(said), What::Handled(FRAME)] {
            known.hand_on(&Event { at, what }, &mut sink);
        }
        let both = event::Engine {
            mode: Some(Mode::Incremental),
            ..said
        };
        let expected = [What::Engine(both), What::Handled(FRAME)].map(|what| format!("{what:?}"));
        assert_eq!(heard, expected);
    }
}
