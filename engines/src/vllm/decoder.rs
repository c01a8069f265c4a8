//! Decoder of vLLM's messages: `EngineCoreOutputs` in msgpack, one array for each request. Further parts hold raw arrays, which are not
//! read.

mod output_tail;

use std::sync::LazyLock;

use adapter::decode::{ChunkSeconds, Decoded, Shape, recycle};
use trace::MonoNs;
use trace::engine::Waiter;
use trace::event::{Chunk, IdColumn, Kind};

use super::NAME;
use super::layout::{Envelope, OutputLayout, TABLE, envelope_with_fields};
use crate::msgpack::type_byte::{
    FIXARRAY_1, FIXARRAY_2, FIXARRAY_3, FIXINT_MAX, FIXMAP_1, FIXMAP_15, FIXSTR_0, FIXSTR_31, MAP_16, STR_8, UINT_8,
    UINT_16, UINT_32,
};
use crate::msgpack::{Head, NextOffset, read_head, read_string, skip_value, utf8};
use crate::undecoded::Undecoded;
use output_tail::{LastTail, OutputTail};

/// Complete message of an engine that dies.
const DEAD: &str = "ENGINE_CORE_DEAD";
const CLASS: &str = "EngineCoreOutputs";
/// Class of one request's part of a message.
const OUTPUT: &str = "EngineCoreOutput";
const UNLISTED: &str = "no release has that many";
/// Maximum number of requests, and of ids, in a message.
const MAX_ITEMS: usize = 1 << 22;
/// Maximum length in bytes of a request id.
pub(super) const MAX_RID_BYTES: usize = 4096;

/// Decodes messages one after another. After the first few messages it no longer allocates.
#[derive(Debug)]
pub struct Decoder {
    longest: usize,
    /// Token ids are collected, and not only counted.
    keeps_ids: bool,
    ids: Vec<i64>,
    chunks: Vec<Chunk<'static>>,
    times: Vec<ChunkSeconds>,
    last_layout: Option<UsedLayout>,
}

/// The layout of a message.
#[derive(Clone, Copy, Debug)]
struct UsedLayout {
    envelope: &'static Envelope,
    output: &'static OutputLayout,
}

impl Decoder {
    /// Creates a decoder for messages up to `longest` bytes that counts token ids and does not collect them.
    pub fn new(longest: usize) -> Self {
        // Built now, so that the first message does not wait for the table of layouts.
        LazyLock::force(&TABLE);
        Self { longest, keeps_ids: false, ids: Vec::new(), chunks: Vec::new(), times: Vec::new(), last_layout: None }
    }

    /// Fills [`Chunk::ids`] from the next message on.
    pub fn keep_ids(&mut self) {
        self.keeps_ids = true;
    }

    /// Decodes all parts of one message. On error no part of the message is used.
    pub fn decode<'a>(&'a mut self, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Undecoded> {
        let message_bytes: usize = parts.iter().map(|part| part.len()).sum();
        if message_bytes > self.longest {
            return Err(Undecoded::Limit { limit: "message", value: self.longest });
        }
        if let Some(other) = classify_other_message(parts) {
            return Ok(self.decoded_without_outputs(&other));
        }
        // Further parts hold raw arrays, which are not read.
        self.decode_batch(parts.first().copied().unwrap_or_default())
    }

    /// The result for a message that is not a batch of outputs: its shape, and no chunks.
    fn decoded_without_outputs(&mut self, other: &OtherMessage) -> Decoded<'_> {
        let shape = Shape { codec: other.codec, ..shape_of(other.class, other.releases, None, other.kind) };
        let chunks = recycle(std::mem::take(&mut self.chunks));
        Decoded::new(shape, chunks, &mut self.chunks)
    }

    /// Decodes a batch of outputs: a msgpack array (the envelope) with a list that has an output for each request.
    #[inline]
    fn decode_batch<'a>(&'a mut self, message: &'a [u8]) -> Result<Decoded<'a>, Undecoded> {
        let Some((Head::Array { len }, first_field)) = read_head(message, 0) else { return Err(not_a_batch(message)) };
        let envelope = envelope_with_fields(len).ok_or(Undecoded::Layout {
            class: CLASS,
            fields: len as usize,
            what: UNLISTED,
        })?;
        let list = read_output_list_head(message, first_field, envelope)?;
        // The buffers keep their memory from message to message.
        self.ids.clear();
        self.times.clear();
        let mut chunks: Vec<Chunk<'a>> = recycle(std::mem::take(&mut self.chunks));
        let ids = self.keeps_ids.then_some(&mut self.ids);
        let mut reader = OutputReader { message, chunks: &mut chunks, times: &mut self.times, ids };
        let ReadBatch { outputs, made_at } = match reader.read_outputs_and_rest(envelope, self.last_layout, &list) {
            Ok(batch) => batch,
            Err(why) => {
                // The next message uses the memory of the chunks again.
                self.chunks = recycle(chunks);
                return Err(why);
            }
        };
        // Only outputs show their layout.
        if let Some(output) = outputs.layout {
            self.last_layout = Some(UsedLayout { envelope, output });
        }
        if self.keeps_ids {
            assign_ids(&mut chunks, &self.ids);
        }
        let mut decoded = Decoded::new(shape_of_batch(envelope, &outputs), chunks, &mut self.chunks);
        decoded.made_at = made_at;
        decoded.engine_seconds = &self.times;
        Ok(decoded)
    }
}

/// Error for a message that is no array, with its first bytes.
fn not_a_batch(message: &[u8]) -> Undecoded {
    const SHOWN_BYTES: usize = 8;
    Undecoded::Codec {
        expected: "neither a msgpack array nor ENGINE_CORE_DEAD",
        first: message[..message.len().min(SHOWN_BYTES)].to_vec(),
    }
}

/// Gives each chunk its token ids. `ids` has those of all chunks, in the order of the chunks.
#[inline]
fn assign_ids<'a>(chunks: &mut [Chunk<'a>], ids: &'a [i64]) {
    let mut ids_left = ids;
    for chunk in chunks {
        (chunk.ids, ids_left) = ids_left.split_at(chunk.listed.unwrap_or(0) as usize);
    }
}

/// Shape of a message of this class in msgpack.
fn shape_of(class: &'static str, releases: &'static str, waiter: Option<Waiter>, kind: Kind) -> Shape {
    let ids = if kind == Kind::TokenIds { IdColumn::Uncounted } else { IdColumn::Absent };
    Shape { engine: NAME, class, codec: "msgpack", schema: releases, kind, ids, waiter }
}

/// Shape of a batch with these outputs. A batch without outputs has no tokens, so it counts as a control message.
#[inline]
fn shape_of_batch(envelope: &Envelope, outputs: &ReadOutputs) -> Shape {
    let Some(layout) = outputs.layout else {
        return shape_of(CLASS, envelope.releases, None, Kind::Control);
    };
    let kind = if outputs.are_pooled { Kind::Embedding } else { Kind::TokenIds };
    shape_of(CLASS, layout.releases, layout.waiter, kind)
}

/// Reads the fields behind the outputs, of which the first is at `at`. `envelope` is the layout of the message. Returns when the outputs
/// were made; `None` if the message does not say it. Fails unless the message ends with its last field, because it then has another layout.
fn read_made_at_after_outputs(message: &[u8], mut at: usize, envelope: &Envelope) -> Result<Option<MonoNs>, Undecoded> {
    let mut made_at = None;
    for field in envelope.outputs_index + 1..envelope.field_count {
        if envelope.timestamp_index == Some(field) {
            made_at = read_timestamp(message, at);
        }
        at = skip_value(message, at)?;
    }
    if at != message.len() {
        return Err(Undecoded::Malformed { at, what: "bytes after the end of the message" });
    }
    Ok(made_at)
}

/// Time at which the engine made the outputs: seconds of the machine's monotonic clock. `None` for a value that cannot be one.
fn read_timestamp(message: &[u8], at: usize) -> Option<MonoNs> {
    match read_head(message, at)?.0 {
        Head::Float(seconds) => MonoNs::from_seconds(seconds),
        _ => None,
    }
}

/// Classifies a message that is not a batch of outputs: a request, or a message of a starting, stopping or failing engine. Its content is
/// not read. `None` for a batch, and for an unknown message.
pub(super) fn classify_other_message(parts: &[&[u8]]) -> Option<OtherMessage> {
    match *parts {
        [dead] if dead == DEAD.as_bytes() => {
            Some(OtherMessage { kind: Kind::Failed, class: DEAD, codec: "text", releases: TABLE.dead_message_releases })
        }
        // One part without bytes: the first message of an engine, in releases that do not send a dictionary.
        [[]] => Some(OtherMessage::control("empty", "none")),
        // A map whose first key is a string. A large map has its size in two bytes behind the first one.
        [
            [FIXMAP_1..=FIXMAP_15, FIXSTR_0..=FIXSTR_31 | STR_8, ..] | [MAP_16, _, _, FIXSTR_0..=FIXSTR_31 | STR_8, ..],
        ] => {
            let end = skip_value(parts[0], 0).ok()?;
            (end == parts[0].len()).then(|| OtherMessage::control("handshake", "msgpack"))
        }
        // Between the coordinator of data-parallel engines and the others: subscriptions, and `(counts, wave, running)` or `(engine,
        // wave)`.
        [[0 | 1] | b"READY"] => Some(OtherMessage::control("coordination", "text")),
        [[FIXARRAY_2 | FIXARRAY_3, ..]] => {
            is_wave_message(parts[0]).then(|| OtherMessage::control("coordination", "msgpack"))
        }
        // A request begins with its kind: ADD, ABORT, START_DP_WAVE, UTILITY, EXECUTOR_FAILED, WAKEUP.
        [[0..=5], ..] if parts.len() > 1 => Some(OtherMessage::control("EngineCoreRequest", "msgpack")),
        _ => None,
    }
}

/// A message that is not a batch.
pub(super) struct OtherMessage {
    kind: Kind,
    class: &'static str,
    codec: &'static str,
    releases: &'static str,
}

impl OtherMessage {
    /// A message of the kind `Control`, which any release may send.
    fn control(class: &'static str, codec: &'static str) -> Self {
        Self { kind: Kind::Control, class, codec, releases: TABLE.all_releases }
    }
}

/// Whether a message is a tuple from the coordinator or to it, about a wave: a period in which all data-parallel engines run.
fn is_wave_message(message: &[u8]) -> bool {
    let Some((len, [first, second, third])) = read_tuple_heads(message) else { return false };
    let has_wave_number = matches!(second, Head::Int(_));
    match len {
        // From the coordinator: counts of requests of each engine or nil, wave, whether engines run.
        3 => has_wave_number && matches!(first, Head::Array { .. } | Head::Nil) && matches!(third, Head::Bool(_)),
        // To the coordinator: an engine's identity or a word, and the wave.
        2 => has_wave_number && matches!(first, Head::Bin { .. } | Head::Str { .. }),
        _ => false,
    }
}

/// Number and heads of the fields, if the whole message is an array of up to three. `None` for any other message.
fn read_tuple_heads(message: &[u8]) -> Option<(u32, [Head; 3])> {
    let (Head::Array { len }, mut at) = read_head(message, 0)? else { return None };
    let mut heads = [Head::Nil; 3];
    // A longer array has no such range, so it gives `None`.
    let heads_of_fields = heads.get_mut(..len as usize)?;
    for head in heads_of_fields {
        (*head, _) = read_head(message, at)?;
        at = skip_value(message, at).ok()?;
    }
    (at == message.len()).then_some((len, heads))
}

/// The list of outputs in a message.
struct OutputList {
    /// Position of the first output.
    first_output: usize,
    count: u32,
}

/// Reads the head of the list of outputs in a message whose first field is at `first_field`. `envelope` is the layout of the message. Fails
/// for a list that is too long.
fn read_output_list_head(message: &[u8], first_field: usize, envelope: &Envelope) -> Result<OutputList, Undecoded> {
    let mut at = first_field;
    // Skip the fields before the list.
    for _ in 0..envelope.outputs_index {
        at = skip_value(message, at)?;
    }
    match read_head(message, at) {
        Some((Head::Array { len }, _)) if len as usize > MAX_ITEMS => {
            Err(Undecoded::Limit { limit: "items", value: MAX_ITEMS })
        }
        Some((Head::Array { len }, first_output)) => Ok(OutputList { first_output, count: len }),
        Some(_) => Err(Undecoded::Malformed { at, what: "`outputs` is not a list" }),
        None => Err(Undecoded::Truncated { at }),
    }
}

/// The outputs of one message.
struct OutputReader<'a, 'x> {
    message: &'a [u8],
    chunks: &'x mut Vec<Chunk<'a>>,
    times: &'x mut Vec<ChunkSeconds>,
    ids: Option<&'x mut Vec<i64>>,
}

/// The content of a batch.
struct ReadBatch {
    outputs: ReadOutputs,
    /// When the engine made the outputs; `None` if the message does not say it.
    made_at: Option<MonoNs>,
}

/// The outputs of a message that were read.
struct ReadOutputs {
    /// Layout of the outputs; `None` without outputs.
    layout: Option<&'static OutputLayout>,
    /// Whether all of them are pooling results.
    are_pooled: bool,
    /// End of the list.
    end: usize,
}

impl<'a> OutputReader<'a, '_> {
    /// Reads the outputs of the list, and the fields of the message behind it.
    #[inline]
    fn read_outputs_and_rest(
        &mut self,
        envelope: &'static Envelope,
        last_used: Option<UsedLayout>,
        list: &OutputList,
    ) -> Result<ReadBatch, Undecoded> {
        let outputs = self.read_outputs(envelope, last_used, list.first_output, list.count)?;
        let made_at = read_made_at_after_outputs(self.message, outputs.end, envelope)?;
        Ok(ReadBatch { outputs, made_at })
    }

    /// Reads the list of `output_count` outputs at `first_output_at`. `envelope` is the layout of the whole message. A message does not
    /// name the layout of its outputs, so layouts with the right number of fields are tried, that of the last message first.
    fn read_outputs(
        &mut self,
        envelope: &'static Envelope,
        last_used: Option<UsedLayout>,
        first_output_at: usize,
        output_count: u32,
    ) -> Result<ReadOutputs, Undecoded> {
        // Without an output there is nothing to try a layout on.
        if output_count == 0 {
            return Ok(ReadOutputs { layout: None, are_pooled: false, end: first_output_at });
        }
        let fields = read_field_count(self.message, first_output_at)?;
        // Replaced by the error of the last layout that was tried.
        let mut refused = Undecoded::Layout { class: OUTPUT, fields: fields as usize, what: UNLISTED };
        for layout in layouts_to_try(envelope, last_used).filter(|layout| layout.field_count == fields) {
            // An attempt with another layout may have left some outputs.
            self.discard_outputs();
            match self.read_outputs_in_layout(layout, first_output_at, output_count) {
                Ok(outputs) => return Ok(outputs),
                Err(why) => refused = why,
            }
        }
        Err(refused)
    }

    /// Discards the outputs that were read so far.
    fn discard_outputs(&mut self) {
        self.chunks.clear();
        self.times.clear();
        if let Some(ids) = &mut self.ids {
            ids.clear();
        }
    }

    /// Reads the `count` outputs from `at` on in this layout. An output is an array: the request id, the list of new token ids, and the
    /// other fields, which are its tail.
    fn read_outputs_in_layout(
        &mut self,
        layout: &'static OutputLayout,
        mut at: usize,
        count: u32,
    ) -> Result<ReadOutputs, Undecoded> {
        let message = self.message;
        let mut last_tail = LastTail::default();
        let mut are_pooled = true;
        let mut ids_in_message = 0;
        // Nearly every output begins with the same bytes, the head of its array.
        let header = &message[at..first_field_of_output(message, at, layout.field_count)?];
        for row in 0..count as usize {
            let has_same_header = message[at..].starts_with(header);
            let rid_at = if has_same_header {
                at + header.len()
            } else {
                first_field_of_output(message, at, layout.field_count)?
            };
            let (rid, ids_at) = read_rid(message, rid_at, row)?;
            let (id_count, ids_end) = self.read_or_count_new_ids(ids_at, row)?;
            ids_in_message += id_count as usize;
            if ids_in_message > MAX_ITEMS {
                return Err(Undecoded::Limit { limit: "items", value: MAX_ITEMS });
            }
            // Most outputs have the same tail as the one before, which is then not read again.
            at = match last_tail.end_if_same(message, ids_end) {
                Some(end) => end,
                None => last_tail.read_next_tail(message, ids_end, row, layout)?,
            };
            are_pooled &= last_tail.values.is_pooled;
            self.push_output(row, rid, id_count, &last_tail.values);
        }
        if are_pooled {
            // A pooling result has no tokens.
            for chunk in &mut *self.chunks {
                chunk.listed = None;
            }
        }
        Ok(ReadOutputs { layout: Some(layout), are_pooled, end: at })
    }

    /// Adds the output number `row` of the message, which has `id_count` new ids, and `tail` behind them.
    #[inline]
    fn push_output(&mut self, row: usize, rid: &'a str, id_count: u32, tail: &OutputTail) {
        if let Some(seconds) = tail.times {
            self.times.push(ChunkSeconds { chunk: row, seconds });
        }
        self.chunks.push(Chunk {
            listed: Some(id_count),
            prompt_tokens: tail.prompt,
            cached_tokens: tail.cached,
            finish: tail.finish,
            ..Chunk::new(rid)
        });
    }

    /// Reads the list of new ids at `at`, and collects the ids if they are kept. If not, a list of one id, as most are, is only measured.
    /// Returns the number of ids, and the end of the list.
    #[inline]
    fn read_or_count_new_ids(&mut self, at: usize, row: usize) -> Result<(u32, NextOffset), Undecoded> {
        if self.ids.is_none()
            && let Some(list_bytes) = single_id_list_bytes(&self.message[at..])
        {
            return Ok((1, at + list_bytes));
        }
        self.read_new_ids(at, row)
    }

    /// Reads the list of new ids at `at`, and collects the ids if they are kept. Returns their number, and the end of the list. `row` is
    /// the position of the output in the message, for errors.
    fn read_new_ids(&mut self, at: usize, row: usize) -> Result<(u32, NextOffset), Undecoded> {
        let message = self.message;
        let Some((Head::Array { len }, mut at)) = read_head(message, at) else {
            return Err(column_error(message, at, "new_token_ids", row, "not a list"));
        };
        for _ in 0..len {
            let Some((Head::Int(id), next)) = read_head(message, at) else {
                return Err(column_error(message, at, "new_token_ids", row, "not an integer"));
            };
            if let Some(ids) = &mut self.ids {
                ids.push(id);
            }
            at = next;
        }
        Ok((len, at))
    }
}

/// The request id at `at`, and the offset after it. `row` is the position of the output in the message, for errors.
#[inline]
fn read_rid(message: &[u8], at: usize, row: usize) -> Result<(&str, NextOffset), Undecoded> {
    let (rid, next) =
        read_string(message, at).ok_or_else(|| column_error(message, at, "request_id", row, "not a string"))?;
    if rid.len() > MAX_RID_BYTES {
        return Err(Undecoded::Limit { limit: "text", value: MAX_RID_BYTES });
    }
    let rid = utf8(rid).ok_or_else(|| column_error(message, at, "request_id", row, "not UTF-8"))?;
    Ok((rid, next))
}

/// All layouts of outputs in messages with this envelope, which is the layout of the whole message. That of the last message comes first,
/// because it nearly always fits.
#[inline]
fn layouts_to_try(
    envelope: &'static Envelope,
    last_used: Option<UsedLayout>,
) -> impl Iterator<Item = &'static OutputLayout> {
    // Envelopes and layouts are entries of a static table, so their address identifies them.
    let last_of_envelope = last_used.filter(|last_used| std::ptr::eq(last_used.envelope, envelope));
    let last_layout = last_of_envelope.map(|last_used| last_used.output);
    let is_other = move |layout: &&OutputLayout| !last_layout.is_some_and(|last_used| std::ptr::eq(last_used, *layout));
    let other_layouts = envelope.layouts.iter().filter(is_other);
    last_layout.into_iter().chain(other_layouts)
}

/// Number of fields of the output at `at`. Fails if it is not an array.
fn read_field_count(bytes: &[u8], at: usize) -> Result<u32, Undecoded> {
    match read_head(bytes, at) {
        Some((Head::Array { len }, _)) => Ok(len),
        Some(_) => Err(Undecoded::Malformed { at, what: "an output is not an array" }),
        None => Err(Undecoded::Truncated { at }),
    }
}

/// Start of the first field of the output at `output_at`. Fails unless the output has `field_count` fields.
fn first_field_of_output(bytes: &[u8], output_at: usize, field_count: u32) -> Result<usize, Undecoded> {
    match read_head(bytes, output_at) {
        Some((Head::Array { len }, first)) if len == field_count => Ok(first),
        Some((Head::Array { len }, _)) => {
            Err(Undecoded::Layout { class: OUTPUT, fields: len as usize, what: UNLISTED })
        }
        Some(_) => Err(Undecoded::Malformed { at: output_at, what: "an output is not an array" }),
        None => Err(Undecoded::Truncated { at: output_at }),
    }
}

/// Length in bytes of a list of one id, as most outputs have; `None` for any other list.
#[inline]
fn single_id_list_bytes(bytes: &[u8]) -> Option<usize> {
    match bytes {
        // An unsigned integer of 7, 8, 16 or 32 bits.
        [FIXARRAY_1, 0..=FIXINT_MAX, ..] => Some(2),
        [FIXARRAY_1, UINT_8, _, ..] => Some(3),
        [FIXARRAY_1, UINT_16, _, _, ..] => Some(4),
        [FIXARRAY_1, UINT_32, _, _, _, _, ..] => Some(6),
        _ => None,
    }
}

/// Error for the value at `at`: it is incomplete or, if it is complete, `what` is wrong with it.
fn column_error(bytes: &[u8], at: usize, field: &'static str, row: usize, what: &'static str) -> Undecoded {
    match skip_value(bytes, at) {
        Ok(_) => Undecoded::Column { class: OUTPUT, field, row, what },
        Err(why) => why.into(),
    }
}
