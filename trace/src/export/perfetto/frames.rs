//! Frames as slices joined by flows: send, relay, receive and processing.
//!
//! Perfetto drops overlapping slices of one thread, and clocks of different observers differ slightly. So a slice that starts before the
//! end of the thread's last slice starts at that end instead.

use std::collections::VecDeque;
use std::io;

use hashbrown::HashMap;

use super::head;
use super::tracks::{Track, Tracks};
use crate::clock::MonoNs;
use crate::event::{Frame, Received};
use crate::export::ExportContext;
use crate::export::json::Stream;
use crate::id::{FrameId, HopId};

/// Maximum number of queued frames kept per connection. Beyond that, the oldest lose the arrow to their receive.
const WAITING: usize = 65_536;
/// Maximum number of connections with arrows.
const CONNECTIONS: usize = 16_384;

/// A frame sent and not yet received.
#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: u64,
    at: MonoNs,
    bytes: u64,
    chunks: u32,
}

/// A frame being processed by its receiver.
#[derive(Clone, Copy, Debug)]
struct Open {
    id: FrameId,
    at: MonoNs,
    sent: Option<Sent>,
    wakeup: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Frames {
    waiting: HashMap<(HopId, u32), VecDeque<Sent>>,
    open: HashMap<Track, Open>,
    /// Thread of the last receive on each hop.
    receiving_thread: HashMap<HopId, Track>,
    /// End of each thread's last slice.
    ends: HashMap<Track, MonoNs>,
}

impl Frames {
    pub(super) fn sent(
        &mut self,
        out: &mut Stream<'_>,
        tracks: &mut Tracks,
        at: MonoNs,
        frame: &Frame<'_>,
        context: &ExportContext<'_>,
    ) -> io::Result<()> {
        let id = frame.id;
        let track = tracks.sends(out, id.hop, id.lane, context.hops)?;
        let capabilities = context.hops.get(id.hop).map(|h| h.capabilities).unwrap_or_default();
        if capabilities.received {
            let fits = self.waiting.len() < CONNECTIONS || self.waiting.contains_key(&(id.hop, id.lane));
            if !fits {
                self.waiting.retain(|_, frames| !frames.is_empty());
            }
            let frames = self.waiting.entry((id.hop, id.lane)).or_default();
            if frames.len() >= WAITING {
                frames.pop_front();
            }
            frames.push_back(Sent { seq: id.seq, at, bytes: frame.bytes, chunks: frame.chunks.len() as u32 });
        }
        let hop = context.hops.name(id.hop);
        out.object(|o| {
            head(o, "X", track, "send", context.clock.at(at));
            o.micros("dur", 0).word("cat", "frame").hex("bind_id", flow(id)).flag("flow_out", true);
            o.object("args", |args| {
                args.text("hop", hop).int("lane", id.lane).int("seq", id.seq);
                args.int("bytes", frame.bytes).int("chunks", frame.chunks.len() as u64);
                args.text("kind", frame.kind.as_str());
            });
        })?;
        match frame.forwarded {
            Some(forwarded) => self.forwarded(out, tracks, [at, forwarded], frame, context),
            None => Ok(()),
        }
    }

    fn forwarded(
        &mut self,
        out: &mut Stream<'_>,
        tracks: &mut Tracks,
        [sent, forwarded]: [MonoNs; 2],
        frame: &Frame<'_>,
        context: &ExportContext<'_>,
    ) -> io::Result<()> {
        let id = frame.id;
        let track = tracks.relay(out, id.hop, id.lane, context.hops)?;
        // An arrow must end later than it starts.
        let arrival = MonoNs(sent.0.saturating_add(1));
        let (from, to) = self.place(track, arrival, forwarded);
        out.object(|o| {
            head(o, "X", track, "relay", context.clock.at(from));
            o.micros("dur", to.since(from)).word("cat", "frame");
            if from == arrival {
                o.hex("bind_id", flow(id)).flag("flow_in", true).flag("flow_out", true);
            }
            o.object("args", |args| {
                args.int("lane", id.lane).int("seq", id.seq).int("bytes", frame.bytes);
            });
        })
    }

    pub(super) fn received(
        &mut self,
        out: &mut Stream<'_>,
        tracks: &mut Tracks,
        at: MonoNs,
        received: &Received<'_>,
        context: &ExportContext<'_>,
    ) -> io::Result<()> {
        let id = received.id;
        let hop = context.hops.get(id.hop);
        let track = match received.by {
            Some(by) => tracks.thread(out, by, hop.map_or("", |h| &h.ends.to), "")?,
            None => tracks.receives(out, id.hop, context.hops)?,
        };
        if let Some(before) = self.open.remove(&track) {
            self.write(out, track, &before, at, false, context)?;
        }
        let open = Open { id, at, sent: self.take_sent(id).filter(|sent| sent.at < at), wakeup: received.wakeup };
        if hop.is_some_and(|h| h.capabilities.processed) {
            self.receiving_thread.insert(id.hop, track);
            self.open.insert(track, open);
            Ok(())
        } else {
            self.write(out, track, &open, at, false, context)
        }
    }

    pub(super) fn processed(
        &mut self,
        out: &mut Stream<'_>,
        at: MonoNs,
        id: FrameId,
        context: &ExportContext<'_>,
    ) -> io::Result<()> {
        let Some(&track) = self.receiving_thread.get(&id.hop) else {
            return Ok(());
        };
        match self.open.get(&track).copied().filter(|open| open.id == id) {
            Some(open) => {
                self.open.remove(&track);
                self.write(out, track, &open, at, true, context)
            }
            None => Ok(()),
        }
    }

    /// Writes frames that are still being processed.
    pub(super) fn finish(&mut self, out: &mut Stream<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        for (track, open) in std::mem::take(&mut self.open) {
            self.write(out, track, &open, context.ledger.now(), false, context)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        out: &mut Stream<'_>,
        track: Track,
        open: &Open,
        end: MonoNs,
        processed: bool,
        context: &ExportContext<'_>,
    ) -> io::Result<()> {
        let (from, to) = self.place(track, open.at, end);
        let id = open.id;
        let observes_processed = context.hops.get(id.hop).is_some_and(|h| h.capabilities.processed);
        out.object(|o| {
            head(o, "X", track, "receive", context.clock.at(from));
            o.micros("dur", to.since(from)).word("cat", "frame").hex("bind_id", flow(id));
            if open.sent.is_some() {
                o.flag("flow_in", true);
            }
            o.flag("flow_out", true).object("args", |args| {
                args.text("hop", context.hops.name(id.hop)).int("lane", id.lane).int("seq", id.seq);
                if let Some(sent) = open.sent {
                    args.int("queue_wait_ns", open.at.since(sent.at));
                    args.int("bytes", sent.bytes).int("chunks", sent.chunks);
                }
                if let Some(wakeup) = open.wakeup {
                    args.int("wakeup", wakeup);
                }
                if observes_processed {
                    args.flag("processed", processed);
                }
            });
        })
    }

    /// Removes the frame's send, and all frames ahead of it on its connection.
    fn take_sent(&mut self, id: FrameId) -> Option<Sent> {
        let frames = self.waiting.get_mut(&(id.hop, id.lane))?;
        let place = frames.binary_search_by_key(&id.seq, |f| f.seq).ok()?;
        frames.drain(..=place).next_back()
    }

    /// Interval of a slice, adjusted to not overlap the thread's last one.
    fn place(&mut self, track: Track, from: MonoNs, to: MonoNs) -> (MonoNs, MonoNs) {
        let end = self.ends.entry(track).or_default();
        let from = from.max(*end);
        *end = to.max(from);
        (from, *end)
    }
}

/// Flow id of a frame: its hop, the low 16 bits of the lane, and the low 32 bits of the frame number.
pub(super) fn flow(id: FrameId) -> u64 {
    u64::from(id.hop.0) << 48 | u64::from(id.lane & 0xffff) << 32 | (id.seq & 0xffff_ffff)
}
