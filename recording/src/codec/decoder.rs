//! Decodes the columns of a block into records, one at a time. Memory holds the block's texts and ids, and one frame.

use std::io;

use trace::clock::{Anchor, MonoNs};
use trace::event::{Chunk, Event, Frame, IdColumn, Kind, Missed, Received, What};
use trace::id::ThreadId;

use super::bytes::{ColumnCursor, EnumCode, MalformedBlock, unzigzag};
use super::chunk_predictor::{ChunkPredictor, IDS, KNOWN_REQUEST, MAX_FRAME_CHUNKS, NEW_IN_LANE, NEW_REQUEST};
use super::codes::op;
use super::columns::BlockColumns;
use super::lane_predictor::{FrameStage, LAST_RECEIVER, LaneFrame, NO_RECEIVER};
use super::rare::RareReader;
use super::request_order::NO_LINK;
use super::text::{TextArena, TextReader};
use super::{BlockContent, PredictionState};
use crate::Record;

/// Buffers that a reader reuses from block to block. They carry no state.
#[derive(Default)]
pub(crate) struct DecodeBuffers {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    raw: Vec<u8>,
    texts: TextArena,
    ids: Vec<i64>,
    state: PredictionState,
}

impl DecodeBuffers {
    /// Decompresses a block for [`Self::decode_block`]. Fails if the result does not have the `length` in bytes that the block's header
    /// states.
    pub(crate) fn decompress_columns(&mut self, packed: &[u8], length: u32) -> io::Result<()> {
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            None => self.zstd.insert(zstd::bulk::Decompressor::new()?),
        };
        self.raw.clear();
        // The decompressor writes no more than this capacity, however much a damaged block expands to.
        self.raw.reserve(length as usize);
        let decompressed_length = zstd.decompress_to_buffer(packed, &mut self.raw)?;
        if decompressed_length != length as usize {
            return Err(io::Error::other("its length does not match after decompression"));
        }
        Ok(())
    }

    /// Starts to decode the decompressed block, whose header states `content`. The result yields up to three things, in this order: a
    /// [`What::Missed`] if records are `missed` before the block, the standing data (the latest engine and hops) if it is wanted, and the
    /// records of the block.
    pub(crate) fn decode_block(
        &mut self,
        content: &BlockContent,
        wants_standing: bool,
        missed: Option<Missed>,
    ) -> Result<DecodedBlock<'_>, MalformedBlock> {
        let Self { raw, texts, ids, state, .. } = self;
        let mut columns = BlockColumns::from_bytes(raw)?;
        texts.read_texts(&mut columns)?;
        ids.clear();
        while !columns.ids.is_empty() {
            // All ids are read before the chunks, so that each chunk can borrow its part of them.
            ids.push(columns.ids.read_signed()?);
        }
        state.clear();
        Ok(DecodedBlock {
            state,
            columns,
            texts: TextReader::new(texts),
            ids,
            chunks_left: content.chunks,
            records_left: content.records,
            from: content.from,
            missed,
            wants_standing,
            // The first record's time is stored as its distance from 0.
            last_record_ns: 0,
            last: None,
            chunks: Vec::new(),
            unknown_records: 0,
        })
    }
}

/// A block being decoded: its columns, the state of their predictions, and its last record.
pub(crate) struct DecodedBlock<'b> {
    state: &'b mut PredictionState,
    columns: BlockColumns<ColumnCursor<'b>>,
    texts: TextReader<'b>,
    /// Token ids not yet assigned to chunks.
    ids: &'b [i64],
    /// Remaining chunks and records of those that the block's header states.
    chunks_left: u32,
    records_left: u32,
    /// Earliest time in the block: the time of events that are not its records.
    from: MonoNs,
    /// Records missing before the block, not reported yet.
    missed: Option<Missed>,
    wants_standing: bool,
    last_record_ns: u64,
    /// Last record, without its chunks.
    last: Option<Record<'b>>,
    /// Chunks of the last record.
    chunks: Vec<Chunk<'b>>,
    /// Number of records of unknown kinds skipped so far.
    pub(crate) unknown_records: u64,
}

impl<'b> DecodedBlock<'b> {
    /// The record that [`Self::advance`] read last. `None` before the first.
    pub(crate) fn last_record(&self) -> Option<Record<'_>> {
        let mut record = self.last?;
        if let Record::Event(Event { what, .. }) = &mut record
            && let What::Sent(frame) | What::Received(Received { frame: Some(frame), .. }) = what
        {
            // The chunks live in this block and not in the record, so that their memory is reused.
            frame.chunks = &self.chunks;
        }
        Some(record)
    }

    /// Reads the next record, which [`Self::last_record`] then returns. Returns `false` at the end.
    pub(crate) fn advance(&mut self) -> Result<bool, MalformedBlock> {
        self.last = self.read_next_record()?;
        Ok(self.last.is_some())
    }

    /// The next record; `None` at the end. The missed records come first, then the standing data (the latest engine and hops), then the
    /// records of the block.
    fn read_next_record(&mut self) -> Result<Option<Record<'b>>, MalformedBlock> {
        // Taken, so that it is reported once.
        if let Some(missed) = self.missed.take() {
            // It is unknown when they were missed, so it gets the earliest time of the block.
            return Ok(Some(Record::Event(Event::new(self.from, What::Missed(missed)))));
        }
        if let Some(what) = self.next_standing_event()? {
            return Ok(Some(Record::Event(Event::new(self.from, what))));
        }
        self.next_own_record()
    }

    /// The next announcement of the engine or a hop that the block repeats from earlier blocks, if the reader wants them. `None` behind the
    /// last one.
    #[inline]
    fn next_standing_event(&mut self) -> Result<Option<What<'b>>, MalformedBlock> {
        // Unwanted announcements are read as well, because they may have the first use of a text.
        while !self.columns.standing.is_empty() {
            let mut reader = RareReader::next_record(&mut self.columns.standing, &mut self.texts)?;
            // Standing data of an unknown kind, from a later version, is skipped.
            if self.wants_standing
                && let Ok(Some(what)) = reader.read_standing()
            {
                return Ok(Some(what));
            }
        }
        Ok(None)
    }

    /// Reads the next record of this block. Skips records of unknown and of obsolete kinds. `None` at the end.
    #[inline]
    fn next_own_record(&mut self) -> Result<Option<Record<'b>>, MalformedBlock> {
        while self.records_left > 0 {
            self.records_left -= 1;
            // The kind of the record, with flags.
            let kind_and_flags = self.columns.op.read_byte()?;
            // The distance from the last record. It is negative for a late event, which is written behind newer ones.
            let distance_ns = self.columns.time.read_signed()?;
            self.last_record_ns = self.last_record_ns.wrapping_add(distance_ns as u64);
            let record = self.read_record(kind_and_flags, MonoNs(self.last_record_ns))?;
            if record.is_some() {
                return Ok(record);
            }
        }
        // A writer states exact numbers, so anything left over is a sign of damage.
        if self.columns.op.is_empty() && self.chunks_left == 0 {
            Ok(None)
        } else {
            Err(MalformedBlock("the block has more data than its header states"))
        }
    }

    /// Reads the rest of a record whose kind and time `at` are already read. `None` if the record is skipped, because its kind is obsolete
    /// or unknown.
    fn read_record(&mut self, kind_and_flags: u8, at: MonoNs) -> Result<Option<Record<'b>>, MalformedBlock> {
        let kind = kind_and_flags & op::KIND_MASK;
        let what = match kind {
            op::TICK => return Ok(Some(Record::Tick(at))),
            op::SENT => What::Sent(self.read_sent_frame(kind_and_flags, at)?),
            // Written before 2.6. It is read only because it changes the predictions.
            op::FORWARDED => {
                self.read_frame_id(kind_and_flags, FrameStage::Forwarded)?;
                return Ok(None);
            }
            op::RECEIVED => What::Received(self.read_receive(kind_and_flags)?),
            op::PROCESSED => What::Processed(self.read_frame_id(kind_and_flags, FrameStage::Processed)?.id),
            op::DELIVERED => {
                let is_predicted = kind_and_flags & op::IS_PREDICTED != 0;
                let deliveries = &mut self.state.deliveries;
                What::Delivered(deliveries.read_delivery(is_predicted, &mut self.columns.delivery, &mut self.texts)?)
            }
            _ if kind >= op::FIRST_RARE => return self.read_rare_record(kind, at),
            _ => return Err(MalformedBlock("record of unknown kind")),
        };
        Ok(Some(Record::Event(Event { at, what })))
    }

    /// Reads a frame that was sent at `sent_at`. A flag of `kind_and_flags` says whether a relay has forwarded it, and at which time.
    #[inline]
    fn read_sent_frame(&mut self, kind_and_flags: u8, sent_at: MonoNs) -> Result<Frame<'b>, MalformedBlock> {
        let lane_frame = self.read_frame_id(kind_and_flags, FrameStage::Sent)?;
        let mut forwarded = None;
        if kind_and_flags & op::HAS_FORWARD_TIME != 0 {
            let delay_ns = self.columns.forwarded.read_signed()?;
            forwarded = Some(MonoNs(sent_at.0.wrapping_add(delay_ns as u64)));
        }
        let frame = self.read_frame(lane_frame)?;
        Ok(Frame { forwarded, ..frame })
    }

    /// Reads a record of a rare kind, whose fields are in one column for all of these kinds. Skips and counts it, and returns `None`, if
    /// its kind or a code in it is unknown to this version.
    fn read_rare_record(&mut self, kind: u8, at: MonoNs) -> Result<Option<Record<'b>>, MalformedBlock> {
        let mut reader = RareReader::next_record(&mut self.columns.rare, &mut self.texts)?;
        if kind == op::ANCHOR {
            let wall_ns = reader.read_wall_ns()?;
            return Ok(Some(Record::Anchor(Anchor { mono: at, wall_ns })));
        }
        let Ok(Some(what)) = reader.read_event(kind) else {
            self.unknown_records += 1;
            return Ok(None);
        };
        Ok(Some(Record::Event(Event { at, what })))
    }

    /// Reads the id of a frame, with the index of its lane (its connection) in the block. The id has no bytes in the columns if a flag of
    /// `kind_and_flags` says that it is as predicted.
    fn read_frame_id(&mut self, kind_and_flags: u8, stage: FrameStage) -> Result<LaneFrame, MalformedBlock> {
        if kind_and_flags & op::IS_PREDICTED != 0 {
            self.state.lanes.take_predicted_frame(stage)
        } else {
            self.state.lanes.read_mispredicted_frame_id(stage, &mut self.columns)
        }
    }

    /// Reads a receive: the frame's id, the wakeup and the thread that received it, and sometimes the frame itself.
    fn read_receive(&mut self, kind_and_flags: u8) -> Result<Received<'b>, MalformedBlock> {
        let received = self.read_frame_id(kind_and_flags, FrameStage::Received)?;
        let lane = self.state.lanes.lane_mut(received.lane_index);
        let wakeup = read_wakeup_number(&mut self.columns.wakeup, &mut lane.last_wakeup)?;
        let receiver = read_receiver(&mut self.columns.receiver, &mut lane.last_receiver)?;
        let frame = self.read_received_frame(kind_and_flags, received)?;
        Ok(Received { id: received.id, wakeup, by: receiver, frame })
    }

    /// Reads the frame of a receive, whose id is `received`. `None` if `kind_and_flags` lacks the flag for a frame: then the record of the
    /// send has the frame.
    #[inline]
    fn read_received_frame(
        &mut self,
        kind_and_flags: u8,
        received: LaneFrame,
    ) -> Result<Option<Frame<'b>>, MalformedBlock> {
        if kind_and_flags & op::HAS_FRAME == 0 {
            return Ok(None);
        }
        // The frame has the id of the receive, unless a flag says that another one follows. That one is stored like the id of a send.
        let has_other_id = kind_and_flags & op::HAS_OTHER_FRAME_ID != 0;
        let lane_frame = if has_other_id {
            self.state.lanes.read_mispredicted_frame_id(FrameStage::Sent, &mut self.columns)?
        } else {
            received
        };
        self.read_frame(lane_frame).map(Some)
    }

    /// Reads the next frame, and its chunks into [`Self::chunks`].
    fn read_frame(&mut self, lane_frame: LaneFrame) -> Result<Frame<'b>, MalformedBlock> {
        let form = self.columns.form.read_byte()?;
        let lane = self.state.lanes.lane_mut(lane_frame.lane_index);
        // Both are stored as the difference from the lane's last frame.
        let length_difference = self.columns.bytes.read_signed()?;
        let bytes = lane.frame_bytes.wrapping_add(length_difference as u64);
        let count_difference = self.columns.count.read_signed()?;
        let stated_count = i64::from(lane.chunk_count).checked_add(count_difference);
        let count = stated_count.filter(|count| (0..=MAX_FRAME_CHUNKS as i64).contains(count));
        let count = count.ok_or(MalformedBlock("more chunks than a frame can have"))? as u32;
        self.chunks_left =
            self.chunks_left.checked_sub(count).ok_or(MalformedBlock("more chunks than the block's header states"))?;
        lane.frame_bytes = bytes;
        lane.chunk_count = count;
        let mut position = lane.position;
        let mut newest_request = lane.newest_request;
        // Rest of the current runs of chunks whose request, and whose fields, are as predicted.
        let mut predicted_requests = None;
        let mut predicted_chunks = None;
        let mut chunks = std::mem::take(&mut self.chunks);
        chunks.clear();
        for _ in 0..count {
            let order = &mut self.state.order;
            let predicted = order.predict_next_link(position);
            let is_request_predicted = count_off_if_predicted(&mut predicted_requests, &mut self.columns.requests)?;
            let link_index = if is_request_predicted {
                predicted
            } else {
                match read_request_reference(&mut self.columns.requests, &mut self.texts, position.last_link)? {
                    RequestReference::Known { link_index } => link_index,
                    RequestReference::New { text } => {
                        order.add_request(text, ChunkPredictor::for_new_request(&newest_request))
                    }
                }
            };
            let text = order.get(link_index).ok_or(MalformedBlock("reference to an unknown request"))?.text;
            order.advance_position(&mut position, predicted, link_index);
            let link = order.link_mut(link_index);
            let predictor = &mut link.state;
            let are_fields_predicted = count_off_if_predicted(&mut predicted_chunks, &mut self.columns.chunk_flags)?;
            let flags = if are_fields_predicted { 0 } else { self.columns.chunk_flags.read_byte()? };
            let mut chunk = Chunk::new(self.texts.get(text)?);
            let mut worker = 0;
            predictor.write_or_read_fields(flags, &mut self.columns, &mut chunk, &mut worker)?;
            if let Some(text) = worker.checked_sub(1) {
                chunk.worker = Some(self.texts.get_text_or_take_new(text)?);
            }
            // The flag says that the prediction is wrong.
            let has_ids = predictor.has_ids != (flags & IDS != 0);
            if has_ids {
                let listed = i64::from(chunk.listed.unwrap_or(0));
                let difference_from_listed = self.columns.id_count.read_signed()?;
                let id_count = listed.checked_add(difference_from_listed);
                let id_count = id_count.and_then(|count| usize::try_from(count).ok()).filter(|&count| count > 0);
                // The next ids of the block are those of this chunk.
                let split = id_count.and_then(|count| self.ids.split_at_checked(count));
                (chunk.ids, self.ids) = split.ok_or(MalformedBlock("reference to unknown ids"))?;
            }
            let is_new = !predictor.has_begun;
            predictor.record_chunk(&chunk, worker, has_ids);
            if is_new {
                newest_request = *predictor;
            }
            link.is_finished = chunk.finish.is_some();
            chunks.push(chunk);
        }
        let lane = self.state.lanes.lane_mut(lane_frame.lane_index);
        lane.position = position;
        lane.newest_request = newest_request;
        self.chunks = chunks;
        Ok(Frame {
            id: lane_frame.id,
            bytes,
            forwarded: None,
            // The upper four bits are the kind of the frame, the lower ones the meaning of its ids.
            kind: Kind::from_code(form >> 4)?,
            ids: IdColumn::from_code(form & 15)?,
            // They are lent by `last_record`.
            chunks: &[],
        })
    }
}

/// Reads the number of the wakeup in which a thread received a frame; `None` if it is not known. It is stored as the distance from the
/// lane's `last_wakeup`, which becomes this one.
#[inline]
fn read_wakeup_number(column: &mut ColumnCursor<'_>, last_wakeup: &mut u64) -> Result<Option<u64>, MalformedBlock> {
    let Some(distance) = column.read_optional()? else { return Ok(None) };
    *last_wakeup = last_wakeup.wrapping_add(unzigzag(distance) as u64);
    Ok(Some(*last_wakeup))
}

/// Reads the thread that received a frame; `None` if it is not known. A known thread becomes the lane's `last_receiver`.
#[inline]
fn read_receiver(
    column: &mut ColumnCursor<'_>,
    last_receiver: &mut Option<ThreadId>,
) -> Result<Option<ThreadId>, MalformedBlock> {
    match column.read_byte()? {
        NO_RECEIVER => Ok(None),
        LAST_RECEIVER => Ok(*last_receiver),
        // Another thread, whose ids follow.
        _ => {
            let pid = column.read_u32()?;
            let tid = column.read_u32()?;
            *last_receiver = Some(ThreadId { pid, tid });
            Ok(*last_receiver)
        }
    }
}

/// Returns whether the next item was predicted. Items come in runs of predicted ones, each with one behind it that was not predicted.
/// `left_in_run`: number of predicted items left of the current run. `None` at the start of a run, whose length is then read from
/// `run_lengths`.
#[inline]
fn count_off_if_predicted(
    left_in_run: &mut Option<u64>,
    run_lengths: &mut ColumnCursor<'_>,
) -> Result<bool, MalformedBlock> {
    let items_left = match *left_in_run {
        Some(items) => items,
        None => run_lengths.read_number()?,
    };
    // Counts the item off. If no predicted item is left, this is the other one, and the next item starts a run.
    *left_in_run = items_left.checked_sub(1);
    Ok(items_left > 0)
}

/// A request that was not predicted.
enum RequestReference {
    New { text: u32 },
    Known { link_index: u32 },
}

/// Reads a request that was not predicted. A request that the lane (connection) knows is stored by its link, which is its entry in the
/// predicted order. `last_link`: index of the last request's link, or [`NO_LINK`] before the first.
fn read_request_reference(
    column: &mut ColumnCursor<'_>,
    texts: &mut TextReader<'_>,
    last_link: u32,
) -> Result<RequestReference, MalformedBlock> {
    match column.read_number()? {
        NEW_REQUEST => Ok(RequestReference::New { text: texts.take_new_text_index()? }),
        // The rid is known from another lane of the block, so only the index of its text follows.
        NEW_IN_LANE => Ok(RequestReference::New { text: column.read_u32()? }),
        // All other codes are `KNOWN_REQUEST` plus the distance of the request's link from the last one.
        code => match link_at_distance(last_link, unzigzag(code - KNOWN_REQUEST)) {
            Some(link_index) => Ok(RequestReference::Known { link_index }),
            None => Err(MalformedBlock("reference to an unknown request")),
        },
    }
}

/// Index of the link at this distance from the last one. `None` if it does not fit into 32 bits, as in a damaged block.
#[inline]
fn link_at_distance(last_link: u32, distance: i64) -> Option<u32> {
    // Before the first request, the distance counts from index 0.
    let last_index = if last_link == NO_LINK { 0 } else { last_link };
    let link_index = i64::from(last_index).checked_add(distance)?;
    u32::try_from(link_index).ok()
}

#[cfg(test)]
mod tests {
    use trace::event::{Missed, MissedCause};

    use super::super::{EncodedBlock, Encoder};
    use super::*;
    use crate::RecordedPayload;

    /// A cause that a later minor version of the format adds.
    #[test]
    fn records_with_codes_of_a_later_minor_version_are_skipped_and_counted() {
        let mut encoder = Encoder::new(RecordedPayload::Lengths);
        let what = What::Missed(Missed::new(None, 0x55, MissedCause::Ended));
        encoder.write_event_or_loss(&Event { at: MonoNs(7), what });
        encoder.write_tick(MonoNs(9));
        let EncodedBlock { mut columns, content } = encoder.close_block(BlockColumns::default());
        let read = |columns: &BlockColumns<Vec<u8>>| {
            let (mut scratch, mut given) = (DecodeBuffers::default(), 0);
            columns.write_to(&mut scratch.raw);
            let mut block = scratch.decode_block(&content, false, None).expect("columns");
            while block.advance().expect("the block is whole") {
                given += 1;
            }
            (block.unknown_records, given)
        };
        assert_eq!(read(&columns), (0, 2));
        let cause = columns.rare.last_mut().expect("the cause is its last byte");
        *cause = MissedCause::Ended as u8 + 1;
        assert_eq!(read(&columns), (1, 1));
    }
}
