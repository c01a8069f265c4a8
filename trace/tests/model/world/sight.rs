//! Which parts of the run are observed, and when missed observations are reported.

use trace::HopId;
use trace::event::{LostCause, Sees};

use super::{US, World};
use crate::schedule::{Path, Sight, Watched};
use crate::told::Told;

impl World {
    pub(super) fn attach(&mut self) {
        if std::mem::replace(&mut self.attached, true) {
            return;
        }
        self.say(Told::Engine(self.shape.policy));
        for place in 0..self.places() {
            for worker in 0..if self.is_last(place) { self.workers() } else { 1 } {
                self.announce(HopId(place as u16 + worker));
            }
        }
        // The source starts to number frames now. It has not seen frames already in flight.
        for lane in self.lanes.values_mut() {
            lane.seq = 0;
            lane.queue.iter_mut().for_each(|flight| flight.id = None);
        }
    }

    fn workers(&self) -> u16 {
        match self.shape.path {
            Path::Workers(workers) => workers,
            _ => 1,
        }
    }

    /// Hop to the tokenizer that serves a request.
    fn hop_of(&self, life: usize) -> HopId {
        let worker = life % usize::from(self.workers());
        HopId((self.places() - 1 + worker) as u16)
    }

    /// Whether the tokenizer that serves this request is observed.
    pub(super) fn is_served_in_sight(&self, life: usize) -> bool {
        !self.unwatched.contains_key(&self.hop_of(life))
    }

    /// Starts or stops observation of a tokenizer.
    pub(super) fn watch(&mut self, worker: u16, sight: Watched) {
        let hop = self.hop_of(usize::from(worker % self.workers()));
        if sight == Watched::Yes {
            self.unwatched.remove(&hop);
        } else {
            self.hidden = true;
            self.unwatched.insert(hop, sight);
        }
        if self.attached {
            self.announce(hop);
        }
    }

    fn announce(&mut self, id: HopId) {
        let place = self.place(id);
        let last = self.is_last(place);
        let worker = id.0 - place as u16;
        let sight = self.unwatched.get(&id).copied().unwrap_or(Watched::Yes);
        let shows = |stage: bool| stage && sight == Watched::Yes;
        let name = match (sight, self.name(place)) {
            (Watched::Unknown, "scheduler->tokenizer") => "scheduler->?",
            (Watched::Unknown, "detokenizer->tokenizer") => "detokenizer->?",
            (Watched::Unknown, _) => "router->?",
            (_, name) => name,
        };
        let sees = Sees {
            sent: true,
            taken: shows(self.shape.takes_seen),
            delivered: shows(last && self.shape.deliveries_seen),
            ..Sees::default()
        };
        self.say(Told::Hop {
            id,
            name,
            worker: (self.workers() > 1 && last).then_some(worker),
            origin: place == 0,
            last: last && sight != Watched::Unknown,
            sees,
        });
    }

    pub(super) fn say(&mut self, told: Told) {
        if self.attached {
            self.told.push((self.now, Some(told)));
        }
        if !self.shape.equal_stamps {
            self.now += US;
        }
    }

    /// Whether the next observation of this kind is missed. Callers report earlier losses before an observation that is not.
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
            // The report takes no time in the engine.
            self.now = now;
        }
    }
}
