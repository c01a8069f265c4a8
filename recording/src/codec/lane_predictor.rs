//! Lanes of a block: frame ids are written as differences from their prediction.

use hashbrown::HashMap;
use trace::id::{FrameId, HopId, ThreadId};

use super::bytes::{ColumnCursor, MalformedBlock, PutNumber};
use super::chunk_predictor::ChunkPredictor;
use super::columns::BlockColumns;
use super::request_order::StreamPosition;

/// Stages of a frame. Each lane passes each stage in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameStage {
    Sent,
    Forwarded,
    Received,
    Processed,
}

const STAGES: usize = 4;

/// Codes of the thread of a receive: none is known, it is that of the lane's last receive, or another one, whose ids follow.
pub(super) const NO_RECEIVER: u8 = 0;
pub(super) const LAST_RECEIVER: u8 = 1;
pub(super) const OTHER_RECEIVER: u8 = 2;

/// Values of the last frames of one lane.
#[derive(Debug, Default)]
pub(super) struct LanePredictor {
    hop: HopId,
    /// The lane's number on its hop.
    number: u32,
    /// Predicted next frame number of each stage.
    next_seq: [u64; STAGES],
    /// Length and number of chunks of the last frame.
    pub(super) frame_bytes: u64,
    pub(super) chunk_count: u32,
    /// Where the lane's last chunk was in the predicted order of requests.
    pub(super) position: StreamPosition,
    /// First values of its newest request.
    pub(super) newest_request: ChunkPredictor,
    pub(super) last_wakeup: u64,
    /// Thread of the last receive whose thread is known.
    pub(super) last_receiver: Option<ThreadId>,
}

impl LanePredictor {
    /// A lane whose first frame has this id.
    fn new(id: FrameId) -> Self {
        Self { hop: id.hop, number: id.lane, next_seq: [id.seq; STAGES], ..Self::default() }
    }
}

/// All lanes of a block. Writer and reader keep identical state.
#[derive(Debug, Default)]
pub(super) struct LanePredictors {
    lanes: Vec<LanePredictor>,
    /// Index of the last lane of each stage.
    last_lanes: [u32; STAGES],
    /// Indices of lanes by hop and lane number, used by the writer only.
    indices: HashMap<(u16, u32), u32>,
}

impl LanePredictors {
    /// Forgets all lanes, for a new block.
    pub(super) fn clear(&mut self) {
        self.lanes.clear();
        self.indices.clear();
        self.last_lanes = [0; STAGES];
    }

    /// The lane with this index, which must exist.
    pub(super) fn lane_mut(&mut self, index: u32) -> &mut LanePredictor {
        &mut self.lanes[index as usize]
    }

    /// Advances the prediction of a stage (such as the sends of all frames) if `frame_id` is the predicted frame: the next one of the lane
    /// that had the stage's last frame. Returns the index of that lane (connection). `None` if another frame came; then nothing changes.
    pub(super) fn advance_lane_if_predicted(&mut self, stage: FrameStage, frame_id: FrameId) -> Option<u32> {
        let index = self.last_lanes[stage as usize];
        let lane = self.lanes.get_mut(index as usize)?;
        let next_seq = &mut lane.next_seq[stage as usize];
        let is_predicted = frame_id == FrameId::new(lane.hop, lane.number, *next_seq);
        if !is_predicted {
            return None;
        }
        *next_seq = frame_id.seq.wrapping_add(1);
        Some(index)
    }

    /// Writes the id of a mispredicted frame: its lane (connection), and its number `seq` within the lane. The next frame of the lane is
    /// then predicted. Returns the index of the lane.
    pub(super) fn write_mispredicted_frame_id_and_get_lane(
        &mut self,
        stage: FrameStage,
        id: FrameId,
        columns: &mut BlockColumns<Vec<u8>>,
    ) -> u32 {
        let new_index = self.lanes.len() as u32;
        // A lane that is not known yet gets the next free index.
        let index = *self.indices.entry((id.hop.0, id.lane)).or_insert(new_index);
        columns.lane.put_number(u64::from(index));
        // That index announces a new lane to the reader, so the lane's hop and number follow.
        if index == new_index {
            columns.lane.put_number(u64::from(id.hop.0));
            columns.lane.put_number(u64::from(id.lane));
            columns.seq.put_number(id.seq);
            self.lanes.push(LanePredictor::new(id));
        } else {
            // In a known lane, the number is probably near the predicted one.
            let next_seq = self.lanes[index as usize].next_seq[stage as usize];
            columns.seq.put_signed(id.seq.wrapping_sub(next_seq) as i64);
        }
        self.lanes[index as usize].next_seq[stage as usize] = id.seq.wrapping_add(1);
        self.last_lanes[stage as usize] = index;
        index
    }

    /// Returns the predicted next frame of a stage, and advances the prediction. Fails if the block has no lane yet.
    pub(super) fn take_predicted_frame(&mut self, stage: FrameStage) -> Result<LaneFrame, MalformedBlock> {
        let lane_index = self.last_lanes[stage as usize];
        let lane = self.lanes.get_mut(lane_index as usize).ok_or(MalformedBlock("a frame of no lane"))?;
        let id = FrameId::new(lane.hop, lane.number, lane.next_seq[stage as usize]);
        lane.next_seq[stage as usize] = id.seq.wrapping_add(1);
        Ok(LaneFrame { lane_index, id })
    }

    /// Reads the id of a mispredicted frame, after which the next frame of its lane is predicted.
    pub(super) fn read_mispredicted_frame_id(
        &mut self,
        stage: FrameStage,
        columns: &mut BlockColumns<ColumnCursor<'_>>,
    ) -> Result<LaneFrame, MalformedBlock> {
        let index = columns.lane.read_u32()?;
        let is_new_lane = index as usize == self.lanes.len();
        if is_new_lane {
            let hop = u16::try_from(columns.lane.read_number()?);
            let hop = hop.map_err(|_| MalformedBlock("a hop has more than 16 bits"))?;
            let id = FrameId::new(HopId(hop), columns.lane.read_u32()?, columns.seq.read_number()?);
            // A new lane predicts its first frame.
            self.lanes.push(LanePredictor::new(id));
        } else {
            let lane = self.lanes.get_mut(index as usize).ok_or(MalformedBlock("reference to an unknown lane"))?;
            // Stored as the distance from the prediction.
            let next_seq = &mut lane.next_seq[stage as usize];
            *next_seq = next_seq.wrapping_add(columns.seq.read_signed()? as u64);
        }
        self.last_lanes[stage as usize] = index;
        // In both cases, the prediction is now this very frame.
        self.take_predicted_frame(stage)
    }
}

/// A frame's id, with the index of its lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneFrame {
    pub(super) lane_index: u32,
    pub(super) id: FrameId,
}
