//! Frames in flight with a request's first or finishing chunk, by lane. Their later stages apply to those requests.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::limits::push_bounded;
use crate::clock::MonoNs;
use crate::event::Capabilities;
use crate::id::{FrameId, HopId, Ticket};

/// Maximum number of frames kept per lane. Beyond that the oldest are evicted, and the later stages of their
/// requests stay unknown.
const MAX_FRAMES_PER_LANE: usize = 65_536;
/// Maximum number of receives kept that came before their sends; the oldest are evicted.
const MAX_EARLY_RECEIVES: usize = 4_096;
/// Maximum number of received, unprocessed frames per lane; a receiver processes one or a few at a time.
const MAX_UNPROCESSED_FRAMES: usize = 16;
/// Maximum number of lanes; beyond that, lanes without frames in flight are evicted.
const MAX_LANES: usize = 16_384;

/// A request whose first or finishing chunk is in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameMark {
    pub(super) ticket: Ticket,
    /// Index of the hop in the request's timeline.
    pub(super) hop_index: u16,
}

/// Stages of a frame whose send has not been reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyStages {
    id: FrameId,
    pub(super) received: MonoNs,
    pub(super) processed: Option<MonoNs>,
}

#[derive(Debug)]
struct MarkedFrame {
    seq: u64,
    marks: Vec<FrameMark>,
    is_received: bool,
}

#[derive(Debug, Default)]
struct MarkedLane {
    /// Sequence number after the last reported frame.
    next_seq: u64,
    frames: VecDeque<MarkedFrame>,
}

impl MarkedLane {
    /// Removes the frames up to number `seq`. Received ones whose end of processing will be reported (`expects_processed`) stay, up to
    /// [`MAX_UNPROCESSED_FRAMES`] of the oldest.
    fn remove_frames_up_to_except_unprocessed(&mut self, seq: u64, expects_processed: bool) {
        let mut index = 0;
        while let Some(frame) = self.frames.get(index) {
            if frame.seq > seq {
                break;
            }
            let awaits_processed = expects_processed && frame.is_received;
            if awaits_processed && index < MAX_UNPROCESSED_FRAMES {
                index += 1;
            } else {
                self.frames.remove(index);
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct MarkedFrames {
    lanes: HashMap<(HopId, u32), MarkedLane>,
    early_stages: VecDeque<EarlyStages>,
}

impl MarkedFrames {
    /// Registers a frame when its content is reported. Keeps its `marks` (requests whose first or finishing chunk is in it) until its later
    /// stages are reported, if those are observed. Returns the stages that were reported before; `None` if there were none.
    pub(super) fn register_frame_and_take_early_stages(
        &mut self,
        id: FrameId,
        marks: Vec<FrameMark>,
        capabilities: Capabilities,
    ) -> Option<EarlyStages> {
        self.make_room_for_lane(id);
        let lane = self.lanes.entry((id.hop, id.lane)).or_default();
        lane.next_seq = lane.next_seq.max(id.seq.saturating_add(1));
        let has_later_stages = capabilities.received || capabilities.processed;
        if !marks.is_empty() && has_later_stages {
            push_bounded(&mut lane.frames, MarkedFrame { seq: id.seq, marks, is_received: false }, MAX_FRAMES_PER_LANE);
        }
        self.take_early_stages(id)
    }

    /// At the limit of lanes (connections), makes room for that of this frame if it is a new one.
    #[inline]
    fn make_room_for_lane(&mut self, id: FrameId) {
        if self.lanes.len() >= MAX_LANES && !self.lanes.contains_key(&(id.hop, id.lane)) {
            // Lanes without marked frames are probably closed.
            self.lanes.retain(|_, lane| !lane.frames.is_empty());
        }
    }

    /// Removes and returns the stages of a frame that its receiver reported before its sender; `None` if there are none.
    #[inline]
    fn take_early_stages(&mut self, id: FrameId) -> Option<EarlyStages> {
        let index = self.early_stages.iter().position(|early| early.id == id)?;
        self.early_stages.remove(index)
    }

    /// Marks of a frame: the requests whose first or finishing chunk is in it. Empty if it is not kept.
    pub(super) fn marks_of_frame(&self, id: FrameId) -> &[FrameMark] {
        let Some(lane) = self.lanes.get(&(id.hop, id.lane)) else { return &[] };
        match lane.frames.binary_search_by_key(&id.seq, |frame| frame.seq) {
            Ok(index) => &lane.frames[index].marks,
            Err(_) => &[],
        }
    }

    /// Marks a frame as received. A lane (connection) keeps its order, so earlier frames were received too, unobserved.
    /// `expects_processed`: the end of its processing will be reported, too.
    pub(super) fn mark_frame_received(&mut self, id: FrameId, at: MonoNs, expects_processed: bool) {
        let lane = self.lanes.get_mut(&(id.hop, id.lane));
        let Some(lane) = lane.filter(|lane| id.seq < lane.next_seq) else {
            // Its send has not been reported yet.
            push_bounded(&mut self.early_stages, EarlyStages { id, received: at, processed: None }, MAX_EARLY_RECEIVES);
            return;
        };
        if let Ok(index) = lane.frames.binary_search_by_key(&id.seq, |frame| frame.seq) {
            lane.frames[index].is_received = true;
        }
        lane.remove_frames_up_to_except_unprocessed(id.seq, expects_processed);
    }

    /// Marks a frame as processed: no more events follow for it or for earlier frames.
    pub(super) fn mark_frame_processed(&mut self, id: FrameId, at: MonoNs) {
        if let Some(lane) = self.lanes.get_mut(&(id.hop, id.lane)) {
            while let Some(oldest) = lane.frames.front() {
                if oldest.seq > id.seq {
                    break;
                }
                lane.frames.pop_front();
            }
        }
        // Its send may not have been reported yet.
        if let Some(early) = self.early_stages.iter_mut().find(|early| early.id == id) {
            early.processed = Some(at);
        }
    }
}
