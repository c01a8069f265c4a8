//! Rows of the request table, filled from requests and their summaries.

use trace::detect::thresholds::{GAP_WARNING_NS, STALLED_NS};
use trace::event::Finish;
use trace::ledger::{Ledger, Numbers, Request, Summary};
use trace::{Analysis, MonoNs};

use super::flags::{Flag, Flags};
use super::row::{Life, Row};

pub(super) fn new_row(write: impl FnOnce(&mut Row)) -> Row {
    let mut row = Row::default();
    write(&mut row);
    row
}

/// Values shared by all rows of one refresh.
pub(super) struct RowContext {
    now: MonoNs,
    observes_gaps: bool,
    keeps_last: bool,
}

impl RowContext {
    pub(super) fn new(analysis: &Analysis) -> Self {
        let ledger = analysis.ledger();
        Self { now: ledger.now(), observes_gaps: ledger.observes_gaps(), keeps_last: ledger.predicts_drops() }
    }

    pub(super) fn request(&self, from: &Request, ledger: &Ledger, row: &mut Row) {
        // The scheduler can finish a request whose first token has not been received. That wait matters most.
        let waiting_since = from.waiting_since().filter(|_| self.observes_gaps);
        let mut numbers = ledger.numbers(from);
        let life = match numbers.finish {
            Some(Finish::Abort) => Life::Aborted,
            _ if waiting_since.is_some() => Life::Waiting,
            Some(_) => Life::Done,
            None => Life::Live,
        };
        if numbers.finish.is_none() || waiting_since.is_some() {
            numbers.last_at = self.now;
        }
        numbers.gap_ns = numbers.gap_ns.or(waiting_since.map(|at| self.now.since(at)));
        let stalled = ledger.is_stalled(from, self.now, STALLED_NS);
        self.write(row, &from.rid, life, numbers, stalled);
    }

    pub(super) fn summary(&self, from: &Summary, row: &mut Row) {
        let life = match from.finish {
            Some(Finish::Abort) => Life::Aborted,
            Some(_) => Life::Done,
            None => Life::Orphaned,
        };
        self.write(row, &from.rid, life, from.numbers, false);
    }

    fn write(&self, row: &mut Row, rid: &str, life: Life, numbers: Numbers, stalled: bool) {
        row.rid.clear();
        row.rid.push_str(rid);
        (row.life, row.numbers) = (life, numbers);
        row.flags = self.flags(row, stalled);
    }

    fn flags(&self, row: &Row, stalled: bool) -> Flags {
        let mut flags = Flags::default();
        flags.set(Flag::Loss, row.wire_missing > 0);
        flags.set(Flag::Dropped, row.dropped.is_some_and(|d| d > 0));
        flags.set(Flag::ToolCall, row.damaged_call);
        flags.set(Flag::DropPredicted, self.keeps_last && row.bursts);
        flags.set(Flag::Stall, stalled);
        flags.set(Flag::Gap, row.gap_ns.is_some_and(|g| g >= GAP_WARNING_NS));
        flags.set(Flag::Inflated, row.inflated);
        flags.set(Flag::Aborted, row.life == Life::Aborted);
        flags.set(Flag::Retracted, row.retractions > 0);
        flags
    }
}
