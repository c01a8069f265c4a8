//! Joins the parts of a multipart message, which are observed one by one.

use std::collections::{HashMap, VecDeque};

use probe_user::matcher::FrameRef;
use probe_user::{Message, SocketId};

/// Maximum number of multipart messages remembered per lane until their parts are received.
const IN_FLIGHT: usize = 4096;

/// A multipart message, of which only the first part has content that is read.
#[derive(Debug)]
pub(super) struct Multipart {
    /// Its number on the lane.
    pub(super) number: u64,
    /// Identity of the first part.
    name: FrameRef,
    /// Number of parts so far; 0 if the last message is complete.
    parts: u64,
    /// Length of all parts.
    pub(super) bytes: u64,
    /// Length of the first part.
    first_bytes: u64,
    /// Captured bytes of the first part.
    first: Vec<u8>,
}

impl Multipart {
    /// Bytes of the first part; `None` if they were not captured completely.
    pub(super) fn first_part(&self) -> Option<&[u8]> {
        (self.first.len() as u64 == self.first_bytes).then_some(&self.first)
    }
}

/// Where a part belongs.
#[derive(Debug)]
pub(super) enum Part<'m> {
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
    later: HashMap<u32, Later>,
}

/// Parts after the first of the messages on one lane, oldest message first.
#[derive(Debug, Default)]
struct Later {
    ranges: VecDeque<Range>,
    /// Number of such parts in forgotten messages.
    forgotten: u64,
}

/// Numbers of the parts after the first of one message.
#[derive(Debug)]
struct Range {
    first: u64,
    last: u64,
    /// Number of such parts on the lane up to here.
    total: u64,
}

impl Later {
    fn push(&mut self, first: u64, last: u64) {
        let before = self.ranges.back().map_or(self.forgotten, |range| range.total);
        if self.ranges.len() == IN_FLIGHT
            && let Some(oldest) = self.ranges.pop_front()
        {
            self.forgotten = oldest.total;
        }
        let total = before + last - first + 1;
        self.ranges.push_back(Range { first, last, total });
    }

    fn number(&self, seq: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|range| range.first <= seq);
        let Some(range) = after.checked_sub(1).map(|at| &self.ranges[at]) else {
            return Some(seq - self.forgotten);
        };
        (seq > range.last).then(|| seq - range.total)
    }
}

impl Multiparts {
    pub(super) fn sent(&mut self, message: &Message<'_>, name: FrameRef) -> Part<'_> {
        let socket = message.call.socket;
        let continues =
            |open: &Multipart| open.parts > 0 && open.name.lane == name.lane && open.name.seq + open.parts == name.seq;
        let number = self.number(name).unwrap_or(name.seq);
        if self.open.get(&socket).is_some_and(continues) {
            let Some(open) = self.open.get_mut(&socket) else {
                return Part::Whole(number);
            };
            open.parts += 1;
            open.bytes += message.bytes;
            if message.more {
                return Part::Incomplete;
            }
            open.parts = 0;
            let later = self.later.entry(name.lane).or_default();
            later.push(open.name.seq + 1, name.seq);
            return Part::Last(open);
        }
        if !message.more {
            return Part::Whole(number);
        }
        let open = self.open.entry(socket).or_insert_with(|| Multipart {
            number,
            name,
            parts: 0,
            bytes: 0,
            first_bytes: 0,
            first: Vec::new(),
        });
        (open.number, open.name, open.parts) = (number, name, 1);
        (open.bytes, open.first_bytes) = (message.bytes, message.bytes);
        open.first.clear();
        open.first.extend_from_slice(message.payload);
        Part::Incomplete
    }

    /// Number of the message on its lane, where a multipart message counts as one. `None` for a part after the first.
    pub(super) fn number(&self, part: FrameRef) -> Option<u64> {
        self.later.get(&part.lane).map_or(Some(part.seq), |later| later.number(part.seq))
    }
}
