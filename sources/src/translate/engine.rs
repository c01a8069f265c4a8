//! Properties of the engine, from discovery and from the layout of its messages.

use adapter::decode::Shape;
use probe_user::discover;
use trace::MonoNs;
use trace::event::{Engine, Event, What};

use super::Sink;

/// Properties of an engine, and whether they were emitted.
#[derive(Debug, Default)]
pub(super) struct EngineProperties {
    /// From discovery.
    known: Option<discover::Engine>,
    /// From the layout of the last message with chunks.
    found: Engine<'static>,
    /// The properties from discovery were not emitted yet.
    is_unreported: bool,
}

impl EngineProperties {
    pub(super) fn set_known(&mut self, known: discover::Engine) {
        self.known = Some(known);
        self.is_unreported = true;
    }

    /// Emits the properties from discovery, if they were not emitted since they were set.
    pub(super) fn emit_known_once(&mut self, at: MonoNs, sink: Sink<'_>) {
        if self.is_unreported {
            self.is_unreported = false;
            self.emit_properties(at, sink);
        }
    }

    /// Replaces the properties found in messages by those that a message of this shape shows, and emits them if they are new.
    pub(super) fn update_from_shape(&mut self, shape: &Shape, at: MonoNs, sink: Sink<'_>) {
        let found =
            Engine { name: Some(shape.engine), version: Some(shape.schema), waiter: shape.waiter, ..Engine::default() };
        if self.found != found {
            self.found = found;
            self.emit_properties(at, sink);
        }
    }

    /// Emits the properties known or found so far.
    fn emit_properties(&self, at: MonoNs, sink: Sink<'_>) {
        let known = self.known.as_ref().map(discover::Engine::to_event).unwrap_or_default();
        sink(&Event::new(at, What::Engine(complete_properties(known, self.found))));
    }
}

/// `known` properties of an engine, completed by those found in frames.
fn complete_properties<'a>(known: Engine<'a>, found: Engine<'a>) -> Engine<'a> {
    Engine {
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
        let none = Engine::default();
        let known = Engine { mode: Some(Mode::Incremental), ..none };
        let found = Engine { version: Some("0.5.9"), mode: Some(Mode::Cumulative), ..none };
        assert_eq!(complete_properties(known, found), Engine { mode: known.mode, ..found });
    }
}
