//! Lines about whole requests: `Receive:` and `Finish:` of the request logger, its JSON records, and those of the metrics exporter.

use std::borrow::Cow;

use logs::text::{epoch_seconds_to_ns, number_of_key, value_of_key};
use logs::{FieldUse, JsonRecord, LoggedRid, MalformedLine, Statement};
use trace::event::Stage;

use super::python::{Fields, unquoted_strings_in};
use super::stage_statement;

/// A time field of a finished request, in seconds since the epoch.
struct TimeField {
    key: &'static str,
    stage: &'static str,
    /// The process that reached the stage.
    process: &'static str,
}

impl TimeField {
    const fn new(key: &'static str, stage: &'static str, process: &'static str) -> Self {
        Self { key, stage, process }
    }
}

const TIMES: [TimeField; 9] = [
    TimeField::new(ARRIVAL, "request_received", "tokenizer"),
    TimeField::new("request_sent_to_scheduler_ts", "request_sent_to_scheduler", "tokenizer"),
    TimeField::new("api_server_dispatch_finish_ts", "api_server_dispatch_finish", "tokenizer"),
    TimeField::new("forward_entry_time", "forward_entry", "scheduler"),
    TimeField::new("prefill_finished_ts", PREFILL_FINISHED, "scheduler"),
    TimeField::new("prefill_finished_time", PREFILL_FINISHED, "scheduler"),
    TimeField::new("response_sent_to_client_ts", RESPONSE_SENT, "tokenizer"),
    TimeField::new("decode_finished_ts", "decode_finished", "tokenizer"),
    TimeField::new("request_finished_ts", "request_finished", "tokenizer"),
];
const ARRIVAL: &str = "request_received_ts";
/// Seconds from its arrival to its first token at the tokenizer (0.5.10 and later).
const FIRST_TOKEN_LATENCY: &str = "first_token_latency";
const TOKENS: &str = "completion_tokens";
const FIRST_TOKEN: &str = "first_token";
const PREFILL_FINISHED: &str = "prefill_finished";
const RESPONSE_SENT: &str = "response_sent_to_client";
const STREAM: &str = "stream";
/// The exporter's copy of the request: a JSON object in a string.
const PARAMETERS: &str = "request_parameters";

/// Texts in the JSON records.
pub(super) const RECORD_MARKS: &[&str] = &["\"request.received\"", "\"request.finished\"", "\"request_parameters\""];

/// How a field of a JSON record is read: its value, the fields inside it, or not at all.
pub(super) fn field_use(name: &str) -> FieldUse {
    match name {
        "out" | "meta_info" | "obj" => FieldUse::Object,
        "event" | "rid" | "id" | PARAMETERS | STREAM | FIRST_TOKEN_LATENCY | TOKENS => FieldUse::Value,
        _ => {
            let is_time = TIMES.iter().any(|time| time.key == name);
            if is_time { FieldUse::Value } else { FieldUse::Skipped }
        }
    }
}

/// Parses a JSON record, and passes the stages of its requests to `sink`. Returns the name of its form, or an error if no request id is
/// readable. `None` for a record of something else.
pub(super) fn read_record(
    record: &JsonRecord<'_>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Option<Result<&'static str, MalformedLine>> {
    let form = RecordForm::of_record(record)?;
    let id = record.text_of("id");
    let mut rids = record.string_values_of_field("rid");
    // A record without request ids may have the id of the output.
    if rids.is_empty() {
        rids.extend(id.clone());
    }
    let Some(named) = named_requests(rids.iter().map(Cow::as_ref), id.as_deref()) else {
        return Some(Err(MalformedLine));
    };
    if let Some(stage) = form.logged_stage {
        emit_stage_of_each(&named, stage, sink);
    }
    // The times of several requests cannot be told apart.
    if let [rid] = *named {
        emit_timed_stages(rid, is_streamed_in_record(record), |key| record.number_of(key), sink);
    }
    Some(Ok(form.name))
}

/// Form of a JSON record.
struct RecordForm {
    name: &'static str,
    /// Stage at which the record is written. Records of request metrics show no stage themselves.
    logged_stage: Option<&'static str>,
}

impl RecordForm {
    /// Form of a record of the request logger or of the request metrics. `None` for a record of something else.
    fn of_record(record: &JsonRecord<'_>) -> Option<Self> {
        match record.text_of("event").as_deref() {
            Some("request.received") => Some(Self { name: "request-received", logged_stage: Some("receive_logged") }),
            Some("request.finished") => Some(Self { name: "request-finished", logged_stage: Some("finish_logged") }),
            _ if record.has_field(PARAMETERS) => Some(Self { name: "request-metrics", logged_stage: None }),
            _ => None,
        }
    }
}

/// Whether the response to the request of a record is streamed. `None` if the record does not state it. The parameters of a request, if the
/// record has them, are a JSON record of their own in a string.
fn is_streamed_in_record(record: &JsonRecord<'_>) -> Option<bool> {
    match record.text_of(PARAMETERS) {
        None => record.flag_of(STREAM),
        Some(parameters) => JsonRecord::parse(&parameters, &field_use)?.flag_of(STREAM),
    }
}

/// Parses the request ids in `GenerateReqInput(received_time=None, rid='4f1c..', text='..`, or with the fields in another order.
pub(super) fn read_receive(
    text_behind_mark: &str,
    _line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let mut fields = Fields::of_object_at_start(text_behind_mark).ok_or(MalformedLine)?;
    let (_, rids) = fields.find(|(name, _)| *name == "rid").ok_or(MalformedLine)?;
    // A received request has no output yet.
    let output_id = None;
    let named = named_requests(unquoted_strings_in(rids), output_id).ok_or(MalformedLine)?;
    emit_stage_of_each(&named, "receive_logged", sink);
    Ok(())
}

/// Parses a finished request: `GenerateReqInput(.., rid='4f1c..', stream=True)`, and `, out={'text': .., 'meta_info': {..}}` behind it.
/// Passes its stages to `sink`, with their times if the line is about one request.
pub(super) fn read_finish(
    text_behind_mark: &str,
    _line_ns: Option<u64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) -> Result<(), MalformedLine> {
    let mut fields = Fields::of_object_at_start(text_behind_mark).ok_or(MalformedLine)?;
    let mut rids = None;
    let mut is_streamed = None;
    // By reference, since the text behind the fields is read below.
    for (name, value) in fields.by_ref() {
        match name {
            "rid" => rids = Some(value),
            STREAM => is_streamed = bool_of_python(value),
            _ => {}
        }
    }
    let meta = fields.text_after_object().and_then(meta_info_of_output);
    let id = meta.and_then(|meta| value_of_key(meta, "'id': ")).and_then(LoggedRid::parse);
    let output_id = id.map(|id| id.text);
    let rids = rids.ok_or(MalformedLine)?;
    let named = named_requests(unquoted_strings_in(rids), output_id).ok_or(MalformedLine)?;
    emit_stage_of_each(&named, "finish_logged", sink);
    // The times of several requests cannot be told apart.
    if let [rid] = *named
        && let Some(meta) = meta
    {
        // `meta` is a dict as Python prints it.
        let number_of = |key: &str| number_of_key(meta, &format!("'{key}': "));
        emit_timed_stages(rid, is_streamed, number_of, sink);
    }
    Ok(())
}

/// A bool as Python writes it. `None` for any other value.
fn bool_of_python(value: &str) -> Option<bool> {
    match value {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

/// The text from `'meta_info'` on, the last field of an output. `None` without it. The text of the output may imitate the field, but stands
/// before it.
fn meta_info_of_output(output: &str) -> Option<&str> {
    let start = output.rfind("'meta_info': {")?;
    Some(&output[start..])
}

/// The requests that a line is about: all of `rids`, or only the one that is the id of the output. `None` if no rid is readable.
fn named_requests<'l>(rids: impl Iterator<Item = &'l str>, output_id: Option<&str>) -> Option<Vec<LoggedRid<'l>>> {
    let named: Vec<LoggedRid<'l>> = rids.filter_map(LoggedRid::parse).collect();
    if named.is_empty() {
        return None;
    }
    match named.iter().find(|rid| Some(rid.text) == output_id) {
        Some(answered) => Some(vec![*answered]),
        None => Some(named),
    }
}

/// Passes the same stage of several requests to `sink`.
fn emit_stage_of_each(rids: &[LoggedRid<'_>], stage_name: &str, sink: &mut dyn FnMut(&Statement<'_>)) {
    for &rid in rids {
        sink(&stage_statement(rid, Stage::new(rid.text, stage_name, "tokenizer")));
    }
}

/// Passes the stages of a finished request to `sink`, each with its time. Leaves out stages without a time. `number_of` returns the number
/// in the field of this name.
fn emit_timed_stages(
    rid: LoggedRid<'_>,
    is_streamed: Option<bool>,
    number_of: impl Fn(&str) -> Option<f64>,
    sink: &mut dyn FnMut(&Statement<'_>),
) {
    let tokens = number_of(TOKENS).and_then(to_count);
    let first_token_ns = first_token_time_ns(&number_of);
    let mut stages = stated_stage_times(&number_of);
    let gap = find_first_token_gap(&stages, is_streamed, first_token_ns.is_some());
    stages.push(StageTime { name: FIRST_TOKEN, process: "tokenizer", wall_ns: first_token_ns });
    for StageTime { name, process, wall_ns } in stages {
        let Some(wall_ns) = wall_ns else { continue };
        let mut stage = Stage::new(rid.text, name, process);
        // Only these stages are reached with all tokens.
        if matches!(name, "request_finished" | "decode_finished") {
            stage.tokens = tokens;
        }
        // The stage that ends the gap also has its length.
        if let Some(gap) = &gap
            && name == gap.end_stage
        {
            stage.gap_ns = Some(wall_ns.saturating_sub(gap.begin_ns));
        }
        sink(&Statement { wall_ns: Some(wall_ns), ..stage_statement(rid, stage) });
    }
}

/// The time from the end of a request's prefill to its first token at the tokenizer.
struct FirstTokenGap {
    begin_ns: u64,
    end_stage: &'static str,
}

/// Finds the gap before the first token of a request. `None` if the request may not stream, or if the end of its prefill is not stated.
fn find_first_token_gap(
    stages: &[StageTime],
    is_streamed: Option<bool>,
    has_first_token_time: bool,
) -> Option<FirstTokenGap> {
    // Without streaming, the first output holds many tokens, and the response is sent at its end.
    if is_streamed != Some(true) {
        return None;
    }
    // Without the time of the first token, the gap ends with the response.
    let end_stage = if has_first_token_time { FIRST_TOKEN } else { RESPONSE_SENT };
    prefill_end_ns(stages).map(|begin_ns| FirstTokenGap { begin_ns, end_stage })
}

/// Wall time at which the prefill ended. Releases state it in fields of different names. `None` if none of them has a time.
fn prefill_end_ns(stages: &[StageTime]) -> Option<u64> {
    let mut prefill_ends = stages.iter().filter(|stage| stage.name == PREFILL_FINISHED);
    prefill_ends.find_map(|stage| stage.wall_ns)
}

/// The stages that have a time field of their own, each with the time in it.
fn stated_stage_times(number_of: impl Fn(&str) -> Option<f64>) -> Vec<StageTime> {
    Vec::from(TIMES.map(|TimeField { key, stage, process }| StageTime {
        name: stage,
        process,
        wall_ns: number_of(key).and_then(epoch_seconds_to_ns),
    }))
}

/// Wall time of a request's first token at the tokenizer, from its arrival and its latency. `None` if the line does not have both.
fn first_token_time_ns(number_of: impl Fn(&str) -> Option<f64>) -> Option<u64> {
    match (number_of(ARRIVAL), number_of(FIRST_TOKEN_LATENCY)) {
        (Some(arrival), Some(latency)) => epoch_seconds_to_ns(arrival + latency),
        _ => None,
    }
}

/// The number as a count; `None` if it is negative, or too large for 32 bits.
fn to_count(number: f64) -> Option<u32> {
    /// Numbers below fit 32 bits.
    const LIMIT: f64 = 4e9;
    // The cast loses only a fraction, which a count does not have.
    (0.0..LIMIT).contains(&number).then_some(number as u32)
}

/// A stage of a finished request.
struct StageTime {
    name: &'static str,
    /// The process that reached it.
    process: &'static str,
    /// `None` if the line does not state it.
    wall_ns: Option<u64>,
}
