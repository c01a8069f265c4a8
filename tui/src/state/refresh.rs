//! Updates the model from the analysis. All output is bounded: hops and findings are few, rows are capped, strings are reused.

use std::collections::BTreeSet;

use trace::ledger::{Hop, Ledger, Request, Summary};
use trace::report::{Chunks, Itl, Requests, Spread, StackLine, Tokens, bar};
use trace::{Analysis, MonoNs};

use super::health::{Health, Verdict};
use super::history::{History, HopSample, Sample, ThreadSample};
use super::journal::Journal;
use super::model::{Flow, GapLine, MergedAndLost, Model, Own};
use super::pods::{Brief, sum};
use super::request::{Detail, Kept, Sources};
use super::row_context::{RowContext, new_row};
use super::threads::Shares;
use super::{findings, hops, threads};

/// Default number of finished requests in the table; the report counts all of them.
pub const FINISHED_SHOWN: usize = 2_000;

/// Values known to the run loop but not to the analysis.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunValues {
    pub(crate) source: String,
    /// `live`, `ending` or `ended`.
    pub(crate) doing: &'static str,
    /// Share of one core used by this process over the last second.
    pub(crate) cpu: Option<f64>,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) degraded: Vec<String>,
}

impl Model {
    /// Updates everything except rows and detail.
    pub(crate) fn refresh(&mut self, analysis: &Analysis, outside: &RunValues) {
        let ledger = analysis.ledger();
        let start = ledger.started().unwrap_or_default();
        outside.source.clone_into(&mut self.source);
        self.doing = outside.doing;
        self.engine = engine(ledger);
        self.running_ns = ledger.now().since(start);
        self.flow = flow(ledger);
        self.requests = Requests::of(ledger);
        self.tokens = Tokens::of(ledger);
        self.gap = gap(ledger);
        self.chunks = Chunks::of(ledger);
        self.merged_predicted = merged_predicted(ledger, &self.chunks);
        self.itl = Itl::of(ledger);
        self.findings = findings::read(analysis, start);
        self.hops = hops::read(ledger, &self.findings);
        self.ends = hops::ends(ledger);
        self.path = bar::segments(&analysis.path());
        self.threads = threads::read(ledger);
        self.stacks = StackLine::all(ledger).unwrap_or_default();
        self.verdict = self.verdict_now();
        self.own = own(ledger, outside);
    }

    /// Adds the current values to the history, which keeps the maximum of each second. Also runs while the view is frozen. Rates and
    /// quantiles cover a window and are read once a second.
    pub(crate) fn remember(&mut self, analysis: &Analysis) {
        let ledger = analysis.ledger();
        let second = ledger.now().since(ledger.started().unwrap_or_default()) / 1_000_000_000;
        let observes_backlog = ledger.hops().iter().any(|h| h.capabilities().received);
        let backlog = observes_backlog.then(|| ledger.groups().iter().map(|g| g.backlog).sum::<u64>() as f64);
        let harm = harm(ledger);
        let same = second == self.history.newest() && !self.history.is_empty();
        let before = match (same, self.harm) {
            (true, _) | (_, None) => self.harm_before,
            (false, harm) => harm,
        };
        self.harm_before = before.or(harm);
        self.harm = harm;
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let (merged, lost) = harm
            .zip(self.harm_before)
            .map(|(now, before)| (since(now.merged, before.merged), since(now.lost, before.lost)))
            .unzip();
        if same {
            if let Some(sample) = self.history.newest_mut() {
                (sample.merged, sample.lost) = (merged, lost);
                sample.live = sample.live.max(ledger.live() as f64);
                sample.backlog = sample.backlog.zip(backlog).map(|(max, now)| max.max(now)).or(backlog);
            }
            for group in ledger.groups() {
                let sample = self.hop_history.get_mut(&group.name).and_then(History::newest_mut);
                if let Some(HopSample { backlog: Some(max), .. }) = sample {
                    *max = max.max(group.backlog as f32);
                }
            }
            return;
        }
        let flow = flow(ledger);
        let sample = Sample {
            tokens: flow.tokens_per_s,
            frames: flow.frames_per_s,
            live: ledger.live() as f64,
            backlog,
            gap_p99: Spread::recent(ledger.gap(), ledger.now()).map(|s| s.p99 as f64),
            merged,
            lost,
        };
        self.history.enter(second, sample);
        for (place, group) in ledger.groups().iter().enumerate() {
            let receives = ledger.members(place).any(|hop| hop.capabilities().received);
            let sample = HopSample {
                frames: group.rate.recent(ledger.now()).frames as f32,
                backlog: receives.then_some(group.backlog as f32),
                queue_wait_p99: Spread::recent(&group.queue_wait, ledger.now()).map(|s| s.p99 as f32),
            };
            // Copies the name only on first use.
            match self.hop_history.get_mut(&group.name) {
                Some(history) => history.enter(second, sample),
                None => self.hop_history.entry(group.name.clone()).or_default().enter(second, sample),
            }
        }
        self.remember_threads(ledger, second);
    }

    /// Adds the current second of each shown thread to its history.
    fn remember_threads(&mut self, ledger: &Ledger, second: u64) {
        const SECOND_NS: u64 = 1_000_000_000;
        let now = ledger.now();
        let from = MonoNs(now.0.saturating_sub(SECOND_NS));
        let shown = threads::read(ledger).unwrap_or_default();
        self.thread_history.retain(|id, _| shown.iter().any(|t| t.id == *id));
        let threads = ledger.threads().iter().filter(|t| shown.iter().any(|s| s.id == t.id));
        for thread in threads {
            let spent = thread.between(from, now).map(|spent| Shares::of(&spent));
            let sample = ThreadSample {
                running: spent.map(|s| s.running as f32),
                waiting: spent.and_then(|s| s.waiting).map(|share| share as f32),
                throttled: spent.and_then(|s| s.throttled).map(|share| share as f32),
            };
            self.thread_history.entry(thread.id).or_default().enter(second, sample);
        }
    }

    /// Updates the table rows: every live request and up to `finished_shown` finished ones. Slow, pinned and lossy requests take precedence
    /// over newer ones.
    pub(crate) fn refresh_rows(&mut self, analysis: &Analysis, finished_shown: usize, pins: &BTreeSet<String>) {
        let ledger = analysis.ledger();
        let context = RowContext::new(analysis);
        self.table.clear();
        for request in ledger.requests() {
            context.request(request, ledger, self.table.next());
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

    /// Updates the detail of one request.
    pub(crate) fn refresh_detail(&mut self, analysis: &Analysis, journal: &Journal, rid: &str) {
        let ledger = analysis.ledger();
        let context = RowContext::new(analysis);
        let request = ledger.request(rid);
        let row = match request {
            Some(request) => Some(new_row(|row| context.request(request, ledger, row))),
            None => ledger
                .finished()
                .rev()
                .find(|s| &*s.rid == rid)
                .or_else(|| self.pinned.get(rid))
                .map(|summary| new_row(|row| context.summary(summary, row))),
        };
        let first = request.map_or((None, None), |r| (r.sent_first, r.received_first));
        let sources = Sources {
            story: journal.story(rid),
            row,
            hops: &self.ends,
            engine: ledger.engine(),
            first,
            kept: losses_and_itl(ledger, request, rid),
        };
        self.detail = Some(Detail::build(rid, sources));
    }

    fn verdict_now(&self) -> Verdict {
        if let Some(worst) = self.findings.iter().find(|f| f.active && f.health > Health::Info) {
            return Verdict { health: worst.health, text: worst.summary.clone() };
        }
        if let Some(past) = self.findings.iter().find(|f| f.health > Health::Info) {
            return Verdict { health: Health::Info, text: format!("now quiet; earlier: {}", past.summary) };
        }
        if self.chunks.sent == 0 {
            return Verdict { health: Health::Unknown, text: "no tokens observed yet".into() };
        }
        let text = match self.gap.whole {
            Some(gap) => {
                format!("tokens are flowing; the longest first-token gap was {}", session::units::duration(gap.max))
            }
            None if self.gap.seen => "tokens are flowing; no first token has been received yet".into(),
            None => "tokens are flowing; receives are not observed, so the gap is unknown".into(),
        };
        Verdict { health: Health::Good, text }
    }
}

impl Brief {
    /// Key figures of one run at this moment.
    pub fn of(analysis: &Analysis) -> Self {
        let mut model = Model::default();
        model.refresh(analysis, &RunValues::default());
        Self {
            tokens_per_s: model.flow.tokens_per_s,
            live: model.requests.live,
            seen: model.requests.seen,
            gap_p99: model.gap.window.map(|w| w.p99),
            backlog: sum(model.hops.iter().map(|hop| hop.backlog)),
            tokens_lost: model.chunks.tokens_lost,
            verdict: model.verdict,
        }
    }
}

/// Losses and inter-token latency of a request in the ledger, live or finished.
fn losses_and_itl(ledger: &Ledger, request: Option<&Request>, rid: &str) -> Kept {
    let tool_calls = ledger.tool_calls().find(rid).copied();
    let frontend = ledger.frontend().find(rid).cloned();
    if let Some(request) = request {
        return Kept {
            confirmed: request.losses().cloned(),
            predicted: request.predicted().cloned(),
            itl: request.itl(),
            delivered_first: request.delivered_first,
            tool_calls,
            frontend,
        };
    }
    let summary = ledger.finished().rev().find(|s| &*s.rid == rid);
    let lossy = ledger.lossy().rev().find(|lossy| &*lossy.rid == rid);
    Kept {
        confirmed: lossy.and_then(|l| l.confirmed.as_deref().cloned()),
        predicted: lossy.and_then(|l| l.predicted.as_deref().cloned()),
        itl: summary.map(|s| s.itl).unwrap_or_default(),
        delivered_first: summary.and_then(|s| s.delivered_first),
        tool_calls,
        frontend,
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

fn flow(ledger: &Ledger) -> Flow {
    let origin = |h: &&Hop| h.origin;
    let first = ledger.hops().iter().find(origin).or_else(|| ledger.hops().first());
    let rates = first.map(|h| ledger.groups()[h.group].rate.recent(ledger.now())).unwrap_or_default();
    Flow { tokens_per_s: rates.tokens, frames_per_s: rates.frames }
}

fn gap(ledger: &Ledger) -> GapLine {
    let now = ledger.now();
    let aborted = |r: &&Request| r.finish == Some(trace::event::Finish::Abort);
    let waits = ledger.requests().filter(|r| !aborted(r)).filter_map(Request::waiting_since);
    let open = waits.fold((0, 0), |(n, longest), at| (n + 1, now.since(at).max(longest)));
    GapLine {
        seen: ledger.observes_gaps(),
        window: Spread::recent(ledger.gap(), now),
        whole: Spread::of(ledger.gap()),
        worst_rid: ledger.worst_gap().map(|w| w.rid.to_string()).unwrap_or_default(),
        open: ledger.observes_gaps().then_some(open),
    }
}

/// Chunks predicted to be merged, under the conditions of predicted drops.
fn merged_predicted(ledger: &Ledger, chunks: &Chunks) -> Option<u64> {
    chunks.dropped_predicted.map(|_| ledger.totals().predicted.merged)
}

/// Merged and lost chunks so far: confirmed if deliveries are observable, else predicted.
fn harm(ledger: &Ledger) -> Option<MergedAndLost> {
    let chunks = Chunks::of(ledger);
    let confirmed = chunks.merged.zip(chunks.dropped_confirmed);
    confirmed
        .or(merged_predicted(ledger, &chunks).zip(chunks.dropped_predicted))
        .map(|(merged, lost)| MergedAndLost { merged, lost })
}

fn own(ledger: &Ledger, outside: &RunValues) -> Own {
    let totals = ledger.totals();
    let mut degraded = outside.degraded.clone();
    degraded.extend(ledger.degraded());
    Own {
        cpu: outside.cpu,
        rss_bytes: outside.rss_bytes,
        events: totals.events,
        missed: totals.missed.reported() + totals.missed.unannounced,
        undecoded: totals.undecoded,
        degraded,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::event::Finish;

    use super::super::flags::Flag;
    use super::super::query::Query;
    use super::super::row::{Life, Row};
    use super::super::table::Sort;
    use super::*;
    use crate::state::scene::{MS, Scene};
    use session::units::count;

    /// If such requests appeared as done, they would hide the backlog.
    #[test]
    fn a_finished_request_with_unreceived_frames_is_waiting() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.finish(10 * MS, &[("a", 1, 2)], Finish::Stop);
        scene.tick(5_000 * MS);
        let mut model = Model::default();
        model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &BTreeSet::new());
        model.table.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
        let row = model.table.visible(0).expect("a row");
        assert_eq!(
            (row.life, row.gap_ns, row.last_at.since(row.first_at), row.flags.has(Flag::Gap)),
            (Life::Waiting, Some(5_000 * MS), 5_000 * MS, true)
        );
        scene.receive(6_000 * MS, 0, 1);
        model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &BTreeSet::new());
        model.table.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
        assert_eq!(model.table.visible(0).map(|row| row.life), Some(Life::Done));
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
        model.refresh_rows(&scene.analysis, 3, &pins);
        model.table.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
        let mut rids: Vec<&str> = model.table.visible_at(0..9).iter().map(|r| r.rid.as_str()).collect();
        rids.sort_unstable();
        assert_eq!(rids, ["r0", "r1", "r5"]);
        assert_eq!((model.rows_left_out, model.rows_evicted), (3, 0));
    }

    #[test]
    fn a_pinned_request_outlives_its_summary_in_the_ledger() {
        let mut scene = Scene::delivering();
        scene.analysis.keep_within(trace::ledger::Limits { finished_kept: 2, ..trace::ledger::Limits::default() });
        let pins = BTreeSet::from(["r0".to_owned()]);
        let mut model = Model::default();
        for n in 0..4_u64 {
            let (rid, at) = (format!("r{n}"), n * 600_000 * MS);
            scene.send(at, &[(&rid, 1, 1)]);
            scene.finish(at + MS, &[(&rid, 1, 2)], Finish::Stop);
            (1..9).for_each(|n| scene.tick(at + n * 60_000 * MS));
            model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &pins);
        }
        model.table.arrange(&Query::default(), Sort::default(), &pins);
        let rids: Vec<&str> = model.table.visible_at(0..9).iter().map(|r| r.rid.as_str()).collect();
        assert_eq!((rids[0], rids.len(), model.rows_evicted), ("r0", 3, 2));
    }

    #[test]
    fn history_seconds_keep_the_peak_backlog_and_count_losses_apart_from_merges() {
        let mut scene = Scene::delivering();
        let mut model = Model::default();
        scene.send(0, &[("a", 1, 1)]);
        scene.receive(MS, 0, 0);
        scene.tick(2 * MS);
        model.remember(&scene.analysis);
        for token in 2..29_u32 {
            scene.send((1_100 + u64::from(token)) * MS, &[("a", 1, token)]);
        }
        for (at, from) in [(1_000, 0), (1_200, 0), (1_800, 1)] {
            (from..28 * from).for_each(|seq| scene.receive(1_700 * MS, seq, 1));
            if from > 0 {
                scene.deliver(1_750 * MS, "a", 1, 28);
            }
            scene.tick(at * MS);
            model.remember(&scene.analysis);
        }
        let of = |metric: crate::state::history::Metric<Sample>| model.history.series(metric, 1, 1, 1)[0];
        assert_eq!(of(|s| s.backlog), Some(27.0), "all were taken before the second was over");
        assert_eq!((of(|s| s.lost), of(|s| s.merged)), (Some(27.0), Some(0.0)));
        let hop = model.hop_history["scheduler->tokenizer"].series(|s| s.backlog.map(f64::from), 1, 1, 1);
        assert_eq!(hop, [Some(27.0)]);
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
            model.refresh(&scene.analysis, &RunValues::default());
            model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &BTreeSet::new());
            model.table.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
            let rows = model.table.visible_at(0..model.table.visible_count());
            let sum = |of: fn(&Row) -> Option<u64>| rows.iter().filter_map(|row| of(row)).sum::<u64>();
            let lost = model.chunks.tokens_lost.unwrap_or(0);
            prop_assert_eq!(sum(|row| row.tokens_lost.map(u64::from)), lost);
            prop_assert_eq!(Some(sum(|row| row.dropped.map(u64::from))), model.chunks.dropped_confirmed);
            prop_assert_eq!(sum(|row| Some(row.tokens_sent.into())), model.tokens.sent);
            prop_assert_eq!(Some(sum(|row| row.tokens_delivered.map(u64::from))), model.tokens.delivered);
            prop_assert_eq!(rows.len() as u64, model.requests.seen);
            let finding = model.findings.iter().find(|f| f.kind == "dropped-chunks");
            prop_assert_eq!(finding.is_some(), lost > 0);
            if let Some(finding) = finding {
                let evidence = |name: &str| finding.evidence.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
                prop_assert_eq!(evidence("tokens lost"), Some(count(lost)));
                prop_assert_eq!(evidence("chunks dropped"), model.chunks.dropped_confirmed.map(count));
                let harmed = rows.iter().filter(|row| row.tokens_lost > Some(0)).count();
                prop_assert_eq!(evidence("requests"), Some(count(harmed as u64)));
                prop_assert_eq!(&model.verdict.text, &finding.summary);
            }
        }
    }
}
