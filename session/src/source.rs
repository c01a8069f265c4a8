//! Interface of sources.

use trace::{Analysis, Event};

use crate::about::About;
use crate::playback::Play;
use crate::session::Session;

/// Result of [`Source::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Events were delivered; more may be available.
    Busy,
    /// Nothing available at the moment.
    Idle,
    /// Nothing available. Nothing will follow from a live source.
    Ended,
}

/// Source of a run.
pub trait Source: About {
    /// Passes a bounded number of new events to the session. Never blocks.
    fn poll(&mut self, session: &mut Session) -> Flow;

    /// Asks the source to end. Events in flight are still delivered, until [`Flow::Ended`].
    fn stop(&mut self);

    /// Returns whether the source observes an engine. Any other source plays a recording: its ticks come with its events, and it may
    /// continue after its end, when the user goes back.
    fn is_live(&self) -> bool {
        false
    }

    /// Returns whether the engine's messages pass through this process, which must then survive a failure of the analysis.
    fn is_in_the_path(&self) -> bool {
        false
    }

    /// Executes a playback command. Sources that play no recording ignore it.
    fn execute_playback_command(&mut self, _: Play, _: &Analysis) {}
}

/// Source that observes an engine.
pub trait LiveSource: About {
    /// Delivers a bounded number of new events. Never blocks.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow;

    /// Asks the source to end, as [`Source::stop`] does.
    fn stop(&mut self);

    /// Returns whether the engine's messages pass through this process.
    fn is_in_the_path(&self) -> bool {
        false
    }

    /// Makes events carry token ids. Called before the first event if ids may be recorded.
    fn keep_ids(&mut self);

    /// Why nothing could be observed; `None` if no failure is known. A run that observed nothing ends with this error instead of an empty
    /// report.
    fn failure(&self) -> Option<String> {
        None
    }
}

impl<T: LiveSource> Source for T {
    fn poll(&mut self, session: &mut Session) -> Flow {
        LiveSource::poll(self, &mut |event| session.process_event(event))
    }

    fn stop(&mut self) {
        LiveSource::stop(self);
    }

    fn is_live(&self) -> bool {
        true
    }

    fn is_in_the_path(&self) -> bool {
        LiveSource::is_in_the_path(self)
    }
}
