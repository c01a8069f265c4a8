//! What looks on while a source is driven.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use trace::report::Report;
use trace::{Analysis, Event, MonoNs};

use crate::replay::{Play, Position};
use crate::sink::Writing;

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
    pub(crate) source: &'a str,
    pub(crate) stage: Stage,
    /// Where a recording is played; `None` on live sources.
    pub(crate) position: Option<&'a Position>,
    /// The recording that is played.
    pub(crate) file: Option<&'a Path>,
    /// One instant on both clocks of the watched machine; `None` where its wall clock is not known.
    pub(crate) wall: Option<(MonoNs, u64)>,
    /// The newest word to the reader, and its number.
    pub(crate) notice: (u64, &'a str),
    /// What is being written of the run.
    pub(crate) writing: &'a dyn Fn() -> Writing,
    /// What could not be watched, or was given up.
    pub(crate) degraded: &'a dyn Fn() -> Vec<String>,
    /// What an ending source still waits for, in words.
    pub(crate) under_way: &'a dyn Fn() -> Option<String>,
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
    /// To begin a recording, or end the one that is written.
    Record,
    /// To have the hindsight ring written out.
    Dump,
    /// To have a recording played otherwise.
    Play(Play),
}

/// Something that looks on.
pub(crate) trait Observer {
    /// An event that the analysis has entered.
    fn event(&mut self, _: &Event<'_>) {}

    /// Time that the analysis has let pass.
    fn tick(&mut self, _: &Analysis) {}

    /// The run begins again from its start: what was seen is to come.
    fn anew(&mut self) {}

    /// Between two turns of the loop, every few milliseconds. Must be brief: the source waits meanwhile.
    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish>;

    /// The source has nothing: sleeps so long, or until there is something to do in the next turn.
    fn rest(&mut self, time: Duration) {
        thread::sleep(time);
    }
}

/// Looks at nothing.
pub(crate) struct Nobody;

impl Observer for Nobody {
    fn turn(&mut self, _: &Run<'_>) -> anyhow::Result<Wish> {
        Ok(Wish::None)
    }
}

/// Says on stderr what a run without a screen still waits for at its end, once a second.
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
