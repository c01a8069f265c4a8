//! Chrome trace events as a bare JSON array, one event per line. Perfetto's UI, its trace processor and `chrome://tracing` read it, even if
//! it is truncated.
//!
//! Times are microseconds since the start of the capture. Wall-clock time in a double would lose its nanoseconds.

mod counters;
mod frames;
mod requests;
mod tracks;

use std::io;

use trace::clock::MonoNs;
use trace::event::{Event, What};

use super::json::{Object, ObjectStream, put_fields};
use super::{ExportContext, ExportedRequest, Exporter, Opening};
use crate::report::Report;
use counters::CounterTracks;
use frames::FrameSlices;
use tracks::{Track, Tracks};

// Phases of events in the trace format. Those of stages and points belong to the row of a request.
const COUNTER: &str = "C";
const INSTANT: &str = "i";
const METADATA: &str = "M";
const POINT: &str = "n";
const SLICE: &str = "X";
const STAGE_BEGIN: &str = "b";
const STAGE_END: &str = "e";

pub(super) struct Perfetto<'w> {
    out: ObjectStream<'w>,
    tracks: Tracks,
    frames: FrameSlices,
    counters: CounterTracks,
}

impl<'w> Perfetto<'w> {
    /// Begins the trace that is written to `out`, with the names of the fixed tracks and a mark at the start of the capture.
    pub(super) fn new(out: Box<dyn io::Write + 'w>, opening: &Opening) -> Self {
        let mut perfetto = Self {
            out: ObjectStream::as_array(out),
            tracks: Tracks::new(opening),
            frames: FrameSlices::default(),
            counters: CounterTracks::default(),
        };
        perfetto.name_fixed_tracks();
        let clock = opening.clock();
        let start_ts_ns = 0;
        perfetto.draw_instant(tracks::FINDINGS, "capture", start_ts_ns, |args| {
            put_fields!(args, opening, source, tokengap);
            args.put("wall_ns", clock.wall_ns(clock.start));
        });
        perfetto
    }
}

impl Exporter for Perfetto<'_> {
    /// Draws an event on the tracks of its threads, hops or requests.
    fn write_event(&mut self, event: &Event<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        let at = event.at;
        let ledger = context.ledger;
        let ts_ns = context.clock.since_start_ns(at);
        match &event.what {
            What::Engine(engine) => {
                self.draw_instant(tracks::LOG, "engine", ts_ns, |args| {
                    put_fields!(args, engine, version, mode, waiter);
                });
            }
            What::Sent(frame) => {
                self.draw_frame_sent(at, frame, context);
                self.draw_chunks_sent(at, frame, context);
                self.update_and_draw_backlog(at, frame.id.hop, context);
            }
            What::Dispatched(dispatch) => {
                self.draw_dispatch(at, dispatch, context);
                self.update_and_draw_backlog(at, dispatch.id.hop, context);
            }
            What::Received(received) => {
                self.begin_receive_slice(at, received, context);
                self.update_and_draw_backlog(at, received.id.hop, context);
            }
            What::Processed(id) => self.draw_ended_receive(at, *id, context),
            What::Delivered(delivery) if !delivery.is_uncounted() => self.draw_delivery(at, delivery, context),
            What::Undecoded(frame) => self.draw_instant(tracks::MISSED, "frame undecoded", ts_ns, |args| {
                args.put("hop", ledger.hop_name(frame.id.hop));
                put_fields!(args, frame.id, lane, seq);
                put_fields!(args, frame, bytes, reason);
            }),
            What::Cpu(sample) => self.draw_thread_cpu(ts_ns, sample),
            What::Queue(sample) => {
                self.draw_counter(tracks::HOPS, &format!("kernel queue {}", sample.hop), ts_ns, |args| {
                    args.put_if_known("receive_bytes", sample.receive_bytes)
                        .put_if_known("send_bytes", sample.send_bytes);
                });
            }
            What::Stack(sample) if !sample.function.is_empty() => {
                let track = self.name_and_get_track_of_thread(sample.thread, sample.role, tracks::UNKNOWN);
                self.draw_instant(track, sample.function, ts_ns, |args| {
                    put_fields!(args, sample, file, interval_ns, samples, total, own);
                    args.put_if_known("gil", sample.gil);
                });
            }
            What::Stage(stage) if context.options.wants_rid(stage.rid) => {
                self.draw_instant(tracks::LOG, stage.name, ts_ns, |args| {
                    args.put("rid", stage.rid).put("by", stage.by);
                    args.put_if_known("tokens", stage.tokens).put_if_known("pending", stage.pending);
                });
            }
            What::LoggedState(state) => self.draw_logged_state(ts_ns, state),
            What::Merged(merged) if context.options.wants_rid(merged.rid) => {
                self.draw_instant(tracks::LOG, "chunks merged", ts_ns, |args| {
                    put_fields!(args, merged, rid, chunks, by);
                });
            }
            What::Missed(lost) => self.draw_instant(tracks::MISSED, "observations missed", ts_ns, |args| {
                put_fields!(args, lost, count, cause);
                args.put_if_known("hop", lost.hop.map(|hop| ledger.hop_name(hop)));
            }),
            // An answer is drawn on its request's own row after that has ended.
            What::Hop(_)
            | What::PairMessage(_)
            | What::SendWait(_)
            | What::Arrived(_)
            | What::Traced(_)
            | What::RequestTimes(_)
            | What::Delivered(_)
            | What::Answered(_)
            | What::Rejected(_)
            | What::FrontendWait(_)
            | What::Stack(_)
            | What::Stage(_)
            | What::Merged(_) => {}
        }
        self.out.take_write_result()
    }

    /// Draws the backlogs and numbers of requests, if they have changed.
    fn write_tick(&mut self, now: MonoNs, context: &ExportContext<'_>) -> io::Result<()> {
        self.draw_changed_counts(now, context);
        self.out.take_write_result()
    }

    /// Draws a request with its stages on its own row.
    fn write_request(&mut self, request: &ExportedRequest<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        requests::draw_request(&mut self.out, request, context);
        self.out.take_write_result()
    }

    /// Draws what is still open at the end of the capture, and then the findings.
    fn write_end(&mut self, report: &Report, context: &ExportContext<'_>) -> io::Result<()> {
        self.draw_open_receives(context);
        self.draw_changed_counts(context.ledger.now(), context);
        let start = report.capture_start();
        for finding in &report.findings {
            let ts_ns = context.clock.since_start_ns(MonoNs(start.0.saturating_add(finding.at_ns)));
            self.draw_instant(tracks::FINDINGS, &finding.kind, ts_ns, |args| {
                put_fields!(args, finding, severity, summary);
                // The id is empty if the finding is not about one request.
                args.put_if_known("rid", Some(&finding.rid).filter(|rid| !rid.is_empty()));
                args.put_if_known("hop", finding.hop.as_ref());
                for (name, value) in &finding.evidence {
                    args.put_escaped(name, value);
                }
                args.put_if_known("advice", finding.advice.as_ref());
            });
        }
        self.out.finish()
    }
}

impl Perfetto<'_> {
    /// Draws a moment on a track.
    fn draw_instant(&mut self, track: Track, name: &str, ts_ns: u64, args: impl FnOnce(&mut Object<'_>)) {
        self.out.write_object(|object| {
            write_event_head(object, INSTANT, track, name, ts_ns);
            // Its scope is the track, not the whole process.
            object.put("s", "t").put_object("args", args);
        });
    }
}

/// Writes the fields that all events have: phase, track, name and time since the start of the capture.
fn write_event_head(object: &mut Object<'_>, phase: &'static str, track: Track, name: &str, ts_ns: u64) {
    object.put("ph", phase).put("pid", track.pid).put("tid", track.tid);
    object.put("name", name).put_ns_as_micros("ts", ts_ns);
}
