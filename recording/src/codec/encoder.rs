//! Encodes records into the columns of a block. In steady state nothing is allocated: tables and columns keep their capacity.

use serde::{Deserialize, Serialize};
use trace::clock::{Anchor, MonoNs};
use trace::event::{Delivery, Event, Frame, Missed, MissedCause, Received, What};
use trace::id::{FrameId, HopId, ThreadId};

use super::bytes::{EnumCode, PutNumber, zigzag};
use super::chunk_predictor::{ChunkPredictor, KNOWN_REQUEST, MAX_FRAME_CHUNKS, NEW_IN_LANE, NEW_REQUEST};
use super::codes::op;
use super::columns::BlockColumns;
use super::lane_predictor::{FrameStage, LAST_RECEIVER, NO_RECEIVER, OTHER_RECEIVER};
use super::rare::RareWriter;
use super::request_order::{NO_LINK, RequestLinks};
use super::text::TextTable;
use super::{BlockContent, PredictionState};
use crate::header::RecordedPayload;

/// Maximum encoded size of an event. A larger event is dropped, and its loss is recorded.
const MAX_EVENT_BYTES: usize = 16 << 20;
/// Maximum size of a chunk without its texts and ids, in bytes.
const MAX_CHUNK_BYTES: usize = 64;
// A frame that can be written has no more chunks than a reader accepts.
const _: () = assert!(MAX_EVENT_BYTES / MAX_CHUNK_BYTES <= MAX_FRAME_CHUNKS);
/// Maximum encoded size of a token id, in bytes.
const MAX_ID_BYTES: usize = 10;
/// Number of chunks and ids that fills a block regardless of its size, which bounds a reader's memory.
const MAX_BLOCK_CHUNKS: u32 = 4 << 20;
const MAX_BLOCK_IDS: usize = 1 << 20;

/// Maximum number of hops kept; equal to the ledger's default limit.
const MAX_HOPS: usize = 1_024;

/// A closed block.
#[derive(Debug)]
pub(crate) struct EncodedBlock {
    pub(crate) columns: BlockColumns<Vec<u8>>,
    pub(crate) content: BlockContent,
}

/// The block being written: its columns, with the state of their predictions.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    state: PredictionState,
    columns: BlockColumns<Vec<u8>>,
    texts: TextTable,
    links: RequestLinks,
    writes_token_ids: bool,
    /// Content of the block so far.
    pub(crate) content: BlockContent,
    /// Number of token ids in the block.
    id_count: usize,
    standing: StandingData,
    /// Buffer for the fields of a rare record.
    rare_fields: Vec<u8>,
    last_record_ns: u64,
}

impl Encoder {
    /// Encoder of a recording that keeps this part of the chunks.
    pub(crate) fn new(payload: RecordedPayload) -> Self {
        Self { writes_token_ids: payload == RecordedPayload::Tokens, ..Self::default() }
    }

    /// Whether the block must be closed, because it has reached `max_bytes` or the limits that bound a reader's memory.
    pub(crate) fn is_full(&self, max_bytes: usize) -> bool {
        self.columns.len() >= max_bytes || self.content.chunks >= MAX_BLOCK_CHUNKS || self.id_count >= MAX_BLOCK_IDS
    }

    /// Writes a tick of the analysis.
    pub(crate) fn write_tick(&mut self, now: MonoNs) {
        self.write_standing_before_first_record();
        self.begin_record(op::TICK, now);
    }

    /// Writes a reading of both clocks.
    pub(crate) fn write_anchor(&mut self, anchor: Anchor) {
        self.write_standing_before_first_record();
        self.begin_record(op::ANCHOR, anchor.mono);
        let mut writer = RareWriter::new(&mut self.texts, &mut self.columns, &mut self.rare_fields);
        writer.put_number(anchor.wall_ns);
        writer.finish_record();
    }

    /// Writes an event. Returns `false` if it is too large; then only its loss is written.
    pub(crate) fn write_event_or_loss(&mut self, event: &Event<'_>) -> bool {
        self.write_standing_before_first_record();
        if let Some(missed) = missed_if_too_large(&event.what, self.writes_token_ids) {
            self.write_rare_event(event.at, &What::Missed(missed));
            return false;
        }
        match &event.what {
            What::Sent(frame) => self.write_sent_frame(event.at, frame),
            What::Received(received) => self.write_receive(event.at, received),
            What::Processed(id) => {
                // The record is complete with the id, so the frame's lane is not needed.
                self.begin_frame_record_and_get_lane(op::PROCESSED, FrameStage::Processed, event.at, *id);
            }
            What::Delivered(delivery) => self.write_delivery_record(event.at, delivery),
            what => self.write_rare_event(event.at, what),
        }
        true
    }

    /// Returns the block, and starts the next one. The next block is written to `reused`, whose content is discarded.
    pub(crate) fn close_block(&mut self, mut reused: BlockColumns<Vec<u8>>) -> EncodedBlock {
        reused.clear();
        let columns = std::mem::replace(&mut self.columns, reused);
        // Each block is readable on its own, so the next one starts without texts and predictions.
        self.state.clear();
        self.texts.clear();
        self.links.clear();
        self.id_count = 0;
        self.last_record_ns = 0;
        EncodedBlock { columns, content: std::mem::take(&mut self.content) }
    }

    /// Starts a record: writes its kind with its flags, and its time, and counts it. The first record starts the block.
    fn begin_record(&mut self, kind_and_flags: u8, at: MonoNs) {
        let content = &mut self.content;
        if content.records == 0 {
            content.from = at;
            content.to = at;
        }
        content.records += 1;
        // Events may be late, so the first record need not be the earliest.
        content.from = content.from.min(at);
        content.to = content.to.max(at);
        self.columns.op.push(kind_and_flags);
        // A difference takes fewer bytes than the time itself.
        self.columns.time.put_signed(at.0.wrapping_sub(self.last_record_ns) as i64);
        self.last_record_ns = at.0;
    }

    /// Starts a record about a frame. Writes the frame's id unless it is as predicted. Returns the index of
    /// the frame's lane, which is the connection that it crosses.
    fn begin_frame_record_and_get_lane(
        &mut self,
        kind_and_flags: u8,
        stage: FrameStage,
        at: MonoNs,
        id: FrameId,
    ) -> u32 {
        if let Some(lane_index) = self.state.lanes.advance_lane_if_predicted(stage, id) {
            self.begin_record(kind_and_flags | op::IS_PREDICTED, at);
            lane_index
        } else {
            self.begin_record(kind_and_flags, at);
            self.state.lanes.write_mispredicted_frame_id_and_get_lane(stage, id, &mut self.columns)
        }
    }

    /// Writes a frame that was sent at `sent_at`, and when a relay forwarded it, if one did.
    #[inline]
    fn write_sent_frame(&mut self, sent_at: MonoNs, frame: &Frame<'_>) {
        let forward_flag = if frame.forwarded.is_some() { op::HAS_FORWARD_TIME } else { 0 };
        let lane_index =
            self.begin_frame_record_and_get_lane(op::SENT | forward_flag, FrameStage::Sent, sent_at, frame.id);
        if let Some(forwarded) = frame.forwarded {
            let delay_ns = forwarded.0.wrapping_sub(sent_at.0) as i64;
            self.columns.forwarded.put_signed(delay_ns);
        }
        self.write_frame(lane_index, frame);
    }

    /// Writes a delivery of tokens to a client. One that is as predicted has only its kind and its time.
    #[inline]
    fn write_delivery_record(&mut self, at: MonoNs, delivery: &Delivery<'_>) {
        let deliveries = &mut self.state.deliveries;
        let is_predicted =
            deliveries.write_delivery_unless_predicted(delivery, &mut self.texts, &mut self.links, &mut self.columns);
        let predicted_flag = if is_predicted { op::IS_PREDICTED } else { 0 };
        self.begin_record(op::DELIVERED | predicted_flag, at);
    }

    /// Writes a receive: the frame's id, the wakeup and the thread that received it, and the frame itself if the receive has it.
    fn write_receive(&mut self, at: MonoNs, received: &Received<'_>) {
        let mut kind_and_flags = op::RECEIVED;
        if let Some(frame) = &received.frame {
            kind_and_flags |= op::HAS_FRAME;
            if frame.id != received.id {
                kind_and_flags |= op::HAS_OTHER_FRAME_ID;
            }
        }
        let lane_index = self.begin_frame_record_and_get_lane(kind_and_flags, FrameStage::Received, at, received.id);
        let lane = self.state.lanes.lane_mut(lane_index);
        // Wakeups are numbered in order, so the distance from the last one usually takes one byte.
        let distance = received.wakeup.map(|wakeup| wakeup.wrapping_sub(lane.last_wakeup) as i64);
        self.columns.wakeup.put_optional(distance.map(zigzag));
        lane.last_wakeup = received.wakeup.unwrap_or(lane.last_wakeup);
        write_receiver(&mut self.columns.receiver, received.by, &mut lane.last_receiver);
        if let Some(frame) = &received.frame {
            // Another id than that of the receive is stored like that of a send.
            let frame_lane = if frame.id == received.id {
                lane_index
            } else {
                self.state.lanes.write_mispredicted_frame_id_and_get_lane(FrameStage::Sent, frame.id, &mut self.columns)
            };
            self.write_frame(frame_lane, frame);
        }
    }

    /// Writes a frame. Fields that the predictors expect take no bytes.
    fn write_frame(&mut self, lane_index: u32, frame: &Frame<'_>) {
        let columns = &mut self.columns;
        let lane = self.state.lanes.lane_mut(lane_index);
        let count = frame.chunks.len() as u32;
        // The upper four bits are the kind of the frame, the lower ones the meaning of its ids.
        columns.form.push((frame.kind.to_code() << 4) | frame.ids.to_code());
        columns.bytes.put_signed(frame.bytes.wrapping_sub(lane.frame_bytes) as i64);
        columns.count.put_signed(i64::from(count) - i64::from(lane.chunk_count));
        lane.frame_bytes = frame.bytes;
        lane.chunk_count = count;
        let mut position = lane.position;
        let mut newest_request = lane.newest_request;
        // Lengths of the current runs of chunks whose request, and whose fields, are as predicted.
        let mut predicted_requests = 0_u64;
        let mut predicted_chunks = 0_u64;
        for chunk in frame.chunks {
            let predicted = self.state.order.predict_next_link(position);
            let link_index = match self.state.order.get(predicted) {
                Some(link) if self.texts.is_text(link.text, chunk.rid) => {
                    predicted_requests += 1;
                    predicted
                }
                _ => {
                    self.columns.requests.put_number(predicted_requests);
                    predicted_requests = 0;
                    self.write_request_and_get_link(lane_index, chunk.rid, position.last_link, &newest_request)
                }
            };
            self.state.order.advance_position(&mut position, predicted, link_index);
            let link = self.state.order.link_mut(link_index);
            let predictor = &mut link.state;
            // Index of the worker among the block's texts, plus one; 0 without a worker.
            let worker = match chunk.worker {
                None => 0,
                Some(worker) if predictor.worker > 0 && self.texts.is_text(predictor.worker - 1, worker) => {
                    predictor.worker
                }
                Some(worker) => self.texts.add_text(worker, &mut self.columns).index + 1,
            };
            let ids = if self.writes_token_ids { chunk.ids } else { &[] };
            let has_ids = !ids.is_empty();
            let flags = predictor.mispredicted_field_flags(chunk, worker, has_ids);
            if flags == 0 {
                predicted_chunks += 1;
            } else {
                self.columns.chunk_flags.put_number(predicted_chunks);
                self.columns.chunk_flags.push(flags);
                predicted_chunks = 0;
                // Copies, because the same function also reads into them.
                let written =
                    predictor.write_or_read_fields(flags, &mut self.columns, &mut { *chunk }, &mut { worker });
                written.expect("a column in memory takes every field");
            }
            if has_ids {
                let listed = i64::from(chunk.listed.unwrap_or(0));
                self.columns.id_count.put_signed(ids.len() as i64 - listed);
                for &id in ids {
                    self.columns.ids.put_signed(id);
                }
                self.id_count += ids.len();
            }
            let is_new = !predictor.has_begun;
            predictor.record_chunk(chunk, worker, has_ids);
            if is_new {
                // Requests of one lane often begin alike, such as with the same prompt length.
                newest_request = *predictor;
            }
            link.is_finished = chunk.finish.is_some();
        }
        if predicted_requests > 0 {
            self.columns.requests.put_number(predicted_requests);
        }
        if predicted_chunks > 0 {
            self.columns.chunk_flags.put_number(predicted_chunks);
        }
        let lane = self.state.lanes.lane_mut(lane_index);
        lane.position = position;
        lane.newest_request = newest_request;
        self.content.chunks += count;
    }

    /// Writes the request of a chunk that does not belong to the predicted request. Returns the index of its link, which is its entry in
    /// the predicted order of this lane (connection). `last_link`: link of the chunk before it, or [`NO_LINK`]. The predictor of a new
    /// request starts from that of the `newest_request`.
    fn write_request_and_get_link(
        &mut self,
        lane_index: u32,
        rid: &str,
        last_link: u32,
        newest_request: &ChunkPredictor,
    ) -> u32 {
        let text = self.texts.add_text(rid, &mut self.columns);
        // A new text has no link yet, which saves the lookup.
        let known_link = if text.is_new { None } else { self.links.get(&(lane_index, text.index)).copied() };
        if let Some(link_index) = known_link {
            self.write_known_request(link_index, last_link);
            return link_index;
        }
        if text.is_new {
            self.columns.requests.put_number(NEW_REQUEST);
        } else {
            // The rid is known from another lane.
            self.columns.requests.put_number(NEW_IN_LANE);
            self.columns.requests.put_number(u64::from(text.index));
        }
        let predictor = ChunkPredictor::for_new_request(newest_request);
        let link_index = self.state.order.add_request(text.index, predictor);
        self.links.insert((lane_index, text.index), link_index);
        link_index
    }

    /// Writes a request that this lane has had before, as the distance of its link from the last one.
    #[inline]
    fn write_known_request(&mut self, link_index: u32, last_link: u32) {
        // Before the first request, the distance counts from index 0.
        let last_index = if last_link == NO_LINK { 0 } else { last_link };
        // Requests follow each other in nearly the same order, so the distance is short.
        let distance = i64::from(link_index) - i64::from(last_index);
        self.columns.requests.put_number(KNOWN_REQUEST + zigzag(distance));
    }

    /// Writes an event that has no columns of its own, field by field. Keeps the latest engine and hops, which later blocks repeat.
    fn write_rare_event(&mut self, at: MonoNs, what: &What<'_>) {
        let mut writer = RareWriter::new(&mut self.texts, &mut self.columns, &mut self.rare_fields);
        // `None` would mean an event with columns of its own, which `write_event_or_loss` does not pass to this function.
        let Some(kind_and_flags) = writer.write_event_fields(what) else { return };
        writer.finish_record();
        self.begin_record(kind_and_flags, at);
        self.standing.keep_if_standing(what);
    }

    /// Writes the standing data (the latest engine and hops) if the block has no record yet, so that each block begins with it.
    fn write_standing_before_first_record(&mut self) {
        if self.content.records > 0 {
            return;
        }
        for what in self.standing.events() {
            let mut writer = RareWriter::new(&mut self.texts, &mut self.columns, &mut self.rare_fields);
            let kind = if matches!(what, What::Engine(_)) { op::ENGINE } else { op::HOP };
            // Other records have their kind in the column `op`. Standing data has no such column, so each record begins with its kind.
            writer.put_number(u64::from(kind));
            // The returned kind is not needed, because it is already written.
            writer.write_event_fields(&what);
            writer.finish_standing();
        }
    }
}

/// The last announcement of a hop.
#[derive(Debug)]
struct PackedHop {
    id: HopId,
    packed: Vec<u8>,
}

/// Standing data: last announcement of the engine and of each hop, as msgpack. Every block begins with it, so that a reader can start at
/// any block.
#[derive(Debug, Default)]
struct StandingData {
    engine: Option<Vec<u8>>,
    hops: Vec<PackedHop>,
}

impl StandingData {
    /// Keeps what a reader that starts at a later block needs: the latest engine and hops. Does nothing for other events.
    fn keep_if_standing(&mut self, what: &What<'_>) {
        // Kept in encoded form, because an event only borrows its texts.
        match what {
            What::Engine(engine) => self.engine = Some(to_msgpack(engine)),
            What::Hop(hop) => {
                // Beyond the limit, a new hop is not repeated in later blocks.
                if let Some(known) = self.hops.iter_mut().find(|known| known.id == hop.id) {
                    known.packed = to_msgpack(hop);
                } else if self.hops.len() < MAX_HOPS {
                    self.hops.push(PackedHop { id: hop.id, packed: to_msgpack(hop) });
                }
            }
            _ => {}
        }
    }

    /// All standing data. The engine is first, because the meaning of frames depends on it.
    fn events(&self) -> impl Iterator<Item = What<'_>> {
        let engine = self.engine.iter().map(|packed| What::Engine(from_msgpack(packed)));
        engine.chain(self.hops.iter().map(|hop| What::Hop(from_msgpack(&hop.packed))))
    }
}

/// Packs an announcement, so that it can be kept without its texts.
fn to_msgpack(event: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(event).expect("memory takes every event")
}

/// Unpacks an announcement that [`to_msgpack`] has packed.
fn from_msgpack<'a, T: Deserialize<'a>>(packed: &'a [u8]) -> T {
    rmp_serde::from_slice(packed).expect("an event of this process")
}

/// Writes the thread that received a frame, if it is known. It then becomes the `last_receiver` of the lane, whose frames mostly have the
/// same one.
#[inline]
fn write_receiver(column: &mut Vec<u8>, receiver: Option<ThreadId>, last_receiver: &mut Option<ThreadId>) {
    match receiver {
        None => column.push(NO_RECEIVER),
        Some(thread) if *last_receiver == Some(thread) => column.push(LAST_RECEIVER),
        Some(thread) => {
            column.push(OTHER_RECEIVER);
            column.put_number(u64::from(thread.pid));
            column.put_number(u64::from(thread.tid));
            *last_receiver = Some(thread);
        }
    }
}

/// The loss to record instead of an event that could exceed the size limit; `None` for an event that can be written.
fn missed_if_too_large(what: &What<'_>, writes_token_ids: bool) -> Option<Missed> {
    if max_encoded_bytes(what, writes_token_ids) <= MAX_EVENT_BYTES {
        return None;
    }
    let missed_events = 1;
    Some(Missed::new(hop_of_large_event(what), missed_events, MissedCause::TooLarge))
}

/// Maximum encoded size of the parts of an event whose length another process chose: its texts and chunks. 0 for an event without any.
#[inline]
fn max_encoded_bytes(what: &What<'_>, writes_token_ids: bool) -> usize {
    match what {
        What::Sent(frame) | What::Received(Received { frame: Some(frame), .. }) => {
            max_frame_bytes(frame, writes_token_ids)
        }
        What::Delivered(delivery) => text_bytes(&[delivery.rid]),
        What::Arrived(arrival) => text_bytes(&[arrival.rid]),
        What::Traced(traced) => text_bytes(&[traced.rid]),
        What::Answered(answer) => text_bytes(&[answer.rid]),
        What::FrontendWait(wait) => text_bytes(&[wait.rid]),
        What::RequestTimes(times) => text_bytes(&[times.rid]),
        What::Dispatched(dispatch) => text_bytes(&[dispatch.request.map_or("", |request| request.rid)]),
        What::Engine(engine) => text_bytes(&[engine.version.unwrap_or("")]),
        What::Hop(hop) => text_bytes(&[hop.ends.from, hop.ends.to, hop.endpoint]),
        What::Undecoded(undecoded) => text_bytes(&[undecoded.reason]),
        What::Cpu(sample) => text_bytes(&[sample.role, sample.name]),
        What::Queue(sample) => text_bytes(&[sample.hop]),
        What::Stack(sample) => text_bytes(&[sample.role, sample.function, sample.file]),
        What::Stage(stage) => text_bytes(&[stage.rid, stage.name, stage.by]),
        What::LoggedState(logged) => text_bytes(&[logged.by]),
        What::Merged(merged) => text_bytes(&[merged.rid, merged.by]),
        What::SendWait(_)
        | What::Processed(_)
        | What::Missed(_)
        | What::Received(_)
        | What::Rejected(_)
        | What::PairMessage(_) => 0,
    }
}

/// Hop (channel between two processes) of an event that may be too large. `None` if the event is of no hop.
fn hop_of_large_event(what: &What<'_>) -> Option<HopId> {
    match what {
        What::Sent(frame) | What::Received(Received { frame: Some(frame), .. }) => Some(frame.id.hop),
        What::Dispatched(dispatch) => Some(dispatch.id.hop),
        What::Hop(hop) => Some(hop.id),
        What::Undecoded(undecoded) => Some(undecoded.id.hop),
        _ => None,
    }
}

/// Total length of the texts of an event.
fn text_bytes(texts: &[&str]) -> usize {
    texts.iter().map(|text| text.len()).sum()
}

/// Maximum encoded size of a frame.
fn max_frame_bytes(frame: &Frame<'_>, writes_token_ids: bool) -> usize {
    let id_bytes = if writes_token_ids { MAX_ID_BYTES } else { 0 };
    let mut bytes = 0;
    for chunk in frame.chunks {
        let text_bytes = chunk.rid.len() + chunk.worker.map_or(0, str::len);
        bytes += MAX_CHUNK_BYTES + text_bytes + chunk.ids.len() * id_bytes;
    }
    bytes
}
