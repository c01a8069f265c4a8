//! Lines of SGLang's logs.
//!
//! `[TRACE ..]` and `[TOK ..]` lines are in no release. They come from a patch whose output is public in the report
//! "Tokenizer Backpressure Bug (Decode TTFT)". All other forms come from the releases' own code (see docs/reference/import.md).

mod health;
mod python;
mod request;
mod time_stats;

use logs::text::{count, millis, number, split_once, value};
use logs::{Field, Form, Item, LogLines, Logged, Malformed, Record, Rid, Unread};
use trace::event::{LoggedState, Merged, Stage};

/// SGLang's log lines.
#[derive(Debug)]
pub struct Log;

/// `[TOK recv]` precedes the other `[TOK ..]` lines, because the first mark that fits decides.
const FORMS: &[Form] = &[
    ("[TRACE ", "trace", trace),
    ("[TOK recv]", "tok-recv", tok),
    ("[TOK ", "tok-other", tok),
    ("Streaming backlog: rid=", "streaming-backlog", backlog),
    ("Req Time Stats(rid=", "time-stats", time_stats::read),
    ("ReqTimeStats(rid=", "time-stats", time_stats::read),
    ("Receive: obj=", "request-received", request::receive),
    ("Finish: obj=", "request-finished", request::finish),
    ("Received output for rid=", "state-deleted", deleted),
    (
        "Health check failed. Server couldn't get a response from detokenizer for last ",
        "health-check-failed",
        health::read,
    ),
];

/// What SGLang and its tools write besides.
const UNREAD: &[Unread] = &[
    Unread {
        mark: "[RTRACE] ",
        name: "[RTRACE] lines",
        advice: "no release of SGLang writes them (pull request 31077); time stats and request logs of releases are read",
    },
    BENCHMARK,
    Unread { mark: " TTFT (ms): ", ..BENCHMARK },
    Unread { mark: " ITL (ms): ", ..BENCHMARK },
    Unread { mark: " TPOT (ms): ", ..BENCHMARK },
    Unread {
        mark: "\"mean_ttft_ms\": ",
        name: "a benchmark's results",
        advice: "they have the client's latencies and no times; `tokengap attach` during a benchmark shows where its requests waited",
    },
];
const BENCHMARK: Unread = Unread {
    mark: " Serving Benchmark Result ",
    name: "a benchmark's summary",
    advice: "it has no time of a single request; `tokengap attach` during a benchmark shows where its requests waited",
};

impl LogLines for Log {
    fn name(&self) -> &'static str {
        super::NAME
    }

    fn summary(&self) -> &'static str {
        "[TRACE ..] and [TOK ..] lines, streaming backlog warnings, request logs, request metrics, time stats and \
         failed health checks"
    }

    fn forms(&self) -> &'static [Form] {
        FORMS
    }

    fn has_free_text(&self, form: &str) -> bool {
        matches!(form, "request-received" | "request-finished")
    }

    fn unread(&self) -> &'static [Unread] {
        UNREAD
    }

    fn record_marks(&self) -> &'static [&'static str] {
        request::RECORD_MARKS
    }

    fn field(&self, name: &str) -> Field {
        request::field(name)
    }

    /// Parses a line of the request logger or of the request metrics.
    fn record(&self, record: &Record<'_>, sink: &mut dyn FnMut(&Item<'_>)) -> Option<Result<&'static str, Malformed>> {
        request::record(record, sink)
    }
}

fn stage<'l>(rid: Rid<'l>, stage: Stage<'l>) -> Item<'l> {
    Item { wall_ns: None, cut: rid.cut, what: Logged::Stage(stage) }
}

/// Parses `disagg] rid=20cba755... first_output_stream stage=stream_output_generation ...`.
fn trace(rest: &str, _: Option<u64>, sink: &mut dyn FnMut(&Item<'_>)) -> Result<(), Malformed> {
    let (area, body) = rest.split_once(']').ok_or(Malformed)?;
    // Names as in the public report. Another area is used as the role.
    let by = match area {
        "disagg" => "scheduler",
        "output" => "tokenizer",
        other => other,
    };
    let name = body.split_whitespace().find(|word| is_name(word)).ok_or(Malformed)?;
    let (tokens, pending) = (count(body, "output_len="), count(body, "pending="));
    let mut emit = |rid: Rid<'_>| {
        let reached = Stage { tokens, pending, ..Stage::new(rid.text, name, by) };
        sink(&stage(rid, reached));
    };
    if let Some(rid) = value(body, "rid=").and_then(Rid::read) {
        emit(rid);
        return Ok(());
    }
    let rids = body.split_once("batch_rids=").ok_or(Malformed)?.1;
    let end = match rids.strip_prefix(['[', '(']) {
        Some(list) => 1 + list.find([']', ')']).unwrap_or(list.len()),
        None => rids.find(char::is_whitespace).unwrap_or(rids.len()),
    };
    let words = rids[..end].split([',', ' ']).filter(|w| !w.trim_end_matches('.').is_empty());
    words.filter_map(Rid::read).for_each(emit);
    Ok(())
}

/// Whether the word can be a stage name: letters, digits, `_`, `.` and `-`, with a letter first.
fn is_name(word: &str) -> bool {
    const LONGEST: usize = 64;
    let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    word.len() <= LONGEST && word.bytes().all(letters) && word.as_bytes()[0].is_ascii_alphabetic()
}

/// Parses ` type=BatchTokenIDOutput rids=15 states=850 recv_wait_ms=0.2 more=True`, `cpu_high] proc=225.0 sys=7.1 states=1024`.
/// `sys` is ignored, because its meaning (kernel time of the process or of the machine) is undocumented.
fn tok(rest: &str, _: Option<u64>, sink: &mut dyn FnMut(&Item<'_>)) -> Result<(), Malformed> {
    let unknown = LoggedState { by: "tokenizer", ..LoggedState::default() };
    let state = LoggedState {
        states: count(rest, "states="),
        rids: count(rest, "rids="),
        recv_wait_ns: millis(rest, "recv_wait_ms="),
        more: match value(rest, "more=") {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => None,
        },
        cpu: number(rest, "proc=").map(|percent| percent / 100.0),
        ..unknown
    };
    if state == unknown {
        return Err(Malformed);
    }
    sink(&Item { wall_ns: None, cut: false, what: Logged::State(state) });
    Ok(())
}

/// Parses `4f1c.., coalescing 27 queued chunks into one. ..` (0.5.10 and later) and `4f1c.., draining 2 queued chunks. ..` (nightly builds
/// before 0.5.10).
fn backlog(rest: &str, _: Option<u64>, sink: &mut dyn FnMut(&Item<'_>)) -> Result<(), Malformed> {
    let (rid, tail) = split_once(rest, ", coalescing ").or_else(|| split_once(rest, ", draining ")).ok_or(Malformed)?;
    let rid = Rid::read(rid).ok_or(Malformed)?;
    let (chunks, _) = split_once(tail, " queued chunks").ok_or(Malformed)?;
    let chunks = chunks.parse().map_err(|_| Malformed)?;
    let merged = Merged { rid: rid.text, chunks, by: "tokenizer" };
    sink(&Item { wall_ns: None, cut: rid.cut, what: Logged::Merged(merged) });
    Ok(())
}

/// Parses `'4f1c..' but the state was deleted in TokenizerManager.`.
fn deleted(rest: &str, _: Option<u64>, sink: &mut dyn FnMut(&Item<'_>)) -> Result<(), Malformed> {
    let (rid, _) = split_once(rest, " but the state was deleted").ok_or(Malformed)?;
    let rid = Rid::read(rid).ok_or(Malformed)?;
    sink(&stage(rid, Stage::new(rid.text, "output_after_state_deleted", "tokenizer")));
    Ok(())
}

#[cfg(test)]
mod tests;
