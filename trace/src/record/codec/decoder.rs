//! Decodes the columns of a block into records, one at a time. Memory holds the block's texts and ids, and one frame.

use std::io;

use super::block::{Content, DecodedBlock, State};
use super::bytes::{Malformed, unzigzag};
use super::codes::op;
use super::columns::Columns;
use super::lane::Step;
use super::rare::RareReader;
use super::text::{Arena, Reading};
use crate::clock::{Anchor, MonoNs};
use crate::event::{Event, Frame, Missed, Received, What};
use crate::id::{FrameId, ThreadId};
use crate::record::Record;

/// Buffers that a reader reuses from block to block. They carry no state.
#[derive(Default)]
pub(in crate::record) struct Scratch {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    raw: Vec<u8>,
    texts: Arena,
    ids: Vec<i64>,
    state: State,
}

impl Scratch {
    /// Decompresses a block, whose header states that it has `length` bytes.
    pub(in crate::record) fn unpack(&mut self, packed: &[u8], length: u32) -> io::Result<()> {
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            None => self.zstd.insert(zstd::bulk::Decompressor::new()?),
        };
        self.raw.clear();
        self.raw.reserve(length as usize);
        if zstd.decompress_to_buffer(packed, &mut self.raw)? == length as usize {
            Ok(())
        } else {
            Err(io::Error::other("its length does not match after decompression"))
        }
    }

    /// Starts to decode the decompressed block, which must match `content` from its header. A [`What::Missed`] comes first if records are
    /// `missed` before the block, then the standing data if it is wanted.
    pub(in crate::record) fn decode(
        &mut self,
        content: &Content,
        standing: bool,
        missed: Option<Missed>,
    ) -> Result<DecodedBlock<'_>, Malformed> {
        let Self { raw, texts, ids, state, .. } = self;
        let mut columns = Columns::split(raw)?;
        texts.fill(&mut columns)?;
        ids.clear();
        while !columns.ids.is_empty() {
            ids.push(columns.ids.signed()?);
        }
        state.clear();
        Ok(DecodedBlock {
            state,
            columns,
            texts: Reading::new(texts),
            ids,
            chunks_left: content.chunks,
            records_left: content.records,
            from: content.from,
            missed,
            standing,
            at: 0,
            last: None,
            chunks: Vec::new(),
            unknown: 0,
        })
    }
}

impl<'b> DecodedBlock<'b> {
    /// Reads the next record; `None` at the end.
    pub(in crate::record) fn next(&mut self) -> Result<Option<Record<'_>>, Malformed> {
        self.advance()?;
        Ok(self.last())
    }

    /// The record that [`Self::advance`] read.
    pub(in crate::record) fn last(&self) -> Option<Record<'_>> {
        let mut record = self.last?;
        if let Record::Event(Event { what, .. }) = &mut record
            && let What::Sent(frame) | What::Received(Received { frame: Some(frame), .. }) = what
        {
            frame.chunks = &self.chunks;
        }
        Some(record)
    }

    /// Number of records of unknown kinds skipped so far.
    pub(in crate::record) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Reads the next record into [`Self::last`]. Returns `false` at the end.
    pub(in crate::record) fn advance(&mut self) -> Result<bool, Malformed> {
        self.last = self.read()?;
        Ok(self.last.is_some())
    }

    fn read(&mut self) -> Result<Option<Record<'b>>, Malformed> {
        if let Some(missed) = self.missed.take() {
            return Ok(Some(Record::Event(Event::new(self.from, What::Missed(missed)))));
        }
        while !self.columns.standing.is_empty() {
            let mut reader = RareReader::next(&mut self.columns.standing, &mut self.texts)?;
            if let (true, Ok(Some(what))) = (self.standing, reader.standing()) {
                return Ok(Some(Record::Event(Event::new(self.from, what))));
            }
        }
        while self.records_left > 0 {
            self.records_left -= 1;
            let code = self.columns.op.byte()?;
            self.at = self.at.wrapping_add(self.columns.time.signed()? as u64);
            let record = self.record(code, MonoNs(self.at))?;
            if record.is_some() {
                return Ok(record);
            }
        }
        if self.columns.op.is_empty() && self.chunks_left == 0 {
            Ok(None)
        } else {
            Err(Malformed("the block has more data than its header states"))
        }
    }

    /// Reads a record. Returns `None` if it is skipped.
    fn record(&mut self, code: u8, at: MonoNs) -> Result<Option<Record<'b>>, Malformed> {
        let number = code & op::NUMBER;
        let what = match number {
            op::TICK => return Ok(Some(Record::Tick(at))),
            op::SENT => {
                let (lane, id) = self.step(code, Step::Sent)?;
                let mut forwarded = None;
                if code & op::RELAYED != 0 {
                    let ns = self.columns.forwarded.signed()?;
                    forwarded = Some(MonoNs(at.0.wrapping_add(ns as u64)));
                }
                let frame = self.frame(lane, id)?;
                What::Sent(Frame { forwarded, ..frame })
            }
            op::FORWARDED => {
                self.step(code, Step::Forwarded)?;
                return Ok(None);
            }
            op::RECEIVED => What::Received(self.received(code)?),
            op::PROCESSED => What::Processed(self.step(code, Step::Processed)?.1),
            op::DELIVERED => {
                let (deliveries, column) = (&mut self.state.given, &mut self.columns.delivery);
                What::Delivered(deliveries.read(code & op::EXPECTED != 0, column, &mut self.texts)?)
            }
            _ if number >= op::RARE => {
                let mut reader = RareReader::next(&mut self.columns.rare, &mut self.texts)?;
                if number == op::ANCHOR {
                    let wall_ns = reader.wall_ns()?;
                    return Ok(Some(Record::Anchor(Anchor { mono: at, wall_ns })));
                }
                let Ok(Some(what)) = reader.what(number) else {
                    // A kind, or a code in it, that is unknown to this version.
                    self.unknown += 1;
                    return Ok(None);
                };
                what
            }
            _ => return Err(Malformed("record of unknown kind")),
        };
        Ok(Some(Record::Event(Event { at, what })))
    }

    fn step(&mut self, code: u8, step: Step) -> Result<(u32, FrameId), Malformed> {
        if code & op::EXPECTED != 0 {
            self.state.lanes.next(step)
        } else {
            self.state.lanes.read(step, &mut self.columns)
        }
    }

    fn received(&mut self, code: u8) -> Result<Received<'b>, Malformed> {
        let (lane, id) = self.step(code, Step::Received)?;
        let stream = self.state.lanes.get(lane);
        let distance = self.columns.wakeup.maybe()?;
        let wakeup = distance.map(|distance| stream.wakeup.wrapping_add(unzigzag(distance) as u64));
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
            Some(self.frame(lane, id)?)
        } else {
            None
        };
        Ok(Received { id, wakeup, by, frame })
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::Encoder;
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
            let (mut scratch, mut given) = (Scratch::default(), 0);
            columns.join(&mut scratch.raw);
            let mut block = scratch.decode(&content, false, None).expect("columns");
            while block.next().expect("the block is whole").is_some() {
                given += 1;
            }
            (block.unknown(), given)
        };
        assert_eq!(read(&columns), (0, 2));
        let cause = columns.rare.last_mut().expect("the cause is its last byte");
        *cause = MissedCause::Ended as u8 + 1;
        assert_eq!(read(&columns), (1, 1));
    }
}
