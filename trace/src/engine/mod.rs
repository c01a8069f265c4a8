//! The observed engine: facts about it, and the token behaviour of its release.

#[cfg(test)]
#[path = "../../tests/common/engine.rs"]
pub(crate) mod example;
mod facts;
mod version;

use serde::{Deserialize, Serialize};

pub use facts::{AbsentEngineTimes, Behaviour, Drops, Engines, Facts, OutputModeRule, SentTime, SentTimes, StageNames};
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

/// Known properties of the engine. `None` means unknown, never a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Engine<'a> {
    /// Name of the engine, in lower case.
    pub name: Option<&'a str>,
    /// Release, for example `0.5.9`; a range such as `0.5.12..0.5.13` if only the wire format is known.
    pub version: Option<&'a str>,
    /// Whether the tokenizer passes new or cumulative output to its waiters.
    pub mode: Option<Mode>,
    /// How a waiter processes several queued chunks.
    pub waiter: Option<Waiter>,
    /// Event-loop iterations from waking a waiter until it runs: 3 on CPython up to 3.11, where `asyncio.wait_for` creates a task, and 1
    /// from 3.12 on. More if the consumer yields again. Measured: docs/internals/WIRE.md.
    pub turnaround: Option<u8>,
}

/// Known properties of the engine, completed from its release.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EngineState {
    /// Name of the engine, if a source named it.
    pub name: Option<Box<str>>,
    /// Release or range of releases.
    pub version: Option<Box<str>>,
    /// Output that the tokenizer passes to its waiters.
    pub mode: Option<Mode>,
    /// How a waiter processes several queued chunks.
    pub waiter: Option<Waiter>,
    /// Event-loop iterations from waking a waiter until it runs.
    pub turnaround: Option<u8>,
    #[serde(skip)]
    known: Engines,
    #[serde(skip)]
    facts: &'static dyn Facts,
    /// Copied from `facts`, because it is compared with the id of every chunk.
    #[serde(skip)]
    health_check_prefix: &'static str,
    #[serde(skip)]
    behaviour: Behaviour,
}

impl EngineState {
    /// The known engines.
    pub fn known(&self) -> Engines {
        self.known
    }

    /// Facts about the engine.
    pub fn facts(&self) -> &'static dyn Facts {
        self.facts
    }

    /// Behaviour of the release.
    pub fn behaviour(&self) -> &Behaviour {
        &self.behaviour
    }

    /// Facts about the engine whose responses list token ids on an `OpenAI` endpoint. If no source has named the engine, it must be the
    /// known engine that lists ids, provided that only one does.
    pub(crate) fn facts_for_listed_ids(&self) -> &'static dyn Facts {
        let is_engine_named = self.name.is_some() || self.version.is_some();
        if is_engine_named {
            return self.facts;
        }
        self.known.only_engine_listing_ids().unwrap_or(self.facts)
    }

    /// Name of the engine in sentences, with its release if known.
    pub fn title(&self) -> String {
        let title = self.facts.title();
        self.version.as_deref().map_or_else(|| title.to_owned(), |version| format!("{title} {version}"))
    }

    /// Whether a woken waiter has not run yet after `frames` more frames of the same wakeup. Assumes that it waits for the whole wakeup if
    /// the turnaround is unknown.
    pub(crate) fn is_waiter_pending_after(&self, frames: u32) -> bool {
        let turns = u64::from(frames) * self.facts.turns_per_message();
        self.turnaround.is_none_or(|turnaround| turns < u64::from(turnaround))
    }

    /// Whether a request is one of the server's own health checks, by its id.
    #[inline]
    pub(crate) fn is_health_check(&self, rid: &str) -> bool {
        let prefix = self.health_check_prefix;
        // Comparing the first byte avoids a call for nearly every id.
        let has_first_byte = rid.as_bytes().first() == prefix.as_bytes().first();
        has_first_byte && !prefix.is_empty() && rid.starts_with(prefix)
    }

    /// Sets the known engines, and looks up in them the engine of this name and version. Restores the fields that are not serialized.
    pub(crate) fn set_known_engines_and_resolve_facts(&mut self, known: Engines) {
        self.known = known;
        self.facts = known.facts(self.name.as_deref());
        self.health_check_prefix = self.facts.health_check_prefix();
        self.behaviour = self.version.as_deref().map(|version| self.facts.behaviour(version)).unwrap_or_default();
    }

    /// Adopts what a source announced about the engine. What the source left out is taken from the known behaviour of the release.
    pub(crate) fn apply_announcement(&mut self, announced: &Engine<'_>) {
        let Engine { name, version, mode, waiter, turnaround } = *announced;
        self.name = name.map(Into::into);
        self.version = version.map(Into::into);
        // Called before the other fields are set, because their defaults are those of this release.
        self.set_known_engines_and_resolve_facts(self.known);
        self.mode = mode.or(self.behaviour.fixed_output_mode());
        self.waiter = waiter.or(self.behaviour.waiter);
        self.turnaround = turnaround;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> EngineState {
        let mut state = EngineState::default();
        state.set_known_engines_and_resolve_facts(example::ENGINES);
        state
    }

    #[test]
    fn unset_fields_default_to_the_behaviour_of_the_release() {
        let mut state = example();
        state.apply_announcement(&Engine {
            version: Some(example::DROPS),
            mode: Some(Mode::Incremental),
            ..Engine::default()
        });
        assert_eq!(state.mode, Some(Mode::Incremental));
        assert_eq!(state.waiter, Some(Waiter::KeepsLast));
        state.apply_announcement(&Engine { waiter: Some(Waiter::Merges), ..Engine::default() });
        assert_eq!(state.mode, None);
        assert_eq!(state.waiter, Some(Waiter::Merges));
        assert_eq!(state.version, None);
    }

    #[test]
    fn an_engine_outside_the_registry_has_no_facts() {
        let mut state = example();
        state.apply_announcement(&Engine { name: Some("another"), version: Some(example::DROPS), ..Engine::default() });
        assert_eq!((state.facts().name(), state.waiter), ("unknown", None));
        assert!(!state.is_health_check("") && !state.is_health_check("HEALTH_CHECK_1"));
    }

    #[test]
    fn health_checks_are_recognised_by_their_prefix() {
        let state = example();
        assert!(state.is_health_check("HEALTH_CHECK_1700000000.5"));
        assert!(!state.is_health_check("5b920f43") && !state.is_health_check("H") && !state.is_health_check(""));
    }
}
