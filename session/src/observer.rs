//! Interface for observers of a run, such as the screen.

use std::thread;
use std::time::Duration;

use outputs::report::Report;
use trace::{Analysis, Event};

use crate::about::About;
use crate::playback::Play;
use crate::sink::OutputStatus;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStage {
    /// The source delivers events.
    Running,
    /// The source was asked to end and is draining.
    Ending,
    /// The source has ended.
    Ended,
}

/// A message to the user.
#[derive(Clone, Debug, Default)]
pub struct Notice {
    /// Number of the message, which distinguishes it from an equal one before; 0 before the first.
    pub number: u64,
    /// The message.
    pub text: String,
}

/// The run as visible to an observer.
pub struct Run<'a> {
    /// State of the analysis.
    pub analysis: &'a Analysis,
    /// Its source.
    pub about: &'a dyn About,
    /// Progress of the run.
    pub stage: RunStage,
    /// Latest message to the user.
    pub notice: &'a Notice,
    /// Outputs being written.
    pub writing: &'a dyn Fn() -> OutputStatus,
    /// Missing observations, and disabled features.
    pub degraded: &'a dyn Fn() -> Vec<String>,
    /// Creates the report as of now.
    pub report: &'a dyn Fn() -> Report,
}

/// Request of an observer to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScreenCommand {
    /// No request: the run is over once its source has ended.
    None,
    /// Keep the run open after its source has ended.
    Stay,
    /// End the run; a second request ends it at once.
    End,
    /// Start or stop a recording.
    Record,
    /// Dump the hindsight ring.
    Dump,
    /// Control the playback of a recording.
    Play(Play),
}

/// An observer of a run.
pub trait Observer {
    /// Called after the analysis has processed an event. Does nothing by default.
    fn observe_event(&mut self, _: &Event<'_>) {}

    /// Called after the analysis has processed a tick. Does nothing by default.
    fn observe_tick(&mut self, _: &Analysis) {}

    /// Called when the run restarts from its beginning with an empty state. Does nothing by default.
    fn observe_restart(&mut self) {}

    /// Shows the run as it is now, and returns the user's command. The run loop calls it every few milliseconds. It must be quick, because
    /// the source is not polled meanwhile.
    fn show_run(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand>;

    /// Called when the source is idle. Sleeps for `time`. A screen also ends the sleep when the user presses a key.
    fn sleep(&mut self, time: Duration) {
        thread::sleep(time);
    }
}

/// Observer that does nothing.
pub struct NoObserver;

impl Observer for NoObserver {
    fn show_run(&mut self, _: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        Ok(ScreenCommand::None)
    }
}
