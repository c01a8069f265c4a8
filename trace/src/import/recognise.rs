//! Recognition of messages with known forms.
//!
//! `[TRACE ..]` and `[TOK ..]` lines are in no release of the engine. They come from a patch whose output is public in the report
//! "Tokenizer Backpressure Bug (Decode TTFT)". All other forms come from the releases' own code (see docs/reference/import.md).

use aho_corasick::{AhoCorasick, MatchKind};

use super::item::{Item, Rid, Statement};
use super::json::Object;
use super::meta::Meta;
use super::stats::Form;
use super::text::{count, epoch_ns, millis, number, value};

/// Marker text of each known form. The first marker in a line decides, so that a prompt cannot imitate another form.
const MARKS: [(&str, Mark); 11] = [
    ("[TRACE ", Mark::Trace),
    ("[TOK ", Mark::Tok),
    ("Streaming backlog: rid=", Mark::Backlog),
    ("Req Time Stats(rid=", Mark::TimeStats),
    ("ReqTimeStats(rid=", Mark::TimeStats),
    ("Receive: obj=", Mark::Receive),
    ("Finish: obj=", Mark::Finish),
    ("Received output for rid=", Mark::Deleted),
    ("\"request.received\"", Mark::Json),
    ("\"request.finished\"", Mark::Json),
    ("\"request_parameters\"", Mark::Json),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Trace,
    Tok,
    Backlog,
    TimeStats,
    Receive,
    Finish,
    Deleted,
    Json,
}

/// A line of a known form without usable content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Finds and reads messages.
#[derive(Clone, Debug)]
pub(super) struct Recogniser(AhoCorasick);

impl Recogniser {
    pub(super) fn new() -> Self {
        let marks = MARKS.iter().map(|m| m.0);
        // Only leftmost searches are vectorised.
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(marks);
        Self(built.expect("a few short constants make an automaton"))
    }

    /// Whether the line may have a known form. Fast, because most lines do not.
    pub(super) fn may_match(&self, line: &[u8]) -> bool {
        self.0.is_match(line)
    }

    /// Passes the content of the message to `sink`. `line_ns` is the line's timestamp. `None` if the form is unknown.
    pub(super) fn read<'l>(
        &self,
        message: &'l str,
        line_ns: Option<u64>,
        sink: &mut dyn FnMut(Item<'l>),
    ) -> Option<Result<Form, Malformed>> {
        let found = self.0.find(message)?;
        let rest = &message[found.end()..];
        Some(match MARKS[found.pattern().as_usize()].1 {
            Mark::Trace => trace(rest, sink),
            Mark::Tok => Ok(tok(rest, sink)),
            Mark::Backlog => backlog(rest, sink),
            Mark::TimeStats => time_stats(rest, line_ns, sink),
            Mark::Receive => request(rest, "receive_logged", sink).map(|_| Form::RequestReceived),
            Mark::Finish => finish(rest, sink),
            Mark::Deleted => deleted(rest, sink),
            // JSON objects are parsed by the caller.
            Mark::Json => return None,
        })
    }
}

fn plain<'l>(role: &'l str, statement: Statement<Rid<'l>, &'l str>) -> Item<'l> {
    Item {
        wall_ns: None,
        role,
        statement,
    }
}

/// Parses `disagg] rid=20cba755... first_output_stream stage=stream_output_generation ...`.
fn trace<'l>(rest: &'l str, sink: &mut dyn FnMut(Item<'l>)) -> Result<Form, Malformed> {
    let (area, body) = rest.split_once(']').ok_or(Malformed)?;
    // Names as in the public report. Another area is used as the role.
    let role = match area {
        "disagg" => "scheduler",
        "output" => "tokenizer",
        other => other,
    };
    let name = body.split_whitespace().find(|word| is_name(word)).ok_or(Malformed)?;
    let stage = |rid| Statement::Stage {
        rid,
        name,
        tokens: count(body, "output_len="),
        pending: count(body, "pending="),
    };
    if let Some(rid) = value(body, "rid=").and_then(Rid::read) {
        sink(plain(role, stage(rid)));
        return Ok(Form::Trace);
    }
    let rids = body.split_once("batch_rids=").ok_or(Malformed)?.1;
    let end = match rids.strip_prefix(['[', '(']) {
        Some(list) => 1 + list.find([']', ')']).unwrap_or(list.len()),
        None => rids.find(char::is_whitespace).unwrap_or(rids.len()),
    };
    let words = rids[..end]
        .split([',', ' '])
        .filter(|w| !w.trim_end_matches('.').is_empty());
    for rid in words.filter_map(Rid::read) {
        sink(plain(role, stage(rid)));
    }
    Ok(Form::TraceBatch)
}

/// Whether the word can be a stage name: letters, digits, `_`, `.` and `-`, with a letter first.
fn is_name(word: &str) -> bool {
    const LONGEST: usize = 64;
    let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    word.len() <= LONGEST && word.bytes().all(letters) && word.as_bytes()[0].is_ascii_alphabetic()
}

/// Parses `recv] type=BatchTokenIDOutput rids=15 states=850 recv_wait_ms=0.2 more=True`, `cpu_high] proc=225.0 sys=7.1 states=1024`.
/// `sys` is ignored, because its meaning (kernel time of the process or of the machine) is undocumented.
fn tok<'l>(rest: &'l str, sink: &mut dyn FnMut(Item<'l>)) -> Form {
    let statement = Statement::LoggedState {
        states: count(rest, "states="),
        rids: count(rest, "rids="),
        recv_wait_ns: millis(rest, "recv_wait_ms="),
        more: match value(rest, "more=") {
            Some("True") => Some(true),
            Some("False") => Some(false),
            _ => None,
        },
        cpu: number(rest, "proc=").map(|percent| percent / 100.0),
    };
    sink(plain("tokenizer", statement));
    if rest.starts_with("recv]") {
        Form::TokRecv
    } else {
        Form::TokOther
    }
}

/// Parses `4f1c.., merging 27 queued chunks into one. ..` (0.5.10 and later).
fn backlog<'l>(rest: &'l str, sink: &mut dyn FnMut(Item<'l>)) -> Result<Form, Malformed> {
    let (rid, tail) = rest.split_once(", merging ").ok_or(Malformed)?;
    let rid = Rid::read(rid).ok_or(Malformed)?;
    let chunks = tail.split(' ').next().and_then(|n| n.parse().ok()).ok_or(Malformed)?;
    sink(plain("tokenizer", Statement::Merged { rid, chunks }));
    Ok(Form::StreamingBacklog)
}

/// Parses `.., input len=12, output len=30, type=unified): queue_duration=1.00ms, forward_duration=4.50ms, entry_time=1768722900.123`.
///
/// Logged when the scheduler has finished the request. Later releases log the wall time at which it started to wait. Earlier ones
/// do not, so the durations count back from the line's own timestamp.
fn time_stats<'l>(rest: &'l str, line_ns: Option<u64>, sink: &mut dyn FnMut(Item<'l>)) -> Result<Form, Malformed> {
    let (head, tail) = rest.split_once("): ").ok_or(Malformed)?;
    let rid = head.split(',').next().and_then(Rid::read).ok_or(Malformed)?;
    let tokens = count(head, "output len=").or_else(|| count(head, "output_len="));
    let (queue, forward) = (millis(tail, "queue_duration="), millis(tail, "forward_duration="));
    let unified = head.ends_with("type=unified");
    let entry = number(tail, "entry_time=").and_then(epoch_ns).filter(|_| unified);
    let spent = queue.zip(forward).map(|(q, f)| q.saturating_add(f));
    let end = match (entry, spent) {
        (Some(entry), Some(spent)) => Some(entry.saturating_add(spent)),
        _ => line_ns,
    };
    let mut stage = |name, wall_ns| {
        let statement = Statement::Stage {
            rid,
            name,
            tokens: tokens.filter(|_| name == "completion"),
            pending: None,
        };
        sink(Item {
            wall_ns,
            role: "scheduler",
            statement,
        });
    };
    if let (Some(end), Some(queue), Some(forward)) = (end, queue, forward) {
        let entered = end.saturating_sub(forward);
        stage("wait_queue_entry", Some(entered.saturating_sub(queue)));
        stage("forward_entry", Some(entered));
    }
    stage("completion", end);
    Ok(Form::TimeStats)
}

/// Parses `GenerateReqInput(received_time=None, rid='4f1c..', text='..`. Only numbers precede the rid, and nothing after it is
/// read. A text would be in quotes, so the first quote of the line must be the rid's.
fn request<'l>(rest: &'l str, name: &'l str, sink: &mut dyn FnMut(Item<'l>)) -> Result<Rid<'l>, Malformed> {
    let quote = rest.find(['\'', '"']).filter(|&at| rest[..at].ends_with("rid="));
    let rid = quote.and_then(|at| Rid::read(rest[at + 1..].split(['\'', '"']).next()?));
    let rid = rid.ok_or(Malformed)?;
    let statement = Statement::Stage {
        rid,
        name,
        tokens: None,
        pending: None,
    };
    sink(plain("tokenizer", statement));
    Ok(rid)
}

/// Like [`request`], followed by `, out={'text': .., 'meta_info': {..}}`.
fn finish<'l>(rest: &'l str, sink: &mut dyn FnMut(Item<'l>)) -> Result<Form, Malformed> {
    let rid = request(rest, "finish_logged", sink)?;
    Meta::of_repr(rest).emit(rid, sink);
    Ok(Form::RequestFinished)
}

/// Parses `'4f1c..' but the state was deleted in TokenizerManager.`.
fn deleted<'l>(rest: &'l str, sink: &mut dyn FnMut(Item<'l>)) -> Result<Form, Malformed> {
    let (rid, _) = rest.split_once(" but the state was deleted").ok_or(Malformed)?;
    let statement = Statement::Stage {
        rid: Rid::read(rid).ok_or(Malformed)?,
        name: "output_after_state_deleted",
        tokens: None,
        pending: None,
    };
    sink(plain("tokenizer", statement));
    Ok(Form::StateDeleted)
}

/// Parses one of the engine's own JSON records. `None` for other objects.
pub(super) fn object<'l>(object: &'l Object<'_>, sink: &mut dyn FnMut(Item<'l>)) -> Option<Result<Form, Malformed>> {
    let form = match object.event.as_deref() {
        Some("request.received") => Form::RequestReceived,
        Some("request.finished") => Form::RequestFinished,
        _ if object.metrics => Form::RequestMetrics,
        _ => return None,
    };
    let Some(rid) = object.rid.as_deref().and_then(Rid::read) else {
        return Some(Err(Malformed));
    };
    let logged = match form {
        Form::RequestReceived => Some("receive_logged"),
        Form::RequestFinished => Some("finish_logged"),
        _ => None,
    };
    if let Some(name) = logged {
        let statement = Statement::Stage {
            rid,
            name,
            tokens: None,
            pending: None,
        };
        sink(plain("tokenizer", statement));
    }
    object.meta.emit(rid, sink);
    Some(Ok(form))
}

#[cfg(test)]
#[path = "recognise_tests.rs"]
mod tests;
