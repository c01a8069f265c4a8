//! OTLP/JSON, one `TracesData` a line, one trace a request: a span for the request, one for each stage and hop below it. The last
//! line is the capture itself, with its totals and findings.
//!
//! As the OTLP/JSON encoding wants it: ids in hex, 64-bit integers as strings, enums as integers.

use std::io;

use super::json::{Array, Object, Stream};
use super::life::{Note, Said};
use super::span_id::{SpanIds, TraceId};
use super::stage::{self, Kind, Stage};
use super::{Closed, Exporter, Look, Opening, words};
use crate::clock::MonoNs;
use crate::engine::EngineState;
use crate::event::{Event, Finish};
use crate::report::Report;

/// `SPAN_KIND_INTERNAL`, `SPAN_KIND_SERVER`.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// The conventions in which the `gen_ai.*` attributes are named so.
const CONVENTIONS: &str = "https://opentelemetry.io/schemas/1.37.0";

pub(super) struct Otlp<'w> {
    out: Stream<'w>,
    source: String,
    tokengap: String,
}

impl<'w> Otlp<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> Self {
        Self {
            out: Stream::lines(out),
            source: opening.source().to_owned(),
            tokengap: opening.tokengap().to_owned(),
        }
    }

    /// One line with the spans of one trace.
    fn line(&mut self, engine: &EngineState, spans: impl FnOnce(&mut Array<'_>)) -> io::Result<()> {
        let Self { out, source, tokengap } = self;
        out.object(|o| {
            o.array("resourceSpans", |list| {
                list.object(|o| {
                    o.object("resource", |o| {
                        o.array("attributes", |a| {
                            text(a, "service.name", "sglang");
                            if let Some(version) = &engine.version {
                                text(a, "service.version", version);
                            }
                            text(a, "tokengap.source", source);
                        });
                    });
                    o.array("scopeSpans", |list| {
                        list.object(|o| {
                            o.object("scope", |o| {
                                o.text("name", "tokengap").text("version", tokengap);
                            });
                            o.array("spans", spans).text("schemaUrl", CONVENTIONS);
                        });
                    });
                });
            });
        })
    }
}

impl Exporter for Otlp<'_> {
    fn event(&mut self, _: &Event<'_>, _: &Look<'_>) -> io::Result<()> {
        Ok(())
    }

    fn closed(&mut self, request: &Closed<'_>, look: &Look<'_>) -> io::Result<()> {
        if !look.options.wants(request.summary) {
            return Ok(());
        }
        let span = stage::span(request);
        let trace = TraceId::of_request(&request.summary.rid, look.clock.wall(request.summary.first_at));
        let mut ids = SpanIds::of(&trace, look.clock.wall(request.summary.first_at));
        let root = ids.next();
        let stages = stage::stages(request, look.hops);
        self.line(look.ledger.engine(), |spans| {
            spans.object(|o| {
                o.text("traceId", &trace.hex).text("spanId", &root).int("flags", 1_u64);
                o.text("name", "request").int("kind", SERVER);
                times(o, span, look);
                o.array("attributes", |a| request_attributes(a, request, &trace, look));
                o.array("events", |list| {
                    for note in &request.life.notes {
                        note_event(list, note, look);
                    }
                });
                o.int("droppedEventsCount", request.life.notes_left_out);
                status(o, request);
            });
            let mut above: Vec<String> = vec![root];
            for stage in &stages {
                above.truncate(stage.depth + 1);
                let id = ids.next();
                spans.object(|o| {
                    o.text("traceId", &trace.hex).text("spanId", &id);
                    o.text("parentSpanId", above.last().map_or("", |id| id))
                        .int("flags", 1_u64);
                    o.text("name", &stage.name).int("kind", INTERNAL);
                    times(o, (stage.from, stage.to), look);
                    o.array("attributes", |a| stage_attributes(a, stage, look));
                });
                above.push(id);
            }
        })
    }

    fn finish(&mut self, report: &Report, look: &Look<'_>) -> io::Result<()> {
        let [from, to] = report.window_mono_ns.map(MonoNs);
        let began = look.clock.wall(from);
        let trace = TraceId::of_capture(&self.source, began);
        let id = SpanIds::of(&trace, began).next();
        self.line(look.ledger.engine(), |spans| {
            spans.object(|o| {
                o.text("traceId", &trace.hex).text("spanId", &id).int("flags", 1_u64);
                o.text("name", "capture").int("kind", INTERNAL);
                times(o, (from, to), look);
                o.array("attributes", |a| totals(a, report));
                o.array("events", |list| {
                    for finding in &report.findings {
                        list.object(|o| {
                            let at = MonoNs(from.0.saturating_add(finding.at_ns));
                            o.int_text("timeUnixNano", look.clock.wall(at))
                                .text("name", &finding.kind);
                            o.array("attributes", |a| {
                                text(a, "tokengap.finding.severity", finding.severity.as_str());
                                text(a, "tokengap.finding.summary", &finding.summary);
                                if !finding.rid.is_empty() {
                                    text(a, "gen_ai.response.id", &finding.rid);
                                }
                                if let Some(hop) = &finding.hop {
                                    text(a, "tokengap.hop", hop);
                                }
                                for (name, value) in &finding.evidence {
                                    evidence(a, name, value);
                                }
                            });
                        });
                    }
                });
            });
        })?;
        self.out.finish()
    }
}

fn attribute(list: &mut Array<'_>, key: &str, value: impl FnOnce(&mut Object<'_>)) {
    list.object(|o| {
        o.text("key", key).object("value", value);
    });
}

fn text(list: &mut Array<'_>, key: &str, value: &str) {
    attribute(list, key, |v| {
        v.text("stringValue", value);
    });
}

fn int(list: &mut Array<'_>, key: &str, value: Option<impl Into<u64>>) {
    if let Some(value) = value {
        attribute(list, key, |v| {
            v.int_text("intValue", value.into());
        });
    }
}

fn flag(list: &mut Array<'_>, key: &str, value: bool) {
    attribute(list, key, |v| {
        v.flag("boolValue", value);
    });
}

fn evidence(list: &mut Array<'_>, name: &str, value: &serde_json::Value) {
    let key = format!("tokengap.evidence.{name}");
    match value {
        serde_json::Value::Bool(value) => flag(list, &key, *value),
        serde_json::Value::String(value) => text(list, &key, value),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(value), _) => int(list, &key, Some(value)),
            (None, Some(value)) => attribute(list, &key, |v| {
                v.float("doubleValue", value);
            }),
            (None, None) => text(list, &key, &number.to_string()),
        },
        other => text(list, &key, &other.to_string()),
    }
}

fn times(o: &mut Object<'_>, (from, to): (MonoNs, MonoNs), look: &Look<'_>) {
    o.int_text("startTimeUnixNano", look.clock.wall(from));
    o.int_text("endTimeUnixNano", look.clock.wall(to));
}

fn request_attributes(a: &mut Array<'_>, request: &Closed<'_>, trace: &TraceId, look: &Look<'_>) {
    let (s, life) = (request.summary, request.life);
    text(a, "gen_ai.provider.name", "sglang");
    text(a, "gen_ai.response.id", &s.rid);
    int(a, "gen_ai.usage.input_tokens", s.prompt_tokens);
    int(a, "gen_ai.usage.output_tokens", Some(s.tokens_sent));
    int(a, "gen_ai.usage.cache_read.input_tokens", life.cached_tokens);
    if let Some(finish) = s.finish {
        attribute(a, "gen_ai.response.finish_reasons", |v| {
            v.object("arrayValue", |o| {
                o.array("values", |list| {
                    list.object(|o| {
                        o.text("stringValue", words::finish(finish));
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
    int(a, "tokengap.last_gap_ns", stage::last_gap(life, look.hops));
    int(a, "tokengap.silence_max_ns", s.silence_ns);
    int(a, "tokengap.first_token_delivery_ns", stage::first_delivery(s));
    for (end, pace) in [("client", s.paces.delivered), ("sent", s.paces.sent)] {
        int(a, &format!("tokengap.itl.{end}.p50_ns"), pace.map(|p| p.p50));
        int(a, &format!("tokengap.itl.{end}.p90_ns"), pace.map(|p| p.p90));
        int(a, &format!("tokengap.itl.{end}.p99_ns"), pace.map(|p| p.p99));
    }
    int(a, "tokengap.chunks.sent", Some(s.chunks_sent));
    int(a, "tokengap.chunks.coalesced", s.coalesced);
    int(a, "tokengap.chunks.dropped", s.dropped);
    int(
        a,
        "tokengap.tokens.taken",
        look.ledger.sees_takes().then_some(s.tokens_taken),
    );
    int(a, "tokengap.tokens.delivered", s.tokens_delivered);
    int(a, "tokengap.tokens.lost", s.tokens_lost);
    int(a, "tokengap.tokens.missing_on_wire", Some(s.wire_missing));
    int(a, "tokengap.retractions", Some(s.retractions));
    flag(a, "tokengap.bursts", s.bursts);
    flag(a, "tokengap.inflated", s.inflated);
}

fn stage_attributes(a: &mut Array<'_>, stage: &Stage<'_>, look: &Look<'_>) {
    if let Some(frame) = stage.frame {
        int(a, "tokengap.frame.hop", Some(frame.hop.0));
        int(a, "tokengap.frame.lane", Some(frame.lane));
        int(a, "tokengap.frame.seq", Some(frame.seq));
        if let Some(worker) = look.hops.get(frame.hop).and_then(|h| h.worker) {
            int(a, "tokengap.worker", Some(worker));
        }
    }
    if stage.kind == Kind::Hop {
        text(a, "tokengap.hop", &stage.name);
    }
}

fn note_event(list: &mut Array<'_>, note: &Note, look: &Look<'_>) {
    list.object(|o| {
        o.int_text("timeUnixNano", look.clock.wall(note.at));
        let name = match &note.what {
            Said::Stage { name, .. } => name,
            Said::Merged { .. } => "merged",
            Said::Answered { .. } => "answered",
            Said::FirstReceived => "first_token_received",
            Said::Dropped { .. } => "dropped",
        };
        o.text("name", name).array("attributes", |a| match &note.what {
            Said::Stage {
                by, tokens, pending, ..
            } => {
                text(a, "tokengap.by", by);
                int(a, "tokengap.tokens", *tokens);
                int(a, "tokengap.pending", *pending);
            }
            Said::Merged { chunks, by } => {
                text(a, "tokengap.by", by);
                int(a, "tokengap.chunks", Some(*chunks));
            }
            Said::Answered { end, tokens, held_up } => {
                text(a, "tokengap.end", words::end(*end));
                int(a, "tokengap.tokens", *tokens);
                int(a, "tokengap.held_up", Some(*held_up));
            }
            Said::FirstReceived => {}
            Said::Dropped { chunks, tokens } => {
                int(a, "tokengap.chunks", Some(*chunks));
                int(a, "tokengap.tokens", Some(*tokens));
            }
        });
    });
}

/// An error is what the client feels: an abort, or tokens that never come.
fn status(o: &mut Object<'_>, request: &Closed<'_>) {
    let lost = request.summary.tokens_lost.unwrap_or(0);
    let message = match request.summary.finish {
        _ if lost > 0 => format!(
            "{} were lost before the client",
            crate::words::plural(lost.into(), "token")
        ),
        Some(Finish::Abort) => String::from("aborted"),
        _ => return,
    };
    o.object("status", |s| {
        s.int("code", ERROR).text("message", &message);
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
    int(a, "tokengap.chunks.coalesced", chunks.coalesced);
    int(a, "tokengap.events", Some(report.own.events));
    int(a, "tokengap.events_lost", Some(report.own.events_lost));
}
