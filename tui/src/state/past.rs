//! What a screen keeps of the past, on its way to one that comes late.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use trace::ThreadId;

use super::Model;
use super::history::{History, HopSample, Sample, ThreadSample};
use super::model::Harm;

/// Hop names and threads whose past is taken over.
const MOST: usize = 4_096;

/// The lines over time.
#[derive(Debug, Serialize)]
pub(crate) struct Past<'a> {
    history: &'a History<Sample>,
    hops: &'a HashMap<String, History<HopSample>>,
    threads: &'a HashMap<ThreadId, History<ThreadSample>>,
    harm_before: Option<Harm>,
}

/// The same, received.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct OwnPast {
    history: History<Sample>,
    hops: HashMap<String, History<HopSample>>,
    threads: HashMap<ThreadId, History<ThreadSample>>,
    harm_before: Option<Harm>,
}

impl Model {
    /// The lines over time as they are.
    pub(crate) fn past(&self) -> Past<'_> {
        Past {
            history: &self.history,
            hops: &self.hop_history,
            threads: &self.thread_history,
            harm_before: self.harm_before,
        }
    }

    /// Goes on from another screen's past.
    pub(crate) fn take_over(&mut self, past: OwnPast) {
        let OwnPast {
            history,
            hops,
            threads,
            harm_before,
        } = past;
        if hops.len() > MOST || threads.len() > MOST {
            return;
        }
        self.history = history.bounded();
        self.hop_history = hops.into_iter().map(|(name, h)| (name, h.bounded())).collect();
        self.thread_history = threads.into_iter().map(|(id, h)| (id, h.bounded())).collect();
        self.harm_before = harm_before;
    }
}
