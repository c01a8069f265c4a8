//! The supported LLM engines, one module for each. The other crates name no engine: each defines the small trait that it needs, and the
//! engines implement them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod dynamo;
#[cfg(test)]
mod fixture;
mod msgpack;
pub mod sglang;
mod undecoded;
mod unread;
pub mod vllm;

/// Facts about every engine for the analysis. The first is assumed where no source names the engine.
pub const FACTS: trace::engine::Engines = trace::engine::Engines(&[&sglang::SgLang, &vllm::Vllm]);

/// Message format of every engine.
pub const FORMATS: &[adapter::decode::Format] = &[sglang::FORMAT, sglang::BATCHES, vllm::FORMAT];

/// Protocols of responses besides HTTP.
pub const PROTOCOLS: &[responses::StreamProtocol] = &[dynamo::RESPONSE_PLANE];

/// Log lines of every engine that logs times of requests, and the logs that have none.
pub const LOGS: &[&dyn logs::LogLines] = &[&sglang::Log, &unread::Logs];

/// The engines that discovery recognises.
pub const DISCOVERED: adapter::discover::Engines = &[
    adapter::discover::EngineKind::new(&sglang::discover::Sglang),
    adapter::discover::EngineKind::new(&dynamo::Dynamo),
    adapter::discover::EngineKind::new(&vllm::discover::VllmServer),
];
