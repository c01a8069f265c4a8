//! Requests as async spans with nested stages, each request on its own row.

use trace::clock::MonoNs;
use trace::event::{Delivery, Frame, Kind as Message};
use trace::ledger::{ChunkOutcome, NoteKind, RequestNote, TimedRequest, TtftPath};

use super::frames::flow_id;
use super::tracks::REQUESTS;
use super::{POINT, Perfetto, STAGE_BEGIN, STAGE_END, write_event_head};
use crate::export::json::{Object, ObjectStream};
use crate::export::request_stage::{self, RequestStage, StageKind, TimeSpan};
use crate::export::{ExportContext, ExportedRequest};

impl Perfetto<'_> {
    /// Draws the chunks of a sent frame as points on the rows of their requests. A chunk is a part of the output of one request.
    pub(super) fn draw_chunks_sent(&mut self, at: MonoNs, frame: &Frame<'_>, context: &ExportContext<'_>) {
        // Each chunk is drawn once, where it is first sent. A message that aborts requests has no chunks to draw.
        if !context.ledger.is_origin(frame.id.hop) || frame.kind == Message::Abort {
            return;
        }
        // The chunks of a frame differ only in row and count.
        let common_fields =
            Object::encode_fields(|object| write_name_and_time(object, POINT, "chunk sent", at, context));
        for (chunk_index, chunk) in frame.chunks.iter().enumerate() {
            // While it is unknown on which hop the scheduler sends, all hops pass the check above. For each request, only the first of them
            // counts.
            let request = context.ledger.request_of_chunk(chunk_index).map(|timed| timed.request);
            let is_from_scheduler =
                request.is_some_and(|request| context.ledger.is_from_scheduler(request, frame.id.hop));
            if !is_from_scheduler {
                continue;
            }
            // The end of a request is drawn beyond the limit of points, too.
            let ignores_limit = chunk.finish.is_some();
            let Some(id) = row_if_drawn(chunk_index, ignores_limit, context) else { continue };
            self.out.write_object(|object| {
                write_row_id(object.append_fields(&common_fields), id, context);
                object.put_object("args", |args| {
                    args.put_if_known("completion_tokens", chunk.completion_tokens);
                    args.put_if_known("finish", chunk.finish);
                });
            });
        }
    }

    /// Draws a delivery on the row of its request, up to the limit of points.
    pub(super) fn draw_delivery(&mut self, at: MonoNs, delivery: &Delivery<'_>, context: &ExportContext<'_>) {
        // The end of a request and a loss are drawn beyond the limit of points, too.
        let ignores_limit = delivery.finished
            || context.ledger.judged_chunks().any(|(_, judged)| judged.outcome == ChunkOutcome::Dropped);
        // A delivery is the only chunk of its event.
        let chunk_index = 0;
        if let Some(id) = row_if_drawn(chunk_index, ignores_limit, context) {
            RequestRowWriter { out: &mut self.out, id, context }.draw_point("delivered", at, |args| {
                args.put("tokens", delivery.tokens).put("mode", delivery.mode);
                args.put_if_known("completion_tokens", delivery.completion_tokens);
            });
        }
    }
}

/// Row of the request of the current event's chunk. `None` if the chunk is not to be drawn: its request is unknown or not selected, or has
/// too many points already. `ignores_limit`: any number of points is allowed.
fn row_if_drawn<'a>(chunk_index: usize, ignores_limit: bool, context: &ExportContext<'a>) -> Option<RequestRowId<'a>> {
    let options = context.options;
    let TimedRequest { request, timeline } = context.ledger.request_of_chunk(chunk_index)?;
    let timeline = timeline?;
    // `chunks` is the limit of the points of one request.
    let is_beyond_limit = timeline.points > options.chunks;
    if (is_beyond_limit && !ignores_limit) || !options.wants_rid(&request.rid) {
        return None;
    }
    if let Some(min_ns) = options.slow_ns {
        // A request whose gap is unknown does not count as slow.
        let gap_ns = request.gap_ns()?;
        if gap_ns < min_ns {
            return None;
        }
    }
    Some(RequestRowId { rid: &request.rid, first_at: request.first_at, has_reused_rid: timeline.has_reused_rid })
}

/// Draws a request with its stages and notes on its own row. A request in flight at the end of the capture gets a mark there.
pub(super) fn draw_request(out: &mut ObjectStream<'_>, request: &ExportedRequest<'_>, context: &ExportContext<'_>) {
    let ExportedRequest { summary, timeline, .. } = *request;
    let TimeSpan { from, to } = request_stage::span_of_request(request);
    let id = RequestRowId { rid: &summary.rid, first_at: summary.first_at, has_reused_rid: timeline.has_reused_rid };
    let mut row = RequestRowWriter { out, id, context };
    row.draw_event(STAGE_BEGIN, &summary.rid, from, |object| {
        object.put_object("args", |args| write_request_facts(args, request, context));
    });
    row.draw_stages(request);
    for note in &timeline.notes {
        row.draw_note(note);
    }
    if request.is_open {
        row.draw_point("capture ended", to, add_no_fields);
    }
    // Last, since events of a row must be nested.
    row.draw_event(STAGE_END, &summary.rid, to, add_no_fields);
}

/// Writes the frame that a stage belongs to, if it belongs to one. An arrow leads to the processing of a frame.
fn write_frame_of_stage(object: &mut Object<'_>, stage: &RequestStage<'_>) {
    let Some(frame) = stage.frame else { return };
    // The arrow starts at the frame's receive.
    if stage.kind == StageKind::Processing {
        object.put_hex("bind_id", flow_id(frame)).put("flow_in", true);
    }
    object.put_object("args", |args| {
        args.put("hop_id", frame.hop.0).put("lane", frame.lane).put("seq", frame.seq);
    });
}

/// Adds nothing. Stands for a function that adds fields to an event, for events without fields of their own.
fn add_no_fields(_: &mut Object<'_>) {}

/// Writes the known facts about a request, for the panel of its slice.
fn write_request_facts(args: &mut Object<'_>, request: &ExportedRequest<'_>, context: &ExportContext<'_>) {
    let summary = request.summary;
    args.put("rid", &summary.rid).put("state", request.state());
    args.put_if_known("finish", summary.finish);
    args.put("tokens_sent", summary.tokens_sent)
        .put("chunks_sent", summary.chunks_sent)
        .put_if_known("worker", summary.worker);
    args.put_if_known("prompt_tokens", summary.prompt_tokens).put_if_known("cached_tokens", summary.cached_tokens);
    args.put_if_known("gap_ns", summary.gap_ns)
        .put_if_known("last_gap_ns", request_stage::last_chunk_gap_ns(request.timeline, context.ledger));
    args.put_if_known("ttft_ns", TtftPath::new(summary).ttft_ns())
        .put_if_known("longest_silence_ns", summary.silence_ns);
    args.put_if_known("chunks_delivered", summary.delivered).put_if_known("chunks_merged", summary.merged);
    args.put_if_known("chunks_dropped", summary.dropped).put_if_known("chunks_unjudged", summary.unjudged);
    args.put_if_known("tokens_delivered", summary.tokens_delivered).put_if_known("tokens_lost", summary.tokens_lost);
    args.put_if_known("first_token_delivery_ns", request_stage::first_token_delivery_ns(summary));
    args.put_if_known("itl_client_p99_ns", summary.itl.delivered.map(|itl| itl.p99));
    args.put_if_known("itl_sent_p99_ns", summary.itl.sent.map(|itl| itl.p99));
}

/// Identifies the row of a request. The time of its first event is part of the id only if the rid is used more than once.
#[derive(Clone, Copy)]
struct RequestRowId<'a> {
    rid: &'a str,
    first_at: MonoNs,
    has_reused_rid: bool,
}

/// Writer of the events on one request's row.
struct RequestRowWriter<'a, 'w, 'c> {
    out: &'a mut ObjectStream<'w>,
    id: RequestRowId<'a>,
    context: &'a ExportContext<'c>,
}

impl RequestRowWriter<'_, '_, '_> {
    /// Draws an event of the request's row. `phase`: [`STAGE_BEGIN`], [`STAGE_END`] or [`POINT`].
    fn draw_event(&mut self, phase: &'static str, name: &str, at: MonoNs, add_fields: impl FnOnce(&mut Object<'_>)) {
        self.out.write_object(|object| {
            write_name_and_time(object, phase, name, at, self.context);
            write_row_id(object, self.id, self.context);
            add_fields(object);
        });
    }

    /// Draws a moment on the request's row.
    fn draw_point(&mut self, name: &str, at: MonoNs, args: impl FnOnce(&mut Object<'_>)) {
        self.draw_event(POINT, name, at, |object| {
            object.put_object("args", args);
        });
    }

    /// Draws the stages of the request, nested in each other.
    fn draw_stages(&mut self, request: &ExportedRequest<'_>) {
        // Stages that have begun and not ended, the outermost first.
        let mut open_stages: Vec<RequestStage<'_>> = Vec::new();
        for stage in request_stage::stages_of_request(request, self.context.ledger) {
            // A stage ends its previous sibling and everything inside that.
            let first_ended = stage.depth.min(open_stages.len());
            self.end_stages(open_stages.drain(first_ended..));
            self.draw_event(STAGE_BEGIN, &stage.name, stage.span.from, |object| write_frame_of_stage(object, &stage));
            open_stages.push(stage);
        }
        self.end_stages(open_stages.drain(..));
    }

    /// Ends nested stages, the innermost first.
    fn end_stages<'s>(&mut self, stages: impl DoubleEndedIterator<Item = RequestStage<'s>>) {
        for stage in stages.rev() {
            self.draw_event(STAGE_END, &stage.name, stage.span.to, add_no_fields);
        }
    }

    /// Draws a note of the timeline.
    fn draw_note(&mut self, note: &RequestNote) {
        let name = match &note.what {
            NoteKind::Stage { name, .. } => &**name,
            NoteKind::Merged { .. } => "chunks merged",
            NoteKind::Answered { .. } => "answered",
            NoteKind::FirstReceived => "first_token_received",
            NoteKind::Dropped { .. } => "chunks dropped",
        };
        self.draw_point(name, note.at, |args| match &note.what {
            NoteKind::Merged { chunks, .. } => {
                args.put("chunks", chunks);
            }
            NoteKind::Answered { end, short_writes, .. } => {
                args.put("end", end).put("short_writes", short_writes);
            }
            NoteKind::Stage { by, .. } => {
                args.put("by", by);
            }
            NoteKind::Dropped { chunks, tokens } => {
                args.put("chunks", chunks).put("tokens", tokens);
            }
            NoteKind::FirstReceived => {}
        });
    }
}

/// Writes the name and time of an event on a row.
fn write_name_and_time(
    object: &mut Object<'_>,
    phase: &'static str,
    name: &str,
    at: MonoNs,
    context: &ExportContext<'_>,
) {
    write_event_head(object, phase, REQUESTS, name, context.clock.since_start_ns(at));
    object.put("cat", "request");
}

/// Writes the id of the row of an event. The id is local to the process (`local`), because Perfetto draws a row with a global id outside
/// the process.
fn write_row_id(object: &mut Object<'_>, row: RequestRowId<'_>, context: &ExportContext<'_>) {
    object.put_object("id2", |id| {
        if row.has_reused_rid {
            // Two live requests with one rid need a row each.
            id.put("local", format!("{} from {}", row.rid, context.clock.since_start_ns(row.first_at)));
        } else {
            id.put("local", row.rid);
        }
    });
}
