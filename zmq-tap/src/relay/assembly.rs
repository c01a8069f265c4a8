//! Marks of the scanner, gathered into messages.

use std::collections::VecDeque;
use std::ops::Range;

use trace::MonoNs;

use super::observation::{NotKept, Unread};
use crate::zmtp::{Mark, Pending};

/// A message that was read whole.
#[derive(Debug)]
pub(super) struct Message {
    /// Stream offset of the first byte after it.
    pub(super) end: u64,
    pub(super) read_at: MonoNs,
    /// Length without headers.
    pub(super) bytes: u64,
    pub(super) parts: Result<Parts, NotKept>,
}

/// Where a message's parts lie, in stream offsets.
#[derive(Debug)]
pub(super) enum Parts {
    One(Range<u64>),
    Several(Vec<Range<u64>>),
}

/// Messages of one direction, from marks.
#[derive(Debug)]
pub(super) struct Assembly {
    /// Whole messages, in order.
    pub(super) done: VecDeque<Message>,
    /// What could not be read, to be told.
    pub(super) unread: Vec<Unread>,
    /// Parts of the message under way, but for its last.
    parts: Vec<Range<u64>>,
    bytes: u64,
    refused: Option<NotKept>,
    max_bytes: u64,
    max_parts: usize,
}

impl Assembly {
    pub(super) fn new(max_bytes: u64, max_parts: usize) -> Self {
        Self {
            done: VecDeque::new(),
            unread: Vec::new(),
            parts: Vec::new(),
            bytes: 0,
            refused: None,
            max_bytes,
            max_parts,
        }
    }

    /// Takes a mark of bytes that were read at `read_at`; `kept` says whether they are still there.
    pub(super) fn take(&mut self, mark: Mark, read_at: MonoNs, kept: bool) {
        match mark {
            Mark::Frame { span, more } => {
                self.bytes += span.end - span.body;
                if self.bytes > self.max_bytes {
                    self.refuse(NotKept::TooLarge);
                }
                if !kept {
                    self.refuse(NotKept::Budget);
                }
                if more {
                    self.part(span.body..span.end);
                } else {
                    self.whole(span.body..span.end, read_at);
                }
            }
            Mark::Opaque(why) => self.unread.push(why.into()),
            Mark::Garbage { why, .. } => {
                self.start_over();
                self.unread.push(why.into());
            }
            Mark::Synced { .. } => self.start_over(),
            Mark::Greeting(_) | Mark::Command(..) => {}
        }
    }

    /// The bytes of the message under way are not, or no longer, to be had.
    pub(super) fn refuse(&mut self, why: NotKept) {
        if self.refused.is_none() {
            self.refused = Some(why);
            self.parts.clear();
        }
    }

    /// Whether the message under way is to be kept; one that claims too much is not.
    pub(super) fn keeps(&mut self, pending: Pending) -> bool {
        let headers_and_all = pending.frame_end.map_or(0, |end| end - pending.start);
        // Headers count here: a few bytes of tolerance against keeping two counts.
        if headers_and_all > self.max_bytes.saturating_add(9) {
            self.refuse(NotKept::TooLarge);
        }
        self.refused.is_none()
    }

    fn part(&mut self, part: Range<u64>) {
        if self.parts.len() + 1 >= self.max_parts {
            self.refuse(NotKept::TooManyParts);
        }
        if self.refused.is_none() {
            self.parts.push(part);
        }
    }

    fn whole(&mut self, last: Range<u64>, read_at: MonoNs) {
        let end = last.end;
        let parts = match self.refused {
            Some(why) => Err(why),
            None if self.parts.is_empty() => Ok(Parts::One(last)),
            None => {
                let mut parts = std::mem::take(&mut self.parts);
                parts.push(last);
                Ok(Parts::Several(parts))
            }
        };
        self.done.push_back(Message {
            end,
            read_at,
            bytes: self.bytes,
            parts,
        });
        self.start_over();
    }

    fn start_over(&mut self) {
        self.parts.clear();
        self.bytes = 0;
        self.refused = None;
    }
}
