//! Inter-token latency of one request: as its engine sent, and as its client was given.

use serde::{Deserialize, Serialize};

use crate::stats::Tally;

/// Time between chunks that carry tokens, divided by the tokens of the later one and counted once for each of them: what
/// SGLang's own `inter_token_latency_seconds` and its benchmark call inter-token latency.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pace {
    pub(crate) sent: Tally,
    pub(crate) delivered: Tally,
}

/// Inter-token latency of one request in brief, in nanoseconds; the quantiles are right to 6 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPace {
    /// Tokens behind the first chunk.
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

impl TokenPace {
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

/// A request's pace at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paces {
    /// Between the scheduler's sends.
    pub sent: Option<TokenPace>,
    /// Between deliveries to the client.
    pub delivered: Option<TokenPace>,
}

impl Pace {
    pub(crate) fn brief(&self) -> Paces {
        Paces {
            sent: TokenPace::of(&self.sent),
            delivered: TokenPace::of(&self.delivered),
        }
    }
}
