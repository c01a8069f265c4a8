//! The path: frames enter hops, wait, and are forwarded.

use std::rc::Rc;

use trace::event::Kind;
use trace::{FrameId, HopId};

use super::{Flight, World};
use crate::schedule::{Path, Sight};
use crate::told::{Part, Told};

impl World {
    /// Number of positions on the path. Hops at one position share a name.
    pub(super) fn places(&self) -> usize {
        match self.shape.path {
            Path::Direct => 1,
            Path::Detokenizer => 2,
            Path::Workers(_) => 3,
        }
    }

    pub(super) fn name(&self, place: usize) -> &'static str {
        match (self.shape.path, place) {
            (Path::Direct, _) => "scheduler->tokenizer",
            (_, 0) => "scheduler->detokenizer",
            (Path::Detokenizer, _) => "detokenizer->tokenizer",
            (Path::Workers(_), 1) => "detokenizer->router",
            (Path::Workers(_), _) => "router->tokenizer",
        }
    }

    /// Position of a hop on the path.
    pub(super) fn place(&self, hop: HopId) -> usize {
        usize::from(hop.0).min(self.places() - 1)
    }

    pub(super) fn is_last(&self, place: usize) -> bool {
        place + 1 == self.places()
    }

    /// Sends a frame into a hop.
    pub(super) fn send(&mut self, hop: HopId, lane: u32, kind: Kind, parts: Rc<[Part]>) {
        let place = self.place(hop);
        let name = self.name(place);
        let lane = lane + self.incarnation * 16;
        let state = self.lanes.entry((hop, lane)).or_default();
        let id = FrameId {
            hop,
            lane,
            seq: state.seq,
        };
        state.seq += 1;
        let unseen = self.loses(Sight::Frames(place), Some(hop));
        if !unseen {
            self.own_up(Some(hop));
            let told = if self.loses(Sight::Content(place), Some(hop)) {
                Told::Undecoded(id)
            } else {
                Told::Sent {
                    id,
                    kind,
                    column: self.shape.column,
                    parts: parts.clone(),
                }
            };
            self.say(told);
        }
        if self.is_last(place) && kind != Kind::Abort {
            self.counts.outstanding += parts.len() as u64;
        }
        let flight = Flight {
            id: self.attached.then_some(id),
            unseen,
            kind,
            parts,
        };
        let truth = self.hops.entry(name).or_default();
        truth.frames_sent += 1;
        if flight.kind != Kind::Abort {
            truth.chunks += flight.parts.len() as u64;
            truth.tokens += flight.parts.iter().map(|part| u64::from(part.tokens)).sum::<u64>();
        }
        truth.backlog_max = truth.backlog_max.max(truth.frames_sent - truth.frames_taken);
        self.lanes.entry((hop, lane)).or_default().queue.push_back(flight);
    }

    /// Receives the oldest frame of a lane; `None` if its queue is empty.
    pub(super) fn take(&mut self, hop: HopId, lane: u32) -> Option<Flight> {
        let flight = self.lanes.get_mut(&(hop, lane))?.queue.pop_front()?;
        let place = self.place(hop);
        self.hops.entry(self.name(place)).or_default().frames_taken += 1;
        let watched = !self.unwatched.contains_key(&hop);
        if let Some(id) = flight.id.filter(|_| self.shape.takes_seen && watched && !flight.unseen)
            && !self.loses(Sight::Takes(place), Some(hop))
        {
            self.own_up(Some(hop));
            self.say(Told::Taken {
                id,
                wakeup: self.wakeup,
            });
        }
        Some(flight)
    }

    /// Connections with queued frames: those of the last hops, or of all earlier ones.
    pub(super) fn waiting(&self, last: bool) -> Vec<(HopId, u32)> {
        let of = |hop: HopId| self.is_last(self.place(hop)) == last;
        let lanes = self
            .lanes
            .iter()
            .filter(|((hop, _), lane)| of(*hop) && !lane.queue.is_empty());
        lanes.map(|(at, _)| *at).collect()
    }

    pub(super) fn pass(&mut self, choice: usize) {
        let waiting = self.waiting(false);
        let Some(&(hop, lane)) = waiting.get(choice % waiting.len().max(1)) else {
            return;
        };
        let Some(flight) = self.take(hop, lane) else { return };
        if flight.kind == Kind::Abort {
            return;
        }
        let next = HopId(hop.0 + 1);
        match self.shape.path {
            // The router sends one frame per worker.
            Path::Workers(workers) if hop.0 == 1 => {
                for worker in 0..workers {
                    let its = |part: &&Part| part.life % usize::from(workers) == usize::from(worker);
                    let parts: Rc<[Part]> = flight.parts.iter().filter(its).cloned().collect();
                    if !parts.is_empty() {
                        self.send(HopId(next.0 + worker), 0, Kind::Text, parts);
                    }
                }
            }
            _ => self.send(next, 0, Kind::Text, flight.parts),
        }
    }
}
