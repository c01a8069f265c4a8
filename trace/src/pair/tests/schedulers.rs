//! Findings of a pair whose schedulers are idle, busy or stopped.

use super::*;

/// Requests of a prefill and a decode server.
struct Requests {
    prefill: Vec<Request<'static>>,
    decode: Vec<Request<'static>>,
}

impl Requests {
    /// Sixty requests, each changed by its number from a healthy one that begins at 1 s.
    fn burst(change_prefill: fn(u64, &mut Request<'static>), change_decode: fn(u64, &mut Request<'static>)) -> Self {
        let mut requests = Self { prefill: Vec::new(), decode: Vec::new() };
        for (room, rid) in (1..).zip(ROOMS) {
            let mut first = Request::of_prefill(rid, room, 1_000);
            change_prefill(room, &mut first);
            requests.prefill.push(first);
            let mut second = Request::of_decode(rid, room, 1_000);
            change_decode(room, &mut second);
            requests.decode.push(second);
        }
        requests
    }

    fn analyse(&self) -> (Analysis, Analysis) {
        (server(&self.prefill, 0), server(&self.decode, 0))
    }
}

fn burst(
    change_prefill: fn(u64, &mut Request<'static>),
    change_decode: fn(u64, &mut Request<'static>),
) -> (Analysis, Analysis) {
    Requests::burst(change_prefill, change_decode).analyse()
}

fn kinds(servers: &(Analysis, Analysis)) -> Vec<&'static str> {
    found(servers).into_iter().map(|finding| finding.0).collect()
}

/// Moves all that a server does by as much.
fn begin_later(by: u64, request: &mut Request<'static>) {
    request.dispatched += by;
    request.received += by;
    transfer_later(by, request);
    request.queued = request.queued.map(|at| at + by);
    request.batch = request.batch.map(|at| at + by);
    request.ended = request.ended.map(|at| at + by);
}

/// Makes the prefill begin later.
fn prefill_later(by: u64, request: &mut Request<'static>) {
    request.batch = request.batch.map(|at| at + by);
    request.ended = request.ended.map(|at| at + by);
    transfer_later(by, request);
}

#[test]
fn a_queue_is_judged_by_its_own_scheduler_while_the_other_one_is_idle() {
    // Prefill ends after 3 s, and the decode server needs a minute.
    let behind_prefill = burst(
        |room, request| prefill_later(50 * room, request),
        |room, request| {
            request.queued = request.queued.map(|at| at + 50 * room);
            request.batch = request.batch.map(|at| at + 1_000 * room);
            end_later(1_000 * room, request);
        },
    );
    assert_eq!(kinds(&behind_prefill), ["decode-queue"]);
    // The decode server waits for prefills.
    let slow_prefill = burst(
        |room, request| prefill_later(1_000 * room, request),
        |room, request| decode_later(1_000 * room, request),
    );
    assert_eq!(kinds(&slow_prefill), ["prefill-queue"]);
}

#[test]
fn a_full_cache_of_the_decode_server_is_found_while_prefill_waits_for_it() {
    let mut requests = Requests::burst(
        |room, request| {
            request.queued = request.queued.map(|at| at + 1_000 * room);
            prefill_later(1_000 * room, request);
        },
        |room, request| {
            request.message = request.message.map(|(at, kind)| (at + 1_000 * room, kind));
            decode_later(1_000 * room, request);
        },
    );
    assert_eq!(kinds(&requests.analyse()), ["decode-allocation"]);
    // One request in an impossible order is no proof against the clocks. By five the clocks drift apart: it is unknown what the prefill server did.
    for (number, rid) in ["s1", "s2", "s3", "s4", "s5"].into_iter().enumerate() {
        requests.prefill.push(Request::of_prefill(rid, 90 + number as u64, 500_000));
        requests.decode.push(Request::of_decode(rid, 90 + number as u64, 100));
        let servers = requests.analyse();
        let pair = join_with(&servers.0, &servers.1, PairClocks::ByWallClock { ahead_ns: 0 });
        let found: Vec<&str> = pair.findings().iter().map(|finding| finding.kind).collect();
        match pair.clock_uses() {
            [ClockUse::Offset { contradictions, .. }] if number < 3 => {
                assert_eq!((*contradictions, found), (number as u64 + 1, vec!["decode-allocation"]));
            }
            [ClockUse::Drifting { .. }] if number >= 3 => assert_eq!(found, [""; 0]),
            other => panic!("{number}: {other:?}"),
        }
    }
}

/// Twenty requests at once, of which ten find memory. The others wait until the first ones end after 20 s.
#[test]
fn a_scheduler_that_decodes_is_not_stopped_while_others_wait_for_memory() {
    let waits = |room: u64| if room.is_multiple_of(2) { 19_500 } else { 0 };
    let mut requests = Requests { prefill: Vec::new(), decode: Vec::new() };
    for (room, rid) in (1..).zip(ROOMS).take(20) {
        let mut first = Request::of_prefill(rid, room, 1_000);
        first.queued = first.queued.map(|at| at + waits(room));
        prefill_later(waits(room), &mut first);
        requests.prefill.push(first);
        let mut second = Request::of_decode(rid, room, 1_000);
        second.message = second.message.map(|(at, kind)| (at + waits(room), kind));
        decode_later(waits(room), &mut second);
        second.output_until = Some(second.frame + 20_000);
        requests.decode.push(second);
    }
    assert_eq!(kinds(&requests.analyse()), ["decode-allocation"]);
    for request in &mut requests.decode {
        request.output_until = None;
    }
    assert_eq!(kinds(&requests.analyse()), [""; 0], "nothing shows that the scheduler went on");
}

/// The first prompt takes the prefill server 10 s, which looks like a stop. The others wait longer for memory, each for its own time.
#[test]
fn a_long_prefill_explains_no_longer_wait_for_memory() {
    fn waits(room: u64) -> u64 {
        if room == 1 { 0 } else { 10_000 + 150 * room }
    }
    let full_memory = burst(
        |room, request| {
            request.queued = request.queued.map(|at| at + waits(room));
            prefill_later(waits(room), request);
            if room == 1 {
                request.ended = request.ended.map(|at| at + 9_500);
                transfer_later(9_500, request);
            }
        },
        |room, request| {
            request.message = request.message.map(|(at, kind)| (at + waits(room), kind));
            decode_later(if room == 1 { 9_500 } else { waits(room) }, request);
        },
    );
    assert_eq!(kinds(&full_memory), ["decode-allocation"]);
}

/// A client sends forty requests at once and waits for all. Their transfers overlap, so one stop could explain those of a batch, but not five.
#[test]
fn slow_transfers_of_batches_are_found() {
    let mut requests = Requests { prefill: Vec::new(), decode: Vec::new() };
    for room in 1..=200 {
        let rid: &'static str = room.to_string().leak();
        let from = 1_000 + room / 40 * 10_000;
        let mut first = Request::of_prefill(rid, room, from);
        transfer_later(3_000, &mut first);
        requests.prefill.push(first);
        let mut second = Request::of_decode(rid, room, from);
        decode_later(3_000, &mut second);
        requests.decode.push(second);
    }
    assert_eq!(kinds(&requests.analyse()), ["transfer-slow"]);
}

/// The memory is allocated as soon as the prefill server has the request, which it gets late.
#[test]
fn an_allocation_that_follows_a_late_prefill_request_is_not_blamed_on_the_decode_server() {
    let servers = many(
        |_, request| {
            begin_later(1_500, request);
            request.queued = request.queued.map(|at| at + 10);
        },
        |_, request| {
            request.message = request.message.map(|(at, kind)| (at + 1_500, kind));
            decode_later(1_500, request);
        },
    );
    assert_eq!(kinds(&servers), [""; 0]);
}

#[test]
fn slow_transfers_of_single_requests_are_found() {
    let servers = burst(
        |room, request| {
            begin_later(4_000 * room, request);
            transfer_later(3_000, request);
        },
        |room, request| {
            begin_later(4_000 * room, request);
            decode_later(3_000, request);
        },
    );
    assert_eq!(kinds(&servers), ["transfer-slow"]);
}

/// All are in transfer when the prefill server stops, which has nothing else to do.
#[test]
fn one_stop_during_many_transfers_is_no_slow_transfer() {
    let servers = burst(|_, request| transfer_later(3_000, request), |_, request| decode_later(3_000, request));
    assert_eq!(kinds(&servers), [""; 0]);
    let pair = join(&servers.0, &servers.1);
    assert_eq!(pair.worst_leg().map(|leg| leg.leg.to_string()), Some("transfer".into()));
}

/// Two prefill servers with every other request. One is stopped for 3 s while it transfers all of its requests.
#[test]
fn a_prefill_server_that_stops_is_not_judged_by_the_steps_of_another_one() {
    let mut prefill = [Vec::new(), Vec::new()];
    let mut decode = Vec::new();
    for (room, rid) in (1..).zip(ROOMS) {
        let is_stopped = room % 2 == 1;
        let from = if is_stopped { 1_000 } else { 100 * room };
        let mut first = Request::of_prefill(rid, room, from);
        let mut second = Request::of_decode(rid, room, from);
        if is_stopped {
            transfer_later(3_000, &mut first);
            decode_later(3_000, &mut second);
        }
        prefill[usize::from(is_stopped)].push(first);
        decode.push(second);
    }
    let prefill = prefill.map(|requests| server(&requests, 0));
    let decode = server(&decode, 0);
    let servers = prefill.iter().map(|server| PrefillServer { ledger: server.ledger(), clocks: PairClocks::Same });
    let pair = Pair::join(servers.collect(), decode.ledger());
    assert_eq!(pair.joined().filter(|row| row.ttft_ns > Some(3_000 * MS)).count(), 30);
    assert_eq!(pair.findings(), []);
}
