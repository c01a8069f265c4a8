//! Counters of lines read and lines not understood.

use std::collections::BTreeMap;

use serde::Serialize;

/// Known forms of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// `[TRACE disagg] rid=.. first_output_stream ..`
    Trace,
    /// `[TRACE disagg] output_send .. batch_rids=..`
    TraceBatch,
    /// `[TOK recv] type=.. rids=15 states=850 recv_wait_ms=0.2 more=True`
    TokRecv,
    /// `[TOK cpu_high] proc=225.0 .. states=1024` and other `[TOK ..]` lines.
    TokOther,
    /// `Streaming backlog: rid=.., coalescing 27 queued chunks into one.`
    StreamingBacklog,
    /// `Req Time Stats(rid=.., ..): queue_duration=..`
    TimeStats,
    /// `Receive: obj=..` and `"event": "request.received"`.
    RequestReceived,
    /// `Finish: obj=.., out=..` and `"event": "request.finished"`.
    RequestFinished,
    /// A line of `sglang-request-metrics-*.log`.
    RequestMetrics,
    /// `Received output for rid=.. but the state was deleted`
    StateDeleted,
}

/// Reasons kept.
const REASONS: usize = 8;

/// Counters of an import.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Files read.
    pub files: u64,
    /// Files passed over, each with the reason; the first few.
    pub skipped: Vec<String>,
    /// Files passed over in all.
    pub files_skipped: u64,
    /// Files that could not be read to their end, each with the reason; the first few.
    pub broken: Vec<String>,
    /// Bytes of text, decompressed.
    pub bytes: u64,
    /// Lines.
    pub lines: u64,
    /// Lines of each known form.
    pub forms: BTreeMap<Form, u64>,
    /// Lines of no known form.
    pub unknown: u64,
    /// Lines of a known form that say nothing usable.
    pub malformed: u64,
    /// Lines of a known form without a time that can be read.
    pub undated: u64,
    /// Lines longer than the limit, cut there.
    pub cut: u64,
    /// Known lines whose stamp names no zone.
    pub zone_assumed: u64,
    /// Known lines whose stamp names no year.
    pub year_assumed: u64,
    /// Known lines whose stamp is in whole seconds.
    pub whole_seconds: u64,
    /// Events made.
    pub events: u64,
    /// Events that came after a later one had been passed on.
    pub late: u64,
    /// Events passed on before their time because too many were held.
    pub hurried: u64,
    /// Files that could not be opened when their time came: too many were open.
    pub opened_late: u64,
    /// Lines whose rid is cut short and was completed.
    pub rids_completed: u64,
    /// Lines whose rid is cut short and fits several.
    pub rids_ambiguous: u64,
    /// Lines whose rid is cut short and fits none that is known whole.
    pub rids_incomplete: u64,
    /// Whole rids forgotten to make room.
    pub rids_forgotten: u64,
    /// The first line of no known form, without anything that could be a prompt.
    #[serde(skip)]
    pub first_unknown: Option<String>,
}

impl Stats {
    /// Lines of known forms.
    pub fn known(&self) -> u64 {
        self.forms.values().sum()
    }

    pub(super) fn skip(&mut self, what: String) {
        self.files_skipped += 1;
        if self.skipped.len() < REASONS {
            self.skipped.push(what);
        }
    }

    pub(super) fn breaks(&mut self, what: String) {
        if self.broken.len() < REASONS {
            self.broken.push(what);
        }
    }
}
