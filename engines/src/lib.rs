//! The supported LLM engines, one module for each. Generic crates name no engine: `adapter`, `logs`,
//! `responses` and `trace` define the traits, and the engines implement them. [`ALL`] is the registry.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[macro_use]
mod gather;

pub mod dynamo;
#[cfg(test)]
mod fixture;
mod msgpack;
pub mod sglang;
mod undecoded;
mod unread;
pub mod vllm;

use adapter::decode::Format;
use adapter::discover::EngineKind;
use logs::LogLines;
use responses::StreamProtocol;
use trace::engine::Facts;

/// Everything that tokengap knows of one engine.
#[derive(Clone, Copy)]
pub struct EngineSupport {
    /// Name in reports, metrics and exports.
    pub name: &'static str,
    /// Facts for the analysis; `None` for a program that runs another engine inside.
    pub facts: Option<&'static dyn Facts>,
    /// Message formats.
    pub formats: &'static [Format],
    /// Recognises its processes.
    pub kind: EngineKind,
    /// Protocols of its responses other than HTTP.
    pub protocols: &'static [StreamProtocol],
    /// Its log lines, or the message for a log without readable lines.
    pub log_lines: &'static dyn LogLines,
}

/// Every engine. The first is assumed where no source names the engine; where a process matches several, the first decides.
pub const ALL: [EngineSupport; 3] = [sglang::SUPPORT, dynamo::SUPPORT, vllm::SUPPORT];

/// Facts about every engine for the analysis.
pub const FACTS: trace::engine::Engines =
    trace::engine::Engines(gather!(&'static dyn Facts, engine => engine.facts.as_slice()));

/// Message format of every engine.
pub const FORMATS: &[Format] = gather!(Format, engine => engine.formats);

/// Protocols of responses other than HTTP.
pub const PROTOCOLS: &[StreamProtocol] = gather!(StreamProtocol, engine => engine.protocols);

/// Log lines of every engine.
pub const LOGS: &[&dyn LogLines] = gather!(&'static dyn LogLines, engine => std::slice::from_ref(&engine.log_lines));

/// The engines that discovery recognises.
pub const DISCOVERED: adapter::discover::Engines = gather!(EngineKind, engine => std::slice::from_ref(&engine.kind));

/// The engine with this name.
pub fn find(name: &str) -> Option<&'static EngineSupport> {
    const ENGINES: &[EngineSupport] = &ALL;
    ENGINES.iter().find(|engine| engine.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_an_engine_has_its_name() {
        for engine in &ALL {
            let formats = engine.formats.iter().map(|format| format.engine);
            let facts = engine.facts.iter().map(|facts| facts.name());
            // A log without readable lines names no engine.
            let log = Some(engine.log_lines.engine_name()).filter(|name| !name.is_empty());
            for name in formats.chain(facts).chain([engine.kind.name()]).chain(log) {
                assert_eq!(name, engine.name);
            }
        }
        assert_eq!((FACTS.0.len(), DISCOVERED.len(), LOGS.len()), (2, 3, 3));
    }
}
