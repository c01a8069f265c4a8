//! Conversion of a message's columns into chunks. Every column is validated as it is read, and one invalid column rejects the whole
//! message.

use adapter::decode::ChunkSeconds;
use trace::event::{Chunk, Finish};

use super::arena::Node;
use super::doc::Doc;
use super::part::{IntItem, SmallInts};
use super::pickle::NestedPickle;
use super::schema::ColumnIndices;
use super::{Limits, Undecoded, tokens};
use crate::msgpack::utf8;

pub(super) struct MessageColumns<'a, 'x> {
    pub(super) doc: Doc<'a>,
    pub(super) class: &'static str,
    pub(super) columns: &'x ColumnIndices,
    pub(super) values: &'x [Node],
    pub(super) limits: &'x Limits,
}

impl<'a> MessageColumns<'a, '_> {
    /// Fails unless the message has the fields that every message with generated tokens must have. Finish reasons may be in `meta_info`
    /// instead of a column.
    pub(super) fn check_generated_fields(&self, chunks: &[Chunk<'a>]) -> Result<(), Undecoded> {
        if chunks.iter().any(|chunk| chunk.completion_tokens.is_none()) {
            return Err(self.layout_mismatch("no completion_tokens"));
        }
        if self.columns.meta.is_none() && !self.has_column(self.columns.finish) {
            return Err(self.layout_mismatch("no finished_reasons"));
        }
        Ok(())
    }

    /// Adds one chunk for each request, with its id (`rid`) and its entry in `http_worker_ipcs`, which names its tokenizer worker.
    #[inline(never)]
    pub(super) fn push_chunk_of_each_request(&self, chunks: &mut Vec<Chunk<'a>>) -> Result<(), Undecoded> {
        if self.columns.rids.is_none() {
            return Err(self.layout_mismatch("no rids"));
        }
        // A batch whose list of ids is `None` has no requests.
        let Some(rids) = self.field_value(self.columns.rids) else { return Ok(()) };
        let count = self.doc.item_count(rids).ok_or_else(|| self.bad_value("rids", 0, "not a list"))? as usize;
        if count > self.limits.items {
            return Err(Undecoded::Limit { limit: "items", value: self.limits.items });
        }
        chunks.reserve(count);
        for part in self.doc.column_parts(rids) {
            part.for_each_string(|row, rid| {
                chunks.push(Chunk::new(self.read_rid("rids", row, rid)?));
                Ok::<(), Undecoded>(())
            })?;
        }
        self.read_workers(chunks)
    }

    /// Reads the address of each request's tokenizer worker into its chunk. Nil leaves the chunk without one.
    #[inline]
    fn read_workers(&self, chunks: &mut [Chunk<'a>]) -> Result<(), Undecoded> {
        // The column may be absent.
        let Some(workers) = self.column_per_request(self.columns.workers, "http_worker_ipcs", chunks)? else {
            return Ok(());
        };
        self.doc.column_parts(workers).try_for_each(|part| {
            part.for_each_item(|row, worker| {
                if !self.doc.is_nil(worker) {
                    chunks[row].worker =
                        Some(self.read_text("http_worker_ipcs", row, self.doc.string_bytes(worker))?);
                }
                Ok(())
            })
        })
    }

    /// Reads the counts and finish reasons of all chunks. They have a column each, or are in each request's `meta_info` (SGLang 0.4.0).
    /// Appends each chunk's finish reason to `finish_reasons`, which stays empty if the message has none.
    pub(super) fn read_counts_and_finish_reasons(
        &self,
        chunks: &mut [Chunk<'a>],
        finish_reasons: &mut Vec<Node>,
    ) -> Result<(), Undecoded> {
        if self.columns.meta.is_some() {
            return self.read_meta_column(chunks, finish_reasons);
        }
        self.read_count_column(chunks, self.columns.completion, "completion_tokens", |chunk| {
            &mut chunk.completion_tokens
        })?;
        self.read_count_column(chunks, self.columns.prompt, "prompt_tokens", |chunk| &mut chunk.prompt_tokens)?;
        self.read_count_column(chunks, self.columns.cached, "cached_tokens", |chunk| &mut chunk.cached_tokens)?;
        self.read_count_column(chunks, self.columns.retractions, "retraction_counts", |chunk| &mut chunk.retractions)?;
        self.read_finish_column(chunks, finish_reasons)
    }

    /// Reads the counts and finish reasons from the column `meta_info`.
    #[inline]
    fn read_meta_column(&self, chunks: &mut [Chunk<'a>], finish_reasons: &mut Vec<Node>) -> Result<(), Undecoded> {
        // The column may be absent.
        let Some(meta) = self.column_per_request(self.columns.meta, "meta_info", chunks)? else {
            return Ok(());
        };
        self.doc.column_parts(meta).try_for_each(|part| {
            part.for_each_item(|row, meta| self.read_meta_info(&mut chunks[row], row, meta, finish_reasons))
        })
    }

    /// Reads the column of finish reasons into the chunks, and appends each reason as it was sent to `finish_reasons`.
    #[inline]
    fn read_finish_column(&self, chunks: &mut [Chunk<'a>], finish_reasons: &mut Vec<Node>) -> Result<(), Undecoded> {
        // The column may be absent.
        let Some(reasons) = self.column_per_request(self.columns.finish, "finished_reasons", chunks)? else {
            return Ok(());
        };
        self.doc.column_parts(reasons).try_for_each(|part| {
            part.for_each_item(|row, reason| {
                chunks[row].finish = self.parse_finish_reason(row, reason)?;
                finish_reasons.push(reason);
                Ok(())
            })
        })
    }

    /// Reads the number of token ids that each request lists into its chunk. Appends the lists themselves to `id_lists`. Returns whether
    /// the message has the column of ids.
    #[inline(never)]
    pub(super) fn read_id_counts_if_column_present(
        &self,
        chunks: &mut [Chunk<'a>],
        id_lists: &mut Vec<Node>,
    ) -> Result<bool, Undecoded> {
        let column = self.columns.ids;
        let Some(ids) = self.column_per_request(column, "output_ids", chunks)? else {
            // A column of only `None` is present, but lists no ids.
            return Ok(self.has_column(column));
        };
        let mut total = 0;
        for part in self.doc.column_parts(ids) {
            part.append_lists(id_lists);
            // `id_lists` has one list for each row of the parts so far.
            let lists_of_part = id_lists.get(part.row_range()).unwrap_or_default();
            let chunks_of_part = chunks.get_mut(part.row_range()).unwrap_or_default();
            for ((row, list), chunk) in part.row_range().zip(lists_of_part).zip(chunks_of_part) {
                chunk.listed = self.count_ids_of_row(row, *list)?;
                total += chunk.listed.unwrap_or(0) as usize;
                // A hostile message may refer to one long list many times.
                if total > self.limits.items {
                    return Err(Undecoded::Limit { limit: "items", value: self.limits.items });
                }
            }
        }
        Ok(true)
    }

    /// Number of ids in the list of a row; `None` for a row without a list.
    #[inline]
    fn count_ids_of_row(&self, row: usize, list: Node) -> Result<Option<u32>, Undecoded> {
        match list {
            // The usual lists, whose node states the number of ids. A word is one id.
            Node::Ints { len, .. } | Node::Words { words: len, .. } => Ok(Some(u32::from(len))),
            other => self.count_ids_of_unusual_row(row, other),
        }
    }

    /// Reads the text of each request. Leaves out texts that are not UTF-8.
    #[inline(never)]
    pub(super) fn read_texts(&self, chunks: &mut [Chunk<'a>]) -> Result<(), Undecoded> {
        // The column may be absent.
        let Some(texts) = self.column_per_request(self.columns.text, "output_strs", chunks)? else {
            return Ok(());
        };
        self.doc.column_parts(texts).try_for_each(|part| {
            part.for_each_string(|row, text| {
                chunks[row].text = text.and_then(|text| std::str::from_utf8(text).ok());
                Ok(())
            })
        })
    }

    /// Number of ids in the list of one request; `None` if there is no list. Fails for any other value.
    #[inline(never)]
    fn count_ids_of_unusual_row(&self, row: usize, ids: Node) -> Result<Option<u32>, Undecoded> {
        let count = tokens::count_ids(self.doc, ids);
        if count.is_none() && !self.doc.is_nil(ids) {
            return Err(self.bad_value("output_ids", row, "not token ids"));
        }
        Ok(count)
    }

    /// Adds a chunk for each request that an `AbortReq` message names: one id, a list of ids, or none.
    pub(super) fn push_chunk_of_each_aborted_request(&self, chunks: &mut Vec<Chunk<'a>>) -> Result<(), Undecoded> {
        if self.columns.rid.is_none() {
            return Err(self.layout_mismatch("no rid"));
        }
        // A message without an id names no request.
        let Some(field) = self.field_value(self.columns.rid) else { return Ok(()) };
        if let Some(rids) = self.doc.list_items(field) {
            for (row, rid) in rids.take(self.limits.items).enumerate() {
                chunks.push(aborted_chunk(self.read_rid("rid", row, self.doc.string_bytes(rid))?));
            }
            return Ok(());
        }
        // The id is empty when `abort_all` is set.
        let rid = self.read_rid("rid", 0, self.doc.string_bytes(field))?;
        if !rid.is_empty() {
            chunks.push(aborted_chunk(rid));
        }
        Ok(())
    }

    /// Reads the counts and the finish reason of a request from its `meta_info`, and appends the reason to `finish_reasons`.
    fn read_meta_info(
        &self,
        chunk: &mut Chunk<'a>,
        row: usize,
        meta: Node,
        finish_reasons: &mut Vec<Node>,
    ) -> Result<(), Undecoded> {
        if self.doc.dict_entries(meta).is_none() {
            return Err(self.bad_value("meta_info", row, "not a dict"));
        }
        chunk.completion_tokens = self.read_meta_count(row, meta, b"completion_tokens")?;
        chunk.prompt_tokens = self.read_meta_count(row, meta, b"prompt_tokens")?;
        chunk.cached_tokens = self.read_meta_count(row, meta, b"cached_tokens")?;
        let reason = self.doc.find_entry(meta, b"finish_reason").unwrap_or(Node::Nil);
        chunk.finish = self.parse_finish_reason(row, reason)?;
        finish_reasons.push(reason);
        Ok(())
    }

    /// A count in `meta_info`; `None` if it is missing or nil.
    fn read_meta_count(&self, row: usize, meta: Node, name: &[u8]) -> Result<Option<u32>, Undecoded> {
        match self.doc.find_entry(meta, name) {
            Some(value) => self.read_count("meta_info", row, value),
            None => Ok(None),
        }
    }

    /// Reads a column of counts into the field of each chunk that `count_field_of` returns. `field_name` is the column's name in errors.
    fn read_count_column(
        &self,
        chunks: &mut [Chunk<'a>],
        column: Option<u16>,
        field_name: &'static str,
        count_field_of: impl for<'c> Fn(&'c mut Chunk<'a>) -> &'c mut Option<u32>,
    ) -> Result<(), Undecoded> {
        // The column may be absent.
        let Some(column) = self.column_per_request(column, field_name, chunks)? else { return Ok(()) };
        for part in self.doc.column_parts(column) {
            match part.small_ints() {
                // Nearly every part holds only small counts, which are copied from the message.
                Some(counts) => {
                    let rows = chunks.get_mut(part.row_range()).unwrap_or_default();
                    copy_small_counts(counts, rows, &count_field_of);
                }
                // Other counts are decoded one by one.
                None => part.for_each_int(|row, item| {
                    *count_field_of(&mut chunks[row]) = match item {
                        IntItem::Int(value) => Some(self.checked_u32(field_name, row, value)?),
                        IntItem::Nil => None,
                        IntItem::Other => return Err(self.bad_value(field_name, row, "not a count")),
                    };
                    Ok(())
                })?,
            }
        }
        Ok(())
    }

    /// A count of a row; `None` for nil.
    fn read_count(&self, field_name: &'static str, row: usize, item: Node) -> Result<Option<u32>, Undecoded> {
        if self.doc.is_nil(item) {
            return Ok(None);
        }
        let value = self.doc.int_value(item).ok_or_else(|| self.bad_value(field_name, row, "not a count"))?;
        self.checked_u32(field_name, row, value).map(Some)
    }

    /// A count of a row as 32 bits.
    fn checked_u32(&self, field: &'static str, row: usize, value: i64) -> Result<u32, Undecoded> {
        u32::try_from(value).map_err(|_| self.bad_value(field, row, "a count that is negative or exceeds 32 bits"))
    }

    /// Finish reason of the request in a row. `None` if `reason` is nil: the request goes on. Otherwise it must be a dict with a `type`.
    fn parse_finish_reason(&self, row: usize, reason: Node) -> Result<Option<Finish>, Undecoded> {
        if self.doc.is_nil(reason) {
            return Ok(None);
        }
        if self.doc.dict_entries(reason).is_none() {
            return Err(self.bad_value("finished_reasons", row, "neither None nor a dict"));
        }
        let finish_type = self.doc.find_entry(reason, b"type").and_then(|kind| self.doc.string_bytes(kind));
        Ok(Some(match finish_type {
            Some(b"length") => Finish::Length,
            Some(b"stop") => Finish::Stop,
            Some(b"abort") => Finish::Abort,
            // A later release may add types.
            _ => Finish::Other,
        }))
    }

    /// Reads a request's id. Clients choose it, so an id that is too long or not UTF-8 becomes empty, and the other chunks stay valid.
    /// Fails only if `rid` is `None`: the value is not a string.
    fn read_rid(&self, field_name: &'static str, row: usize, rid: Option<&'a [u8]>) -> Result<&'a str, Undecoded> {
        match self.read_text(field_name, row, rid) {
            Err(_) if rid.is_some() => Ok(""),
            id_or_error => id_or_error,
        }
    }

    /// A text of a row. Fails if it is not a string (`None`), exceeds the limit, or is not UTF-8.
    fn read_text(&self, field_name: &'static str, row: usize, text: Option<&'a [u8]>) -> Result<&'a str, Undecoded> {
        let text = text.ok_or_else(|| self.bad_value(field_name, row, "not a string"))?;
        if text.len() > self.limits.text {
            return Err(Undecoded::Limit { limit: "text", value: self.limits.text });
        }
        utf8(text).ok_or_else(|| self.bad_value(field_name, row, "not UTF-8"))
    }

    /// The value of a field; `None` when the layout lacks the field or its value is `None`.
    pub(super) fn field_value(&self, index: Option<u16>) -> Option<Node> {
        let node = *self.values.get(usize::from(index?))?;
        (!self.doc.is_nil(node)).then_some(node)
    }

    /// The column at `column_index` among the fields, which has one item for each request. `None` if it is absent, empty, or holds only
    /// nil. Fails if it has another length.
    fn column_per_request(
        &self,
        column_index: Option<u16>,
        field_name: &'static str,
        chunks: &[Chunk<'a>],
    ) -> Result<Option<Node>, Undecoded> {
        let Some(column) = self.field_value(column_index) else { return Ok(None) };
        let Some(len) = self.doc.item_count(column) else {
            return Err(self.bad_value(field_name, 0, "not a list"));
        };
        // An empty list says as little as an absent column.
        if len == 0 {
            return Ok(None);
        }
        if len as usize != chunks.len() {
            return Err(self.bad_value(field_name, 0, "not as long as rids"));
        }
        if self.doc.holds_only_nil(column) { Ok(None) } else { Ok(Some(column)) }
    }

    /// Whether a per-request column is present, even if all its entries are `None`.
    pub(super) fn has_column(&self, index: Option<u16>) -> bool {
        let item_count = self.field_value(index).and_then(|column| self.doc.item_count(column));
        item_count.is_some_and(|count| count > 0)
    }

    /// Error for a known class with an unsupported layout.
    pub(super) fn layout_mismatch(&self, what: &'static str) -> Undecoded {
        Undecoded::Layout { class: self.class, fields: self.values.len(), what }
    }

    /// Error for the value of a row.
    fn bad_value(&self, field: &'static str, row: usize, what: &'static str) -> Undecoded {
        Undecoded::Column { class: self.class, field, row, what }
    }
}

/// Copies the counts, one for each row, into the field that `count_field_of` returns.
#[inline]
fn copy_small_counts<'a>(
    counts: SmallInts<'_>,
    rows: &mut [Chunk<'a>],
    count_field_of: impl for<'c> Fn(&'c mut Chunk<'a>) -> &'c mut Option<u32>,
) {
    match counts {
        // Each count follows its opcode.
        SmallInts::Pickled(run) => {
            for (chunk, [_opcode, value]) in rows.iter_mut().zip(run) {
                *count_field_of(chunk) = Some((*value).into());
            }
        }
        SmallInts::Packed(run) => {
            for (chunk, value) in rows.iter_mut().zip(run) {
                *count_field_of(chunk) = Some((*value).into());
            }
        }
    }
}

/// A chunk that ends its request by an abort.
fn aborted_chunk(rid: &str) -> Chunk<'_> {
    Chunk { finish: Some(Finish::Abort), ..Chunk::new(rid) }
}

/// Buffers that decoding keeps between messages, in addition to the arena.
#[derive(Debug, Default)]
pub(super) struct RowBuffers {
    /// Field names of a pickled message, in wire order.
    pub(super) names: Vec<Node>,
    /// Field values of the message, in wire order.
    pub(super) values: Vec<Node>,
    pub(super) listed: Vec<Node>,
    pub(super) finished: Vec<Node>,
    /// Token ids, when requested.
    pub(super) ids: Vec<i64>,
    pub(super) times: Vec<ChunkSeconds>,
    pub(super) nested: NestedPickle,
}

impl RowBuffers {
    /// Empties the buffers and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.listed.clear();
        self.finished.clear();
        self.ids.clear();
        self.times.clear();
    }
}
