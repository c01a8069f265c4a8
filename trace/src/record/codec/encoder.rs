//! Encodes records into the columns of a block. In steady state nothing is allocated: tables and columns keep their capacity.

use super::block::{Content, Encoder};
use super::bytes::{Put, zigzag};
use super::codes::op;
use super::columns::Columns;
use super::frame::CHUNKS;
use super::lane::Step;
use super::rare::Writing;
use crate::clock::{Anchor, MonoNs};
use crate::event::{Event, Frame, Missed, MissedCause, Received, What};
use crate::id::FrameId;
use crate::record::header::Payload;

/// Maximum encoded size of an event. A larger event is dropped, and its loss is recorded.
const EVENT_BYTES: usize = 16 << 20;
/// Maximum size of a chunk without its texts and ids, in bytes.
const CHUNK_BYTES: usize = 64;
// A frame that can be written has no more chunks than a reader accepts.
const _: () = assert!(EVENT_BYTES / CHUNK_BYTES <= CHUNKS);
/// Number of chunks and ids that fills a block regardless of its size, which bounds a reader's memory.
const BLOCK_CHUNKS: u32 = 4 << 20;
const BLOCK_IDS: usize = 1 << 20;

impl Encoder {
    pub(in crate::record) fn new(payload: Payload) -> Self {
        Self { tokens: payload == Payload::Tokens, ..Self::default() }
    }

    /// Whether the block has no records.
    pub(in crate::record) fn is_empty(&self) -> bool {
        self.content.records == 0
    }

    /// Time of the block's first record.
    pub(in crate::record) fn began(&self) -> MonoNs {
        self.content.from
    }

    /// Whether the block must be closed: it has reached `bytes`, or the limit of a reader's memory.
    pub(in crate::record) fn is_full(&self, bytes: usize) -> bool {
        self.columns.len() >= bytes || self.content.chunks >= BLOCK_CHUNKS || self.ids >= BLOCK_IDS
    }

    /// Stores standing data without writing it.
    pub(in crate::record) fn note(&mut self, what: &What<'_>) {
        self.standing.update(what);
    }

    pub(in crate::record) fn tick(&mut self, now: MonoNs) {
        self.write_standing();
        self.begin(op::TICK, now.0);
    }

    pub(in crate::record) fn anchor(&mut self, anchor: Anchor) {
        self.write_standing();
        self.begin(op::ANCHOR, anchor.mono.0);
        let mut writing = Writing::new(&mut self.texts, &mut self.columns, &mut self.fields);
        writing.number(anchor.wall_ns);
        writing.end(false);
    }

    /// Writes an event. Returns `false` if it is too large; then only its loss is written.
    pub(in crate::record) fn event(&mut self, event: &Event<'_>) -> bool {
        self.write_standing();
        if let Some(lost) = too_large(&event.what, self.tokens) {
            self.rare(event.at.0, &What::Missed(lost));
            return false;
        }
        match &event.what {
            What::Sent(frame) => {
                let relayed = if frame.forwarded.is_some() { op::RELAYED } else { 0 };
                let lane = self.step(op::SENT | relayed, Step::Sent, event.at.0, frame.id);
                if let Some(forwarded) = frame.forwarded {
                    let ns = forwarded.0.wrapping_sub(event.at.0) as i64;
                    self.columns.forwarded.signed(ns);
                }
                self.frame(lane, frame);
            }
            What::Received(received) => self.received(event.at.0, received),
            What::Processed(id) => {
                self.step(op::PROCESSED, Step::Processed, event.at.0, *id);
            }
            What::Delivered(delivery) => {
                let deliveries = &mut self.state.given;
                let expected = deliveries.write(delivery, &mut self.texts, &mut self.links, &mut self.columns);
                self.begin(op::DELIVERED | if expected { op::EXPECTED } else { 0 }, event.at.0);
            }
            what => self.rare(event.at.0, what),
        }
        true
    }

    /// Returns the block in exchange for empty columns, and starts the next one.
    pub(in crate::record) fn close(&mut self, mut empty: Columns<Vec<u8>>) -> (Columns<Vec<u8>>, Content) {
        empty.clear();
        let full = std::mem::replace(&mut self.columns, empty);
        self.state.clear();
        self.texts.clear();
        self.links.clear();
        (self.ids, self.last) = (0, 0);
        (full, std::mem::take(&mut self.content))
    }

    /// Number of records in the block so far.
    pub(in crate::record) fn records(&self) -> u32 {
        self.content.records
    }

    /// Starts a record. The first record starts the block.
    fn begin(&mut self, op: u8, at: u64) {
        let (content, now) = (&mut self.content, MonoNs(at));
        if content.records == 0 {
            (content.from, content.to) = (now, now);
        }
        content.records += 1;
        content.from = content.from.min(now);
        content.to = content.to.max(now);
        self.columns.op.push(op);
        self.columns.time.signed(at.wrapping_sub(self.last) as i64);
        self.last = at;
    }

    fn step(&mut self, op: u8, step: Step, at: u64, id: FrameId) -> u32 {
        if let Some(lane) = self.state.lanes.expected(step, id) {
            self.begin(op | op::EXPECTED, at);
            lane
        } else {
            self.begin(op, at);
            self.state.lanes.write(step, id, &mut self.columns)
        }
    }

    fn received(&mut self, at: u64, received: &Received<'_>) {
        let mut op = op::RECEIVED;
        if let Some(frame) = &received.frame {
            op |= op::SHOWN;
            if frame.id != received.id {
                op |= op::RENAMED;
            }
        }
        let lane = self.step(op, Step::Received, at, received.id);
        let stream = self.state.lanes.get(lane);
        let distance = received.wakeup.map(|n| n.wrapping_sub(stream.wakeup) as i64);
        self.columns.wakeup.maybe(distance.map(zigzag));
        stream.wakeup = received.wakeup.unwrap_or(stream.wakeup);
        match received.by {
            None => self.columns.by.push(0),
            by if by == stream.by => self.columns.by.push(1),
            Some(by) => {
                self.columns.by.push(2);
                self.columns.by.number(u64::from(by.pid));
                self.columns.by.number(u64::from(by.tid));
                stream.by = Some(by);
            }
        }
        if let Some(frame) = &received.frame {
            let lane = if frame.id == received.id {
                lane
            } else {
                self.state.lanes.write(Step::Sent, frame.id, &mut self.columns)
            };
            self.frame(lane, frame);
        }
    }

    fn rare(&mut self, at: u64, what: &What<'_>) {
        let mut writing = Writing::new(&mut self.texts, &mut self.columns, &mut self.fields);
        let Some(op) = writing.what(what) else {
            return;
        };
        writing.end(false);
        self.begin(op, at);
        self.standing.update(what);
    }

    /// Writes the standing data, once, before the block's first record.
    fn write_standing(&mut self) {
        if self.content.records > 0 {
            return;
        }
        for what in self.standing.events() {
            let mut writing = Writing::new(&mut self.texts, &mut self.columns, &mut self.fields);
            let engine = matches!(what, What::Engine(_));
            writing.number(u64::from(if engine { op::ENGINE } else { op::HOP }));
            writing.what(&what);
            writing.end(true);
        }
    }
}

/// The loss to record instead of an event that could exceed the size limit of an event.
fn too_large(what: &What<'_>, tokens: bool) -> Option<Missed> {
    let text = |texts: &[&str]| texts.iter().map(|t| t.len()).sum::<usize>();
    let (hop, bytes) = match what {
        What::Sent(frame) | What::Received(Received { frame: Some(frame), .. }) => {
            (Some(frame.id.hop), frame_bytes(frame, tokens))
        }
        What::Delivered(delivery) => (None, text(&[delivery.rid])),
        What::Answered(answer) => (None, text(&[answer.rid])),
        What::FrontendWait(wait) => (None, text(&[wait.rid])),
        What::Engine(engine) => (None, text(&[engine.version.unwrap_or("")])),
        What::Hop(hop) => (Some(hop.id), text(&[hop.ends.from, hop.ends.to, hop.endpoint])),
        What::Undecoded(undecoded) => (Some(undecoded.id.hop), text(&[undecoded.reason])),
        What::Cpu(sample) => (None, text(&[sample.role, sample.name])),
        What::Queue(sample) => (None, text(&[sample.hop])),
        What::Stack(sample) => (None, text(&[sample.role, sample.function, sample.file])),
        What::Stage(stage) => (None, text(&[stage.rid, stage.name, stage.by])),
        What::LoggedState(logged) => (None, text(&[logged.by])),
        What::Merged(merged) => (None, text(&[merged.rid, merged.by])),
        What::SendWait(_) | What::Processed(_) | What::Missed(_) | What::Received(_) => {
            return None;
        }
    };
    (bytes > EVENT_BYTES).then_some(Missed::new(hop, 1, MissedCause::TooLarge))
}

fn frame_bytes(frame: &Frame<'_>, tokens: bool) -> usize {
    let of = |chunk: &crate::event::Chunk<'_>| {
        let ids = if tokens { chunk.ids.len() * 10 } else { 0 };
        CHUNK_BYTES + chunk.rid.len() + chunk.worker.map_or(0, str::len) + ids
    };
    frame.chunks.iter().map(of).sum()
}
