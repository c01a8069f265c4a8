//! Destination of the events of a connection.

use trace::MonoNs;
use trace::event::{Event, Missed, MissedCause, What};

/// Destination of the events that occur at one time.
pub(super) struct Sink<'s> {
    pub(super) at: MonoNs,
    pub(super) events: &'s mut dyn FnMut(&Event<'_>),
}

impl Sink<'_> {
    pub(super) fn emit(&mut self, what: What<'_>) {
        (self.events)(&Event { at: self.at, what });
    }

    /// Reports that an event of a response was missed.
    pub(super) fn missed(&mut self) {
        self.emit(What::Missed(Missed { hop: None, count: 1, cause: MissedCause::Unframed }));
    }
}
