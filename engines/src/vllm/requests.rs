//! Messages to the engine core: a type byte, and a request or a list of ids to abort. A router's identity may come first, and raw arrays
//! last. Prompts are measured by their headers and never read. Releases before 0.7.3 pickle what later ones write as msgpack.

use adapter::decode::{Excerpt, Refused};
use trace::event::{DispatchKind, DispatchedRequest};

use super::decoder::MAX_RID_BYTES;
use super::layout::{RequestLayout, TABLE};
use crate::msgpack::{Head, be_bytes, offset_after_values, read_head, read_string, skip_value, utf8};
use crate::sglang::wire::{PickleWalk, read_pickled_request, read_text_list};
use crate::undecoded::Undecoded;

const CLASS: &str = "EngineCoreRequest";
/// Type bytes of messages with a request, and with ids to abort.
const ADD: u8 = 0;
const ABORT: u8 = 1;
/// Number of bytes before the end of a request in which its arrival time is searched.
const ARRIVAL_BYTES: usize = 4096;
/// Number of floats to which the arrival time is compared. Few fields of a request are floats.
const MAX_FLOATS: usize = 16;
/// Head of a float in msgpack.
const FLOAT: u8 = 0xcb;
/// A pickle's first byte. In msgpack it is an empty map, which no message is.
const PICKLE: u8 = 0x80;
/// The name of a pickled arrival time and the opcode of its value. Text cannot contain it: `MEMOIZE` is not UTF-8 there.
const PICKLED_ARRIVAL: &[u8] = b"arrival_time\x94G";

/// Adds the requests that a message to the engine core names to `requests`, and returns what the message does with them. A message has a
/// part of one byte, which is its type, and then a part with its content. See [`adapter::decode::ReadRequests`].
pub(super) fn read_requests<'a>(
    parts: &[Excerpt<'a>],
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Refused> {
    // The type byte is the first part, or the second in a router's message, which begins with the address of its peer.
    let is_type_byte = |part: &Excerpt<'_>| part.length == 1 && matches!(part.head, [0..=5]);
    let Some(type_part) = parts.iter().take(2).position(is_type_byte) else {
        return Err(Refused {
            reason: "codec",
            detail: format!("a message of {} parts without the type byte of a request to the engine core", parts.len()),
        });
    };
    // A missing payload is read as an empty one, which neither a request nor an abort has.
    let payload = parts.get(type_part + 1).copied().unwrap_or(Excerpt::whole(&[]));
    match parts[type_part].head {
        [ADD] => {
            requests.push(read_request(payload)?);
            Ok(DispatchKind::Requests)
        }
        [ABORT] => {
            let count_before = requests.len();
            let read = push_aborted_requests(payload, requests);
            // The ids of an invalid message may be anything, so those that were added are removed.
            if read.is_err() {
                requests.truncate(count_before);
            }
            Ok(read?)
        }
        // Waves of data-parallel engines, calls of methods, failures.
        _ => Ok(DispatchKind::Control),
    }
}

/// Reads the request of a message to an engine core: its id, the length of its prompt, and its time of arrival. The last two are missing if
/// they are not found.
fn read_request(payload: Excerpt<'_>) -> Result<DispatchedRequest<'_>, Undecoded> {
    if payload.head.first() == Some(&PICKLE) {
        let mut request = read_pickled_request(payload, &mut PickleWalk::new(payload.head))?;
        request.arrived_unix_ns = find_pickled_arrival_unix_ns(payload);
        return Ok(request);
    }
    let Some((Head::Array { len }, first)) = read_head(payload.head, 0) else {
        return Err(not_a_codec(payload.head));
    };
    // The message has one request. Its index is only for errors.
    let only_row = 0;
    let mut request = DispatchedRequest::new(read_request_id(payload, first, only_row)?);
    // A message does not name its layout. Several releases may send this number of fields.
    let mut layouts = TABLE.requests.iter().filter(|layout| layout.field_count == len);
    // In releases before 0.8.5, the prompt's text is field 1, so its ids are field 2.
    let may_have_text = layouts.clone().any(|layout| layout.prompt_ids_index == 2);
    request.prompt_tokens = count_prompt_ids(payload, first as u64, may_have_text);
    request.arrived_unix_ns = layouts.find_map(|layout| find_arrival_unix_ns(payload, layout));
    Ok(request)
}

/// Number of prompt ids of the request whose first field, the id, is at `id_at`. `None` if it is not found. Releases before 0.8.5 have the
/// prompt's text, nil, in field 1 and its ids in field 2. Later ones have the ids in field 1. Both may have the same number of fields, so
/// the values decide.
fn count_prompt_ids(payload: Excerpt<'_>, id_at: u64, may_have_text: bool) -> Option<u32> {
    let field_1_at = offset_after_values(payload, id_at, 1)?;
    let ids_in_field_1 = length_of_list(payload, field_1_at);
    if ids_in_field_1.is_some() || !may_have_text {
        return ids_in_field_1;
    }
    length_of_list(payload, offset_after_values(payload, field_1_at, 1)?)
}

/// The request id at `at`. Fails for anything but a text of valid length. `row` is the request's position in the message, for the error.
fn read_request_id(payload: Excerpt<'_>, at: usize, row: usize) -> Result<&str, Undecoded> {
    if let Some((id, _)) = read_string(payload.head, at)
        && id.len() <= MAX_RID_BYTES
        && let Some(id) = utf8(id)
    {
        return Ok(id);
    }
    Err(Undecoded::Column { class: CLASS, field: "request_id", row, what: "not text of at most 4,096 bytes" })
}

/// Length of the list at `at`; `None` for anything else.
fn length_of_list(payload: Excerpt<'_>, at: u64) -> Option<u32> {
    match read_head(payload.bytes_from(at)?, 0)?.0 {
        Head::Array { len } => Some(len),
        _ => None,
    }
}

/// The last captured bytes of a request, in which its arrival time is searched.
fn last_bytes(payload: Excerpt<'_>) -> &[u8] {
    let end = if payload.tail.is_empty() { payload.head } else { payload.tail };
    &end[end.len().saturating_sub(ARRIVAL_BYTES)..]
}

/// Time of arrival, in nanoseconds of the wall clock, in the last bytes of a pickled request; `None` if it is not there.
fn find_pickled_arrival_unix_ns(payload: Excerpt<'_>) -> Option<u64> {
    let end = last_bytes(payload);
    let at = memchr::memmem::rfind(end, PICKLED_ARRIVAL)? + PICKLED_ARRIVAL.len();
    to_unix_ns(f64::from_be_bytes(be_bytes(end, at)?))
}

/// A time of the wall clock in nanoseconds; `None` for a number of seconds outside of the years 2001 to 2286.
fn to_unix_ns(seconds: f64) -> Option<u64> {
    (1e9..1e10).contains(&seconds).then_some((seconds * 1e9) as u64)
}

/// The time at which the server saw the request. Searches the floats from the end, because the prompt before them may not be captured. Of
/// all times, only the arrival has exactly as many values behind it as the layout has fields behind the arrival.
fn find_arrival_unix_ns(payload: Excerpt<'_>, layout: &RequestLayout) -> Option<u64> {
    let end = last_bytes(payload);
    let mut candidates = memchr::memrchr_iter(FLOAT, end).take(MAX_FLOATS);
    candidates.find_map(|at| arrival_unix_ns_at(end, at, layout))
}

/// Time of arrival in the float at `at`. `None` if it is no time, or if the fields behind an arrival time would not end with the message.
fn arrival_unix_ns_at(bytes: &[u8], at: usize, layout: &RequestLayout) -> Option<u64> {
    let arrived_unix_ns = to_unix_ns(f64::from_be_bytes(be_bytes(bytes, at + 1)?))?;
    // The head of the float and its eight bytes.
    let mut end = at + 9;
    for _ in 0..layout.fields_after_arrival {
        end = skip_value(bytes, end).ok()?;
    }
    (end == bytes.len()).then_some(arrived_unix_ns)
}

/// Adds the requests to abort to `requests`. The message is a list of their ids, as a pickle in old releases and as msgpack in later ones.
fn push_aborted_requests<'a>(
    payload: Excerpt<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    if !payload.is_whole() {
        return Err(Undecoded::CutByCapture { what: "all ids to abort" });
    }
    let count_before = requests.len();
    if payload.head.first() == Some(&PICKLE) {
        // An id that is not UTF-8 is left out.
        read_text_list(payload.head, |id| requests.extend(utf8(id).map(DispatchedRequest::new)))?;
    } else {
        push_packed_aborted_requests(payload, requests)?;
    }
    // A message of kind `Aborts` without ids would abort all requests.
    let names_no_request = requests.len() == count_before;
    Ok(if names_no_request { DispatchKind::Control } else { DispatchKind::Aborts })
}

/// Adds the requests in a msgpack list of ids to `requests`.
fn push_packed_aborted_requests<'a>(
    payload: Excerpt<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<(), Undecoded> {
    let Some((Head::Array { len }, mut at)) = read_head(payload.head, 0) else {
        return Err(not_a_codec(payload.head));
    };
    for row in 0..len as usize {
        requests.push(DispatchedRequest::new(read_request_id(payload, at, row)?));
        at = skip_value(payload.head, at)?;
    }
    Ok(())
}

/// Error for a request in neither codec.
fn not_a_codec(head: &[u8]) -> Undecoded {
    let expected = "neither a msgpack array nor a pickle";
    Undecoded::Codec { expected, first: head[..head.len().min(8)].to_vec() }
}
