//! Encodes records into the columns of a block. In steady state nothing is allocated: tables and columns keep their capacity.

use serde::{Deserialize, Serialize};
use trace::clock::{Anchor, MonoNs};
use trace::event::{Event, Frame, Missed, MissedCause, Received, What};
use trace::id::{FrameId, HopId};

use super::bytes::{Code, Put, zigzag};
use super::chain::{Links, NONE};
use super::chunk::{CHUNKS, KNOWN, NEW, NEW_HERE, Predictor};
use super::codes::op;
use super::columns::Columns;
use super::lane::Step;
use super::rare::Writing;
use super::text::Texts;
use super::{Content, State};
use crate::header::Payload;

/// Maximum encoded size of an event. A larger event is dropped, and its loss is recorded.
const EVENT_BYTES: usize = 16 << 20;
/// Maximum size of a chunk without its texts and ids, in bytes.
const CHUNK_BYTES: usize = 64;
// A frame that can be written has no more chunks than a reader accepts.
const _: () = assert!(EVENT_BYTES / CHUNK_BYTES <= CHUNKS);
/// Number of chunks and ids that fills a block regardless of its size, which bounds a reader's memory.
const BLOCK_CHUNKS: u32 = 4 << 20;
const BLOCK_IDS: usize = 1 << 20;

/// Maximum number of hops kept; equal to the ledger's default limit.
const HOPS: usize = 1_024;

/// The block being written: its columns, with the state of their predictions.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    state: State,
    columns: Columns<Vec<u8>>,
    texts: Texts,
    links: Links,
    /// Whether token ids are written.
    tokens: bool,
    /// Content of the block so far.
    pub(crate) content: Content,
    /// Number of token ids in the block.
    ids: usize,
    standing: Standing,
    fields: Vec<u8>,
    /// Time of the last record.
    last: u64,
}

impl Encoder {
    pub(crate) fn new(payload: Payload) -> Self {
        Self { tokens: payload == Payload::Tokens, ..Self::default() }
    }

    /// Whether the block must be closed: it has reached `bytes`, or the limit of a reader's memory.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.columns.len() >= bytes || self.content.chunks >= BLOCK_CHUNKS || self.ids >= BLOCK_IDS
    }

    pub(crate) fn tick(&mut self, now: MonoNs) {
        self.write_standing();
        self.begin(op::TICK, now.0);
    }

    pub(crate) fn anchor(&mut self, anchor: Anchor) {
        self.write_standing();
        self.begin(op::ANCHOR, anchor.mono.0);
        let mut writing = Writing::new(&mut self.texts, &mut self.columns, &mut self.fields);
        writing.number(anchor.wall_ns);
        writing.end(false);
    }

    /// Writes an event. Returns `false` if it is too large; then only its loss is written.
    pub(crate) fn event(&mut self, event: &Event<'_>) -> bool {
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
    pub(crate) fn close(&mut self, mut empty: Columns<Vec<u8>>) -> (Columns<Vec<u8>>, Content) {
        empty.clear();
        let full = std::mem::replace(&mut self.columns, empty);
        self.state.clear();
        self.texts.clear();
        self.links.clear();
        (self.ids, self.last) = (0, 0);
        (full, std::mem::take(&mut self.content))
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

    fn frame(&mut self, lane: u32, frame: &Frame<'_>) {
        let columns = &mut self.columns;
        let stream = self.state.lanes.get(lane);
        let count = frame.chunks.len() as u32;
        columns.form.push(frame.kind.code() << 4 | frame.ids.code());
        columns.bytes.signed(frame.bytes.wrapping_sub(stream.bytes) as i64);
        columns.count.signed(i64::from(count) - i64::from(stream.count));
        stream.bytes = frame.bytes;
        stream.count = count;
        let (mut place, mut first) = (stream.place, stream.first);
        let (mut followed, mut plain) = (0_u64, 0_u64);
        for chunk in frame.chunks {
            let expected = self.state.chain.expected(place);
            let at = match self.state.chain.get(expected) {
                Some(link) if self.texts.is(link.text, chunk.rid) => {
                    followed += 1;
                    expected
                }
                _ => {
                    self.columns.whose.number(followed);
                    followed = 0;
                    self.write_request(lane, chunk.rid, place.last, &first)
                }
            };
            self.state.chain.advance(&mut place, expected, at);
            let link = self.state.chain.link(at);
            let predictor = &mut link.state;
            let worker = match chunk.worker {
                None => 0,
                Some(worker) if predictor.worker > 0 && self.texts.is(predictor.worker - 1, worker) => predictor.worker,
                Some(worker) => self.texts.place(worker, &mut self.columns).0 + 1,
            };
            let ids = if self.tokens { chunk.ids } else { &[] };
            let flags = predictor.differences(chunk, worker, !ids.is_empty());
            if flags == 0 {
                plain += 1;
            } else {
                self.columns.shape.number(plain);
                self.columns.shape.push(flags);
                plain = 0;
                let fields = predictor.fields(flags, &mut self.columns, &mut { *chunk }, &mut { worker });
                fields.expect("a column in memory takes every field");
            }
            if !ids.is_empty() {
                let listed = i64::from(chunk.listed.unwrap_or(0));
                self.columns.id_count.signed(ids.len() as i64 - listed);
                for &id in ids {
                    self.columns.ids.signed(id);
                }
                self.ids += ids.len();
            }
            let new = !predictor.begun;
            predictor.update(chunk, worker, !ids.is_empty());
            if new {
                first = *predictor;
            }
            link.finished = chunk.finish.is_some();
        }
        if followed > 0 {
            self.columns.whose.number(followed);
        }
        if plain > 0 {
            self.columns.shape.number(plain);
        }
        let stream = self.state.lanes.get(lane);
        (stream.place, stream.first) = (place, first);
        self.content.chunks += count;
    }

    /// Writes the request of a chunk that does not belong to the predicted request.
    fn write_request(&mut self, lane: u32, rid: &str, last: u32, first: &Predictor) -> u32 {
        let (text, new) = self.texts.place(rid, &mut self.columns);
        let known = if new { None } else { self.links.get(&(lane, text)).copied() };
        if let Some(at) = known {
            let distance = i64::from(at) - i64::from(if last == NONE { 0 } else { last });
            self.columns.whose.number(KNOWN + zigzag(distance));
            return at;
        }
        if new {
            self.columns.whose.number(NEW);
        } else {
            self.columns.whose.number(NEW_HERE);
            self.columns.whose.number(u64::from(text));
        }
        let at = self.state.chain.push(text, Predictor::after(first));
        self.links.insert((lane, text), at);
        at
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

/// Standing data: last announcement of the engine and of each hop, as msgpack. Every block begins with it, so that a reader can start at any
/// block.
#[derive(Debug, Default)]
struct Standing {
    engine: Option<Vec<u8>>,
    hops: Vec<(HopId, Vec<u8>)>,
}

impl Standing {
    fn update(&mut self, what: &What<'_>) {
        match what {
            What::Engine(engine) => self.engine = Some(own(engine)),
            What::Hop(hop) => {
                if let Some(known) = self.hops.iter_mut().find(|known| known.0 == hop.id) {
                    known.1 = own(hop);
                } else if self.hops.len() < HOPS {
                    self.hops.push((hop.id, own(hop)));
                }
            }
            _ => {}
        }
    }

    /// All standing data. The engine is first, because the meaning of frames depends on it.
    fn events(&self) -> impl Iterator<Item = What<'_>> {
        let engine = self.engine.iter().map(|engine| What::Engine(borrowed(engine)));
        engine.chain(self.hops.iter().map(|(_, hop)| What::Hop(borrowed(hop))))
    }
}

fn own(event: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(event).expect("memory takes every event")
}

fn borrowed<'a, T: Deserialize<'a>>(own: &'a [u8]) -> T {
    rmp_serde::from_slice(own).expect("an event of this process")
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
    let of = |chunk: &trace::event::Chunk<'_>| {
        let ids = if tokens { chunk.ids.len() * 10 } else { 0 };
        CHUNK_BYTES + chunk.rid.len() + chunk.worker.map_or(0, str::len) + ids
    };
    frame.chunks.iter().map(of).sum()
}
