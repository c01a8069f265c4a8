//! Messages of the simulated engines, in the exact encoding of specific releases of SGLang and vLLM.

mod engine;
mod layout;
mod message;
mod pickle;
mod vllm;

pub(super) use engine::Engine;
pub(super) use layout::Release;
pub(super) use message::{Finish, READ_OFFSET, Row, text_batch, token_batch};
pub(super) use vllm::Stats;

#[cfg(test)]
mod tests;
