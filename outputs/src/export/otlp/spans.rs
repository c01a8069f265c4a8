//! Spans: a request with its stages, a finding, and the capture itself.

use serde_json::Value;
use trace::clock::MonoNs;
use trace::detect::{Finding, Severity, Verdict};
use trace::event::Finish;
use trace::ledger::{NoteKind, RequestNote};

use super::envelope::{put_attribute, put_flag, put_int_if_known, put_text};
use crate::export::json::{Array, Object};
use crate::export::request_stage::{self, RequestStage, StageKind, TimeSpan};
use crate::export::span_id::{SpanIds, TraceId};
use crate::export::{CaptureClock, ExportContext, ExportedRequest};
use crate::report::{FindingLine, Report};

/// `SPAN_KIND_INTERNAL`, `SPAN_KIND_SERVER`.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// `flags`: the trace's own flag, and `SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`.
const SAMPLED: u64 = 1;
const REMOTE_PARENT: u64 = 0x300;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;

/// Writes the spans of a request and its stages. Returns their number.
pub(super) fn write_request_spans(
    spans: &mut Array<'_>,
    request: &ExportedRequest<'_>,
    context: &ExportContext<'_>,
) -> usize {
    let summary = request.summary;
    let first_wall_ns = context.clock.wall_ns(summary.first_at);
    let trace = TraceId::of_request(&summary.rid, summary.trace_parent, first_wall_ns);
    let mut ids = SpanIds::of_request(&trace, &summary.rid, first_wall_ns);
    let root = ids.next_id();
    // A trace that no caller began is sampled.
    let flags = u64::from(summary.trace_parent.is_none_or(|parent| parent.is_sampled));
    write_root_span(spans, request, &trace, &root, flags, context);
    let stages = request_stage::stages_of_request(request, context.ledger);
    // Ids of the spans around the next stage, the outermost first.
    let mut outer_ids: Vec<String> = vec![root];
    for stage in &stages {
        // The stages are a tree: a stage is followed by those inside it, which are one deeper. So this stage is inside the root, and inside
        // one stage of each smaller depth.
        let outer_spans = 1 + stage.depth;
        outer_ids.truncate(outer_spans);
        let id = ids.next_id();
        let TimeSpan { from, to } = stage.span;
        let parent = outer_ids.last().map(String::as_str);
        let head = SpanHead { trace: &trace, id: &id, parent, flags, name: &stage.name, kind: INTERNAL, from, to };
        spans.add_object(|object| {
            head.write_fields(object, context.clock);
            object.put_array("attributes", |list| write_stage_attributes(list, stage, context));
        });
        outer_ids.push(id);
    }
    // The root and the stages.
    1 + stages.len()
}

/// Writes the span of a whole request, with its notes as events. `id` is that of the span, and `flags` those of its trace.
fn write_root_span(
    spans: &mut Array<'_>,
    request: &ExportedRequest<'_>,
    trace: &TraceId,
    id: &str,
    flags: u64,
    context: &ExportContext<'_>,
) {
    let caller_span = request.summary.trace_parent.map(|parent| parent.span_id());
    // Only the root has a parent in another process.
    let flags = if caller_span.is_some() { flags | REMOTE_PARENT } else { flags };
    let TimeSpan { from, to } = request_stage::span_of_request(request);
    let parent = caller_span.as_deref();
    let head = SpanHead { trace, id, parent, flags, name: "request", kind: SERVER, from, to };
    spans.add_object(|object| {
        head.write_fields(object, context.clock);
        object.put_array("attributes", |list| write_request_attributes(list, request, trace, context));
        object.put_array("events", |list| {
            for note in &request.timeline.notes {
                write_note_event(list, note, context);
            }
        });
        object.put("droppedEventsCount", request.timeline.notes_left_out);
        write_error_status(object, request);
    });
}

/// Writes the span of the capture, with its totals as attributes and its findings as events. Returns 1, the number of spans.
pub(super) fn write_capture_span(spans: &mut Array<'_>, source: &str, report: &Report, clock: &CaptureClock) -> usize {
    let [from, to] = report.window_mono_ns.map(MonoNs);
    let began_wall_ns = clock.wall_ns(from);
    let trace = TraceId::of_capture(source, began_wall_ns);
    let id = SpanIds::of_trace(&trace, began_wall_ns).next_id();
    spans.add_object(|object| {
        SpanHead { trace: &trace, id: &id, parent: None, flags: SAMPLED, name: "capture", kind: INTERNAL, from, to }
            .write_fields(object, clock);
        object.put_array("attributes", |list| write_capture_totals(list, report));
        object.put_array("events", |list| {
            for finding in &report.findings {
                let at = MonoNs(from.0.saturating_add(finding.at_ns));
                list.add_object(|object| write_finding_event(object, finding, clock.wall_ns(at)));
            }
        });
    });
    1
}

/// Writes a finding as an event at the time when it began.
fn write_finding_event(object: &mut Object<'_>, finding: &FindingLine, wall_ns: u64) {
    object.put_int_text("timeUnixNano", wall_ns).put("name", &finding.kind);
    // The parts of the finding that are written as attributes.
    let verdict = Verdict {
        severity: finding.severity,
        summary: finding.summary.clone(),
        rid: finding.rid.clone(),
        hop: finding.hop.clone().unwrap_or_default(),
        evidence: finding.evidence.clone(),
        ..Verdict::default()
    };
    object.put_array("attributes", |list| write_finding_attributes(list, &verdict));
}

/// Time of a finding's latest episode, and the number of its span. An episode that lasts ends now.
pub(super) struct FindingSpan {
    /// Number among the spans of all findings, from 1 on.
    pub(super) number: u64,
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

/// Writes the span of a finding that has started or ended, as a child of the span of the capture. The capture started at `capture_start`.
/// Returns 1, the number of spans.
pub(super) fn write_finding_span(
    spans: &mut Array<'_>,
    finding: &Finding,
    span: &FindingSpan,
    source: &str,
    capture_start: MonoNs,
    clock: &CaptureClock,
) -> usize {
    let capture_wall_ns = clock.wall_ns(capture_start);
    let trace = TraceId::of_capture(source, capture_wall_ns);
    // The id that `write_capture_span` gives to the capture.
    let parent = SpanIds::of_trace(&trace, capture_wall_ns).next_id();
    // Ids are hashes of a time. With the number of the span, the id differs from those of the capture and of the other findings.
    let id = SpanIds::of_trace(&trace, capture_wall_ns.wrapping_add(span.number)).next_id();
    let verdict = &finding.verdict;
    let FindingSpan { from, to, .. } = *span;
    spans.add_object(|object| {
        let parent = Some(parent.as_str());
        SpanHead { trace: &trace, id: &id, parent, flags: SAMPLED, name: finding.kind, kind: INTERNAL, from, to }
            .write_fields(object, clock);
        object.put_array("attributes", |list| {
            put_text(list, "tokengap.finding.state", if finding.active { "began" } else { "over" });
            write_finding_attributes(list, verdict);
        });
        if verdict.severity == Severity::Critical {
            object.put_object("status", |status| {
                status.put("code", ERROR).put("message", &verdict.summary);
            });
        }
    });
    1
}

/// Writes a piece of evidence as an attribute of the type that fits its value.
fn write_evidence_attribute(list: &mut Array<'_>, name: &str, value: &Value) {
    let key = format!("tokengap.evidence.{name}");
    match value {
        Value::Bool(value) => put_flag(list, &key, *value),
        Value::String(value) => put_text(list, &key, value),
        Value::Number(number) => {
            if let Some(count) = number.as_u64() {
                put_int_if_known(list, &key, Some(count));
            } else if let Some(float) = number.as_f64() {
                put_attribute(list, &key, |value_object| {
                    value_object.put("doubleValue", float);
                });
            } else {
                put_text(list, &key, &number.to_string());
            }
        }
        other => put_text(list, &key, &other.to_string()),
    }
}

/// Writes the attributes of a finding. An empty rid or hop means that it is not about one.
fn write_finding_attributes(list: &mut Array<'_>, verdict: &Verdict) {
    put_text(list, "tokengap.finding.severity", verdict.severity.as_str());
    put_text(list, "tokengap.finding.summary", &verdict.summary);
    if !verdict.rid.is_empty() {
        put_text(list, "gen_ai.response.id", &verdict.rid);
    }
    if !verdict.hop.is_empty() {
        put_text(list, "tokengap.hop", &verdict.hop);
    }
    for (name, value) in &verdict.evidence {
        write_evidence_attribute(list, name, value);
    }
}

/// Fields that every span has.
struct SpanHead<'a> {
    trace: &'a TraceId,
    id: &'a str,
    parent: Option<&'a str>,
    flags: u64,
    name: &'a str,
    kind: u64,
    from: MonoNs,
    to: MonoNs,
}

impl SpanHead<'_> {
    /// Writes these fields into the object of a span.
    fn write_fields(&self, object: &mut Object<'_>, clock: &CaptureClock) {
        object.put("traceId", &self.trace.hex).put("spanId", self.id).put_if_known("parentSpanId", self.parent);
        object.put("flags", self.flags).put("name", self.name).put("kind", self.kind);
        object.put_int_text("startTimeUnixNano", clock.wall_ns(self.from));
        object.put_int_text("endTimeUnixNano", clock.wall_ns(self.to));
    }
}

/// Writes the attributes of a request: those of the semantic conventions, then tokengap's own.
fn write_request_attributes(
    list: &mut Array<'_>,
    request: &ExportedRequest<'_>,
    trace: &TraceId,
    context: &ExportContext<'_>,
) {
    let summary = request.summary;
    put_text(list, "gen_ai.provider.name", context.ledger.engine().facts().name());
    put_text(list, "gen_ai.response.id", &summary.rid);
    put_int_if_known(list, "gen_ai.usage.input_tokens", summary.prompt_tokens);
    put_int_if_known(list, "gen_ai.usage.output_tokens", Some(summary.tokens_sent));
    put_int_if_known(list, "gen_ai.usage.cache_read.input_tokens", summary.cached_tokens);
    if let Some(finish) = summary.finish {
        put_attribute(list, "gen_ai.response.finish_reasons", |value_object| {
            value_object.put_object("arrayValue", |object| {
                object.put_array("values", |list| {
                    list.add_object(|object| {
                        object.put("stringValue", finish.as_str());
                    });
                });
            });
        });
        if finish == Finish::Abort {
            put_text(list, "error.type", "abort");
        }
    }
    put_text(list, "tokengap.trace_id_from", trace.from);
    put_text(list, "tokengap.state", request.state());
    put_int_if_known(list, "tokengap.worker", summary.worker);
    put_int_if_known(list, "tokengap.gap_ns", summary.gap_ns);
    put_int_if_known(list, "tokengap.last_gap_ns", request_stage::last_chunk_gap_ns(request.timeline, context.ledger));
    put_int_if_known(list, "tokengap.silence_max_ns", summary.silence_ns);
    put_int_if_known(list, "tokengap.first_token_delivery_ns", request_stage::first_token_delivery_ns(summary));
    for (observed_at, itl) in [("client", summary.itl.delivered), ("sent", summary.itl.sent)] {
        put_int_if_known(list, &format!("tokengap.itl.{observed_at}.p50_ns"), itl.map(|spread| spread.p50));
        put_int_if_known(list, &format!("tokengap.itl.{observed_at}.p90_ns"), itl.map(|spread| spread.p90));
        put_int_if_known(list, &format!("tokengap.itl.{observed_at}.p99_ns"), itl.map(|spread| spread.p99));
    }
    put_int_if_known(list, "tokengap.chunks.sent", Some(summary.chunks_sent));
    put_int_if_known(list, "tokengap.chunks.delivered", summary.delivered);
    put_int_if_known(list, "tokengap.chunks.merged", summary.merged);
    put_int_if_known(list, "tokengap.chunks.dropped", summary.dropped);
    put_int_if_known(list, "tokengap.chunks.unjudged", summary.unjudged);
    put_int_if_known(list, "tokengap.tokens.received", summary.tokens_received);
    put_int_if_known(list, "tokengap.tokens.delivered", summary.tokens_delivered);
    put_int_if_known(list, "tokengap.tokens.lost", summary.tokens_lost);
    put_int_if_known(list, "tokengap.tokens.missing_on_wire", Some(summary.wire_missing));
    put_int_if_known(list, "tokengap.retractions", Some(summary.retractions));
    put_flag(list, "tokengap.bursts", summary.bursts);
    put_flag(list, "tokengap.inflated", summary.inflated);
}

/// Writes which frame or hop a stage belongs to. A hop is a channel between two processes, and a lane is one of its connections.
fn write_stage_attributes(list: &mut Array<'_>, stage: &RequestStage<'_>, context: &ExportContext<'_>) {
    if let Some(frame) = stage.frame {
        put_int_if_known(list, "tokengap.frame.hop", Some(frame.hop.0));
        put_int_if_known(list, "tokengap.frame.lane", Some(frame.lane));
        put_int_if_known(list, "tokengap.frame.seq", Some(frame.seq));
        if let Some(worker) = context.ledger.hop(frame.hop).and_then(|hop| hop.worker) {
            put_int_if_known(list, "tokengap.worker", Some(worker));
        }
    }
    if stage.kind == StageKind::Hop {
        put_text(list, "tokengap.hop", &stage.name);
    }
}

/// Writes a note of the timeline as a span event.
fn write_note_event(list: &mut Array<'_>, note: &RequestNote, context: &ExportContext<'_>) {
    list.add_object(|object| {
        object.put_int_text("timeUnixNano", context.clock.wall_ns(note.at));
        object.put("name", name_of_note(&note.what));
        object.put_array("attributes", |list| write_note_attributes(list, &note.what));
    });
}

/// Name of the span event for a note. A stage of the engine's log has its own name.
fn name_of_note(note: &NoteKind) -> &str {
    match note {
        NoteKind::Stage { name, .. } => name,
        NoteKind::Merged { .. } => "merged",
        NoteKind::Answered { .. } => "answered",
        NoteKind::FirstReceived => "first_token_received",
        NoteKind::Dropped { .. } => "dropped",
    }
}

/// Writes the numbers of a note, and the process that logged it (`by`).
fn write_note_attributes(list: &mut Array<'_>, note: &NoteKind) {
    match note {
        NoteKind::Stage { by, tokens, pending, .. } => {
            put_text(list, "tokengap.by", by);
            put_int_if_known(list, "tokengap.tokens", *tokens);
            put_int_if_known(list, "tokengap.pending", *pending);
        }
        NoteKind::Merged { chunks, by } => {
            put_text(list, "tokengap.by", by);
            put_int_if_known(list, "tokengap.chunks", Some(*chunks));
        }
        NoteKind::Answered { end, tokens, short_writes } => {
            put_text(list, "tokengap.end", end.as_str());
            put_int_if_known(list, "tokengap.tokens", *tokens);
            put_int_if_known(list, "tokengap.short_writes", Some(*short_writes));
        }
        NoteKind::FirstReceived => {}
        NoteKind::Dropped { chunks, tokens } => {
            put_int_if_known(list, "tokengap.chunks", Some(*chunks));
            put_int_if_known(list, "tokengap.tokens", Some(*tokens));
        }
    }
}

/// Writes the status of an error if the request lost tokens before the client or was aborted. Other requests have no status.
fn write_error_status(object: &mut Object<'_>, request: &ExportedRequest<'_>) {
    let lost = request.summary.tokens_lost.unwrap_or(0);
    let message = if lost > 0 {
        format!("{} lost before the client", trace::words::plural(lost.into(), "token"))
    } else if request.summary.finish == Some(Finish::Abort) {
        String::from("aborted")
    } else {
        return;
    };
    object.put_object("status", |status| {
        status.put("code", ERROR).put("message", &message);
    });
}

/// Writes the totals of the capture.
fn write_capture_totals(list: &mut Array<'_>, report: &Report) {
    let Report { requests, tokens, chunks, .. } = report;
    put_int_if_known(list, "tokengap.requests.seen", Some(requests.seen));
    put_int_if_known(list, "tokengap.requests.finished", Some(requests.finished));
    put_int_if_known(list, "tokengap.tokens.sent", Some(tokens.sent));
    put_int_if_known(list, "tokengap.tokens.delivered", tokens.delivered);
    put_int_if_known(list, "tokengap.tokens.lost", chunks.tokens_lost);
    put_int_if_known(list, "tokengap.chunks.sent", Some(chunks.sent));
    put_int_if_known(list, "tokengap.chunks.dropped", chunks.dropped_confirmed);
    put_int_if_known(list, "tokengap.chunks.merged", chunks.merged);
    put_int_if_known(list, "tokengap.events", Some(report.own.events));
    put_int_if_known(list, "tokengap.events_missed", Some(report.own.events_missed));
}
