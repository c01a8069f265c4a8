//! What looks on while a source is driven.

use std::time::{Duration, Instant};

use trace::report::{CpuLine, Report};
use trace::{Analysis, Event};

/// How often a run without a screen says what it waits for.
const TELL: Duration = Duration::from_secs(1);

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Events come.
    Running,
    /// The source was asked to end and hands over what is under way.
    Ending,
    /// Nothing more will come.
    Ended,
}

/// The run, as an observer may see it.
pub(crate) struct Run<'a> {
    pub(crate) analysis: &'a Analysis,
    /// What the report calls the source.
    pub(crate) source: &'static str,
    pub(crate) stage: Stage,
    /// What a source that was asked to end still waits for.
    pub(crate) under_way: Option<String>,
    /// What could not be watched, or was given up.
    pub(crate) degraded: &'a dyn Fn() -> Vec<String>,
    /// The engine's threads, where the source watches them.
    pub(crate) cpu: &'a dyn Fn() -> Option<Vec<CpuLine>>,
    /// Makes the report as it would be now.
    pub(crate) report: &'a dyn Fn() -> Report,
}

/// What an observer wants of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing: the run is over when its source has ended.
    None,
    /// To go on looking even then.
    Stay,
    /// To end it; a second time: at once.
    End,
}

/// Something that looks on.
pub(crate) trait Observer {
    /// An event that the analysis has entered.
    fn event(&mut self, event: &Event<'_>);

    /// Between two turns of the loop, every few milliseconds. Must be brief: the source waits meanwhile.
    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish>;
}

/// Looks at nothing, and says on stderr, once a second, what a run that is to end still waits for.
#[derive(Default)]
pub(crate) struct Headless {
    told: Option<Instant>,
}

impl Observer for Headless {
    fn event(&mut self, _: &Event<'_>) {}

    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish> {
        let now = Instant::now();
        if let Some(under_way) = &run.under_way
            && now - *self.told.get_or_insert(now) >= TELL
        {
            self.told = Some(now);
            eprintln!("tokengap: {under_way}");
        }
        Ok(Wish::None)
    }
}
