//! The supported LLM engines, one module for each. The other crates name no engine: each defines the small trait that it needs, and the
//! engines implement them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
pub mod dynamo;
#[cfg(all(test, target_os = "linux"))]
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

/// Log lines of every engine that logs times of requests, and the logs that have none.
pub const LOGS: &[&dyn trace::import::LogLines] = &[&sglang::Log, &unread::Logs];

/// The engines that discovery recognises.
#[cfg(target_os = "linux")]
pub const DISCOVERED: probe_user::discover::Engines = &[
    probe_user::discover::EngineKind::new(&sglang::discover::Sglang),
    probe_user::discover::EngineKind::new(&dynamo::Dynamo),
    probe_user::discover::EngineKind::new(&vllm::discover::VllmServer),
];
