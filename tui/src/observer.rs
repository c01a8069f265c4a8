//! Interface for observers of a run, such as the screen.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use trace::report::Report;
use trace::{Analysis, Event, MonoNs};

use crate::replay::{Play, Position};
use crate::sink::Writing;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The source delivers events.
    Running,
    /// The source was asked to end and is draining.
    Ending,
    /// The source has ended.
    Ended,
}

/// The run as visible to an observer.
pub(crate) struct Run<'a> {
    pub(crate) analysis: &'a Analysis,
    /// Name of the source in the report.
    pub(crate) source: &'a str,
    pub(crate) stage: Stage,
    /// Playback position of a recording; `None` for live sources.
    pub(crate) position: Option<&'a Position>,
    /// The recording being played.
    pub(crate) file: Option<&'a Path>,
    /// One instant on both clocks of the observed machine; `None` if its wall clock is unknown.
    pub(crate) wall: Option<(MonoNs, u64)>,
    /// Latest message to the user, and its number.
    pub(crate) notice: (u64, &'a str),
    /// Outputs being written.
    pub(crate) writing: &'a dyn Fn() -> Writing,
    /// Missing observations, and features given up.
    pub(crate) degraded: &'a dyn Fn() -> Vec<String>,
    /// Description of the work that an ending source waits for.
    pub(crate) under_way: &'a dyn Fn() -> Option<String>,
    /// Creates the report as of now.
    pub(crate) report: &'a dyn Fn() -> Report,
}

/// Request of an observer to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// None: the run is over once its source has ended.
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
pub(crate) trait Observer {
    /// Called after the analysis has processed an event.
    fn event(&mut self, _: &Event<'_>) {}

    /// Called after the analysis has processed a tick.
    fn tick(&mut self, _: &Analysis) {}

    /// Called when the run restarts from its beginning with an empty state.
    fn anew(&mut self) {}

    /// Called every few milliseconds by the run loop. Must be quick, because the source is not polled meanwhile.
    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish>;

    /// Called when the source is idle: sleeps for `time`, or until the next turn has something to do.
    fn rest(&mut self, time: Duration) {
        thread::sleep(time);
    }
}

/// Observer that does nothing.
pub(crate) struct Nobody;

impl Observer for Nobody {
    fn turn(&mut self, _: &Run<'_>) -> anyhow::Result<Wish> {
        Ok(Wish::None)
    }
}

/// Prints, once a second, what an ending run without a screen still waits for.
#[derive(Default)]
pub(crate) struct Progress {
    told: Option<Instant>,
    notice: u64,
}

impl Observer for Progress {
    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish> {
        if run.notice.0 != self.notice {
            self.notice = run.notice.0;
            errln!("tokengap: {}", run.notice.1);
        }
        if run.stage == Stage::Ending && self.told.get_or_insert_with(Instant::now).elapsed() >= Duration::from_secs(1)
        {
            self.told = Some(Instant::now());
            if let Some(under_way) = (run.under_way)() {
                errln!("tokengap: {under_way}");
            }
        }
        Ok(Wish::None)
    }
}
