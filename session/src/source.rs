//! Interface of sources.

use trace::Event;

use crate::about::About;

/// Result of [`Source::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Events were delivered; more may be available.
    Busy,
    /// Nothing available at the moment.
    Idle,
    /// Nothing available, and nothing will follow.
    Ended,
}

/// Live source of events.
pub trait Source: About {
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
}
