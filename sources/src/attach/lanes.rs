//! Converts observed libzmq calls into events: the hop of each socket's messages, and their content.
//!
//! See [`super::paths`] for how hops are identified. Sockets that never carry messages of the engine are left out.

use std::collections::{HashMap, HashSet};

use adapter::decode::{Excerpt, LONGEST, PAIR_MESSAGE_PARTS};
use probe_user::matcher::{FrameRef, MatcherLimits, NumberedSend, Unmatched};
use probe_user::{Call, Matcher, Message, SocketId};
use trace::event::{DispatchKind, Event, Missed, MissedCause, PairMessage, Received, SendWait, What};
use trace::{FrameId, HopId, MonoNs, ThreadId};

use super::known_rooms::KnownRooms;
use super::multipart::{MessagePart, MessageUse, Multipart, Multiparts, excerpt_from_captured};
use super::observability::Observability;
use super::paths::{MessageSource, Paths};
use super::roles::Roles;
pub(super) use crate::translate::Sink;
use crate::translate::{
    Clients, DispatchedMessage, ObservedBy, ObservedMessage, REQUEST_PARTS, Translator, report_missed_and_tell_clients,
};

/// Time after a message during which there is traffic.
const TRAFFIC_WINDOW_NS: u64 = 1_000_000_000;

pub(super) struct Lanes {
    pub(super) matcher: Matcher,
    multiparts: Multiparts,
    pub(super) translator: Translator,
    pub(super) paths: Paths,
    /// Rooms of requests sent to the scheduler.
    rooms: KnownRooms,
    last_send_at: Option<MonoNs>,
    /// The last frame sent by each process.
    last_sent_by_pid: HashMap<u32, SentFrame>,
    /// Threads observed to receive.
    receiving_threads: HashSet<ThreadId>,
    /// Frames received without an observed send, except requests, which carry no tokens.
    pub(super) frames_without_send: u64,
    /// Missed messages that gaps in socket numbering have revealed, but that the kernel side's counter does not include yet.
    reported_by_gaps: u64,
}

/// Reason that a frame is not decoded: the probe copied only its beginning.
const CUT_BY_CAPTURE: &str = "cut-by-capture";

#[derive(Clone, Copy, Debug)]
struct SentFrame {
    socket: SocketId,
    /// Number of its message on the socket.
    seq: u64,
    hop: HopId,
    at: MonoNs,
}

/// A sent message, of which only the first part is decoded: further ones hold raw arrays.
struct SentMessage<'m> {
    /// Its number on the lane.
    number: u64,
    /// Length of all parts.
    bytes: u64,
    /// `None` if it was not captured completely.
    first_part: Option<&'m [u8]>,
    /// 2 if there are several, which a decoder need not count.
    part_count: usize,
}

impl<'m> SentMessage<'m> {
    #[inline]
    fn of_one_part(message: &Message<'m>, number: u64) -> Self {
        Self { number, bytes: message.bytes, first_part: complete_payload(message), part_count: 1 }
    }

    #[inline]
    fn of_several_parts(whole: &'m Multipart) -> Self {
        Self { number: whole.number, bytes: whole.bytes, first_part: whole.first_part(), part_count: 2 }
    }

    /// Decodes the message and emits it as a frame. `sent` is the call that sent it, and `lane` the number of the sending socket. The
    /// tokens in it may be delivered to `clients`. Returns the id of the frame; `None` if it was not decoded, or is not reported.
    #[inline]
    fn decode_and_emit_frame(
        self,
        sent: &Call,
        lane: usize,
        translator: &mut Translator,
        paths: &mut Paths,
        clients: &mut Clients,
        sink: Sink<'_>,
    ) -> Option<FrameId> {
        // The empty second part stands for all further ones, which the decoder does not read.
        let parts = [self.first_part.unwrap_or_default(), &[]];
        let message = ObservedMessage {
            source: MessageSource::Sent { lane, socket: sent.socket, number: self.number },
            at: sent.at,
            forwarded: None,
            bytes: self.bytes,
            parts: self.first_part.map(|_| &parts[..self.part_count]).ok_or(CUT_BY_CAPTURE),
            by: ObservedBy::LocalSend,
        };
        translator.translate_message(message, paths, std::iter::once(clients), sink)
    }
}

/// A message to the scheduler.
struct RequestMessage<'m> {
    /// Its number on the lane.
    number: u64,
    /// Length of all parts.
    bytes: u64,
    /// Its first parts, as far as they were captured. Only the first `part_count` are filled.
    parts: [Excerpt<'m>; REQUEST_PARTS],
    part_count: usize,
}

impl<'m> RequestMessage<'m> {
    /// The message whose last part this is; `None` if more parts follow. Keeps the part in `multiparts` until then.
    #[inline]
    fn completed_by_part(part: &Message<'m>, frame: FrameRef, multiparts: &'m mut Multiparts) -> Option<Self> {
        let mut parts = [Excerpt::whole(&[]); REQUEST_PARTS];
        match multiparts.record_sent_part(part, frame, MessageUse::Requests) {
            MessagePart::Whole(number) => {
                parts[0] = excerpt_from_captured(part.bytes, part.payload);
                Some(Self { number, bytes: part.bytes, parts, part_count: 1 })
            }
            MessagePart::Incomplete => None,
            MessagePart::Last(whole) => {
                let part_count = whole.copy_excerpts_and_count(&mut parts);
                Some(Self { number: whole.number, bytes: whole.bytes, parts, part_count })
            }
        }
    }
}

impl Lanes {
    /// Lanes between processes with these roles, without any message so far. A lane is one sending socket.
    pub(super) fn new(roles: Roles, observability: Observability) -> Self {
        Self {
            matcher: Matcher::new(MatcherLimits::default()),
            multiparts: Multiparts::default(),
            translator: Translator::new(engines::FORMATS, LONGEST),
            paths: Paths::new(roles, observability),
            rooms: KnownRooms::default(),
            last_send_at: None,
            last_sent_by_pid: HashMap::new(),
            receiving_threads: HashSet::new(),
            frames_without_send: 0,
            reported_by_gaps: 0,
        }
    }

    /// Lines for the report about messages that were not observed completely.
    pub(super) fn degraded_lines(&self) -> Vec<String> {
        let Paths { sent_to_unwatched, messages_beyond_limit, .. } = self.paths;
        let mut degraded = Vec::new();
        if sent_to_unwatched > 0 {
            degraded.push(format!(
                "{sent_to_unwatched} messages with tokens were sent to a process whose receives were not observed: their queue wait is not known"
            ));
        }
        if self.frames_without_send > 0 {
            degraded.push(format!("{} frames were received whose sender was not observed", self.frames_without_send));
        }
        if messages_beyond_limit > 0 {
            degraded.push(format!("{messages_beyond_limit} messages on sockets beyond the limit of hops"));
        }
        degraded
    }

    /// Processes a message, or a part of one, that entered a socket. The tokens in it may be delivered to `clients`. A lane is one sending
    /// socket.
    pub(super) fn record_send(&mut self, message: &Message<'_>, clients: &mut Clients, sink: Sink<'_>) {
        let Call { socket, seq, at, .. } = message.call;
        self.last_send_at = Some(at);
        let NumberedSend { frame, lost_before } = self.matcher.record_send(message);
        // Deliveries cannot be matched with frames that were not observed.
        self.report_gap_of_lane(frame.lane, lost_before, at, Some(&mut *clients), sink);
        if self.is_for_scheduler(message, frame) {
            return self.record_request_send(message, frame, sink);
        }
        let lane = frame.lane as usize;
        let sent = match self.multiparts.record_sent_part(message, frame, MessageUse::Output) {
            MessagePart::Whole(number) => SentMessage::of_one_part(message, number),
            // The message is processed with its last part.
            MessagePart::Incomplete => return,
            MessagePart::Last(whole) => {
                if may_be_pair_message(&self.paths, &self.rooms, lane, socket.pid)
                    && let Some(pair_message) = read_pair_message_of_rooms(&self.translator, whole, &self.rooms)
                {
                    // The first part's time is used: the sender may lose its CPU before it sends the last part.
                    return sink(&Event::new(whole.begun_at, What::PairMessage(pair_message)));
                }
                SentMessage::of_several_parts(whole)
            }
        };
        let frame_id =
            sent.decode_and_emit_frame(&message.call, lane, &mut self.translator, &mut self.paths, clients, sink);
        if let Some(id) = frame_id {
            // `emit_wait_of_returned_send` measures from here how long the send took.
            self.last_sent_by_pid.insert(socket.pid, SentFrame { socket, seq, hop: id.hop, at });
        }
    }

    /// Whether a message carries requests to the scheduler, judged by the role of its sender. A process that forwards requests sends them
    /// on one of its sockets (lanes), and output on the others.
    fn is_for_scheduler(&mut self, message: &Message<'_>, frame: FrameRef) -> bool {
        let role = self.paths.roles.role_of(message.call.socket.pid);
        if !role.forwards_requests() {
            return role.sends_requests();
        }
        // An earlier message of the same socket has shown it.
        if let Some(carries_requests) = self.paths.carries_requests(frame.lane as usize) {
            return carries_requests;
        }
        self.translator.names_new_requests(&[excerpt_from_captured(message.bytes, message.payload)])
    }

    /// Processes a message to the scheduler, or a part of one. Of its requests, only the ids and rooms are read. A room is the number that
    /// a request has on both servers of a pair, one for prefill and one for decode.
    fn record_request_send(&mut self, message: &Message<'_>, frame: FrameRef, sink: Sink<'_>) {
        let Call { socket, at, .. } = message.call;
        let complete = RequestMessage::completed_by_part(message, frame, &mut self.multiparts);
        let Some(RequestMessage { number, bytes, parts, part_count }) = complete else { return };
        let mut requests = self.translator.take_request_list();
        let content = self.translator.read_requests(&parts[..part_count], &mut requests);
        let is_abort = content == Ok(DispatchKind::Aborts);
        // An abort names a request whose room is known already.
        if !is_abort {
            for room in requests.iter().filter_map(|request| request.room) {
                self.rooms.add_room(room);
            }
        }
        // Only a message that names requests shows that this lane carries them.
        let names_requests = is_abort || !requests.is_empty();
        let hop = self.paths.record_request_send(frame.lane as usize, socket, names_requests, at, sink);
        if let Some(hop) = hop {
            let id = FrameId::new(hop, self.paths.ids.generation, number);
            DispatchedMessage { id, at, bytes, requests: &requests }.emit_requests_or_refusal(content, sink);
        }
        self.translator.recycle_requests(requests);
    }

    /// Processes the return of the method that passes messages to a server inside the process. Emits how long the last message waited in
    /// that method.
    pub(super) fn emit_wait_of_returned_send(&mut self, call: &Call, sink: Sink<'_>) {
        let Some(last) = self.last_sent_by_pid.get(&call.socket.pid) else { return };
        // Another message may have been sent before the method returned.
        if last.socket == call.socket && last.seq == call.seq {
            let wait = SendWait { hop: last.hop, ns: call.at.since(last.at) };
            sink(&Event::new(call.at, What::SendWait(wait)));
        }
    }

    /// Removes an exited process.
    pub(super) fn record_exit(&mut self, pid: u32, sink: Sink<'_>) {
        self.last_sent_by_pid.remove(&pid);
        self.paths.remove_exited_process_and_announce(pid, MonoNs::now(), sink);
    }

    /// Returns whether messages were sent within the last second or are waiting.
    pub(super) fn has_traffic(&self) -> bool {
        let now = MonoNs::now();
        let was_sent_recently = self.last_send_at.is_some_and(|at| now.since(at) < TRAFFIC_WINDOW_NS);
        was_sent_recently || self.oldest_waiting_since().is_some()
    }

    /// Send time of the oldest frame that waits for a watched receiver; `None` if none waits.
    pub(super) fn oldest_waiting_since(&self) -> Option<MonoNs> {
        let lanes = self.paths.watched_lanes();
        lanes.filter_map(|lane| self.matcher.oldest_sent_at(lane)).min()
    }

    /// Returns whether the thread receives messages. In a process without an observed receiver, the main thread counts as one.
    pub(super) fn is_receiver(&self, thread: ThreadId) -> bool {
        let has_known_receiver = self.receiving_threads.iter().any(|receiver| receiver.pid == thread.pid);
        let is_main_thread = thread.tid == thread.pid;
        self.receiving_threads.contains(&thread) || (is_main_thread && !has_known_receiver)
    }

    /// Processes a message that left a socket. Returns whether its send was observed.
    pub(super) fn match_receive_with_send_and_emit(&mut self, message: &Message<'_>, sink: Sink<'_>) -> bool {
        let Call { at, socket, tid, wakeup, .. } = message.call;
        let receiver = Some(ThreadId { pid: socket.pid, tid });
        // Finds the observed send of the same message, by its content and order.
        let found = match self.matcher.match_receipt(message) {
            Ok(found) => found,
            Err(why) => {
                // A scheduler receives requests, which carry no tokens.
                if why == Unmatched::Unsent && !self.paths.roles.role_of(socket.pid).is_scheduler() {
                    self.frames_without_send += 1;
                }
                self.emit_frame_without_observed_send(message, sink);
                return false;
            }
        };
        // The content of each frame was read when it was sent, so no client misses any.
        let no_clients = None;
        self.report_gap_of_lane(found.frame.lane, found.lost_before, at, no_clients, sink);
        let Some(hop) = self.paths.confirm_receiver_of_lane(found.frame.lane as usize, socket.pid, at, sink) else {
            // The send was observed, but its socket carries no messages of the engine.
            return true;
        };
        self.receiving_threads.extend(receiver);
        // Only the first part of a message counts as its receive.
        let Some(seq) = self.multiparts.message_number_of_part(found.frame) else { return true };
        let id = FrameId::new(hop.id, self.paths.ids.generation, seq);
        sink(&Event::new(at, What::Received(Received { id, wakeup, by: receiver, frame: None })));
        true
    }

    /// Reports for each hop into `socket` that its frames cannot be found in the bytes that the process reads.
    pub(super) fn report_unframed_hops_into(&mut self, socket: SocketId, at: MonoNs, sink: Sink<'_>) {
        // A lane is one sending socket.
        for lane in self.matcher.lanes_to(socket) {
            if let Some(hop) = self.paths.hop_of_lane(lane as usize) {
                // Counts as one, because the number of frames is not known.
                let missed = Missed { hop: Some(hop.id), count: 1, cause: MissedCause::Unframed };
                sink(&Event::new(at, What::Missed(missed)));
            }
        }
    }

    /// Reports a gap in the numbering of a lane: these messages were not observed. Does nothing if `missing_messages` is 0. Must run before
    /// later messages are processed. Otherwise the engine would be reported to have lost the missing ones.
    fn report_gap_of_lane(
        &mut self,
        lane: u32,
        missing_messages: u64,
        at: MonoNs,
        clients: Option<&mut Clients>,
        sink: Sink<'_>,
    ) {
        if missing_messages > 0
            && let Some(hop) = self.paths.hop_of_lane(lane as usize)
        {
            self.reported_by_gaps += missing_messages;
            let missed = Missed { hop: Some(hop.id), count: missing_messages, cause: MissedCause::QueueFull };
            report_missed_and_tell_clients(missed, at, clients.into_iter(), sink);
        }
    }

    /// Returns how many of the missed records that the kernel side has just counted are not reported yet. Gaps in the numbering of
    /// messages may have revealed some earlier, which were reported then, and are taken off here.
    pub(super) fn take_unreported_by_gaps(&mut self, missed_records: u64) -> u64 {
        let already_reported = missed_records.min(self.reported_by_gaps);
        self.reported_by_gaps -= already_reported;
        missed_records - already_reported
    }

    /// Processes the receiver's call for the next message, which marks the previous one as processed. Emits that, if the hop of the
    /// previous message is known.
    pub(super) fn emit_processed_at_next_receive(&mut self, call: &Call, sink: Sink<'_>) {
        let Some(frame) = self.matcher.processed_frame(call) else { return };
        if let Some(hop) = self.paths.hop_of_lane(frame.lane as usize)
            && let Some(seq) = self.multiparts.message_number_of_part(frame)
        {
            let id = FrameId::new(hop.id, self.paths.ids.generation, seq);
            sink(&Event::new(call.at, What::Processed(id)));
        }
    }

    /// Records a refused send, whose number is used again.
    pub(super) fn record_refused_send(&mut self, call: &Call) {
        self.matcher.record_refused_send(call);
    }

    /// Decodes and emits a received frame whose send was not observed. Does nothing if a process that sends frames is watched, because its
    /// frames are decoded where they are sent.
    fn emit_frame_without_observed_send(&mut self, message: &Message<'_>, sink: Sink<'_>) {
        if self.paths.roles.has_watched_sender() {
            return;
        }
        let Call { at, socket, tid, wakeup, .. } = message.call;
        let payload = complete_payload(message);
        let message = ObservedMessage {
            source: MessageSource::Received(socket),
            at,
            forwarded: None,
            bytes: message.bytes,
            parts: payload.as_ref().map(std::slice::from_ref).ok_or(CUT_BY_CAPTURE),
            by: ObservedBy::Receive { wakeup, thread: Some(ThreadId { pid: socket.pid, tid }) },
        };
        let no_clients = std::iter::empty();
        self.translator.translate_message(message, &mut self.paths, no_clients, sink);
    }
}

/// Whether a message may be a pair message, which goes from the scheduler of a prefill server to that of a decode server, or back. Such
/// messages name rooms, which only the requests of such servers have. Their sockets carry no messages of the engine, and so have no hop.
fn may_be_pair_message(paths: &Paths, rooms: &KnownRooms, lane: usize, sender_pid: u32) -> bool {
    !rooms.is_empty() && paths.hop_of_lane(lane).is_none() && paths.roles.role_of(sender_pid).is_scheduler()
}

/// Reads a message between the schedulers of a prefill and a decode server. `None` if it is none, or names none of the known rooms, the
/// numbers that this engine's requests share with the other server.
fn read_pair_message_of_rooms(translator: &Translator, message: &Multipart, rooms: &KnownRooms) -> Option<PairMessage> {
    let mut parts = [Excerpt::whole(&[]); PAIR_MESSAGE_PARTS];
    let part_count = message.copy_excerpts_and_count(&mut parts);
    let found = translator.read_pair_message(&parts[..part_count], message.part_count)?;
    rooms.contains(found.room).then_some(found)
}

/// Bytes of the message; `None` if they were not captured completely.
fn complete_payload<'m>(message: &Message<'m>) -> Option<&'m [u8]> {
    (message.payload.len() as u64 == message.bytes).then_some(message.payload)
}

#[cfg(test)]
mod tests;
