//! Joins the parts of a multipart message, which are observed one by one.

use std::collections::{HashMap, VecDeque};

use adapter::decode::{Excerpt, PAIR_MESSAGE_PART_BYTES, PAIR_MESSAGE_PARTS};
use probe_user::matcher::FrameRef;
use probe_user::{Message, SocketId};
use trace::MonoNs;

use crate::translate::REQUEST_PARTS;

/// Maximum number of multipart messages remembered per lane until their parts are received.
const IN_FLIGHT: usize = 4096;

/// Length of the part that states the type of a request, in bytes.
const REQUEST_TYPE_BYTES: u64 = 1;

/// What the messages of a sender are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageUse {
    /// Requests to the scheduler.
    Requests,
    /// The engine's output, or messages to the scheduler of another engine.
    Output,
}

impl MessageUse {
    /// Whether to keep the content of the next part of a message, for a decoder that reads it. `open` has the parts of the message so far,
    /// and `next_part_bytes` is the length of the next one.
    fn keeps_next_part(self, open: &Multipart, next_part_bytes: u64) -> bool {
        match self {
            Self::Requests => open.kept.len() < REQUEST_PARTS,
            // A message between schedulers has several short parts. Later parts of the output are long arrays, which no decoder reads.
            Self::Output => {
                // Once a part was not kept, the parts after it are not either.
                let are_all_kept = open.kept.len() as u64 == open.parts;
                are_all_kept && open.kept.len() < PAIR_MESSAGE_PARTS && open.has_short_parts(next_part_bytes)
            }
        }
    }
}

/// A multipart message, of which the content of the first parts is kept.
#[derive(Debug)]
pub(super) struct Multipart {
    /// Its number on the lane.
    pub(super) number: u64,
    /// Identity of the first part.
    name: FrameRef,
    /// Number of parts so far; 0 if the last message is complete.
    parts: u64,
    /// When its first part was sent.
    pub(super) begun_at: MonoNs,
    /// Number of parts of the complete message.
    pub(super) part_count: u64,
    /// Length of all parts.
    pub(super) bytes: u64,
    /// The first parts.
    kept: Vec<KeptPart>,
    /// Their captured bytes.
    captured: Vec<u8>,
}

/// A part whose captured bytes are kept.
#[derive(Clone, Copy, Debug)]
struct KeptPart {
    length: u64,
    /// End of its captured bytes.
    end: usize,
}

impl Multipart {
    /// Bytes of the first part; `None` if they were not captured completely.
    pub(super) fn first_part(&self) -> Option<&[u8]> {
        let first = self.excerpts().next()?;
        first.is_whole().then_some(first.head)
    }

    /// The kept parts, as far as they were captured.
    pub(super) fn excerpts(&self) -> impl Iterator<Item = Excerpt<'_>> {
        let starts = std::iter::once(0).chain(self.kept.iter().map(|part| part.end));
        self.kept
            .iter()
            .zip(starts)
            .map(|(part, start)| excerpt_from_captured(part.length, &self.captured[start..part.end]))
    }

    /// Fills `parts` with the first kept parts, as far as they were captured, and returns their number.
    pub(super) fn copy_excerpts_and_count<'m>(&'m self, parts: &mut [Excerpt<'m>]) -> usize {
        let mut count = 0;
        for (slot, part) in parts.iter_mut().zip(self.excerpts()) {
            *slot = part;
            count += 1;
        }
        count
    }

    /// Whether the kept parts, and a further part of `bytes` bytes, are as short as the parts of messages between schedulers.
    fn has_short_parts(&self, bytes: u64) -> bool {
        self.kept.iter().all(|part| part.length <= PAIR_MESSAGE_PART_BYTES) && bytes <= PAIR_MESSAGE_PART_BYTES
    }

    /// Returns whether this part is the next one of the message.
    fn is_continued_by(&self, part: FrameRef) -> bool {
        self.parts > 0 && self.name.lane == part.lane && self.name.seq + self.parts == part.seq
    }

    /// Begins a message with its first part, in the memory of the last message of its socket.
    #[inline]
    fn begin_message(&mut self, first_part: &Message<'_>, part_ref: FrameRef, message_number: u64) {
        self.number = message_number;
        self.name = part_ref;
        self.parts = 1;
        self.begun_at = first_part.call.at;
        self.bytes = first_part.bytes;
        self.kept.clear();
        self.captured.clear();
        self.keep_part(first_part);
    }

    /// Counts a further part, and keeps its content if that is read.
    #[inline]
    fn add_part(&mut self, part: &Message<'_>, usage: MessageUse) {
        if usage.keeps_next_part(self, part.bytes) {
            self.keep_part(part);
        }
        self.parts += 1;
        self.bytes += part.bytes;
    }

    /// Whether the first part is the address of a router's peer, which the peer does not receive. Requests to vLLM's engine cores have one.
    /// Otherwise a request begins with its type.
    #[inline]
    fn begins_with_address(&self, usage: MessageUse) -> bool {
        let begins_with_type = self.kept.first().is_none_or(|first| first.length == REQUEST_TYPE_BYTES);
        usage == MessageUse::Requests && !begins_with_type
    }

    fn keep_part(&mut self, message: &Message<'_>) {
        self.captured.extend_from_slice(message.payload);
        self.kept.push(KeptPart { length: message.bytes, end: self.captured.len() });
    }
}

/// A part of `part_bytes` bytes, of which only `captured` was copied. If that is not the whole part, its first half is the part's
/// beginning, and its second half the part's end.
pub(super) fn excerpt_from_captured(part_bytes: u64, captured: &[u8]) -> Excerpt<'_> {
    if captured.len() as u64 == part_bytes {
        return Excerpt::whole(captured);
    }
    let (head, tail) = captured.split_at(captured.len() / 2);
    Excerpt { length: part_bytes, head, tail }
}

/// Where a part belongs.
#[derive(Debug)]
pub(super) enum MessagePart<'m> {
    /// The message with this number on its lane has no other part.
    Whole(u64),
    /// More parts follow.
    Incomplete,
    /// The last part of this message.
    Last(&'m Multipart),
}

#[derive(Debug, Default)]
pub(super) struct Multiparts {
    /// Last multipart message of each sending socket.
    open: HashMap<SocketId, Multipart>,
    /// Parts after the first, by lane.
    later: HashMap<u32, LaterParts>,
}

/// Parts after the first of the messages on one lane, oldest message first.
#[derive(Debug, Default)]
struct LaterParts {
    ranges: VecDeque<PartRange>,
    /// Number of parts after the first in forgotten messages.
    forgotten_parts: u64,
}

/// Numbers of the parts after the first of one message.
#[derive(Debug)]
struct PartRange {
    first: u64,
    last: u64,
    /// Number of the message, if its first part is never received: a router takes it as the address.
    routed_message: Option<u64>,
    /// Number of parts after the first on the lane, up to the end of this message.
    later_parts_so_far: u64,
}

impl LaterParts {
    /// Remembers which parts of the lane are later parts of a message: those numbered `first_seq` to `last_seq`. `routed_message` is the
    /// number of the message if a router removes its first part, the address, so that the receiver never gets it. Beyond the limit, the
    /// oldest message is forgotten.
    fn remember_later_parts(&mut self, first_seq: u64, last_seq: u64, routed_message: Option<u64>) {
        let later_parts_before = self.ranges.back().map_or(self.forgotten_parts, |range| range.later_parts_so_far);
        if self.ranges.len() == IN_FLIGHT
            && let Some(oldest) = self.ranges.pop_front()
        {
            self.forgotten_parts = oldest.later_parts_so_far;
        }
        let later_parts_of_message = last_seq - first_seq + 1;
        let later_parts_so_far = later_parts_before + later_parts_of_message;
        self.ranges.push_back(PartRange { first: first_seq, last: last_seq, routed_message, later_parts_so_far });
    }

    /// Number of the message that begins with the part `part_seq`; `None` if the part is a later part of a message. The number is
    /// `part_seq` less the number of all later parts before it: if parts 0 to 2 are message 0, part 3 begins message 1, because two later
    /// parts precede it. If a router removes the first part of a message, the message begins with its second part.
    fn number_of_message_beginning_at(&self, part_seq: u64) -> Option<u64> {
        let ranges_before = self.ranges.partition_point(|range| range.first <= part_seq);
        let Some(last_before) = ranges_before.checked_sub(1) else {
            // No remembered message has later parts before this one.
            return Some(part_seq - self.forgotten_parts);
        };
        let range = &self.ranges[last_before];
        let is_beyond_range = part_seq > range.last;
        if is_beyond_range {
            return Some(part_seq - range.later_parts_so_far);
        }
        // A later part. The first of them stands for the address that a router has removed.
        if part_seq == range.first { range.routed_message } else { None }
    }
}

/// Adds a part to the `open` message that it continues. With the last part, the message is complete and is returned. Its parts after the
/// first are then remembered in `later_parts`, by lane, so that the numbering of messages leaves them out.
#[inline]
fn add_part_to_open_message<'m>(
    open: &'m mut Multipart,
    later_parts: &mut HashMap<u32, LaterParts>,
    part: &Message<'_>,
    part_ref: FrameRef,
    usage: MessageUse,
) -> MessagePart<'m> {
    open.add_part(part, usage);
    if part.more {
        return MessagePart::Incomplete;
    }
    // 0 open parts mark the message as complete.
    open.part_count = std::mem::take(&mut open.parts);
    let routed_message = open.begins_with_address(usage).then_some(open.number);
    let later_of_lane = later_parts.entry(part_ref.lane).or_default();
    later_of_lane.remember_later_parts(open.name.seq + 1, part_ref.seq, routed_message);
    MessagePart::Last(open)
}

impl Multiparts {
    /// Records a sent part of a message, and returns whether it is a whole message, its last part or another one. Keeps the content of the
    /// first parts. `part_ref` has the lane (the sending socket) and the number of the part on it.
    pub(super) fn record_sent_part(
        &mut self,
        message: &Message<'_>,
        part_ref: FrameRef,
        usage: MessageUse,
    ) -> MessagePart<'_> {
        let socket = message.call.socket;
        let number = self.message_number_of_part(part_ref).unwrap_or(part_ref.seq);
        // Two look-ups: the borrow checker lets a borrow that one branch returns last for the whole function.
        if self.open.get(&socket).is_some_and(|open| open.is_continued_by(part_ref)) {
            let Some(open) = self.open.get_mut(&socket) else { return MessagePart::Whole(number) };
            return add_part_to_open_message(open, &mut self.later, message, part_ref, usage);
        }
        if !message.more {
            return MessagePart::Whole(number);
        }
        let open = self.open.entry(socket).or_insert_with(|| Multipart {
            number,
            name: part_ref,
            begun_at: message.call.at,
            parts: 0,
            part_count: 0,
            bytes: 0,
            kept: Vec::new(),
            captured: Vec::new(),
        });
        open.begin_message(message, part_ref, number);
        MessagePart::Incomplete
    }

    /// Number of a part's message among those of its sending socket (its lane), where a multipart message counts as one. `None` if the part
    /// is not the first one received of its message.
    pub(super) fn message_number_of_part(&self, part: FrameRef) -> Option<u64> {
        match self.later.get(&part.lane) {
            Some(later) => later.number_of_message_beginning_at(part.seq),
            // All messages of the lane have one part.
            None => Some(part.seq),
        }
    }
}
