//! Builds a report from ledger, findings and the data that the application adds.

use serde_json::Value;
use trace::clock::MonoNs;
use trace::detect::attribution::{HopReceiver, mean_busy_share};
use trace::detect::imbalance;
use trace::event::ThreadPart;
use trace::ledger::{Hop, HopGroup, Ledger, Thread};
use trace::stats::Spread;
use trace::{Analysis, ReportInput};

use super::abandoned::abandoned_report;
use super::answers::answer_counts;
use super::finding::finding_lines;
use super::frontend::summarise_frontend_waits;
use super::judged::{describe_observation_ends, headline, judgements};
use super::losses::collect_losses;
use super::series::build_series;
use super::slowest::slowest_lines;
use super::tool_calls::tool_call_counts;
use super::ttft::TtftReport;
use super::{
    Chunks, Clock, CpuLine, Dispatched, EngineTimesCounts, Gap, HopLine, Itl, LaneLine, LegLine, LimitLine,
    NewConnectionsReport, Own, Report, Requests, SCHEMA, Source, StackLine, Tokens, UnansweredRow, WorkerLine, modes,
    stages,
};

/// Threads that need less than this share of a CPU are left out, except main threads and receivers.
const MIN_SHARE: f64 = 0.005;
/// Maximum number of connections listed per line, busiest first.
const MAX_LANES: usize = 64;
/// Maximum number of unanswered requests listed, oldest first.
const MAX_UNANSWERED: usize = 16;

/// Builds the report of the run so far.
pub(super) fn build_report(analysis: &Analysis, input: &ReportInput) -> Report {
    let ledger = analysis.ledger();
    // Debug builds panic here if the ledger's sums do not agree.
    ledger.debug_check_balance();
    // Without a window of the source, the capture reaches from the first event to the last.
    let (capture_start, capture_end) = input.window.unwrap_or((ledger.started().unwrap_or(ledger.now()), ledger.now()));
    let engine = ledger.engine();
    let findings = analysis.findings_now();
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        verdict: String::new(),
        severity: findings.worst(),
        judged: judgements(ledger),
        source: Source {
            kind: input.kind.clone(),
            engine: engine.facts().name().to_owned(),
            engine_version: engine.version.as_deref().map(str::to_owned),
            mode: engine.mode.or(modes::output_mode_of_deliveries(ledger)),
            waiter: engine.waiter,
            wire: input.wire.clone(),
            drops_fixed_in: engine.facts().drops().map(|drops| drops.fixed_in.to_owned()),
        },
        window_ns: [0, capture_end.since(capture_start)],
        window_mono_ns: [capture_start.0, capture_end.0],
        window_wall_ns: input.wall.map(|wall| [capture_start, capture_end].map(|at| wall.wall_ns_at(at))),
        requests: Requests::of_ledger(ledger),
        dispatched: Dispatched::of_ledger(ledger, capture_start),
        ttft: TtftReport::new(ledger),
        new_connections: NewConnectionsReport::of_ledger(ledger),
        pair: None,
        engine_times: EngineTimesCounts::of_ledger(ledger),
        tokens: Tokens::of_ledger(ledger),
        gap_ns: ledger.observes_gaps().then(|| first_token_gap(ledger)),
        slowest: slowest_lines(ledger, input.slowest, capture_start, capture_end),
        chunks: Chunks::of_ledger(ledger),
        losses: collect_losses(ledger, capture_start),
        answers: answer_counts(ledger),
        rejected: ledger.totals().answers.rejected.clone(),
        tool_calls: tool_call_counts(ledger, capture_start),
        abandoned: abandoned_report(ledger, capture_start),
        frontend: summarise_frontend_waits(ledger),
        itl_ns: Itl::of_ledger(ledger),
        modes: modes::mode_report(ledger),
        hops: (0..ledger.groups().len())
            .filter_map(|index| hop_line(ledger, index, capture_start, capture_end))
            .collect(),
        path: LegLine::all_legs(&analysis.attribution()),
        cpu: thread_use_lines(ledger),
        stages: stages::stage_report(ledger, input.slowest, capture_start),
        stacks: StackLine::all_roles(ledger),
        series: build_series(ledger, analysis.time_series(), capture_start, capture_end),
        findings: finding_lines(&findings, capture_start),
        own: observation_cost(ledger, input),
        limits: ledger
            .limits()
            .iter()
            .map(|limit| (limit.name.to_owned(), LimitLine { limit: limit.limit as u64, reached: limit.times }))
            .collect(),
        demo: input.demo.clone(),
    };
    let in_utc = None;
    let clock = Clock::of(&report, in_utc);
    report.verdict = headline(&report, &clock);
    let ends = describe_observation_ends(ledger, |at| clock.describe_moment_in_zone(at.since(capture_start)));
    report.own.degraded.extend(ends.into_iter().map(Value::String));
    report
}

impl Requests {
    /// Numbers of requests so far, by outcome. `ledger` is the state of the analysis.
    pub fn of_ledger(ledger: &Ledger) -> Self {
        let counts = ledger.totals().requests;
        Self {
            seen: counts.seen,
            // Those whose end the scheduler has sent, whether by an abort or not.
            finished: counts.finished,
            // For a client, a request ends when the tokenizer has received its end.
            completed: Some(counts.completed - counts.ends_in_transit),
            aborted: counts.aborted,
            live: ledger.live_count(),
            ends_in_transit: counts.ends_in_transit,
            joined_late: counts.joined_late,
            overwritten: counts.overwritten,
            orphaned: counts.orphaned,
            health_checks: counts.health_checks,
        }
    }
}

impl Dispatched {
    /// Numbers of requests sent to the scheduler so far, with the longest unanswered ones; `None` if no message to it was observed.
    pub fn of_ledger(ledger: &Ledger, capture_start: MonoNs) -> Option<Self> {
        let is_observed = ledger.groups().iter().any(|group| group.carries_requests);
        if !is_observed {
            return None;
        }
        let counts = ledger.totals().dispatched;
        Some(Self {
            requests: counts.requests,
            aborts: counts.aborts,
            // Requests without a token so far.
            waiting: ledger.dispatched_count() as u64,
            waiting_longest_ns: ledger.oldest_dispatched().map(|(_rid, oldest)| ledger.now().since(oldest.sent)),
            unanswered: ledger.unanswered_requests().count() as u64,
            unanswered_total: counts.unanswered,
            unanswered_longest: longest_unanswered(ledger, capture_start),
        })
    }
}

/// The requests that have waited longest while later ones were answered, with times since the start of the capture.
fn longest_unanswered(ledger: &Ledger, capture_start: MonoNs) -> Vec<UnansweredRow> {
    let longest = ledger.unanswered_requests().take(MAX_UNANSWERED);
    let rows = longest.map(|request| UnansweredRow {
        rid: request.rid.to_owned(),
        since_ns: request.dispatch.sent.since(capture_start),
        scheduler_received_ns: request.dispatch.received.map(|received| received.since(capture_start)),
        prompt_tokens: request.dispatch.prompt_tokens,
        answered_since: request.answered_since,
    });
    rows.collect()
}

impl EngineTimesCounts {
    /// Number of requests for which the engine stated times so far, and why it states none for others; `None` if none of its output was
    /// observed.
    pub fn of_ledger(ledger: &Ledger) -> Option<Self> {
        // Without the engine's output, the absence of its times says nothing about the engine.
        ledger.output_groups().next()?;
        let counts = ledger.totals().engine_times;
        let absent = ledger.reasons_for_absent_engine_times();
        Some(Self {
            requests: counts.requests,
            impossible: counts.impossible,
            // Why some entries, and some ends of the prefill, are absent.
            absent: absent.entries.to_owned(),
            prefill_absent: absent.prefill_end.to_owned(),
        })
    }
}

impl Tokens {
    /// Numbers of tokens so far, by the stages that they reached. `None` for a stage that is not observed.
    pub fn of_ledger(ledger: &Ledger) -> Self {
        let totals = ledger.totals();
        Self {
            sent: totals.tokens.sent,
            // 0 would say that none was received.
            received: ledger.observes_receives().then_some(totals.tokens.received),
            delivered: ledger.tokens_delivered(),
            uncounted: ledger.observes_deliveries().then_some(totals.tokens.uncounted),
            missing_on_wire: totals.wire_loss.total,
        }
    }
}

impl Itl {
    /// Inter-token latency so far, at the engine's sends and at the deliveries to clients, if those are observed.
    pub fn of_ledger(ledger: &Ledger) -> Self {
        let mut itl = Self {
            sent: Spread::of_distribution(ledger.itl_sent()),
            delivered: None,
            sent_by_token: Spread::of_distribution(ledger.itl_sent_by_token()),
            delivered_by_token: None,
        };
        if ledger.observes_deliveries() {
            itl.delivered = Spread::of_distribution(ledger.itl_delivered());
            itl.delivered_by_token = Spread::of_distribution(ledger.itl_delivered_by_token());
        }
        itl
    }
}

/// Distribution of the first-token gaps so far: the times from a request's first send to its first receive.
fn first_token_gap(ledger: &Ledger) -> Gap {
    let gap = ledger.gap();
    Gap {
        count: gap.count(),
        p50: gap.quantile(0.5),
        p90: gap.quantile(0.9),
        p99: gap.quantile(0.99),
        max: gap.max(),
        max_rid: ledger.worst_gap().map_or_else(String::new, |worst| worst.rid.to_string()),
        classes: gap.bucket_bounds_and_counts(),
    }
}

impl Chunks {
    /// Predicted drops, as texts and tables show them. `None` if they are unknown. A prediction of 0 also gives `None` where deliveries are
    /// not observed, because it then shows nothing.
    pub fn shown_prediction(&self) -> Option<u64> {
        self.dropped_predicted.filter(|chunks| *chunks > 0 || self.dropped_confirmed.is_some())
    }

    /// Numbers of chunks so far, by what became of them. `None` for an outcome that is not observed.
    pub fn of_ledger(ledger: &Ledger) -> Self {
        let totals = ledger.totals();
        let counts = totals.chunks;
        let outcomes = counts.outcomes;
        // Without deliveries, what became of a chunk is unknown, not 0.
        let observes_deliveries = ledger.observes_deliveries();
        // If no chunk was judged, counts of 0 would claim that none was merged or lost.
        let is_none_judged = outcomes.unjudged > 0 && outcomes.unjudged == outcomes.chunks();
        let are_judged = observes_deliveries && !is_none_judged;
        Self {
            sent: counts.sent,
            received: ledger.observes_receives().then_some(counts.received),
            delivered: observes_deliveries.then_some(outcomes.delivered),
            merged: are_judged.then_some(outcomes.merged),
            dropped_predicted: ledger.chunks_dropped_predicted(),
            dropped_confirmed: are_judged.then_some(outcomes.dropped),
            tokens_lost: are_judged.then_some(outcomes.tokens_lost),
            in_flight: observes_deliveries.then(|| ledger.undelivered_chunks()),
            unjudged: observes_deliveries.then_some(outcomes.unjudged),
        }
    }
}

/// Traffic of the group of hops with this index, over a window of this length; `None` if the group has no hops.
fn hop_line(ledger: &Ledger, group_index: usize, capture_start: MonoNs, capture_end: MonoNs) -> Option<HopLine> {
    let window_ns = capture_end.since(capture_start);
    let group: &HopGroup = &ledger.groups()[group_index];
    let members: Vec<&Hop> = ledger.hops_of_group(group_index).collect();
    // Renaming a hop can leave its old line without hops.
    if members.is_empty() {
        return None;
    }
    let observes_sends = members.iter().any(|hop| hop.capabilities().sent);
    let observes_forwards = members.iter().any(|hop| hop.capabilities().forwarded);
    let observes_receives = members.iter().any(|hop| hop.capabilities().received);
    let chunks = sum_over_hops(&members, |hop| hop.counts.chunks);
    // A hop that observes one end only has zero frames at the other.
    let frames = sum_over_hops(&members, |hop| hop.counts.frames_sent.max(hop.counts.frames_received));
    let observes_both_ends = observes_sends && observes_receives;
    // A maximum of 0 means that no wakeup was observed.
    let wakeup_frames_max = members.iter().map(|hop| hop.counts.wakeup_frames_max).max().filter(|&frames| frames > 0);
    let busy = mean_busy_share(ledger, members.iter().copied(), window_ns);
    let receiver = HopReceiver::of_hops(ledger, &members, busy, window_ns);
    // Without a sample of the thread, its shares are unknown.
    let spent = Some(receiver.spent).filter(|spent| spent.interval_ns > 0);
    Some(HopLine {
        name: group.name.clone(),
        carries_requests: group.carries_requests,
        frames_sent: observes_sends.then(|| sum_over_hops(&members, |hop| hop.counts.frames_sent)),
        frames_forwarded: observes_forwards.then(|| sum_over_hops(&members, |hop| hop.counts.frames_forwarded)),
        frames_received: observes_receives.then(|| sum_over_hops(&members, |hop| hop.counts.frames_received)),
        chunks,
        tokens: sum_over_hops(&members, |hop| hop.counts.tokens),
        bytes: sum_over_hops(&members, |hop| hop.counts.bytes),
        last_frame_ns: group.last_frame_at.map(|at| at.since(capture_start)),
        frames_per_s: rate_per_second(frames, window_ns),
        chunks_per_s: rate_per_second(chunks, window_ns),
        backlog_frames: observes_both_ends.then_some(group.backlog),
        backlog_max_frames: observes_both_ends.then_some(group.backlog_max),
        queue_wait_ns: Spread::of_distribution(&group.queue_wait),
        queue_wait_mean_ns: group.queue_wait.sum().checked_div(group.queue_wait.count().into()).map(|ns| ns as u64),
        queue_wait_classes: group.queue_wait.bucket_bounds_and_counts(),
        send_wait_ns: Spread::of_distribution(group.send_wait.whole()),
        relay_ns: Spread::of_distribution(&group.relay),
        processing_ns: Spread::of_distribution(&group.processing),
        recv_wait_ns: Spread::of_distribution(&group.recv_wait),
        wakeup_frames_max,
        wakeup_frames: Spread::of_distribution(&group.wakeups),
        kernel_bytes_max: group.kernel.bytes_max,
        inbox_max_frames: group.kernel.inbox_max,
        undecoded: ledger
            .undecoded_by_reason(group_index)
            .into_iter()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect(),
        busy,
        thread: spent.map(|_sampled| receiver.thread),
        on_cpu: spent.map(|spent| spent.share(spent.on_ns)),
        run_wait: spent.and_then(|spent| Some(spent.share(spent.starved_ns()?))),
        imbalance: imbalance(&members),
        rids_moved: group.moved.rids,
        out_of_order: group.out_of_order.rids,
        workers: (members.len() > 1)
            .then(|| members.iter().map(|hop| worker_line(ledger, hop, chunks, window_ns)).collect()),
        lanes: lane_lines(&members, chunks),
    })
}

/// Sum of a count of these hops.
fn sum_over_hops(hops: &[&Hop], count_of: fn(&Hop) -> u64) -> u64 {
    hops.iter().map(|hop| count_of(hop)).sum()
}

/// Number per second, if there are `count` in this time; zero before any time has passed.
fn rate_per_second(count: u64, window_ns: u64) -> f64 {
    if window_ns > 0 { count as f64 / (window_ns as f64 / 1e9) } else { 0.0 }
}

/// Share of `part` in `whole`; `None` if `whole` is 0.
fn share_of_whole(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The lanes of a group of hops with the same name: the single connections, each from one sender to one receiver. All together carry
/// `chunks_of_group`. `None` if no receiver has several senders.
fn lane_lines(members: &[&Hop], chunks_of_group: u64) -> Option<Vec<LaneLine>> {
    let mut lanes: Vec<LaneLine> = members.iter().flat_map(|hop| lanes_of_hop(hop, chunks_of_group)).collect();
    lanes.sort_by_key(|lane| (std::cmp::Reverse(lane.chunks), lane.worker, lane.lane));
    let receivers = members.iter().filter(|hop| hop.counts.chunks > 0).count();
    // More connections than receivers mean several senders. Counted before the list is cut.
    let has_several_senders = lanes.len() > receivers;
    lanes.truncate(MAX_LANES);
    if has_several_senders { Some(lanes) } else { None }
}

/// The lanes of a hop that carried chunks, each with its share in `chunks_of_group`.
fn lanes_of_hop(hop: &Hop, chunks_of_group: u64) -> Vec<LaneLine> {
    let lanes = hop.lanes().map(|(lane, counts)| LaneLine {
        lane,
        worker: hop.worker,
        frames: counts.frames,
        chunks: counts.chunks,
        tokens: counts.tokens,
        share: share_of_whole(counts.chunks, chunks_of_group),
    });
    lanes.filter(|lane| lane.chunks > 0).collect()
}

/// Load and queue of one worker. Several hops with the same name are a group, and each of them has a worker of its own as receiver or
/// sender. `chunks_of_group` is the number of chunks on all of them.
fn worker_line(ledger: &Ledger, hop: &Hop, chunks_of_group: u64, window_ns: u64) -> WorkerLine {
    let counts = hop.counts;
    let capabilities = hop.capabilities();
    WorkerLine {
        tokens: counts.tokens,
        share: share_of_whole(counts.chunks, chunks_of_group),
        queue_wait_ns: Spread::of_tally(&hop.queue_wait()),
        busy: mean_busy_share(ledger, std::iter::once(hop), window_ns),
        worker: hop.worker,
        endpoint: hop.endpoint.to_string(),
        frames_sent: capabilities.sent.then_some(counts.frames_sent),
        frames_received: capabilities.received.then_some(counts.frames_received),
        chunks: counts.chunks,
        bytes: counts.bytes,
        // A backlog is the difference of both.
        backlog_max_frames: (capabilities.sent && capabilities.received).then_some(counts.backlog_max),
    }
}

/// Cost of the observation, and what it missed.
fn observation_cost(ledger: &Ledger, input: &ReportInput) -> Own {
    let totals = ledger.totals();
    Own {
        cpu_ns: input.cpu_ns,
        rss_bytes: input.rss_bytes,
        events: totals.events,
        events_missed: totals.missed.reported(),
        missed_by_cause: totals.missed.by_cause().map(|(cause, count)| (cause.to_owned(), count)).into(),
        frames_unannounced: totals.missed.unannounced,
        frames_undecoded: totals.undecoded,
        degraded: input.degraded.iter().cloned().chain(ledger.degraded_reason_lines().map(Value::String)).collect(),
        sampling: input.sampling,
    }
}

/// Time use of threads: by process in the order first observed, main threads first; `None` without samples.
fn thread_use_lines(ledger: &Ledger) -> Option<Vec<CpuLine>> {
    let sampled: Vec<&Thread> = ledger.threads().iter().filter(|thread| thread.total().is_some()).collect();
    if sampled.is_empty() {
        return None;
    }
    let mut listed: Vec<&Thread> = sampled.iter().copied().filter(|thread| is_listed(thread)).collect();
    listed.sort_by_key(|thread| {
        let process_index = sampled.iter().position(|sampled| sampled.id.pid == thread.id.pid);
        (process_index, rank_in_process(thread), thread.id.tid)
    });
    Some(listed.into_iter().filter_map(thread_use_line).collect())
}

/// Rank of a thread in the list of its process: main threads first, then receivers.
fn rank_in_process(thread: &Thread) -> u8 {
    match (thread.part, thread.is_receiver()) {
        (Some(ThreadPart::Main), true) => 0,
        (Some(ThreadPart::Main), false) => 1,
        (_, true) => 2,
        (_, false) => 3,
    }
}

/// Whether the thread is busy, receives frames, or is a main thread.
fn is_listed(thread: &Thread) -> bool {
    let is_busy = thread.total().is_some_and(|spent| spent.share(spent.wanted_ns()) >= MIN_SHARE);
    is_busy || thread.is_receiver() || thread.part == Some(ThreadPart::Main)
}

/// Time use of a thread; `None` without a sample.
fn thread_use_line(thread: &Thread) -> Option<CpuLine> {
    let spent = thread.total()?;
    let id = thread.id;
    // A poll that has just begun has no share and no rate.
    let poll = thread.poll.filter(|poll| poll.interval_ns > 0);
    Some(CpuLine {
        role: thread.role.to_string(),
        pid: id.pid,
        tid: id.tid,
        name: thread.name.to_string(),
        receives: thread.is_receiver(),
        on_cpu: Some(spent.share(spent.on_ns)),
        run_wait: spent.starved_ns().map(|ns| spent.share(ns)),
        throttled: spent.throttled_ns().map(|ns| spent.share(ns)),
        // Share of the time in which the thread did not wait for events.
        away_from_poll: poll.map(|poll| 1.0 - poll.polled_ns as f64 / poll.interval_ns as f64),
        wakeups_per_s: poll.map(|poll| poll.wakeups as f64 * 1e9 / poll.interval_ns as f64),
    })
}
