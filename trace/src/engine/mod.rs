//! The observed engine: facts about it, and the token behaviour of its release.

#[cfg(test)]
#[path = "../../tests/common/engine.rs"]
pub(crate) mod example;
mod facts;
mod state;
mod version;

use serde::{Deserialize, Serialize};

pub use facts::{Behaviour, Drops, Engines, Facts, OutputModeRule, StageNames};
pub use state::{Engine, EngineState};
pub use version::{BadVersion, Version, VersionRange};

use crate::words::names;

/// Output that the tokenizer passes to a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// New tokens only: a dropped chunk is lost permanently.
    Incremental,
    /// All tokens so far: a later chunk replaces an earlier one.
    Cumulative,
}

/// How a waiter processes several chunks queued for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiter {
    /// Keeps the last chunk only.
    KeepsLast,
    /// Yields every chunk.
    YieldsAll,
    /// Merges them into one.
    Merges,
}

names! {
    Mode { Incremental = "incremental", Cumulative = "cumulative" }
    Waiter { KeepsLast = "keeps-last", YieldsAll = "yields-all", Merges = "merges" }
}
