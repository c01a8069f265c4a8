//! Assembly of scanner marks into messages.

use std::collections::VecDeque;
use std::ops::Range;

use trace::MonoNs;

use super::observation::{NotKept, Unread};
use crate::zmtp::{MAX_HEADER_BYTES, Mark, PendingMessage, ZmtpCommand};

/// A message that has been read completely. Positions are stream offsets.
#[derive(Debug)]
pub(super) struct AssembledMessage {
    /// Time when the read that returned its last byte finished.
    pub(super) read_at: MonoNs,
    /// Length in bytes without headers.
    pub(super) bytes: u64,
    /// Position of the body of its last part.
    pub(super) last_part: Range<u64>,
    /// Positions of the other parts' bodies, or why the bytes of the message are not kept.
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
    earlier_parts: Vec<Range<u64>>,
    /// Length in bytes of the parts of the incomplete message, without headers.
    message_bytes: u64,
    /// Why the bytes of the incomplete message are not kept; `None` while they are.
    not_kept: Option<NotKept>,
    /// Length of the longest message whose bytes are kept.
    max_bytes: u64,
    /// Limit of the parts of a message whose bytes are kept.
    max_parts: usize,
}

impl MessageAssembly {
    /// Creates an assembly that keeps messages of at most this length and number of parts.
    pub(super) fn new(max_bytes: u64, max_parts: usize) -> Self {
        Self {
            complete: VecDeque::new(),
            unread: Vec::new(),
            is_rejected: false,
            // The incomplete message, of which nothing was read yet.
            earlier_parts: Vec::new(),
            message_bytes: 0,
            not_kept: None,
            max_bytes,
            max_parts,
        }
    }

    /// Processes an element that the scanner has found in the stream. A frame is added to the message of which it is a part. A rejected
    /// connection or an unreadable part of the stream is noted. `read_at`: time when the last byte of the element was read. `is_kept`: its
    /// bytes are still in memory.
    pub(super) fn apply_mark(&mut self, mark: Mark, read_at: MonoNs, is_kept: bool) {
        match mark {
            Mark::Frame { span, more } => {
                self.message_bytes += span.end - span.body;
                // If both reasons apply, the first one stays: a second call changes nothing.
                if self.message_bytes > self.max_bytes {
                    self.discard_message(NotKept::TooLarge);
                }
                if !is_kept {
                    self.discard_message(NotKept::Budget);
                }
                if more {
                    self.add_part(span.body..span.end);
                } else {
                    self.complete_message(span.body..span.end, read_at);
                }
            }
            Mark::Opaque(why) => self.unread.push(why.into()),
            Mark::Garbage { why, .. } => {
                self.reset_message();
                self.unread.push(why.into());
            }
            // Bytes were skipped, so the parts before belong to another message.
            Mark::Synced { .. } => self.reset_message(),
            Mark::Command(ZmtpCommand::Error, _) => self.is_rejected = true,
            // Other commands carry no message.
            Mark::Command(..) => {}
        }
    }

    /// Adds a part to the incomplete message. At least one more part follows.
    fn add_part(&mut self, part: Range<u64>) {
        // The last part is not in `earlier_parts`, so there must be room for it.
        if self.earlier_parts.len() + 1 >= self.max_parts {
            self.discard_message(NotKept::TooManyParts);
        } else if self.not_kept.is_none() {
            self.earlier_parts.push(part);
        }
    }

    /// Completes the message by its last part, whose bytes were read at `read_at`.
    fn complete_message(&mut self, last_part: Range<u64>, read_at: MonoNs) {
        let earlier_parts = match self.not_kept {
            None => Ok(std::mem::take(&mut self.earlier_parts)),
            Some(why) => Err(why),
        };
        self.complete.push_back(AssembledMessage { read_at, bytes: self.message_bytes, last_part, earlier_parts });
        self.reset_message();
    }

    /// Marks the bytes of the incomplete message as unavailable. The first reason stays.
    pub(super) fn discard_message(&mut self, why: NotKept) {
        if self.not_kept.is_none() {
            self.not_kept = Some(why);
            self.earlier_parts.clear();
        }
    }

    /// Discards the incomplete message if the header of its current frame claims more bytes than the limit.
    pub(super) fn discard_if_too_large(&mut self, pending: PendingMessage) {
        // While the header is incomplete, it claims nothing.
        let claimed_bytes = pending.frame_end.map_or(0, |end| end - pending.start);
        // The claimed length counts from a header on, and `max_bytes` does not include headers.
        if claimed_bytes > self.max_bytes.saturating_add(MAX_HEADER_BYTES as u64) {
            self.discard_message(NotKept::TooLarge);
        }
    }

    /// Whether the bytes of the incomplete message are kept.
    pub(super) fn is_message_kept(&self) -> bool {
        self.not_kept.is_none()
    }

    /// Forgets the parts so far, so that the next part is the first of a message.
    fn reset_message(&mut self) {
        self.earlier_parts.clear();
        self.message_bytes = 0;
        self.not_kept = None;
    }
}
