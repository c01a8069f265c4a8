//! Conversion of a message's columns into chunks. Every column is validated as it is read, and one invalid column rejects the whole
//! message.

use trace::event::{Chunk, Finish};

use super::arena::Node;
use super::doc::Doc;
use super::part::{Item, Small};
use super::schema::Columns;
use super::{Limits, Undecoded, tokens};
use crate::msgpack::utf8;

/// The columns of one message.
pub(super) struct Table<'a, 'x> {
    pub(super) doc: Doc<'a>,
    pub(super) class: &'static str,
    pub(super) columns: &'x Columns,
    pub(super) values: &'x [Node],
    pub(super) limits: &'x Limits,
}

impl<'a> Table<'a, '_> {
    /// Checks for the fields that every message with generated tokens must have.
    pub(super) fn generates(&self, chunks: &[Chunk<'a>]) -> Result<(), Undecoded> {
        if chunks.iter().any(|chunk| chunk.completion_tokens.is_none()) {
            return Err(self.layout_mismatch("no completion_tokens"));
        }
        if self.columns.meta.is_none() && !self.present(self.columns.finish) {
            return Err(self.layout_mismatch("no finished_reasons"));
        }
        Ok(())
    }

    /// Adds one chunk for each request, with its id and its entry in `http_worker_ipcs`.
    #[inline(never)]
    pub(super) fn requests(&self, chunks: &mut Vec<Chunk<'a>>) -> Result<(), Undecoded> {
        if self.columns.rids.is_none() {
            return Err(self.layout_mismatch("no rids"));
        }
        let Some(rids) = self.column(self.columns.rids) else {
            return Ok(());
        };
        let count = self.doc.len(rids).ok_or_else(|| self.bad_value("rids", 0, "not a list"))? as usize;
        if count > self.limits.items {
            return Err(Undecoded::Limit { limit: "items", value: self.limits.items });
        }
        chunks.reserve(count);
        for part in self.doc.parts(rids) {
            part.each_str(|row, rid| {
                chunks.push(Chunk::new(self.rid("rids", row, rid)?));
                Ok::<(), Undecoded>(())
            })?;
        }
        let Some(workers) = self.full(self.columns.workers, "http_worker_ipcs", chunks)? else {
            return Ok(());
        };
        self.doc.parts(workers).try_for_each(|part| {
            part.each(|row, worker| {
                if !self.doc.is_nil(worker) {
                    chunks[row].worker = Some(self.text("http_worker_ipcs", row, self.doc.string(worker))?);
                }
                Ok(())
            })
        })
    }

    /// Reads counts and finish reasons, from their columns or (0.4.0) from each request's `meta_info`. Fills `finished` with each chunk's
    /// finish reason, or leaves it empty when no chunk has one.
    pub(super) fn counts(&self, chunks: &mut [Chunk<'a>], finished: &mut Vec<Node>) -> Result<(), Undecoded> {
        if self.columns.meta.is_some() {
            let Some(meta) = self.full(self.columns.meta, "meta_info", chunks)? else {
                return Ok(());
            };
            return self
                .doc
                .parts(meta)
                .try_for_each(|part| part.each(|row, meta| self.meta(&mut chunks[row], row, meta, finished)));
        }
        self.ints(chunks, self.columns.completion, "completion_tokens", |chunk| &mut chunk.completion_tokens)?;
        self.ints(chunks, self.columns.prompt, "prompt_tokens", |chunk| &mut chunk.prompt_tokens)?;
        self.ints(chunks, self.columns.cached, "cached_tokens", |chunk| &mut chunk.cached_tokens)?;
        self.ints(chunks, self.columns.retractions, "retraction_counts", |chunk| &mut chunk.retractions)?;
        let Some(reasons) = self.full(self.columns.finish, "finished_reasons", chunks)? else {
            return Ok(());
        };
        self.doc.parts(reasons).try_for_each(|part| {
            part.each(|row, reason| {
                chunks[row].finish = self.finish(row, reason)?;
                finished.push(reason);
                Ok(())
            })
        })
    }

    /// Reads how many ids each request lists. Returns false when the column is absent.
    #[inline(never)]
    pub(super) fn listed(&self, chunks: &mut [Chunk<'a>], listed: &mut Vec<Node>) -> Result<bool, Undecoded> {
        let place = self.columns.ids;
        let Some(ids) = self.full(place, "output_ids", chunks)? else {
            return Ok(self.present(place));
        };
        let mut total = 0;
        for part in self.doc.parts(ids) {
            part.lists(listed);
            let nodes = listed.get(part.rows()).unwrap_or_default();
            for ((row, node), chunk) in part.rows().zip(nodes).zip(chunks.get_mut(part.rows()).unwrap_or_default()) {
                chunk.listed = match *node {
                    Node::Ints { len, .. } | Node::Words { words: len, .. } => Some(u32::from(len)),
                    node => self.count_listed(row, node)?,
                };
                total += chunk.listed.unwrap_or(0) as usize;
                // A hostile message may refer to one long list many times.
                if total > self.limits.items {
                    return Err(Undecoded::Limit { limit: "items", value: self.limits.items });
                }
            }
        }
        Ok(true)
    }

    /// Reads the text of each request. Leaves out texts that are not UTF-8.
    #[inline(never)]
    pub(super) fn texts(&self, chunks: &mut [Chunk<'a>]) -> Result<(), Undecoded> {
        let Some(texts) = self.full(self.columns.text, "output_strs", chunks)? else {
            return Ok(());
        };
        self.doc.parts(texts).try_for_each(|part| {
            part.each_str(|row, text| {
                chunks[row].text = text.and_then(|text| std::str::from_utf8(text).ok());
                Ok(())
            })
        })
    }

    /// Number of ids in the list of one request; `None` if there is no list.
    #[inline(never)]
    fn count_listed(&self, row: usize, ids: Node) -> Result<Option<u32>, Undecoded> {
        let count = tokens::count(self.doc, ids);
        if count.is_none() && !self.doc.is_nil(ids) {
            return Err(self.bad_value("output_ids", row, "not token ids"));
        }
        Ok(count)
    }

    /// Adds a chunk for each request that an `AbortReq` names.
    pub(super) fn aborted(&self, chunks: &mut Vec<Chunk<'a>>) -> Result<(), Undecoded> {
        if self.columns.rid.is_none() {
            return Err(self.layout_mismatch("no rid"));
        }
        let Some(rid) = self.column(self.columns.rid) else {
            return Ok(());
        };
        let abort = |rid| Chunk { finish: Some(Finish::Abort), ..Chunk::new(rid) };
        if let Some(rids) = self.doc.items(rid) {
            for (row, rid) in rids.take(self.limits.items).enumerate() {
                chunks.push(abort(self.rid("rid", row, self.doc.string(rid))?));
            }
            return Ok(());
        }
        // The id is empty when `abort_all` is set.
        let rid = self.rid("rid", 0, self.doc.string(rid))?;
        if !rid.is_empty() {
            chunks.push(abort(rid));
        }
        Ok(())
    }

    fn meta(&self, chunk: &mut Chunk<'a>, row: usize, meta: Node, finished: &mut Vec<Node>) -> Result<(), Undecoded> {
        self.doc.entries(meta).ok_or_else(|| self.bad_value("meta_info", row, "not a dict"))?;
        let count = |name: &[u8]| match self.doc.entry(meta, name) {
            Some(value) => self.count("meta_info", row, value),
            None => Ok(None),
        };
        chunk.completion_tokens = count(b"completion_tokens")?;
        chunk.prompt_tokens = count(b"prompt_tokens")?;
        chunk.cached_tokens = count(b"cached_tokens")?;
        let reason = self.doc.entry(meta, b"finish_reason").unwrap_or(Node::Nil);
        chunk.finish = self.finish(row, reason)?;
        finished.push(reason);
        Ok(())
    }

    fn ints(
        &self,
        chunks: &mut [Chunk<'a>],
        column: Option<u16>,
        field: &'static str,
        place: impl for<'c> Fn(&'c mut Chunk<'a>) -> &'c mut Option<u32>,
    ) -> Result<(), Undecoded> {
        let Some(column) = self.full(column, field, chunks)? else {
            return Ok(());
        };
        for part in self.doc.parts(column) {
            let rows = chunks.get_mut(part.rows()).unwrap_or_default();
            match part.small() {
                Some(Small::Pickled(run)) => {
                    for (chunk, [_, value]) in rows.iter_mut().zip(run) {
                        *place(chunk) = Some((*value).into());
                    }
                }
                Some(Small::Packed(run)) => {
                    for (chunk, value) in rows.iter_mut().zip(run) {
                        *place(chunk) = Some((*value).into());
                    }
                }
                None => part.each_int(|row, item| {
                    *place(&mut chunks[row]) = match item {
                        Item::Int(value) => Some(self.checked_u32(field, row, value)?),
                        Item::Nil => None,
                        Item::Other => return Err(self.bad_value(field, row, "not a count")),
                    };
                    Ok(())
                })?,
            }
        }
        Ok(())
    }

    fn count(&self, field: &'static str, row: usize, item: Node) -> Result<Option<u32>, Undecoded> {
        if self.doc.is_nil(item) {
            return Ok(None);
        }
        let value = self.doc.int(item).ok_or_else(|| self.bad_value(field, row, "not a count"))?;
        self.checked_u32(field, row, value).map(Some)
    }

    fn checked_u32(&self, field: &'static str, row: usize, value: i64) -> Result<u32, Undecoded> {
        u32::try_from(value).map_err(|_| self.bad_value(field, row, "a count that is negative or exceeds 32 bits"))
    }

    fn finish(&self, row: usize, reason: Node) -> Result<Option<Finish>, Undecoded> {
        if self.doc.is_nil(reason) {
            return Ok(None);
        }
        self.doc.entries(reason).ok_or_else(|| self.bad_value("finished_reasons", row, "neither None nor a dict"))?;
        Ok(Some(match self.doc.entry(reason, b"type").and_then(|kind| self.doc.string(kind)) {
            Some(b"length") => Finish::Length,
            Some(b"stop") => Finish::Stop,
            Some(b"abort") => Finish::Abort,
            _ => Finish::Other,
        }))
    }

    /// Reads a request's id. Clients choose it, so an id that is too long or not UTF-8 becomes empty, and the other chunks stay valid.
    fn rid(&self, field: &'static str, row: usize, rid: Option<&'a [u8]>) -> Result<&'a str, Undecoded> {
        match self.text(field, row, rid) {
            Err(_) if rid.is_some() => Ok(""),
            read => read,
        }
    }

    fn text(&self, field: &'static str, row: usize, text: Option<&'a [u8]>) -> Result<&'a str, Undecoded> {
        let text = text.ok_or_else(|| self.bad_value(field, row, "not a string"))?;
        if text.len() > self.limits.text {
            return Err(Undecoded::Limit { limit: "text", value: self.limits.text });
        }
        utf8(text).ok_or_else(|| self.bad_value(field, row, "not UTF-8"))
    }

    /// The value of a field; `None` when the layout lacks the field or its value is `None`.
    fn column(&self, place: Option<u16>) -> Option<Node> {
        let node = *self.values.get(usize::from(place?))?;
        (!self.doc.is_nil(node)).then_some(node)
    }

    /// The value of a per-request column, if it is as long as `rids` and not all `None`. A column may be absent as a whole (`None` or
    /// empty); any other length is an error.
    fn full(&self, place: Option<u16>, field: &'static str, chunks: &[Chunk<'a>]) -> Result<Option<Node>, Undecoded> {
        let Some(column) = self.column(place) else {
            return Ok(None);
        };
        match self.doc.len(column) {
            Some(0) => Ok(None),
            Some(len) if len as usize != chunks.len() => Err(self.bad_value(field, 0, "not as long as rids")),
            Some(_) if self.doc.all_nil(column) => Ok(None),
            Some(_) => Ok(Some(column)),
            None => Err(self.bad_value(field, 0, "not a list")),
        }
    }

    /// Whether a per-request column is present, even if all its entries are `None`.
    pub(super) fn present(&self, place: Option<u16>) -> bool {
        self.column(place).and_then(|column| self.doc.len(column)).is_some_and(|len| len > 0)
    }

    /// Error for a known class with an unsupported layout.
    pub(super) fn layout_mismatch(&self, what: &'static str) -> Undecoded {
        Undecoded::Layout { class: self.class, fields: self.values.len(), what }
    }

    fn bad_value(&self, field: &'static str, row: usize, what: &'static str) -> Undecoded {
        Undecoded::Column { class: self.class, field, row, what }
    }
}

/// Buffers that decoding keeps between messages, in addition to the arena.
#[derive(Debug, Default)]
pub(super) struct Rowwise {
    /// Field names of a pickled message, in wire order.
    pub(super) names: Vec<Node>,
    /// Field values of the message, in wire order.
    pub(super) values: Vec<Node>,
    pub(super) listed: Vec<Node>,
    pub(super) finished: Vec<Node>,
    /// Token ids, when requested.
    pub(super) ids: Vec<i64>,
}

impl Rowwise {
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.listed.clear();
        self.finished.clear();
        self.ids.clear();
    }
}
