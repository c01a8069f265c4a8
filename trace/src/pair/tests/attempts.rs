//! Requests without a message, with several attempts, and with an abort.

use super::*;
use crate::event::{Dispatch, DispatchKind, DispatchedRequest, What};
use crate::ledger::Limits;
use crate::{FrameId, HopId};

/// The prefill server has the request at once, and the decode server has memory for it only after 3 s, which no message shows.
#[test]
fn an_unobserved_wait_for_memory_is_not_blamed_on_the_prefill_server() {
    let mut late = Request::of_decode("d", 7, 100);
    late.message = None;
    decode_later(3_000, &mut late);
    let mut first = Request::of_prefill("p", 7, 100);
    first.queued = first.queued.map(|at| at + 3_000);
    first.batch = first.batch.map(|at| at + 3_000);
    first.ended = first.ended.map(|at| at + 3_000);
    transfer_later(3_000, &mut first);
    let prefill = server(&[first], 0);
    let decode = server(&[late], 0);
    let pair = join(&prefill, &decode);
    let [row] = pair.rows() else { panic!("one request") };
    let both = "decode-allocation+prefill-arrival+prefill-dispatch+prefill-intake";
    assert_eq!(legs(row)[1..3], named(&[(both, 3_015), ("prefill-queue", 1)]));
    assert_eq!(row.legs().map(|(_, ns)| Some(ns)).sum::<Option<u64>>(), row.ttft_ns);
    let worst = pair.worst_leg().map(|lengths| lengths.leg.describe());
    assert_eq!(worst.as_deref(), Some("decode's memory or prefill's intake"));
    assert!(worst.is_some_and(|words| words.chars().count() <= 38), "a line of the report has room for 38");
    assert_eq!(row.time_of(PrefillReceived), Some(MonoNs(105 * MS)), "it is known, beside the path");
    let reason = pair.reason_moment_is_unknown(row, Allocated).expect("a reason");
    assert!(reason.starts_with("no message between the schedulers was read"), "{reason}");
}

#[test]
fn an_evicted_room_is_the_reason_of_its_unknown_moments() {
    let config = Config { limits: Limits { pair_rooms: 1, ..Limits::default() }, ..Config::default() };
    let mut decode = Analysis::new(config);
    let requests = [Request::of_decode("old", 1, 100), Request::of_decode("new", 2, 1_000)];
    for (at, what) in server_events(&requests, 0) {
        decode.apply(&Event::new(MonoNs(at), what));
    }
    let prefill = server(&[Request::of_prefill("old", 1, 100), Request::of_prefill("new", 2, 1_000)], 0);
    let pair = join(&prefill, &decode);
    let reasons = ["old", "new"].map(|rid| {
        let row = pair.rows().iter().find(|row| row.decode_rid == rid).expect("joined");
        pair.reason_moment_is_unknown(row, Allocated)
    });
    assert_eq!(reasons, [Some("its messages were evicted at the limit pair_rooms, or not observed"), None]);
}

/// The first attempt failed in its transfer; the router sent the request again, with the same id and another room.
#[test]
fn a_retry_is_joined_with_its_own_attempt_and_a_failed_transfer_is_a_reason() {
    let failed = Request { message: Some((250, PairMessageKind::Failed)), ..Request::of_prefill("r", 1, 100) };
    let prefill = server(&[failed, Request::of_prefill("r", 2, 1_000)], 0);
    let decode = server(&[Request::of_decode("r", 1, 100), Request::of_decode("r", 2, 1_000)], 0);
    let pair = join(&prefill, &decode);
    let mut attempts: Vec<_> = pair
        .rows()
        .iter()
        .map(|row| {
            (row.room, row.has_failed, row.time_of(PrefillQueued), pair.reason_moment_is_unknown(row, Transferred))
        })
        .collect();
    attempts.sort_unstable_by_key(|attempt| attempt.0);
    let at = |ms| Some(MonoNs(ms * MS));
    let expected = [(Some(1), true, at(127), Some("the transfer failed")), (Some(2), false, at(1_027), None)];
    assert_eq!((attempts.as_slice(), pair.prefill_only), (expected.as_slice(), Some(0)));
    for row in pair.rows() {
        assert_eq!(row.legs().map(|(_, ns)| Some(ns)).sum::<Option<u64>>(), row.ttft_ns);
    }
}

/// Events of these requests until a time in milliseconds, of some with an abort afterwards.
fn cut(requests: &[Request<'_>], until: u64, aborted: Option<&str>) -> Analysis {
    let mut analysis = Analysis::new(Config::default());
    for (at, what) in server_events(requests, 0).into_iter().filter(|(at, _)| *at <= until * MS) {
        analysis.apply(&Event::new(MonoNs(at), what));
    }
    if let Some(rid) = aborted {
        let request = Some(DispatchedRequest::new(rid));
        let id = FrameId::new(HopId(1), 0, requests.len() as u64);
        let kind = DispatchKind::Aborts;
        let dispatch = Dispatch { id, bytes: 100, kind, index: 0, request };
        analysis.apply(&Event::new(MonoNs((until + 1) * MS), What::Dispatched(dispatch)));
    }
    analysis
}

#[test]
fn a_request_that_waits_or_is_aborted_on_its_way_has_moments_and_no_legs() {
    for aborted in [None, Some("d")] {
        // The prefill is done, and the transfer is not.
        let prefill = cut(&[Request::of_prefill("p", 7, 100)], 130, aborted.map(|_| "p"));
        let decode = cut(&[Request::of_decode("d", 7, 100)], 130, aborted);
        let pair = join(&prefill, &decode);
        assert_eq!(pair.rows().len(), 1);
        for row in pair.rows() {
            assert_eq!((row.ttft_ns, row.legs().count()), (None, 0));
            assert_eq!(row.time_of(Allocated), Some(MonoNs(120 * MS)));
            assert_eq!(row.time_of(PrefillReceived), Some(MonoNs(105 * MS)));
            assert_eq!(
                pair.reason_moment_is_unknown(row, Transferred),
                Some("no message between the schedulers was read: an older recording, or another transfer backend")
            );
        }
        if aborted.is_none() {
            assert_eq!((pair.joined().count(), pair.prefill_only), (1, Some(0)), "a request without a token is joined");
        }
        assert_eq!((pair.ttft(), pair.findings()), (None, vec![]));
    }
}
