//! A request's record in the ledger, and its evidence for the flags.

use outputs::report::{explain_tool_calls, ids, places};
use session::units::{count, duration};
use trace::MonoNs;
use trace::engine::EngineState;
use trace::event::ToolCalls;
use trace::ledger::{FrontendResponse, ItlEnds, Ledger, Losses, Request, Summary};

use super::flags::Flag;
use super::row::{Life, Row};

/// The ledger's record of a request, live or finished.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kept {
    /// First send and first receive, which the ledger keeps longer than the history of chunks.
    pub(crate) first: (Option<MonoNs>, Option<MonoNs>),
    pub(crate) delivered_first: Option<MonoNs>,
    pub(crate) confirmed: Option<Losses>,
    pub(crate) predicted: Option<Losses>,
    /// Inter-token latency at both ends.
    pub(crate) itl: ItlEnds,
    pub(crate) tool_calls: Option<ToolCalls>,
    /// Waits of its response in a frontend.
    pub(crate) frontend: Option<FrontendResponse>,
}

impl Kept {
    pub(super) fn of(ledger: &Ledger, request: Option<&Request>, summary: Option<&Summary>, rid: &str) -> Self {
        let known = Self {
            tool_calls: ledger.tool_calls().find(rid).copied(),
            frontend: ledger.frontend().find(rid).cloned(),
            ..Self::default()
        };
        if let Some(request) = request {
            return Self {
                first: (request.sent_first, request.received_first),
                delivered_first: request.delivered_first,
                confirmed: request.losses().cloned(),
                predicted: request.predicted().cloned(),
                itl: request.itl(),
                ..known
            };
        }
        let lossy = ledger.lossy().rev().find(|lossy| &*lossy.rid == rid);
        Self {
            delivered_first: summary.and_then(|s| s.delivered_first),
            confirmed: lossy.and_then(|l| l.confirmed.as_deref().cloned()),
            predicted: lossy.and_then(|l| l.predicted.as_deref().cloned()),
            itl: summary.map(|s| s.itl).unwrap_or_default(),
            ..known
        }
    }
}

/// Maximum number of lost token ranges, and of ids, named in the evidence.
const RANGES: usize = 6;

/// Names the lost chunks and tokens, if known: ` (chunks 2, 3; places 3, 7-9; ids 13, 14)`.
fn named(losses: Option<&Losses>) -> String {
    let Some(losses) = losses.filter(|losses| !losses.ranges.is_empty()) else {
        return String::new();
    };
    let chunks: Vec<[u32; 2]> = losses.ranges.iter().filter_map(|range| range.chunks).collect();
    let parts = [
        ("chunks", places(chunks.into_iter(), RANGES, losses.unlisted)),
        ("places", places(losses.ranges.iter().map(|range| range.tokens), RANGES, losses.unlisted)),
        ("ids", ids(losses.ranges.iter().flat_map(|range| &range.ids), RANGES)),
    ];
    let listed = parts.iter().filter(|(_, what)| !what.is_empty()).map(|(name, what)| format!("{name} {what}"));
    let listed: Vec<String> = listed.collect();
    format!(" ({})", listed.join("; "))
}

/// Each flag of the request with its evidence.
pub(super) fn evidence(row: &Row, engine: &EngineState, kept: &Kept) -> Vec<(Flag, String)> {
    row.flags.iter().map(|flag| (flag, why(flag, row, engine, kept))).collect()
}

fn why(flag: Flag, row: &Row, engine: &EngineState, kept: &Kept) -> String {
    let of = |n: Option<u32>| count(n.unwrap_or(0).into());
    let (source, receiver) = (engine.facts().source(), engine.facts().receiver());
    let gap = duration(row.gap_ns.unwrap_or(0));
    match flag {
        Flag::Gap if row.life == Life::Waiting => {
            format!("the {source} sent its first token {gap} ago and the {receiver} has not received it")
        }
        Flag::Gap => format!("its first token waited {gap} between {source} and {receiver}"),
        Flag::Dropped => format!(
            "confirmed: {} lost tokens in {} chunks that were dropped while later ones were delivered{}",
            of(row.tokens_lost),
            of(row.dropped),
            named(kept.confirmed.as_ref())
        ),
        Flag::ToolCall => kept.tool_calls.as_ref().map_or_else(|| flag.what().to_owned(), explain_tool_calls),
        Flag::DropPredicted => format!(
            "several of its chunks were received in one wakeup, and {} keeps only the last{}",
            engine.title(),
            named(kept.predicted.as_ref())
        ),
        Flag::Loss => format!(
            "completion_tokens increased by more than the frames list: {} tokens were lost on the wire",
            count(row.wire_missing.into())
        ),
        Flag::Stall => flag.what().to_owned(),
        Flag::Inflated => format!("{}: sums count tokens repeatedly", flag.what()),
        Flag::Aborted => format!("it was aborted by the client, the {source} or an error"),
        Flag::Retracted => format!("the {source} removed it from the batch {} times to free memory", row.retractions),
    }
}

#[cfg(test)]
mod tests {
    use trace::ledger::LostRange;

    use super::*;

    #[test]
    fn lost_tokens_are_listed_by_chunk_position_and_id() {
        let range = |tokens, chunks, ids: &[i64]| LostRange { tokens, chunks: Some(chunks), ids: ids.to_vec() };
        let losses = Losses {
            ranges: vec![range([1, 1], [1, 1], &[17]), range([3, 5], [3, 4], &[8, 9, 10])],
            chunks: 3,
            tokens: 4,
            unlisted: 0,
        };
        assert_eq!(named(Some(&losses)), " (chunks 1, 3-4; places 1, 3-5; ids 17, 8, 9, 10)");
        assert_eq!(named(None), "");
    }
}
