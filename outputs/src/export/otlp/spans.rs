//! Spans: a request with its stages, a finding, and the capture itself.

use std::collections::BTreeMap;

use serde_json::Value;
use trace::clock::MonoNs;
use trace::detect::{Finding, Severity};
use trace::event::Finish;
use trace::ledger::{NoteKind, RequestNote};

use super::envelope::{attribute, flag, int, text};
use crate::export::json::{Array, Object};
use crate::export::request_stage::{self, RequestStage, StageKind};
use crate::export::span_id::{SpanIds, TraceId};
use crate::export::{CaptureClock, ExportContext, ExportedRequest};
use crate::report::Report;

/// `SPAN_KIND_INTERNAL`, `SPAN_KIND_SERVER`.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;

/// Writes the spans of a request and its stages. Returns their number.
pub(super) fn request(spans: &mut Array<'_>, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> usize {
    let span = request_stage::span_of_request(request);
    let trace = TraceId::of_request(&request.summary.rid, context.clock.wall_ns(request.summary.first_at));
    let mut ids = SpanIds::of(&trace, context.clock.wall_ns(request.summary.first_at));
    let root = ids.next();
    let stages = request_stage::stages(request, context.ledger);
    spans.object(|o| {
        head(o, (&trace, &root, None), ("request", SERVER), span, context.clock);
        o.array("attributes", |a| request_attributes(a, request, &trace, context));
        o.array("events", |list| {
            for note in &request.timeline.notes {
                note_event(list, note, context);
            }
        });
        o.put("droppedEventsCount", request.timeline.notes_left_out);
        status(o, request);
    });
    let mut above: Vec<String> = vec![root];
    for stage in &stages {
        above.truncate(stage.depth + 1);
        let id = ids.next();
        spans.object(|o| {
            let ids = (&trace, &*id, above.last());
            head(o, ids, (&stage.name, INTERNAL), (stage.from, stage.to), context.clock);
            o.array("attributes", |a| stage_attributes(a, stage, context));
        });
        above.push(id);
    }
    1 + stages.len()
}

/// Writes the span of the capture, with its totals, and its findings as events.
pub(super) fn capture(spans: &mut Array<'_>, source: &str, report: &Report, clock: &CaptureClock) -> usize {
    let [from, to] = report.window_mono_ns.map(MonoNs);
    let began = clock.wall_ns(from);
    let trace = TraceId::of_capture(source, began);
    let id = SpanIds::of(&trace, began).next();
    spans.object(|o| {
        head(o, (&trace, &id, None), ("capture", INTERNAL), (from, to), clock);
        o.array("attributes", |a| totals(a, report));
        o.array("events", |list| {
            for finding in &report.findings {
                list.object(|o| {
                    let at = MonoNs(from.0.saturating_add(finding.at_ns));
                    o.int_text("timeUnixNano", clock.wall_ns(at)).put("name", &finding.kind);
                    o.array("attributes", |a| {
                        let verdict_fields = (finding.severity, finding.summary.as_str(), finding.rid.as_str());
                        finding_attributes(a, verdict_fields, finding.hop.as_deref(), &finding.evidence);
                    });
                });
            }
        });
    });
    1
}

pub(super) struct Episode {
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
    /// Whether it has ended; otherwise it has just started.
    pub(super) over: bool,
}

/// Writes a finding that starts or ends, below the capture that started at `began`. `place` is the number of the span.
pub(super) fn finding(
    spans: &mut Array<'_>,
    finding: &Finding,
    episode: &Episode,
    (source, began, place): (&str, MonoNs, u64),
    clock: &CaptureClock,
) -> usize {
    let began = clock.wall_ns(began);
    let trace = TraceId::of_capture(source, began);
    let parent = SpanIds::of(&trace, began).next();
    let id = SpanIds::of(&trace, began.wrapping_add(place)).next();
    let verdict = &finding.verdict;
    spans.object(|o| {
        head(o, (&trace, &id, Some(&parent)), (finding.kind, INTERNAL), (episode.from, episode.to), clock);
        o.array("attributes", |a| {
            text(a, "tokengap.finding.state", if episode.over { "over" } else { "began" });
            let verdict_fields = (verdict.severity, verdict.summary.as_str(), verdict.rid.as_str());
            let hop = Some(verdict.hop.as_str()).filter(|hop| !hop.is_empty());
            finding_attributes(a, verdict_fields, hop, &verdict.evidence);
        });
        if verdict.severity == Severity::Critical {
            o.object("status", |s| {
                s.put("code", ERROR).put("message", &verdict.summary);
            });
        }
    });
    1
}

fn evidence(list: &mut Array<'_>, name: &str, value: &Value) {
    let key = format!("tokengap.evidence.{name}");
    match value {
        Value::Bool(value) => flag(list, &key, *value),
        Value::String(value) => text(list, &key, value),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(value), _) => int(list, &key, Some(value)),
            (None, Some(value)) => attribute(list, &key, |v| {
                v.put("doubleValue", value);
            }),
            (None, None) => text(list, &key, &number.to_string()),
        },
        other => text(list, &key, &other.to_string()),
    }
}

fn finding_attributes(
    a: &mut Array<'_>,
    (severity, summary, rid): (Severity, &str, &str),
    hop: Option<&str>,
    numbers: &BTreeMap<String, Value>,
) {
    text(a, "tokengap.finding.severity", severity.as_str());
    text(a, "tokengap.finding.summary", summary);
    if !rid.is_empty() {
        text(a, "gen_ai.response.id", rid);
    }
    if let Some(hop) = hop {
        text(a, "tokengap.hop", hop);
    }
    for (name, value) in numbers {
        evidence(a, name, value);
    }
}

fn head(
    o: &mut Object<'_>,
    (trace, id, parent): (&TraceId, &str, Option<&String>),
    (name, kind): (&str, u64),
    (from, to): (MonoNs, MonoNs),
    clock: &CaptureClock,
) {
    o.put("traceId", &trace.hex).put("spanId", id).known("parentSpanId", parent).put("flags", 1_u64);
    o.put("name", name).put("kind", kind);
    o.int_text("startTimeUnixNano", clock.wall_ns(from)).int_text("endTimeUnixNano", clock.wall_ns(to));
}

fn request_attributes(a: &mut Array<'_>, request: &ExportedRequest<'_>, trace: &TraceId, context: &ExportContext<'_>) {
    let s = request.summary;
    text(a, "gen_ai.provider.name", context.ledger.engine().facts().name());
    text(a, "gen_ai.response.id", &s.rid);
    int(a, "gen_ai.usage.input_tokens", s.prompt_tokens);
    int(a, "gen_ai.usage.output_tokens", Some(s.tokens_sent));
    int(a, "gen_ai.usage.cache_read.input_tokens", s.cached_tokens);
    if let Some(finish) = s.finish {
        attribute(a, "gen_ai.response.finish_reasons", |v| {
            v.object("arrayValue", |o| {
                o.array("values", |list| {
                    list.object(|o| {
                        o.put("stringValue", finish.as_str());
                    });
                });
            });
        });
        if finish == Finish::Abort {
            text(a, "error.type", "abort");
        }
    }
    text(a, "tokengap.trace_id_from", trace.from);
    text(a, "tokengap.state", request.state());
    int(a, "tokengap.worker", s.worker);
    int(a, "tokengap.gap_ns", s.gap_ns);
    int(a, "tokengap.last_gap_ns", request_stage::last_gap_ns(request.timeline, context.ledger));
    int(a, "tokengap.silence_max_ns", s.silence_ns);
    int(a, "tokengap.first_token_delivery_ns", request_stage::first_delivery_ns(s));
    for (end, itl) in [("client", s.itl.delivered), ("sent", s.itl.sent)] {
        int(a, &format!("tokengap.itl.{end}.p50_ns"), itl.map(|p| p.p50));
        int(a, &format!("tokengap.itl.{end}.p90_ns"), itl.map(|p| p.p90));
        int(a, &format!("tokengap.itl.{end}.p99_ns"), itl.map(|p| p.p99));
    }
    int(a, "tokengap.chunks.sent", Some(s.chunks_sent));
    int(a, "tokengap.chunks.merged", s.merged);
    int(a, "tokengap.chunks.dropped", s.dropped);
    int(a, "tokengap.tokens.received", s.tokens_received);
    int(a, "tokengap.tokens.delivered", s.tokens_delivered);
    int(a, "tokengap.tokens.lost", s.tokens_lost);
    int(a, "tokengap.tokens.missing_on_wire", Some(s.wire_missing));
    int(a, "tokengap.retractions", Some(s.retractions));
    flag(a, "tokengap.bursts", s.bursts);
    flag(a, "tokengap.inflated", s.inflated);
}

fn stage_attributes(a: &mut Array<'_>, stage: &RequestStage<'_>, context: &ExportContext<'_>) {
    if let Some(frame) = stage.frame {
        int(a, "tokengap.frame.hop", Some(frame.hop.0));
        int(a, "tokengap.frame.lane", Some(frame.lane));
        int(a, "tokengap.frame.seq", Some(frame.seq));
        if let Some(worker) = context.ledger.hop(frame.hop).and_then(|h| h.worker) {
            int(a, "tokengap.worker", Some(worker));
        }
    }
    if stage.kind == StageKind::Hop {
        text(a, "tokengap.hop", &stage.name);
    }
}

fn note_event(list: &mut Array<'_>, note: &RequestNote, context: &ExportContext<'_>) {
    list.object(|o| {
        o.int_text("timeUnixNano", context.clock.wall_ns(note.at));
        let name = match &note.what {
            NoteKind::Stage { name, .. } => name,
            NoteKind::Merged { .. } => "merged",
            NoteKind::Answered { .. } => "answered",
            NoteKind::FirstReceived => "first_token_received",
            NoteKind::Dropped { .. } => "dropped",
        };
        o.put("name", name).array("attributes", |a| match &note.what {
            NoteKind::Stage { by, tokens, pending, .. } => {
                text(a, "tokengap.by", by);
                int(a, "tokengap.tokens", *tokens);
                int(a, "tokengap.pending", *pending);
            }
            NoteKind::Merged { chunks, by } => {
                text(a, "tokengap.by", by);
                int(a, "tokengap.chunks", Some(*chunks));
            }
            NoteKind::Answered { end, tokens, short_writes } => {
                text(a, "tokengap.end", end.as_str());
                int(a, "tokengap.tokens", *tokens);
                int(a, "tokengap.short_writes", Some(*short_writes));
            }
            NoteKind::FirstReceived => {}
            NoteKind::Dropped { chunks, tokens } => {
                int(a, "tokengap.chunks", Some(*chunks));
                int(a, "tokengap.tokens", Some(*tokens));
            }
        });
    });
}

/// Writes the status: an error if the client is affected, by an abort or lost tokens.
fn status(o: &mut Object<'_>, request: &ExportedRequest<'_>) {
    let lost = request.summary.tokens_lost.unwrap_or(0);
    let message = match request.summary.finish {
        _ if lost > 0 => format!("{} lost before the client", trace::words::plural(lost.into(), "token")),
        Some(Finish::Abort) => String::from("aborted"),
        _ => return,
    };
    o.object("status", |s| {
        s.put("code", ERROR).put("message", &message);
    });
}

fn totals(a: &mut Array<'_>, report: &Report) {
    let (requests, tokens, chunks) = (&report.requests, &report.tokens, &report.chunks);
    int(a, "tokengap.requests.seen", Some(requests.seen));
    int(a, "tokengap.requests.finished", Some(requests.finished));
    int(a, "tokengap.tokens.sent", Some(tokens.sent));
    int(a, "tokengap.tokens.delivered", tokens.delivered);
    int(a, "tokengap.tokens.lost", chunks.tokens_lost);
    int(a, "tokengap.chunks.sent", Some(chunks.sent));
    int(a, "tokengap.chunks.dropped", chunks.dropped_confirmed);
    int(a, "tokengap.chunks.merged", chunks.merged);
    int(a, "tokengap.events", Some(report.own.events));
    int(a, "tokengap.events_missed", Some(report.own.events_missed));
}
