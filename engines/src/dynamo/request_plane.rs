//! Dynamo's request plane: requests from a frontend to a worker, on persistent connections (docs/internals/EGRESS.md, "Dynamo"). Only the
//! ids are read. They identify the request that a connection of the response plane answers. The prompt behind them is skipped.

use adapter::requests::{ParseRequests, RequestIds};
use memchr::memchr_iter;
use responses::{BorrowedText, take_bytes};
use serde::Deserialize;

use super::response_plane::{FrameLengths, PREFIX_BYTES};

/// Limit of the control header in bytes. Longer ones are invalid.
const MAX_HEADER_BYTES: u64 = 64 << 10;
/// Transport of responses that can be read, if the request names one.
const TCP: &str = "tcp_server";
/// Name in a request that names no transport.
const UNNAMED_TRANSPORT: &str = "";

/// Parser of one connection from a frontend.
#[derive(Clone, Debug, Default)]
pub struct RequestPlaneParser {
    /// The head of an incomplete message, as far as it was read.
    kept_head: Vec<u8>,
    /// Remaining bytes of the current message's body, which is skipped.
    body_bytes_left: u64,
    /// The position of the next message is unknown.
    is_out_of_sync: bool,
    /// Number of bytes skipped because they were not messages or the position was lost.
    unread_bytes: u64,
}

#[derive(Deserialize)]
struct Headers<'a> {
    #[serde(borrow, default)]
    traceparent: Option<BorrowedText<'a>>,
}

#[derive(Deserialize)]
struct Control<'a> {
    #[serde(borrow)]
    id: BorrowedText<'a>,
    #[serde(borrow)]
    connection_info: ConnectionInfo<'a>,
}

#[derive(Deserialize)]
struct ConnectionInfo<'a> {
    #[serde(borrow)]
    transport: BorrowedText<'a>,
    /// JSON text inside a JSON string.
    #[serde(borrow)]
    info: BorrowedText<'a>,
}

#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow, default)]
    subject: Option<BorrowedText<'a>>,
}

/// The bytes are not a message.
struct Invalid;

/// A part of a message.
struct MessagePart<'a> {
    bytes: &'a [u8],
    /// The bytes behind it.
    rest: &'a [u8],
}

/// The payload of a message, up to its body.
struct Payload<'a> {
    /// The control header.
    control: &'a [u8],
    /// The bytes behind the control header, as far as they are present.
    body_start: &'a [u8],
    body_bytes: u64,
}

/// A message whose ids have been read.
struct ReadMessage {
    /// Number of bytes up to the body.
    head_bytes: usize,
    body_bytes: u64,
}

impl ParseRequests for RequestPlaneParser {
    fn is_other(&self) -> bool {
        self.unread_bytes > MAX_HEADER_BYTES
    }

    /// Notes that `missed_bytes` bytes of the connection were not observed. Unless all were in a body, parsing waits for the start of a
    /// read.
    fn missed(&mut self, missed_bytes: u64) {
        let are_all_in_body = self.body_bytes_left > 0 && missed_bytes <= self.body_bytes_left;
        if are_all_in_body {
            // The body would not be read anyway.
            self.body_bytes_left -= missed_bytes;
        } else {
            self.kept_head.clear();
            self.body_bytes_left = 0;
            self.is_out_of_sync = true;
        }
    }

    /// Passes the ids of each request whose head ends in `input` to `emit`. A head is everything before the request's body, and may come in
    /// several inputs. `is_start_of_read` says that `input` is the start of a read, where a message may begin.
    fn parse(&mut self, mut input: &[u8], is_start_of_read: bool, emit: &mut dyn FnMut(RequestIds<'_>)) {
        // Only at the start of a read may a message begin again.
        if self.is_out_of_sync && !is_start_of_read {
            self.unread_bytes += input.len() as u64;
            return;
        }
        self.is_out_of_sync = false;
        while !input.is_empty() {
            // Skip the body, which holds the prompt.
            if self.body_bytes_left > 0 {
                take_bytes(&mut input, &mut self.body_bytes_left);
                continue;
            }
            // Otherwise the head continues in the next input, or the bytes are not a message.
            let Some(head_bytes) = self.parse_head_and_count_bytes(input, emit) else { return };
            input = &input[head_bytes..];
        }
    }
}

impl RequestPlaneParser {
    /// Parses the head of a message, which begins or continues in `input`. Returns the number of bytes of `input` that belong to it.
    /// `None` if the head continues in the next input, or if the bytes are not a message.
    fn parse_head_and_count_bytes(&mut self, input: &[u8], emit: &mut dyn FnMut(RequestIds<'_>)) -> Option<usize> {
        // Taken out, and put back only if the head continues in the next input.
        let mut head_so_far = std::mem::take(&mut self.kept_head);
        let bytes_of_earlier_inputs = head_so_far.len();
        // Nothing is copied if the message begins in this input.
        let bytes = if head_so_far.is_empty() {
            input
        } else {
            head_so_far.extend_from_slice(input);
            &head_so_far
        };
        match parse_message(bytes, emit) {
            Ok(Some(message)) => {
                self.body_bytes_left = message.body_bytes;
                // The caller has passed over the bytes of earlier inputs already.
                let head_bytes_in_input = message.head_bytes.saturating_sub(bytes_of_earlier_inputs);
                Some(head_bytes_in_input.min(input.len()))
            }
            // The head continues in the next input.
            Ok(None) => {
                self.kept_head = bytes.to_vec();
                None
            }
            Err(Invalid) => {
                self.unread_bytes += bytes.len() as u64;
                self.is_out_of_sync = true;
                None
            }
        }
    }
}

/// Parses the message at the start of `bytes`, and passes its ids to `emit`. `None` if more bytes are needed.
///
/// A message is a path and headers, each after its big-endian length, and the payload. Its head is everything up to the body in the
/// payload.
fn parse_message(bytes: &[u8], emit: &mut dyn FnMut(RequestIds<'_>)) -> Result<Option<ReadMessage>, Invalid> {
    let may_begin_path = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_graphic);
    let may_begin_headers = |bytes: &[u8]| bytes.starts_with(b"{");
    let Some(path) = split_length_prefixed_part(bytes, may_begin_path)? else { return Ok(None) };
    let Some(json) = split_length_prefixed_part(path.rest, may_begin_headers)? else { return Ok(None) };
    let headers = serde_json::from_slice(json.bytes).map_err(|_| Invalid)?;
    let Some(payload) = split_payload(json.rest)? else { return Ok(None) };
    emit_ids(path.bytes, &headers, payload.control, emit);
    let head_bytes = bytes.len() - payload.body_start.len();
    Ok(Some(ReadMessage { head_bytes, body_bytes: payload.body_bytes }))
}

/// Splits the payload of a message, which comes after its length: a prefix with the lengths of control header and body, the control header,
/// and the body. `None` if more bytes are needed.
fn split_payload(bytes: &[u8]) -> Result<Option<Payload<'_>>, Invalid> {
    let Some((payload_bytes, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let lengths = FrameLengths::parse(prefix);
    // The length of the payload is stated twice: before it, and as the lengths of its parts.
    let payload_bytes = u64::from(u32::from_be_bytes(*payload_bytes));
    let bytes_of_parts = (PREFIX_BYTES as u64 + lengths.header).checked_add(lengths.body);
    if lengths.header > MAX_HEADER_BYTES || bytes_of_parts != Some(payload_bytes) {
        return Err(Invalid);
    }
    let Some((control, body_start)) = rest.split_at_checked(lengths.header as usize) else { return Ok(None) };
    Ok(Some(Payload { control, body_start, body_bytes: lengths.body }))
}

/// Splits off a part that is preceded by its length. `None` if more bytes are needed. Fails if the part is empty, or if `may_begin` rejects
/// those of its bytes that are present.
fn split_length_prefixed_part(
    bytes: &[u8],
    may_begin: impl Fn(&[u8]) -> bool,
) -> Result<Option<MessagePart<'_>>, Invalid> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    let present = &rest[..rest.len().min(length)];
    let is_valid = present.is_empty() || may_begin(present);
    // No part is empty.
    if length == 0 || !is_valid {
        return Err(Invalid);
    }
    Ok(rest.split_at_checked(length).map(|(bytes, rest)| MessagePart { bytes, rest }))
}

/// Passes the ids in the path, headers and control header of a request to `emit`. The subject names the stream of the response, `context`
/// is the frontend's id of the request, and `rid` the engine's.
fn emit_ids(path: &[u8], headers: &Headers<'_>, control: &[u8], emit: &mut dyn FnMut(RequestIds<'_>)) {
    // A control message of another kind has no ids.
    let Ok(Control { id, connection_info }) = serde_json::from_slice(control) else { return };
    // JSON inside a JSON string. Its subject is optional.
    let info: Option<Info<'_>> = serde_json::from_str(&connection_info.info.0).ok();
    let subject = info.and_then(|info| info.subject);
    emit(RequestIds {
        subject: subject.as_ref().map(|subject| &*subject.0),
        context: &id.0,
        rid: if uses_trace_id_as_rid(path) { headers.trace_id() } else { None },
        has_readable_response: matches!(&*connection_info.transport.0, TCP | UNNAMED_TRANSPORT),
    });
}

/// Whether the release uses a request's trace id as its request id, judged by the path. Releases before 1.6 do, and their path is
/// `INSTANCE/ENDPOINT`; later ones also name the component in it.
fn uses_trace_id_as_rid(path: &[u8]) -> bool {
    memchr_iter(b'/', path).count() == 1
}

impl Headers<'_> {
    /// The trace id of the request. `None` if it has none, or a malformed one.
    fn trace_id(&self) -> Option<&str> {
        trace_id_of(&self.traceparent.as_ref()?.0)
    }
}

/// The trace id in a `traceparent`, which is its second part. `None` if it is malformed.
fn trace_id_of(traceparent: &str) -> Option<&str> {
    const TRACE_ID_DIGITS: usize = 32;
    let trace_id = traceparent.split('-').nth(1)?;
    let is_valid = trace_id.len() == TRACE_ID_DIGITS && trace_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid.then_some(trace_id)
}
