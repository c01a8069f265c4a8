//! Lines of SGLang's logs.
//!
//! `[TRACE ..]` and `[TOK ..]` lines are in no release. They come from a patch whose output is public in the report
//! "Tokenizer Backpressure Bug (Decode TTFT)". All other forms come from the releases' own code (see docs/reference/import.md).

mod access;
mod health;
mod python;
mod request;
mod time_stats;

use logs::text::{count_of_key, duration_ns_of_key, number_of_key, split_once, value_of_key};
use logs::{
    FieldUse, JsonRecord, LineForm, LogLines, LoggedRid, MalformedLine, Statement, StatementKind, UnreadFileKind,
};
use trace::event::{LoggedState, Merged, Stage};

/// SGLang's log lines.
#[derive(Debug)]
pub struct Log;

/// Lines of requests and processes, then those of the HTTP server.
const FORMS: &[LineForm] = &{
    let mut forms = [access::ADDRESS; OWN_FORMS.len() + access::FORMS.len() + 1];
    let mut index = 0;
    while index < OWN_FORMS.len() {
        forms[index] = OWN_FORMS[index];
        index += 1;
    }
    while index < OWN_FORMS.len() + access::FORMS.len() {
        forms[index] = access::FORMS[index - OWN_FORMS.len()];
        index += 1;
    }
    forms
};

/// `[TOK recv]` precedes the other `[TOK ..]` lines, because the first mark that fits decides.
const OWN_FORMS: &[LineForm] = &[
    LineForm { mark: "[TRACE ", name: "trace", parse: read_trace_stages },
    LineForm { mark: "[TOK recv]", name: "tok-recv", parse: read_tokenizer_state },
    LineForm { mark: "[TOK ", name: "tok-other", parse: read_tokenizer_state },
    LineForm { mark: "Streaming backlog: rid=", name: "streaming-backlog", parse: read_merged_chunks },
    LineForm { mark: "Req Time Stats(rid=", name: "time-stats", parse: time_stats::read_time_stats },
    LineForm { mark: "ReqTimeStats(rid=", name: "time-stats", parse: time_stats::read_time_stats },
    LineForm { mark: "Receive: obj=", name: "request-received", parse: request::read_receive },
    LineForm { mark: "Finish: obj=", name: "request-finished", parse: request::read_finish },
    LineForm { mark: "Received output for rid=", name: "state-deleted", parse: read_deleted_state },
    LineForm {
        mark: "Health check failed. Server couldn't get a response from detokenizer for last ",
        name: "health-check-failed",
        parse: health::read_failed_check,
    },
];

/// What SGLang and its tools write besides.
const UNREAD: &[UnreadFileKind] = &[
    UnreadFileKind {
        mark: "[RTRACE] ",
        name: "[RTRACE] lines",
        advice: "no release of SGLang writes them (pull request 31077); time stats and request logs of releases are read",
    },
    BENCHMARK,
    UnreadFileKind { mark: " TTFT (ms): ", ..BENCHMARK },
    UnreadFileKind { mark: " ITL (ms): ", ..BENCHMARK },
    UnreadFileKind { mark: " TPOT (ms): ", ..BENCHMARK },
    UnreadFileKind {
        mark: "\"mean_ttft_ms\": ",
        name: "a benchmark's results",
        advice: "they have the client's latencies and no times; `tokengap attach` during a benchmark shows where its requests waited",
    },
];
const BENCHMARK: UnreadFileKind = UnreadFileKind {
    mark: " Serving Benchmark Result ",
    name: "a benchmark's summary",
    advice: "it has no time of a single request; `tokengap attach` during a benchmark shows where its requests waited",
};

impl LogLines for Log {
    fn engine_name(&self) -> &'static str {
        super::NAME
    }

    fn forms_summary(&self) -> &'static str {
        "[TRACE ..] and [TOK ..] lines, streaming backlog warnings, request logs, request metrics, time stats and \
         failed health checks"
    }

    fn line_forms(&self) -> &'static [LineForm] {
        FORMS
    }

    fn has_free_text(&self, form: &str) -> bool {
        matches!(form, "request-received" | "request-finished")
    }

    fn unread_file_kinds(&self) -> &'static [UnreadFileKind] {
        UNREAD
    }

    fn record_marks(&self) -> &'static [&'static str] {
        request::RECORD_MARKS
    }

    fn field_use(&self, name: &str) -> FieldUse {
        request::field_use(name)
    }

    /// Parses a line of the request logger or of the request metrics, and passes what it states to `sink`. Returns the name of its form, or
    /// the error of a malformed line. `None` for a record of another program.
    fn read_record(
        &self,
        record: &JsonRecord<'_>,
        sink: &mut dyn FnMut(&Statement<'_>),
    ) -> Option<Result<&'static str, MalformedLine>> {
        request::read_record(record, sink)
    }
}

/// Statement that a request reached a stage, at the time of the line.
fn stage_statement<'l>(rid: LoggedRid<'l>, stage: Stage<'l>) -> Statement<'l> {
    Statement { wall_ns: None, is_rid_truncated: rid.is_truncated, kind: StatementKind::Stage(stage) }
}

/// Parses the text behind the mark of a line, `disagg] rid=20cba755... first_output_stream stage=stream_output_generation ...`, and passes
/// the stage of each named request to `sink`.
fn read_trace_stages(
    text_behind_mark: &str,
    _line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let (area, body) = text_behind_mark.split_once(']').ok_or(MalformedLine)?;
    let stage_name = body.split_whitespace().find(|word| is_stage_name(word)).ok_or(MalformedLine)?;
    let tokens = count_of_key(body, "output_len=");
    let pending = count_of_key(body, "pending=");
    let mut emit_stage = |rid: LoggedRid<'_>| {
        let stage = Stage::new(rid.text, stage_name, role_of_trace_area(area));
        sink(&stage_statement(rid, Stage { tokens, pending, ..stage }));
    };
    if let Some(rid) = value_of_key(body, "rid=").and_then(LoggedRid::parse) {
        emit_stage(rid);
        return Ok(());
    }
    // Without a request id, the line is about a whole batch.
    let (_, rids) = body.split_once("batch_rids=").ok_or(MalformedLine)?;
    let words = first_list_or_word(rids).split([',', ' ']);
    // A list that was cut ends with dots.
    let words = words.filter(|word| !word.trim_end_matches('.').is_empty());
    words.filter_map(LoggedRid::parse).for_each(emit_stage);
    Ok(())
}

/// Role of the process that writes lines about this area. The first two are as in the public report; another area is used as the role.
fn role_of_trace_area(area: &str) -> &str {
    match area {
        "disagg" => "scheduler",
        "output" => "tokenizer",
        other => other,
    }
}

/// The list at the beginning of the text, up to its closing bracket, or the first word.
fn first_list_or_word(text: &str) -> &str {
    let end = match text.strip_prefix(['[', '(']) {
        Some(list) => 1 + list.find([']', ')']).unwrap_or(list.len()),
        None => text.find(char::is_whitespace).unwrap_or(text.len()),
    };
    &text[..end]
}

/// Whether the word, which is not empty, can be a stage name: letters, digits, `_`, `.` and `-`, with a letter first.
fn is_stage_name(word: &str) -> bool {
    const LONGEST: usize = 64;
    word.len() <= LONGEST
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        && word.as_bytes()[0].is_ascii_alphabetic()
}

/// Parses the state of the tokenizer in the text behind the mark of a line, ` type=BatchTokenIDOutput rids=15 states=850 recv_wait_ms=0.2
/// more=True` or `cpu_high] proc=225.0 sys=7.1 states=1024`. `sys` is ignored, because its meaning (kernel time of the process or of the
/// machine) is undocumented.
fn read_tokenizer_state(
    text_behind_mark: &str,
    _line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let unknown = LoggedState { by: "tokenizer", ..LoggedState::default() };
    let state = LoggedState {
        states: count_of_key(text_behind_mark, "states="),
        rids: count_of_key(text_behind_mark, "rids="),
        recv_wait_ns: duration_ns_of_key(text_behind_mark, "recv_wait_ms="),
        more: match value_of_key(text_behind_mark, "more=") {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => None,
        },
        cpu: number_of_key(text_behind_mark, "proc=").map(|percent| percent / 100.0),
        ..unknown
    };
    // A line that states none of these is of another form.
    if state == unknown {
        return Err(MalformedLine);
    }
    sink(&Statement { wall_ns: None, is_rid_truncated: false, kind: StatementKind::ProcessState(state) });
    Ok(())
}

/// Parses the request and its number of merged chunks in the text behind the mark of a line. That is
/// `4f1c.., coalescing 27 queued chunks into one. ..` (0.5.10 and later) or `4f1c.., draining 2 queued chunks. ..` (nightly builds before
/// 0.5.10).
fn read_merged_chunks(
    text_behind_mark: &str,
    _line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let (rid, tail) = split_once(text_behind_mark, ", coalescing ")
        .or_else(|| split_once(text_behind_mark, ", draining "))
        .ok_or(MalformedLine)?;
    let rid = LoggedRid::parse(rid).ok_or(MalformedLine)?;
    let (chunks, _) = split_once(tail, " queued chunks").ok_or(MalformedLine)?;
    let chunks = chunks.parse().map_err(|_| MalformedLine)?;
    let merged = Merged { rid: rid.text, chunks, by: "tokenizer" };
    sink(&Statement { wall_ns: None, is_rid_truncated: rid.is_truncated, kind: StatementKind::MergedChunks(merged) });
    Ok(())
}

/// Parses the request in the text behind the mark of a line, `'4f1c..' but the state was deleted in TokenizerManager.`.
fn read_deleted_state(
    text_behind_mark: &str,
    _line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let (rid, _) = split_once(text_behind_mark, " but the state was deleted").ok_or(MalformedLine)?;
    let rid = LoggedRid::parse(rid).ok_or(MalformedLine)?;
    sink(&stage_statement(rid, Stage::new(rid.text, "output_after_state_deleted", "tokenizer")));
    Ok(())
}

#[cfg(test)]
mod tests;
