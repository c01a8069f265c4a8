//! The answer of a locator: the probe points of a library, in a fixed number of bytes.

use probe_ebpf::{Kept, Register};

use crate::probe_points::{FUNCTIONS, ProbePoints, ReceivedPoint, SocketPoint};

/// Number of offsets: of the functions, of four points inside functions, of OpenSSL's inner write and of the method.
const OFFSET_COUNT: usize = FUNCTIONS.len() + 6;
/// Number of locations of a socket or message.
const LOCATION_COUNT: usize = 5;
/// Maximum length of an error's text.
const MAX_TEXT: usize = 200;
/// Status, offsets, locations, and text up to its first zero byte.
pub(crate) const ANSWER_BYTES: usize = TEXT_AT + MAX_TEXT;
const OFFSETS_AT: usize = 1;
const LOCATIONS_AT: usize = OFFSETS_AT + OFFSET_COUNT * 8;
const TEXT_AT: usize = LOCATIONS_AT + LOCATION_COUNT * 3;

// Statuses.
const FOUND: u8 = 1;
const FAILED: u8 = 2;

/// An offset that the library does not have.
const ABSENT: u64 = u64::MAX;

// Kinds of a location, and the registers by their numbers.
const NOWHERE: u8 = 0;
const IN_REGISTER: u8 = 1;
const IN_MEMORY: u8 = 2;
const REGISTERS: [Register; 7] =
    [Register::Rbx, Register::Rbp, Register::R12, Register::R13, Register::R14, Register::R15, Register::Rsp];

/// The probe points, or why there are none.
pub(crate) type LocatorAnswer = Result<ProbePoints, String>;

/// Encodes what was found in a library, or why it was not, in a fixed number of bytes.
pub(crate) fn answer_to_bytes(answer: &LocatorAnswer) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    let found = match answer {
        Ok(found) => found,
        Err(why) => {
            bytes[0] = FAILED;
            let end = why.floor_char_boundary(MAX_TEXT);
            bytes[TEXT_AT..TEXT_AT + end].copy_from_slice(&why.as_bytes()[..end]);
            return bytes;
        }
    };
    bytes[0] = FOUND;
    let ProbePoints { functions, received, refused, option_request, waits, tls_write, method } = found;
    let points = [refused, option_request, waits];
    // In the order in which the parser reads them.
    let mut offsets: Vec<Option<u64>> = functions.to_vec();
    offsets.push(received.map(|point| point.at));
    offsets.extend(points.map(|point| point.map(|point| point.at)));
    offsets.extend([*tls_write, *method]);
    for (to, offset) in bytes[OFFSETS_AT..LOCATIONS_AT].chunks_exact_mut(8).zip(offsets) {
        to.copy_from_slice(&offset.unwrap_or(ABSENT).to_le_bytes());
    }
    let mut locations = vec![received.map(|point| point.socket), received.map(|point| point.message)];
    locations.extend(points.map(|point| point.map(|point| point.socket)));
    for (to, location) in bytes[LOCATIONS_AT..TEXT_AT].chunks_exact_mut(3).zip(locations) {
        to.copy_from_slice(&location_to_bytes(location));
    }
    bytes
}

/// Parses an answer; `None` if it is none.
pub(crate) fn parse_answer(bytes: &[u8]) -> Option<LocatorAnswer> {
    let bytes: &[u8; ANSWER_BYTES] = bytes.try_into().ok()?;
    match bytes[0] {
        FOUND => {}
        FAILED => {
            let text = bytes[TEXT_AT..].split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(Err(String::from_utf8_lossy(text).into_owned()));
        }
        _ => return None,
    }
    let mut offsets = [None; OFFSET_COUNT];
    for (offset, from) in offsets.iter_mut().zip(bytes[OFFSETS_AT..LOCATIONS_AT].chunks_exact(8)) {
        let number = u64::from_le_bytes(from.try_into().ok()?);
        *offset = if number == ABSENT { None } else { Some(number) };
    }
    let mut locations = [None; LOCATION_COUNT];
    for (location, from) in locations.iter_mut().zip(bytes[LOCATIONS_AT..TEXT_AT].chunks_exact(3)) {
        *location = parse_location(from.try_into().ok()?);
    }
    // In the order of `answer_to_bytes`.
    let (functions, inside) = offsets.split_first_chunk::<{ FUNCTIONS.len() }>()?;
    let [received, refused, option_request, waits, tls_write, method] = *inside.first_chunk()?;
    let [received_socket, received_message, refused_socket, option_socket, wait_socket] = locations;
    Some(Ok(ProbePoints {
        functions: *functions,
        received: received_point(received, received_socket, received_message),
        refused: socket_point(refused, refused_socket),
        option_request: socket_point(option_request, option_socket),
        waits: socket_point(waits, wait_socket),
        tls_write,
        method,
    }))
}

/// Point where a receive has its result; `None` if a part of it is absent.
fn received_point(at: Option<u64>, socket: Option<Kept>, message: Option<Kept>) -> Option<ReceivedPoint> {
    Some(ReceivedPoint { at: at?, socket: socket?, message: message? })
}

/// Point with the location of the socket; `None` if a part of it is absent.
fn socket_point(at: Option<u64>, socket: Option<Kept>) -> Option<SocketPoint> {
    Some(SocketPoint { at: at?, socket: socket? })
}

/// Encodes where a value is kept at a probe point.
fn location_to_bytes(location: Option<Kept>) -> [u8; 3] {
    match location {
        None => [NOWHERE, 0, 0],
        Some(Kept::In(register)) => [IN_REGISTER, register as u8, 0],
        Some(Kept::At(register, offset)) => [IN_MEMORY, register as u8, offset.to_le_bytes()[0]],
    }
}

/// A location, if it is a known one.
fn parse_location([kind, register, offset]: [u8; 3]) -> Option<Kept> {
    let register = REGISTERS.iter().find(|known| **known as u8 == register).copied()?;
    match kind {
        IN_REGISTER => Some(Kept::In(register)),
        IN_MEMORY => Some(Kept::At(register, i8::from_le_bytes([offset]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_offset() -> impl Strategy<Value = Option<u64>> {
        prop::option::of(0..ABSENT)
    }

    fn any_location() -> impl Strategy<Value = Kept> {
        let register = prop::sample::select(REGISTERS.to_vec());
        (register, prop::option::of(any::<i8>())).prop_map(|(register, offset)| match offset {
            Some(offset) => Kept::At(register, offset),
            None => Kept::In(register),
        })
    }

    fn any_point() -> impl Strategy<Value = Option<SocketPoint>> {
        prop::option::of((0..ABSENT, any_location()).prop_map(|(at, socket)| SocketPoint { at, socket }))
    }

    fn any_points() -> impl Strategy<Value = ProbePoints> {
        let received = (0..ABSENT, any_location(), any_location()).prop_map(|(at, socket, message)| ReceivedPoint {
            at,
            socket,
            message,
        });
        let functions = prop::collection::vec(any_offset(), FUNCTIONS.len());
        let inside = (prop::option::of(received), any_point(), any_point(), any_point());
        (functions, inside, any_offset(), any_offset()).prop_map(|(functions, inside, tls_write, method)| ProbePoints {
            functions: functions.try_into().unwrap(),
            received: inside.0,
            refused: inside.1,
            option_request: inside.2,
            waits: inside.3,
            tls_write,
            method,
        })
    }

    proptest! {
        #[test]
        fn probe_points_round_trip(found in any_points()) {
            prop_assert_eq!(parse_answer(&answer_to_bytes(&Ok(found.clone()))), Some(Ok(found)));
        }

        #[test]
        fn any_bytes_are_an_answer_or_refused(mut bytes in prop::collection::vec(any::<u8>(), ANSWER_BYTES), status in 0_u8..4) {
            bytes[0] = status;
            let _ = parse_answer(&bytes);
            bytes.pop();
            prop_assert_eq!(parse_answer(&bytes), None);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let why = format!("{}ä", "x".repeat(MAX_TEXT - 1));
        assert_eq!(parse_answer(&answer_to_bytes(&Err(why))), Some(Err("x".repeat(MAX_TEXT - 1))));
        assert_eq!(parse_answer(&answer_to_bytes(&Err("why".to_owned()))), Some(Err("why".to_owned())));
    }
}
