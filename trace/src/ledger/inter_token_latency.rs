//! Inter-token latency of one request, at the engine's send and at delivery to the client.

use serde::{Deserialize, Serialize};

use crate::stats::{Spread, Tally};

/// Time between chunks with tokens, divided by the tokens of the later chunk and counted once for each token. The engine's own metric
/// `inter_token_latency_seconds` and its benchmark use the same definition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InterTokenLatency {
    pub(crate) sent: Tally,
    pub(crate) delivered: Tally,
}

/// A request's inter-token latency at both ends, by token; quantiles are accurate to 6 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItlEnds {
    /// Between the scheduler's sends.
    pub sent: Option<Spread>,
    /// Between deliveries to the client.
    pub delivered: Option<Spread>,
}

impl InterTokenLatency {
    pub(crate) fn brief(&self) -> ItlEnds {
        ItlEnds {
            sent: Spread::of_tally(&self.sent),
            delivered: Spread::of_tally(&self.delivered),
        }
    }
}
