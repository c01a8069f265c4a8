//! Inter-token latency of one request, at the engine's send and at delivery to the client.

use serde::{Deserialize, Serialize};

use crate::stats::Tally;

/// Time between chunks with tokens, divided by the tokens of the later chunk and counted once for each token. The engine's own metric
/// `inter_token_latency_seconds` and its benchmark use the same definition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InterTokenLatency {
    pub(crate) sent: Tally,
    pub(crate) delivered: Tally,
}

/// Summary of one request's inter-token latency, in nanoseconds. Quantiles are accurate to 6 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItlSummary {
    /// Tokens after the first chunk.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

impl ItlSummary {
    /// Summary of a tally; `None` if it is empty.
    pub(crate) fn of(tally: &Tally) -> Option<Self> {
        Some(Self {
            count: tally.count(),
            p50: tally.quantile(0.5)?,
            p90: tally.quantile(0.9)?,
            p99: tally.quantile(0.99)?,
            max: tally.max()?,
        })
    }
}

/// A request's inter-token latency at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItlEnds {
    /// Between the scheduler's sends.
    pub sent: Option<ItlSummary>,
    /// Between deliveries to the client.
    pub delivered: Option<ItlSummary>,
}

impl InterTokenLatency {
    pub(crate) fn brief(&self) -> ItlEnds {
        ItlEnds {
            sent: ItlSummary::of(&self.sent),
            delivered: ItlSummary::of(&self.delivered),
        }
    }
}
