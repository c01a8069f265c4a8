//! Model-based tests: random servers run random schedules, and the analysis is compared with a model that tracks every token.
//! Observation is complete, partial, late or lossy. Complete observation must give exact counts.
//! Incomplete observation must never produce a false finding.
//!
//! `PROPTEST_CASES` sets the number of cases, `TOKENGAP_MODEL_SEED` the seed.

mod events;
mod schedule;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use events::{OwnedEvent, RELAY_NS, id_at};
use outputs::report::{AnswerCounts, LossLine, Report};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseResult};
use recording::{BlockPacker, BlockReader, BlockWriter, Record, RecordedPayload};
use schedule::{Shape, Step};
use trace::event::{Missed, What};
use trace::ledger::{Limits, Losses};
use trace::{Analysis, Config, MonoNs, ReportInput};
use world::{Counts, LostTokens, RequestTruth, World};

const SECOND: u64 = 1_000_000_000;

/// Feeds observed events and ticks to an analysis. Checks that no counter decreases, and the ledger's invariants at the end: each tracked
/// chunk has exactly one outcome, and queue totals match their queues.
fn analyse(events: &[(u64, Option<OwnedEvent>)], config: Config) -> Result<Analysis, TestCaseError> {
    let mut analysis = Analysis::new(config);
    let mut before = counters(&analysis);
    for (at, event) in events {
        match event {
            Some(event) => event.pass_to(*at, |event| analysis.apply(event)),
            None => analysis.tick(MonoNs(*at)),
        }
        let now = counters(&analysis);
        prop_assert!(now.iter().zip(&before).all(|(now, before)| now >= before), "{before:?} {now:?}");
        before = now;
    }
    prop_assert_eq!(analysis.ledger().check_balance(), Ok(()));
    Ok(analysis)
}

fn counters(analysis: &Analysis) -> [u64; 16] {
    let totals = analysis.ledger().totals();
    let (tokens, chunks, requests) = (totals.tokens, totals.chunks, totals.requests);
    [
        totals.events,
        tokens.sent,
        tokens.received,
        tokens.delivered,
        chunks.sent,
        chunks.received,
        chunks.tracked,
        chunks.undelivered,
        chunks.outcomes.delivered,
        chunks.outcomes.merged,
        chunks.outcomes.dropped,
        chunks.outcomes.tokens_lost,
        chunks.outcomes.unjudged,
        requests.seen,
        requests.finished,
        totals.wire_loss.total,
    ]
}

fn report(analysis: &Analysis) -> Report {
    Report::of(analysis, &ReportInput::for_source("model"))
}

fn has_finding(report: &Report, kind: &str) -> bool {
    report.findings.iter().any(|finding| finding.kind == kind)
}

/// Converts the report to the model's counts.
fn counts(report: &Report) -> Counts {
    let (c, t, r) = (&report.chunks, &report.tokens, &report.requests);
    let answers = |of: fn(&AnswerCounts) -> u64| report.answers.as_ref().map_or(0, of);
    Counts {
        requests: r.seen,
        finished: r.finished,
        aborted: r.aborted,
        chunks_sent: c.sent,
        tokens_sent: t.sent,
        chunks_received: c.received.unwrap_or(0),
        tokens_received: t.received.unwrap_or(0),
        chunks_delivered: c.delivered.unwrap_or(0),
        tokens_delivered: t.delivered.unwrap_or(0),
        merged: c.merged.unwrap_or(0),
        dropped: c.dropped_confirmed.unwrap_or(0),
        tokens_lost: c.tokens_lost.unwrap_or(0),
        tokens_missing_on_wire: t.missing_on_wire,
        in_flight: c.in_flight.unwrap_or(0),
        answers: answers(|a| a.seen),
        client_left: answers(|a| a.client_left),
        server_left: answers(|a| a.server_left),
    }
}

fn no_false_findings(shape: Shape, steps: &[Step]) -> TestCaseResult {
    let world = World::run(shape, steps);
    check_no_false_findings(&world, &analyse(&world.events, Config::default())?)
}

fn requests_with_rid<'w>(world: &'w World, rid: &'w str) -> impl Iterator<Item = &'w RequestTruth> {
    world.requests.iter().filter(move |request| &*request.rid == rid)
}

/// Checks that every reported loss is real: in total, by request and by token position.
fn check_no_false_findings(world: &World, analysis: &Analysis) -> TestCaseResult {
    let (report, ledger, truth) = (report(analysis), analysis.ledger(), &world.counts);
    let reported = counts(&report);
    prop_assert!(reported.dropped <= truth.dropped, "{reported:?} {truth:?}");
    prop_assert!(reported.tokens_lost <= truth.tokens_lost, "{reported:?} {truth:?}");
    // A loss that a memory limit evicted may be counted again on the next hop. So may the loss of a request that reuses a rid,
    // if the end of the earlier request was missed.
    let evicted = ledger.limits().iter().any(|limit| limit.times > 0);
    let counted_again = evicted || (world.incomplete && world.shape.rids_reused);
    let limit = truth.tokens_missing_on_wire * if counted_again { 3 } else { 1 };
    prop_assert!(reported.tokens_missing_on_wire <= limit, "{reported:?} {truth:?}");
    // After the settle time, a finished request stops waiting for its last receives and deliveries.
    let inexact = evicted || world.now > Limits::default().settle_ns;
    // After an eviction, a later chunk can pass for the first of a new request. So can a chunk of a reused rid whose column does
    // not show its own tokens.
    let inexact = inexact || (world.incomplete && world.shape.rids_reused && !world.shape.column.shows_tokens());
    let delivered = reported.tokens_delivered <= truth.tokens_delivered + limit;
    prop_assert!(delivered || (inexact && !world.shape.column.shows_tokens()), "{reported:?} {truth:?}");
    let sums =
        reported.tokens_received <= truth.tokens_received + limit && reported.tokens_sent <= truth.tokens_sent + limit;
    prop_assert!(sums || inexact, "{reported:?} {truth:?}");
    prop_assert!(reported.chunks_sent <= truth.chunks_sent, "{reported:?} {truth:?}");
    let answers = |counts: &Counts| (counts.answers, counts.client_left, counts.server_left);
    prop_assert_eq!(answers(&reported), answers(truth));
    let tokens_short = report.answers.as_ref().map_or(0, |answers| answers.judged_alone_tokens_lost);
    prop_assert!(tokens_short <= world.tokens_short, "{tokens_short} {}", world.tokens_short);
    let lossy = ledger.lossy_requests().map(|lossy| (&*lossy.rid, lossy.confirmed.as_deref()));
    let live = ledger.requests().map(|request| (&*request.rid, request.losses()));
    for (rid, losses) in lossy.chain(live) {
        let Some(losses): Option<&Losses> = losses else { continue };
        for range in &losses.ranges {
            let [first, last] = range.tokens;
            let lost = |position| requests_with_rid(world, rid).any(|request| request.dropped.contains_key(&position));
            prop_assert!((first..=last).all(lost), "{rid}: {range:?}");
            let ids_match = (first..=last).zip(&range.ids).all(|(position, id)| *id == id_at(position));
            prop_assert!(ids_match, "{rid}: {range:?}");
        }
    }
    for (kind, possible) in [
        ("dropped-chunks", truth.dropped > 0),
        ("wire-loss", truth.tokens_missing_on_wire > 0),
        ("short-answers", world.tokens_short > 0),
        // If the wire loses the first and last frames of requests that share a rid, the remaining counts do not add up.
        ("wire-arithmetic", world.frame_lost),
        // First chunks of four requests with one rid, each longer than the last, look like a cumulative list.
        ("inflation", world.shape.rids_shared),
        // If counts were missed, a count may equal the sum of the others by chance.
        ("summed-counts", world.incomplete),
        // If the previous request's last frame was lost, the first chunk of the next one looks like a cumulative list.
        ("mode-mix", world.shape.rids_shared || world.frame_lost && world.shape.rids_reused),
        ("out-of-order", world.frame_lost),
        ("rid-changed-worker", world.frame_lost),
    ] {
        prop_assert!(possible || !has_finding(&report, kind), "{kind}: {:?}", report.findings);
    }
    for finding in report.findings.iter().filter(|finding| finding.kind == "stalled-stream") {
        let silent = |request: &RequestTruth| !request.finished && world.now - request.last_at >= 30 * SECOND;
        // The finding keeps the worst case, which may have ended since.
        let was_silent = finding.at_ns > 0 || requests_with_rid(world, &finding.rid).any(silent);
        prop_assert!(was_silent, "{finding:?}");
    }
    for finding in report.findings.iter().filter(|finding| finding.kind == "engine-silent") {
        let [at_ns, silence_ns] =
            ["silence_at_ns", "silence_ns"].map(|name| finding.evidence[name].as_u64().expect("a time"));
        let from = report.window_mono_ns[0] + at_ns;
        let to = from + silence_ns;
        // Frames lost on the wire were sent, too.
        let sent = world.engine_sent_at.iter().find(|at| (from + RELAY_NS..to).contains(*at));
        prop_assert!(sent.is_none(), "sent at {sent:?}: {finding:?}");
    }
    check_gaps(world, analysis)
}

/// Checks that every reported gap is the true gap of a request with that rid.
fn check_gaps(world: &World, analysis: &Analysis) -> TestCaseResult {
    let ledger = analysis.ledger();
    // Without a column of new ids, the first observed chunk of a request can pass for its first chunk.
    // On a later hop, the first chunks of two live requests with one rid are indistinguishable.
    if world.incomplete && !world.shape.column.shows_tokens() || world.shape.rids_shared {
        return Ok(());
    }
    let live = ledger.requests().map(|request| (&*request.rid, request.gap_ns()));
    let finished = ledger.finished().map(|summary| (&*summary.rid, summary.gap_ns));
    for (rid, gap) in live.chain(finished) {
        // If two requests share a rid and their ends were missed, their first tokens cannot be distinguished.
        let Some(gap) = gap.filter(|_| !world.incomplete || requests_with_rid(world, rid).count() == 1) else {
            continue;
        };
        let true_gap = |request: &RequestTruth| Some(request.first_received? - request.first_sent?);
        prop_assert!(requests_with_rid(world, rid).any(|request| true_gap(request) == Some(gap)), "{rid}: {gap}");
    }
    Ok(())
}

/// Checks that every collection stays within its limit.
fn check_limits(analysis: &Analysis, limits: &Limits) -> TestCaseResult {
    let ledger = analysis.ledger();
    prop_assert!(ledger.record_count() <= limits.live_rids);
    prop_assert!(ledger.finished_count() <= limits.finished_kept);
    prop_assert!(ledger.hops().len() <= limits.hops);
    prop_assert!(ledger.lossy_requests().len() <= limits.lossy_requests);
    let lanes = ledger.hops().iter().map(|hop| hop.lanes().count()).max().unwrap_or(0);
    prop_assert!(lanes <= limits.lanes_per_hop);
    Ok(())
}

/// Replays the run through encoded blocks, as a live viewer receives it.
fn replay_through_blocks(events: &[(u64, Option<OwnedEvent>)]) -> Analysis {
    let mut writer = BlockWriter::new(RecordedPayload::Tokens);
    let (mut packer, mut reader) = (BlockPacker::new().expect("a packer"), BlockReader::default());
    let mut analysis = Analysis::new(Config::default());
    for (number, (at, event)) in events.iter().enumerate() {
        match event {
            Some(event) => event.pass_to(*at, |event| writer.record_event(event)),
            None => writer.record_tick(MonoNs(*at)),
        }
        if number % 17 == 16 {
            pass(&mut writer, &mut packer, &mut reader, &mut analysis);
        }
    }
    pass(&mut writer, &mut packer, &mut reader, &mut analysis);
    analysis
}

fn pass(writer: &mut BlockWriter, packer: &mut BlockPacker, reader: &mut BlockReader, analysis: &mut Analysis) {
    let Some(block) = writer.close_block() else { return };
    let bytes = packer.pack_standalone_block(&block).expect("packed").to_vec();
    let read = reader.read_block(&bytes, &mut |record| match record {
        Record::Event(event) => analysis.apply(&event),
        Record::Tick(now) => analysis.tick(now),
        _ => {}
    });
    read.expect("an intact block");
}

/// Swaps adjacent events whose relative order no source guarantees.
fn shuffled(events: &[(u64, Option<OwnedEvent>)], swaps: &[usize]) -> Vec<(u64, Option<OwnedEvent>)> {
    let mut events = events.to_vec();
    for &swap in swaps {
        let at = swap % events.len().max(1);
        let sequence = |index: usize| events.get(index).and_then(|(_, event)| event.as_ref()?.sequence());
        if let (Some(one), Some(other)) = (sequence(at), sequence(at + 1))
            && one != other
        {
            events.swap(at, at + 1);
        }
    }
    events
}

/// Adds the ticks of a live run: one every 100 ms.
fn with_regular_ticks(events: &[(u64, Option<OwnedEvent>)]) -> Vec<(u64, Option<OwnedEvent>)> {
    let mut ticked = Vec::new();
    let mut next = events.first().map_or(0, |(at, _)| *at);
    for event in events {
        while next < event.0 {
            ticked.push((next, None));
            next += SECOND / 10;
        }
        ticked.push(event.clone());
    }
    ticked
}

/// Fixed seed, unless `TOKENGAP_MODEL_SEED` overrides it.
fn seed() -> RngSeed {
    let value = std::env::var("TOKENGAP_MODEL_SEED").ok();
    RngSeed::Fixed(value.and_then(|seed| seed.parse().ok()).unwrap_or(9))
}

fn losses_are_listed(shape: Shape, steps: &[Step]) -> TestCaseResult {
    let world = World::run(shape, steps);
    let analysis = analyse(&world.events, Config { limits: no_expiry(), ..Config::default() })?;
    let report = report(&analysis);
    prop_assert_eq!(report.chunks.dropped_predicted.unwrap_or(0), world.predicted);
    for (list, lost, with_ids) in [
        (report.losses.confirmed, (|request| &request.dropped) as fn(&RequestTruth) -> &LostTokens, true),
        (report.losses.predicted, |request| &request.predicted, false),
    ] {
        let lossy = world.requests.iter().filter(|request| !lost(request).is_empty());
        let truth: BTreeMap<&str, &LostTokens> = lossy.map(|request| (&*request.rid, lost(request))).collect();
        let lines = list.map(|list| list.lines).unwrap_or_default();
        prop_assert_eq!(lines.len(), truth.len());
        for line in &lines {
            prop_assert!(lists_exactly(line, truth[&*line.rid], with_ids), "{line:?} {truth:?}");
        }
    }
    Ok(())
}

/// The only delivery is an empty finishing chunk, and the response has no token count.
#[test]
fn an_empty_finish_is_a_counted_delivery() -> TestCaseResult {
    let observed = Shape {
        ranks: 1,
        receives_observed: true,
        deliveries_observed: true,
        answers_observed: true,
        ..Shape::default()
    };
    let send = |finish| Step::Send { rank: 0, parts: vec![(0, 0, finish)] };
    let steps =
        [send(false), send(false), send(true), Step::Receive { lane: 0, frames: 3 }, Step::Serve { request: 0 }];
    losses_are_listed(observed, &steps)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, rng_seed: seed(), ..ProptestConfig::default() })]

    #[test]
    fn fully_observed_frames_are_counted_exactly(shape in schedule::fully_observed(), steps in schedule::healthy()) {
        let world = World::run(shape, &steps);
        let analysis = analyse(&world.events, Config { limits: no_expiry(), ..Config::default() })?;
        let report = report(&analysis);
        let (reported, truth) = (counts(&report), &world.counts);
        let unjudged = report.chunks.unjudged.unwrap_or(0);
        if world.shape.column.shows_tokens() {
            prop_assert_eq!((&reported, unjudged), (truth, 0));
        } else {
            // Between chunks of several tokens, counts alone do not show which chunk lost tokens.
            prop_assert_eq!(reported.dropped + reported.merged + unjudged, truth.dropped + truth.merged);
            prop_assert!(truth.dropped > 0 || unjudged == 0, "{unjudged} unjudged");
            let without_fates = |counts: &Counts| Counts { dropped: 0, merged: 0, tokens_lost: 0, ..counts.clone() };
            prop_assert_eq!(without_fates(&reported), without_fates(truth));
        }
        let own = (report.own.events_missed, report.own.frames_unannounced, report.own.frames_undecoded);
        prop_assert_eq!(own, (0, 0, 0));
        let gaps = world.requests.iter().filter_map(|request| Some(request.first_received? - request.first_sent?));
        let gap = report.gap_ns.as_ref().expect("sends and receives are observed");
        prop_assert_eq!((gap.count, gap.max.unwrap_or(0)), (gaps.clone().count() as u64, gaps.max().unwrap_or(0)));
        for (name, truth) in &world.hops {
            let hop = report.hops.iter().find(|hop| hop.name == *name).expect("a line for each hop");
            prop_assert_eq!(hop.frames_sent, Some(truth.frames_sent));
            prop_assert_eq!(hop.frames_received, Some(truth.frames_received));
            prop_assert_eq!(hop.frames_forwarded, Some(truth.frames_sent));
            let relay_ns = hop.relay_ns.map(|relay| (relay.count, relay.max));
            prop_assert_eq!(relay_ns, (truth.frames_sent > 0).then_some((truth.frames_sent, RELAY_NS)));
            prop_assert_eq!(hop.backlog_frames, Some(truth.frames_sent - truth.frames_received));
            prop_assert_eq!(hop.backlog_max_frames, Some(truth.backlog_max));
            prop_assert_eq!((hop.chunks, hop.tokens), (truth.chunks, truth.tokens));
        }
        prop_assert_eq!(has_finding(&report, "dropped-chunks"), reported.dropped > 0);
        check_no_false_findings(&world, &analysis)?;
    }

    #[test]
    fn lost_tokens_are_listed_by_position_and_id(shape in schedule::direct(), steps in schedule::healthy()) {
        losses_are_listed(shape, &steps)?;
    }

    #[test]
    fn empty_chunks_of_a_recomputing_request_change_no_count(shape in schedule::direct(), steps in schedule::retracting()) {
        let world = World::run(shape, &steps);
        let analysis = analyse(&world.events, Config { limits: no_expiry(), ..Config::default() })?;
        // An empty chunk may report the same count as a full one. Only the next delivery shows whether it was merged.
        let settled = |counts: &Counts| Counts { merged: counts.merged + counts.in_flight, in_flight: 0, ..counts.clone() };
        let report = report(&analysis);
        prop_assert_eq!(settled(&counts(&report)), settled(&world.counts));
        prop_assert!(!report.findings.iter().any(|finding| finding.kind.starts_with("wire-")));
    }

    #[test]
    fn tokens_lost_on_the_wire_are_counted_exactly(shape in schedule::direct(), steps in schedule::lossy()) {
        let world = World::run(shape, &steps);
        let analysis = analyse(&world.events, Config { limits: no_expiry(), ..Config::default() })?;
        prop_assert_eq!(report(&analysis).tokens.missing_on_wire, world.tokens_judged_missing);
    }

    #[test]
    fn missed_observations_cause_no_false_findings(shape in schedule::partly_observed(), steps in schedule::healthy_with_misses()) {
        let world = World::run(shape, &steps);
        let analysis = analyse(&world.events, Config::default())?;
        check_no_false_findings(&world, &analysis)?;
        let counted = |event: &OwnedEvent| matches!(event, OwnedEvent::Plain(What::Missed(Missed { count: 1.., .. })));
        let missed = world.events.iter().any(|(_, event)| event.as_ref().is_some_and(counted));
        prop_assert_eq!(report(&analysis).own.events_missed > 0, missed);
    }

    #[test]
    fn only_an_engine_that_sends_nothing_is_called_silent(
        shape in schedule::partly_observed(), steps in schedule::faulty_with_misses(), streams in 2_usize..5, pause_ms in 1_000_u32..4_000,
    ) {
        // Steady streams around the pause and the random steps, so that a silence can be judged at all.
        let parts: Vec<_> = (40..40 + streams).map(|slot| (slot, 1, false)).collect();
        let steady = |frames| (0..frames).flat_map(|_| [Step::Send { rank: 0, parts: parts.clone() }, Step::Wait(20)]);
        let pause = [Step::Wait(pause_ms)];
        let steps: Vec<_> = steady(20).chain(steps).chain(steady(20)).chain(pause).chain(steady(80)).collect();
        let world = World::run(shape, &steps);
        check_no_false_findings(&world, &analyse(&with_regular_ticks(&world.events), Config::default())?)?;
    }

    #[test]
    fn server_faults_with_missed_observations_cause_no_false_findings(shape in schedule::partly_observed(), steps in schedule::faulty_with_misses()) {
        no_false_findings(shape, &steps)?;
    }

    #[test]
    fn reordering_across_connections_causes_no_false_findings(
        shape in schedule::partly_observed(), steps in schedule::faulty_with_misses(), swaps in prop::collection::vec(any::<usize>(), 0..40),
    ) {
        // Without reuse of rids: reordering could start a new request before the earlier one with its rid ends.
        let world = World::run(Shape { rids_reused: false, ..shape }, &steps);
        check_no_false_findings(&world, &analyse(&shuffled(&world.events, &swaps), Config::default())?)?;
    }

    #[test]
    fn changing_visibility_of_tokenizers_causes_no_false_findings(shape in schedule::fully_observed(), steps in schedule::visibility_changes()) {
        no_false_findings(shape, &steps)?;
    }

    #[test]
    fn live_requests_sharing_a_rid_cause_no_false_findings(shape in schedule::shared_rids(), steps in schedule::healthy()) {
        no_false_findings(shape, &steps)?;
    }

    #[test]
    fn live_requests_sharing_a_rid_on_a_faulty_server_cause_no_false_findings(
        shape in schedule::shared_rids(), steps in schedule::faulty(),
    ) {
        no_false_findings(shape, &steps)?;
    }

    #[test]
    fn an_apparent_first_chunk_causes_no_false_findings(shape in schedule::joined_late(), steps in schedule::large_chunks()) {
        no_false_findings(shape, &steps)?;
    }

    #[test]
    fn small_limits_cause_no_false_findings(shape in schedule::partly_observed(), steps in schedule::faulty_with_misses()) {
        let limits = Limits {
            live_rids: 3,
            finished_kept: 2,
            hops: 3,
            lanes_per_hop: 2,
            pending_frames: 4,
            pending_chunks: 6,
            early_receives: 2,
            in_flight_per_rid: 3,
            in_flight: 5,
            lost_ranges_per_rid: 2,
            lost_ranges: 4,
            lossy_requests: 2,
            token_ids: 8,
            ..Limits::default()
        };
        let world = World::run(shape, &steps);
        let analysis = analyse(&world.events, Config { limits, ..Config::default() })?;
        check_no_false_findings(&world, &analysis)?;
        check_limits(&analysis, &limits)?;
    }

    #[test]
    fn replayed_events_give_the_same_report(shape in schedule::partly_observed(), steps in schedule::faulty_with_misses()) {
        let world = World::run(shape, &steps);
        let live = analyse(&world.events, Config::default())?;
        prop_assert_eq!(report(&live), report(&replay_through_blocks(&world.events)));
        // Ticks only expire state. With timeouts longer than the run, they must not change any count.
        let without_ticks: Vec<_> = world.events.iter().filter(|(_, event)| event.is_some()).cloned().collect();
        let never_ticked = analyse(&without_ticks, Config { limits: no_expiry(), ..Config::default() })?;
        let with_ticks: Vec<_> = without_ticks.iter().flat_map(|event| [event.clone(), (event.0, None)]).collect();
        let often_ticked = analyse(&with_ticks, Config { limits: no_expiry(), ..Config::default() })?;
        prop_assert_eq!(counts(&report(&never_ticked)), counts(&report(&often_ticked)));
    }
}

/// Whether the ranges of a line are exactly the lost tokens, with their ids if any are expected.
fn lists_exactly(line: &LossLine, truth: &LostTokens, with_ids: bool) -> bool {
    let listed = line.ranges.iter().flat_map(|range| {
        let ([first, last], [from, to]) = (range.tokens, range.chunks.expect("every range lists its chunks"));
        let ids = if with_ids { (first..=last).map(id_at).collect() } else { Vec::new() };
        (first..=last).map(move |position| (position, from..=to, range.ids == ids))
    });
    let mut chunks = BTreeSet::new();
    let mut count = 0;
    for (position, of, ids_match) in listed {
        let is_lost = truth.get(&position).is_some_and(|nth| of.contains(nth));
        if !is_lost || !ids_match {
            return false;
        }
        chunks.extend(of);
        count += 1;
    }
    count == truth.len() && line.tokens == count as u64 + line.tokens_unlisted && chunks.len() as u64 <= line.chunks
}

#[test]
fn tokens_are_counted_exactly_at_the_in_flight_limit() {
    let shape = Shape { ranks: 1, receives_observed: true, deliveries_observed: true, ..Shape::default() };
    let send = Step::Send { rank: 0, parts: vec![(0, 2, false)] };
    let steps: Vec<Step> = std::iter::repeat_n(send, 50)
        .chain(std::iter::repeat_n(Step::Receive { lane: 0, frames: 1 }, 50))
        .chain([Step::Serve { request: 0 }])
        .collect();
    let limits = Limits { in_flight_per_rid: 2, ..Limits::default() };
    let world = World::run(shape, &steps);
    let config = Config { limits, ..Config::default() };
    let analysis = analyse(&world.events, config).expect("counters never decrease");
    let reported = counts(&report(&analysis));
    assert_eq!((reported.tokens_delivered, reported.in_flight), (2, 0));
}

fn no_expiry() -> Limits {
    Limits { orphan_after_ns: u64::MAX, settle_ns: u64::MAX, linger_ns: u64::MAX, ..Limits::default() }
}
