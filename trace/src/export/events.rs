//! Observations as JSON Lines in the order observed; docs/reference/events.schema.json describes each object.

use std::io;

use super::json::{Object, Stream};
use super::{ExportContext, Exporter, Opening, Options};
use crate::clock::MonoNs;
use crate::engine::{Mode, Waiter};
use crate::event::{Chunk, CpuSample, Delivery, Event, Finish, Frame, LoggedState, Received, StackSample, What};
use crate::id::{FrameId, HopId};
use crate::report::{FindingLine, Report};

/// Name of the schema, in the first line.
const SCHEMA: &str = "tokengap.events/1";

pub(super) struct Events<'w> {
    out: Stream<'w>,
    tokens: bool,
}

impl<'w> Events<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening, options: &Options) -> Self {
        let mut out = Stream::lines(out);
        let clock = opening.clock();
        out.object(|o| {
            o.text("type", "capture").int("at_ns", 0_u64);
            o.int("wall_ns", clock.wall(clock.start)).text("schema", SCHEMA);
            o.text("source", opening.source()).text("tokengap", opening.tokengap());
        });
        Self { out, tokens: options.tokens }
    }

    fn line(
        &mut self,
        kind: &'static str,
        at: MonoNs,
        context: &ExportContext<'_>,
        fill: impl FnOnce(&mut Object<'_>),
    ) {
        self.out.object(|o| {
            o.word("type", kind);
            o.int("at_ns", context.clock.at(at)).int("wall_ns", context.clock.wall(at));
            fill(o);
        });
    }

    fn chunks(&mut self, seen_as: &'static str, at: MonoNs, of: &Frame<'_>, context: &ExportContext<'_>) {
        let tokens = self.tokens;
        for chunk in of.chunks.iter().filter(|c| context.options.wants_rid(c.rid)) {
            self.line("chunk", at, context, |o| {
                o.word("seen_as", seen_as);
                frame(o, of.id, context);
                chunk_fields(o, chunk, tokens);
            });
        }
    }
}

impl Exporter for Events<'_> {
    fn event(&mut self, event: &Event<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let at = event.at;
        match &event.what {
            What::Engine(engine) => self.line("engine", at, context, |o| {
                o.maybe_text("name", engine.name).maybe_text("version", engine.version);
                o.maybe_text("mode", engine.mode.map(Mode::as_str));
                o.maybe_text("waiter", engine.waiter.map(Waiter::as_str));
                o.maybe_int("turnaround", engine.turnaround);
            }),
            What::Hop(hop) => self.line("hop", at, context, |o| {
                o.text("hop", &context.ledger.hop_name(hop.id)).int("hop_id", hop.id.0);
                o.text("endpoint", hop.endpoint).maybe_int("worker", hop.worker);
                o.flag("origin", hop.origin).flag("last", hop.last);
                o.flag("observes_sent", hop.capabilities.sent).flag("observes_forwarded", hop.capabilities.forwarded);
                o.flag("observes_received", hop.capabilities.received)
                    .flag("observes_processed", hop.capabilities.processed);
                o.flag("observes_delivered", hop.capabilities.delivered);
            }),
            What::Sent(sent) => {
                self.line("sent", at, context, |o| frame_fields(o, sent, context));
                self.chunks("sent", at, sent, context);
            }
            What::SendWait(wait) => self.line("send_wait", at, context, |o| {
                o.text("hop", &context.ledger.hop_name(wait.hop)).int("hop_id", wait.hop.0);
                o.int("ns", wait.ns);
            }),
            What::Received(received) => {
                self.line("received", at, context, |o| received_fields(o, received, context));
                if let Some(frame) = &received.frame {
                    self.chunks("received", at, frame, context);
                }
            }
            What::Processed(id) => self.line("processed", at, context, |o| frame(o, *id, context)),
            What::Delivered(delivery) if !delivery.is_uncounted() && context.options.wants_rid(delivery.rid) => {
                let received = context.lives.current(0).and_then(|life| life.first_delivered);
                self.line("delivered", at, context, |o| {
                    delivery_fields(o, delivery);
                    o.flag("first_token_received", received == Some(at));
                });
            }
            What::Answered(answer) if context.options.wants_rid(answer.rid) => {
                self.line("answered", at, context, |o| {
                    o.text("rid", answer.rid).maybe_int("tokens", answer.tokens);
                    o.maybe_int("completion_tokens", answer.completion_tokens);
                    o.text("end", answer.end.as_str()).int("short_writes", answer.short_writes);
                    o.maybe_int("unacknowledged_bytes", answer.unacknowledged);
                    o.maybe_text("tool_calls", answer.tool_calls.map(|calls| calls.outcome.as_str()));
                });
            }
            What::FrontendWait(wait) if context.options.wants_rid(wait.rid) => {
                self.line("frontend_wait", at, context, |o| {
                    o.text("rid", wait.rid);
                    o.maybe_int("first_token_ns", wait.first_token_ns);
                    o.maybe_int("last_token_ns", wait.last_token_ns);
                });
            }
            What::Undecoded(undecoded) => self.line("undecoded", at, context, |o| {
                frame(o, undecoded.id, context);
                o.int("bytes", undecoded.bytes).text("reason", undecoded.reason);
                o.maybe_int("forwarded_at_ns", undecoded.forwarded.map(|at| context.clock.at(at)));
            }),
            What::Cpu(sample) => self.line("cpu", at, context, |o| cpu_fields(o, sample)),
            What::Queue(sample) => self.line("queue", at, context, |o| {
                o.text("hop", sample.hop);
                o.maybe_int("receive_bytes", sample.receive_bytes);
                o.maybe_int("send_bytes", sample.send_bytes);
            }),
            What::Stack(sample) => self.line("stack", at, context, |o| stack_fields(o, sample)),
            What::Stage(stage) if context.options.wants_rid(stage.rid) => self.line("stage", at, context, |o| {
                o.text("rid", stage.rid).text("stage", stage.name).text("by", stage.by);
                o.maybe_int("tokens", stage.tokens).maybe_int("pending", stage.pending);
            }),
            What::LoggedState(state) => self.line("logged_state", at, context, |o| logged_state_fields(o, state)),
            What::Merged(merged) if context.options.wants_rid(merged.rid) => self.line("merged", at, context, |o| {
                o.text("rid", merged.rid).int("chunks", merged.chunks).text("by", merged.by);
            }),
            What::Missed(lost) => self.line("missed", at, context, |o| {
                hop_fields(o, lost.hop, context);
                o.int("count", lost.count).text("cause", lost.cause.as_str());
            }),
            What::Delivered(_) | What::Answered(_) | What::FrontendWait(_) | What::Stage(_) | What::Merged(_) => {}
        }
        self.out.written()
    }

    fn finish(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        let from = MonoNs(report.window_mono_ns[0]);
        for finding in &report.findings {
            let at = MonoNs(from.0.saturating_add(finding.at_ns));
            self.line("finding", at, context, |o| finding_fields(o, finding));
        }
        self.line("end", MonoNs(report.window_mono_ns[1]), context, |o| {
            let (requests, tokens, chunks) = (&report.requests, &report.tokens, &report.chunks);
            o.int("requests_seen", requests.seen).int("requests_finished", requests.finished);
            o.int("requests_aborted", requests.aborted).int("tokens_sent", tokens.sent);
            o.maybe_int("tokens_received", tokens.received).maybe_int("tokens_delivered", tokens.delivered);
            o.maybe_int("tokens_lost", chunks.tokens_lost);
            o.int("chunks_sent", chunks.sent).maybe_int("chunks_received", chunks.received);
            o.maybe_int("chunks_delivered", chunks.delivered).maybe_int("chunks_merged", chunks.merged);
            o.maybe_int("chunks_dropped_predicted", chunks.dropped_predicted);
            o.maybe_int("chunks_dropped_confirmed", chunks.dropped_confirmed);
            o.int("events", report.own.events).int("events_missed", report.own.events_missed);
        });
        self.out.finish()
    }
}

fn hop_fields(o: &mut Object<'_>, hop: Option<HopId>, context: &ExportContext<'_>) {
    o.maybe_text("hop", hop.map(|id| context.ledger.hop_name(id)).as_deref());
    o.maybe_int("hop_id", hop.map(|id| id.0));
}

fn frame(o: &mut Object<'_>, id: FrameId, context: &ExportContext<'_>) {
    o.text("hop", &context.ledger.hop_name(id.hop)).int("hop_id", id.hop.0);
    o.int("lane", id.lane).int("seq", id.seq);
}

fn frame_fields(o: &mut Object<'_>, sent: &Frame<'_>, context: &ExportContext<'_>) {
    frame(o, sent.id, context);
    o.int("bytes", sent.bytes).text("kind", sent.kind.as_str());
    o.int("chunks", sent.chunks.len() as u64);
    o.maybe_int("forwarded_at_ns", sent.forwarded.map(|at| context.clock.at(at)));
}

fn received_fields(o: &mut Object<'_>, received: &Received<'_>, context: &ExportContext<'_>) {
    frame(o, received.id, context);
    o.maybe_int("wakeup", received.wakeup);
    o.maybe_int("pid", received.by.map(|by| by.pid)).maybe_int("tid", received.by.map(|by| by.tid));
    if let Some(unsent) = &received.frame {
        o.int("bytes", unsent.bytes).text("kind", unsent.kind.as_str());
        o.int("chunks", unsent.chunks.len() as u64);
    }
}

fn chunk_fields(o: &mut Object<'_>, chunk: &Chunk<'_>, tokens: bool) {
    o.text("rid", chunk.rid).maybe_int("listed", chunk.listed);
    o.maybe_int("completion_tokens", chunk.completion_tokens);
    o.maybe_int("prompt_tokens", chunk.prompt_tokens);
    o.maybe_int("cached_tokens", chunk.cached_tokens);
    o.maybe_text("finish", chunk.finish.map(Finish::as_str));
    o.maybe_int("retractions", chunk.retractions);
    o.maybe_text("http_worker_ipc", chunk.worker);
    if tokens {
        o.value("ids", chunk.ids);
    }
}

fn delivery_fields(o: &mut Object<'_>, delivery: &Delivery<'_>) {
    o.text("rid", delivery.rid).int("tokens", delivery.tokens);
    o.text("mode", delivery.mode.as_str());
    o.maybe_int("completion_tokens", delivery.completion_tokens);
    o.flag("finished", delivery.finished);
}

fn cpu_fields(o: &mut Object<'_>, sample: &CpuSample<'_>) {
    o.int("pid", sample.thread.pid).int("tid", sample.thread.tid);
    o.text("role", sample.role).text("thread", sample.name).text("part", sample.part.as_str());
    o.int("interval_ns", sample.interval_ns).int("on_ns", sample.on_ns);
    o.maybe_int("wait_ns", sample.wait_ns).maybe_int("throttled_ns", sample.throttled_ns);
    o.maybe_int("poll_interval_ns", sample.poll.map(|p| p.interval_ns));
    o.maybe_int("polled_ns", sample.poll.map(|p| p.polled_ns));
    o.maybe_int("poll_wakeups", sample.poll.map(|p| p.wakeups));
    if let Some(away) = sample.away {
        o.text("away", away.state.as_str()).text("away_in", away.place);
    }
}

fn stack_fields(o: &mut Object<'_>, sample: &StackSample<'_>) {
    o.int("pid", sample.thread.pid).int("tid", sample.thread.tid).text("role", sample.role);
    o.text("function", sample.function).text("file", sample.file);
    o.int("interval_ns", sample.interval_ns).int("samples", sample.samples);
    o.int("total", sample.total).int("own", sample.own).maybe_int("gil", sample.gil);
}

fn logged_state_fields(o: &mut Object<'_>, state: &LoggedState<'_>) {
    o.text("by", state.by).maybe_int("states", state.states).maybe_int("rids", state.rids);
    o.maybe_int("recv_wait_ns", state.recv_wait_ns);
    o.value("more", &state.more).value("cpu", &state.cpu).value("cpu_system", &state.cpu_system);
}

fn finding_fields(o: &mut Object<'_>, finding: &FindingLine) {
    o.text("finding", &finding.kind).text("severity", finding.severity.as_str());
    o.maybe_text("rid", Some(&*finding.rid).filter(|rid| !rid.is_empty()));
    o.maybe_text("hop", finding.hop.as_deref()).text("summary", &finding.summary);
    o.value("evidence", &finding.evidence).maybe_text("advice", finding.advice.as_deref());
}
