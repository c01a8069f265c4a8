//! Chrome trace events as a bare JSON array, one event per line. Perfetto's UI, its trace processor and `chrome://tracing` read it, even if
//! it is truncated.
//!
//! Times are microseconds since the start of the capture. Wall-clock time in a double would lose its nanoseconds.

mod counters;
mod frames;
mod requests;
mod tracks;

use std::io;

use super::json::{Object, Stream};
use super::{Closed, ExportContext, Exporter, Opening};
use crate::clock::MonoNs;
use crate::engine::{Mode, Waiter};
use crate::event::{Event, Missed, StackSample, Stage, Undecoded, What};
use crate::report::Report;
use counters::Counters;
use frames::Frames;
use tracks::{Track, Tracks};

pub(super) struct Perfetto<'w> {
    out: Stream<'w>,
    tracks: Tracks,
    frames: Frames,
    counters: Counters,
}

impl<'w> Perfetto<'w> {
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> io::Result<Self> {
        let mut out = Stream::array(out);
        let tracks = Tracks::new(&mut out, opening)?;
        let clock = opening.clock();
        instant(&mut out, tracks::FINDINGS, "capture", 0, |args| {
            args.text("source", opening.source()).text("tokengap", opening.tokengap());
            args.int("wall_ns", clock.wall(clock.mono(0)));
        })?;
        Ok(Self { out, tracks, frames: Frames::default(), counters: Counters::default() })
    }

    fn lost(&mut self, at: MonoNs, lost: &Missed, context: &ExportContext<'_>) -> io::Result<()> {
        let ts = context.clock.at(at);
        instant(&mut self.out, tracks::MISSED, "observations missed", ts, |args| {
            args.int("count", lost.count).text("cause", lost.cause.as_str());
            if let Some(hop) = lost.hop {
                args.text("hop", context.hops.name(hop));
            }
        })
    }

    fn undecoded(&mut self, at: MonoNs, frame: &Undecoded<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let ts = context.clock.at(at);
        instant(&mut self.out, tracks::MISSED, "frame undecoded", ts, |args| {
            args.text("hop", context.hops.name(frame.id.hop)).int("lane", frame.id.lane);
            args.int("seq", frame.id.seq).int("bytes", frame.bytes).text("reason", frame.reason);
        })
    }

    fn stacks(&mut self, at: MonoNs, sample: &StackSample<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        if sample.function.is_empty() {
            return Ok(());
        }
        let track = self.tracks.thread(&mut self.out, sample.thread, sample.role, "")?;
        let ts = context.clock.at(at);
        instant(&mut self.out, track, sample.function, ts, |args| {
            args.text("file", sample.file).int("interval_ns", sample.interval_ns);
            args.int("samples", sample.samples).int("total", sample.total).int("own", sample.own);
            if let Some(gil) = sample.gil {
                args.int("gil", gil);
            }
        })
    }

    fn stage(&mut self, at: MonoNs, stage: &Stage<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        if !context.options.wants_rid(stage.rid) {
            return Ok(());
        }
        let ts = context.clock.at(at);
        instant(&mut self.out, tracks::LOG, stage.name, ts, |args| {
            args.text("rid", stage.rid).text("by", stage.by);
            for (name, count) in [("tokens", stage.tokens), ("pending", stage.pending)] {
                if let Some(count) = count {
                    args.int(name, count);
                }
            }
        })
    }
}

impl Exporter for Perfetto<'_> {
    fn event(&mut self, event: &Event<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let at = event.at;
        let Self { out, tracks, frames, counters } = self;
        match &event.what {
            What::Engine(engine) => instant(out, tracks::LOG, "engine", context.clock.at(at), |args| {
                args.maybe_text("version", engine.version);
                args.maybe_text("mode", engine.mode.map(Mode::as_str));
                args.maybe_text("waiter", engine.waiter.map(Waiter::as_str));
            }),
            What::Hop(_) => {
                counters.forget_groups();
                Ok(())
            }
            What::Sent(frame) => {
                frames.sent(out, tracks, at, frame, context)?;
                requests::sent(out, at, frame, context)?;
                counters.backlog(out, at, frame.id.hop, context)
            }
            What::Received(received) => {
                frames.received(out, tracks, at, received, context)?;
                counters.backlog(out, at, received.id.hop, context)
            }
            What::Processed(id) => frames.processed(out, at, *id, context),
            What::Delivered(delivery) if delivery.is_uncounted() => Ok(()),
            What::Delivered(delivery) => requests::delivered(out, at, delivery, context),
            What::Undecoded(frame) => self.undecoded(at, frame, context),
            What::Cpu(sample) => {
                let track = tracks.thread(out, sample.thread, sample.role, sample.name)?;
                counters::cpu(out, track, at, sample, context)
            }
            What::Queue(sample) => counters::queue(out, at, sample, context),
            What::Stack(sample) => self.stacks(at, sample, context),
            What::Stage(stage) => self.stage(at, stage, context),
            What::LoggedState(logged_state) => counters::logged_state(out, at, logged_state, context),
            What::Merged(merged) if context.options.wants_rid(merged.rid) => {
                instant(out, tracks::LOG, "chunks merged", context.clock.at(at), |args| {
                    args.text("rid", merged.rid).int("chunks", merged.chunks).text("by", merged.by);
                })
            }
            // Drawn on the request's own row after it has ended.
            What::SendWait(_) | What::Merged(_) | What::Answered(_) | What::FrontendWait(_) => Ok(()),
            What::Missed(lost) => self.lost(at, lost, context),
        }
    }

    fn tick(&mut self, now: MonoNs, context: &ExportContext<'_>) -> io::Result<()> {
        self.counters.tick(&mut self.out, now, context)
    }

    fn closed(&mut self, request: &Closed<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        requests::closed(&mut self.out, request, context)
    }

    fn finish(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        self.frames.finish(&mut self.out, context)?;
        self.counters.finish(&mut self.out, context)?;
        let from = MonoNs(report.window_mono_ns[0]);
        for finding in &report.findings {
            let ts = context.clock.at(MonoNs(from.0.saturating_add(finding.at_ns)));
            instant(&mut self.out, tracks::FINDINGS, &finding.kind, ts, |args| {
                args.text("severity", finding.severity.as_str()).text("summary", &finding.summary);
                if !finding.rid.is_empty() {
                    args.text("rid", &finding.rid);
                }
                if let Some(hop) = &finding.hop {
                    args.text("hop", hop);
                }
                for (name, value) in &finding.evidence {
                    args.named(name, value);
                }
                if let Some(advice) = &finding.advice {
                    args.text("advice", advice);
                }
            })?;
        }
        self.out.finish()
    }
}

/// Writes the fields common to all events.
fn head(o: &mut Object<'_>, phase: &'static str, track: Track, name: &str, ts: u64) {
    o.word("ph", phase).int("pid", track.pid).int("tid", track.tid);
    o.text("name", name).micros("ts", ts);
}

fn instant(
    out: &mut Stream<'_>,
    track: Track,
    name: &str,
    ts: u64,
    args: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        head(o, "i", track, name, ts);
        o.word("s", "t");
        o.object("args", args);
    })
}
