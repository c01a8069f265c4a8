//! Messages between the schedulers of a prefill and a decode server (`--disaggregation-mode`), which name a request by its room.

use adapter::decode::Excerpt;
use trace::event::{PairMessage, PairMessageKind};

/// First part of messages of the backend nixl.
const NIXL_GUARD: &[u8] = b"NixlMsgGuard";
/// `KVPoll` of SGLang's `disaggregation/base/conn.py`.
const SUCCESS: &[u8] = b"4";
const FAILED: &[u8] = b"0";
/// Minimum number of parts behind the guard in which a decode server describes the memory of a request. 0.5.9 sends 8, 0.5.23 sends 10.
const MEMORY_PARTS: u64 = 6;

/// Reads a message of the transfer backend mooncake or nixl from its first parts. `total_parts` counts all parts. The room in the result is
/// the number under which both servers of a pair know the request. `None` for any other message. With nixl, no message reports the end of
/// a transfer.
pub(super) fn read_pair_message(first_parts: &[Excerpt<'_>], total_parts: u64) -> Option<PairMessage> {
    let (first, rest) = first_parts.split_first()?;
    let is_nixl = first.is_whole() && first.head == NIXL_GUARD;
    if is_nixl {
        let room = read_room(rest.first()?)?;
        // More than the minimum, which does not count the guard.
        let describes_memory = total_parts > MEMORY_PARTS;
        return describes_memory.then_some(PairMessage { room, kind: PairMessageKind::Allocated });
    }
    let room = read_room(first)?;
    let kind = match total_parts {
        // Behind the room stands the status of the transfer.
        2..=3 => match rest.first()?.head {
            SUCCESS => PairMessageKind::Transferred,
            FAILED => PairMessageKind::Failed,
            _ => return None,
        },
        // The memory that a decode server has allocated.
        MEMORY_PARTS.. => PairMessageKind::Allocated,
        _ => return None,
    };
    Some(PairMessage { room, kind })
}

/// Parses a room, the decimal number of a request. `None` for anything else, and for 0, which health checks use.
fn read_room(part: &Excerpt<'_>) -> Option<u64> {
    let is_decimal = !part.head.is_empty() && part.head.iter().all(u8::is_ascii_digit);
    if !part.is_whole() || !is_decimal {
        return None;
    }
    let room = std::str::from_utf8(part.head).ok()?.parse().ok()?;
    (room > 0).then_some(room)
}

#[cfg(test)]
mod tests {
    use PairMessageKind::{Allocated, Failed, Transferred};

    use super::*;

    fn read(parts: &[&[u8]], part_count: u64) -> Option<(u64, PairMessageKind)> {
        let parts: Vec<Excerpt<'_>> = parts.iter().map(|part| Excerpt::whole(part)).collect();
        read_pair_message(&parts, part_count).map(|message| (message.room, message.kind))
    }

    /// The parts are written after the description of recorded messages, not recorded themselves.
    #[test]
    fn messages_between_schedulers_name_a_room() {
        const ROOM: &[u8] = b"9223372036854775807";
        let room = i64::MAX as u64;
        for part_count in [8, 10] {
            assert_eq!(read(&[ROOM, b"10.0.0.1", b"40000"], part_count), Some((room, Allocated)));
        }
        assert_eq!(read(&[ROOM, b"4", b"0"], 3), Some((room, Transferred)));
        assert_eq!(read(&[ROOM, b"0", b"1"], 3), Some((room, Failed)));
        assert_eq!(read(&[NIXL_GUARD, ROOM, b"10.0.0.1"], 8), Some((room, Allocated)));
    }

    #[test]
    fn other_messages_name_none() {
        for (parts, part_count) in [
            (&[&b"None"[..], b"10.0.0.1", b"40000"][..], 10),
            (&[NIXL_GUARD, b"None", b"10.0.0.1"], 8),
            (&[b"AUX_DATA", b"17", b"0"], 7),
            (&[b"17", b"2", b"0"], 3),
            (&[b"17"], 1),
            (&[b"0", b"4", b"0"], 3),
            (&[b"99999999999999999999", b"4", b"0"], 3),
            (&[b"-1", b"4", b"0"], 3),
            (&[b"", b"4", b"0"], 3),
            (&[], 0),
        ] {
            assert_eq!(read(parts, part_count), None, "{parts:?}");
        }
    }
}
