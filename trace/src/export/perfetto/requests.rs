//! Requests as async spans with their stages nested inside, each rid on a row of its own.

use std::io;

use hashbrown::HashMap;

use super::frames::flow;
use super::head;
use super::tracks::REQUESTS;
use crate::clock::MonoNs;
use crate::event::{Delivery, Frame, Kind as Message};
use crate::export::json::{Object, Stream};
use crate::export::life::{Life, Note, Said};
use crate::export::stage::{self, Kind};
use crate::export::{Closed, Look, words};

/// What has been shown of the requests under way.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Chunks and deliveries by rid, as many as there are lives.
    shown: HashMap<Box<str>, u32>,
}

impl Requests {
    pub(super) fn sent(
        &mut self,
        out: &mut Stream<'_>,
        at: MonoNs,
        frame: &Frame<'_>,
        look: &Look<'_>,
    ) -> io::Result<()> {
        if !look.hops.is_origin(frame.id.hop) || frame.kind == Message::Abort {
            return Ok(());
        }
        for chunk in frame.chunks {
            let Some(life) = self.shows(chunk.rid, chunk.finish.is_some(), look) else {
                continue;
            };
            point(out, "chunk sent", chunk.rid, life, at, look, |args| {
                if let Some(count) = chunk.completion_tokens {
                    args.int("completion_tokens", count);
                }
                if let Some(finish) = chunk.finish {
                    args.text("finish", words::finish(finish));
                }
            })?;
        }
        Ok(())
    }

    pub(super) fn delivered(
        &mut self,
        out: &mut Stream<'_>,
        at: MonoNs,
        delivery: &Delivery<'_>,
        look: &Look<'_>,
    ) -> io::Result<()> {
        let lossy = delivery.finished || look.lives.lost_now().is_some();
        let Some(life) = self.shows(delivery.rid, lossy, look) else {
            return Ok(());
        };
        point(out, "delivered", delivery.rid, life, at, look, |args| {
            args.int("tokens", delivery.tokens)
                .text("mode", words::mode(delivery.mode));
            if let Some(count) = delivery.completion_tokens {
                args.int("completion_tokens", count);
            }
            if let Some((chunks, tokens)) = look.lives.lost_now() {
                args.int("chunks_dropped", chunks).int("tokens_lost", tokens);
            }
        })
    }

    /// Whether one more point of the request is to be drawn; `always` regardless of how many there are.
    fn shows<'a>(&mut self, rid: &str, always: bool, look: &Look<'a>) -> Option<&'a Life> {
        let options = look.options;
        let life = look.lives.get(rid).filter(|_| options.wants_rid(rid))?;
        if let Some(least) = options.slow_ns {
            look.ledger.request(rid)?.gap_ns().filter(|&gap| gap >= least)?;
        }
        if let Some(shown) = self.shown.get_mut(rid) {
            let room = *shown < options.chunks;
            *shown += u32::from(room);
            return (room || always).then_some(life);
        }
        let room = options.chunks > 0;
        self.shown.insert(rid.into(), u32::from(room));
        (room || always).then_some(life)
    }

    /// Draws a request that is over; one still open at the end is closed with a mark.
    pub(super) fn closed(&mut self, out: &mut Stream<'_>, request: &Closed<'_>, look: &Look<'_>) -> io::Result<()> {
        let (summary, life) = (request.summary, request.life);
        self.shown.remove(&*summary.rid);
        if !look.options.wants(summary) {
            return Ok(());
        }
        let rid = &*summary.rid;
        let (from, to) = stage::span(request);
        begin(out, rid, rid, life, from, look, |o| {
            o.object("args", |args| facts(args, request, look));
        })?;
        let mut open: Vec<(String, MonoNs)> = Vec::new();
        for stage in stage::stages(request, look.hops) {
            while open.len() > stage.depth {
                close_last(out, rid, life, &mut open, look)?;
            }
            begin(out, &stage.name, rid, life, stage.from, look, |o| {
                if let Some(frame) = stage.frame {
                    // The arrow comes from the frame's take.
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
            close_last(out, rid, life, &mut open, look)?;
        }
        for note in &life.notes {
            draw_note(out, rid, life, note, look)?;
        }
        if request.open {
            point(out, "capture ended", rid, life, to, look, |_| {})?;
        }
        end(out, rid, rid, life, to, look)
    }
}

fn draw_note(out: &mut Stream<'_>, rid: &str, life: &Life, note: &Note, look: &Look<'_>) -> io::Result<()> {
    let name = match &note.what {
        Said::Stage { name, .. } => &**name,
        Said::Merged { .. } => "chunks merged",
        Said::Answered { .. } => "answered",
        // Drawn with the delivery that proved it.
        Said::Dropped { .. } => return Ok(()),
    };
    point(out, name, rid, life, note.at, look, |args| match &note.what {
        Said::Merged { chunks, .. } => {
            args.int("chunks", *chunks);
        }
        Said::Answered { end, held_up, .. } => {
            args.text("end", words::end(*end)).int("held_up", *held_up);
        }
        Said::Stage { by, .. } => {
            args.text("by", by);
        }
        Said::Dropped { .. } => {}
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
    ];
    for (name, value) in known {
        if let Some(value) = value {
            args.int(name, value);
        }
    }
}

fn close_last(
    out: &mut Stream<'_>,
    rid: &str,
    life: &Life,
    open: &mut Vec<(String, MonoNs)>,
    look: &Look<'_>,
) -> io::Result<()> {
    match open.pop() {
        Some((name, to)) => end(out, &name, rid, life, to, look),
        None => Ok(()),
    }
}

/// The fields that put an event on a request's row.
fn on_row(o: &mut Object<'_>, phase: &str, name: &str, rid: &str, life: &Life, at: MonoNs, look: &Look<'_>) {
    head(o, phase, REQUESTS, name, look.clock.at(at));
    o.text("cat", "request");
    if life.again {
        // Two requests of one rid at a time: each needs a row.
        o.text("id", &format!("{rid} from {}", look.clock.at(life.first_at)));
    } else {
        o.text("id", rid);
    }
}

fn begin(
    out: &mut Stream<'_>,
    name: &str,
    rid: &str,
    life: &Life,
    at: MonoNs,
    look: &Look<'_>,
    more: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        on_row(o, "b", name, rid, life, at, look);
        more(o);
    })
}

fn end(out: &mut Stream<'_>, name: &str, rid: &str, life: &Life, at: MonoNs, look: &Look<'_>) -> io::Result<()> {
    out.object(|o| on_row(o, "e", name, rid, life, at, look))
}

fn point(
    out: &mut Stream<'_>,
    name: &str,
    rid: &str,
    life: &Life,
    at: MonoNs,
    look: &Look<'_>,
    args: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        on_row(o, "n", name, rid, life, at, look);
        o.object("args", args);
    })
}
