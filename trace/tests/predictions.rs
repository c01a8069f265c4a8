//! Prediction of lost tokens. Each frame takes turns of its thread's event loop, regardless of the hop that it arrived on.

use trace::clock::MonoNs;
use trace::engine::{Mode, Waiter};
use trace::event::{Chunk, Engine, Event, Frame, Hop, IdColumn, Kind, Sees, Taken, What};
use trace::{Analysis, Config, FrameId, HopId, ThreadId};

const OUTPUT: HopId = HopId(0);
/// Another connection of the scheduler to the same inbox, for control messages and health check responses.
const CONTROL: HopId = HopId(1);

/// Receives queued frames of these hops in one wakeup, with one token per output frame. Returns token ranges predicted lost.
fn predicted(taken: &[HopId], by: Option<ThreadId>) -> Vec<[u32; 2]> {
    predicted_after(taken, by, None, false)
}

/// Like [`predicted`]. With `waits`, processing is observed, and each receive comes `waits` ns after the previous frame is processed.
/// With `late`, each frame is sent just before its receive.
fn predicted_after(taken: &[HopId], by: Option<ThreadId>, waits: Option<u64>, late: bool) -> Vec<[u32; 2]> {
    let mut analysis = Analysis::new(Config::default());
    let mut at = 1_000_000;
    let mut say = |what: What<'_>| {
        at += 1_000;
        if matches!(what, What::Taken(_)) {
            at += waits.unwrap_or(0);
        }
        analysis.apply(&Event { at: MonoNs(at), what });
    };
    for id in [OUTPUT, CONTROL] {
        let sees = Sees {
            sent: true,
            taken: true,
            handled: waits.is_some(),
            ..Sees::default()
        };
        let hop = Hop {
            id,
            name: "scheduler->tokenizer",
            endpoint: "",
            worker: None,
            origin: true,
            last: true,
            sees,
        };
        say(What::Hop(hop));
    }
    say(What::Engine(Engine {
        version: Some("0.5.9"),
        mode: Some(Mode::Incremental),
        waiter: Some(Waiter::KeepsLast),
        turnaround: Some(3),
    }));
    let name = |place: usize| FrameId {
        hop: taken[place],
        lane: 0,
        seq: taken[..place].iter().filter(|&&hop| hop == taken[place]).count() as u64,
    };
    let send = |place: usize, say: &mut dyn FnMut(What<'_>)| {
        let (id, hop) = (name(place), taken[place]);
        let chunk = Chunk {
            rid: "r",
            listed: Some(1),
            completion_tokens: Some(id.seq as u32 + 1),
            prompt_tokens: None,
            cached_tokens: None,
            finish: None,
            retractions: None,
            worker: None,
            ids: &[],
        };
        let (kind, chunks) = match hop {
            OUTPUT => (Kind::TokenIds, std::slice::from_ref(&chunk)),
            _ => (Kind::Control, &[][..]),
        };
        say(What::Sent(Frame {
            id,
            bytes: 100,
            kind,
            ids: IdColumn::Delta,
            chunks,
        }));
    };
    if !late {
        (0..taken.len()).for_each(|place| send(place, &mut say));
    }
    for place in 0..taken.len() {
        if late {
            send(place, &mut say);
        }
        say(What::Taken(Taken {
            id: name(place),
            wakeup: Some(1),
            by,
            frame: None,
        }));
        if waits.is_some() {
            say(What::Handled(name(place)));
        }
    }
    let request = analysis.ledger().request("r").expect("it is live");
    let ranges = request.predicted().map(|losses| &losses.ranges[..]);
    ranges.unwrap_or_default().iter().map(|range| range.tokens).collect()
}

const LOOP: Option<ThreadId> = Some(ThreadId { pid: 7, tid: 7 });

#[test]
fn of_two_chunks_that_meet_the_first_is_lost() {
    assert_eq!(predicted(&[OUTPUT; 6], LOOP), [[1, 1], [3, 3], [5, 5]]);
    assert_eq!(predicted(&[OUTPUT; 5], None), [[1, 1], [3, 3]]);
}

#[test]
fn a_control_message_between_two_chunks_gives_their_waiter_its_turns() {
    let taken = [CONTROL, OUTPUT, CONTROL, OUTPUT, OUTPUT, OUTPUT];
    assert_eq!(predicted(&taken, LOOP), [[2, 2]]);
}

#[test]
fn a_receiver_that_had_to_wait_for_a_frame_gave_the_waiters_their_turns() {
    let none = [[0_u32; 2]; 0];
    for by in [LOOP, None] {
        let after = |waits, late| predicted_after(&[OUTPUT; 4], by, Some(waits), late);
        assert_eq!(after(0, false), [[1, 1], [3, 3]]);
        assert_eq!(after(1_000_000, false), none, "sent just before, and not taken at once");
        assert_eq!(after(20_000_000, false), [[1, 1], [3, 3]], "queued for long");
        assert_eq!(after(0, true), none, "sent after it was asked for");
    }
}
