//! A request's record in the ledger, and its evidence for the flags.

use outputs::report::{explain_tool_calls, format_position_ranges, list_ids};
use session::units::{format_count, format_duration};
use trace::MonoNs;
use trace::engine::EngineState;
use trace::event::ToolCalls;
use trace::ledger::{FrontendResponse, ItlEnds, Ledger, Losses, Request, RequestSummary};

use super::flags::Flag;
use super::receiver_changes::{ReceiverChange, describe_receiver_changes};
use super::request_row::{RequestRow, RequestState};

/// The ledger's record of a request, live or finished.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RequestFacts {
    pub(crate) confirmed_losses: Option<Losses>,
    pub(crate) predicted_losses: Option<Losses>,
    /// Inter-token latency at both ends.
    pub(crate) itl: ItlEnds,
    pub(crate) tool_calls: Option<ToolCalls>,
    /// Waits of its response in a frontend.
    pub(crate) frontend: Option<FrontendResponse>,
    /// As far as its chunks are kept.
    pub(crate) receiver_changes: Vec<ReceiverChange>,
}

impl RequestFacts {
    /// Collects the facts from the record of the live request. Without one, collects them from the summary of the finished request, and
    /// from the ledger's list of requests with losses.
    pub(super) fn from_ledger(
        ledger: &Ledger,
        live_request: Option<&Request>,
        finished_summary: Option<&RequestSummary>,
        rid: &str,
    ) -> Self {
        // These are kept by rid, whether the request is live or not.
        let common = Self {
            tool_calls: ledger.tool_calls().find_response(rid).copied(),
            frontend: ledger.frontend().find_response(rid).cloned(),
            ..Self::default()
        };
        if let Some(request) = live_request {
            return Self {
                confirmed_losses: request.losses().cloned(),
                predicted_losses: request.predicted().cloned(),
                itl: request.itl(),
                ..common
            };
        }
        // If the rid was reused, the newest request counts.
        let lossy = ledger.lossy_requests().rev().find(|lossy| &*lossy.rid == rid);
        Self {
            confirmed_losses: lossy.and_then(|lossy| lossy.confirmed.as_deref().cloned()),
            predicted_losses: lossy.and_then(|lossy| lossy.predicted.as_deref().cloned()),
            itl: finished_summary.map(|summary| summary.itl).unwrap_or_default(),
            ..common
        }
    }
}

/// Maximum number of lost token ranges, and of ids, named in the evidence.
const MAX_RANGES: usize = 6;

/// Times of the first and the last loss after the request's first chunk; empty if unknown.
fn format_loss_times(losses: Option<&Losses>, first_chunk_at: MonoNs) -> String {
    let Some(Losses { since: Some(first_at), last_at: Some(last_at), .. }) = losses else {
        return String::new();
    };
    let first = format_duration(first_at.since(first_chunk_at));
    let last = format_duration(last_at.since(first_chunk_at));
    format!(", from {first} to {last} after its first chunk")
}

/// Lists the lost chunks and tokens: ` (chunks 2, 3; places 3, 7-9; ids 13, 14)`. The places are those of the lost tokens in the response,
/// and the ids are theirs. A list that is not known is left out. Empty without known losses.
fn list_lost_chunks_and_tokens(losses: Option<&Losses>) -> String {
    let Some(losses) = losses.filter(|losses| !losses.ranges.is_empty()) else {
        return String::new();
    };
    // A range of tokens may have unknown chunks.
    let chunks: Vec<[u32; 2]> = losses.ranges.iter().filter_map(|range| range.chunks).collect();
    let places = losses.ranges.iter().map(|range| range.tokens);
    let ids = losses.ranges.iter().flat_map(|range| &range.ids);
    // Losses beyond the limit of the ledger make a list end in an ellipsis.
    let unlisted = losses.unlisted;
    let lists = [
        ("chunks", format_position_ranges(chunks.into_iter(), MAX_RANGES, unlisted)),
        ("places", format_position_ranges(places, MAX_RANGES, unlisted)),
        ("ids", list_ids(ids, MAX_RANGES)),
    ];
    let known = lists.iter().filter(|(_, list)| !list.is_empty());
    let named: Vec<String> = known.map(|(name, list)| format!("{name} {list}")).collect();
    format!(" ({})", named.join("; "))
}

/// Why a request has a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlagEvidence {
    pub(crate) flag: Flag,
    pub(crate) text: String,
}

/// Each flag of the request with its evidence.
pub(super) fn evidence_of_flags(row: &RequestRow, engine: &EngineState, facts: &RequestFacts) -> Vec<FlagEvidence> {
    row.flags.iter().map(|flag| FlagEvidence { flag, text: explain_flag(flag, row, engine, facts) }).collect()
}

/// Explains why the request has the flag.
fn explain_flag(flag: Flag, row: &RequestRow, engine: &EngineState, facts: &RequestFacts) -> String {
    let source = engine.facts().source();
    let receiver = engine.facts().receiver();
    let gap = format_duration(row.gap_ns.unwrap_or(0));
    match flag {
        Flag::Gap if row.state == RequestState::Waiting => {
            format!("the {source} sent its first token {gap} ago and the {receiver} has not received it")
        }
        Flag::Gap => format!("its first token waited {gap} between {source} and {receiver}"),
        Flag::Dropped => format!(
            "confirmed: {} lost tokens in {} chunks that were dropped while later ones were delivered{}{}",
            format_count(row.tokens_lost.unwrap_or(0).into()),
            format_count(row.dropped.unwrap_or(0).into()),
            format_loss_times(facts.confirmed_losses.as_ref(), row.first_at),
            list_lost_chunks_and_tokens(facts.confirmed_losses.as_ref())
        ),
        Flag::ToolCall => match &facts.tool_calls {
            Some(calls) => explain_tool_calls(calls),
            None => flag.explanation().to_owned(),
        },
        Flag::DropPredicted => format!(
            "several of its chunks were received in one wakeup, and {} keeps only the last{}",
            engine.title(),
            list_lost_chunks_and_tokens(facts.predicted_losses.as_ref())
        ),
        Flag::Loss => format!(
            "completion_tokens increased by more than the frames list: {} tokens were lost on the wire",
            format_count(row.wire_missing.into())
        ),
        Flag::Stall if row.chunks_sent == 0 => {
            format!("the {source} has sent nothing for it, although it answered later requests")
        }
        Flag::Stall => flag.explanation().to_owned(),
        Flag::Moved => match describe_receiver_changes(&facts.receiver_changes) {
            Some(changes) => format!("{changes}: {}", flag.explanation()),
            None => format!("{}; from which to which is not kept any more", flag.explanation()),
        },
        Flag::Inflated => format!("{}: sums count tokens repeatedly", flag.explanation()),
        Flag::Abandoned => format!("the {source} continued it after its client disconnected or it was aborted"),
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
            ..Losses::default()
        };
        assert_eq!(list_lost_chunks_and_tokens(Some(&losses)), " (chunks 1, 3-4; places 1, 3-5; ids 17, 8, 9, 10)");
        assert_eq!(list_lost_chunks_and_tokens(None), "");
    }
}
