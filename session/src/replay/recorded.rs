//! Information in a recording about its run.

use std::path::Path;

use serde_json::Value;
use trace::MonoNs;
use trace::record::{Closing, Recording};

use crate::about::About;

/// A recorded run.
pub struct Recorded<'a> {
    recording: &'a Recording,
    closing: Closing,
}

impl<'a> Recorded<'a> {
    /// The run in `recording`.
    pub fn of(recording: &'a Recording) -> Self {
        Self {
            recording,
            closing: recording.closing().cloned().unwrap_or_default(),
        }
    }

    /// Wall clock at `at`.
    pub fn wall_ns(&self, at: MonoNs) -> u64 {
        self.recording.wall_ns(at)
    }
}

impl About for Recorded<'_> {
    fn kind(&self) -> &str {
        &self.recording.header().source
    }

    fn degraded(&self) -> Vec<String> {
        let words = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let missing = self.recording.missing().map(|missing| format!("recording: {missing}"));
        self.closing.degraded.iter().map(words).chain(missing).collect()
    }

    fn file(&self) -> Option<&Path> {
        Some(self.recording.path())
    }

    fn closing(&self) -> Option<&Closing> {
        Some(&self.closing)
    }

    fn wall(&self) -> Option<(MonoNs, u64)> {
        let anchor = self.closing.wall.unwrap_or(self.recording.header().anchor);
        Some((anchor.mono, anchor.wall_ns))
    }
}
