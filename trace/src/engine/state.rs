//! Known properties of the engine: reported by the source, completed from its release.

use serde::{Deserialize, Serialize};

use super::{Behaviour, Mode, Waiter};
use crate::event;

/// Known properties of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Kept")]
pub struct EngineState {
    /// Release or range of releases.
    pub version: Option<Box<str>>,
    /// Output that the tokenizer passes to its waiters.
    pub mode: Option<Mode>,
    /// How a waiter processes several queued chunks.
    pub waiter: Option<Waiter>,
    /// Event-loop iterations from waking a waiter until it runs.
    pub turnaround: Option<u8>,
    /// Behaviour of the release.
    #[serde(skip)]
    pub behaviour: Behaviour,
}

/// Serialized form. The release's behaviour is derived from the version.
#[derive(Deserialize)]
struct Kept {
    version: Option<Box<str>>,
    mode: Option<Mode>,
    waiter: Option<Waiter>,
    turnaround: Option<u8>,
}

impl From<Kept> for EngineState {
    fn from(kept: Kept) -> Self {
        Self {
            behaviour: kept.version.as_deref().map(Behaviour::of).unwrap_or_default(),
            version: kept.version,
            mode: kept.mode,
            waiter: kept.waiter,
            turnaround: kept.turnaround,
        }
    }
}

/// Event-loop iterations from one `await recv_pyobj()` to the next while messages are queued. Measured: docs/internals/WIRE.md.
const TURNS_A_MESSAGE: u64 = 2;

impl EngineState {
    /// Whether a woken waiter has not run yet when the frame `apart` positions later in the same wakeup is received. With an unknown
    /// turnaround, assumes that it waits for the whole wakeup.
    pub fn still_waits(&self, apart: u32) -> bool {
        let turns = u64::from(apart) * TURNS_A_MESSAGE;
        self.turnaround.is_none_or(|turnaround| turns < u64::from(turnaround))
    }

    pub(crate) fn set(&mut self, said: &event::Engine<'_>) {
        let behaviour = said.version.map(Behaviour::of).unwrap_or_default();
        *self = Self {
            version: said.version.map(Into::into),
            mode: said.mode.or(behaviour.mode()),
            waiter: said.waiter.or(behaviour.waiter),
            turnaround: said.turnaround,
            behaviour,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_completes_what_the_source_leaves_open() {
        let mut state = EngineState::default();
        state.set(&event::Engine {
            version: Some("0.5.9"),
            mode: Some(Mode::Incremental),
            waiter: None,
            turnaround: None,
        });
        assert_eq!(
            (state.mode, state.waiter),
            (Some(Mode::Incremental), Some(Waiter::KeepsLast))
        );
        state.set(&event::Engine {
            version: None,
            mode: None,
            waiter: Some(Waiter::Merges),
            turnaround: None,
        });
        assert_eq!(
            (state.mode, state.waiter, state.version),
            (None, Some(Waiter::Merges), None)
        );
    }
}
