//! Updates the model from the analysis. All output is bounded: hops and findings are few, rows are capped, strings are reused.

use std::collections::BTreeSet;

use trace::ledger::{Hop, Ledger, Request, Summary};
use trace::report::bar;
use trace::stats::Distribution;
use trace::{Analysis, MonoNs};

use super::flags::{Flag, Flags};
use super::history::{History, HopSample, Sample, ThreadSample};
use super::journal::Journal;
use super::model::{ChunkSums, Flow, GapLine, Harm, Health, Itl, Model, Own, Spread, Verdict};
use super::request::{Detail, Kept, Sources};
use super::row::{Life, Row};
use super::threads::Shares;
use super::{findings, hops, hot, threads};

/// Default number of finished requests in the table; the report counts all of them.
pub(crate) const FINISHED_SHOWN: usize = 2_000;

/// Values known to the run loop but not to the analysis.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outside {
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
    pub(crate) fn refresh(&mut self, analysis: &Analysis, outside: &Outside) {
        let ledger = analysis.ledger();
        let start = ledger.started().unwrap_or_default();
        outside.source.clone_into(&mut self.source);
        self.doing = outside.doing;
        self.engine = engine(ledger);
        self.running_ns = ledger.now().since(start);
        self.flow = flow(ledger);
        self.gap = gap(ledger);
        self.chunks = chunks(ledger);
        self.itl = Itl {
            sent: percentiles(ledger.itl_sent_by_token()),
            client: percentiles(ledger.itl_delivered_by_token()).filter(|_| ledger.sees_deliveries()),
        };
        self.findings = findings::read(analysis, start);
        self.hops = hops::read(ledger, analysis.thresholds(), &self.findings);
        self.ends = hops::ends(ledger);
        self.path = bar::segments(&analysis.path());
        self.threads = threads::read(ledger);
        self.hot = hot::read(ledger);
        self.verdict = self.judge();
        self.own = own(ledger, outside);
    }

    /// Adds the current values to the history, which keeps the maximum of each second. Also runs while the view is frozen. Rates and
    /// quantiles cover a window and are read once a second.
    pub(crate) fn remember(&mut self, analysis: &Analysis) {
        let ledger = analysis.ledger();
        let second = ledger.now().since(ledger.started().unwrap_or_default()) / 1_000_000_000;
        let sees_backlog = ledger.hops().iter().any(|h| h.sees().taken);
        let backlog = sees_backlog.then(|| ledger.groups().iter().map(|g| g.backlog).sum::<u64>() as f64);
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
                sample.backlog = sample.backlog.zip(backlog).map(|(most, now)| most.max(now)).or(backlog);
            }
            for group in ledger.groups() {
                let sample = self.hop_history.get_mut(&group.name).and_then(History::newest_mut);
                if let Some(HopSample {
                    backlog: Some(most), ..
                }) = sample
                {
                    *most = most.max(group.backlog as f32);
                }
            }
            return;
        }
        let flow = flow(ledger);
        let sample = Sample {
            tokens: flow.tokens_per_s,
            frames: flow.frames_per_s,
            live: flow.live as f64,
            backlog,
            gap_p99: recent(ledger.gap(), ledger.now()).map(|s| s.p99 as f64),
            merged,
            lost,
        };
        self.history.enter(second, sample);
        for (place, group) in ledger.groups().iter().enumerate() {
            let takes = ledger.members(place).any(|hop| hop.sees().taken);
            let sample = HopSample {
                frames: group.rate.recent(ledger.now()).frames as f32,
                backlog: takes.then_some(group.backlog as f32),
                residence_p99: recent(&group.residence, ledger.now()).map(|s| s.p99 as f32),
            };
            // Copies the name only on first use.
            match self.hop_history.get_mut(&group.name) {
                Some(history) => history.enter(second, sample),
                None => self
                    .hop_history
                    .entry(group.name.clone())
                    .or_default()
                    .enter(second, sample),
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
        let threads = ledger.threads().iter().filter(|t| shown.iter().any(|s| s.id == t.id()));
        for thread in threads {
            let spent = thread.between(from, now).map(|spent| Shares::of(&spent));
            let sample = ThreadSample {
                running: spent.map(|s| s.running as f32),
                waiting: spent.and_then(|s| s.waiting).map(|share| share as f32),
                held: spent.and_then(|s| s.held).map(|share| share as f32),
            };
            self.thread_history
                .entry(thread.id())
                .or_default()
                .enter(second, sample);
        }
    }

    /// Updates the table rows: every live request and up to `finished_shown` finished ones. Slow, pinned and lossy requests take precedence
    /// over newer ones.
    pub(crate) fn refresh_rows(&mut self, analysis: &Analysis, finished_shown: usize, pins: &BTreeSet<String>) {
        let ledger = analysis.ledger();
        let look = Look::new(analysis);
        self.table.clear();
        for request in ledger.requests() {
            let row = self.table.next();
            look.request(request, ledger.heard_all_since(request), row);
            row.worker = ledger.worker_of(request).map(u64::from);
        }
        let over = ledger.finished();
        let kept = ledger.finished_count();
        self.rows_left_out = kept.saturating_sub(finished_shown) as u64;
        self.rows_forgotten = ledger.totals().requests.closed.saturating_sub(kept as u64);
        let chosen = |s: &Summary| ledger.is_notable(s) || pins.contains(&*s.rid);
        let notable = match self.rows_left_out {
            0 => 0,
            _ => ledger.finished().filter(|s| chosen(s)).count().min(finished_shown),
        };
        let mut rooms = [finished_shown - notable, notable];
        let mut known = BTreeSet::new();
        for summary in over.rev() {
            // Keeps the newest summary if the rid was reused.
            if pins.contains(&*summary.rid) && known.insert(&*summary.rid) {
                self.pinned.insert(summary.rid.to_string(), summary.clone());
            }
            let room = &mut rooms[usize::from(self.rows_left_out > 0 && chosen(summary))];
            if *room > 0 {
                *room -= 1;
                look.summary(summary, self.table.next());
            }
        }
        self.pinned.retain(|rid, _| pins.contains(rid));
        for (rid, summary) in &self.pinned {
            if !known.contains(&**rid) && ledger.request(rid).is_none() {
                look.summary(summary, self.table.next());
            }
        }
    }

    /// Updates the detail of one request.
    pub(crate) fn refresh_detail(&mut self, analysis: &Analysis, journal: &Journal, rid: &str) {
        let ledger = analysis.ledger();
        let look = Look::new(analysis);
        let request = ledger.request(rid);
        let row = match request {
            Some(request) => Some(new_row(|row| {
                look.request(request, ledger.heard_all_since(request), row);
                row.worker = ledger.worker_of(request).map(u64::from);
            })),
            None => ledger
                .finished()
                .rev()
                .find(|s| &*s.rid == rid)
                .or_else(|| self.pinned.get(rid))
                .map(|summary| new_row(|row| look.summary(summary, row))),
        };
        let first = request.map_or((None, None), |r| (r.sent_first(), r.taken_first()));
        let sources = Sources {
            story: journal.story(rid),
            row,
            hops: &self.ends,
            engine: ledger.engine(),
            first,
            kept: kept(ledger, request, rid),
        };
        self.detail = Some(Detail::build(rid, sources));
    }

    fn judge(&self) -> Verdict {
        if let Some(worst) = self.findings.iter().find(|f| f.active && f.health > Health::Info) {
            return Verdict {
                health: worst.health,
                text: worst.summary.clone(),
            };
        }
        if let Some(past) = self.findings.iter().find(|f| f.health > Health::Info) {
            return Verdict {
                health: Health::Info,
                text: format!("now quiet; earlier: {}", past.summary),
            };
        }
        if self.chunks.sent == 0 {
            return Verdict {
                health: Health::Unknown,
                text: "no tokens have passed yet".into(),
            };
        }
        let text = match self.gap.whole {
            Some(gap) => format!(
                "tokens flow; the longest first-token gap was {}",
                super::units::duration(gap.max)
            ),
            None if self.gap.seen => "tokens flow; no first token has been taken yet".into(),
            None => "tokens flow; receives are not observed here, so the gap is unknown".into(),
        };
        Verdict {
            health: Health::Good,
            text,
        }
    }
}

fn percentiles(of: &Distribution) -> Option<[u64; 3]> {
    Some([of.quantile(0.5)?, of.quantile(0.9)?, of.quantile(0.99)?])
}

/// Losses and inter-token latency of a request in the ledger, live or finished.
fn kept(ledger: &Ledger, request: Option<&Request>, rid: &str) -> Kept {
    if let Some(request) = request {
        return Kept {
            confirmed: request.losses().cloned(),
            predicted: request.predicted().cloned(),
            paces: request.paces(),
            delivered_first: request.delivered_first(),
        };
    }
    let summary = ledger.finished().rev().find(|s| &*s.rid == rid);
    let lossy = ledger.lossy().rev().find(|lossy| &*lossy.rid == rid);
    Kept {
        confirmed: lossy.and_then(|l| l.confirmed.as_deref().cloned()),
        predicted: lossy.and_then(|l| l.predicted.as_deref().cloned()),
        paces: summary.map(|s| s.paces).unwrap_or_default(),
        delivered_first: summary.and_then(|s| s.delivered_first),
    }
}

/// Quantiles over the whole run; `None` without samples.
pub(crate) fn whole(of: &Distribution) -> Option<Spread> {
    Some(Spread {
        count: of.count(),
        p50: of.quantile(0.5)?,
        p90: of.quantile(0.9)?,
        p99: of.quantile(0.99)?,
        max: of.max()?,
    })
}

/// Quantiles over the last ten seconds.
pub(crate) fn recent(of: &Distribution, now: MonoNs) -> Option<Spread> {
    let window = of.recent(now);
    if window.is_empty() {
        return None;
    }
    // The window has two-digit precision, so its upper bounds are clamped to the true maximum.
    let most = of.max()?;
    let at = |q| window.value_at_quantile(q).min(most);
    Some(Spread {
        count: window.len(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max: window.max().min(most),
    })
}

fn engine(ledger: &Ledger) -> String {
    use trace::engine::{Mode, Waiter};
    let state = ledger.engine();
    let mut words = vec![
        state
            .version
            .as_deref()
            .map_or("SGLang".to_owned(), |v| format!("SGLang {v}")),
    ];
    words.extend(state.mode.map(|m| {
        if m == Mode::Incremental {
            "incremental"
        } else {
            "cumulative"
        }
        .to_owned()
    }));
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
    let totals = ledger.totals();
    let now = ledger.now();
    let origin = |h: &&Hop| h.is_origin();
    let first = ledger.hops().iter().find(origin).or_else(|| ledger.hops().first());
    let rates = first
        .map(|h| ledger.groups()[h.group()].rate.recent(now))
        .unwrap_or_default();
    Flow {
        tokens_per_s: rates.tokens,
        frames_per_s: rates.frames,
        chunks_per_s: rates.chunks,
        live: ledger.live(),
        seen: totals.requests.seen,
        finished: totals.requests.finished,
        aborted: totals.requests.aborted,
        tokens_sent: totals.tokens.sent,
        tokens_taken: ledger.sees_takes().then_some(totals.tokens.taken),
        tokens_delivered: ledger.sees_deliveries().then_some(totals.tokens.delivered),
    }
}

fn gap(ledger: &Ledger) -> GapLine {
    let now = ledger.now();
    let aborted = |r: &&Request| r.finish() == Some(trace::event::Finish::Abort);
    let waits = ledger
        .requests()
        .filter(|r| !aborted(r))
        .filter_map(Request::waiting_since);
    let open = waits.fold((0, 0), |(n, longest), at| (n + 1, now.since(at).max(longest)));
    GapLine {
        seen: ledger.sees_gaps(),
        window: recent(ledger.gap(), now),
        whole: whole(ledger.gap()),
        worst_rid: ledger.worst_gap().map(|w| w.rid.to_string()).unwrap_or_default(),
        open: ledger.sees_gaps().then_some(open),
    }
}

fn chunks(ledger: &Ledger) -> ChunkSums {
    let totals = ledger.totals();
    let delivered = ledger.sees_deliveries().then_some(totals.chunks.fates);
    let predicted = Some(totals.predicted).filter(|p| p.wakeups_seen);
    ChunkSums {
        sent: totals.chunks.sent,
        taken: ledger.sees_takes().then_some(totals.chunks.taken),
        delivered: delivered.map(|f| f.delivered),
        coalesced: delivered.map(|f| f.coalesced),
        dropped: delivered.map(|f| f.dropped),
        tokens_lost: delivered.map(|f| f.tokens_lost),
        dropped_predicted: predicted.map(|p| p.dropped),
        coalesced_predicted: predicted.map(|p| p.coalesced),
        missing_on_wire: totals.wire_loss.1,
    }
}

/// Merged and lost chunks so far: confirmed if deliveries are observable, else predicted.
fn harm(ledger: &Ledger) -> Option<Harm> {
    let sums = chunks(ledger);
    let confirmed = sums.coalesced.zip(sums.dropped);
    confirmed
        .or(sums.coalesced_predicted.zip(sums.dropped_predicted))
        .map(|(merged, lost)| Harm { merged, lost })
}

fn own(ledger: &Ledger, outside: &Outside) -> Own {
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

fn new_row(write: impl FnOnce(&mut Row)) -> Row {
    let mut row = Row::default();
    write(&mut row);
    row
}

/// Values shared by all rows of one refresh.
struct Look {
    now: MonoNs,
    sees_gaps: bool,
    sees_takes: bool,
    keeps_last: bool,
    gap_ns: u64,
    stalled_ns: u64,
}

impl Look {
    fn new(analysis: &Analysis) -> Self {
        let (ledger, thresholds) = (analysis.ledger(), analysis.thresholds());
        Self {
            now: ledger.now(),
            sees_gaps: ledger.sees_gaps(),
            sees_takes: ledger.sees_takes(),
            keeps_last: ledger.predicts_drops(),
            gap_ns: thresholds.gap_warning_ns,
            stalled_ns: thresholds.stalled_ns,
        }
    }

    /// `heard`: no observation of the request was missed since it was last seen.
    fn request(&self, from: &Request, heard: bool, row: &mut Row) {
        let over = from.finish().is_some();
        // The scheduler can finish a request whose first token nobody has received: that wait matters most.
        let waiting_since = from.waiting_since().filter(|_| self.sees_gaps);
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
        row.taken = self.sees_takes.then_some(from.tokens_taken().into());
        row.delivered = fates.map(|_| from.tokens_delivered().into());
        row.chunks = from.chunks_sent().into();
        row.coalesced = fates.map(|f| f.coalesced);
        row.dropped = fates.map(|f| f.dropped);
        row.dropped_tokens = fates.map_or(0, |f| f.tokens_lost);
        row.lost = lost(fates.map(|f| f.tokens_lost), from.wire_missing());
        row.prompt = from.prompt_tokens().map(u64::from);
        row.retractions = from.retractions().into();
        let stalled = !over && heard && self.now.since(from.last_at()) >= self.stalled_ns;
        row.flags = self.flags(row, from.wire_missing(), from.bursts(), from.inflated(), stalled);
    }

    fn summary(&self, from: &Summary, row: &mut Row) {
        row.rid.clear();
        row.rid.push_str(&from.rid);
        row.life = match from.finish {
            Some(trace::event::Finish::Abort) => Life::Aborted,
            Some(_) => Life::Done,
            None => Life::Gone,
        };
        row.age_ns = from.last_at.since(from.first_at);
        row.gap_ns = from.gap_ns;
        row.silence_ns = from.silence_ns;
        row.sent = from.tokens_sent.into();
        row.taken = self.sees_takes.then_some(from.tokens_taken.into());
        row.delivered = from.tokens_delivered.map(u64::from);
        row.chunks = from.chunks_sent.into();
        row.coalesced = from.coalesced.map(u64::from);
        row.dropped = from.dropped.map(u64::from);
        row.dropped_tokens = from.tokens_lost.unwrap_or(0).into();
        row.lost = lost(from.tokens_lost.map(u64::from), from.wire_missing);
        row.prompt = from.prompt_tokens.map(u64::from);
        row.retractions = from.retractions.into();
        row.worker = from.worker.map(u64::from);
        row.flags = self.flags(row, from.wire_missing, from.bursts, from.inflated, false);
    }

    fn flags(&self, row: &Row, missing: u32, bursts: bool, inflated: bool, stalled: bool) -> Flags {
        let mut flags = Flags::default();
        flags.set(Flag::Loss, missing > 0);
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

/// Tokens that will never arrive. Tokens missing on the wire are known wherever frames are decoded.
fn lost(dropped: Option<u64>, missing: u32) -> Option<u64> {
    match (dropped, missing) {
        (None, 0) => None,
        (dropped, missing) => Some(dropped.unwrap_or(0) + u64::from(missing)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::event::Finish;

    use super::super::query::Query;
    use super::super::ui::Sort;
    use super::super::units::count;
    use super::*;
    use crate::state::scene::{MS, Scene};

    /// If such requests appeared as done, they would hide the backlog.
    #[test]
    fn a_request_that_nobody_has_taken_waits_though_the_scheduler_is_done_with_it() {
        let mut scene = Scene::delivering();
        scene.send(0, &[("a", 1, 1)]);
        scene.finish(10 * MS, &[("a", 1, 2)], Finish::Stop);
        scene.tick(5_000 * MS);
        let mut model = Model::default();
        model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &BTreeSet::new());
        model.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
        let row = model.visible(0).expect("a row");
        assert_eq!(
            (row.life, row.gap_ns, row.age_ns, row.flags.has(Flag::Gap)),
            (Life::Waiting, Some(5_000 * MS), 5_000 * MS, true)
        );
        scene.take(6_000 * MS, 0, 1);
        model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &BTreeSet::new());
        model.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
        assert_eq!(model.visible(0).map(|row| row.life), Some(Life::Done));
    }

    #[test]
    fn requests_with_lost_tokens_and_pinned_ones_outlive_newer_ordinary_ones_in_the_table() {
        let mut scene = Scene::delivering();
        for n in 0..6_u64 {
            let (rid, at) = (format!("r{n}"), n * 100 * MS);
            scene.send(at, &[(&rid, 1, 1)]);
            scene.send(at + MS, &[(&rid, 1, 2)]);
            scene.finish(at + 2 * MS, &[(&rid, 1, 3)], Finish::Stop);
            for frame in 0..3 {
                scene.take(at + 3 * MS + frame, n * 3 + frame, n * 3 + frame);
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
        model.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
        let mut rids: Vec<&str> = model.table.visible_at(0..9).iter().map(|r| r.rid.as_str()).collect();
        rids.sort_unstable();
        assert_eq!(rids, ["r0", "r1", "r5"]);
        assert_eq!((model.rows_left_out, model.rows_forgotten), (3, 0));
    }

    #[test]
    fn a_pinned_request_outlives_its_summary_in_the_ledger() {
        let mut scene = Scene::delivering();
        scene.analysis.keep_within(trace::ledger::Limits {
            finished_kept: 2,
            ..trace::ledger::Limits::default()
        });
        let pins = BTreeSet::from(["r0".to_owned()]);
        let mut model = Model::default();
        for n in 0..4_u64 {
            let (rid, at) = (format!("r{n}"), n * 600_000 * MS);
            scene.send(at, &[(&rid, 1, 1)]);
            scene.finish(at + MS, &[(&rid, 1, 2)], Finish::Stop);
            (1..9).for_each(|n| scene.tick(at + n * 60_000 * MS));
            model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &pins);
        }
        model.arrange(&Query::default(), Sort::default(), &pins);
        let rids: Vec<&str> = model.table.visible_at(0..9).iter().map(|r| r.rid.as_str()).collect();
        assert_eq!((rids[0], rids.len(), model.rows_forgotten), ("r0", 3, 2));
    }

    #[test]
    fn a_second_of_the_history_keeps_its_largest_backlog_and_losses_apart_from_merged_chunks() {
        let mut scene = Scene::delivering();
        let mut model = Model::default();
        scene.send(0, &[("a", 1, 1)]);
        scene.take(MS, 0, 0);
        scene.tick(2 * MS);
        model.remember(&scene.analysis);
        for token in 2..29_u32 {
            scene.send((1_100 + u64::from(token)) * MS, &[("a", 1, token)]);
        }
        for (at, from) in [(1_000, 0), (1_200, 0), (1_800, 1)] {
            (from..28 * from).for_each(|seq| scene.take(1_700 * MS, seq, 1));
            if from > 0 {
                scene.deliver(1_750 * MS, "a", 1, 28);
            }
            scene.tick(at * MS);
            model.remember(&scene.analysis);
        }
        let of = |metric: crate::state::history::Metric<Sample>| model.history.series(metric, 1, 1, 1)[0];
        assert_eq!(
            of(|s| s.backlog),
            Some(27.0),
            "all were taken before the second was over"
        );
        assert_eq!((of(|s| s.lost), of(|s| s.merged)), (Some(27.0), Some(0.0)));
        let hop = model.hop_history["scheduler->tokenizer"].series(|s| s.backlog.map(f64::from), 1, 1, 1);
        assert_eq!(hop, [Some(27.0)]);
    }

    proptest! {
        /// Detectors run every half second, but events arrive at any time. Figures shown in two places must still agree.
        #[test]
        fn banner_findings_sums_and_rows_are_of_one_instant(
            requests in prop::collection::vec((1_u32..6, any::<u8>(), 0_u64..700), 1..20),
        ) {
            let mut scene = Scene::delivering();
            let (mut at, mut seq) = (0, 0);
            for (n, &(tokens, lacking, pause)) in requests.iter().enumerate() {
                let rid = format!("r{n}");
                for token in 1..=tokens {
                    scene.send(at, &[(&rid, 1, token)]);
                    scene.take(at + MS, seq, seq);
                    seq += 1;
                    if lacking & (1 << token) == 0 {
                        scene.deliver(at + 2 * MS, &rid, 1, token);
                    }
                    at += 3 * MS;
                    scene.tick(at);
                }
                at += pause * MS;
            }
            let mut model = Model::default();
            model.refresh(&scene.analysis, &Outside::default());
            model.refresh_rows(&scene.analysis, FINISHED_SHOWN, &BTreeSet::new());
            model.arrange(&Query::default(), Sort::default(), &BTreeSet::default());
            let rows = model.table.visible_at(0..model.visible_count());
            let sum = |of: fn(&Row) -> Option<u64>| rows.iter().filter_map(|row| of(row)).sum::<u64>();
            let lost = model.chunks.tokens_lost.unwrap_or(0);
            prop_assert_eq!(sum(|row| row.lost), lost);
            prop_assert_eq!(Some(sum(|row| row.dropped)), model.chunks.dropped);
            prop_assert_eq!(sum(|row| Some(row.sent)), model.flow.tokens_sent);
            prop_assert_eq!(Some(sum(|row| row.delivered)), model.flow.tokens_delivered);
            prop_assert_eq!(rows.len() as u64, model.flow.seen);
            let finding = model.findings.iter().find(|f| f.kind == "dropped-chunks");
            prop_assert_eq!(finding.is_some(), lost > 0);
            if let Some(finding) = finding {
                let said = |name: &str| finding.evidence.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
                prop_assert_eq!(said("tokens lost"), Some(count(lost)));
                prop_assert_eq!(said("chunks dropped"), model.chunks.dropped.map(count));
                let harmed = rows.iter().filter(|row| row.lost > Some(0)).count();
                prop_assert_eq!(said("requests"), Some(count(harmed as u64)));
                prop_assert_eq!(&model.verdict.text, &finding.summary);
            }
        }
    }
}
