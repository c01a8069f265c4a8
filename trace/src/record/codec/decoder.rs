//! Decodes the columns of a block into records, one at a time. Memory holds the block's texts and ids, and one frame.

use super::block::{DecodedBlock, State};
use super::bytes::Malformed;
use super::codes::op;
use super::columns::Columns;
use super::encoder::Content;
use super::lane::Step;
use super::rare::RareReader;
use super::text::{Read, Reading};
use crate::clock::MonoNs;
use crate::event::{Chunk, Event, Frame, Received, What};
use crate::id::{FrameId, ThreadId};
use crate::record::Record;
use crate::record::header::Anchor;

/// Buffers that a reader reuses from block to block. They carry no state.
#[derive(Debug, Default)]
pub(in crate::record) struct Scratch {
    texts: Read,
    ids: Vec<i64>,
    state: State,
}

/// Reads the block `raw`, which must match `content` from its header. With `standing`, the standing data comes first, at the block's
/// earliest time. Returns the number of records of unknown kinds.
pub(in crate::record) fn decode(
    raw: &[u8],
    content: &Content,
    scratch: &mut Scratch,
    standing: bool,
    give: &mut dyn FnMut(Record<'_>),
) -> Result<u64, Malformed> {
    let mut columns = Columns::split(raw)?;
    let Scratch { texts, ids, state } = scratch;
    texts.fill(&mut columns)?;
    ids.clear();
    while !columns.ids.is_empty() {
        ids.push(columns.ids.signed()?);
    }
    state.clear();
    let mut block = DecodedBlock {
        state,
        columns,
        texts: Reading::new(texts),
        ids,
        chunks_left: content.chunks,
    };
    block.standing(content, standing, give)?;
    let mut chunks = Vec::new();
    let mut unknown = 0;
    let mut at = 0_u64;
    for _ in 0..content.records {
        let code = block.columns.op.byte()?;
        at = at.wrapping_add(block.columns.time.signed()? as u64);
        let known = block.record(code, MonoNs(at), &mut chunks, give)?;
        unknown += u64::from(!known);
    }
    let whole = block.columns.op.is_empty() && block.chunks_left == 0;
    if whole {
        Ok(unknown)
    } else {
        Err(Malformed("the block has more data than its header states"))
    }
}

impl<'b> DecodedBlock<'_, 'b> {
    fn standing(&mut self, content: &Content, wanted: bool, give: &mut dyn FnMut(Record<'_>)) -> Result<(), Malformed> {
        while !self.columns.standing.is_empty() {
            let mut reader = RareReader::next(&mut self.columns.standing, &mut self.texts)?;
            if let (true, Ok(Some(what))) = (wanted, reader.standing()) {
                give(Record::Event(Event { at: content.from, what }));
            }
        }
        Ok(())
    }

    /// Passes on the next record. Returns `false` if its kind, or a code in it, is unknown to this version.
    fn record(
        &mut self,
        code: u8,
        at: MonoNs,
        chunks: &mut Vec<Chunk<'b>>,
        give: &mut dyn FnMut(Record<'_>),
    ) -> Result<bool, Malformed> {
        let number = code & op::NUMBER;
        let what = match number {
            op::TICK => {
                give(Record::Tick(at));
                return Ok(true);
            }
            op::SENT => {
                let (lane, id) = self.step(code, Step::Sent)?;
                let mut forwarded = None;
                if code & op::RELAYED != 0 {
                    let ns = self.columns.forwarded.signed()?;
                    forwarded = Some(MonoNs(at.0.wrapping_add(ns as u64)));
                }
                let frame = self.frame(lane, id, chunks)?.with(chunks);
                What::Sent(Frame { forwarded, ..frame })
            }
            op::FORWARDED => {
                self.step(code, Step::Forwarded)?;
                return Ok(true);
            }
            op::RECEIVED => What::Received(self.received(code, chunks)?),
            op::PROCESSED => What::Processed(self.step(code, Step::Processed)?.1),
            op::DELIVERED => {
                let (deliveries, column) = (&mut self.state.given, &mut self.columns.delivery);
                What::Delivered(deliveries.read(code & op::EXPECTED != 0, column, &mut self.texts)?)
            }
            _ if number >= op::RARE => return self.rare(number, at, give),
            _ => return Err(Malformed("record of unknown kind")),
        };
        give(Record::Event(Event { at, what }));
        Ok(true)
    }

    fn rare(&mut self, number: u8, at: MonoNs, give: &mut dyn FnMut(Record<'_>)) -> Result<bool, Malformed> {
        let mut reader = RareReader::next(&mut self.columns.rare, &mut self.texts)?;
        if number == op::ANCHOR {
            let wall_ns = reader.wall_ns()?;
            give(Record::Anchor(Anchor { mono: at, wall_ns }));
            return Ok(true);
        }
        let Ok(Some(what)) = reader.what(number) else {
            return Ok(false);
        };
        give(Record::Event(Event { at, what }));
        Ok(true)
    }

    fn step(&mut self, code: u8, step: Step) -> Result<(u32, FrameId), Malformed> {
        if code & op::EXPECTED != 0 {
            self.state.lanes.next(step)
        } else {
            self.state.lanes.read(step, &mut self.columns)
        }
    }

    fn received<'c>(&mut self, code: u8, chunks: &'c mut Vec<Chunk<'b>>) -> Result<Received<'c>, Malformed>
    where
        'b: 'c,
    {
        let (lane, id) = self.step(code, Step::Received)?;
        let stream = self.state.lanes.get(lane);
        let distance = self.columns.wakeup.maybe()?;
        let wakeup = distance.map(|d| {
            let distance = (d >> 1) ^ (d & 1).wrapping_neg();
            stream.wakeup.wrapping_add(distance)
        });
        stream.wakeup = wakeup.unwrap_or(stream.wakeup);
        let by = match self.columns.by.byte()? {
            0 => None,
            1 => stream.by,
            _ => {
                let pid = self.columns.by.small()?;
                let tid = self.columns.by.small()?;
                stream.by = Some(ThreadId { pid, tid });
                stream.by
            }
        };
        let frame = if code & op::SHOWN != 0 {
            let (lane, id) = match code & op::RENAMED {
                0 => (lane, id),
                _ => self.state.lanes.read(Step::Sent, &mut self.columns)?,
            };
            Some(self.frame(lane, id, chunks)?.with(chunks))
        } else {
            None
        };
        Ok(Received { id, wakeup, by, frame })
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoder::Encoder;
    use super::*;
    use crate::event::{Missed, MissedCause};
    use crate::record::Payload;

    /// A cause that a later minor version of the format adds.
    #[test]
    fn records_with_codes_of_a_later_minor_version_are_skipped_and_counted() {
        let mut encoder = Encoder::new(Payload::Lengths);
        let what = What::Missed(Missed::new(None, 0x55, MissedCause::Ended));
        encoder.event(&Event { at: MonoNs(7), what });
        encoder.tick(MonoNs(9));
        let (mut columns, content) = encoder.close(Columns::default());
        let read = |columns: &Columns<Vec<u8>>| {
            let (mut raw, mut given) = (Vec::new(), 0);
            columns.join(&mut raw);
            let unknown = decode(&raw, &content, &mut Scratch::default(), false, &mut |_| given += 1);
            (unknown.expect("the block is whole"), given)
        };
        assert_eq!(read(&columns), (0, 2));
        let cause = columns.rare.last_mut().expect("the cause is its last byte");
        *cause = MissedCause::Ended as u8 + 1;
        assert_eq!(read(&columns), (1, 1));
    }
}
