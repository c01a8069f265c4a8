//! Which parts of the run are observed, and when missed observations are reported.

use trace::HopId;
use trace::event::{Capabilities, Engine, Hop, Missed, MissedCause, What};

use super::{US, World};
use crate::events::OwnedEvent;
use crate::schedule::{Observation, Path, Visibility};

impl World {
    pub(super) fn attach(&mut self) {
        if std::mem::replace(&mut self.attached, true) {
            return;
        }
        let (mode, waiter) = self.shape.policy.behaviour();
        self.emit(OwnedEvent::Plain(What::Engine(Engine {
            mode: Some(mode),
            waiter: Some(waiter),
            turnaround: Some(3),
            ..Engine::default()
        })));
        for position in 0..self.positions() {
            for worker in 0..if self.is_last(position) { self.workers() } else { 1 } {
                self.announce(HopId(position as u16 + worker));
            }
        }
        // The source starts to number frames now. It has not seen frames already in flight.
        for lane in self.lanes.values_mut() {
            lane.seq = 0;
            lane.queue.iter_mut().for_each(|frame| frame.id = None);
        }
    }

    fn workers(&self) -> u16 {
        match self.shape.path {
            Path::Workers(workers) => workers,
            _ => 1,
        }
    }

    /// Hop to the tokenizer that serves a request.
    fn hop_of(&self, request: usize) -> HopId {
        let worker = request % usize::from(self.workers());
        HopId((self.positions() - 1 + worker) as u16)
    }

    pub(super) fn tokenizer_is_observed(&self, request: usize) -> bool {
        !self.unobserved.contains_key(&self.hop_of(request))
    }

    pub(super) fn set_visibility(&mut self, worker: u16, visibility: Visibility) {
        let hop = self.hop_of(usize::from(worker % self.workers()));
        if visibility == Visibility::Observed {
            self.unobserved.remove(&hop);
        } else {
            self.incomplete = true;
            self.unobserved.insert(hop, visibility);
        }
        if self.attached {
            self.announce(hop);
        }
    }

    fn announce(&mut self, id: HopId) {
        let position = self.position(id);
        let last = self.is_last(position);
        let worker = id.0 - position as u16;
        let visibility = self.unobserved.get(&id).copied().unwrap_or(Visibility::Observed);
        let observed = |stage: bool| stage && visibility == Visibility::Observed;
        let name = match (visibility, self.hop_name(position)) {
            (Visibility::Unidentified, "scheduler->tokenizer") => "scheduler->?",
            (Visibility::Unidentified, "detokenizer->tokenizer") => "detokenizer->?",
            (Visibility::Unidentified, _) => "router->?",
            (_, name) => name,
        };
        let capabilities = Capabilities {
            sent: true,
            forwarded: true,
            received: observed(self.shape.receives_observed),
            delivered: observed(last && self.shape.deliveries_observed),
            ..Capabilities::default()
        };
        self.emit(OwnedEvent::Plain(What::Hop(Hop {
            worker: (self.workers() > 1 && last).then_some(worker),
            origin: position == 0,
            last: last && visibility != Visibility::Unidentified,
            ..Hop::new(id, name, capabilities)
        })));
    }

    pub(super) fn emit(&mut self, event: OwnedEvent) {
        if self.attached {
            self.events.push((self.now, Some(event)));
        }
        if !self.shape.equal_timestamps {
            self.now += US;
        }
    }

    /// Whether the next observation of this kind is missed. If not, callers first report earlier missed ones.
    pub(super) fn misses(&mut self, observation: Observation, hop: Option<HopId>) -> bool {
        if !self.attached {
            return false;
        }
        let positions = self.positions();
        let is_same = |missed: Observation| match (missed, observation) {
            (Observation::Frames(a), Observation::Frames(b))
            | (Observation::Receives(a), Observation::Receives(b))
            | (Observation::Content(a), Observation::Content(b)) => a % positions == b,
            (Observation::Deliveries, Observation::Deliveries) | (Observation::Answers, Observation::Answers) => true,
            _ => false,
        };
        let Some(at) = self.pending_misses.iter().position(|&(missed, count, _)| count > 0 && is_same(missed)) else {
            return false;
        };
        self.pending_misses[at].1 -= 1;
        self.incomplete = true;
        if !matches!(observation, Observation::Content(_)) {
            *self.unreported.entry(hop).or_default() += 1;
            if self.pending_misses[at].2 {
                self.report_missed(hop);
            }
        }
        true
    }

    pub(super) fn report_missed(&mut self, hop: Option<HopId>) {
        if let Some(count) = self.unreported.remove(&hop) {
            let now = self.now;
            let missed = Missed::new(hop, count, MissedCause::QueueFull);
            self.emit(OwnedEvent::Plain(What::Missed(missed)));
            // The report takes no time in the engine.
            self.now = now;
        }
    }
}
