//! Writes the ledger's requests into rows of the table.

use trace::detect::thresholds::{GAP_WARNING_NS, STALLED_NS};
use trace::event::Finish;
use trace::ledger::{Ledger, Request, RequestNumbers, RequestSummary, UnansweredRequest};

use super::flags::{Flag, FlagSet};
use super::request_row::{RequestRow, RequestState};

/// Writes requests into rows of the table.
pub(super) struct RowWriter<'a> {
    ledger: &'a Ledger,
    observes_gaps: bool,
    predicts_drops: bool,
}

impl<'a> RowWriter<'a> {
    pub(super) fn new(ledger: &'a Ledger) -> Self {
        Self { ledger, observes_gaps: ledger.observes_gaps(), predicts_drops: ledger.predicts_drops() }
    }

    /// Writes a request that the ledger has not closed yet, as it is at this moment.
    pub(super) fn write_live_request(&self, request: &Request, row: &mut RequestRow) {
        let now = self.ledger.now();
        // Set if its first token was sent and has not been received.
        let waiting_since = if self.observes_gaps { request.first_token_waiting_since() } else { None };
        let is_waiting = waiting_since.is_some();
        let mut numbers = self.ledger.numbers(request);
        // The end counts once it was received, as it does for the number of live requests.
        let has_ended = numbers.finish.is_some() && !request.is_end_in_transit();
        let state = if numbers.finish == Some(Finish::Abort) {
            RequestState::Aborted
        } else if is_waiting {
            // The scheduler can finish a request whose first token has not been received. That wait matters most.
            RequestState::Waiting
        } else if has_ended {
            RequestState::Finished
        } else {
            RequestState::Live
        };
        let is_in_flight = !has_ended || is_waiting;
        if is_in_flight {
            // Filters by time find a request in flight at this moment, too.
            numbers.last_at = now;
        }
        // Until the first token is received, the gap is the wait so far.
        numbers.gap_ns = numbers.gap_ns.or(waiting_since.map(|at| now.since(at)));
        let is_stalled = self.ledger.is_stalled(request, now, STALLED_NS);
        self.write_row(row, &request.rid, state, &numbers, is_stalled);
    }

    /// Writes a request for which the scheduler sent nothing, although it answered later ones.
    pub(super) fn write_unanswered(&self, request: &UnansweredRequest<'_>, row: &mut RequestRow) {
        let is_stalled = true;
        self.write_row(row, request.rid, RequestState::Waiting, &request.numbers(self.ledger.now()), is_stalled);
    }

    /// Writes a request that is over, from what the ledger keeps of it.
    pub(super) fn write_finished_request(&self, summary: &RequestSummary, row: &mut RequestRow) {
        let state = match summary.finish {
            Some(Finish::Abort) => RequestState::Aborted,
            Some(_) => RequestState::Finished,
            // Its end was not observed.
            None => RequestState::Orphaned,
        };
        let is_stalled = false;
        self.write_row(row, &summary.rid, state, &summary.numbers, is_stalled);
    }

    /// Sets every field of the row.
    fn write_row(
        &self,
        row: &mut RequestRow,
        rid: &str,
        state: RequestState,
        numbers: &RequestNumbers,
        is_stalled: bool,
    ) {
        // Rows are reused, so that a refresh allocates nothing: no field may keep its old value.
        row.rid.clear();
        row.rid.push_str(rid);
        row.state = state;
        row.numbers = *numbers;
        row.flags = self.flags_of_numbers(state, numbers, is_stalled);
    }

    /// Flags of the problems that these numbers show.
    fn flags_of_numbers(&self, state: RequestState, numbers: &RequestNumbers, is_stalled: bool) -> FlagSet {
        let mut flags = FlagSet::default();
        flags.set_if(Flag::Loss, numbers.wire_missing > 0);
        flags.set_if(Flag::Dropped, numbers.dropped.is_some_and(|chunks| chunks > 0));
        flags.set_if(Flag::ToolCall, numbers.damaged_call);
        flags.set_if(Flag::Moved, numbers.changed_receiver);
        // `bursts`: a wakeup received several of its chunks.
        flags.set_if(Flag::DropPredicted, self.predicts_drops && numbers.bursts);
        flags.set_if(Flag::Stall, is_stalled);
        flags.set_if(Flag::Gap, numbers.gap_ns.is_some_and(|gap_ns| gap_ns >= GAP_WARNING_NS));
        flags.set_if(Flag::Inflated, numbers.inflated);
        flags.set_if(Flag::Abandoned, numbers.is_abandoned);
        flags.set_if(Flag::Aborted, state == RequestState::Aborted);
        flags.set_if(Flag::Retracted, numbers.retractions > 0);
        flags
    }
}
