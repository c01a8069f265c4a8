//! Observer of one direction of a ZMTP connection: scans bytes as they are read and reports messages as they are written.

use std::sync::Arc;

use bytes::Bytes;
use trace::MonoNs;
use trace::event::MissedCause;

use super::assembly::{Assembly, Message};
use super::journal::{Journal, Reporter};
use super::observation::{Direction, NotKept, Observed, Payload, Unread};
use super::window::Window;
use crate::zmtp::{Opaque, Pending, Scanner};

/// Observer of the bytes of one direction while they are copied. It neither delays nor changes them.
pub(super) trait Observer {
    /// Bytes that the window must keep for the incomplete message.
    fn keep(&mut self) -> Pending;

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
        let scanner = Scanner::from_greeting().recovering(options.formats, options.max_frame_bytes);
        Self { reporter: Reporter::new(journal, direction), scanner, assembly, seq: 0, unreadable: false }
    }

    fn push_frame(&mut self, message: Message, base: u64, bytes: &Bytes, written_at: MonoNs) {
        let seq = self.seq;
        self.seq += 1;
        let cut = |part: std::ops::Range<u64>| {
            let (start, end) = (part.start.checked_sub(base)?, part.end.checked_sub(base)?);
            (end <= bytes.len() as u64 && start <= end).then(|| bytes.slice(start as usize..end as usize))
        };
        let payload = match message.earlier_parts {
            Ok(earlier) if earlier.is_empty() => cut(message.last_part).map(Payload::Whole),
            Ok(earlier) => {
                earlier.into_iter().chain([message.last_part]).map(cut).collect::<Option<_>>().map(Payload::Multipart)
            }
            Err(why) => Some(Payload::NotKept(why)),
        };
        self.reporter.report(Some(Observed::Frame {
            direction: self.reporter.direction,
            seq,
            read_at: message.read_at,
            written_at,
            bytes: message.bytes,
            payload: payload.unwrap_or(Payload::NotKept(NotKept::Budget)),
        }));
    }

    fn push_unread(&mut self, why: Unread) {
        self.unreadable = true;
        self.reporter.journal.push_rare(Observed::Unread(self.reporter.direction, why));
        // A peer that does not speak ZMTP had no messages to lose. A stretch that stays unframed was reported when it began.
        if !matches!(why, Unread::Opaque(Opaque::NotZmtp | Opaque::Unframed)) {
            self.reporter.report_lost(1, MissedCause::Unframed);
        }
    }
}

impl Observer for Watch {
    fn keep(&mut self) -> Pending {
        let pending = self.scanner.pending().filter(|pending| self.assembly.is_kept(*pending));
        pending.unwrap_or(Pending { start: self.scanner.position(), frame_end: None })
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
            self.push_unread(why);
        }
        if std::mem::take(&mut self.assembly.rejected) {
            self.reporter.journal.push_rare(Observed::Rejected(self.reporter.direction));
        }
    }

    fn wrote(&mut self, window: &mut Window, count: usize, at: MonoNs) {
        self.reporter.count(count);
        let written = window.written();
        let count = self.assembly.done.iter().take_while(|message| message.last_part.end <= written).count();
        let Some(last) = count.checked_sub(1).and_then(|last| self.assembly.done.get(last)) else {
            return;
        };
        let (base, bytes) = window.cut(last.last_part.end);
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
        if self.scanner.pending().is_some() {
            self.reporter.report_lost(1, MissedCause::CutShort);
        }
    }
}
