//! Updates the model from the analysis. All output is bounded: hops and findings are few, rows are capped, strings are reused.

use std::collections::BTreeSet;

use outputs::report::{
    Chunks, FindingSpan, Itl, LegLine, Requests, SeenTraffic, StackLine, Tokens, TtftReport, advise_on_unjudged, bar,
    describe_bottleneck, describe_observation_ends, headline_of_finding, headline_without_warning, judgements,
};
use trace::detect::{Finding, Severity};
use trace::engine::{Mode, Waiter};
use trace::ledger::{Ledger, Request, RequestSummary, UnansweredRequest};
use trace::stats::Spread;
use trace::time_series::RecentTraffic;
use trace::{Analysis, MonoNs};

use super::curves::Curves;
use super::flags::{Health, RunVerdict, describe_requests_hit, describe_ttft_share};
use super::model::{FirstTokenGap, Model, RunValues, SendRates};
use super::pinned::PinnedHistories;
use super::pods::{KeyFigures, WorstLeg, sum_known};
use super::receiver_changes::{describe_receiver_changes, receiver_changes};
use super::request_detail::RequestDetail;
use super::request_facts::RequestFacts;
use super::request_row::RequestRow;
use super::row_writer::RowWriter;
use super::run_time::RunClock;
use super::waiting::WaitingRequests;
use super::{hops, threads};

/// Default number of finished requests in the table; the report counts all of them.
pub const FINISHED_SHOWN: usize = 2_000;

impl Model {
    /// Updates everything except rows and detail.
    pub(crate) fn refresh(&mut self, analysis: &Analysis, run: RunValues) {
        let ledger = analysis.ledger();
        self.engine = describe_engine(ledger);
        self.started_at = ledger.started().unwrap_or_default();
        self.running_ns = ledger.now().since(self.started_at);
        self.curves = Curves::from_analysis(analysis);
        self.recent_window = ledger.recent_window();
        let traffic = self.curves.traffic_in(self.recent_window);
        self.send_rates = scheduler_send_rates(ledger, &traffic);
        self.requests = Requests::of_ledger(ledger);
        self.abandoned_requests = ledger.abandoned_requests().requests;
        self.unanswered_requests = ledger.unanswered_requests().count() as u64;
        let answers = &ledger.totals().answers;
        self.error_responses = answers.rejected.values().sum::<u64>() + answers.failed;
        self.tokens = Tokens::of_ledger(ledger);
        self.gap = first_token_gap(ledger);
        self.chunks = Chunks::of_ledger(ledger);
        self.receives_end = ledger.receives_end();
        self.sends_end = ledger.sends_end();
        self.deliveries_end = ledger.deliveries_end();
        // Known under the same conditions as predicted drops.
        self.merged_predicted = self.chunks.dropped_predicted.map(|_| ledger.totals().predicted.merged);
        self.itl = Itl::of_ledger(ledger);
        // At this instant, as the report has them: those of the last detector run may be older than the numbers beside them.
        let findings = analysis.findings_now();
        self.findings = findings.sorted_worst_first().into_iter().cloned().collect();
        // The first finding need not explain most.
        self.worst_rank = self.findings.iter().map(|finding| findings.rank(finding)).max().unwrap_or_default();
        self.hops = hops::summarise_hops(ledger, &self.findings, &traffic);
        let path = LegLine::all_legs(&analysis.attribution());
        self.first_token_path = bar::path_segments(&path);
        self.first_token_end = bar::ends_of_path(&path).map(|ends| ends.to.to_owned());
        let ttft = TtftReport::new(ledger);
        self.ttft_absences = match &ttft {
            Some(ttft) => ttft.describe_absent_moments(),
            None => vec!["requests on their way to the scheduler".to_owned()],
        };
        self.bottleneck = describe_bottleneck(ttft.as_ref());
        self.ttft = ttft.and_then(TtftReport::into_main_group);
        self.threads = threads::thread_lines(ledger);
        self.stacks = StackLine::all_roles(ledger).unwrap_or_default();
        // Made of the findings and counts above.
        self.verdict = self.judge_run(ledger, &run.source);
        let totals = ledger.totals();
        let missed = totals.missed.reported() + totals.missed.unannounced;
        self.run = RunValues { missed, undecoded: totals.undecoded, ..run };
        self.run.degraded.extend(ledger.degraded_reason_lines());
        let ends = describe_observation_ends(ledger, |at| self.format_moment(at.since(self.started_at)));
        self.run.degraded.extend(ends);
    }

    /// Updates the table rows: every live request and up to `max_finished` finished ones. Slow, pinned and lossy requests take precedence
    /// over newer ones.
    pub(crate) fn refresh_rows(&mut self, analysis: &Analysis, max_finished: usize, pins: &BTreeSet<String>) {
        let ledger = analysis.ledger();
        let writer = RowWriter::new(ledger);
        self.table.clear();
        self.table.clock =
            RunClock { started: ledger.started().unwrap_or_default(), wall_start_ns: self.wall_start_ns };
        for request in ledger.requests() {
            writer.write_live_request(request, self.table.add_row_with_old_values());
        }
        for request in ledger.unanswered_requests() {
            // These have no entry among the requests, since the scheduler sent nothing for them.
            writer.write_unanswered(&request, self.table.add_row_with_old_values());
        }
        let finished_count = ledger.finished_count();
        self.rows_left_out = finished_count.saturating_sub(max_finished) as u64;
        self.rows_evicted = ledger.totals().requests.closed.saturating_sub(finished_count as u64);
        let has_precedence = |summary: &RequestSummary| ledger.is_notable(summary) || pins.contains(&*summary.rid);
        // Counting the requests with precedence takes time, and is not needed if all requests fit.
        let precedent_count = if self.rows_left_out == 0 {
            0
        } else {
            ledger.finished().filter(|summary| has_precedence(summary)).count().min(max_finished)
        };
        let mut rows_for_precedent = precedent_count;
        let mut rows_for_others = max_finished - precedent_count;
        let mut pinned_rids = BTreeSet::new();
        for summary in ledger.finished().rev() {
            // Keeps the newest summary if the rid was reused.
            if pins.contains(&*summary.rid) && pinned_rids.insert(&*summary.rid) {
                self.pinned.insert(summary.rid.to_string(), summary.clone());
            }
            let is_precedent = self.rows_left_out > 0 && has_precedence(summary);
            let rows_left = if is_precedent { &mut rows_for_precedent } else { &mut rows_for_others };
            if *rows_left > 0 {
                *rows_left -= 1;
                writer.write_finished_request(summary, self.table.add_row_with_old_values());
            }
        }
        self.pinned.retain(|rid, _| pins.contains(rid));
        // Pinned requests that the ledger has evicted.
        for (rid, summary) in &self.pinned {
            if !pinned_rids.contains(&**rid) && ledger.request(rid).is_none() {
                writer.write_finished_request(summary, self.table.add_row_with_old_values());
            }
        }
    }

    /// Reads everything known of a request into [`Self::detail`]. The request is live, unanswered or finished. A pinned one may be known
    /// only to this model, because the ledger has evicted it.
    pub(crate) fn refresh_request_detail(&mut self, analysis: &Analysis, kept_histories: &PinnedHistories, rid: &str) {
        let ledger = analysis.ledger();
        let live = ledger.request(rid);
        let unanswered = ledger.unanswered_requests().find(|unanswered| unanswered.rid == rid);
        let is_open = live.is_some() || unanswered.is_some();
        let finished = if is_open { None } else { self.finished_request(ledger, rid) };
        let row = row_of_request(ledger, live, unanswered.as_ref(), finished);
        let numbers = row.as_ref().map(|row| row.numbers).unwrap_or_default();
        let history = kept_histories.longest_history(ledger, rid);
        let mut facts = RequestFacts::from_ledger(ledger, live, finished, rid);
        facts.receiver_changes = receiver_changes(&history, &hops::output_hop_ends(ledger));
        let life = ledger.life_of_request(rid, &history, &numbers);
        self.detail = Some(RequestDetail::new(rid, &history, life, row, ledger.engine(), facts));
    }

    /// The finished request with this rid, the newest one if the rid was reused. If the ledger has evicted it, the copy that is kept of a
    /// pinned request; `None` without one.
    fn finished_request<'a>(&'a self, ledger: &'a Ledger, rid: &str) -> Option<&'a RequestSummary> {
        let in_ledger = ledger.finished().rev().find(|summary| &*summary.rid == rid);
        in_ledger.or_else(|| self.pinned.get(rid))
    }

    /// Describes how the chunks of the worst request of the finding with this index went from one receiver to another. Clears the
    /// description if the finding is about something else.
    pub(crate) fn refresh_receiver_changes(
        &mut self,
        analysis: &Analysis,
        kept_histories: &PinnedHistories,
        finding_index: usize,
    ) {
        self.receiver_changes = None;
        let selected = self.findings.get(finding_index);
        // The only kind of finding that is about receivers.
        let Some(finding) = selected.filter(|finding| finding.kind == "rid-changed-worker") else { return };
        let ledger = analysis.ledger();
        let history = kept_histories.longest_history(ledger, &finding.verdict.rid);
        let changes = receiver_changes(&history, &hops::output_hop_ends(ledger));
        self.receiver_changes = describe_receiver_changes(&changes);
    }

    /// Verdict on the run: the most severe finding or, without a warning, what the run shows.
    fn judge_run(&self, ledger: &Ledger, source: &str) -> RunVerdict {
        // As in the report's headline, a finding that is over keeps its severity.
        match self.findings.first() {
            Some(worst) if worst.verdict.severity > Severity::Info => self.verdict_of_finding(worst, ledger),
            _ => self.verdict_without_warning(ledger, source),
        }
    }

    /// Verdict on a run whose most severe finding is this one.
    fn verdict_of_finding(&self, worst: &Finding, ledger: &Ledger) -> RunVerdict {
        let now = ledger.now();
        let all = self.findings.iter().map(|finding| FindingSpan::at(finding, now));
        let last_frame_at = ledger.output_groups().filter_map(|(_, group)| group.last_frame_at).max();
        let last_frame_ns = last_frame_at.map(|at| at.0);
        let summary = &worst.verdict.summary;
        let format_at = |at_ns| self.format_moment(MonoNs(at_ns).since(self.started_at));
        let text = headline_of_finding(FindingSpan::at(worst, now), all, last_frame_ns, summary, format_at);
        RunVerdict {
            health: worst.verdict.severity.into(),
            text,
            requests_hit: describe_requests_hit(&worst.verdict),
            ttft_share: describe_ttft_share(&worst.verdict),
            advice: worst.verdict.advice.clone(),
        }
    }

    /// Verdict on a run without a warning. The health is good only if every check had what it needs.
    fn verdict_without_warning(&self, ledger: &Ledger, source: &str) -> RunVerdict {
        let answers = &ledger.totals().answers;
        // The checks, each with whether the run shows what it needs.
        let checks = judgements(ledger);
        let traffic = SeenTraffic {
            requests: &self.requests,
            responses: answers.seen + answers.rejected.values().sum::<u64>(),
            errors: self.error_responses,
            source,
            bottleneck: &self.bottleneck,
        };
        let text = headline_without_warning(&checks, traffic, !self.findings.is_empty());
        let had_all_checks = checks.iter().all(|check| check.judged);
        let health = if had_all_checks {
            Health::Good
        } else if self.findings.is_empty() {
            Health::Unknown
        } else {
            // None of the findings is a warning.
            Health::Info
        };
        let has_traffic = self.requests.seen > 0 || traffic.responses > 0;
        let advice = if has_traffic { advise_on_unjudged(&checks, source).map(str::to_owned) } else { None };
        RunVerdict { health, text, advice, ..RunVerdict::default() }
    }
}

impl KeyFigures {
    /// Key figures of one run at this moment.
    pub fn from_analysis(analysis: &Analysis) -> Self {
        let mut model = Model::default();
        // The figures need none of the run loop's values.
        model.refresh(analysis, RunValues::default());
        let ttft = model.ttft.as_ref().filter(|ttft| ttft.ns.count > 0);
        Self {
            ttft_p50_ns: ttft.map(|ttft| ttft.ns.p50),
            ttft_p99_ns: ttft.map(|ttft| ttft.ns.p99),
            worst_leg: WorstLeg::find(ttft, waits_for_first_token_ns(analysis.ledger())),
            waiting: model.gap.requests_without_first_token(),
            finding: lasting_problem(&model.findings).map(str::to_owned),
            tokens_per_s: model.send_rates.map(|rates| rates.tokens),
            requests_live: model.requests.live,
            requests_seen: model.requests.seen,
            gap_p99_ns: model.gap.window.map(|window| window.p99),
            backlog_frames: sum_known(model.output_hops().map(|hop| hop.backlog_frames)),
            tokens_lost: model.chunks.tokens_lost,
            verdict: model.verdict,
            worst_rank: model.worst_rank,
        }
    }
}

/// Kind of the worst finding that lasts, of findings that are sorted by severity. `None` if no finding lasts, or if that one is only
/// information.
fn lasting_problem(findings: &[Finding]) -> Option<&'static str> {
    let worst = findings.iter().find(|finding| finding.active)?;
    if worst.verdict.severity > Severity::Info { Some(worst.kind) } else { None }
}

/// Current rates of the scheduler's sends; `None` if those are not observed any more, or if the run has just begun.
fn scheduler_send_rates(ledger: &Ledger, traffic: &RecentTraffic) -> Option<SendRates> {
    if ledger.sends_end().is_some() {
        return None;
    }
    let mut output_hops = ledger.hops().iter().filter(|hop| !hop.carries_requests);
    // The origin is the hop on which the scheduler sends. Until it is known, the first hop observed is the best guess.
    let origin = output_hops.clone().find(|hop| hop.origin).or_else(|| output_hops.next());
    let origin_rates = origin.and_then(|hop| hops::rates_of_group(ledger, hop.group, traffic));
    let tokens = traffic.per_second(traffic.tokens_sent)?;
    Some(SendRates { tokens, frames: origin_rates.map(|rates| rates.frames) })
}

/// Row of a request, from the first of the three that is given. `None` without any of them.
fn row_of_request(
    ledger: &Ledger,
    live: Option<&Request>,
    unanswered: Option<&UnansweredRequest<'_>>,
    finished: Option<&RequestSummary>,
) -> Option<RequestRow> {
    let writer = RowWriter::new(ledger);
    let mut row = RequestRow::default();
    if let Some(live) = live {
        writer.write_live_request(live, &mut row);
    } else if let Some(unanswered) = unanswered {
        writer.write_unanswered(unanswered, &mut row);
    } else {
        writer.write_finished_request(finished?, &mut row);
    }
    Some(row)
}

/// Describes the engine: its name and release, its output mode, and its waiter, each if it is known. An incremental chunk has only new
/// tokens, a cumulative one all tokens so far. The waiter is the coroutine that waits for a request's chunks, and is named by what it does
/// with several queued ones.
fn describe_engine(ledger: &Ledger) -> String {
    let engine = ledger.engine();
    let mode = engine.mode.map(|mode| match mode {
        Mode::Incremental => "incremental",
        Mode::Cumulative => "cumulative",
    });
    let waiter = engine.waiter.map(|waiter| match waiter {
        Waiter::KeepsLast => "keeps last chunk",
        Waiter::YieldsAll => "yields all chunks",
        Waiter::Merges => "merges chunks",
    });
    let mut text = engine.title();
    for part in [mode, waiter].into_iter().flatten() {
        text.push_str(", ");
        text.push_str(part);
    }
    text
}

/// Sum of the waits of the requests that have no first token yet: since their dispatch, or since their first token was sent.
fn waits_for_first_token_ns(ledger: &Ledger) -> u128 {
    let since_sent =
        ledger.requests().filter_map(Request::first_token_waiting_since).map(|sent| ledger.now().since(sent));
    ledger.dispatched_wait_ns() + since_sent.map(u128::from).sum::<u128>()
}

/// Requests whose first token was sent and has not been received.
fn waiting_first_tokens(ledger: &Ledger) -> WaitingRequests {
    let mut waiting = WaitingRequests::default();
    for sent_at in ledger.requests().filter_map(Request::first_token_waiting_since) {
        waiting.requests += 1;
        waiting.longest_wait_ns = waiting.longest_wait_ns.max(ledger.now().since(sent_at));
    }
    waiting
}

/// Reads the gaps between send and receive of first tokens from the ledger. Also counts the requests whose first token was sent and waits
/// now, and those whose first token was not sent yet.
fn first_token_gap(ledger: &Ledger) -> FirstTokenGap {
    let without_token = ledger.oldest_dispatched().map(|(_, oldest)| WaitingRequests {
        requests: ledger.dispatched_count() as u64,
        longest_wait_ns: ledger.now().since(oldest.sent),
    });
    FirstTokenGap {
        window: ledger.recent_gap(),
        whole: Spread::of_distribution(ledger.gap()),
        worst_rid: ledger.worst_gap().map(|worst| worst.rid.to_string()).unwrap_or_default(),
        // Where gaps are not observed, a wait that has ended may look open.
        waiting: if ledger.observes_gaps() { Some(waiting_first_tokens(ledger)) } else { None },
        without_token,
    }
}

#[cfg(test)]
mod tests {
    use outputs::report::Report;
    use proptest::prelude::*;
    use trace::ReportInput;

    use super::super::filter::RequestFilter;
    use super::super::flags::Flag;
    use super::super::request_row::RequestState;
    use super::super::request_table::SortOrder;
    use super::*;
    use trace::event::{Capabilities, Dispatch, DispatchKind, DispatchedRequest, Finish, Hop, Received, What};
    use trace::ledger::Limits;
    use trace::{FrameId, HopId};

    use crate::state::tests::scene::{MS, Scene};

    /// Rows of the table in its default order, with up to `shown` finished requests.
    fn rows<'a>(model: &'a mut Model, scene: &Scene, shown: usize, pins: &BTreeSet<String>) -> Vec<&'a RequestRow> {
        model.refresh_rows(&scene.analysis, shown, pins);
        model.table.arrange_shown_rows(&RequestFilter::default(), SortOrder::default(), pins);
        model.table.visible_rows(0..model.table.visible_count())
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
            (row.state, row.gap_ns, row.last_at.since(row.first_at), row.flags.contains(Flag::Gap)),
            (RequestState::Waiting, Some(5_000 * MS), 5_000 * MS, true)
        );
        scene.receive(6_000 * MS, 0, 1);
        assert_eq!(rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new())[0].state, RequestState::Live);
        model.refresh(&scene.analysis, RunValues::default());
        assert_eq!((model.requests.live, model.requests.ends_in_transit, model.requests.completed), (1, 1, Some(0)));
        scene.receive(6_001 * MS, 1, 2);
        assert_eq!(rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new())[0].state, RequestState::Finished);
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
    fn an_unanswered_request_has_a_row_and_a_detail() {
        let mut scene = Scene::delivering();
        let both = Capabilities::SENT | Capabilities::RECEIVED;
        scene.emit(0, What::Hop(Hop::with_requests(HopId(7), "tokenizer->scheduler", both)));
        for number in 0..400_u64 {
            let (at, rid) = (number * 100 * MS, format!("r{number}"));
            let request = Some(DispatchedRequest { prompt_tokens: Some(9), ..DispatchedRequest::new(&rid) });
            let id = FrameId::new(HopId(7), 0, number);
            let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
            scene.emit(at, What::Dispatched(dispatch));
            if number > 0 {
                scene.emit(at, What::Received(Received::new(id)));
                scene.send(at + MS, &[(&rid, 1, 1)]);
            }
            scene.tick(at + 2 * MS);
        }
        let mut model = Model::default();
        let rows = rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new());
        let row = rows.iter().find(|row| row.rid == "r0").expect("a row");
        assert_eq!((row.state, row.prompt_tokens), (RequestState::Waiting, Some(9)));
        assert!(row.flags.contains(Flag::Stall));
        model.refresh_request_detail(&scene.analysis, &PinnedHistories::default(), "r0");
        let detail = model.detail.as_ref().expect("a detail");
        assert_eq!((detail.stages.len(), detail.evidence.len()), (1, 1));
        assert!(detail.evidence[0].text.contains("answered later requests"), "{:?}", detail.evidence);
    }

    #[test]
    fn unanswered_requests_are_those_at_this_moment_on_the_screen_and_in_the_report() {
        let mut scene = Scene::delivering();
        let both = Capabilities::SENT | Capabilities::RECEIVED;
        scene.emit(0, What::Hop(Hop::with_requests(HopId(7), "tokenizer->scheduler", both)));
        for number in 0..400_u64 {
            let (at, rid) = (number * 100 * MS, format!("r{number}"));
            let id = FrameId::new(HopId(7), 0, number);
            let request = Some(DispatchedRequest::new(&rid));
            let kind = DispatchKind::Requests;
            scene.emit(at, What::Dispatched(Dispatch { id, bytes: 900, kind, index: 0, request }));
            scene.emit(at, What::Received(Received::new(id)));
            if number > 0 {
                scene.send(at + MS, &[(&rid, 1, 1)]);
            }
            scene.tick(at + 2 * MS);
        }
        let numbers = |scene: &Scene| {
            let mut model = Model::default();
            model.refresh(&scene.analysis, RunValues::default());
            let report = Report::of(&scene.analysis, &ReportInput::for_source("attach"));
            let dispatched = report.dispatched.expect("dispatches are observed");
            [model.unanswered_requests, dispatched.unanswered, dispatched.unanswered_total]
        };
        assert_eq!(numbers(&scene), [1, 1, 1]);
        scene.send(41_000 * MS, &[("r0", 1, 1)]);
        scene.tick(41_100 * MS);
        assert_eq!(numbers(&scene), [0, 0, 1]);
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
            let rows: Vec<RequestRow> =
                rows(&mut model, &scene, FINISHED_SHOWN, &BTreeSet::new()).into_iter().cloned().collect();
            let sum = |of: fn(&RequestRow) -> Option<u64>| rows.iter().filter_map(of).sum::<u64>();
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
                prop_assert!(model.verdict.text.ends_with(&finding.verdict.summary), "{}", model.verdict.text);
            }
        }
    }
}
