//! Findings about requests without an answer, and about aborts without effect.

use super::{MS, SECOND, Scene};
use crate::detect::Severity;
use crate::event::{
    Answer, AnswerEnd, Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Finish, Hop, Received,
    Undecoded, What,
};
use crate::id::{FrameId, HopId};

const REQUESTS: HopId = HopId(7);

fn scene() -> Scene {
    let mut scene = Scene::delivering();
    scene.hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED));
    scene
}

fn dispatch(scene: &mut Scene, at: u64, seq: u64, kind: DispatchKind, rid: &str) {
    let request = Some(DispatchedRequest { prompt_tokens: Some(4_096), ..DispatchedRequest::new(rid) });
    let id = FrameId::new(REQUESTS, 0, seq);
    scene.apply(at, What::Dispatched(Dispatch { id, bytes: 900, kind, index: 0, request }));
}

/// Sends a request each second and answers it after 10 ms. A first one, sent at second 1, gets no answer.
fn scene_with_lost_request(seconds: u64, is_received: bool) -> Scene {
    let mut scene = scene();
    dispatch(&mut scene, SECOND, 0, DispatchKind::Requests, "lost");
    if is_received {
        scene.apply(SECOND + MS, What::Received(Received::new(FrameId::new(REQUESTS, 0, 0))));
    }
    for second in 2..seconds {
        let (at, rid) = (second * SECOND, second.to_string());
        dispatch(&mut scene, at, second - 1, DispatchKind::Requests, &rid);
        scene.apply(at + MS, What::Received(Received::new(FrameId::new(REQUESTS, 0, second - 1))));
        scene.send(at + 10 * MS, &[(&rid, 1, 1)]);
        scene.ledger.tick(crate::clock::MonoNs(at + 20 * MS));
    }
    scene
}

#[test]
fn a_request_without_an_answer_is_named() {
    let found = scene_with_lost_request(60, true).check("unanswered-requests", 60 * SECOND);
    let [verdict] = &*found else { panic!("{found:?}") };
    assert_eq!((verdict.severity, &*verdict.rid, verdict.weight), (Severity::Warning, "lost", 1));
    assert_eq!(
        verdict.summary,
        "the scheduler sent nothing for 1 request for up to 59.000 s, although it answered 58 others meanwhile: lost for \
         59.000 s, 4,096 prompt tokens"
    );
    assert_eq!(verdict.evidence["longest"][0]["received"], true);
    assert!(verdict.evidence["usual_wait_ns"].as_u64() < Some(11 * MS));
    let unreceived = scene_with_lost_request(60, false).check("unanswered-requests", 60 * SECOND);
    assert!(unreceived[0].advice.as_ref().expect("advice").starts_with("no receive of the first"), "{unreceived:?}");
    // 30 s, and 4 s for the prompt.
    assert!(scene_with_lost_request(35, true).check("unanswered-requests", 35 * SECOND).is_empty());
}

/// An engine that never answers a request of second 1.
fn scene_with_request_of_pair() -> Scene {
    let mut scene = scene();
    let id = FrameId::new(REQUESTS, 0, 0);
    let named = DispatchedRequest { room: Some(7), ..DispatchedRequest::new("lost") };
    let request = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request: Some(named) };
    scene.apply(SECOND, What::Dispatched(request));
    scene.apply(SECOND + MS, What::Received(Received::new(id)));
    scene
}

/// It answers a health check after this minute.
fn answer_health_check(scene: &mut Scene, minute: u64) {
    let at = minute * 60 * SECOND;
    let rid = format!("HEALTH_CHECK_{minute}");
    dispatch(scene, at, minute, DispatchKind::Requests, &rid);
    scene.apply(at + MS, What::Received(Received::new(FrameId::new(REQUESTS, 0, minute))));
    scene.send(at + 2 * MS, &[(&rid, 1, 1)]);
    scene.tick(at + 3 * MS);
}

#[test]
fn a_request_that_an_idle_engine_does_not_answer_is_named() {
    let mut idle = scene_with_request_of_pair();
    idle.tick(50 * SECOND);
    assert!(idle.check("unanswered-requests", 50 * SECOND).is_empty());
    answer_health_check(&mut idle, 1);
    let found = idle.check("unanswered-requests", 61 * SECOND);
    let [verdict] = &*found else { panic!("{found:?}") };
    let expected = "the scheduler sent nothing for 1 request for up to 1m00s, although it answered a health check meanwhile and ran nothing \
                    else: lost for 1m00s";
    assert_eq!(verdict.summary, expected);
    assert!(verdict.advice.as_ref().is_some_and(|advice| advice.ends_with("its room, 7")), "{verdict:?}");
    // A busy engine may have no room for it.
    let mut busy = scene_with_request_of_pair();
    busy.send(2 * SECOND, &[("busy", 1, 1)]);
    answer_health_check(&mut busy, 1);
    assert!(busy.check("unanswered-requests", 61 * SECOND).is_empty());
}

#[test]
fn a_missed_message_may_be_the_abort() {
    let mut scene = scene();
    for count in 1..=100 {
        let at = u64::from(count) * 100 * MS;
        scene.send(at, &[("a", 1, count)]);
        if count == 14 {
            scene.apply(at, What::Answered(Answer { end: AnswerEnd::ClientLeft, ..Answer::new("a", None, None) }));
            let id = FrameId::new(REQUESTS, 0, 0);
            scene.apply(at, What::Undecoded(Undecoded { id, bytes: 80, forwarded: None, reason: "layout" }));
        }
    }
    let found = scene.check("abandoned-requests", 10 * SECOND);
    assert!(found[0].summary.ends_with("a for 8.600 s, 86 tokens"), "{}", found[0].summary);
}

#[test]
fn an_abort_without_effect_is_part_of_the_finding() {
    for (leaves, aborts, told) in [
        (
            true,
            true,
            "whose client had disconnected: for up to 8.600 s, 86 tokens generated for nobody; a for 8.600 s, 86 tokens; 1 ignored its abort",
        ),
        (
            true,
            false,
            "whose client had disconnected: for up to 8.600 s, 86 tokens generated for nobody; a for 8.600 s, 86 tokens; 1 without an abort",
        ),
        (
            false,
            true,
            "that had been aborted: for up to 8.600 s, 86 tokens generated for nobody; a for 8.600 s, 86 tokens; 1 ignored its abort",
        ),
    ] {
        let mut scene = scene();
        for count in 1..=100 {
            let at = u64::from(count) * 100 * MS;
            scene.send(at, &[("a", 1, count)]);
            if count == 14 && leaves {
                scene.apply(at, What::Answered(Answer { end: AnswerEnd::ClientLeft, ..Answer::new("a", None, None) }));
            }
            if count == 14 && aborts {
                dispatch(&mut scene, at, 0, DispatchKind::Aborts, "a");
                scene.apply(at + MS, What::Received(Received::new(FrameId::new(REQUESTS, 0, 0))));
            }
        }
        let found = scene.check("abandoned-requests", 10 * SECOND);
        assert_eq!(found.len(), 1);
        assert!(found[0].summary.ends_with(told), "{}", found[0].summary);
    }
}

#[test]
fn a_retry_that_is_aborted_in_place_of_the_attempt_before_is_named() {
    let mut scene = scene();
    dispatch(&mut scene, SECOND, 0, DispatchKind::Requests, "a");
    scene.send(SECOND + 10 * MS, &[("a", 1, 1)]);
    let last = Chunk { finish: Some(Finish::Length), ..Chunk::counted("a", 1, 2) };
    scene.send_chunk(0, SECOND + 20 * MS, last);
    scene.apply(SECOND + 30 * MS, What::Answered(Answer::new("a", None, None)));
    dispatch(&mut scene, 2 * SECOND, 1, DispatchKind::Requests, "a");
    scene.send(2 * SECOND + 10 * MS, &[("a", 1, 1)]);
    dispatch(&mut scene, 3 * SECOND + 31 * MS, 2, DispatchKind::Aborts, "a");
    assert!(scene.check("aborted-retries", 4 * SECOND).is_empty());
    let end = Chunk { finish: Some(Finish::Abort), ..Chunk::counted("a", 1, 2) };
    scene.send_chunk(0, 3 * SECOND + 40 * MS, end);
    assert!(scene.check("aborted-retries", 4 * SECOND).is_empty(), "its client may have left");
    scene.apply(3 * SECOND + 50 * MS, What::Answered(Answer::new("a", None, None)));
    let found = scene.check("aborted-retries", 4 * SECOND);
    let [verdict] = &*found else { panic!("{found:?}") };
    assert_eq!((verdict.severity, &*verdict.rid, verdict.occurrences), (Severity::Warning, "a", Some(1)));
    assert_eq!(
        verdict.summary,
        "1 request was aborted in place of an earlier one with the same rid: the tokenizer sends an abort 2.000 s after a response has \
         ended, which ends whatever has its rid by then; a 1.031 s after its dispatch"
    );
    assert_eq!(verdict.evidence["latest"][0]["aborted_after_ns"], 2_001 * MS);
}
