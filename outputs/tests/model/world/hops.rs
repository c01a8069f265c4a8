//! The path: frames enter hops, wait, and are forwarded.

use std::rc::Rc;

use trace::event::{Kind, Received, Undecoded, What};
use trace::{FrameId, HopId};

use super::{QueuedFrame, World};
use crate::events::{OwnedEvent, Part};
use crate::schedule::{Observation, Path};

impl World {
    /// Number of positions on the path. Hops at one position share a name.
    pub(super) fn positions(&self) -> usize {
        match self.shape.path {
            Path::Direct => 1,
            Path::Detokenizer => 2,
            Path::Workers(_) => 3,
        }
    }

    pub(super) fn hop_name(&self, position: usize) -> &'static str {
        match (self.shape.path, position) {
            (Path::Direct, _) => "scheduler->tokenizer",
            (_, 0) => "scheduler->detokenizer",
            (Path::Detokenizer, _) => "detokenizer->tokenizer",
            (Path::Workers(_), 1) => "detokenizer->router",
            (Path::Workers(_), _) => "router->tokenizer",
        }
    }

    pub(super) fn position(&self, hop: HopId) -> usize {
        usize::from(hop.0).min(self.positions() - 1)
    }

    pub(super) fn is_last(&self, position: usize) -> bool {
        position + 1 == self.positions()
    }

    pub(super) fn send(&mut self, hop: HopId, lane: u32, kind: Kind, parts: Rc<[Part]>) {
        let position = self.position(hop);
        let name = self.hop_name(position);
        let lane = lane + self.incarnation * 16;
        let state = self.lanes.entry((hop, lane)).or_default();
        let id = FrameId::new(hop, lane, state.seq);
        state.seq += 1;
        let missed = self.misses(Observation::Frames(position), Some(hop));
        if !missed {
            self.report_missed(Some(hop));
            let event = if self.misses(Observation::Content(position), Some(hop)) {
                OwnedEvent::Plain(What::Undecoded(Undecoded::new(id, 100, "truncated")))
            } else {
                OwnedEvent::Sent { id, kind, column: self.shape.column, parts: parts.clone() }
            };
            self.emit(event);
        }
        if self.is_last(position) && kind != Kind::Abort {
            self.counts.in_flight += parts.len() as u64;
        }
        let frame = QueuedFrame { id: self.attached.then_some(id), missed, kind, parts };
        let truth = self.hops.entry(name).or_default();
        truth.frames_sent += 1;
        if frame.kind != Kind::Abort {
            truth.chunks += frame.parts.len() as u64;
            truth.tokens += frame.parts.iter().map(|part| u64::from(part.tokens)).sum::<u64>();
        }
        truth.backlog_max = truth.backlog_max.max(truth.frames_sent - truth.frames_received);
        self.lanes.entry((hop, lane)).or_default().queue.push_back(frame);
    }

    /// Receives the oldest frame of a lane; `None` if its queue is empty.
    pub(super) fn receive(&mut self, hop: HopId, lane: u32) -> Option<QueuedFrame> {
        let frame = self.lanes.get_mut(&(hop, lane))?.queue.pop_front()?;
        let position = self.position(hop);
        self.hops.entry(self.hop_name(position)).or_default().frames_received += 1;
        let observed = !self.unobserved.contains_key(&hop);
        if let Some(id) = frame.id.filter(|_| self.shape.receives_observed && observed && !frame.missed)
            && !self.misses(Observation::Receives(position), Some(hop))
        {
            self.report_missed(Some(hop));
            let received = Received::in_wakeup(id, self.wakeup);
            self.emit(OwnedEvent::Plain(What::Received(received)));
        }
        Some(frame)
    }

    /// Connections with queued frames: those of the last hops, or of all earlier ones.
    pub(super) fn waiting(&self, last: bool) -> Vec<(HopId, u32)> {
        let of = |hop: HopId| self.is_last(self.position(hop)) == last;
        let lanes = self.lanes.iter().filter(|((hop, _), lane)| of(*hop) && !lane.queue.is_empty());
        lanes.map(|(at, _)| *at).collect()
    }

    pub(super) fn forward(&mut self, choice: usize) {
        let waiting = self.waiting(false);
        let Some(&(hop, lane)) = waiting.get(choice % waiting.len().max(1)) else { return };
        let Some(frame) = self.receive(hop, lane) else { return };
        if frame.kind == Kind::Abort {
            return;
        }
        let next = HopId(hop.0 + 1);
        match self.shape.path {
            // The router sends one frame per worker.
            Path::Workers(workers) if hop.0 == 1 => {
                for worker in 0..workers {
                    let assigned = |part: &&Part| part.request % usize::from(workers) == usize::from(worker);
                    let parts: Rc<[Part]> = frame.parts.iter().filter(assigned).cloned().collect();
                    if !parts.is_empty() {
                        self.send(HopId(next.0 + worker), 0, Kind::Text, parts);
                    }
                }
            }
            _ => self.send(next, 0, Kind::Text, frame.parts),
        }
    }
}
