//! Frames and their chunks. A chunk as predicted only extends two run lengths.

use std::mem;

use super::block::{DecodedBlock, Encoder};
use super::bytes::{Cursor, Malformed, Put, unzigzag, zigzag};
use super::chain::NONE;
use super::chunk::{Predictor, flags};
use super::codes::Code;
use super::columns::Columns;
use super::text::Reading;
use crate::event::{Chunk, Finish, Frame, IdColumn, Kind};
use crate::id::FrameId;

/// Maximum number of chunks in a frame; a larger frame is not recorded.
pub(super) const CHUNKS: usize = 1 << 18;

/// Codes in `whose` after a run: a new request, a request new in this lane, or the distance of a known one.
const NEW: u64 = 0;
const NEW_HERE: u64 = 1;
const KNOWN: u64 = 2;

impl Encoder {
    pub(super) fn frame(&mut self, lane: u32, frame: &Frame<'_>) {
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
                    self.write_request(lane, chunk.rid, place.last(), &first)
                }
            };
            self.state.chain.advance(&mut place, expected, at);
            let predictor = self.state.chain.state(at);
            let worker = match chunk.worker {
                None => 0,
                Some(worker) if predictor.worker > 0 && self.texts.is(predictor.worker - 1, worker) => predictor.worker,
                Some(worker) => self.texts.place(worker, &mut self.columns).0 + 1,
            };
            let ids = if self.tokens { chunk.ids } else { &[] };
            let flags = mispredicted_fields(predictor, chunk, worker, !ids.is_empty());
            if flags == 0 {
                plain += 1;
            } else {
                self.columns.shape.number(plain);
                self.columns.shape.push(flags);
                plain = 0;
                write(&mut self.columns, predictor, chunk, worker, flags);
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
            self.state.chain.set_finished(at, chunk.finish.is_some());
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
        let known = if new { None } else { self.links.find(lane, text) };
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
        self.links.insert(lane, text, at);
        at
    }
}

fn mispredicted_fields(predictor: &Predictor, chunk: &Chunk<'_>, worker: u32, ids: bool) -> u8 {
    let completion = chunk.completion_tokens;
    let mark = |differs: bool, field: u8| if differs { field } else { 0 };
    mark(completion != predictor.completion(), flags::COMPLETION)
        | mark(chunk.listed != predictor.listed(completion), flags::LISTED)
        | mark(chunk.prompt_tokens != predictor.prompt, flags::PROMPT)
        | mark(chunk.cached_tokens != predictor.cached, flags::CACHED)
        | mark(chunk.retractions != predictor.retractions, flags::RETRACTIONS)
        | mark(chunk.finish.is_some(), flags::FINISH)
        | mark(worker != predictor.worker, flags::WORKER)
        | mark(ids != predictor.ids, flags::IDS)
}

fn write(columns: &mut Columns<Vec<u8>>, predictor: &Predictor, chunk: &Chunk<'_>, worker: u32, flags: u8) {
    if flags & flags::COMPLETION != 0 {
        columns.completion.near(chunk.completion_tokens, predictor.completion());
    }
    if flags & flags::LISTED != 0 {
        columns.listed.near(chunk.listed, predictor.listed(chunk.completion_tokens));
    }
    if flags & flags::PROMPT != 0 {
        columns.prompt.near(chunk.prompt_tokens, predictor.prompt);
    }
    if flags & flags::CACHED != 0 {
        columns.cached.near(chunk.cached_tokens, predictor.cached);
    }
    if flags & flags::RETRACTIONS != 0 {
        columns.retractions.near(chunk.retractions, predictor.retractions);
    }
    if let Some(finish) = chunk.finish {
        columns.finish.push(finish.code());
    }
    if flags & flags::WORKER != 0 {
        columns.worker.number(u64::from(worker));
    }
}

impl<'b> DecodedBlock<'b> {
    /// Reads the next frame, and its chunks into [`Self::chunks`].
    pub(super) fn frame(&mut self, lane: u32, id: FrameId) -> Result<Frame<'b>, Malformed> {
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
        let mut chunks = mem::take(&mut self.chunks);
        chunks.clear();
        for _ in 0..count {
            let chain = &mut self.state.chain;
            let expected = chain.expected(place);
            let at = if run(&mut followed, &mut self.columns.whose)? {
                expected
            } else {
                let (text, known) = read_request(&mut self.columns.whose, &mut self.texts, place.last())?;
                known.unwrap_or_else(|| chain.push(text, Predictor::after(&first)))
            };
            let text = chain.get(at).ok_or(Malformed("reference to an unknown request"))?.text;
            chain.advance(&mut place, expected, at);
            let predictor = chain.state(at);
            let flags = if run(&mut plain, &mut self.columns.shape)? { 0 } else { self.columns.shape.byte()? };
            let mut chunk = read(&mut self.columns, predictor, flags)?;
            chunk.rid = self.texts.get(text)?;
            let mut worker = predictor.worker;
            if flags & flags::WORKER != 0 {
                worker = self.columns.worker.small()?;
            }
            if let Some(id) = worker.checked_sub(1) {
                chunk.worker = Some(self.texts.named(id)?);
            }
            let has_ids = predictor.ids != (flags & flags::IDS != 0);
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
            chain.set_finished(at, chunk.finish.is_some());
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

fn read<'b>(columns: &mut Columns<Cursor<'_>>, predictor: &Predictor, flags: u8) -> Result<Chunk<'b>, Malformed> {
    let is = |field: u8| flags & field != 0;
    let mut completion = predictor.completion();
    if is(flags::COMPLETION) {
        completion = columns.completion.near(completion)?;
    }
    let mut listed = predictor.listed(completion);
    if is(flags::LISTED) {
        listed = columns.listed.near(listed)?;
    }
    let mut chunk = Chunk {
        listed,
        completion_tokens: completion,
        prompt_tokens: predictor.prompt,
        cached_tokens: predictor.cached,
        retractions: predictor.retractions,
        ..Chunk::new("")
    };
    if is(flags::PROMPT) {
        chunk.prompt_tokens = columns.prompt.near(predictor.prompt)?;
    }
    if is(flags::CACHED) {
        chunk.cached_tokens = columns.cached.near(predictor.cached)?;
    }
    if is(flags::RETRACTIONS) {
        chunk.retractions = columns.retractions.near(predictor.retractions)?;
    }
    if is(flags::FINISH) {
        chunk.finish = Some(Finish::of(columns.finish.byte()?)?);
    }
    Ok(chunk)
}
