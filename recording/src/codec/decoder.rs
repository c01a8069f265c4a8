//! Decodes the columns of a block into records, one at a time. Memory holds the block's texts and ids, and one frame.

use std::io;

use trace::clock::{Anchor, MonoNs};
use trace::event::{Chunk, Event, Frame, IdColumn, Kind, Missed, Received, What};
use trace::id::{FrameId, ThreadId};

use super::bytes::{Code, Cursor, Malformed, unzigzag};
use super::chain::NONE;
use super::chunk::{CHUNKS, IDS, KNOWN, NEW, NEW_HERE, Predictor};
use super::codes::op;
use super::columns::Columns;
use super::lane::Step;
use super::rare::RareReader;
use super::text::{Arena, Reading};
use super::{Content, State};
use crate::Record;

/// Buffers that a reader reuses from block to block. They carry no state.
#[derive(Default)]
pub(crate) struct Scratch {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    raw: Vec<u8>,
    texts: Arena,
    ids: Vec<i64>,
    state: State,
}

impl Scratch {
    /// Decompresses a block, whose header states that it has `length` bytes.
    pub(crate) fn unpack(&mut self, packed: &[u8], length: u32) -> io::Result<()> {
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
    pub(crate) fn decode(
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

/// A block being decoded: its columns, the state of their predictions, and its last record.
pub(crate) struct DecodedBlock<'b> {
    state: &'b mut State,
    columns: Columns<Cursor<'b>>,
    texts: Reading<'b>,
    /// Token ids not yet assigned to chunks.
    ids: &'b [i64],
    /// Remaining chunks and records of the numbers in the block's header.
    chunks_left: u32,
    records_left: u32,
    /// Earliest time in the block: the time of events that are not its records.
    from: MonoNs,
    /// Records missing before the block, not reported yet.
    missed: Option<Missed>,
    /// Whether the standing data is wanted.
    standing: bool,
    /// Time of the last record.
    at: u64,
    /// Last record, without its chunks.
    last: Option<Record<'b>>,
    /// Chunks of the last record.
    chunks: Vec<Chunk<'b>>,
    /// Number of records of unknown kinds skipped so far.
    pub(crate) unknown: u64,
}

impl<'b> DecodedBlock<'b> {
    /// The record that [`Self::advance`] read.
    pub(crate) fn last(&self) -> Option<Record<'_>> {
        let mut record = self.last?;
        if let Record::Event(Event { what, .. }) = &mut record
            && let What::Sent(frame) | What::Received(Received { frame: Some(frame), .. }) = what
        {
            frame.chunks = &self.chunks;
        }
        Some(record)
    }

    /// Reads the next record into [`Self::last`]. Returns `false` at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, Malformed> {
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

    /// Reads the next frame, and its chunks into [`Self::chunks`].
    fn frame(&mut self, lane: u32, id: FrameId) -> Result<Frame<'b>, Malformed> {
        let form = self.columns.form.byte()?;
        let stream = self.state.lanes.get(lane);
        let bytes = stream.bytes.wrapping_add(self.columns.bytes.signed()? as u64);
        let count = i64::from(stream.count).checked_add(self.columns.count.signed()?);
        let count = count.filter(|n| (0..=CHUNKS as i64).contains(n));
        let count = count.ok_or(Malformed("more chunks than a frame can have"))? as u32;
        self.chunks_left =
            self.chunks_left.checked_sub(count).ok_or(Malformed("more chunks than the block's header states"))?;
        stream.bytes = bytes;
        stream.count = count;
        let (mut place, mut first) = (stream.place, stream.first);
        let (mut followed, mut plain) = (None, None);
        let mut chunks = std::mem::take(&mut self.chunks);
        chunks.clear();
        for _ in 0..count {
            let chain = &mut self.state.chain;
            let expected = chain.expected(place);
            let at = if run(&mut followed, &mut self.columns.whose)? {
                expected
            } else {
                let (text, known) = read_request(&mut self.columns.whose, &mut self.texts, place.last)?;
                known.unwrap_or_else(|| chain.push(text, Predictor::after(&first)))
            };
            let text = chain.get(at).ok_or(Malformed("reference to an unknown request"))?.text;
            chain.advance(&mut place, expected, at);
            let link = chain.link(at);
            let predictor = &mut link.state;
            let flags = if run(&mut plain, &mut self.columns.shape)? { 0 } else { self.columns.shape.byte()? };
            let (mut chunk, mut worker) = (Chunk::new(self.texts.get(text)?), 0);
            predictor.fields(flags, &mut self.columns, &mut chunk, &mut worker)?;
            if let Some(id) = worker.checked_sub(1) {
                chunk.worker = Some(self.texts.named(id)?);
            }
            let has_ids = predictor.ids != (flags & IDS != 0);
            if has_ids {
                let listed = i64::from(chunk.listed.unwrap_or(0));
                let n = listed.checked_add(self.columns.id_count.signed()?);
                let n = n.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
                let split = n.and_then(|n| self.ids.split_at_checked(n));
                (chunk.ids, self.ids) = split.ok_or(Malformed("reference to unknown ids"))?;
            }
            let new = !predictor.begun;
            predictor.update(&chunk, worker, has_ids);
            if new {
                first = *predictor;
            }
            link.finished = chunk.finish.is_some();
            chunks.push(chunk);
        }
        let stream = self.state.lanes.get(lane);
        (stream.place, stream.first) = (place, first);
        self.chunks = chunks;
        Ok(Frame { id, bytes, forwarded: None, kind: Kind::of(form >> 4)?, ids: IdColumn::of(form & 15)?, chunks: &[] })
    }
}

/// Consumes one item of a run. Returns `false` at its end, where an exception follows.
#[inline]
fn run(left: &mut Option<u64>, column: &mut Cursor<'_>) -> Result<bool, Malformed> {
    let n = match *left {
        Some(n) => n,
        None => column.number()?,
    };
    *left = n.checked_sub(1);
    Ok(n > 0)
}

/// Reads the request after a run: the text index of a new request, or the link of a known one.
fn read_request(column: &mut Cursor<'_>, texts: &mut Reading<'_>, last: u32) -> Result<(u32, Option<u32>), Malformed> {
    match column.number()? {
        NEW => Ok((texts.new_place()?, None)),
        NEW_HERE => Ok((column.small()?, None)),
        distance => {
            let at = i64::from(if last == NONE { 0 } else { last }).checked_add(unzigzag(distance - KNOWN));
            let at = at.and_then(|at| u32::try_from(at).ok());
            Ok((NONE, Some(at.ok_or(Malformed("reference to an unknown request"))?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::event::{Missed, MissedCause};

    use super::super::Encoder;
    use super::*;
    use crate::Payload;

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
            while block.advance().expect("the block is whole") {
                given += 1;
            }
            (block.unknown, given)
        };
        assert_eq!(read(&columns), (0, 2));
        let cause = columns.rare.last_mut().expect("the cause is its last byte");
        *cause = MissedCause::Ended as u8 + 1;
        assert_eq!(read(&columns), (1, 1));
    }
}
