//! Requests as async spans with nested stages, each request on its own row.

use std::io;

use super::frames::flow;
use super::head;
use super::tracks::REQUESTS;
use crate::clock::MonoNs;
use crate::event::{Delivery, Frame, Kind as Message};
use crate::export::json::{Object, Stream};
use crate::export::life::{LiveRequest, Note, NoteKind};
use crate::export::stage::{self, Kind};
use crate::export::{Closed, ExportContext};

/// Draws the chunks of a sent frame as points on the rows of their requests.
pub(super) fn sent(out: &mut Stream<'_>, at: MonoNs, frame: &Frame<'_>, context: &ExportContext<'_>) -> io::Result<()> {
    if !context.hops.is_origin(frame.id.hop) || frame.kind == Message::Abort {
        return Ok(());
    }
    // The chunks of a frame differ only in row and count.
    let same = Object::fields(|o| moment(o, "n", "chunk sent", at, context));
    for (place, chunk) in frame.chunks.iter().enumerate() {
        let Some(life) = shows(place, chunk.finish.is_some(), context) else {
            continue;
        };
        out.object(|o| {
            row(o.append(&same), life, context);
            o.object("args", |args| {
                if let Some(count) = chunk.completion_tokens {
                    args.int("completion_tokens", count);
                }
                if let Some(finish) = chunk.finish {
                    args.word("finish", finish.as_str());
                }
            });
        })?;
    }
    Ok(())
}

/// Draws a delivery as a point on the row of its request.
pub(super) fn delivered(
    out: &mut Stream<'_>,
    at: MonoNs,
    delivery: &Delivery<'_>,
    context: &ExportContext<'_>,
) -> io::Result<()> {
    let always = delivery.finished || context.lives.lost_now().is_some();
    let Some(life) = shows(0, always, context) else {
        return Ok(());
    };
    point(out, "delivered", life, at, context, |args| {
        args.int("tokens", delivery.tokens).word("mode", delivery.mode.as_str());
        if let Some(count) = delivery.completion_tokens {
            args.int("completion_tokens", count);
        }
    })
}

/// Request of the current event's chunk `place`, if the chunk is to be drawn; `always` ignores the limit of points.
fn shows<'a>(place: usize, always: bool, context: &ExportContext<'a>) -> Option<&'a LiveRequest> {
    let options = context.options;
    let life = context.lives.current(place)?;
    if !(always || life.points <= options.chunks) || !options.wants_rid(&life.rid) {
        return None;
    }
    if let Some(min) = options.slow_ns {
        context.ledger.request(&life.rid)?.gap_ns().filter(|&gap| gap >= min)?;
    }
    Some(life)
}

/// Draws a closed request. One in flight at the end of the capture gets a mark.
pub(super) fn closed(out: &mut Stream<'_>, request: &Closed<'_>, context: &ExportContext<'_>) -> io::Result<()> {
    let (summary, life) = (request.summary, request.life);
    if !context.options.wants(summary) {
        return Ok(());
    }
    let (from, to) = stage::span(request);
    begin(out, &life.rid, life, from, context, |o| {
        o.object("args", |args| facts(args, request, context));
    })?;
    let mut open: Vec<(String, MonoNs)> = Vec::new();
    for stage in stage::stages(request, context.hops) {
        while open.len() > stage.depth {
            close_last(out, life, &mut open, context)?;
        }
        begin(out, &stage.name, life, stage.from, context, |o| {
            if let Some(frame) = stage.frame {
                // The arrow starts at the frame's receive.
                if stage.kind == Kind::Processing {
                    o.hex("bind_id", flow(frame)).flag("flow_in", true);
                }
                o.object("args", |args| {
                    args.int("hop_id", frame.hop.0)
                        .int("lane", frame.lane)
                        .int("seq", frame.seq);
                });
            }
        })?;
        open.push((stage.name.into_owned(), stage.to));
    }
    while !open.is_empty() {
        close_last(out, life, &mut open, context)?;
    }
    for note in &life.notes {
        draw_note(out, life, note, context)?;
    }
    if request.open {
        point(out, "capture ended", life, to, context, |_| {})?;
    }
    end(out, &life.rid, life, to, context)
}

fn draw_note(out: &mut Stream<'_>, life: &LiveRequest, note: &Note, context: &ExportContext<'_>) -> io::Result<()> {
    let name = match &note.what {
        NoteKind::Stage { name, .. } => &**name,
        NoteKind::Merged { .. } => "chunks merged",
        NoteKind::Answered { .. } => "answered",
        NoteKind::FirstReceived => "first_token_received",
        NoteKind::Dropped { .. } => "chunks dropped",
    };
    point(out, name, life, note.at, context, |args| match &note.what {
        NoteKind::Merged { chunks, .. } => {
            args.int("chunks", *chunks);
        }
        NoteKind::Answered { end, short_writes, .. } => {
            args.text("end", end.as_str()).int("short_writes", *short_writes);
        }
        NoteKind::Stage { by, .. } => {
            args.text("by", by);
        }
        NoteKind::Dropped { chunks, tokens } => {
            args.int("chunks", *chunks).int("tokens", *tokens);
        }
        NoteKind::FirstReceived => {}
    })
}

fn facts(args: &mut Object<'_>, request: &Closed<'_>, context: &ExportContext<'_>) {
    let (s, life) = (request.summary, request.life);
    args.text("rid", &s.rid).text("state", request.state());
    if let Some(finish) = s.finish {
        args.text("finish", finish.as_str());
    }
    args.int("tokens_sent", s.tokens_sent).int("chunks_sent", s.chunks_sent);
    let known = [
        ("worker", s.worker.map(u64::from)),
        ("prompt_tokens", s.prompt_tokens.map(u64::from)),
        ("cached_tokens", s.cached_tokens.map(u64::from)),
        ("gap_ns", s.gap_ns),
        ("last_gap_ns", stage::last_gap(life, context.hops)),
        ("longest_silence_ns", s.silence_ns),
        ("tokens_delivered", s.tokens_delivered.map(u64::from)),
        ("chunks_merged", s.merged.map(u64::from)),
        ("chunks_dropped", s.dropped.map(u64::from)),
        ("tokens_lost", s.tokens_lost.map(u64::from)),
        ("first_token_delivery_ns", stage::first_delivery(s)),
        ("itl_client_p99_ns", s.itl.delivered.map(|itl| itl.p99)),
        ("itl_sent_p99_ns", s.itl.sent.map(|itl| itl.p99)),
    ];
    for (name, value) in known {
        if let Some(value) = value {
            args.int(name, value);
        }
    }
}

fn close_last(
    out: &mut Stream<'_>,
    life: &LiveRequest,
    open: &mut Vec<(String, MonoNs)>,
    context: &ExportContext<'_>,
) -> io::Result<()> {
    match open.pop() {
        Some((name, to)) => end(out, &name, life, to, context),
        None => Ok(()),
    }
}

/// Writes the fields of an event on a request's row.
fn on_row(
    o: &mut Object<'_>,
    phase: &'static str,
    name: &str,
    life: &LiveRequest,
    at: MonoNs,
    context: &ExportContext<'_>,
) {
    moment(o, phase, name, at, context);
    row(o, life, context);
}

/// Writes the name and time of such an event.
fn moment(o: &mut Object<'_>, phase: &'static str, name: &str, at: MonoNs, context: &ExportContext<'_>) {
    head(o, phase, REQUESTS, name, context.clock.at(at));
    o.word("cat", "request");
}

/// Writes the row of such an event.
fn row(o: &mut Object<'_>, life: &LiveRequest, context: &ExportContext<'_>) {
    // A process-local id; with a global one, Perfetto draws the row outside the process.
    o.object("id2", |id| {
        if life.again {
            // Two live requests with one rid need a row each.
            id.text(
                "local",
                &format!("{} from {}", life.rid, context.clock.at(life.first_at)),
            );
        } else {
            id.text("local", &life.rid);
        }
    });
}

fn begin(
    out: &mut Stream<'_>,
    name: &str,
    life: &LiveRequest,
    at: MonoNs,
    context: &ExportContext<'_>,
    more: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        on_row(o, "b", name, life, at, context);
        more(o);
    })
}

fn end(
    out: &mut Stream<'_>,
    name: &str,
    life: &LiveRequest,
    at: MonoNs,
    context: &ExportContext<'_>,
) -> io::Result<()> {
    out.object(|o| on_row(o, "e", name, life, at, context))
}

fn point(
    out: &mut Stream<'_>,
    name: &str,
    life: &LiveRequest,
    at: MonoNs,
    context: &ExportContext<'_>,
    args: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        on_row(o, "n", name, life, at, context);
        o.object("args", args);
    })
}
