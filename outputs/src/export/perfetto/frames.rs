//! Frames as slices joined by flows: send, relay, receive and processing.
//!
//! Perfetto drops overlapping slices of one thread, and clocks of different observers differ slightly. So a slice that starts before the
//! end of the thread's last slice starts at that end instead.

use hashbrown::HashMap;
use trace::clock::MonoNs;
use trace::event::{Dispatch, Frame, Received};
use trace::id::{FrameId, HopId};
use trace::ledger::SentFrame;

use super::tracks::{SyntheticRow, Track, UNKNOWN};
use super::{Perfetto, SLICE, write_event_head};
use crate::export::ExportContext;
use crate::export::json::Object;
use crate::export::request_stage::TimeSpan;

/// A frame being processed by its receiver.
#[derive(Clone, Copy, Debug)]
struct OpenReceive {
    id: FrameId,
    at: MonoNs,
    sent: Option<SentFrame>,
    wakeup: Option<u64>,
}

/// What ends the slice of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveEnd {
    /// The end of its processing.
    Processed,
    /// Something else, because the end of its processing was not observed.
    Unobserved,
}

#[derive(Debug, Default)]
pub(super) struct FrameSlices {
    /// Frames being processed, by the thread of their receiver.
    open: HashMap<Track, OpenReceive>,
    /// Thread of the last receive on each hop.
    receiving_thread: HashMap<HopId, Track>,
    /// End of each thread's last slice.
    last_ends: HashMap<Track, MonoNs>,
}

impl Perfetto<'_> {
    /// Draws the send of a frame and, if the frame passed a relay, its time there.
    pub(super) fn draw_frame_sent(&mut self, at: MonoNs, frame: &Frame<'_>, context: &ExportContext<'_>) {
        let id = frame.id;
        self.draw_send(at, id, context, |args| {
            args.put("bytes", frame.bytes).put("chunks", frame.chunks.len() as u64).put("kind", frame.kind);
        });
        if let Some(forwarded) = frame.forwarded {
            self.draw_relay(at, forwarded, frame, context);
        }
    }

    /// Draws the time of a frame in the relay between its sender and its receiver, until `forwarded`. An arrow leads to this slice from the
    /// send of the frame.
    fn draw_relay(&mut self, sent_at: MonoNs, forwarded: MonoNs, frame: &Frame<'_>, context: &ExportContext<'_>) {
        let id = frame.id;
        let track = self.get_or_add_track_of_row(SyntheticRow::Relay(id.hop, id.lane), context.ledger);
        // An arrow must end later than it starts, so the slice begins a nanosecond after the send.
        let arrival = MonoNs(sent_at.0.saturating_add(1));
        let TimeSpan { from, to } = self.frames.fit_slice_behind_last(track, TimeSpan { from: arrival, to: forwarded });
        self.out.write_object(|object| {
            write_event_head(object, SLICE, track, "relay", context.clock.since_start_ns(from));
            object.put_ns_as_micros("dur", to.since(from)).put("cat", "frame");
            // The arrow ends at the arrival, so a slice that had to be moved has none.
            if from == arrival {
                object.put_hex("bind_id", flow_id(id)).put("flow_in", true).put("flow_out", true);
            }
            object.put_object("args", |args| {
                args.put("lane", id.lane).put("seq", id.seq).put("bytes", frame.bytes);
            });
        });
    }

    /// Draws the send of a message with one or more requests as one slice. Called for each of the requests.
    pub(super) fn draw_dispatch(&mut self, at: MonoNs, dispatch: &Dispatch<'_>, context: &ExportContext<'_>) {
        // The message is drawn once, with its first request.
        if dispatch.index > 0 {
            return;
        }
        let rid = dispatch.request.map(|request| request.rid).filter(|rid| context.options.wants_rid(rid));
        self.draw_send(at, dispatch.id, context, |args| {
            args.put("bytes", dispatch.bytes).put("kind", dispatch.kind).put_if_known("rid", rid);
        });
    }

    /// Draws a send, from which an arrow leads to the receive. `add_args` adds what is known of the message.
    fn draw_send(
        &mut self,
        at: MonoNs,
        id: FrameId,
        context: &ExportContext<'_>,
        add_args: impl FnOnce(&mut Object<'_>),
    ) {
        let track = self.get_or_add_track_of_row(SyntheticRow::Sends(id.hop, id.lane), context.ledger);
        self.out.write_object(|object| {
            write_event_head(object, SLICE, track, "send", context.clock.since_start_ns(at));
            // An arrow joins slices with the same `bind_id`.
            object.put_ns_as_micros("dur", 0).put("cat", "frame").put_hex("bind_id", flow_id(id)).put("flow_out", true);
            object.put_object("args", |args| {
                args.put("hop", context.ledger.hop_name(id.hop)).put("lane", id.lane).put("seq", id.seq);
                add_args(args);
            });
        });
    }

    /// Begins the slice of a received frame, which is drawn when its processing ends. Draws it at once if the hop does not show that end.
    pub(super) fn begin_receive_slice(&mut self, at: MonoNs, received: &Received<'_>, context: &ExportContext<'_>) {
        let id = received.id;
        let track = self.track_of_receiver(received, context);
        // The next receive of a thread ends its previous frame, whose own end was not observed.
        if let Some(previous) = self.frames.open.remove(&track) {
            self.draw_receive(track, &previous, at, ReceiveEnd::Unobserved, context);
        }
        // The send of this frame. If the clocks differ, it may seem to be later than the receive, and is then left out.
        let sent = context.ledger.received_frame().filter(|sent| sent.at < at);
        let open = OpenReceive { id, at, sent, wakeup: received.wakeup };
        let observes_processed = context.ledger.hop(id.hop).is_some_and(|hop| hop.shows.processed);
        if observes_processed {
            self.frames.receiving_thread.insert(id.hop, track);
            self.frames.open.insert(track, open);
        } else {
            self.draw_receive(track, &open, at, ReceiveEnd::Unobserved, context);
        }
    }

    /// Track of the thread that received a frame or, if the thread is unknown, of all receives on the hop.
    fn track_of_receiver(&mut self, received: &Received<'_>, context: &ExportContext<'_>) -> Track {
        let hop_id = received.id.hop;
        let Some(thread) = received.by else {
            return self.get_or_add_track_of_row(SyntheticRow::Receives(hop_id), context.ledger);
        };
        // The process of the thread has the role at the receiving end of the hop.
        let role = context.ledger.hop(hop_id).map_or(UNKNOWN, |hop| &context.ledger.groups()[hop.group].ends.to);
        self.name_and_get_track_of_thread(thread, role, UNKNOWN)
    }

    /// Draws the receive of a frame whose processing has ended, unless a later receive of its thread has ended it already.
    pub(super) fn draw_ended_receive(&mut self, at: MonoNs, id: FrameId, context: &ExportContext<'_>) {
        let Some(&track) = self.frames.receiving_thread.get(&id.hop) else { return };
        let Some(&open) = self.frames.open.get(&track) else { return };
        // The thread processes a later frame, whose receive has ended this one.
        if open.id != id {
            return;
        }
        self.frames.open.remove(&track);
        self.draw_receive(track, &open, at, ReceiveEnd::Processed, context);
    }

    /// Draws the receives of frames that are still being processed at the end of the capture.
    pub(super) fn draw_open_receives(&mut self, context: &ExportContext<'_>) {
        for (track, open) in std::mem::take(&mut self.frames.open) {
            self.draw_receive(track, &open, context.ledger.now(), ReceiveEnd::Unobserved, context);
        }
    }

    /// Draws the receive of a frame as a slice of its thread, until `end`.
    fn draw_receive(
        &mut self,
        track: Track,
        open: &OpenReceive,
        end: MonoNs,
        ended_by: ReceiveEnd,
        context: &ExportContext<'_>,
    ) {
        let TimeSpan { from, to } = self.frames.fit_slice_behind_last(track, TimeSpan { from: open.at, to: end });
        let id = open.id;
        let observes_processed = context.ledger.hop(id.hop).is_some_and(|hop| hop.shows.processed);
        self.out.write_object(|object| {
            write_event_head(object, SLICE, track, "receive", context.clock.since_start_ns(from));
            object.put_ns_as_micros("dur", to.since(from)).put("cat", "frame").put_hex("bind_id", flow_id(id));
            // The send of an undecoded frame is not drawn as a slice, so no arrow can start there.
            if open.sent.is_some_and(|sent| sent.chunks.is_some()) {
                object.put("flow_in", true);
            }
            object.put("flow_out", true).put_object("args", |args| {
                args.put("hop", context.ledger.hop_name(id.hop)).put("lane", id.lane).put("seq", id.seq);
                if let Some(sent) = open.sent {
                    args.put("queue_wait_ns", open.at.since(sent.at));
                    args.put("bytes", sent.bytes).put_if_known("chunks", sent.chunks);
                }
                args.put_if_known("wakeup", open.wakeup);
                if observes_processed {
                    args.put("processed", ended_by == ReceiveEnd::Processed);
                }
            });
        });
    }
}

impl FrameSlices {
    /// Moves the ends of a slice so that it does not overlap the thread's last one. Remembers its end for the next slice.
    fn fit_slice_behind_last(&mut self, track: Track, slice: TimeSpan) -> TimeSpan {
        let last_end = self.last_ends.entry(track).or_default();
        let from = slice.from.max(*last_end);
        let to = slice.to.max(from);
        *last_end = to;
        TimeSpan { from, to }
    }
}

/// Flow id of a frame: its hop, the low 16 bits of the lane, and the low 32 bits of the frame number.
pub(super) fn flow_id(id: FrameId) -> u64 {
    (u64::from(id.hop.0) << 48) | (u64::from(id.lane & 0xffff) << 32) | (id.seq & 0xffff_ffff)
}
