//! Position of one connection in the kernel's byte count, so that unobserved writes appear as gaps.

use probe_ebpf::egress::{CLOSE, CLOSE_WAIT, ESTABLISHED, Kind, Record};
use trace::event::AnswerEnd;

/// Meaning of a record for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionStep<'a> {
    /// A new connection has the kernel address of an earlier one, whose last write was reported after its end.
    Opened,
    /// The next bytes that the kernel accepted.
    Bytes {
        /// The bytes.
        bytes: &'a [u8],
        /// Whether a write begins with them.
        begins: bool,
    },
    /// This many bytes before the next ones were accepted but not observed.
    Missed(u32),
    /// The socket accepted none or only a part of a write.
    HeldUp,
    /// The connection has closed.
    Closed {
        /// How it ends the response that it carries.
        end: AnswerEnd,
        /// Number of bytes that the client has not acknowledged, if known.
        unacknowledged: Option<u64>,
    },
}

/// Position in a connection's byte stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionTracker {
    /// Byte count after the last observed byte.
    next_position: Option<u32>,
    /// The end by the side that closed first.
    end: Option<AnswerEnd>,
}

impl ConnectionTracker {
    /// Interprets the kernel side's next record about the connection. Returns up to three steps, in their order.
    pub fn interpret_record<'a>(&mut self, record: &Record<'a>) -> impl Iterator<Item = ConnectionStep<'a>> + use<'a> {
        // A fixed array, because records are frequent. `None` is no step.
        let steps = match record.kind {
            // OpenSSL has freed the connection, which does not show who closed it.
            Kind::TlsClosed => {
                [Some(ConnectionStep::Closed { end: AnswerEnd::Unknown, unacknowledged: None }), None, None]
            }
            Kind::State => [self.interpret_state_change(record), None, None],
            // All other kinds are writes and reads.
            _ => self.interpret_bytes(record),
        };
        steps.into_iter().flatten()
    }

    /// Interprets a change of the connection's TCP state, from `before` to `state`. `None` if it neither opens nor closes the connection.
    fn interpret_state_change<'a>(&mut self, record: &Record<'a>) -> Option<ConnectionStep<'a>> {
        let head = &record.head;
        // A new connection: the kernel has reused the address of the earlier socket.
        if head.state == ESTABLISHED {
            *self = Self::default();
            return Some(ConnectionStep::Opened);
        }
        // When the client closes or resets an open connection, it gets one of these two states. When the server closes it, it gets neither.
        let has_client_left = head.before == ESTABLISHED && matches!(head.state, CLOSE_WAIT | CLOSE);
        let end_if_first = if has_client_left { AnswerEnd::ClientLeft } else { AnswerEnd::ServerLeft };
        // Only the first change shows who closed first, so it is kept.
        let end = *self.end.get_or_insert(end_if_first);
        if head.state != CLOSE {
            return None;
        }
        Some(ConnectionStep::Closed { end, unacknowledged: Some(head.unacknowledged.into()) })
    }

    /// Interprets the record of a write or a read. Returns up to three steps: the socket did not accept all bytes, earlier bytes were
    /// missed, and last the bytes of this record.
    fn interpret_bytes<'a>(&mut self, record: &Record<'a>) -> [Option<ConnectionStep<'a>>; 3] {
        let head = &record.head;
        // Number of bytes of the whole write that the socket accepted. A negative number is an error: it accepted nothing.
        let Ok(accepted) = u32::try_from(head.accepted) else {
            return [Some(ConnectionStep::HeldUp), None, None];
        };
        // A long write comes in several records. `from` is the offset of a record's bytes in the write.
        let is_first_of_write = head.from == 0;
        // `asked` is the length of the whole write.
        let is_held_up = is_first_of_write && head.asked > u64::from(accepted);
        // `written` is the kernel's count of all bytes of the connection, up to the end of this write. It has 32 bits and may wrap around.
        let write_position = head.written.wrapping_sub(accepted);
        let record_position = write_position.wrapping_add(head.from);
        let missed_bytes = self.advance_and_count_missed_bytes(record_position, record.payload.len() as u32);
        let bytes = ConnectionStep::Bytes { bytes: record.payload, begins: is_first_of_write };
        let held_up = is_held_up.then_some(ConnectionStep::HeldUp);
        let missed = (missed_bytes > 0).then_some(ConnectionStep::Missed(missed_bytes));
        [held_up, missed, Some(bytes)]
    }

    /// Moves the expected position behind observed bytes. Returns the number of bytes before them that were missed.
    #[inline]
    fn advance_and_count_missed_bytes(&mut self, position: u32, length: u32) -> u32 {
        // Before the first record, nothing is known to be missing.
        let missed_bytes = self.next_position.map_or(0, |next| position.wrapping_sub(next));
        self.next_position = Some(position.wrapping_add(length));
        missed_bytes
    }
}

#[cfg(test)]
mod tests {
    use probe_ebpf::egress::Head;

    use super::*;

    fn write(written: u32, accepted: i64, from: u32, payload: &[u8]) -> Record<'_> {
        let head = Head { written, accepted, from, captured: payload.len() as u32, ..Head::default() };
        Record { kind: Kind::Wrote, head, payload }
    }

    fn state(before: u8, state: u8) -> Record<'static> {
        let head = Head { before, state, unacknowledged: 7, ..Head::default() };
        Record { kind: Kind::State, head, payload: &[] }
    }

    fn steps<'a>(tracker: &mut ConnectionTracker, record: &Record<'a>) -> Vec<ConnectionStep<'a>> {
        tracker.interpret_record(record).collect()
    }

    fn bytes(bytes: &[u8], begins: bool) -> ConnectionStep<'_> {
        ConnectionStep::Bytes { bytes, begins }
    }

    #[test]
    fn consecutive_pieces_leave_no_gap_and_a_lost_write_does() {
        let mut tracker = ConnectionTracker::default();
        // The byte counts wrap around.
        assert_eq!(steps(&mut tracker, &write(2, 5, 0, b"abc")), [bytes(b"abc", true)]);
        assert_eq!(steps(&mut tracker, &write(2, 5, 3, b"de")), [bytes(b"de", false)]);
        assert_eq!(steps(&mut tracker, &write(4, 2, 0, b"fg")), [bytes(b"fg", true)]);
        assert_eq!(steps(&mut tracker, &write(9, 1, 0, b"x")), [ConnectionStep::Missed(4), bytes(b"x", true)]);
    }

    #[test]
    fn a_new_connection_at_a_reused_address_misses_nothing() {
        let mut tracker = ConnectionTracker::default();
        assert_eq!(steps(&mut tracker, &state(1, 7)).len(), 1);
        // The write returned after the reset of its connection. SYN_RECV to ESTABLISHED is the next one.
        assert_eq!(steps(&mut tracker, &write(900, 3, 0, b"abc")), [bytes(b"abc", true)]);
        assert_eq!(steps(&mut tracker, &state(3, 1)), [ConnectionStep::Opened]);
        assert_eq!(steps(&mut tracker, &write(2, 2, 0, b"de")), [bytes(b"de", true)]);
        let closed = ConnectionStep::Closed { end: AnswerEnd::ClientLeft, unacknowledged: Some(7) };
        assert_eq!(steps(&mut tracker, &state(1, 7)), [closed]);
    }

    #[test]
    fn a_short_write_reports_backpressure() {
        let mut tracker = ConnectionTracker::default();
        assert_eq!(steps(&mut tracker, &write(10, -11, 0, b"")), [ConnectionStep::HeldUp]);
        let mut partial = write(13, 3, 0, b"abc");
        partial.head.asked = 8;
        assert_eq!(steps(&mut tracker, &partial), [ConnectionStep::HeldUp, bytes(b"abc", true)]);
    }

    #[test]
    fn the_side_that_closed_first_is_recorded() {
        let closed = |states: &[(u8, u8)]| {
            let mut tracker = ConnectionTracker::default();
            states.iter().flat_map(|&(before, now)| steps(&mut tracker, &state(before, now))).collect::<Vec<_>>()
        };
        let closed_by = |end| [ConnectionStep::Closed { end, unacknowledged: Some(7) }];
        // FIN from the client, reset by the client, FIN from the server.
        assert_eq!(closed(&[(1, 8), (8, 9), (9, 7)]), closed_by(AnswerEnd::ClientLeft));
        assert_eq!(closed(&[(1, 7)]), closed_by(AnswerEnd::ClientLeft));
        assert_eq!(closed(&[(1, 4), (4, 5), (5, 7)]), closed_by(AnswerEnd::ServerLeft));
    }
}
