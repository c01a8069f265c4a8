//! The engine's own times of requests: columns of numbers in 0.5.5 to 0.5.9, and objects in `time_stats` from 0.5.10rc0 on. They say
//! nothing about tokens, so a message with other values keeps its chunks and has no times.

use adapter::decode::{ChunkSeconds, EngineSeconds};
use trace::event::Chunk;

use super::arena::Node;
use super::columns::MessageColumns;
use super::doc::{Doc, Items};
use super::pickle::NestedPickle;
use crate::msgpack::{self, Head};

/// First of the names in an object with times. Without `--enable-metrics`, objects are empty.
const QUEUED: &[u8] = b"wait_queue_entry_time";
/// Number of bytes of a pickle of times that are searched for the name: before it are the names of the class and of its module.
const SEARCHED_BYTES: usize = 256;

impl MessageColumns<'_, '_> {
    /// Appends to `times` the times of requests whose first tokens are in this message. Later messages only repeat these times. `nested`
    /// has the memory for a pickle inside msgpack.
    pub(super) fn append_first_token_times(
        &self,
        chunks: &[Chunk<'_>],
        nested: &mut NestedPickle,
        times: &mut Vec<ChunkSeconds>,
    ) {
        // Most messages have no first tokens.
        if !chunks.iter().any(has_first_tokens) {
            return;
        }
        match self.field_value(self.columns.time_stats) {
            // Releases up to 0.5.9 have columns of numbers, and later ones a list of objects, one for each request.
            None => self.read_time_columns(chunks, times),
            // In a msgpack message, the objects are a pickle.
            Some(Node::Pack(at)) => {
                if let Some(pickled) = wrapped_pickle(self.doc.bytes, at as usize) {
                    self.append_pickled_time_stats(pickled, chunks, nested, times);
                }
            }
            Some(stats) => append_time_stats(self.doc, stats, chunks, times),
        }
    }

    /// Reads the times in a pickled list of objects. The pickle is not loaded if its objects are empty.
    #[inline]
    fn append_pickled_time_stats(
        &self,
        pickled: &[u8],
        chunks: &[Chunk<'_>],
        nested: &mut NestedPickle,
        times: &mut Vec<ChunkSeconds>,
    ) {
        if may_have_times(pickled)
            && let Some((stats, arena)) = nested.load(pickled, self.limits)
        {
            append_time_stats(Doc { bytes: pickled, arena }, stats, chunks, times);
        }
    }

    /// Items of a column; `None` unless it is present and as long as the list of chunks.
    fn list_per_chunk(&self, column_index: Option<u16>, chunks: &[Chunk<'_>]) -> Option<Items<'_>> {
        let column = self.field_value(column_index)?;
        let has_item_per_chunk = self.doc.item_count(column) == Some(chunks.len() as u32);
        if has_item_per_chunk { self.doc.list_items(column) } else { None }
    }

    /// Reads the columns of releases up to 0.5.9. They state how long a request was queued, so the time at which it was queued is computed.
    /// Appends nothing if a column is missing.
    fn read_time_columns(&self, chunks: &[Chunk<'_>], times: &mut Vec<ChunkSeconds>) {
        let Some(entries) = self.list_per_chunk(self.columns.batch_entry, chunks) else { return };
        let Some(waits) = self.list_per_chunk(self.columns.queue_time, chunks) else { return };
        for (index, (batch_entry, wait)) in entries.zip(waits).enumerate() {
            if has_first_tokens(&chunks[index]) {
                let batch_entered = self.doc.seconds_or_nan(batch_entry);
                // 0 stands for an unknown time.
                let queued = if self.doc.is_nil(wait) { 0.0 } else { batch_entered - self.doc.seconds_or_nan(wait) };
                let seconds = EngineSeconds { queued, batch_entered, prefill_finished: 0.0 };
                times.push(ChunkSeconds { chunk: index, seconds });
            }
        }
    }
}

/// Whether the chunk holds the first tokens of its request: it lists all that it counts. An embedding has no counts and only one message.
fn has_first_tokens(chunk: &Chunk<'_>) -> bool {
    match (chunk.listed, chunk.completion_tokens) {
        (Some(listed), Some(count)) => count <= listed,
        _ => true,
    }
}

/// The time in the field of an object's state; 0 if the field is missing.
fn seconds_of_field(doc: Doc<'_>, state: Node, name: &[u8]) -> f64 {
    doc.find_entry(state, name).map_or(0.0, |value| doc.seconds_or_nan(value))
}

/// Reads the times in a list of objects of the class `SchedulerReqTimeStats`. Does nothing unless it has one object for each chunk.
fn append_time_stats(doc: Doc<'_>, stats: Node, chunks: &[Chunk<'_>], times: &mut Vec<ChunkSeconds>) {
    let has_object_per_chunk = doc.item_count(stats) == Some(chunks.len() as u32);
    if !has_object_per_chunk {
        return;
    }
    let Some(objects) = doc.list_items(stats) else { return };
    for (index, (chunk, object)) in chunks.iter().zip(objects).enumerate() {
        if !has_first_tokens(chunk) {
            continue;
        }
        let Node::Object(id) = object else { continue };
        let seconds = seconds_of_state(doc, doc.named_call(id).call.state);
        let has_times = seconds != EngineSeconds::default();
        if has_times {
            times.push(ChunkSeconds { chunk: index, seconds });
        }
    }
}

/// The times in an object's state. All are 0 if the engine has set none.
#[inline]
fn seconds_of_state(doc: Doc<'_>, state: Node) -> EngineSeconds {
    EngineSeconds {
        queued: seconds_of_field(doc, state, QUEUED),
        batch_entered: seconds_of_field(doc, state, b"forward_entry_time"),
        prefill_finished: seconds_of_field(doc, state, b"prefill_finished_time"),
    }
}

/// The pickle in the `PickleWrapper` at `at`, which msgpack messages have for objects. `None` for another value.
fn wrapped_pickle(message: &[u8], at: usize) -> Option<&[u8]> {
    let (Head::Array { len: 2 }, name_at) = msgpack::read_head(message, at)? else { return None };
    let (name, data_at) = msgpack::read_string(message, name_at)?;
    match msgpack::read_head(message, data_at)? {
        (Head::Bin { end }, start) if name == b"PickleWrapper" => message.get(start..end),
        _ => None,
    }
}

/// Whether a pickle of times may have any, judged cheaply by its beginning.
fn may_have_times(pickled: &[u8]) -> bool {
    let searched = &pickled[..pickled.len().min(SEARCHED_BYTES)];
    searched.windows(QUEUED.len()).any(|name| name == QUEUED)
}
