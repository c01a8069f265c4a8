//! Time series in the form that is sent to screens that join a run later.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use session::sink::{self, Image, ImageError};
use trace::{Analysis, ThreadId};

use super::Model;
use super::history::{History, HopSample, Sample, ThreadSample};
use super::model::MergedAndLost;

/// Maximum number of hop names and of threads accepted from the sender.
const MAX_NAMES: usize = 4_096;

/// Time series to send.
#[derive(Debug, Serialize)]
struct SentHistory<'a> {
    history: &'a History<Sample>,
    hops: &'a HashMap<String, History<HopSample>>,
    threads: &'a HashMap<ThreadId, History<ThreadSample>>,
    harm_before: Option<MergedAndLost>,
}

/// Received time series.
#[derive(Debug, Default, Deserialize)]
pub struct ReceivedHistory {
    history: History<Sample>,
    hops: HashMap<String, History<HopSample>>,
    threads: HashMap<ThreadId, History<ThreadSample>>,
    harm_before: Option<MergedAndLost>,
}

impl sink::Past for Model {
    fn remember(&mut self, analysis: &Analysis) {
        self.remember(analysis);
    }

    fn image(&self) -> Result<Image, ImageError> {
        Image::of(&SentHistory {
            history: &self.history,
            hops: &self.hop_history,
            threads: &self.thread_history,
            harm_before: self.harm_before,
        })
    }
}

impl Model {
    /// Replaces the time series with those of another screen. Ignores input above the limits.
    pub(crate) fn take_over(&mut self, past: ReceivedHistory) {
        let ReceivedHistory { history, hops, threads, harm_before } = past;
        if hops.len() > MAX_NAMES || threads.len() > MAX_NAMES {
            return;
        }
        self.history = history.bounded();
        self.hop_history = hops.into_iter().map(|(name, h)| (name, h.bounded())).collect();
        self.thread_history = threads.into_iter().map(|(id, h)| (id, h.bounded())).collect();
        self.harm_before = harm_before;
    }
}
