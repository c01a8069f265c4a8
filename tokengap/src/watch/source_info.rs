//! Information that a source sends about itself, in addition to its events.

use serde_json::Value;
use trace::MonoNs;
use trace::record::{Anchor, Closing};

use session::About;

/// A run observed by another process.
#[derive(Debug, Default)]
pub(super) struct SourceInfo {
    pub(super) kind: String,
    pub(super) closing: Closing,
    /// Both clocks of the source at its last message.
    pub(super) anchor: Option<Anchor>,
    /// Problems of the connection, and missed records.
    pub(super) own: Vec<String>,
}

impl About for SourceInfo {
    fn kind(&self) -> &str {
        if self.kind.is_empty() { "watch" } else { &self.kind }
    }

    fn degraded(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let from_source = self.closing.degraded.iter().map(text);
        self.own.iter().cloned().chain(from_source).collect()
    }

    fn closing(&self) -> Option<&Closing> {
        Some(&self.closing)
    }

    fn wall(&self) -> Option<(MonoNs, u64)> {
        let anchor = self.closing.wall.or(self.anchor)?;
        Some((anchor.mono, anchor.wall_ns))
    }
}
