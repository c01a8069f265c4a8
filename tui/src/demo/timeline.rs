//! Puts what the relay observed and what the peers report into one order of time.
//!
//! Both read one clock, yet come through two queues: the relay tells of a frame when its last byte has been written,
//! and the receiver may have taken it by then. So entries are held back for a moment, and a report of a frame that the
//! relay has not told of yet waits for it.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use trace::engine::Mode;
use trace::event::Lost;
use trace::{FrameId, HopId, MonoNs};

use super::peers::{Did, Fingerprint, Given, PeerEvent};

/// How long an entry waits for earlier ones.
const HOLD: Duration = Duration::from_millis(20);
/// How long a report waits for its frame. Beyond it the relay has lost the observation, and says so itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something that happened, with its frame named as the ledger names it.
#[derive(Clone, Debug)]
pub(super) enum Moment {
    /// A frame reached the relay; its bytes, or why they were not kept.
    Sent {
        id: FrameId,
        bytes: u64,
        message: Result<Bytes, String>,
    },
    /// It was passed on.
    Forwarded(FrameId),
    /// The receiver took it.
    Taken { id: FrameId, wakeup: u64 },
    /// The receiver was done with it.
    Handled(FrameId),
    /// Tokens went to a client.
    Delivered(Given),
    /// New requests are served in this mode.
    Serves(Mode),
    /// Observations were lost.
    Lost(Lost),
}

/// The entries that wait for their turn.
#[derive(Default)]
pub(super) struct Timeline {
    waiting: BinaryHeap<Reverse<Entry>>,
    /// Frames that were sent and not handled. Bounded by what the clients have open.
    frames: HashMap<(HopId, Fingerprint), FrameId>,
    entered: u64,
}

struct Entry {
    at: MonoNs,
    /// Entries of one instant keep the order they came in.
    order: u64,
    what: What,
}

enum What {
    Seen(Moment),
    Told(Did),
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl Timeline {
    /// Enters what the relay observed. A sent frame must be entered before reports of it can pass.
    pub(super) fn seen(&mut self, at: MonoNs, moment: Moment) {
        if let Moment::Sent {
            id,
            message: Ok(message),
            ..
        } = &moment
        {
            self.frames.insert((id.hop, Fingerprint::of(message)), *id);
        }
        self.enter(at, What::Seen(moment));
    }

    /// Enters a peer's report.
    pub(super) fn told(&mut self, event: PeerEvent) {
        self.enter(event.at, What::Told(event.did));
    }

    fn enter(&mut self, at: MonoNs, what: What) {
        self.entered += 1;
        self.waiting.push(Reverse(Entry {
            at,
            order: self.entered,
            what,
        }));
    }

    /// The next entry that is due at `now`. With `last`, nothing more will be entered: all that is left is due.
    pub(super) fn next(&mut self, now: MonoNs, last: bool) -> Option<(MonoNs, Moment)> {
        loop {
            let Reverse(first) = self.waiting.peek()?;
            let age = Duration::from_nanos(now.since(first.at));
            if !last && age < HOLD {
                return None;
            }
            if let What::Told(Did::Taken { hop, print, .. }) = &first.what
                && !self.frames.contains_key(&(*hop, *print))
                && !last
                && age < PATIENCE
            {
                return None;
            }
            let Reverse(Entry { at, what, .. }) = self.waiting.pop()?;
            let moment = match what {
                What::Seen(moment) => Some(moment),
                What::Told(did) => self.name(did),
            };
            if let Some(moment) = moment {
                return Some((at, moment));
            }
        }
    }

    /// A report in the ledger's names; `None` when its frame was never observed.
    fn name(&mut self, did: Did) -> Option<Moment> {
        Some(match did {
            Did::Taken { hop, print, wakeup } => Moment::Taken {
                id: *self.frames.get(&(hop, print))?,
                wakeup,
            },
            Did::Handled { hop, print } => Moment::Handled(self.frames.remove(&(hop, print))?),
            Did::Delivered(given) => Moment::Delivered(given),
            Did::Serves(mode) => Moment::Serves(mode),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOP: HopId = HopId(0);
    const MS: u64 = 1_000_000;

    fn frame(seq: u64) -> FrameId {
        FrameId { hop: HOP, lane: 0, seq }
    }

    fn sent(seq: u64, message: &'static [u8]) -> Moment {
        Moment::Sent {
            id: frame(seq),
            bytes: message.len() as u64,
            message: Ok(Bytes::from_static(message)),
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

    #[test]
    fn a_report_waits_for_its_frame_and_comes_after_it() {
        let mut timeline = Timeline::default();
        timeline.told(taken(b"frame", 100 * MS));
        assert!(
            timeline.next(MonoNs(200 * MS), false).is_none(),
            "the relay has not told of the frame"
        );
        timeline.seen(MonoNs(99 * MS), sent(7, b"frame"));
        let order: Vec<_> = std::iter::from_fn(|| timeline.next(MonoNs(200 * MS), false)).collect();
        assert!(
            matches!(order[..], [(MonoNs(a), Moment::Sent { .. }), (MonoNs(b), Moment::Taken { id, .. })]
                if a == 99 * MS && b == 100 * MS && id == frame(7)),
            "{order:?}"
        );
    }

    #[test]
    fn entries_are_held_back_so_that_an_earlier_one_can_still_pass() {
        let mut timeline = Timeline::default();
        timeline.seen(MonoNs(50 * MS), Moment::Forwarded(frame(2)));
        assert!(timeline.next(MonoNs(60 * MS), false).is_none());
        timeline.seen(MonoNs(45 * MS), Moment::Forwarded(frame(1)));
        let at: Vec<_> = std::iter::from_fn(|| timeline.next(MonoNs(75 * MS), false))
            .map(|(at, _)| at.0 / MS)
            .collect();
        assert_eq!(at, [45, 50]);
    }

    #[test]
    fn a_report_of_a_frame_that_was_never_observed_does_not_hold_up_the_rest() {
        let mut timeline = Timeline::default();
        timeline.told(taken(b"lost", 100 * MS));
        timeline.seen(MonoNs(101 * MS), Moment::Forwarded(frame(1)));
        let (at, _) = timeline
            .next(MonoNs(3000 * MS), false)
            .unwrap_or((MonoNs(0), Moment::Forwarded(frame(0))));
        assert_eq!(at, MonoNs(101 * MS));
    }
}
