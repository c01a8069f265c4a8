//! Updates the model from the analysis. All output is bounded: hops and findings are few, rows are capped, strings are reused.

use std::collections::BTreeSet;

use outputs::report::{Chunks, Itl, LegLine, Requests, StackLine, Tokens, bar, judgements, not_judged};
use trace::Analysis;
use trace::detect::Severity;
use trace::detect::thresholds::{GAP_WARNING_NS, STALLED_NS};
use trace::event::Finish;
use trace::ledger::{Ledger, Numbers, Request, Summary};
use trace::stats::{PerSecond, Spread};
use trace::words::plural;

use super::curves::Curves;
use super::evidence::Kept;
use super::flags::{Flag, Flags, Health, Verdict};
use super::model::{GapLine, Model, RunValues};
use super::pinned::PinnedHistories;
use super::pods::{Brief, sum};
use super::request::Detail;
use super::row::{Life, Row};
use super::{hops, threads};

/// Default number of finished requests in the table; the report counts all of them.
pub const FINISHED_SHOWN: usize = 2_000;

impl Model {
    /// Updates everything except rows and detail.
    pub(crate) fn refresh(&mut self, analysis: &Analysis, run: RunValues) {
        let ledger = analysis.ledger();
        self.engine = engine(ledger);
        self.started = ledger.started().unwrap_or_default();
        self.running_ns = ledger.now().since(self.started);
        self.curves = Curves::read(analysis);
        self.flow = flow(ledger);
        self.requests = Requests::of(ledger);
        self.abandoned_requests = ledger.abandoned_requests().requests;
        self.tokens = Tokens::of(ledger);
        self.gap = gap(ledger);
        self.chunks = Chunks::of(ledger);
        self.merged_predicted = merged_predicted(ledger, &self.chunks);
        self.itl = Itl::of(ledger);
        self.findings = analysis.findings_now().sorted().into_iter().cloned().collect();
        self.findings.sort_by_key(|finding| !finding.active);
        self.hops = hops::read(ledger, &self.findings);
        self.path = bar::segments(&LegLine::all(&analysis.attribution()));
        self.threads = threads::read(ledger);
        self.stacks = StackLine::all(ledger).unwrap_or_default();
        self.verdict = self.verdict_now(ledger);
        let totals = ledger.totals();
        let missed = totals.missed.reported() + totals.missed.unannounced;
        self.run = RunValues { missed, undecoded: totals.undecoded, ..run };
        self.run.degraded.extend(ledger.degraded());
    }

    /// Updates the table rows: every live request and up to `finished_shown` finished ones. Slow, pinned and lossy requests take precedence
    /// over newer ones.
    pub(crate) fn refresh_rows(&mut self, analysis: &Analysis, finished_shown: usize, pins: &BTreeSet<String>) {
        let ledger = analysis.ledger();
        let context = RowContext::new(ledger);
        self.table.clear();
        for request in ledger.requests() {
            context.request(request, self.table.next());
        }
        let finished = ledger.finished();
        let kept = ledger.finished_count();
        self.rows_left_out = kept.saturating_sub(finished_shown) as u64;
        self.rows_evicted = ledger.totals().requests.closed.saturating_sub(kept as u64);
        let chosen = |s: &Summary| ledger.is_notable(s) || pins.contains(&*s.rid);
        let notable = match self.rows_left_out {
            0 => 0,
            _ => ledger.finished().filter(|s| chosen(s)).count().min(finished_shown),
        };
        let mut slots = [finished_shown - notable, notable];
        let mut pinned_rids = BTreeSet::new();
        for summary in finished.rev() {
            // Keeps the newest summary if the rid was reused.
            if pins.contains(&*summary.rid) && pinned_rids.insert(&*summary.rid) {
                self.pinned.insert(summary.rid.to_string(), summary.clone());
            }
            let slots_left = &mut slots[usize::from(self.rows_left_out > 0 && chosen(summary))];
            if *slots_left > 0 {
                *slots_left -= 1;
                context.summary(summary, self.table.next());
            }
        }
        self.pinned.retain(|rid, _| pins.contains(rid));
        for (rid, summary) in &self.pinned {
            if !pinned_rids.contains(&**rid) && ledger.request(rid).is_none() {
                context.summary(summary, self.table.next());
            }
        }
    }

    pub(crate) fn refresh_detail(&mut self, analysis: &Analysis, pinned: &PinnedHistories, rid: &str) {
        let ledger = analysis.ledger();
        let context = RowContext::new(ledger);
        let request = ledger.request(rid);
        let find = || ledger.finished().rev().find(|s| &*s.rid == rid).or_else(|| self.pinned.get(rid));
        let summary = if request.is_some() { None } else { find() };
        let mut row = (request.is_some() || summary.is_some()).then(Row::default);
        match (request, summary, &mut row) {
            (Some(request), _, Some(row)) => context.request(request, row),
            (_, Some(summary), Some(row)) => context.summary(summary, row),
            _ => {}
        }
        let kept = Kept::of(ledger, request, summary, rid);
        let detail = Detail::build(rid, &pinned.history(ledger, rid), row, &hops::ends(ledger), ledger.engine(), kept);
        self.detail = Some(detail);
    }

    fn verdict_now(&self, ledger: &Ledger) -> Verdict {
        // Active findings come first.
        if let Some(worst) = self.findings.iter().find(|finding| finding.verdict.severity > Severity::Info) {
            let (summary, severity) = (&worst.verdict.summary, worst.verdict.severity);
            return if worst.active {
                Verdict { health: severity.into(), text: summary.clone() }
            } else {
                Verdict { health: Health::Info, text: format!("now quiet; earlier: {summary}") }
            };
        }
        let responses = ledger.totals().answers.seen;
        if self.chunks.sent == 0 && responses == 0 {
            return Verdict { health: Health::Unknown, text: "no tokens observed yet".into() };
        }
        let text = match self.gap.whole {
            _ if self.chunks.sent == 0 => format!("{} ended", plural(responses, "response")),
            Some(gap) => {
                format!("tokens are flowing; the longest first-token gap was {}", session::units::duration(gap.max))
            }
            None if self.gap.open.is_some() => "tokens are flowing; no first token has been received yet".into(),
            None => "tokens are flowing; receives are not observed, so the gap is unknown".into(),
        };
        // The report's headline says the same. A run that could not have shown a fault is not called good.
        match not_judged(&judgements(ledger), false) {
            None => Verdict { health: Health::Good, text },
            Some(rest) => Verdict { health: Health::Info, text: format!("{text}; not judged: {rest}") },
        }
    }
}

impl Brief {
    /// Key figures of one run at this moment.
    pub fn of(analysis: &Analysis) -> Self {
        let mut model = Model::default();
        model.refresh(analysis, RunValues::default());
        Self {
            tokens_per_s: model.flow.tokens,
            live: model.requests.live,
            seen: model.requests.seen,
            gap_p99: model.gap.window.map(|w| w.p99),
            backlog: sum(model.hops.iter().map(|hop| hop.backlog)),
            tokens_lost: model.chunks.tokens_lost,
            verdict: model.verdict,
        }
    }
}

/// Current rates of the scheduler's sends.
fn flow(ledger: &Ledger) -> PerSecond {
    let origin = ledger.hops().iter().find(|hop| hop.origin).or_else(|| ledger.hops().first());
    origin.map(|hop| ledger.groups()[hop.group].rate.recent(ledger.now())).unwrap_or_default()
}

/// Chunks predicted to be merged, under the conditions of predicted drops.
fn merged_predicted(ledger: &Ledger, chunks: &Chunks) -> Option<u64> {
    chunks.dropped_predicted.map(|_| ledger.totals().predicted.merged)
}

/// Values shared by all rows of one refresh.
struct RowContext<'a> {
    ledger: &'a Ledger,
    observes_gaps: bool,
    keeps_last: bool,
}

impl<'a> RowContext<'a> {
    fn new(ledger: &'a Ledger) -> Self {
        Self { ledger, observes_gaps: ledger.observes_gaps(), keeps_last: ledger.predicts_drops() }
    }

    fn request(&self, from: &Request, row: &mut Row) {
        let now = self.ledger.now();
        // The scheduler can finish a request whose first token has not been received. That wait matters most.
        let waiting_since = from.waiting_since().filter(|_| self.observes_gaps);
        let mut numbers = self.ledger.numbers(from);
        let life = match numbers.finish {
            Some(Finish::Abort) => Life::Aborted,
            _ if waiting_since.is_some() => Life::Waiting,
            Some(_) => Life::Done,
            None => Life::Live,
        };
        if numbers.finish.is_none() || waiting_since.is_some() {
            numbers.last_at = now;
        }
        numbers.gap_ns = numbers.gap_ns.or(waiting_since.map(|at| now.since(at)));
        let stalled = self.ledger.is_stalled(from, now, STALLED_NS);
        self.write(row, &from.rid, life, numbers, stalled);
    }

    fn summary(&self, from: &Summary, row: &mut Row) {
        let life = match from.finish {
            Some(Finish::Abort) => Life::Aborted,
            Some(_) => Life::Done,
            None => Life::Orphaned,
        };
        self.write(row, &from.rid, life, from.numbers, false);
    }

    /// Sets every field of the row.
    fn write(&self, row: &mut Row, rid: &str, life: Life, numbers: Numbers, stalled: bool) {
        row.rid.clear();
        row.rid.push_str(rid);
        (row.life, row.numbers, row.flags) = (life, numbers, Flags::default());
        for (flag, holds) in [
            (Flag::Loss, row.wire_missing > 0),
            (Flag::Dropped, row.dropped.is_some_and(|d| d > 0)),
            (Flag::ToolCall, row.damaged_call),
            (Flag::DropPredicted, self.keeps_last && row.bursts),
            (Flag::Stall, stalled),
            (Flag::Gap, row.gap_ns.is_some_and(|g| g >= GAP_WARNING_NS)),
            (Flag::Inflated, row.inflated),
            (Flag::Aborted, row.life == Life::Aborted),
            (Flag::Retracted, row.retractions > 0),
        ] {
            row.flags.set(flag, holds);
        }
    }
}

fn engine(ledger: &Ledger) -> String {
    use trace::engine::{Mode, Waiter};
    let state = ledger.engine();
    let mut words = vec![state.title()];
    words.extend(state.mode.map(|m| if m == Mode::Incremental { "incremental" } else { "cumulative" }.to_owned()));
    words.extend(state.waiter.map(|w| {
        match w {
            Waiter::KeepsLast => "keeps last chunk",
            Waiter::YieldsAll => "yields all chunks",
            Waiter::Merges => "merges chunks",
        }
        .to_owned()
    }));
    words.join(", ")
}

fn gap(ledger: &Ledger) -> GapLine {
    let now = ledger.now();
    let aborted = |r: &&Request| r.finish == Some(Finish::Abort);
    let waits = ledger.requests().filter(|r| !aborted(r)).filter_map(Request::waiting_since);
    let open = waits.fold((0, 0), |(n, longest), at| (n + 1, now.since(at).max(longest)));
    GapLine {
        window: Spread::recent(ledger.gap(), now),
        whole: Spread::of(ledger.gap()),
        worst_rid: ledger.worst_gap().map(|w| w.rid.to_string()).unwrap_or_default(),
        open: ledger.observes_gaps().then_some(open),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::query::Query;
    use super::super::table::Sort;
    use super::*;
    use trace::event::Capabilities;
    use trace::ledger::Limits;

    use crate::state::scene::{MS, Scene};

    /// Rows of the table in its default order, with up to `shown` finished requests.
    fn rows<'a>(model: &'a mut Model, scene: &Scene, shown: usize, pins: &BTreeSet<String>) -> Vec<&'a Row> {
        model.refresh_rows(&scene.analysis, shown, pins);
        model.table.arrange(&Query::default(), Sort::default(), pins);
        model.table.visible_at(0..model.table.visible_count())
    }

    /// If such requests appeared as done, they would hide the backlog.
    #[test]
    fn a_finished_request_with_unreceived_frames_is_waiting() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.finish(10 * MS, &[("a", 1, 2)], Finish::Stop);
        scene.tick(5_000 * MS);
        let mut model = Model::default();
        let row = rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new())[0];
        assert_eq!(
            (row.life, row.gap_ns, row.last_at.since(row.first_at), row.flags.has(Flag::Gap)),
            (Life::Waiting, Some(5_000 * MS), 5_000 * MS, true)
        );
        scene.receive(6_000 * MS, 0, 1);
        assert_eq!(rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new())[0].life, Life::Done);
    }

    #[test]
    fn lossy_and_pinned_requests_outlive_newer_ordinary_ones_in_the_table() {
        let mut scene = Scene::delivering();
        for n in 0..6_u64 {
            let (rid, at) = (format!("r{n}"), n * 100 * MS);
            scene.send(at, &[(&rid, 1, 1)]);
            scene.send(at + MS, &[(&rid, 1, 2)]);
            scene.finish(at + 2 * MS, &[(&rid, 1, 3)], Finish::Stop);
            for frame in 0..3 {
                scene.receive(at + 3 * MS + frame, n * 3 + frame, n * 3 + frame);
            }
            // No delivery contains the first request's second token.
            let delivered: &[u32] = if n == 0 { &[1, 3] } else { &[1, 2, 3] };
            for &token in delivered {
                scene.deliver(at + 4 * MS + u64::from(token), &rid, 1, token);
            }
        }
        (1..10).for_each(|n| scene.tick(n * 60_000 * MS));
        assert_eq!(scene.analysis.ledger().finished().count(), 6, "all are over");
        let pins = BTreeSet::from(["r1".to_owned()]);
        let mut model = Model::default();
        let mut rids: Vec<&str> = rows(&mut model, &scene, 3, &pins).iter().map(|r| r.rid.as_str()).collect();
        rids.sort_unstable();
        assert_eq!(rids, ["r0", "r1", "r5"]);
        assert_eq!((model.rows_left_out, model.rows_evicted), (3, 0));
    }

    #[test]
    fn a_pinned_request_outlives_its_summary_in_the_ledger() {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
        let limits = Limits { finished_kept: 2, ..Limits::default() };
        let mut scene = Scene::with_limits(&[("scheduler->tokenizer", capabilities)], limits);
        let pins = BTreeSet::from(["r0".to_owned()]);
        let mut model = Model::default();
        for n in 0..4_u64 {
            let (rid, at) = (format!("r{n}"), n * 600_000 * MS);
            scene.send(at, &[(&rid, 1, 1)]);
            scene.finish(at + MS, &[(&rid, 1, 2)], Finish::Stop);
            (1..9).for_each(|n| scene.tick(at + n * 60_000 * MS));
            model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &pins);
        }
        let rows = rows(&mut model, &scene, FINISHED_SHOWN, &pins);
        assert_eq!((&*rows[0].rid, rows.len()), ("r0", 3));
        assert_eq!(model.rows_evicted, 2);
    }

    proptest! {
        /// Detectors run every half second, but events arrive at any time. Figures shown in two places must still agree.
        #[test]
        fn banner_findings_sums_and_rows_agree(
            requests in prop::collection::vec((1_u32..6, any::<u8>(), 0_u64..700), 1..20),
        ) {
            let mut scene = Scene::delivering();
            let (mut at, mut seq) = (0, 0);
            for (n, &(tokens, dropped_mask, pause)) in requests.iter().enumerate() {
                let rid = format!("r{n}");
                for token in 1..=tokens {
                    scene.send(at, &[(&rid, 1, token)]);
                    scene.receive(at + MS, seq, seq);
                    seq += 1;
                    if dropped_mask & (1 << token) == 0 {
                        scene.deliver(at + 2 * MS, &rid, 1, token);
                    }
                    at += 3 * MS;
                    scene.tick(at);
                }
                at += pause * MS;
            }
            let mut model = Model::default();
            model.refresh(&scene.analysis, RunValues::default());
            let rows: Vec<Row> =
                rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new()).into_iter().cloned().collect();
            let sum = |of: fn(&Row) -> Option<u64>| rows.iter().filter_map(of).sum::<u64>();
            let lost = model.chunks.tokens_lost.unwrap_or(0);
            prop_assert_eq!(sum(|row| row.tokens_lost.map(u64::from)), lost);
            prop_assert_eq!(Some(sum(|row| row.dropped.map(u64::from))), model.chunks.dropped_confirmed);
            prop_assert_eq!(sum(|row| Some(row.tokens_sent.into())), model.tokens.sent);
            prop_assert_eq!(Some(sum(|row| row.tokens_delivered.map(u64::from))), model.tokens.delivered);
            prop_assert_eq!(rows.len() as u64, model.requests.seen);
            let finding = model.findings.iter().find(|f| f.kind == "dropped-chunks");
            prop_assert_eq!(finding.is_some(), lost > 0);
            if let Some(finding) = finding {
                let evidence = |name: &str| finding.verdict.evidence.get(name)?.as_u64();
                prop_assert_eq!(evidence("tokens_lost"), Some(lost));
                prop_assert_eq!(evidence("chunks_dropped"), model.chunks.dropped_confirmed);
                let harmed = rows.iter().filter(|row| row.tokens_lost > Some(0)).count();
                prop_assert_eq!(evidence("requests"), Some(harmed as u64));
                prop_assert_eq!(&model.verdict.text, &finding.verdict.summary);
            }
        }
    }
}
