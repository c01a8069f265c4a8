//! Batches of output that a scheduler passes to the Rust server in its process (0.5.17 and later).
//!
//! The message is a msgpack array of columns: request ids, finish reasons, prompt lengths, numbers of new ids, and columns that are not
//! read. The ids themselves are a separate argument, which is not read.

use adapter::decode::{Decode, Decoded, Format, Opening, Refused, Shape, recycle};
use trace::event::{Chunk, Finish, IdColumn, Kind};

use super::NAME;
use crate::msgpack::{Head, NextOffset, read_head, read_string, skip_value};
use crate::undecoded::Undecoded;

/// Format of these batches. No socket carries them.
pub const BATCHES: Format = Format {
    engine: NAME,
    decoder: |longest| Box::new(BatchDecoder::new(longest)),
    may_begin_with: |_| false,
    opening: |_, _| Opening::No,
    hop: |_| None,
    receivers: &["server"],
    response_id: Some(response_id_and_choice),
    read_requests: |_, _| {
        Err(Refused { reason: "codec", detail: String::from("the Rust server passes its requests inside the process") })
    },
    read_pair_message: |_, _| None,
};

const CLASS: &str = "BatchHeader";
/// Releases with four columns before the optional ones.
const OLD_RELEASES: &str = "0.5.17..0.5.22";
/// Releases with six columns before the optional ones.
const NEW_RELEASES: &str = "0.5.23";
/// Numbers of columns up to 0.5.22: without and with optional ones.
const OLD_COLUMN_COUNTS: [u32; 2] = [4, 16];
/// Columns that are read.
const READ_COLUMNS: u32 = 4;
/// Maximum number of requests in a batch.
const MAX_REQUESTS: u32 = 1 << 20;
/// Maximum length in bytes of a request id.
const MAX_RID_BYTES: usize = 4096;
/// Length of the number that the server appends to a client's request id.
const RID_SUFFIX_BYTES: usize = 16;

/// Decodes batches one after another. After the first few it no longer allocates.
#[derive(Debug)]
struct BatchDecoder {
    longest: usize,
    chunks: Vec<Chunk<'static>>,
}

impl BatchDecoder {
    fn new(longest: usize) -> Self {
        Self { longest, chunks: Vec::new() }
    }
}

impl Decode for BatchDecoder {
    /// Whether the message is an array of columns, of which the first is a list of request ids.
    fn recognises(&self, parts: &[&[u8]]) -> bool {
        let &[message] = parts else { return false };
        if let Some((columns, at)) = read_array_head(message, 0)
            && let Some((requests, at)) = read_array_head(message, at)
            && let Some((Head::Str { .. }, _)) = read_head(message, at)
        {
            return columns >= READ_COLUMNS && requests > 0;
        }
        false
    }

    /// Does nothing: the ids are not part of the message.
    fn keep_ids(&mut self) {}

    /// Decodes the message. Reuses the memory that the chunks of the last message had.
    fn decode<'a>(&'a mut self, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Refused> {
        let message = parts.first().copied().unwrap_or_default();
        let mut chunks: Vec<Chunk<'a>> = recycle(std::mem::take(&mut self.chunks));
        let read = if message.len() > self.longest {
            Err(Undecoded::Limit { limit: "message", value: self.longest })
        } else {
            read_batch_and_count_columns(message, &mut chunks)
        };
        match read {
            Ok(columns) => Ok(Decoded::new(shape_of_batch(columns), chunks, &mut self.chunks)),
            Err(why) => {
                self.chunks = recycle(chunks);
                Err(Refused { reason: why.reason(), detail: why.to_string() })
            }
        }
    }
}

/// Properties of a batch with this number of columns, which shows the releases that write it.
fn shape_of_batch(column_count: u32) -> Shape {
    let has_old_layout = OLD_COLUMN_COUNTS.contains(&column_count);
    Shape {
        engine: NAME,
        class: CLASS,
        codec: "msgpack",
        schema: if has_old_layout { OLD_RELEASES } else { NEW_RELEASES },
        kind: Kind::TokenIds,
        ids: IdColumn::Uncounted,
        // The message does not show what the task of a request does with several queued chunks.
        waiter: None,
    }
}

/// Reads a batch, which is an array of columns with one item for each request. Adds a chunk for each request to `chunks`, which is empty.
/// Returns the number of columns.
fn read_batch_and_count_columns<'a>(message: &'a [u8], chunks: &mut Vec<Chunk<'a>>) -> Result<u32, Undecoded> {
    let (columns, first_column) = read_array_head(message, 0).ok_or(Undecoded::Truncated { at: 0 })?;
    if columns < READ_COLUMNS {
        return Err(Undecoded::Layout {
            class: CLASS,
            fields: columns as usize,
            what: "fewer columns than any release",
        });
    }
    let mut at = read_rid_column(message, first_column, chunks)?;
    at = read_finish_column(message, at, chunks)?;
    // Skip the third column, the lengths of the prompts. Every batch repeats them, but a chunk with the length of its prompt would count as
    // the first one of its stream.
    at = skip_value(message, at)?;
    at = read_id_count_column(message, at, chunks)?;
    for _ in READ_COLUMNS..columns {
        at = skip_value(message, at)?;
    }
    // A message that only looks like a batch rarely ends where its columns do.
    if at != message.len() {
        return Err(malformed_at(at, "bytes after the end of the message"));
    }
    Ok(columns)
}

/// Reads the first column, the request ids, and adds a chunk for each to `chunks`. Returns the end of the column.
#[inline]
fn read_rid_column<'a>(message: &'a [u8], at: usize, chunks: &mut Vec<Chunk<'a>>) -> Result<NextOffset, Undecoded> {
    let (requests, mut at) =
        read_array_head(message, at).ok_or_else(|| malformed_at(at, "request ids are not a list"))?;
    // Bounds the memory for a message that states a length and has other content.
    if requests > MAX_REQUESTS {
        return Err(Undecoded::Limit { limit: "items", value: MAX_REQUESTS as usize });
    }
    for _ in 0..requests {
        let (rid, next) = read_rid(message, at)?;
        chunks.push(Chunk::new(strip_server_suffix(rid)));
        at = next;
    }
    Ok(at)
}

/// Reads the second column, the finish reasons, into the chunks. Returns the end of the column.
#[inline]
fn read_finish_column(message: &[u8], at: usize, chunks: &mut [Chunk<'_>]) -> Result<NextOffset, Undecoded> {
    let mut at = first_item_of_column(message, at, chunks.len())?;
    for chunk in chunks {
        (chunk.finish, at) = read_finish_reason(message, at)?;
    }
    Ok(at)
}

/// Reads the fourth column, the numbers of new token ids, into the chunks. Returns the end of the column.
#[inline]
fn read_id_count_column(message: &[u8], at: usize, chunks: &mut [Chunk<'_>]) -> Result<NextOffset, Undecoded> {
    let mut at = first_item_of_column(message, at, chunks.len())?;
    for chunk in chunks {
        let (new_ids, next) = read_id_count(message, at)?;
        chunk.listed = Some(new_ids);
        at = next;
    }
    Ok(at)
}

/// Length of the array at `at`, and the offset of its first item. `None` for another value.
fn read_array_head(message: &[u8], at: usize) -> Option<(u32, NextOffset)> {
    match read_head(message, at)? {
        (Head::Array { len }, first) => Some((len, first)),
        _ => None,
    }
}

/// Offset of the first item of the column at `column_at`. Fails unless the column has `item_count` items.
fn first_item_of_column(message: &[u8], column_at: usize, item_count: usize) -> Result<usize, Undecoded> {
    match read_array_head(message, column_at) {
        Some((len, first)) if len as usize == item_count => Ok(first),
        _ => Err(malformed_at(column_at, "a column is not as long as the request ids")),
    }
}

/// The request id at `at`, with the offset behind it.
#[inline]
fn read_rid(message: &[u8], at: usize) -> Result<(&str, NextOffset), Undecoded> {
    let (rid, next) = read_string(message, at).ok_or_else(|| malformed_at(at, "a request id is not a string"))?;
    if rid.len() > MAX_RID_BYTES {
        return Err(Undecoded::Limit { limit: "text", value: MAX_RID_BYTES });
    }
    let rid = str::from_utf8(rid).map_err(|_| malformed_at(at, "a request id is not UTF-8"))?;
    Ok((rid, next))
}

/// The number of new token ids at `at`, with the offset behind it.
#[inline]
fn read_id_count(message: &[u8], at: usize) -> Result<(u32, NextOffset), Undecoded> {
    match read_head(message, at) {
        Some((Head::Int(count), next)) if u32::try_from(count).is_ok() => Ok((count as u32, next)),
        Some(_) => Err(malformed_at(at, "the number of ids is not a count")),
        None => Err(Undecoded::Truncated { at }),
    }
}

/// Reads the finish reason at `at`, which is nil for a request that goes on, or a map with a `type`. Returns it with the offset behind it.
fn read_finish_reason(message: &[u8], at: usize) -> Result<(Option<Finish>, NextOffset), Undecoded> {
    let end = skip_value(message, at)?;
    match read_head(message, at) {
        Some((Head::Nil, _)) => Ok((None, end)),
        Some((Head::Map { len }, first_key_at)) => Ok((Some(finish_of_map(message, first_key_at, len)?), end)),
        _ => Err(malformed_at(at, "a finish reason is neither nil nor a map")),
    }
}

/// The finish reason in a map of `len` entries, of which the first begins at `key_at`. A map without the key `type` has another reason.
#[inline]
fn finish_of_map(message: &[u8], mut key_at: usize, len: u32) -> Result<Finish, Undecoded> {
    let mut finish = Finish::Other;
    for _ in 0..len {
        let value_at = skip_value(message, key_at)?;
        let is_type = read_string(message, key_at).is_some_and(|(key, _)| key == b"type");
        if is_type {
            finish = finish_of_type(message, value_at);
        }
        key_at = skip_value(message, value_at)?;
    }
    Ok(finish)
}

/// The finish reason with the `type` at `at`, which may be any value.
#[inline]
fn finish_of_type(message: &[u8], at: usize) -> Finish {
    match read_string(message, at) {
        Some((b"length", _)) => Finish::Length,
        Some((b"stop", _)) => Finish::Stop,
        Some((b"abort", _)) => Finish::Abort,
        _ => Finish::Other,
    }
}

fn malformed_at(at: usize, what: &'static str) -> Undecoded {
    Undecoded::Malformed { at, what }
}

/// Request id without the `#` and the number that the server appends to an id chosen by the client.
fn strip_server_suffix(rid: &str) -> &str {
    match rid.rsplit_once('#') {
        Some((id, suffix)) if is_server_suffix(suffix) => id,
        _ => rid,
    }
}

/// Whether this is a hexadecimal number as the server appends it to a request id.
fn is_server_suffix(suffix: &str) -> bool {
    suffix.len() == RID_SUFFIX_BYTES && suffix.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Id of the response to a request, and the index of its choice. For example, `cmpl-X-1` gives choice 1 of `cmpl-X`. An id without an index
/// gives choice 0. `None` if the index is not a number.
fn response_id_and_choice(rid: &str) -> Option<(&str, u32)> {
    // Other endpoints have one choice, and no index in the id.
    let Some(name) = rid.strip_prefix("cmpl-") else { return Some((rid, 0)) };
    // The id of a completion with one choice has no index either.
    if !name.contains('-') {
        return Some((rid, 0));
    }
    let (response_id, choice) = rid.rsplit_once('-')?;
    Some((response_id, choice.parse().ok()?))
}

#[cfg(test)]
mod tests;
