//! Frames in flight with a request's first or finishing chunk, by lane. Their later stages apply to those requests.

use std::collections::VecDeque;

use hashbrown::HashMap;

use trace::clock::MonoNs;
use trace::event::Capabilities;
use trace::id::{FrameId, HopId};

/// Maximum number of frames kept per lane. Beyond that the oldest are evicted, and the later stages of their
/// requests stay unknown.
const FRAMES: usize = 65_536;
/// Maximum number of receives kept that came before their sends; the oldest are evicted.
const EARLY: usize = 4_096;
/// Maximum number of received, unprocessed frames per lane; a receiver processes one or a few at a time.
const UNPROCESSED: usize = 16;
/// Maximum number of lanes; beyond that, lanes without frames in flight are evicted.
const LANES: usize = 16_384;

/// A request whose first or finishing chunk is in a frame: index and number of the request, and index of the hop within it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) place: u32,
    pub(super) number: u64,
    pub(super) hop: u16,
}

/// Data about a frame whose send has not been reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    id: FrameId,
    pub(super) received: MonoNs,
    pub(super) processed: Option<MonoNs>,
}

#[derive(Debug)]
struct Waiting {
    seq: u64,
    marks: Vec<Mark>,
    received: bool,
}

#[derive(Debug, Default)]
struct Lane {
    /// Sequence number after the last reported frame.
    next: u64,
    frames: VecDeque<Waiting>,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    lanes: HashMap<(HopId, u32), Lane>,
    early: VecDeque<Early>,
}

impl Pending {
    /// Registers the first report of a frame; returns earlier data about it.
    pub(super) fn enter(&mut self, id: FrameId, marks: Vec<Mark>, capabilities: Capabilities) -> Option<Early> {
        if self.lanes.len() >= LANES && !self.lanes.contains_key(&(id.hop, id.lane)) {
            self.lanes.retain(|_, lane| !lane.frames.is_empty());
        }
        let lane = self.lanes.entry((id.hop, id.lane)).or_default();
        lane.next = lane.next.max(id.seq.saturating_add(1));
        let later = capabilities.received || capabilities.processed;
        if !marks.is_empty() && later {
            if lane.frames.len() >= FRAMES {
                lane.frames.pop_front();
            }
            lane.frames.push_back(Waiting { seq: id.seq, marks, received: false });
        }
        let place = self.early.iter().position(|e| e.id == id)?;
        self.early.remove(place)
    }

    /// Requests affected by a stage of the frame.
    pub(super) fn marks(&self, id: FrameId) -> &[Mark] {
        let frames = self.lanes.get(&(id.hop, id.lane)).map(|lane| &lane.frames);
        let frame = frames.and_then(|frames| frames.get(frames.binary_search_by_key(&id.seq, |f| f.seq).ok()?));
        frame.map_or(&[], |frame| &frame.marks)
    }

    /// Marks a frame as received. A lane keeps its order, so earlier frames were received too, unobserved.
    pub(super) fn received(&mut self, id: FrameId, at: MonoNs, expects_processed: bool) {
        let lane = self.lanes.get_mut(&(id.hop, id.lane));
        let Some(lane) = lane.filter(|l| id.seq < l.next) else {
            if self.early.len() >= EARLY {
                self.early.pop_front();
            }
            self.early.push_back(Early { id, received: at, processed: None });
            return;
        };
        if let Ok(place) = lane.frames.binary_search_by_key(&id.seq, |f| f.seq) {
            lane.frames[place].received = true;
        }
        let mut place = 0;
        while lane.frames.get(place).is_some_and(|f| f.seq <= id.seq) {
            if expects_processed && lane.frames[place].received && place < UNPROCESSED {
                place += 1;
            } else {
                lane.frames.remove(place);
            }
        }
    }

    /// Marks a frame as processed: no more events follow for it or for earlier frames.
    pub(super) fn processed(&mut self, id: FrameId, at: MonoNs) {
        if let Some(lane) = self.lanes.get_mut(&(id.hop, id.lane)) {
            while lane.frames.pop_front_if(|f| f.seq <= id.seq).is_some() {}
        }
        if let Some(early) = self.early.iter_mut().find(|e| e.id == id) {
            early.processed = Some(at);
        }
    }
}
