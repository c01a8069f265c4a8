//! Assembly of scanner marks into messages.

use std::collections::VecDeque;
use std::ops::Range;

use trace::MonoNs;

use super::observation::{NotKept, Unread};
use crate::zmtp::{Mark, Pending, ZmtpCommand};

/// A message that has been read completely. Positions are stream offsets.
#[derive(Debug)]
pub(super) struct AssembledMessage {
    pub(super) read_at: MonoNs,
    /// Length in bytes without headers.
    pub(super) bytes: u64,
    pub(super) last_part: Range<u64>,
    pub(super) earlier_parts: Result<Vec<Range<u64>>, NotKept>,
}

/// Messages of one direction, built from marks.
#[derive(Debug)]
pub(super) struct MessageAssembly {
    /// Complete messages, in order.
    pub(super) complete: VecDeque<AssembledMessage>,
    /// Unreadable streams or stretches that are not reported yet.
    pub(super) unread: Vec<Unread>,
    /// The sending side refused the connection in its handshake.
    pub(super) is_rejected: bool,
    /// Parts of the incomplete message, except its last one.
    parts: Vec<Range<u64>>,
    bytes: u64,
    not_kept: Option<NotKept>,
    max_bytes: u64,
    max_parts: usize,
}

impl MessageAssembly {
    pub(super) fn new(max_bytes: u64, max_parts: usize) -> Self {
        Self {
            complete: VecDeque::new(),
            unread: Vec::new(),
            is_rejected: false,
            parts: Vec::new(),
            bytes: 0,
            not_kept: None,
            max_bytes,
            max_parts,
        }
    }

    /// Processes a mark from bytes that were read at `read_at`. `is_kept` says whether those bytes are still in memory.
    pub(super) fn apply_mark(&mut self, mark: Mark, read_at: MonoNs, is_kept: bool) {
        match mark {
            Mark::Frame { span, more } => {
                self.bytes += span.end - span.body;
                if self.bytes > self.max_bytes {
                    self.discard_message(NotKept::TooLarge);
                }
                if !is_kept {
                    self.discard_message(NotKept::Budget);
                }
                let part = span.body..span.end;
                let is_last_part = !more;
                if is_last_part {
                    let earlier_parts = match self.not_kept {
                        None => Ok(std::mem::take(&mut self.parts)),
                        Some(why) => Err(why),
                    };
                    self.complete.push_back(AssembledMessage {
                        read_at,
                        bytes: self.bytes,
                        last_part: part,
                        earlier_parts,
                    });
                    self.start_message();
                // The last part is not in `parts`, so there must be room for it.
                } else if self.parts.len() + 1 >= self.max_parts {
                    self.discard_message(NotKept::TooManyParts);
                } else if self.not_kept.is_none() {
                    self.parts.push(part);
                }
            }
            Mark::Opaque(why) => self.unread.push(why.into()),
            Mark::Garbage { why, .. } => {
                self.start_message();
                self.unread.push(why.into());
            }
            // What was read before belongs to another message.
            Mark::Synced { .. } => self.start_message(),
            Mark::Command(ZmtpCommand::Error, _) => self.is_rejected = true,
            Mark::Command(..) => {}
        }
    }

    /// Marks the bytes of the incomplete message as unavailable.
    pub(super) fn discard_message(&mut self, why: NotKept) {
        if self.not_kept.is_none() {
            self.not_kept = Some(why);
            self.parts.clear();
        }
    }

    /// Whether the incomplete message is to be kept. A message that claims too many bytes is not.
    pub(super) fn is_kept(&mut self, pending: Pending) -> bool {
        let total = pending.frame_end.map_or(0, |end| end - pending.start);
        // This length includes one header, and one counter is cheaper than two: allow for the header's size.
        if total > self.max_bytes.saturating_add(9) {
            self.discard_message(NotKept::TooLarge);
        }
        self.not_kept.is_none()
    }

    /// Begins the next message.
    fn start_message(&mut self) {
        self.parts.clear();
        self.bytes = 0;
        self.not_kept = None;
    }
}
