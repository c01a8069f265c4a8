//! The feed for other tokengap processes that watch the run.

use anyhow::Context;
use feed::{Image, ImageError, PublishOptions, Published, Publisher, RunState};
use trace::record::Header;
use trace::report::ReportInput;
use trace::{Analysis, Event, MonoNs};

use crate::units::count;

/// Time series of a run, for watchers that join late.
pub trait Past {
    /// Adds the current values.
    fn remember(&mut self, analysis: &Analysis);

    /// The time series in the form in which they are sent.
    fn image(&self) -> Result<Image, ImageError>;
}

/// A published run.
pub(super) struct Feed {
    publisher: Publisher,
    /// Time series for watchers that join late.
    past: Box<dyn Past>,
}

/// State of the feed on the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publishing {
    /// Address it listens on.
    pub address: String,
    /// Connected watchers.
    pub watchers: u64,
    /// Messages dropped for slow watchers.
    pub dropped: u64,
    /// Refused connections.
    pub refused: u64,
}

impl Feed {
    /// Starts to listen.
    pub(super) fn open(options: PublishOptions, header: &Header, past: Box<dyn Past>) -> anyhow::Result<Self> {
        let publisher = Publisher::start(options, header.clone()).context("nothing is published")?;
        Ok(Self { publisher, past })
    }

    pub(super) fn event(&mut self, event: &Event<'_>) {
        self.publisher.event(event);
    }

    pub(super) fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        let Self { publisher, past } = self;
        past.remember(analysis);
        publisher.tick(now, &RunState { analysis, input, history: &|| past.image() });
    }

    pub(super) fn trouble(&mut self) -> Option<String> {
        self.publisher.trouble()
    }

    pub(super) fn publishing(&self) -> Publishing {
        let Published { watchers, dropped, refused, .. } = self.publisher.status();
        Publishing { address: self.publisher.address().to_string(), watchers, dropped, refused }
    }

    /// Number of refused connections, for the report.
    pub(super) fn refused(&self) -> Option<String> {
        let refused = self.publisher.status().refused;
        (refused > 0).then(|| {
            format!(
                "feed: {} connections were refused: too many watchers, wrong key, wrong protocol, or too slow; check who can reach the address of --publish",
                count(refused)
            )
        })
    }

    pub(super) fn finish(self, analysis: &Analysis, input: &dyn Fn() -> ReportInput) -> Option<String> {
        let Self { publisher, past } = self;
        let Published { dropped, .. } = publisher.finish(&RunState { analysis, input, history: &|| past.image() });
        let messages = count(dropped);
        (dropped > 0).then(|| format!("feed: {messages} messages were dropped for slow watchers"))
    }
}
