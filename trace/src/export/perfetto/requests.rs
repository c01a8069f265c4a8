//! Requests as async spans with nested stages, each request on its own row.

use std::io;

use super::frames::flow;
use super::head;
use super::tracks::REQUESTS;
use crate::clock::MonoNs;
use crate::event::{Delivery, Frame, Kind as Message};
use crate::export::json::{Object, Stream};
use crate::export::life::{Life, Note, Said};
use crate::export::stage::{self, Kind};
use crate::export::{Closed, Look, words};

/// Draws the chunks of a sent frame as points on the rows of their requests.
pub(super) fn sent(out: &mut Stream<'_>, at: MonoNs, frame: &Frame<'_>, look: &Look<'_>) -> io::Result<()> {
    if !look.hops.is_origin(frame.id.hop) || frame.kind == Message::Abort {
        return Ok(());
    }
    // The chunks of a frame differ only in row and count.
    let same = Object::fields(|o| moment(o, "n", "chunk sent", at, look));
    for (place, chunk) in frame.chunks.iter().enumerate() {
        let Some(life) = shows(place, chunk.finish.is_some(), look) else {
            continue;
        };
        out.object(|o| {
            row(o.append(&same), life, look);
            o.object("args", |args| {
                if let Some(count) = chunk.completion_tokens {
                    args.int("completion_tokens", count);
                }
                if let Some(finish) = chunk.finish {
                    args.word("finish", words::finish(finish));
                }
            });
        })?;
    }
    Ok(())
}

/// Draws a delivery as a point on the row of its request.
pub(super) fn delivered(out: &mut Stream<'_>, at: MonoNs, delivery: &Delivery<'_>, look: &Look<'_>) -> io::Result<()> {
    let always = delivery.finished || look.lives.lost_now().is_some();
    let Some(life) = shows(0, always, look) else {
        return Ok(());
    };
    point(out, "delivered", life, at, look, |args| {
        args.int("tokens", delivery.tokens)
            .word("mode", words::mode(delivery.mode));
        if let Some(count) = delivery.completion_tokens {
            args.int("completion_tokens", count);
        }
        if let Some((chunks, tokens)) = look.lives.lost_now() {
            args.int("chunks_dropped", chunks).int("tokens_lost", tokens);
        }
    })
}

/// Request of the current event's chunk `place`, if the chunk is to be drawn; `always` ignores the limit of points.
fn shows<'a>(place: usize, always: bool, look: &Look<'a>) -> Option<&'a Life> {
    let options = look.options;
    let life = look.lives.current(place)?;
    if !(always || life.points <= options.chunks) || !options.wants_rid(&life.rid) {
        return None;
    }
    if let Some(least) = options.slow_ns {
        look.ledger.request(&life.rid)?.gap_ns().filter(|&gap| gap >= least)?;
    }
    Some(life)
}

/// Draws a closed request. One in flight at the end of the capture gets a mark.
pub(super) fn closed(out: &mut Stream<'_>, request: &Closed<'_>, look: &Look<'_>) -> io::Result<()> {
    let (summary, life) = (request.summary, request.life);
    if !look.options.wants(summary) {
        return Ok(());
    }
    let (from, to) = stage::span(request);
    begin(out, &life.rid, life, from, look, |o| {
        o.object("args", |args| facts(args, request, look));
    })?;
    let mut open: Vec<(String, MonoNs)> = Vec::new();
    for stage in stage::stages(request, look.hops) {
        while open.len() > stage.depth {
            close_last(out, life, &mut open, look)?;
        }
        begin(out, &stage.name, life, stage.from, look, |o| {
            if let Some(frame) = stage.frame {
                // The arrow starts at the frame's receive.
                if stage.kind == Kind::Handling {
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
        close_last(out, life, &mut open, look)?;
    }
    for note in &life.notes {
        draw_note(out, life, note, look)?;
    }
    if request.open {
        point(out, "capture ended", life, to, look, |_| {})?;
    }
    end(out, &life.rid, life, to, look)
}

fn draw_note(out: &mut Stream<'_>, life: &Life, note: &Note, look: &Look<'_>) -> io::Result<()> {
    let name = match &note.what {
        Said::Stage { name, .. } => &**name,
        Said::Merged { .. } => "chunks merged",
        Said::Answered { .. } => "answered",
        Said::FirstReceived => "first_token_received",
        // Drawn with the delivery that proved it.
        Said::Dropped { .. } => return Ok(()),
    };
    point(out, name, life, note.at, look, |args| match &note.what {
        Said::Merged { chunks, .. } => {
            args.int("chunks", *chunks);
        }
        Said::Answered { end, held_up, .. } => {
            args.text("end", words::end(*end)).int("held_up", *held_up);
        }
        Said::Stage { by, .. } => {
            args.text("by", by);
        }
        Said::FirstReceived | Said::Dropped { .. } => {}
    })
}

fn facts(args: &mut Object<'_>, request: &Closed<'_>, look: &Look<'_>) {
    let (s, life) = (request.summary, request.life);
    args.text("rid", &s.rid).text("state", request.state());
    if let Some(finish) = s.finish {
        args.text("finish", words::finish(finish));
    }
    args.int("tokens_sent", s.tokens_sent).int("chunks_sent", s.chunks_sent);
    let known = [
        ("worker", s.worker.map(u64::from)),
        ("prompt_tokens", s.prompt_tokens.map(u64::from)),
        ("cached_tokens", life.cached_tokens.map(u64::from)),
        ("gap_ns", s.gap_ns),
        ("last_gap_ns", stage::last_gap(life, look.hops)),
        ("longest_silence_ns", s.silence_ns),
        ("tokens_delivered", s.tokens_delivered.map(u64::from)),
        ("chunks_coalesced", s.coalesced.map(u64::from)),
        ("chunks_dropped", s.dropped.map(u64::from)),
        ("tokens_lost", s.tokens_lost.map(u64::from)),
        ("first_token_delivery_ns", stage::first_delivery(s)),
        ("itl_client_p99_ns", s.paces.delivered.map(|pace| pace.p99)),
        ("itl_sent_p99_ns", s.paces.sent.map(|pace| pace.p99)),
    ];
    for (name, value) in known {
        if let Some(value) = value {
            args.int(name, value);
        }
    }
}

fn close_last(out: &mut Stream<'_>, life: &Life, open: &mut Vec<(String, MonoNs)>, look: &Look<'_>) -> io::Result<()> {
    match open.pop() {
        Some((name, to)) => end(out, &name, life, to, look),
        None => Ok(()),
    }
}

/// Writes the fields of an event on a request's row.
fn on_row(o: &mut Object<'_>, phase: &'static str, name: &str, life: &Life, at: MonoNs, look: &Look<'_>) {
    moment(o, phase, name, at, look);
    row(o, life, look);
}

/// Writes the name and time of such an event.
fn moment(o: &mut Object<'_>, phase: &'static str, name: &str, at: MonoNs, look: &Look<'_>) {
    head(o, phase, REQUESTS, name, look.clock.at(at));
    o.word("cat", "request");
}

/// Writes the row of such an event.
fn row(o: &mut Object<'_>, life: &Life, look: &Look<'_>) {
    // A process-local id; with a global one, Perfetto draws the row outside the process.
    o.object("id2", |id| {
        if life.again {
            // Two live requests with one rid need a row each.
            id.text("local", &format!("{} from {}", life.rid, look.clock.at(life.first_at)));
        } else {
            id.text("local", &life.rid);
        }
    });
}

fn begin(
    out: &mut Stream<'_>,
    name: &str,
    life: &Life,
    at: MonoNs,
    look: &Look<'_>,
    more: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        on_row(o, "b", name, life, at, look);
        more(o);
    })
}

fn end(out: &mut Stream<'_>, name: &str, life: &Life, at: MonoNs, look: &Look<'_>) -> io::Result<()> {
    out.object(|o| on_row(o, "e", name, life, at, look))
}

fn point(
    out: &mut Stream<'_>,
    name: &str,
    life: &Life,
    at: MonoNs,
    look: &Look<'_>,
    args: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        on_row(o, "n", name, life, at, look);
        o.object("args", args);
    })
}
