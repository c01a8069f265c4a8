//! Token behaviour of the engine, by release.

mod releases;
mod state;
mod version;

use serde::{Deserialize, Serialize};

pub use releases::{Behaviour, DROPS_FIXED_IN, Handout};
pub use state::EngineState;
pub use version::{BadVersion, Version, VersionRange};

/// Output that the tokenizer passes to a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// New tokens only: a dropped chunk is lost permanently.
    Incremental,
    /// All tokens so far: a later chunk replaces an earlier one.
    Cumulative,
}

/// What a waiter (`_wait_one_response`) does when several chunks are queued for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiter {
    /// Keeps `out_list[-1]` only: 0.4.0 to 0.5.9.
    KeepsLast,
    /// Yields every chunk: 0.5.10rc0.
    YieldsAll,
    /// Merges them into one: 0.5.10 and later.
    Merges,
}
