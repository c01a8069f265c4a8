//! Observer of one direction of a ZMTP connection: scans bytes as they are read and reports messages as they are written.

use std::sync::Arc;

use bytes::Bytes;
use trace::MonoNs;
use trace::event::MissedCause;

use super::assembly::{Assembly, Message, Parts};
use super::journal::{Journal, Reporter};
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

    /// Counts `count` bytes that have been written, and reports them or their messages.
    fn wrote(&mut self, window: &mut Window, count: usize, at: MonoNs);

    /// Notes that the sink accepted none or only a part of the bytes.
    fn short_writes(&mut self) {}

    /// Whether data went this way that a reset of the other side can discard.
    fn has_relayed(&self) -> bool;
}

/// Observer of one direction of a ZMTP connection.
#[derive(Debug)]
pub(super) struct Watch {
    reporter: Reporter,
    scanner: Scanner,
    assembly: Assembly,
    seq: u64,
    /// A part of the stream could not be read.
    unreadable: bool,
}

impl Watch {
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        let options = &journal.shared.options;
        let assembly = Assembly::new(options.max_frame_bytes, options.max_parts);
        let scanner = Scanner::from_greeting().seeking_up_to(options.max_frame_bytes).expecting(options.formats);
        Self { reporter: Reporter::new(journal, direction), scanner, assembly, seq: 0, unreadable: false }
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
        let journal = &self.reporter.journal;
        if payload.is_err() {
            journal.shared.counters.frames_not_kept.add(1);
        }
        let frame = Observation::Frame {
            pair: journal.pair,
            direction: self.reporter.direction,
            lane: journal.lane,
            seq,
            read_at: message.read_at,
            written_at,
            bytes: message.bytes,
            payload: payload.unwrap_or_else(Payload::NotKept),
        };
        if !self.reporter.report(Some(frame)) {
            self.reporter.journal.shared.counters.frames_dropped.add(1);
        }
    }

    fn push_unread(&mut self, why: Unread, at: MonoNs) {
        self.unreadable = true;
        let Reporter { journal, direction, .. } = &self.reporter;
        match why {
            Unread::Opaque(_) => journal.shared.counters.opaque.add(1),
            Unread::Garbage(_) => journal.shared.counters.garbage.add(1),
        }
        let (pair, lane, direction) = (journal.pair, journal.lane, *direction);
        journal.push_rare(Observation::Unread { pair, direction, lane, at, why });
        // A peer that does not speak ZMTP had no messages to lose. A stretch that stays unframed was reported when it began.
        if !matches!(why, Unread::Opaque(Opaque::NotZmtp | Opaque::Unframed)) {
            self.reporter.report_lost(1, MissedCause::Unframed);
        }
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
            let Reporter { journal, direction, .. } = &self.reporter;
            journal.push_rare(Observation::Rejected { pair: journal.pair, direction: *direction });
        }
    }

    fn wrote(&mut self, window: &mut Window, count: usize, at: MonoNs) {
        self.reporter.count(count);
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
        let counters = &self.reporter.journal.shared.counters;
        match self.reporter.direction {
            Direction::Forward => counters.frames_forward.add(count as u64),
            Direction::Backward => counters.frames_backward.add(count as u64),
        }
    }

    fn has_relayed(&self) -> bool {
        self.seq > 0 || self.unreadable || self.scanner.pending().is_some()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let journal = &self.reporter.journal;
        journal.shared.counters.frames_undelivered.add(self.assembly.done.len() as u64);
        self.reporter.end();
        if self.scanner.pending().is_some() {
            journal.record_cut();
            self.reporter.report_lost(1, MissedCause::CutShort);
        }
    }
}
