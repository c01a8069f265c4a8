//! Joins what the peers report with the frames that the tap saw, and keeps both in the order of time.
//!
//! A peer knows a frame by its bytes, the ledger by its lane and number. The tap tells of a frame once its last byte has
//! been written, when the receiver may have taken it already: a report waits until its frame is known.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use trace::engine::{Mode, Waiter};
use trace::event::{Delivery, Engine, Event, Response, Taken, What};
use trace::{FrameId, HopId, MonoNs};

use super::peers::{Did, Fingerprint, PeerEvent};

/// How long a report waits for the tap to tell of what was earlier.
const HOLD: Duration = Duration::from_millis(20);
/// How long a report waits for its frame. Beyond it the tap has lost the observation, and says so itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// The reports that wait for their turn, and the engine they are about.
pub(super) struct Join {
    version: &'static str,
    waiter: Waiter,
    turnaround: u8,
    /// In the order of time: the peers share a thread.
    reports: VecDeque<PeerEvent>,
    /// Frames that were sent and not handled. Bounded by what the clients have open.
    frames: HashMap<(HopId, Fingerprint), FrameId>,
}

impl Join {
    pub(super) fn new(version: &'static str, waiter: Waiter, turnaround: u8) -> Self {
        Self {
            version,
            waiter,
            turnaround,
            reports: VecDeque::new(),
            frames: HashMap::new(),
        }
    }

    /// What the engine is while it serves in `mode`; the wire alone could not tell.
    pub(super) fn engine(&self, mode: Mode) -> What<'static> {
        What::Engine(Engine {
            version: Some(self.version),
            mode: Some(mode),
            waiter: Some(self.waiter),
            turnaround: Some(self.turnaround),
        })
    }

    /// A peer reports.
    pub(super) fn told(&mut self, report: PeerEvent) {
        self.reports.push_back(report);
    }

    /// The tap tells: first come the reports of what was earlier, then this.
    pub(super) fn seen(&mut self, event: &Event<'_>, message: &[u8], sink: &mut dyn FnMut(&Event<'_>)) {
        match &event.what {
            What::Engine(_) => return,
            What::Sent(frame) => {
                self.frames.insert((frame.id.hop, Fingerprint::of(message)), frame.id);
            }
            _ => {}
        }
        while self.next_is_due(|at| at < event.at) {
            self.pass_on(sink);
        }
        sink(event);
    }

    /// Passes on the reports that have waited long enough, or all of them; whether there were any.
    pub(super) fn settle(&mut self, now: MonoNs, all: bool, sink: &mut dyn FnMut(&Event<'_>)) -> bool {
        let mut any = false;
        loop {
            let late = |limit: Duration| move |at| Duration::from_nanos(now.since(at)) >= limit;
            let given_up = self
                .reports
                .front()
                .is_some_and(|report| all || late(PATIENCE)(report.at));
            if !given_up && !self.next_is_due(late(HOLD)) {
                return any;
            }
            self.pass_on(sink);
            any = true;
        }
    }

    /// The oldest report's time satisfies `due`, and the frame that it speaks of is known.
    fn next_is_due(&self, due: impl Fn(MonoNs) -> bool) -> bool {
        self.reports.front().is_some_and(|report| {
            due(report.at)
                && match &report.did {
                    Did::Taken { hop, print, .. } => self.frames.contains_key(&(*hop, *print)),
                    Did::Handled { .. } | Did::Delivered(_) | Did::Serves(_) => true,
                }
        })
    }

    /// Passes on the oldest report, unless its frame was never seen.
    fn pass_on(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let Some(PeerEvent { at, did }) = self.reports.pop_front() else {
            return;
        };
        let what = match &did {
            Did::Taken { hop, print, wakeup } => match self.frames.get(&(*hop, *print)) {
                Some(&id) => What::Taken(Taken {
                    id,
                    wakeup: Some(*wakeup),
                    by: None,
                    frame: None,
                }),
                None => return,
            },
            Did::Handled { hop, print } => match self.frames.remove(&(*hop, *print)) {
                Some(id) => What::Handled(id),
                None => return,
            },
            Did::Delivered(given) => What::Delivered(Delivery {
                rid: &given.rid,
                tokens: given.tokens,
                mode: given.mode,
                completion_tokens: Some(given.completion_tokens),
                finished: given.finished,
                response: Response::Streamed,
            }),
            Did::Serves(mode) => self.engine(*mode),
        };
        sink(&Event { at, what });
    }
}

#[cfg(test)]
mod tests {
    use trace::event::{Frame, IdColumn, Kind};

    use super::*;

    const HOP: HopId = HopId(0);
    const MS: u64 = 1_000_000;

    fn join() -> Join {
        Join::new("0.5.9", Waiter::KeepsLast, 3)
    }

    fn frame(seq: u64) -> FrameId {
        FrameId { hop: HOP, lane: 0, seq }
    }

    fn sent(seq: u64, at: u64) -> Event<'static> {
        let frame = Frame {
            id: frame(seq),
            bytes: 5,
            kind: Kind::TokenIds,
            ids: IdColumn::Delta,
            chunks: &[],
        };
        Event {
            at: MonoNs(at),
            what: What::Sent(frame),
        }
    }

    fn taken(message: &[u8], at: u64) -> PeerEvent {
        PeerEvent {
            at: MonoNs(at),
            did: Did::Taken {
                hop: HOP,
                print: Fingerprint::of(message),
                wakeup: 1,
            },
        }
    }

    /// `+seq` for a sent frame, `-seq` for a taken one, with the millisecond.
    fn note(event: &Event<'_>) -> String {
        match &event.what {
            What::Sent(frame) => format!("+{} {}", frame.id.seq, event.at.0 / MS),
            What::Taken(taken) => format!("-{} {}", taken.id.seq, event.at.0 / MS),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_report_waits_for_its_frame_and_comes_after_it() {
        let (mut join, mut notes) = (join(), Vec::new());
        join.told(taken(b"frame", 100 * MS));
        assert!(
            !join.settle(MonoNs(200 * MS), false, &mut |e| notes.push(note(e))),
            "its frame is not known yet"
        );
        join.seen(&sent(7, 99 * MS), b"frame", &mut |e| notes.push(note(e)));
        join.settle(MonoNs(200 * MS), false, &mut |e| notes.push(note(e)));
        assert_eq!(notes, ["+7 99", "-7 100"]);
    }

    #[test]
    fn reports_come_between_the_frames_where_their_time_puts_them() {
        let (mut join, mut notes) = (join(), Vec::new());
        join.told(taken(b"one", 11 * MS));
        join.told(taken(b"two", 31 * MS));
        let frames = [(1, 10, b"one" as &[u8]), (2, 20, b"two"), (3, 30, b"three")];
        for (seq, at, message) in frames {
            join.seen(&sent(seq, at * MS), message, &mut |e| notes.push(note(e)));
        }
        assert_eq!(notes, ["+1 10", "-1 11", "+2 20", "+3 30"]);
        assert!(
            !join.settle(MonoNs(40 * MS), false, &mut |_| {}),
            "the tap may still tell of something earlier"
        );
        join.settle(MonoNs(51 * MS), false, &mut |e| notes.push(note(e)));
        assert_eq!(notes[4..], ["-2 31"]);
    }

    #[test]
    fn a_report_of_a_frame_that_was_never_seen_does_not_hold_up_the_rest() {
        let (mut join, mut notes) = (join(), Vec::new());
        join.told(taken(b"lost", 100 * MS));
        join.told(taken(b"frame", 101 * MS));
        join.seen(&sent(1, 99 * MS), b"frame", &mut |e| notes.push(note(e)));
        join.settle(MonoNs(3000 * MS), false, &mut |e| notes.push(note(e)));
        assert_eq!(notes, ["+1 99", "-1 101"]);
    }
}
