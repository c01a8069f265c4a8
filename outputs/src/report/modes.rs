//! Output modes: new tokens only or all tokens so far, with the cost of each mode on every hop.

use serde::{Deserialize, Serialize};

use trace::engine::Mode;
use trace::ledger::{IdCounts, Ledger, ModeCounts};

/// Bytes per id for estimates. pickle and msgpack write ids above 65,535 in 5 bytes and smaller ones in 3; arrays of later releases take 8;
/// JSON takes 6 or 7.
const BYTES_PER_ID: u64 = 5;

/// Output modes and their cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Modes {
    /// Mode observed in deliveries; `null` if none is conclusive or they contradict each other.
    pub delivered: Option<Mode>,
    /// Hops, in path order.
    pub hops: Vec<ModeLine>,
    /// Deliveries to clients, ids only; `null` if not observed.
    pub client: Option<ModeLine>,
    /// Bytes per id assumed in every estimate.
    pub bytes_per_id: u64,
}

/// Token ids on one hop or at the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModeLine {
    /// Name of the hop, or `client`.
    pub name: String,
    /// Bytes of its frames; `null` for clients, whose bytes are not counted.
    pub bytes: Option<u64>,
    /// Bytes per token.
    pub bytes_per_token: Option<f64>,
    /// Tokens that crossed, each counted once. Incremental mode would list this many ids.
    pub tokens: u64,
    /// Ids listed.
    pub ids: u64,
    /// Ids listed again.
    pub ids_repeated: u64,
    /// Ids that cumulative mode would list: the sum of the chunks' counts; `null` if a chunk's count is unknown, because neither it nor all
    /// before it were observed.
    pub ids_if_cumulative: Option<u64>,
    /// Bytes of the repeated ids. An estimate.
    pub bytes_repeated_estimate: u64,
    /// Bytes in incremental mode. An estimate.
    pub bytes_if_incremental_estimate: Option<u64>,
    /// Bytes in cumulative mode. An estimate.
    pub bytes_if_cumulative_estimate: Option<u64>,
}

impl ModeLine {
    /// Token ids and bytes on the hop with this name: the observed ones, and estimates for each output mode. In incremental mode, a chunk
    /// lists only new ids. In cumulative mode, it lists all ids of its request so far. `None` if no ids crossed the hop.
    fn with_estimates_of_both_modes(hop_name: &str, bytes: Option<u64>, counts: IdCounts) -> Option<Self> {
        let IdCounts { tokens, listed, .. } = counts;
        if listed == 0 || tokens == 0 {
            return None;
        }
        let repeated = listed.saturating_sub(tokens);
        // In cumulative mode, each chunk lists as many ids as its request has tokens so far. If that is unknown of a chunk, so is the sum.
        let is_every_chunk_counted = counts.listed_without_count == 0;
        let ids_if_cumulative = is_every_chunk_counted.then_some(counts.cumulative);
        let bytes_if_cumulative = match (bytes, ids_if_cumulative) {
            (Some(bytes), Some(ids)) => Some(estimate_bytes_with_other_ids(bytes, listed, ids)),
            _ => None,
        };
        Some(Self {
            name: hop_name.to_owned(),
            bytes,
            bytes_per_token: bytes.map(|bytes| bytes as f64 / tokens as f64),
            tokens,
            ids: listed,
            ids_repeated: repeated,
            ids_if_cumulative,
            bytes_repeated_estimate: repeated * BYTES_PER_ID,
            bytes_if_incremental_estimate: bytes.map(|bytes| estimate_bytes_with_other_ids(bytes, listed, tokens)),
            bytes_if_cumulative_estimate: bytes_if_cumulative,
        })
    }
}

/// Estimated bytes of frames with `other_ids` ids instead of the `listed_ids` ones.
fn estimate_bytes_with_other_ids(actual_bytes: u64, listed_ids: u64, other_ids: u64) -> u64 {
    let added = other_ids.saturating_sub(listed_ids);
    let removed = listed_ids.saturating_sub(other_ids);
    // Ids may take less than the assumed size, so the repeated ones may seem larger than the frames.
    (actual_bytes + added * BYTES_PER_ID).saturating_sub(removed * BYTES_PER_ID)
}

/// Mode observed in deliveries; `None` if they are inconclusive or contradictory.
pub(super) fn output_mode_of_deliveries(ledger: &Ledger) -> Option<Mode> {
    let ModeCounts { incremental, cumulative } = ledger.totals().deliveries;
    match (incremental > 0, cumulative > 0) {
        (true, false) => Some(Mode::Incremental),
        (false, true) => Some(Mode::Cumulative),
        (true, true) | (false, false) => None,
    }
}

/// Ids and bytes of each hop and of deliveries, and the observed mode.
pub(super) fn mode_report(ledger: &Ledger) -> Modes {
    let hops = ledger.groups().iter().enumerate().filter_map(|(index, group)| {
        let bytes = ledger.hops_of_group(index).map(|hop| hop.counts.bytes).sum();
        ModeLine::with_estimates_of_both_modes(&group.name, Some(bytes), group.ids)
    });
    let client = if ledger.observes_deliveries() {
        // The bytes of deliveries are not counted.
        ModeLine::with_estimates_of_both_modes("client", None, ledger.totals().delivered_ids)
    } else {
        None
    };
    Modes { delivered: output_mode_of_deliveries(ledger), hops: hops.collect(), client, bytes_per_id: BYTES_PER_ID }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_modes_bytes_are_estimated_from_ids() {
        // Ten tokens, one per chunk.
        let counts = |listed| IdCounts { tokens: 10, listed, cumulative: 55, listed_without_count: 0 };
        let new = ModeLine::with_estimates_of_both_modes("a->b", Some(1_000), counts(10)).unwrap();
        assert_eq!((new.ids_repeated, new.bytes_per_token), (0, Some(100.0)));
        assert_eq!(new.bytes_if_cumulative_estimate, Some(1_000 + 45 * 5));
        let all = ModeLine::with_estimates_of_both_modes("a->b", Some(1_225), counts(55)).unwrap();
        assert_eq!((all.ids_repeated, all.bytes_repeated_estimate), (45, 225));
        assert_eq!(all.bytes_if_incremental_estimate, Some(1_000));
        assert_eq!(ModeLine::with_estimates_of_both_modes("a->b", Some(9), IdCounts::default()), None);
        let joined_late = IdCounts { listed_without_count: 1, ..counts(10) };
        let unknown = ModeLine::with_estimates_of_both_modes("a->b", Some(1_000), joined_late).unwrap();
        assert_eq!((unknown.ids_if_cumulative, unknown.bytes_if_cumulative_estimate), (None, None));
    }
}
