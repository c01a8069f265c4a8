//! Messages of the simulated engines, in the exact encoding of specific releases of SGLang and vLLM.

mod message;
mod vllm;

use adapter::decode::{Decode, Format};
use bytes::Bytes;
use engines::sglang::wire::Limits;
use trace::MonoNs;

pub(super) use message::{BatchRow, Class, Finish, READ_OFFSET, RequestRow, SglangRelease, encode_batch};
pub(super) use vllm::Stats;

/// The engine that the peers simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::demo) enum DemoEngine {
    Sglang(SglangRelease),
    Vllm,
}

impl DemoEngine {
    /// Version of the simulated engine.
    pub(in crate::demo) fn version(self) -> &'static str {
        match self {
            Self::Sglang(release) => release.version(),
            Self::Vllm => vllm::VERSION,
        }
    }

    /// Format of its messages.
    pub(in crate::demo) fn format(self) -> Format {
        match self {
            Self::Sglang(_) => engines::sglang::FORMAT,
            Self::Vllm => engines::vllm::FORMAT,
        }
    }

    /// Decoder of a peer that receives its messages.
    pub(in crate::demo) fn decoder(self) -> Box<dyn Decode> {
        (self.format().decoder)(Limits::default().message)
    }

    /// Returns whether its deliveries state the number of tokens so far.
    pub(in crate::demo) fn states_counts(self) -> bool {
        matches!(self, Self::Sglang(_))
    }

    /// Parts of the message with a request.
    pub(in crate::demo) fn encode_request_parts(self, row: &RequestRow<'_>) -> Vec<Bytes> {
        match self {
            Self::Sglang(release) => vec![message::encode_request(release, row).into()],
            Self::Vllm => vec![Bytes::from_static(&vllm::ADD), vllm::encode_request(row).into()],
        }
    }

    /// Message of one step. Only vLLM's contains `stats` and the time.
    pub(in crate::demo) fn encode_step(self, rows: &[BatchRow<'_>], stats: Stats) -> Vec<u8> {
        match self {
            Self::Sglang(release) => {
                let is_split = false;
                encode_batch(release, Class::TokenIds, rows, is_split)
            }
            Self::Vllm => vllm::encode_outputs(rows, Some(stats), MonoNs::now().0 as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests;
