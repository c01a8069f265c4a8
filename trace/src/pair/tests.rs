mod attempts;
#[path = "../../tests/common/pair.rs"]
mod events;
mod schedulers;

use events::{MS, Request, server_events};

use super::PairMoment::{
    Allocated, DecodeFrame, DecodeReceived, DecodeRequest, Delivered, PrefillEnded, PrefillQueued, PrefillReceived,
    PrefillRequest, PrefillStarted, TokenReceived, Transferred,
};
use super::*;
use crate::analysis::{Analysis, Config};
use crate::clock::{Anchor, MonoNs};
use crate::detect::Severity;
use crate::detect::thresholds::{GAP_CRITICAL_NS, GAP_WARNING_NS, LATE_NS};
use crate::event::{Event, PairMessageKind};
use crate::words::{duration, percent};

/// The analysis of a server with these requests, whose clock is ahead by some milliseconds.
fn server(requests: &[Request<'_>], ahead: u64) -> Analysis {
    let mut analysis = Analysis::new(Config::default());
    for (at, what) in server_events(requests, ahead) {
        analysis.apply(&Event::new(MonoNs(at), what));
    }
    analysis
}

fn join<'a>(prefill: &'a Analysis, decode: &'a Analysis) -> Pair<'a> {
    join_with(prefill, decode, PairClocks::Same)
}

fn join_with<'a>(prefill: &'a Analysis, decode: &'a Analysis, clocks: PairClocks) -> Pair<'a> {
    Pair::join(vec![PrefillServer { ledger: prefill.ledger(), clocks }], decode.ledger())
}

fn legs(row: &PairRow<'_>) -> Vec<(String, u64)> {
    row.legs().map(|(leg, ns)| (leg.to_string(), ns / MS)).collect()
}

fn named(legs: &[(&str, u64)]) -> Vec<(String, u64)> {
    legs.iter().map(|(name, ms)| ((*name).to_owned(), *ms)).collect()
}

#[test]
fn a_limited_join_has_the_newest_finished_requests_and_every_unfinished_one() {
    let requests = |of: fn(&'static str, u64, u64) -> Request<'static>| {
        [of("a", 1, 0), of("b", 2, 1_000), of("c", 3, 2_000), of("d", 4, 3_000)]
    };
    let finished = |requests: &[Request<'_>]| {
        let mut server = server(requests, 0);
        server.tick(MonoNs(3_600_000 * MS));
        assert_eq!(server.ledger().finished_count(), requests.len());
        server
    };
    let prefill = finished(&requests(Request::of_prefill));
    let decode = finished(&requests(Request::of_decode));
    let prefill_servers = || vec![PrefillServer { ledger: prefill.ledger(), clocks: PairClocks::Same }];
    let joined = |limit| {
        let pair = Pair::join_newest(prefill_servers(), decode.ledger(), limit);
        pair.joined().map(|row| row.decode_rid).collect::<Vec<_>>()
    };
    assert_eq!((joined(2), joined(9)), (vec!["c", "d"], vec!["a", "b", "c", "d"]));
    let unjoined = |limit| {
        let pair = Pair::join_newest(prefill_servers(), decode.ledger(), limit);
        (pair.finished_limit_if_reached(), pair.decode_only(), pair.prefill_only)
    };
    assert_eq!([unjoined(3), unjoined(4)], [(Some(3), None, None), (None, Some(0), Some(0))]);
    let still_open = server(&requests(Request::of_decode), 0);
    assert_eq!(still_open.ledger().finished_count(), 0);
    assert_eq!(Pair::join_newest(prefill_servers(), still_open.ledger(), 2).joined().count(), 2);
}

#[test]
fn the_legs_of_a_pair_sum_to_the_ttft_of_the_decode_server() {
    let prefill = server(&[Request::of_prefill("p", 7, 100)], 0);
    let decode = server(&[Request::of_decode("d", 7, 100)], 0);
    let pair = join(&prefill, &decode);
    let [row] = pair.rows() else { panic!("one request") };
    assert_eq!((row.room, row.decode_rid, row.prefill_rid), (Some(7), "d", Some("p")));
    let expected = [
        ("dispatch", 1),
        ("decode-allocation", 8),
        // The prefill server had its request before the memory was allocated.
        ("prefill-arrival", 0),
        ("prefill-dispatch", 0),
        ("prefill-intake", 7),
        ("prefill-queue", 1),
        ("prefill", 16),
        ("transfer", 100),
        ("transfer-notice", 23),
        ("decode-queue", 1),
        ("decode-start", 1),
        ("output", 1),
        ("processing+delivery", 1),
    ];
    assert_eq!(legs(row), named(&expected));
    let words: Vec<String> = row.legs().map(|(leg, _)| leg.describe()).collect();
    assert!(words.iter().all(|words| words.chars().count() <= 38), "a line of the report has room for 38: {words:?}");
    let ttft = decode.ledger().ttft().main_group().expect("a first token").sum().ns;
    assert_eq!((pair.ttft_sum_ns(), row.ttft_ns), (ttft, Some(160 * MS)));
    assert_eq!(row.legs().map(|(_, ns)| ns).sum::<u64>(), 160 * MS);
    assert_eq!(pair.legs().iter().map(|leg| leg.sum_ns).sum::<u128>(), ttft);
    assert_eq!(pair.worst_leg().map(|leg| (leg.leg.to_string(), leg.mean_ns())), Some(("transfer".into(), 100 * MS)));
    let at = |moment| row.time_of(moment).map(|at| at.0 / MS - 100);
    assert_eq!([at(PrefillRequest), at(DecodeRequest), at(Allocated)], [Some(4), Some(11), Some(20)]);
    assert_eq!([at(PairMoment::PrefillFrame), at(Delivered)], [Some(154), Some(171)]);
}

#[test]
fn a_late_prefill_request_is_a_leg_and_unobserved_moments_have_reasons() {
    let late =
        Request { dispatched: 150, received: 158, message: None, batch: None, ..Request::of_prefill("p", 7, 150) };
    let prefill = server(&[Request { queued: None, ended: None, frame: 230, ..late }], 0);
    let decode =
        server(&[Request { frame: 270, token_received: 271, delivered: 272, ..Request::of_decode("d", 7, 100) }], 0);
    let pair = join(&prefill, &decode);
    let [row] = pair.rows() else { panic!("one request") };
    let names: Vec<String> = row.legs().map(|(leg, _)| leg.to_string()).collect();
    assert_eq!(names[2..4], ["prefill-arrival", "prefill-dispatch"]);
    assert_eq!(legs(row)[2..4], named(&[("prefill-arrival", 30), ("prefill-dispatch", 8)]));
    assert_eq!(row.legs().map(|(_, ns)| Some(ns)).sum::<Option<u64>>(), row.ttft_ns);
    assert_eq!(pair.reason_moment_is_unknown(row, PrefillRequest), None);
    for moment in [PrefillQueued, PrefillStarted, PrefillEnded, Transferred] {
        assert!(pair.reason_moment_is_unknown(row, moment).is_some(), "{moment:?}");
    }
}

#[test]
fn an_attempt_is_a_room_and_ids_join_only_without_rooms() {
    let again = Request { rid: "same", ..Request::of_prefill("same", 2, 1_000) };
    let prefill = server(
        &[
            Request::of_prefill("same", 1, 100),
            again,
            Request { room: None, message: None, ..Request::of_prefill("without", 0, 2_000) },
            Request::of_prefill("only prefill", 9, 3_000),
            Request::of_prefill("x", 5, 4_000),
            Request::of_prefill("y", 5, 5_000),
        ],
        0,
    );
    let decode = server(
        &[
            Request::of_decode("same", 2, 1_000),
            Request { room: None, message: None, ..Request::of_decode("without", 0, 2_000) },
            Request::of_decode("only prefill", 8, 3_000),
            Request::of_decode("z", 5, 5_000),
        ],
        0,
    );
    let pair = join(&prefill, &decode);
    let joined: Vec<_> = pair.rows().iter().map(|row| (row.decode_rid, row.room, row.prefill_rid)).collect();
    let expected = [
        ("same", Some(2), Some("same")),
        ("without", None, Some("without")),
        ("only prefill", Some(8), None),
        // Two requests of the prefill server have this room.
        ("z", Some(5), None),
    ];
    let sorted = |mut rows: Vec<_>| {
        rows.sort_unstable();
        rows
    };
    assert_eq!(sorted(joined), sorted(expected.to_vec()));
    let row = pair.rows().iter().find(|row| row.decode_rid == "same").expect("joined");
    assert_eq!(row.time_of(PrefillQueued), Some(MonoNs(1_027 * MS)), "the second attempt");
    assert_eq!((pair.prefill_only, pair.joined().count()), (Some(4), 2));
    let lone = pair.rows().iter().find(|row| row.prefill_rid.is_none()).expect("not joined");
    assert_eq!(
        pair.reason_moment_is_unknown(lone, PrefillQueued),
        Some("the request was not found on the prefill server")
    );
}

#[test]
fn clocks_of_two_hosts_are_bounded_by_the_order_of_messages() {
    let prefill = server(&[Request::of_prefill("p", 7, 100)], 0);
    let decode = server(&[Request::of_decode("d", 7, 100)], 5_000);
    // The wall clocks are wrong by 4 ms, less than what the messages allow.
    let pair = join_with(&prefill, &decode, PairClocks::ByWallClock { ahead_ns: 5_004 * MS as i64 });
    // Allocated 7 ms before the prefill was queued, and transferred 23 ms before decode queued it.
    let expected = ClockUse::Offset {
        ahead_ns: 5_004 * MS as i64,
        uncertainty_ns: Some(19 * MS),
        wall_error_ns: 0,
        contradictions: 0,
    };
    assert_eq!(pair.clock_uses(), [expected]);
    let [row] = pair.rows() else { panic!("one request") };
    assert_eq!(row.time_of(PrefillQueued), Some(MonoNs((5_127 + 4) * MS)));
    assert_eq!(row.legs().map(|(_, ns)| Some(ns)).sum::<Option<u64>>(), row.ttft_ns);
    let wrong = join_with(&prefill, &decode, PairClocks::ByWallClock { ahead_ns: 0 });
    let expected = ClockUse::Offset {
        ahead_ns: 4_993 * MS as i64,
        uncertainty_ns: Some(30 * MS),
        wall_error_ns: 4_993 * MS,
        contradictions: 0,
    };
    assert_eq!(wrong.clock_uses(), [expected], "the nearest that the messages allow");
}

#[test]
fn a_leg_across_clocks_is_the_worst_one_only_beyond_their_uncertainty() {
    let worst = |by: u64, message: Option<(u64, PairMessageKind)>, ahead_ns: i64| {
        let prefill = server(&[Request::of_prefill("p", 7, 100)], 0);
        let mut late = Request::of_decode("d", 7, 100);
        decode_later(by, &mut late);
        let decode = server(&[Request { message, ..late }], 0);
        let pair = join_with(&prefill, &decode, PairClocks::ByWallClock { ahead_ns });
        let worst = pair.worst_leg().map(|lengths| lengths.leg.to_string());
        let uncertainty = pair.clock_uncertainty_ns().map(|ns| ns / MS);
        (worst, uncertainty)
    };
    let allocated = Some((120, PairMessageKind::Allocated));
    // The transfer of 100 ms is exact, and the notice of 23 ms may not exceed it.
    assert_eq!(worst(0, allocated, 0), (Some("transfer".into()), Some(23)));
    // The notice of 423 ms may be 300 ms less by the messages alone.
    assert_eq!(worst(400, allocated, 0), (None, Some(423)));
    assert_eq!(worst(400, None, 0), (None, None));
    assert_eq!(worst(0, None, 0), (Some("transfer".into()), None), "all legs across clocks are shorter");
}

#[test]
fn messages_that_contradict_one_clock_make_it_two() {
    let prefill = server(&[Request::of_prefill("p", 7, 100), Request::of_prefill("q", 8, 900)], 0);
    let decode = server(&[Request::of_decode("d", 7, 100), Request::of_decode("e", 8, 900)], 5_000);
    let pair = join(&prefill, &decode);
    let expected = ClockUse::Offset {
        ahead_ns: 4_993 * MS as i64,
        uncertainty_ns: Some(30 * MS),
        wall_error_ns: 4_993 * MS,
        contradictions: 0,
    };
    assert_eq!(pair.clock_uses(), [expected]);
    assert!(pair.rows().iter().all(|row| row.legs().any(|(leg, _)| leg.to == Transferred)), "they are compared");
    // One strange request: its memory was allocated again after its prefill.
    let strange = Request { message: Some((900, PairMessageKind::Allocated)), ..Request::of_decode("d", 7, 100) };
    let decode = server(&[strange, Request::of_decode("e", 8, 900)], 0);
    assert_eq!(join(&prefill, &decode).clock_uses(), [ClockUse::Same]);
}

#[test]
fn clocks_that_drift_apart_are_not_compared() {
    let prefill = server(&[Request::of_prefill("p", 7, 100), Request::of_prefill("q", 8, 9_000)], 0);
    let decode = server(&[Request::of_decode("d", 7, 100), Request::of_decode("e", 8, 9_100)], 0);
    let pair = join_with(&prefill, &decode, PairClocks::ByWallClock { ahead_ns: 0 });
    assert_eq!(pair.clock_uses(), [ClockUse::Drifting { by_ns: 70 * MS }]);
    for row in pair.rows() {
        assert_eq!(row.time_of(Transferred), None);
        assert_eq!(
            pair.reason_moment_is_unknown(row, Transferred),
            Some("the clocks of the two hosts cannot be compared")
        );
        assert_eq!(row.legs().map(|(_, ns)| Some(ns)).sum::<Option<u64>>(), row.ttft_ns);
    }
    assert!(pair.findings().is_empty());
}

#[test]
fn recordings_of_one_boot_use_one_clock() {
    let anchor = |mono: u64, wall_ns: u64| Anchor { mono: MonoNs(mono), wall_ns };
    let first = anchor(1_000 * MS, 9_000_000 * MS);
    assert_eq!(PairClocks::of_anchors(first, anchor(3_000 * MS, 9_002_001 * MS)), PairClocks::Same);
    let ahead = PairClocks::ByWallClock { ahead_ns: 6_000 * MS as i64 };
    assert_eq!(PairClocks::of_anchors(first, anchor(9_000 * MS, 9_002_000 * MS)), ahead);
}

const ROOMS: [&str; 60] = {
    let mut rids = [""; 60];
    let digits = "000102030405060708091011121314151617181920212223242526272829303132333435363738394041424344454647484950515253545556575859";
    let mut index = 0;
    while index < rids.len() {
        rids[index] = digits.split_at(2 * index).1.split_at(2).0;
        index += 1;
    }
    rids
};

/// Requests every 100 ms, each changed by its number.
fn many(
    change_prefill: fn(u64, &mut Request<'static>),
    change_decode: fn(u64, &mut Request<'static>),
) -> (Analysis, Analysis) {
    let numbered = (1..).zip(ROOMS);
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for (room, rid) in numbered {
        let mut first = Request::of_prefill(rid, room, 100 * room);
        change_prefill(room, &mut first);
        prefill.push(first);
        let mut second = Request::of_decode(rid, room, 100 * room);
        change_decode(room, &mut second);
        decode.push(second);
    }
    (server(&prefill, 0), server(&decode, 0))
}

fn unchanged(_: u64, _: &mut Request<'static>) {}

fn end_later(by: u64, request: &mut Request<'static>) {
    request.frame += by;
    request.token_received += by;
    request.delivered += by;
}

fn transfer_later(by: u64, request: &mut Request<'static>) {
    request.message = request.message.map(|(at, kind)| (at + by, kind));
    end_later(by, request);
}

fn decode_later(by: u64, request: &mut Request<'static>) {
    request.queued = request.queued.map(|at| at + by);
    request.batch = request.batch.map(|at| at + by);
    end_later(by, request);
}

fn found(servers: &(Analysis, Analysis)) -> Vec<(&'static str, Severity, String)> {
    let findings = join(&servers.0, &servers.1).findings();
    findings.into_iter().map(|finding| (finding.kind, finding.severity, finding.summary)).collect()
}

#[test]
fn a_healthy_pair_has_no_findings() {
    assert_eq!(found(&many(unchanged, unchanged)), []);
}

#[test]
fn slow_transfers_are_found_whether_all_are_or_some() {
    let all = many(|_, request| transfer_later(500, request), |_, request| decode_later(500, request));
    let expected =
        "91 % of TTFT was spent in the transfer of the cache: up to 600.0 ms, 500.0 ms or more in 60 of 60 requests";
    assert_eq!(found(&all), [("transfer-slow", Severity::Warning, expected.to_owned())]);
    let some = many(
        |room, request| transfer_later(if room % 10 == 0 { 2_000 } else { 0 }, request),
        |room, request| decode_later(if room % 10 == 0 { 2_000 } else { 0 }, request),
    );
    let [(kind, Severity::Warning, summary)] = &found(&some)[..] else { panic!("one warning") };
    assert_eq!(*kind, "transfer-slow");
    // The share is that of these six requests.
    let expected =
        "97 % of the TTFT of 6 of 60 requests was spent in the transfer of the cache: 1.000 s or more, up to 2.100 s";
    assert_eq!(summary, expected);
}

/// As much cache takes as long with any network.
#[test]
fn the_length_of_prompts_explains_a_long_transfer() {
    let of_prompts = |change: fn(u64, &mut Request<'static>)| {
        found(&many(|_, request| transfer_later(500, request), change))
            .into_iter()
            .map(|finding| finding.0)
            .collect::<Vec<_>>()
    };
    let long = of_prompts(|_, request| {
        decode_later(500, request);
        request.prompt_tokens = 100_000;
    });
    assert_eq!(long, [""; 0]);
    assert_eq!(of_prompts(|_, request| decode_later(500, request)), ["transfer-slow"]);
}

/// A busy machine delays transfers by some hundred milliseconds.
#[test]
fn transfers_of_some_hundred_milliseconds_are_not_slow() {
    let servers = many(|_, request| transfer_later(300, request), |_, request| decode_later(300, request));
    assert_eq!(found(&servers), []);
}

#[test]
fn an_overloaded_decode_server_is_found_and_a_few_late_requests_are_not() {
    let overloaded = many(unchanged, |_, request| {
        request.batch = request.batch.map(|at| at + 1_200);
        end_later(1_200, request);
    });
    assert_eq!(found(&overloaded).iter().map(|finding| finding.0).collect::<Vec<_>>(), ["decode-queue"]);
    let first = many(
        |room, request| transfer_later(if room <= 4 { 2_000 } else { 0 }, request),
        |room, request| decode_later(if room <= 4 { 2_000 } else { 0 }, request),
    );
    assert_eq!(found(&first), [], "the first transfers set up connections");
}

/// The decode server's queue takes most of the time, and a few transfers are slow.
#[test]
fn the_greatest_part_comes_first_and_minor_ones_are_information() {
    let servers = many(
        |room, request| transfer_later(if room % 10 == 0 { 1_000 } else { 0 }, request),
        |room, request| {
            decode_later(if room % 10 == 0 { 1_000 } else { 0 }, request);
            request.batch = request.batch.map(|at| at + 1_500);
            end_later(1_500, request);
        },
    );
    let kinds: Vec<_> = found(&servers).into_iter().map(|(kind, severity, _)| (kind, severity)).collect();
    assert_eq!(kinds, [("decode-queue", Severity::Warning), ("transfer-slow", Severity::Info)]);
}

/// The prefill server's scheduler was stopped from 3 s to 6 s: what it had to do then, it did afterwards.
#[test]
fn a_stopped_scheduler_is_no_slow_transfer() {
    const STOP: u64 = 3_000;
    const END: u64 = 6_000;
    fn delay(at: u64) -> u64 {
        if (STOP..END).contains(&at) { END + (at - STOP) / 100 } else { at }
    }
    let servers = many(
        |_, request| {
            request.received = delay(request.received);
            request.queued = request.queued.map(delay);
            request.batch = request.batch.map(delay);
            request.ended = request.ended.map(delay);
            request.message = request.message.map(|(at, kind)| (delay(at), kind));
            request.frame = delay(request.frame);
            request.token_received = delay(request.token_received).max(request.frame);
            request.delivered = delay(request.delivered).max(request.frame);
        },
        |_, request| {
            request.queued = request.queued.map(delay);
            request.batch = request.batch.map(delay);
            request.frame = delay(request.frame);
            request.token_received = delay(request.token_received);
            request.delivered = delay(request.delivered);
        },
    );
    assert_eq!(found(&servers), []);
    let pair = join(&servers.0, &servers.1);
    let sums = pair.joined().map(|row| (row.legs().map(|(_, ns)| Some(ns)).sum::<Option<u64>>(), row.ttft_ns));
    sums.for_each(|(sum, ttft)| assert_eq!(sum, ttft));
}

#[test]
fn a_prefill_response_behind_the_first_token_is_information() {
    let servers = many(|_, request| request.delivered += 1_500, unchanged);
    let [(kind, severity, summary)] = &found(&servers)[..] else { panic!("one finding") };
    assert_eq!((*kind, *severity), ("late-prefill-response", Severity::Info));
    assert!(summary.contains("a router that waits for it holds the first token back"), "{summary}");
}

#[test]
fn three_late_prefill_responses_are_enough_if_they_are_most_of_the_requests() {
    for (requests, late, is_found) in [(3, 3, true), (6, 3, true), (7, 3, false), (2, 2, false), (40, 4, false)] {
        let of_server = |of: fn(&'static str, u64, u64) -> Request<'static>, held: u64| {
            let all = (0..requests).map(|number| {
                let request = of(format!("r{number}").leak(), number + 1, 100 * number);
                Request { delivered: request.delivered + if number < late { held } else { 0 }, ..request }
            });
            server(&all.collect::<Vec<_>>(), 0)
        };
        let servers = (of_server(Request::of_prefill, 1_500), of_server(Request::of_decode, 0));
        let kinds: Vec<_> = found(&servers).into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds == ["late-prefill-response"], is_found, "{late} of {requests}: {kinds:?}");
    }
}

#[test]
fn the_side_of_a_server_shows_in_its_messages() {
    let servers = many(unchanged, unchanged);
    let sides = [&servers.0, &servers.1].map(|server| PairSide::of_messages(server.ledger()));
    assert_eq!(sides, [Some(PairSide::Prefill), Some(PairSide::Decode)]);
    let neither = server(&[Request { message: None, ..Request::of_decode("a", 1, 0) }], 0);
    assert_eq!(PairSide::of_messages(neither.ledger()), None);
    let moments = [DecodeReceived, PrefillReceived, DecodeFrame, TokenReceived];
    assert_eq!(moments.map(PairMoment::is_of_prefill_server), [false, true, false, false]);
}

#[test]
fn the_documented_thresholds_are_those_of_the_findings() {
    use finding::{
        LEG_RULES, MIN_LATE, MIN_LATE_REQUESTS, MIN_LATE_SHARE, MIN_USUAL, MIN_WHOLE_SHARE, TRANSFER_NS_PER_TOKEN,
        USUAL_SHARE, USUAL_TRANSFER_NS,
    };
    let kinds: Vec<String> = LEG_RULES.iter().map(|rule| format!("`{}`", rule.kind)).collect();
    let row = format!(
        "| {} | the leg takes {} in {MIN_LATE} requests and {} of them, and {} of their TTFT; or {} in half of at least {MIN_USUAL} requests, \
         and {} of all TTFT; of a transfer {}, and beyond {} for each token of its prompt | warning; critical from {}; info below {} of all TTFT |\n",
        kinds.join(", "),
        duration(GAP_WARNING_NS),
        percent(MIN_LATE_REQUESTS),
        percent(MIN_LATE_SHARE),
        duration(LATE_NS),
        percent(USUAL_SHARE),
        duration(USUAL_TRANSFER_NS),
        duration(TRANSFER_NS_PER_TOKEN),
        duration(GAP_CRITICAL_NS),
        percent(MIN_WHOLE_SHARE),
    );
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/report.md");
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(page.contains(&row), "docs/reference/report.md lacks this row:\n{row}");
}
