//! Rows of the request table, filled from requests and their summaries.

use trace::ledger::{Ledger, Request, Summary};
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
    observes_receives: bool,
    keeps_last: bool,
    gap_ns: u64,
    stalled_ns: u64,
}

impl RowContext {
    pub(super) fn new(analysis: &Analysis) -> Self {
        let (ledger, thresholds) = (analysis.ledger(), analysis.thresholds());
        Self {
            now: ledger.now(),
            observes_gaps: ledger.observes_gaps(),
            observes_receives: ledger.observes_receives(),
            keeps_last: ledger.predicts_drops(),
            gap_ns: thresholds.gap_warning_ns,
            stalled_ns: thresholds.stalled_ns,
        }
    }

    pub(super) fn request(&self, from: &Request, ledger: &Ledger, row: &mut Row) {
        let over = from.finish().is_some();
        // The scheduler can finish a request whose first token has not been received. That wait matters most.
        let waiting_since = from.waiting_since().filter(|_| self.observes_gaps);
        let fates = from.fates();
        row.rid.clear();
        row.rid.push_str(from.rid());
        row.life = match from.finish() {
            Some(trace::event::Finish::Abort) => Life::Aborted,
            _ if waiting_since.is_some() => Life::Waiting,
            Some(_) => Life::Done,
            None => Life::Live,
        };
        let end = if over && waiting_since.is_none() {
            from.last_at()
        } else {
            self.now
        };
        row.age_ns = end.since(from.first_at());
        row.gap_ns = from.gap_ns().or(waiting_since.map(|at| self.now.since(at)));
        row.silence_ns = from.silence_ns();
        row.sent = from.tokens_sent().into();
        row.received = self.observes_receives.then_some(from.tokens_received().into());
        row.delivered = fates.map(|_| from.tokens_delivered().into());
        row.chunks = from.chunks_sent().into();
        row.merged = fates.map(|f| f.merged);
        row.dropped = fates.map(|f| f.dropped);
        row.lost = fates.map(|f| f.tokens_lost);
        row.missing_on_wire = from.wire_missing().into();
        row.prompt = from.prompt_tokens().map(u64::from);
        row.retractions = from.retractions().into();
        let stalled = ledger.is_stalled(from, self.now, self.stalled_ns);
        row.flags = self.flags(row, from.bursts(), from.inflated(), stalled);
    }

    pub(super) fn summary(&self, from: &Summary, row: &mut Row) {
        row.rid.clear();
        row.rid.push_str(&from.rid);
        row.life = match from.finish {
            Some(trace::event::Finish::Abort) => Life::Aborted,
            Some(_) => Life::Done,
            None => Life::Orphaned,
        };
        row.age_ns = from.last_at.since(from.first_at);
        row.gap_ns = from.gap_ns;
        row.silence_ns = from.silence_ns;
        row.sent = from.tokens_sent.into();
        row.received = self.observes_receives.then_some(from.tokens_received.into());
        row.delivered = from.tokens_delivered.map(u64::from);
        row.chunks = from.chunks_sent.into();
        row.merged = from.merged.map(u64::from);
        row.dropped = from.dropped.map(u64::from);
        row.lost = from.tokens_lost.map(u64::from);
        row.missing_on_wire = from.wire_missing.into();
        row.prompt = from.prompt_tokens.map(u64::from);
        row.retractions = from.retractions.into();
        row.worker = from.worker.map(u64::from);
        row.flags = self.flags(row, from.bursts, from.inflated, false);
    }

    fn flags(&self, row: &Row, bursts: bool, inflated: bool, stalled: bool) -> Flags {
        let mut flags = Flags::default();
        flags.set(Flag::Loss, row.missing_on_wire > 0);
        flags.set(Flag::Dropped, row.dropped.is_some_and(|d| d > 0));
        flags.set(Flag::DropPredicted, self.keeps_last && bursts);
        flags.set(Flag::Stall, stalled);
        flags.set(Flag::Gap, row.gap_ns.is_some_and(|g| g >= self.gap_ns));
        flags.set(Flag::Inflated, inflated);
        flags.set(Flag::Aborted, row.life == Life::Aborted);
        flags.set(Flag::Retracted, row.retractions > 0);
        flags
    }
}
