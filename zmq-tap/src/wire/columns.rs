//! From a message's columns to chunks. Every column that is read is checked before anything is given out: a message is
//! understood or it is not, never half.

use trace::event::{Chunk, Finish};

use super::arena::Node;
use super::doc::{Doc, Items};
use super::schema::Columns;
use super::tokens::Tokens;
use super::{Limits, Undecoded};

/// The columns of one message.
pub(super) struct Table<'a, 'x> {
    pub(super) doc: Doc<'a>,
    pub(super) class: &'static str,
    pub(super) columns: &'x Columns,
    pub(super) values: &'x [Node],
    pub(super) limits: &'x Limits,
}

impl<'a> Table<'a, '_> {
    /// One chunk a request, with its id. `http_worker_ipcs` are filled in here, too.
    pub(super) fn requests(&self, chunks: &mut Vec<Chunk<'a>>) -> Result<(), Undecoded> {
        let Some(rids) = self.column(self.columns.rids) else {
            return Ok(());
        };
        let rids = self.doc.items(rids).ok_or_else(|| self.bad("rids", 0, "not a list"))?;
        for (row, rid) in rids.enumerate() {
            if row >= self.limits.items {
                return Err(Undecoded::Limit {
                    limit: "items",
                    value: self.limits.items,
                });
            }
            chunks.push(chunk(self.text("rids", row, rid)?));
        }
        for (chunk, (row, worker)) in chunks
            .iter_mut()
            .zip(self.rows(self.columns.workers, "http_worker_ipcs")?)
        {
            if !self.doc.is_nil(worker) {
                chunk.worker = Some(self.text("http_worker_ipcs", row, worker)?);
            }
        }
        Ok(())
    }

    /// Counts and finish reasons, from their columns or (0.4.0) from each request's `meta_info`.
    pub(super) fn counts(&self, chunks: &mut [Chunk<'a>], finished: &mut Vec<Node>) -> Result<(), Undecoded> {
        if self.columns.meta.is_some() {
            for (chunk, (row, meta)) in chunks.iter_mut().zip(self.rows(self.columns.meta, "meta_info")?) {
                self.meta(chunk, row, meta, finished)?;
            }
            return Ok(());
        }
        self.ints(chunks, self.columns.completion, "completion_tokens", |chunk| {
            &mut chunk.completion_tokens
        })?;
        self.ints(chunks, self.columns.prompt, "prompt_tokens", |chunk| {
            &mut chunk.prompt_tokens
        })?;
        self.ints(chunks, self.columns.cached, "cached_tokens", |chunk| {
            &mut chunk.cached_tokens
        })?;
        self.ints(chunks, self.columns.retractions, "retraction_counts", |chunk| {
            &mut chunk.retractions
        })?;
        for (chunk, (row, reason)) in chunks
            .iter_mut()
            .zip(self.rows(self.columns.finish, "finished_reasons")?)
        {
            chunk.finish = self.finish(row, reason)?;
            finished.push(reason);
        }
        Ok(())
    }

    /// How many ids each request lists. False when the column is absent.
    pub(super) fn listed(&self, chunks: &mut [Chunk<'a>], listed: &mut Vec<Node>) -> Result<bool, Undecoded> {
        let mut total = 0;
        for (chunk, (row, ids)) in chunks.iter_mut().zip(self.rows(self.columns.ids, "output_ids")?) {
            if !self.doc.is_nil(ids) {
                let found = Tokens::of(self.doc, ids).ok_or_else(|| self.bad("output_ids", row, "not token ids"))?;
                chunk.listed = Some(found.1);
                total += found.1 as usize;
                // References may list one long list many times over.
                if total > self.limits.items {
                    return Err(Undecoded::Limit {
                        limit: "items",
                        value: self.limits.items,
                    });
                }
            }
            listed.push(ids);
        }
        Ok(!listed.is_empty())
    }

    /// The requests that an `AbortReq` names.
    pub(super) fn aborted(&self, chunks: &mut Vec<Chunk<'a>>) -> Result<(), Undecoded> {
        let Some(rid) = self.column(self.columns.rid) else {
            return Ok(());
        };
        let abort = |rid| Chunk {
            finish: Some(Finish::Abort),
            ..chunk(rid)
        };
        if let Some(rids) = self.doc.items(rid) {
            for (row, rid) in rids.enumerate().take(self.limits.items) {
                chunks.push(abort(self.text("rid", row, rid)?));
            }
            return Ok(());
        }
        // An empty id goes with `abort_all`.
        let rid = self.text("rid", 0, rid)?;
        if !rid.is_empty() {
            chunks.push(abort(rid));
        }
        Ok(())
    }

    fn meta(&self, chunk: &mut Chunk<'a>, row: usize, meta: Node, finished: &mut Vec<Node>) -> Result<(), Undecoded> {
        self.doc
            .entries(meta)
            .ok_or_else(|| self.bad("meta_info", row, "not a dict"))?;
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
        for (chunk, (row, item)) in chunks.iter_mut().zip(self.rows(column, field)?) {
            *place(chunk) = self.count(field, row, item)?;
        }
        Ok(())
    }

    fn count(&self, field: &'static str, row: usize, item: Node) -> Result<Option<u32>, Undecoded> {
        if self.doc.is_nil(item) {
            return Ok(None);
        }
        let value = self.doc.int(item).ok_or_else(|| self.bad(field, row, "not a count"))?;
        u32::try_from(value)
            .map(Some)
            .map_err(|_| self.bad(field, row, "a count below 0 or beyond 32 bits"))
    }

    fn finish(&self, row: usize, reason: Node) -> Result<Option<Finish>, Undecoded> {
        if self.doc.is_nil(reason) {
            return Ok(None);
        }
        self.doc
            .entries(reason)
            .ok_or_else(|| self.bad("finished_reasons", row, "neither None nor a dict"))?;
        Ok(Some(
            match self.doc.entry(reason, b"type").and_then(|kind| self.doc.string(kind)) {
                Some(b"length") => Finish::Length,
                Some(b"stop") => Finish::Stop,
                Some(b"abort") => Finish::Abort,
                _ => Finish::Other,
            },
        ))
    }

    fn text(&self, field: &'static str, row: usize, node: Node) -> Result<&'a str, Undecoded> {
        let bytes = self
            .doc
            .string(node)
            .ok_or_else(|| self.bad(field, row, "not a string"))?;
        if bytes.len() > self.limits.text {
            return Err(Undecoded::Limit {
                limit: "text",
                value: self.limits.text,
            });
        }
        std::str::from_utf8(bytes).map_err(|_| self.bad(field, row, "not UTF-8"))
    }

    /// The value of a field; `None` when the layout lacks it or it is `None` as a whole.
    fn column(&self, place: Option<u16>) -> Option<Node> {
        let node = *self.values.get(usize::from(place?))?;
        (!self.doc.is_nil(node)).then_some(node)
    }

    /// A per-request column with its row numbers: as long as `rids`, or absent as a whole (`None` or empty).
    fn rows(&self, place: Option<u16>, field: &'static str) -> Result<Rows<'a>, Undecoded> {
        let Some(column) = self.column(place) else {
            return Ok(Rows(0, None));
        };
        let items = self.doc.items(column).ok_or_else(|| self.bad(field, 0, "not a list"))?;
        let requests = self.column(self.columns.rids).and_then(|rids| self.doc.len(rids));
        match self.doc.len(column) {
            Some(0) => Ok(Rows(0, None)),
            len if len == requests => Ok(Rows(0, Some(items))),
            _ => Err(self.bad(field, 0, "not as long as rids")),
        }
    }

    /// The class is right and the layout is not.
    pub(super) fn unfit(&self, what: &'static str) -> Undecoded {
        Undecoded::Layout {
            class: self.class,
            fields: self.values.len(),
            what,
        }
    }

    fn bad(&self, field: &'static str, row: usize, what: &'static str) -> Undecoded {
        Undecoded::Column {
            class: self.class,
            field,
            row,
            what,
        }
    }
}

/// Items of a column with their row numbers.
struct Rows<'a>(usize, Option<Items<'a>>);

impl Iterator for Rows<'_> {
    type Item = (usize, Node);

    fn next(&mut self) -> Option<(usize, Node)> {
        let node = self.1.as_mut()?.next()?;
        self.0 += 1;
        Some((self.0 - 1, node))
    }
}

fn chunk(rid: &str) -> Chunk<'_> {
    Chunk {
        rid,
        listed: None,
        completion_tokens: None,
        prompt_tokens: None,
        cached_tokens: None,
        finish: None,
        retractions: None,
        worker: None,
        ids: &[],
    }
}

/// What decoding keeps between messages beside the arena.
#[derive(Debug, Default)]
pub(super) struct Rowwise {
    /// The message's fields in wire order.
    pub(super) values: Vec<Node>,
    pub(super) listed: Vec<Node>,
    pub(super) finished: Vec<Node>,
    /// Token ids, when asked for.
    pub(super) ids: Vec<i64>,
}

impl Rowwise {
    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.listed.clear();
        self.finished.clear();
        self.ids.clear();
    }
}

/// Fills `values` with the fields of a pickled object's state dict; gives false when it has none to give.
pub(super) fn spread(doc: Doc<'_>, state: Node, values: &mut Vec<Node>) -> bool {
    let Some(mut entries) = doc.entries(state) else {
        return doc.is_nil(state);
    };
    while let (Some(_), Some(value)) = (entries.next(), entries.next()) {
        values.push(value);
    }
    true
}

/// Keys of a pickled object's state dict.
pub(super) fn keys(doc: Doc<'_>, state: Node) -> impl Iterator<Item = &[u8]> {
    let mut entries = doc.entries(state);
    std::iter::from_fn(move || {
        let entries = entries.as_mut()?;
        let key = entries.next()?;
        entries.next()?;
        Some(doc.string(key).unwrap_or_default())
    })
}
