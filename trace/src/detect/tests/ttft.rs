//! Findings about requests that wait before their first token.

use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::Severity;
use crate::event::{
    Arrival, ArrivalTimes, Capabilities, Dispatch, DispatchKind, DispatchedRequest, EngineTimes, Hop, RequestTimes,
    What,
};
use crate::id::{FrameId, HopId};

const REQUESTS: HopId = HopId(7);

/// When a request of a scene was where.
#[derive(Clone, Copy)]
struct Moments {
    arrived: u64,
    read: u64,
    dispatched: u64,
    queued: u64,
    batch_entered: u64,
    sent: u64,
}

/// Requests, 10 ms after the other, each with these moments after its arrival.
fn scene_of(requests: usize, moments: Moments) -> Scene {
    let mut scene = Scene::delivering();
    scene.hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED));
    for number in 0..requests as u64 {
        let rid = number.to_string();
        let at = |ns: u64| 100 * MS + number * 10 * MS + ns;
        let id = FrameId::new(REQUESTS, 0, number);
        let request = Some(DispatchedRequest::new(&rid));
        let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
        scene.apply(at(moments.dispatched), What::Dispatched(dispatch));
        scene.send(at(moments.sent), &[(&rid, 1, 1)]);
        let times = EngineTimes {
            queued: Some(MonoNs(at(moments.queued))),
            batch_entered: Some(MonoNs(at(moments.batch_entered))),
            prefill_finished: None,
        };
        scene.apply(at(moments.sent), What::RequestTimes(RequestTimes { rid: &rid, times, impossible: 0 }));
        let times =
            ArrivalTimes { arrived: MonoNs(at(moments.arrived)), read: MonoNs(at(moments.read)), connection: None };
        scene.apply(at(moments.sent), What::Arrived(Arrival { rid: &rid, times: Ok(times) }));
        scene.receive(at(moments.sent) + MS, number);
        scene.deliver(at(moments.sent) + 2 * MS, &rid, 1, 1, false);
    }
    scene
}

const QUICK: Moments =
    Moments { arrived: 0, read: MS, dispatched: 3 * MS, queued: 4 * MS, batch_entered: 5 * MS, sent: 15 * MS };

#[test]
fn quick_requests_have_no_finding() {
    let scene = scene_of(5, QUICK);
    assert_eq!(scene.ledger.ttft().requests(), 5);
    for kind in ["late-read", "late-dispatch", "queued"] {
        assert!(scene.check(kind, SECOND).is_empty(), "{kind}");
    }
}

#[test]
fn each_leg_names_itself() {
    let later = |ns: u64| ns + 2 * SECOND;
    let read = Moments {
        read: later(QUICK.read),
        dispatched: later(QUICK.dispatched),
        queued: later(QUICK.queued),
        batch_entered: later(QUICK.batch_entered),
        sent: later(QUICK.sent),
        ..QUICK
    };
    let dispatched = Moments { read: QUICK.read, ..read };
    let queued = Moments { dispatched: QUICK.dispatched, queued: QUICK.queued, ..dispatched };
    for (moments, kind) in [(read, "late-read"), (dispatched, "late-dispatch"), (queued, "queued")] {
        let scene = scene_of(3, moments);
        for other in ["late-read", "late-dispatch", "queued"] {
            let found = scene.check(other, 4 * SECOND);
            assert_eq!(found.len(), usize::from(kind == other), "{kind}: {other}");
            if let [verdict] = &*found {
                assert_eq!((verdict.severity, &verdict.evidence["requests_late"]), (Severity::Warning, &3.into()));
                assert!(verdict.summary.starts_with("3 of 3 requests wait 1.000 s or more"), "{}", verdict.summary);
                assert!(verdict.summary.ends_with("99 % of their time to first token"), "{}", verdict.summary);
            }
        }
    }
}

/// A queue of a second before a prefill of nine is not what makes the request late.
#[test]
fn a_minor_leg_is_information() {
    let moments = Moments { batch_entered: QUICK.queued + SECOND, sent: 10 * SECOND, ..QUICK };
    let found = scene_of(3, moments).check("queued", 12 * SECOND);
    assert_eq!(found[0].severity, Severity::Info);
}
