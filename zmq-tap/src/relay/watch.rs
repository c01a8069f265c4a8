//! Observer of one direction of a ZMTP connection: scans bytes as they are read and reports messages as they are written.

use std::sync::Arc;

use bytes::Bytes;
use trace::MonoNs;
use trace::event::MissedCause;

use super::assembly::{Assembly, Message, Parts};
use super::journal::Journal;
use super::observation::{Direction, NotKept, Observation, Payload, Unread};
use super::window::{Keep, Window};
use crate::zmtp::{Opaque, Scanner};

/// Observer of the bytes of one direction while they are copied. It neither delays nor changes them.
pub(super) trait Observer {
    /// Bytes that the window must keep for the incomplete message.
    fn keep(&mut self) -> Keep;

    /// Notes that the window could not keep those bytes.
    fn forget(&mut self);

    /// Observes bytes that were just read. `kept`: the window holds them, and all earlier bytes that [`Observer::keep`] asked for.
    fn read(&mut self, bytes: &[u8], at: MonoNs, kept: bool);

    /// Reports messages or bytes that have been written.
    fn wrote(&mut self, window: &mut Window, at: MonoNs);

    /// Notes that the sink accepted none or only a part of the bytes.
    fn short_writes(&mut self) {}

    /// Counts relayed bytes.
    fn count(&self, bytes: usize);

    /// Whether data went this way that a reset of the other side can discard.
    fn has_relayed(&self) -> bool;
}

/// Observer of one direction of a ZMTP connection.
#[derive(Debug)]
pub(super) struct Watch {
    journal: Arc<Journal>,
    direction: Direction,
    scanner: Scanner,
    assembly: Assembly,
    seq: u64,
    /// A part of the stream could not be read.
    unreadable: bool,
    /// Number of messages dropped because the queue was full, since the last `Lost`.
    dropped: u64,
}

impl Watch {
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        let options = &journal.shared.options;
        let assembly = Assembly::new(options.max_frame_bytes, options.max_parts);
        let scanner = Scanner::from_greeting().seeking_up_to(options.max_frame_bytes).expecting(options.formats);
        Self { journal, direction, scanner, assembly, seq: 0, unreadable: false, dropped: 0 }
    }

    fn push_frame(&mut self, message: Message, base: u64, bytes: &Bytes, written_at: MonoNs) {
        let seq = self.seq;
        self.seq += 1;
        let cut = |part: std::ops::Range<u64>| {
            let (start, end) = (part.start.checked_sub(base)?, part.end.checked_sub(base)?);
            (end <= bytes.len() as u64 && start <= end).then(|| bytes.slice(start as usize..end as usize))
        };
        let payload = match message.parts {
            Ok(Parts::One(part)) => cut(part).map(Payload::Whole).ok_or(NotKept::Budget),
            Ok(Parts::Several(parts)) => {
                parts.into_iter().map(cut).collect::<Option<_>>().map(Payload::Multipart).ok_or(NotKept::Budget)
            }
            Err(why) => Err(why),
        };
        if payload.is_err() {
            self.journal.shared.counters.frames_not_kept.add(1);
        }
        let queued = self.push_dropped()
            && self
                .journal
                .push(Observation::Frame {
                    pair: self.journal.pair,
                    direction: self.direction,
                    lane: self.journal.lane,
                    seq,
                    read_at: message.read_at,
                    written_at,
                    bytes: message.bytes,
                    payload: payload.unwrap_or_else(Payload::NotKept),
                })
                .is_ok();
        if !queued {
            self.dropped += 1;
            self.journal.shared.counters.frames_dropped.add(1);
        }
    }

    /// Reports the number of dropped observations, if there are any. Returns false if the queue is still full.
    fn push_dropped(&mut self) -> bool {
        if self.dropped > 0 && self.journal.push(self.lost(self.dropped, MissedCause::QueueFull)).is_ok() {
            self.dropped = 0;
        }
        self.dropped == 0
    }

    fn push_unread(&mut self, why: Unread, at: MonoNs) {
        self.unreadable = true;
        let counters = &self.journal.shared.counters;
        match why {
            Unread::Opaque(_) => counters.opaque.add(1),
            Unread::Garbage(_) => counters.garbage.add(1),
        }
        let (pair, lane) = (self.journal.pair, self.journal.lane);
        self.journal.push_rare(Observation::Unread { pair, direction: self.direction, lane, at, why });
        // A peer that does not speak ZMTP had no messages to lose. A stretch that stays unframed was reported when it began.
        if !matches!(why, Unread::Opaque(Opaque::NotZmtp | Opaque::Unframed)) {
            self.journal.push_rare(self.lost(1, MissedCause::Unframed));
        }
    }

    fn lost(&self, count: u64, cause: MissedCause) -> Observation {
        let (pair, lane) = (self.journal.pair, self.journal.lane);
        Observation::Lost { pair, direction: self.direction, lane, count, cause }
    }
}

impl Observer for Watch {
    fn keep(&mut self) -> Keep {
        match self.scanner.pending() {
            Some(pending) if self.assembly.is_kept(pending) => {
                Keep { from: pending.start, frame_end: pending.frame_end }
            }
            _ => Keep { from: self.scanner.position(), frame_end: None },
        }
    }

    fn forget(&mut self) {
        if self.scanner.pending().is_some() {
            self.assembly.discard(NotKept::Budget);
        }
    }

    fn read(&mut self, bytes: &[u8], at: MonoNs, kept: bool) {
        let Self { scanner, assembly, .. } = self;
        scanner.feed(bytes, &mut |mark| assembly.apply(mark, at, kept));
        if !kept {
            self.forget();
        }
        for why in std::mem::take(&mut self.assembly.unread) {
            self.push_unread(why, at);
        }
        if std::mem::take(&mut self.assembly.rejected) {
            self.journal.push_rare(Observation::Rejected { pair: self.journal.pair, direction: self.direction });
        }
    }

    fn wrote(&mut self, window: &mut Window, at: MonoNs) {
        let written = window.written();
        let count = self.assembly.done.iter().take_while(|message| message.end <= written).count();
        let Some(last) = count.checked_sub(1).and_then(|last| self.assembly.done.get(last)) else {
            return;
        };
        let (base, bytes) = window.cut(last.end);
        for _ in 0..count {
            let Some(message) = self.assembly.done.pop_front() else {
                return;
            };
            self.push_frame(message, base, &bytes, at);
        }
        let counters = &self.journal.shared.counters;
        match self.direction {
            Direction::Forward => counters.frames_forward.add(count as u64),
            Direction::Backward => counters.frames_backward.add(count as u64),
        }
    }

    fn has_relayed(&self) -> bool {
        self.seq > 0 || self.unreadable || self.scanner.pending().is_some()
    }

    fn count(&self, bytes: usize) {
        self.journal.count(self.direction, bytes);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.journal.shared.counters.frames_undelivered.add(self.assembly.done.len() as u64);
        if self.dropped > 0 {
            self.journal.push_rare(self.lost(self.dropped, MissedCause::QueueFull));
        }
        if self.scanner.pending().is_some() {
            self.journal.record_cut();
            self.journal.push_rare(self.lost(1, MissedCause::CutShort));
        }
    }
}
