//! Prediction of lost tokens. Each frame costs iterations of its thread's event loop, regardless of the hop that it arrived on.

use crate::clock::MonoNs;
use crate::engine::example;
use crate::engine::{Mode, Waiter};
use crate::event::{Capabilities, Chunk, Engine, Event, Frame, Hop, IdColumn, Kind, Received, What};
use crate::{Analysis, FrameId, HopId, ThreadId};

const OUTPUT: HopId = HopId(0);
/// Another connection of the scheduler to the same inbox, for control messages and health check responses.
const CONTROL: HopId = HopId(1);

/// Receives queued frames of these hops in one wakeup, with one token per output frame. Returns token ranges predicted lost.
fn predicted(received: &[HopId], by: Option<ThreadId>) -> Vec<[u32; 2]> {
    predicted_after(received, by, None, false)
}

/// Like [`predicted`]. With `wait_ns`, processing is observed, and each receive comes `wait_ns` after the previous frame is processed.
/// With `late`, each frame is sent just before its receive.
fn predicted_after(received: &[HopId], by: Option<ThreadId>, wait_ns: Option<u64>, late: bool) -> Vec<[u32; 2]> {
    let mut analysis = Analysis::new(example::config());
    let mut at = 1_000_000;
    let mut apply = |what: What<'_>| {
        at += 1_000;
        if matches!(what, What::Received(_)) {
            at += wait_ns.unwrap_or(0);
        }
        analysis.apply(&Event { at: MonoNs(at), what });
    };
    for id in [OUTPUT, CONTROL] {
        let capabilities =
            Capabilities { sent: true, received: true, processed: wait_ns.is_some(), ..Capabilities::default() };
        let hop = Hop::only(id, "scheduler->tokenizer", capabilities);
        apply(What::Hop(hop));
    }
    apply(What::Engine(Engine {
        version: Some("0.5.9"),
        mode: Some(Mode::Incremental),
        waiter: Some(Waiter::KeepsLast),
        turnaround: Some(3),
        ..Engine::default()
    }));
    let frame_id = |index: usize| {
        FrameId::new(received[index], 0, received[..index].iter().filter(|&&hop| hop == received[index]).count() as u64)
    };
    let send = |index: usize, apply: &mut dyn FnMut(What<'_>)| {
        let (id, hop) = (frame_id(index), received[index]);
        let chunk = Chunk::counted("r", 1, id.seq as u32 + 1);
        let (kind, chunks) = match hop {
            OUTPUT => (Kind::TokenIds, std::slice::from_ref(&chunk)),
            _ => (Kind::Control, &[][..]),
        };
        apply(What::Sent(Frame { id, bytes: 100, forwarded: None, kind, ids: IdColumn::Delta, chunks }));
    };
    if !late {
        (0..received.len()).for_each(|index| send(index, &mut apply));
    }
    for index in 0..received.len() {
        if late {
            send(index, &mut apply);
        }
        apply(What::Received(Received { by, ..Received::in_wakeup(frame_id(index), 1) }));
        if wait_ns.is_some() {
            apply(What::Processed(frame_id(index)));
        }
    }
    let request = analysis.ledger().request("r").expect("it is live");
    let ranges = request.predicted().map(|losses| &losses.ranges[..]);
    ranges.unwrap_or_default().iter().map(|range| range.tokens).collect()
}

const LOOP: Option<ThreadId> = Some(ThreadId { pid: 7, tid: 7 });

#[test]
fn the_first_of_two_chunks_in_one_wakeup_is_predicted_lost() {
    assert_eq!(predicted(&[OUTPUT; 6], LOOP), [[1, 1], [3, 3], [5, 5]]);
    assert_eq!(predicted(&[OUTPUT; 5], None), [[1, 1], [3, 3]]);
}

#[test]
fn a_control_message_between_two_chunks_lets_their_waiter_run() {
    let received = [CONTROL, OUTPUT, CONTROL, OUTPUT, OUTPUT, OUTPUT];
    assert_eq!(predicted(&received, LOOP), [[2, 2]]);
}

#[test]
fn an_idle_receiver_lets_the_waiters_run() {
    let none = [[0_u32; 2]; 0];
    for by in [LOOP, None] {
        let after = |wait_ns, late| predicted_after(&[OUTPUT; 4], by, Some(wait_ns), late);
        assert_eq!(after(0, false), [[1, 1], [3, 3]]);
        assert_eq!(after(1_000_000, false), none, "sent shortly before, and not received at once");
        assert_eq!(after(20_000_000, false), [[1, 1], [3, 3]], "queued for a long time");
        assert_eq!(after(0, true), none, "sent after the receiver began to wait");
    }
}
