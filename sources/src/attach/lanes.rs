//! Converts observed libzmq calls into events: the hop of each socket's messages, and their content.
//!
//! See [`super::paths`] for how hops are identified. Sockets that never carry messages of the engine are left out.

use std::collections::{HashMap, HashSet};

use adapter::decode::{Decoders, LONGEST, Shape, SocketFormat};
use probe_user::matcher::{Limits as MatcherLimits, NumberedSend, Unmatched};
use probe_user::{Call, Matcher, Message, SocketId};
use trace::event::{self, Capabilities, Event, Hop, Missed, MissedCause, Received, SendWait, Undecoded, What};
use trace::path::Ends;
use trace::{FrameId, HopId, MonoNs, ThreadId};

use super::multipart::{Multiparts, Part};
use super::paths::Paths;
pub(super) use super::paths::Sink;
use super::roles::Roles;
use super::sight::Observability;

/// Time after the last message during which messages count as flowing.
const FLOWS_NS: u64 = 1_000_000_000;

pub(super) struct Lanes {
    pub(super) matcher: Matcher,
    multiparts: Multiparts,
    pub(super) decoders: Decoders,
    /// Message format of the engine, once known.
    carries: SocketFormat,
    pub(super) paths: Paths,
    sent_at: Option<MonoNs>,
    /// The last frame sent by each process: its socket, number on the socket, hop and time.
    last_sent: HashMap<u32, (SocketId, u64, HopId, MonoNs)>,
    /// Threads observed to receive.
    receivers: HashSet<ThreadId>,
    /// Hops of sockets whose senders are not watched, by receiving socket, with the last frame number.
    unknown_senders: HashMap<SocketId, (HopId, u64)>,
    /// Engine and release deduced from the layout of the last frame with chunks, used if discovery found none.
    pub(super) wire: event::Engine<'static>,
    /// Frames received without an observed send, except requests, which carry no tokens.
    pub(super) senderless: u64,
    /// Missed messages that gaps in socket numbering have revealed, but that the kernel side's counter does not include yet.
    ahead: u64,
    /// Events of frames include token ids, if the decoders keep them.
    pub(super) shows_ids: bool,
}

/// The engine whose messages have this layout, with a range of its releases.
fn engine_of(shape: &Shape) -> event::Engine<'static> {
    let (name, version) = (Some(shape.engine), Some(shape.schema));
    event::Engine { name, version, waiter: shape.waiter, ..event::Engine::default() }
}

impl Lanes {
    pub(super) fn new(roles: Roles, sight: Observability) -> Self {
        Self {
            matcher: Matcher::new(MatcherLimits::default()),
            multiparts: Multiparts::default(),
            decoders: Decoders::new(engines::FORMATS, LONGEST),
            carries: SocketFormat::default(),
            paths: Paths::new(roles, sight),
            sent_at: None,
            last_sent: HashMap::new(),
            receivers: HashSet::new(),
            unknown_senders: HashMap::new(),
            wire: event::Engine::default(),
            senderless: 0,
            ahead: 0,
            shows_ids: false,
        }
    }

    /// Processes a message that entered a socket. `follow` gets events about its frame first, with all token ids.
    pub(super) fn sent(&mut self, message: &Message<'_>, follow: Sink<'_>, sink: Sink<'_>) {
        let both: Sink<'_> = &mut |event| {
            follow(event);
            sink(event);
        };
        self.sent_at = Some(message.call.at);
        let NumberedSend { frame: name, lost_before } = self.matcher.sent(message);
        self.report_missed(name.lane, lost_before, message.call.at, both);
        let (at, from) = (message.call.at, self.paths.roles.of(message.call.socket.pid));
        if from.sends_requests() {
            return;
        }
        let (seq, bytes, first, parts) = match self.multiparts.sent(message, name) {
            Part::Whole(number) => (number, message.bytes, complete_payload(message), 1),
            Part::Incomplete => return,
            Part::Last(whole) => (whole.number, whole.bytes, whole.first_part(), 2),
        };
        let lane = name.lane as usize;
        let generation = self.paths.ids.generation;
        let frame_id = |hop| FrameId::new(hop, generation, seq);
        let decoders = &mut self.decoders;
        let decoded = first.ok_or("cut-by-capture").and_then(|first| {
            // Parts after the first hold raw arrays, which no decoder reads.
            decoders.decode(&mut self.carries, &[first, &[]][..parts]).map_err(|why| why.reason)
        });
        let mut batch = match decoded {
            Ok(batch) => batch,
            Err(reason) => {
                if let Some(known) = self.paths.of_lane(lane) {
                    let id = frame_id(known.id);
                    let what = What::Undecoded(Undecoded::new(id, bytes, reason));
                    both(&Event { at, what });
                }
                return;
            }
        };
        let kind = batch.shape().kind;
        if !batch.chunks().is_empty() {
            self.wire = engine_of(batch.shape());
        }
        if let Some(known) = self.paths.sent(lane, (message.call.socket, kind, !batch.chunks().is_empty()), at, sink) {
            let hop = known.id;
            follow(&Event::new(at, What::Sent(batch.frame(frame_id(hop), bytes))));
            if !self.shows_ids {
                batch.hide_ids();
            }
            sink(&Event::new(at, What::Sent(batch.frame(frame_id(hop), bytes))));
            if let Some(wait) = batch.send_wait(hop, at) {
                sink(&Event::new(at, What::SendWait(wait)));
            }
            let Call { socket, seq, .. } = message.call;
            self.last_sent.insert(socket.pid, (socket, seq, hop, at));
        }
    }

    /// Processes the return of a method that was passed a message: until then its tokens waited in the sender.
    pub(super) fn returned(&mut self, call: &Call, sink: Sink<'_>) {
        let last = self.last_sent.get(&call.socket.pid);
        if let Some((.., hop, at)) = last.filter(|(socket, seq, ..)| (*socket, *seq) == (call.socket, call.seq)) {
            let (hop, ns) = (*hop, call.at.since(*at));
            sink(&Event::new(call.at, What::SendWait(SendWait { hop, ns })));
        }
    }

    pub(super) fn exited(&mut self, pid: u32, sink: Sink<'_>) {
        self.last_sent.remove(&pid);
        self.paths.exited(pid, MonoNs::now(), sink);
    }

    /// Returns whether messages were sent within the last second or are waiting.
    pub(super) fn flows(&self) -> bool {
        let now = MonoNs::now();
        let recent = self.sent_at.is_some_and(|at| now.since(at) < FLOWS_NS);
        recent || self.oldest_waiting().is_some()
    }

    /// Send time of the oldest frame that waits for a watched receiver.
    pub(super) fn oldest_waiting(&self) -> Option<MonoNs> {
        let lanes = self.paths.watched_lanes();
        lanes.filter_map(|lane| self.matcher.oldest_waiting(lane)).min()
    }

    /// Returns whether the thread receives: it was observed to, or it is the main thread of a process where none was.
    pub(super) fn is_receiver(&self, thread: ThreadId) -> bool {
        let known = self.receivers.iter().any(|receiver| receiver.pid == thread.pid);
        self.receivers.contains(&thread) || thread.tid == thread.pid && !known
    }

    /// Processes a message that left a socket. Returns whether its send was observed.
    pub(super) fn received(&mut self, message: &Message<'_>, sink: Sink<'_>) -> bool {
        let Call { at, socket, tid, wakeup, .. } = message.call;
        let by = Some(ThreadId { pid: socket.pid, tid });
        let found = match self.matcher.received(message) {
            Ok(found) => found,
            Err(why) => {
                if why == Unmatched::Unsent && !self.paths.roles.of(socket.pid).is_scheduler() {
                    self.senderless += 1;
                }
                self.received_unsent(message, sink);
                return false;
            }
        };
        self.report_missed(found.frame.lane, found.lost_before, at, sink);
        let Some(known) = self.paths.received(found.frame.lane as usize, socket.pid, at, sink) else {
            return true;
        };
        self.receivers.extend(by);
        let Some(seq) = self.multiparts.number(found.frame) else {
            return true;
        };
        let id = FrameId::new(known.id, self.paths.ids.generation, seq);
        sink(&Event::new(at, What::Received(Received { id, wakeup, by, frame: None })));
        true
    }

    /// Reports that frames which `socket` receives cannot be found in what its process reads.
    pub(super) fn report_unframed(&mut self, socket: SocketId, at: MonoNs, sink: Sink<'_>) {
        for lane in self.matcher.lanes_to(socket) {
            if let Some(known) = self.paths.of_lane(lane as usize) {
                let missed = Missed { hop: Some(known.id), count: 1, cause: MissedCause::Unframed };
                sink(&Event::new(at, What::Missed(missed)));
            }
        }
    }

    /// Reports messages that are missing from a lane's numbering as missed. Must run before later messages are processed, so that the gap
    /// is not taken for a loss.
    fn report_missed(&mut self, lane: u32, count: u64, at: MonoNs, sink: Sink<'_>) {
        if let Some(known) = self.paths.of_lane(lane as usize).filter(|_| count > 0) {
            self.ahead += count;
            let hop = Some(known.id);
            let cause = MissedCause::QueueFull;
            sink(&Event::new(at, What::Missed(Missed { hop, count, cause })));
        }
    }

    /// Number of newly counted missed records that were not reported yet, given the increase of the kernel side's counter.
    pub(super) fn unreported(&mut self, count: u64) -> u64 {
        let reported = count.min(self.ahead);
        self.ahead -= reported;
        count - reported
    }

    /// Processes the receiver's call for the next message, which marks the previous one as processed.
    pub(super) fn processed(&mut self, call: &Call, sink: Sink<'_>) {
        let Some(name) = self.matcher.processed(call) else {
            return;
        };
        if let Some(known) = self.paths.of_lane(name.lane as usize)
            && let Some(seq) = self.multiparts.number(name)
        {
            let id = FrameId::new(known.id, self.paths.ids.generation, seq);
            sink(&Event::new(call.at, What::Processed(id)));
        }
    }

    /// Handles a refused send, whose number is used again.
    pub(super) fn unsent(&mut self, call: &Call) {
        self.matcher.unsent(call);
    }

    /// Processes a frame from an unwatched sender, which can only be decoded where it is received.
    fn received_unsent(&mut self, message: &Message<'_>, sink: Sink<'_>) {
        let Call { at, socket, tid, wakeup, .. } = message.call;
        let by = Some(ThreadId { pid: socket.pid, tid });
        if self.paths.roles.watches_a_sender() {
            return;
        }
        let Some(Ok(mut batch)) =
            complete_payload(message).map(|bytes| self.decoders.decode(&mut self.carries, &[bytes]))
        else {
            return;
        };
        if batch.chunks().is_empty() {
            return;
        }
        self.wire = engine_of(batch.shape());
        let known = self.unknown_senders.get_mut(&socket);
        let (hop, seq) = if let Some((hop, seq)) = known {
            *seq += 1;
            (*hop, *seq)
        } else {
            let (from, to) = (
                self.paths.roles.unwatched_sender(batch.shape().kind),
                self.paths.roles.receiver(socket.pid, batch.shape().kind),
            );
            let ends = Ends::new(from.word(), to.word());
            let Some(id) = self.paths.ids.assign(ends) else {
                self.paths.left_out += 1;
                return;
            };
            self.unknown_senders.insert(socket, (id, 0));
            let capabilities = Capabilities {
                received: true,
                processed: self.paths.sight.processed,
                delivered: self.paths.sight.serves(&[socket.pid].into()).is_some(),
                ..Capabilities::default()
            };
            let hop = Hop { worker: to.rank(), last: to.is_tokenizer(), ..Hop::new(id, ends, capabilities) };
            sink(&Event::new(at, What::Hop(hop)));
            (id, 0)
        };
        let id = FrameId::new(hop, self.paths.ids.generation, seq);
        if !self.shows_ids {
            batch.hide_ids();
        }
        let frame = batch.frame(id, message.bytes);
        sink(&Event::new(at, What::Received(Received { id, wakeup, by, frame: Some(frame) })));
    }
}

/// Bytes of the message, if they were captured completely.
fn complete_payload<'m>(message: &Message<'m>) -> Option<&'m [u8]> {
    (message.payload.len() as u64 == message.bytes).then_some(message.payload)
}

#[cfg(test)]
mod tests;
