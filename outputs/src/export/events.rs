//! Observations as JSON Lines in the order observed; docs/reference/events.schema.json describes each object.

use std::io;

use trace::clock::MonoNs;
use trace::event::{Capabilities, EngineTimes, Event, Frame, What};
use trace::id::{FrameId, HopId};
use trace::ledger::ChunkOutcome;

use super::json::{Object, ObjectStream, put_fields};
use super::{ExportContext, Exporter, Opening, Options};
use crate::report::Report;

/// Name of the schema, in the first line.
const SCHEMA: &str = "tokengap.events/1";

pub(super) struct Events<'w> {
    out: ObjectStream<'w>,
    writes_token_ids: bool,
}

impl<'w> Events<'w> {
    /// Writes the first line, which describes the capture.
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening, options: &Options) -> Self {
        let mut out = ObjectStream::as_lines(out);
        let clock = opening.clock();
        // All times count from this line.
        let start_ns: u64 = 0;
        out.write_object(|object| {
            object.put("type", "capture").put("at_ns", start_ns);
            object.put("wall_ns", clock.wall_ns(clock.start)).put("schema", SCHEMA);
            put_fields!(object, opening, source, tokengap);
        });
        Self { out, writes_token_ids: options.tokens }
    }

    /// Writes a line of this kind, with its time since the start of the capture and its wall time. `fill` adds the other fields.
    fn write_line(
        &mut self,
        kind: &'static str,
        at: MonoNs,
        context: &ExportContext<'_>,
        fill: impl FnOnce(&mut Object<'_>),
    ) {
        self.out.write_object(|object| {
            object.put("type", kind);
            object.put("at_ns", context.clock.since_start_ns(at)).put("wall_ns", context.clock.wall_ns(at));
            fill(object);
        });
    }

    /// Writes a line for each group of a request's chunks whose outcome the last event showed. The line names the hop of the chunks, which
    /// is the channel between two processes that they crossed.
    fn write_judged_chunks(&mut self, at: MonoNs, context: &ExportContext<'_>) {
        for (rid, chunks) in context.ledger.judged_chunks().filter(|(rid, _)| context.options.wants_rid(rid)) {
            let unjudged_because = match chunks.outcome {
                ChunkOutcome::Unjudged(cause) => Some(cause),
                ChunkOutcome::Delivered | ChunkOutcome::Merged | ChunkOutcome::Dropped => None,
            };
            self.write_line("judged", at, context, |object| {
                put_hop(object, chunks.hop, context);
                object.put("rid", rid).put("chunk", chunks.first).put("chunks", chunks.count);
                object.put("outcome", chunks.outcome.name()).put("unjudged_because", unjudged_because);
                put_fields!(object, chunks, merged_into, tokens_lost);
            });
        }
    }

    /// Writes a line for each chunk of a frame whose request is selected. `seen_as`: whether the frame was `sent` or `received`.
    fn write_chunks_of_frame(
        &mut self,
        seen_as: &'static str,
        at: MonoNs,
        frame: &Frame<'_>,
        context: &ExportContext<'_>,
    ) {
        let writes_token_ids = self.writes_token_ids;
        for chunk in frame.chunks.iter().filter(|chunk| context.options.wants_rid(chunk.rid)) {
            self.write_line("chunk", at, context, |object| {
                object.put("seen_as", seen_as);
                put_frame_id(object, frame.id, context);
                put_fields!(
                    object,
                    chunk,
                    rid,
                    listed,
                    completion_tokens,
                    prompt_tokens,
                    cached_tokens,
                    finish,
                    retractions
                );
                object.put("http_worker_ipc", chunk.worker);
                if writes_token_ids {
                    object.put("ids", chunk.ids);
                }
            });
        }
    }
}

impl Exporter for Events<'_> {
    /// Writes the lines of an event, if its request is selected, and those of the chunks whose outcome it showed.
    fn write_event(&mut self, event: &Event<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let at = event.at;
        match &event.what {
            What::Engine(engine) => self.write_line("engine", at, context, |object| {
                put_fields!(object, engine, name, version, mode, waiter, turnaround);
            }),
            What::Hop(hop) => self.write_line("hop", at, context, |object| {
                put_hop(object, hop.id, context);
                put_fields!(object, hop, endpoint, worker, origin, last, carries_requests);
                let Capabilities { sent, forwarded, received, processed, delivered } = hop.capabilities;
                object
                    .put("observes_sent", sent)
                    .put("observes_forwarded", forwarded)
                    .put("observes_received", received);
                object.put("observes_processed", processed).put("observes_delivered", delivered);
            }),
            What::Sent(sent) => {
                self.write_line("sent", at, context, |object| {
                    put_frame_id(object, sent.id, context);
                    put_frame_content(object, sent);
                    object.put("forwarded_at_ns", sent.forwarded.map(|at| context.clock.since_start_ns(at)));
                });
                self.write_chunks_of_frame("sent", at, sent, context);
            }
            What::Dispatched(dispatch)
                if dispatch.request.is_none_or(|request| context.options.wants_rid(request.rid)) =>
            {
                self.write_line("dispatched", at, context, |object| {
                    put_frame_id(object, dispatch.id, context);
                    put_fields!(object, dispatch, bytes, kind, index);
                    object.put("rid", dispatch.request.map(|request| request.rid));
                    object.put("prompt_tokens", dispatch.request.and_then(|request| request.prompt_tokens));
                    object.put("room", dispatch.request.and_then(|request| request.room).map(|room| room.to_string()));
                    object.put("arrived_unix_ns", dispatch.request.and_then(|request| request.arrived_unix_ns));
                });
            }
            What::PairMessage(message) => {
                self.write_line("pair_message", at, context, |object| {
                    object.put("room", message.room.to_string());
                    put_fields!(object, message, kind);
                });
            }
            What::SendWait(wait) => self.write_line("send_wait", at, context, |object| {
                put_hop(object, wait.hop, context);
                object.put("ns", wait.ns);
            }),
            What::RequestTimes(found) if context.options.wants_rid(found.rid) => {
                self.write_line("request_times", at, context, |object| {
                    object.put("rid", found.rid);
                    let EngineTimes { queued, batch_entered, prefill_finished } = found.times;
                    // The engine may have stamped a request before the capture began.
                    for (name, at) in [
                        ("queued_ns", queued),
                        ("batch_entered_ns", batch_entered),
                        ("prefill_finished_ns", prefill_finished),
                    ] {
                        object.put(name, at.and_then(|at| at.checked_since(context.clock.start)));
                    }
                    object.put("impossible", found.impossible);
                });
            }
            What::Received(received) => {
                self.write_line("received", at, context, |object| {
                    put_frame_id(object, received.id, context);
                    object.put("wakeup", received.wakeup);
                    object.put("pid", received.by.map(|by| by.pid)).put("tid", received.by.map(|by| by.tid));
                    if let Some(unsent) = &received.frame {
                        put_frame_content(object, unsent);
                    }
                });
                if let Some(frame) = &received.frame {
                    self.write_chunks_of_frame("received", at, frame, context);
                }
            }
            What::Processed(id) => {
                self.write_line("processed", at, context, |object| put_frame_id(object, *id, context));
            }
            What::Arrived(arrival) if context.options.wants_rid(arrival.rid) => {
                self.write_line("arrived", at, context, |object| {
                    let times = arrival.times.ok();
                    let connection = times.and_then(|times| times.connection);
                    object.put("rid", arrival.rid).put("unknown", arrival.times.err());
                    for (name, at) in [
                        ("arrived_at_ns", times.map(|times| times.arrived)),
                        ("read_at_ns", times.map(|times| times.read)),
                        ("opened_at_ns", connection.map(|connection| connection.opened)),
                        ("accepted_at_ns", connection.and_then(|connection| connection.accepted)),
                    ] {
                        object.put(name, at.map(|at| context.clock.since_start_ns(at)));
                    }
                });
            }
            What::Traced(traced) if context.options.wants_rid(traced.rid) => {
                self.write_line("traced", at, context, |object| {
                    object.put("rid", traced.rid).put("trace_id", traced.parent.trace_id());
                    object.put("parent_span_id", traced.parent.span_id()).put("sampled", traced.parent.is_sampled);
                });
            }
            What::Delivered(delivery) if !delivery.is_uncounted() && context.options.wants_rid(delivery.rid) => {
                // The event was applied already, so its time is here if it is the first.
                let received = context.ledger.request_of_chunk(0).and_then(|timed| timed.request.delivered_first());
                self.write_line("delivered", at, context, |object| {
                    put_fields!(object, delivery, rid, tokens, mode, completion_tokens, finished);
                    object.put("first_token_received", received == Some(at));
                });
            }
            What::Answered(answer) if context.options.wants_rid(answer.rid) => {
                self.write_line("answered", at, context, |object| {
                    put_fields!(object, answer, rid, tokens, completion_tokens, end, short_writes);
                    object.put("finish", answer.content.and_then(|content| content.finish));
                    object.put("done", answer.content.and_then(|content| content.done));
                    object.put("unacknowledged_bytes", answer.unacknowledged);
                    object.put("tool_calls", answer.tool_calls.map(|calls| calls.outcome));
                });
            }
            What::FrontendWait(wait) if context.options.wants_rid(wait.rid) => {
                self.write_line("frontend_wait", at, context, |object| {
                    put_fields!(object, wait, rid, first_token_ns, last_token_ns);
                });
            }
            What::Rejected(rejection) => {
                self.write_line("rejected", at, context, |object| put_fields!(object, rejection, status));
            }
            What::Undecoded(undecoded) => self.write_line("undecoded", at, context, |object| {
                put_frame_id(object, undecoded.id, context);
                put_fields!(object, undecoded, bytes, reason);
                object.put("forwarded_at_ns", undecoded.forwarded.map(|at| context.clock.since_start_ns(at)));
            }),
            What::Cpu(sample) => self.write_line("cpu", at, context, |object| {
                put_fields!(object, sample.thread, pid, tid);
                object.put("role", sample.role).put("thread", sample.name);
                put_fields!(object, sample, part, interval_ns, on_ns, wait_ns, throttled_ns);
                object.put("poll_interval_ns", sample.poll.map(|poll| poll.interval_ns));
                object.put("polled_ns", sample.poll.map(|poll| poll.polled_ns));
                object.put("poll_wakeups", sample.poll.map(|poll| poll.wakeups));
                if let Some(away) = sample.away {
                    object.put("away", away.state).put("away_in", away.place);
                }
            }),
            What::Queue(sample) => {
                self.write_line("queue", at, context, |object| {
                    put_fields!(object, sample, hop, receive_bytes, send_bytes);
                });
            }
            What::Stack(sample) => self.write_line("stack", at, context, |object| {
                put_fields!(object, sample.thread, pid, tid);
                put_fields!(object, sample, role, function, file, interval_ns, samples, total, own, gil);
            }),
            What::Stage(stage) if context.options.wants_rid(stage.rid) => {
                self.write_line("stage", at, context, |object| {
                    object.put("rid", stage.rid).put("stage", stage.name);
                    put_fields!(object, stage, by, tokens, pending, gap_ns);
                });
            }
            What::LoggedState(state) => self.write_line("logged_state", at, context, |object| {
                put_fields!(object, state, by, states, rids, recv_wait_ns, more, cpu, cpu_system);
                object.put("unanswered_since_ns", state.unanswered_since.map(|at| context.clock.since_start_ns(at)));
            }),
            What::Merged(merged) if context.options.wants_rid(merged.rid) => {
                self.write_line("merged", at, context, |object| put_fields!(object, merged, rid, chunks, by));
            }
            What::Missed(lost) => self.write_line("missed", at, context, |object| {
                object
                    .put("hop", lost.hop.map(|id| context.ledger.hop_name(id)))
                    .put("hop_id", lost.hop.map(|id| id.0));
                put_fields!(object, lost, count, cause);
            }),
            What::Dispatched(_)
            | What::Arrived(_)
            | What::Traced(_)
            | What::RequestTimes(_)
            | What::Delivered(_)
            | What::Answered(_)
            | What::FrontendWait(_)
            | What::Stage(_)
            | What::Merged(_) => {}
        }
        self.write_judged_chunks(at, context);
        self.out.take_write_result()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes a line for each finding and one with the totals of the capture.
    fn write_end(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        let start = report.capture_start();
        for finding in &report.findings {
            let at = MonoNs(start.0.saturating_add(finding.at_ns));
            self.write_line("finding", at, context, |object| {
                object.put("finding", &finding.kind).put("severity", finding.severity);
                // The id is empty if the finding is not about one request.
                object.put("rid", Some(&finding.rid).filter(|rid| !rid.is_empty()));
                put_fields!(object, finding, hop, last_at_ns, ended_at_ns, duration_ns, summary, evidence, advice);
            });
        }
        self.write_line("end", report.capture_end(), context, |object| {
            let Report { requests, tokens, chunks, .. } = report;
            object.put("requests_seen", requests.seen).put("requests_finished", requests.finished);
            object.put("requests_aborted", requests.aborted).put("tokens_sent", tokens.sent);
            object.put("tokens_received", tokens.received).put("tokens_delivered", tokens.delivered);
            object.put("tokens_lost", chunks.tokens_lost);
            object.put("chunks_sent", chunks.sent).put("chunks_received", chunks.received);
            object.put("chunks_delivered", chunks.delivered).put("chunks_merged", chunks.merged);
            object.put("chunks_dropped_predicted", chunks.dropped_predicted);
            object.put("chunks_dropped_confirmed", chunks.dropped_confirmed);
            put_fields!(object, report.own, events, events_missed);
        });
        self.out.finish()
    }
}

/// Adds the name and the id of a hop.
fn put_hop(object: &mut Object<'_>, hop: HopId, context: &ExportContext<'_>) {
    object.put("hop", context.ledger.hop_name(hop)).put("hop_id", hop.0);
}

/// Adds the hop, the lane and the number of a frame.
fn put_frame_id(object: &mut Object<'_>, id: FrameId, context: &ExportContext<'_>) {
    put_hop(object, id.hop, context);
    put_fields!(object, id, lane, seq);
}

/// Adds the length, the kind and the number of chunks of a frame.
fn put_frame_content(object: &mut Object<'_>, frame: &Frame<'_>) {
    put_fields!(object, frame, bytes, kind);
    object.put("chunks", frame.chunks.len() as u64);
}
