//! Lanes of a block: frame ids are written as differences from their prediction.

use hashbrown::HashMap;
use trace::id::{FrameId, HopId, ThreadId};

use super::bytes::{Cursor, Malformed, Put};
use super::chain::Place;
use super::chunk::Predictor;
use super::columns::Columns;

/// Stages of a frame. Each lane passes each stage in order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Sent,
    Forwarded,
    Received,
    Processed,
}

const STEPS: usize = 4;

/// Values of the last frames of one lane.
#[derive(Debug, Default)]
pub(super) struct Lane {
    hop: HopId,
    number: u32,
    /// Predicted next frame number of each step.
    next: [u64; STEPS],
    pub(super) bytes: u64,
    pub(super) count: u32,
    pub(super) place: Place,
    /// First values of its newest request.
    pub(super) first: Predictor,
    pub(super) wakeup: u64,
    pub(super) by: Option<ThreadId>,
}

impl Lane {
    fn new(id: FrameId) -> Self {
        Self { hop: id.hop, number: id.lane, next: [id.seq; STEPS], ..Self::default() }
    }
}

/// All lanes of a block. Writer and reader keep identical state.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    all: Vec<Lane>,
    /// Last lane of each step.
    last: [u32; STEPS],
    /// Lane indices, used by the writer only.
    places: HashMap<(u16, u32), u32>,
}

impl Lanes {
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.places.clear();
        self.last = [0; STEPS];
    }

    pub(super) fn get(&mut self, at: u32) -> &mut Lane {
        &mut self.all[at as usize]
    }

    /// Index of the lane if the frame is the step's predicted next one, otherwise `None`.
    pub(super) fn expected(&mut self, step: Step, id: FrameId) -> Option<u32> {
        let at = self.last[step as usize];
        let lane = self.all.get_mut(at as usize)?;
        let next = &mut lane.next[step as usize];
        if (lane.hop, lane.number, *next) != (id.hop, id.lane, id.seq) {
            return None;
        }
        *next = id.seq.wrapping_add(1);
        Some(at)
    }

    /// Writes the id of a mispredicted frame. Returns the index of its lane.
    pub(super) fn write(&mut self, step: Step, id: FrameId, columns: &mut Columns<Vec<u8>>) -> u32 {
        let new = self.all.len() as u32;
        let at = *self.places.entry((id.hop.0, id.lane)).or_insert(new);
        columns.lane.number(u64::from(at));
        if at == new {
            columns.lane.number(u64::from(id.hop.0));
            columns.lane.number(u64::from(id.lane));
            columns.seq.number(id.seq);
            self.all.push(Lane::new(id));
        } else {
            let next = self.all[at as usize].next[step as usize];
            columns.seq.signed(id.seq.wrapping_sub(next) as i64);
        }
        self.all[at as usize].next[step as usize] = id.seq.wrapping_add(1);
        self.last[step as usize] = at;
        at
    }

    /// Predicted next frame of the step, with the index of its lane.
    pub(super) fn next(&mut self, step: Step) -> Result<(u32, FrameId), Malformed> {
        let at = self.last[step as usize];
        let lane = self.all.get_mut(at as usize);
        let lane = lane.ok_or(Malformed("a frame of no lane"))?;
        let id = FrameId::new(lane.hop, lane.number, lane.next[step as usize]);
        lane.next[step as usize] = id.seq.wrapping_add(1);
        Ok((at, id))
    }

    pub(super) fn read(&mut self, step: Step, columns: &mut Columns<Cursor<'_>>) -> Result<(u32, FrameId), Malformed> {
        let at = columns.lane.small()?;
        if at as usize == self.all.len() {
            let hop = u16::try_from(columns.lane.number()?).map_err(|_| Malformed("a hop has more than 16 bits"))?;
            self.all.push(Lane::new(FrameId::new(HopId(hop), columns.lane.small()?, columns.seq.number()?)));
        } else {
            let lane = self.all.get_mut(at as usize);
            let next = &mut lane.ok_or(Malformed("reference to an unknown lane"))?.next[step as usize];
            *next = next.wrapping_add(columns.seq.signed()? as u64);
        }
        self.last[step as usize] = at;
        self.next(step)
    }
}
