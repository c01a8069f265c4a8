//! What of it is observed, what is not, and when that is owned up to.

use trace::HopId;
use trace::event::{LostCause, Sees};

use super::{US, World};
use crate::schedule::{Path, Sight};
use crate::told::Told;

impl World {
    pub(super) fn attach(&mut self) {
        if std::mem::replace(&mut self.attached, true) {
            return;
        }
        self.say(Told::Engine(self.shape.policy));
        let workers = match self.shape.path {
            Path::Workers(workers) => workers,
            _ => 1,
        };
        for place in 0..self.places() {
            let last = self.is_last(place);
            for worker in 0..if last { workers } else { 1 } {
                let sees = Sees {
                    sent: true,
                    taken: self.shape.takes_seen,
                    delivered: last && self.shape.deliveries_seen,
                    ..Sees::default()
                };
                self.say(Told::Hop {
                    id: HopId(place as u16 + worker),
                    name: self.name(place),
                    worker: (workers > 1 && last).then_some(worker),
                    origin: place == 0,
                    last,
                    sees,
                });
            }
        }
        // The source numbers frames from here on; what is under way it has not seen.
        for lane in self.lanes.values_mut() {
            lane.seq = 0;
            lane.queue.iter_mut().for_each(|flight| flight.id = None);
        }
    }

    pub(super) fn say(&mut self, told: Told) {
        if self.attached {
            self.told.push((self.now, Some(told)));
        }
        if !self.shape.equal_stamps {
            self.now += US;
        }
    }

    /// Whether the next observation of this sort is lost; what is owed of earlier ones is said before one that is not.
    pub(super) fn loses(&mut self, sight: Sight, hop: Option<HopId>) -> bool {
        if !self.attached {
            return false;
        }
        let places = self.places();
        let meant = |what: Sight| match (what, sight) {
            (Sight::Frames(a), Sight::Frames(b))
            | (Sight::Takes(a), Sight::Takes(b))
            | (Sight::Content(a), Sight::Content(b)) => a % places == b,
            (Sight::Deliveries, Sight::Deliveries) | (Sight::Answers, Sight::Answers) => true,
            _ => false,
        };
        let Some(at) = self.blind.iter().position(|&(what, count, _)| count > 0 && meant(what)) else {
            return false;
        };
        self.blind[at].1 -= 1;
        self.hidden = true;
        if !matches!(sight, Sight::Content(_)) {
            *self.owed.entry(hop).or_default() += 1;
            if self.blind[at].2 {
                self.own_up(hop);
            }
        }
        true
    }

    pub(super) fn own_up(&mut self, hop: Option<HopId>) {
        if let Some(count) = self.owed.remove(&hop) {
            let now = self.now;
            self.say(Told::Lost {
                hop,
                count,
                cause: LostCause::QueueFull,
            });
            // It takes the engine no time.
            self.now = now;
        }
    }
}
