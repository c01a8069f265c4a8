//! Messages to the scheduler: which requests they name. Prompts and their text are measured by their headers and never read.

use std::ops::Range;
use std::sync::LazyLock;

use adapter::decode::Excerpt;
use memchr::memmem::Finder;
use trace::event::{DispatchKind, DispatchedRequest};

use super::identify::{MODULE, unknown_class};
use super::pickle::{PickleWalk, RequestField, WalkItem, count_ids_at, field_int_at, is_true_at, text_at};
use super::schema::{MessageForm, MessageLayout, layouts_of_class};
use super::{Limits, Undecoded, not_a_codec};
use crate::msgpack::type_byte::{
    ARRAY_16, ARRAY_32, BIN_8, BIN_32, EXT_8, EXT_32, FIXARRAY_0, FIXARRAY_2, FIXARRAY_15, FIXEXT_1, FIXEXT_16,
    FIXSTR_1,
};
use crate::msgpack::{Head, be_bytes, offset_after_values, payload_range, read_head, read_string, utf8};

/// The first opcode of every pickle.
const PICKLE_PROTO: u8 = 0x80;
/// Number of bytes before the end of a pickle in which its room is searched. The fields behind the room need less.
const ROOM_BYTES: usize = 4096;
/// The name of the room's field in a pickle. Text cannot contain it: its last byte, `MEMOIZE`, is not UTF-8 there.
static ROOM_NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"bootstrap_room\x94"));

/// Indices of the fields of a request in msgpack, the same in all releases, and the number of fields that are read.
const RID: u32 = 0;
const INPUT_IDS: u32 = 3;
const READ_FIELDS: u32 = 4;

/// Kinds of message classes to the scheduler.
enum RequestClass {
    Single,
    Batch,
    Abort,
    Control,
}

impl RequestClass {
    /// Kind of the class with this name. An error for a class that no release has.
    fn of_name(name: &[u8]) -> Result<Self, Undecoded> {
        match name {
            b"TokenizedGenerateReqInput" | b"TokenizedEmbeddingReqInput" => Ok(Self::Single),
            b"BatchTokenizedGenerateReqInput" | b"BatchTokenizedEmbeddingReqInput" => Ok(Self::Batch),
            b"AbortReq" => Ok(Self::Abort),
            name if !layouts_of_class(name).is_empty() => Ok(Self::Control),
            name => Err(unknown_class(name)),
        }
    }
}

/// Adds the requests that the message names to `requests`, and returns what the message does with them. If the capture has cut the message,
/// the requests before the cut are added. No other error adds any. See [`adapter::decode::ReadRequests`].
pub fn read_requests<'a>(
    message: Excerpt<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    let known_requests = requests.len();
    let read = match message.head {
        // A pickle begins with its protocol, and msgpack with an array.
        [PICKLE_PROTO, 2..=5, ..] => read_pickled_requests(message, requests),
        [FIXARRAY_0..=FIXARRAY_15 | ARRAY_16 | ARRAY_32, ..] => read_packed_requests(message, requests),
        head => Err(not_a_codec(head)),
    };
    let read = match read {
        Err(Undecoded::Truncated { .. }) if !message.is_whole() => Err(cut_by_capture()),
        read => read,
    };
    // The first requests of a message that was cut are right; those of an invalid one may be anything.
    if !matches!(read, Ok(_) | Err(Undecoded::CutByCapture { .. })) {
        requests.truncate(known_requests);
    }
    read
}

/// Error for a message of which too few bytes were captured.
fn cut_by_capture() -> Undecoded {
    Undecoded::CutByCapture { what: "all its requests" }
}

/// The request id with these bytes. Fails for `None`, for too many bytes, and for bytes that are not UTF-8.
fn validate_rid(rid: Option<&[u8]>) -> Result<&str, Undecoded> {
    let rid = match rid {
        Some(rid) if rid.len() <= Limits::default().text => utf8(rid),
        _ => None,
    };
    rid.ok_or(Undecoded::Malformed { at: 0, what: "a request id that is not text of at most 4,096 bytes" })
}

/// Reads the requests of a pickled message; of a batch, those before the end of the captured bytes.
fn read_pickled_requests<'a>(
    message: Excerpt<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    // Of a long message, only the first and the last bytes were captured.
    let last_bytes = if message.tail.is_empty() { message.head } else { message.tail };
    // A pickle ends with the opcode `STOP`.
    if last_bytes.last() != Some(&b'.') {
        return Err(Undecoded::Truncated { at: last_bytes.len() });
    }
    let mut walk = PickleWalk::new(message.head);
    match read_pickled_class(&mut walk)? {
        RequestClass::Single => {
            let mut request = read_pickled_request(message, &mut walk)?;
            // The room is behind the prompt, and so among the last fields.
            request.room = find_room(last_bytes);
            requests.push(request);
            Ok(DispatchKind::Requests)
        }
        RequestClass::Batch => {
            let read = read_pickled_batch(message.head, &mut walk, requests);
            // Further requests may be in the bytes that were not captured.
            if message.is_whole() { read } else { Err(cut_by_capture()) }
        }
        RequestClass::Abort => read_pickled_abort(message.head, &mut walk, requests),
        RequestClass::Control => Ok(DispatchKind::Control),
    }
}

/// Walks to the message's class and returns its kind. The class may be an argument of msgspec's `rebuild`, or the class of a message inside
/// a `MultiTokenizerWrapper`.
fn read_pickled_class(walk: &mut PickleWalk<'_>) -> Result<RequestClass, Undecoded> {
    let mut is_wrapped = false;
    while let Some(item) = walk.next_item()? {
        match item {
            WalkItem::Global { module: b"msgspec._utils", name: b"rebuild" } | WalkItem::Field { .. } => {}
            WalkItem::Global { module: MODULE, name } if name.starts_with(b"MultiTokenizerW") => is_wrapped = true,
            // Inside the wrapper, the module is a reference to the wrapper's, which the walk does not resolve.
            WalkItem::Global { module, name } if module == MODULE || is_wrapped => return RequestClass::of_name(name),
            WalkItem::Global { module, name } => return Err(unknown_class(&[module, b".", name].concat())),
        }
    }
    Err(Undecoded::Malformed { at: 0, what: "the pickle holds no message object" })
}

/// Reads the request's id and the length of its prompt. Their fields are among the first, so the walk ends there. Fails if the id was not
/// captured.
pub(crate) fn read_pickled_request<'a>(
    message: Excerpt<'a>,
    walk: &mut PickleWalk<'a>,
) -> Result<DispatchedRequest<'a>, Undecoded> {
    let head = message.head;
    let mut request = None;
    loop {
        let item = match walk.next_item() {
            Ok(Some(item)) => item,
            // The end of the pickle.
            Ok(None) => break,
            // The captured bytes end inside the prompt, so its length stays unknown.
            Err(Undecoded::Truncated { .. }) if !message.is_whole() => break,
            Err(why) => return Err(why),
        };
        let WalkItem::Field { field, value_at, .. } = item else { continue };
        match (field, &mut request) {
            (RequestField::Rid, None) => {
                request = Some(DispatchedRequest::new(validate_rid(text_at(head, value_at))?));
            }
            // The ids of the prompt follow the request's id, and end the walk.
            (RequestField::InputIds, Some(request)) => {
                request.prompt_tokens = count_ids_at(head, value_at, message.is_whole());
                break;
            }
            _ => {}
        }
    }
    request.ok_or(if message.is_whole() {
        Undecoded::Malformed { at: 0, what: "a request without id" }
    } else {
        Undecoded::CutByCapture { what: "the request's id" }
    })
}

/// The room in the last bytes of a pickled request: the number under which both servers of a pair know it. `None` if it has none.
fn find_room(last_bytes: &[u8]) -> Option<u64> {
    let last_bytes = last_bytes.get(last_bytes.len().saturating_sub(ROOM_BYTES)..)?;
    let name_len = ROOM_NAME.needle().len();
    // An earlier occurrence may be a key that a client chose.
    let room = ROOM_NAME.find_iter(last_bytes).filter_map(|at| field_int_at(last_bytes, at + name_len)).last();
    u64::try_from(room?).ok()
}

/// Reads the requests of a pickled batch: the id, the length of the prompt and the room of each. A request begins with the field `rid`.
/// Only fields at its depth, which is the number of open marks around them, belong to the request.
fn read_pickled_batch<'a>(
    message: &'a [u8],
    walk: &mut PickleWalk<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    let first_of_batch = requests.len();
    let mut first_request_depth: Option<usize> = None;
    let mut current_request_depth = 0;
    while let Some(item) = walk.next_item()? {
        let WalkItem::Field { field, value_at, depth, is_first } = item else { continue };
        // A client may also choose the key `rid` in a dict of its own, which is nested deeper than the fields of a request.
        let is_nested_deeper = first_request_depth.is_some_and(|known| depth > known);
        let begins_request = field == RequestField::Rid && is_first && !is_nested_deeper;
        if begins_request {
            requests.push(DispatchedRequest::new(validate_rid(text_at(message, value_at))?));
            first_request_depth = first_request_depth.or(Some(depth));
            current_request_depth = depth;
        }
        let is_field_of_request = depth == current_request_depth;
        if !is_field_of_request {
            continue;
        }
        if let Some(request) = requests[first_of_batch..].last_mut() {
            read_field_of_batch(request, field, message, value_at);
        }
    }
    Ok(DispatchKind::Requests)
}

/// Reads the prompt's length or the room of a request in a pickled batch, if this field has it. Ids precede the dicts that a client
/// chooses, so the first ones are right; the room follows them, so the last one is.
fn read_field_of_batch(request: &mut DispatchedRequest<'_>, field: RequestField, message: &[u8], value_at: usize) {
    match field {
        RequestField::InputIds if request.prompt_tokens.is_none() => {
            // A batch may be walked as a whole message, because the walk ends with an error at a list that was cut.
            let is_whole = true;
            request.prompt_tokens = count_ids_at(message, value_at, is_whole);
        }
        RequestField::BootstrapRoom => {
            let room = field_int_at(message, value_at).and_then(|room| u64::try_from(room).ok());
            // A value that is not a room does not replace one.
            request.room = room.or(request.room);
        }
        _ => {}
    }
}

/// Adds the request that a pickled `AbortReq` names. Adds none if the message aborts all.
fn read_pickled_abort<'a>(
    message: &'a [u8],
    walk: &mut PickleWalk<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    let mut rid = None;
    while let Some(item) = walk.next_item()? {
        match item {
            WalkItem::Field { field: RequestField::Rid, value_at, .. } if rid.is_none() => {
                rid = text_at(message, value_at);
            }
            WalkItem::Field { field: RequestField::AbortAll, value_at, .. } if is_true_at(message, value_at) => {
                return Ok(DispatchKind::Aborts);
            }
            _ => {}
        }
    }
    push_aborted_request(rid, requests)
}

/// Adds the request that an abort names. An abort without an id aborts all, so nothing is added.
fn push_aborted_request<'a>(
    rid: Option<&'a [u8]>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    if rid.is_some_and(|rid| !rid.is_empty()) {
        requests.push(DispatchedRequest::new(validate_rid(rid)?));
    }
    Ok(DispatchKind::Aborts)
}

/// Reads the requests of a msgpack message. If a batch was cut, reads those before the first value whose head was not captured.
fn read_packed_requests<'a>(
    message: Excerpt<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    let object = PackedObject::open(message, 0)?;
    match RequestClass::of_name(object.class)? {
        RequestClass::Single => {
            requests.push(object.read_request()?.request);
            Ok(DispatchKind::Requests)
        }
        RequestClass::Batch => {
            let read = read_packed_batch(&object, requests);
            // In a message that was cut, any error may come from the cut.
            if message.is_whole() { read } else { read.map_err(|_| cut_by_capture()) }
        }
        RequestClass::Abort => read_packed_abort(&object, requests),
        RequestClass::Control => Ok(DispatchKind::Control),
    }
}

/// Reads the requests of a msgpack batch and adds them to `requests`.
fn read_packed_batch<'a>(
    batch: &PackedObject<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    // The requests are the last field of a batch.
    let last_index = batch.fields.checked_sub(1).ok_or(batch.truncated())?;
    let list_at = batch.skip_fields(batch.first_field, last_index)?;
    let Some((Head::Array { len }, head_len)) = batch.head_at(list_at) else {
        return Err(batch.truncated());
    };
    let mut at = list_at + head_len;
    for _ in 0..len {
        let PackedRequest { request, end } = PackedObject::open(batch.message, at)?.read_request()?;
        requests.push(request);
        at = end;
    }
    Ok(DispatchKind::Requests)
}

/// Adds the request that a msgpack `AbortReq` names. Adds none if the message aborts all.
fn read_packed_abort<'a>(
    abort: &PackedObject<'a>,
    requests: &mut Vec<DispatchedRequest<'a>>,
) -> Result<DispatchKind, Undecoded> {
    let layout = abort.layout().ok_or(abort.unknown_layout())?;
    if let Some(index) = layout.columns.abort_all {
        let abort_all_at = abort.skip_fields(abort.first_field, index.into())?;
        let aborts_all = matches!(abort.head_at(abort_all_at), Some((Head::Bool(true), _)));
        if aborts_all {
            return Ok(DispatchKind::Aborts);
        }
    }
    push_aborted_request(abort.string_at(abort.first_field), requests)
}

/// A request in msgpack.
struct PackedRequest<'a> {
    request: DispatchedRequest<'a>,
    /// Offset after its object.
    end: u64,
}

/// An object in msgpack: an array of its class and its fields in order.
struct PackedObject<'a> {
    message: Excerpt<'a>,
    class: &'a [u8],
    fields: u32,
    /// Offset of the first field.
    first_field: u64,
}

impl<'a> PackedObject<'a> {
    /// Reads the class name and the number of fields of the object at `at`.
    fn open(message: Excerpt<'a>, at: u64) -> Result<Self, Undecoded> {
        let bytes = message.bytes_from(at).ok_or(Undecoded::Truncated { at: at as usize })?;
        // The array begins with the class name, so it is not empty.
        let Some((Head::Array { len: len @ 1.. }, name_at)) = read_head(bytes, 0) else {
            return Err(not_a_codec(bytes));
        };
        let (class, end) = read_string(bytes, name_at).ok_or_else(|| not_a_codec(bytes))?;
        Ok(Self { message, class, fields: len - 1, first_field: at + end as u64 })
    }

    /// Reads the object as a request. Prompt and room are missing if they were not captured.
    fn read_request(&self) -> Result<PackedRequest<'a>, Undecoded> {
        // Every known request has the id and the prompt.
        if self.fields < READ_FIELDS {
            return Err(self.unknown_layout());
        }
        let rid_at = self.skip_fields(self.first_field, RID)?;
        let mut request = DispatchedRequest::new(validate_rid(self.string_at(rid_at))?);
        match self.read_prompt_and_room_until_end(&mut request, rid_at) {
            Some(end) => Ok(PackedRequest { request, end }),
            None if self.message.is_whole() => Err(self.truncated()),
            // The fields after the id were not captured.
            None => Ok(PackedRequest { request, end: self.message.length }),
        }
    }

    /// The bytes of the string at `at`; `None` for another value, or if it was not captured.
    fn string_at(&self, at: u64) -> Option<&'a [u8]> {
        let (string, _) = read_string(self.message.bytes_from(at)?, 0)?;
        Some(string)
    }

    /// Reads the length of the prompt, and the room, of the request whose id is at `rid_at`. Goes from field to field by the differences
    /// between their indices. Returns the object's end; `None` if a field before it was not captured.
    fn read_prompt_and_room_until_end(&self, request: &mut DispatchedRequest<'a>, rid_at: u64) -> Option<u64> {
        let ids_at = self.skip_fields(rid_at, INPUT_IDS - RID).ok()?;
        request.prompt_tokens = count_packed_ids(self.message.bytes_from(ids_at)?);
        let room_index = self.layout().and_then(|layout| layout.columns.room).map(u32::from);
        // Without a room behind the ids, the rest of the fields is skipped.
        let Some(room_index) = room_index.filter(|index| *index > INPUT_IDS) else {
            return self.skip_fields(ids_at, self.fields - INPUT_IDS).ok();
        };
        let room_at = self.skip_fields(ids_at, room_index - INPUT_IDS).ok()?;
        let (room_head, _) = self.head_at(room_at)?;
        request.room = room_of_head(room_head);
        self.skip_fields(room_at, self.fields - room_index).ok()
    }

    /// The newest known layout of the class with this number of fields. `None` if there is none.
    fn layout(&self) -> Option<&'static MessageLayout> {
        let mut layouts = layouts_of_class(self.class).iter().rev().filter(|layout| layout.form == MessageForm::Struct);
        layouts.find(|layout| layout.has_fields(self.fields as usize))
    }

    /// Offset after `count` fields from `at` on.
    fn skip_fields(&self, at: u64, count: u32) -> Result<u64, Undecoded> {
        offset_after_values(self.message, at, count).ok_or(self.truncated())
    }

    /// Head of the value at `at`, and the length of the head. `None` if it was not captured.
    fn head_at(&self, at: u64) -> Option<(Head, u64)> {
        let (head, payload) = read_head(self.message.bytes_from(at)?, 0)?;
        Some((head, payload as u64))
    }

    /// Error for an object whose fields end before they should.
    fn truncated(&self) -> Undecoded {
        Undecoded::Truncated { at: self.first_field as usize }
    }

    /// Error for an object with a number of fields that no known release has.
    fn unknown_layout(&self) -> Undecoded {
        let class = layouts_of_class(self.class).last().map_or("", |layout| layout.class);
        Undecoded::Layout { class, fields: self.fields as usize, what: "another number of fields" }
    }
}

/// The room in a field with this head. `None` for nil and any other value.
fn room_of_head(head: Head) -> Option<u64> {
    match head {
        Head::Int(room) => u64::try_from(room).ok(),
        Head::Huge(room) => Some(room),
        _ => None,
    }
}

/// Number of ids in the value at the beginning of `data`: a list, an extension with an array, or the pair of a type code and bytes. `None`
/// for another value.
fn count_packed_ids(data: &[u8]) -> Option<u32> {
    /// Length of an id in an array of the type code `q`.
    const ID_BYTES: u64 = 8;
    let ids = match *data {
        [EXT_8..=EXT_32 | FIXEXT_1..=FIXEXT_16, ..] => range_of_ids_in_extension(data)?,
        // A pair of the string `q` and bytes. Only the length of the range counts, so it may be relative to the bytes' own head.
        [FIXARRAY_2, FIXSTR_1, b'q', BIN_8..=BIN_32, ..] => payload_range(&data[3..])?,
        _ => return count_ids_in_list(data),
    };
    u32::try_from(ids.end.checked_sub(ids.start)? / ID_BYTES).ok()
}

/// Where the ids are in the extension at the beginning of `data`. They follow a big-endian length of four bytes, and that many bytes of
/// metadata, the type code `q` as msgpack string. `None` for other metadata.
fn range_of_ids_in_extension(data: &[u8]) -> Option<Range<u64>> {
    const TYPE_CODE: &[u8] = b"\xa1q";
    const LENGTH_BYTES: usize = 4;
    let payload = payload_range(data)?;
    let start = payload.start as usize;
    let code_length = u32::from_be_bytes(be_bytes(data, start)?) as usize;
    let code_start = start + LENGTH_BYTES;
    let ids_start = code_start + TYPE_CODE.len();
    if code_length != TYPE_CODE.len() || data.get(code_start..ids_start)? != TYPE_CODE {
        return None;
    }
    Some(ids_start as u64..payload.end)
}

/// Number of ids in the list at the beginning of `data`. `None` for another value, and for a list of something else.
fn count_ids_in_list(data: &[u8]) -> Option<u32> {
    let (Head::Array { len }, first_item_at) = read_head(data, 0)? else { return None };
    if len == 0 {
        return Some(0);
    }
    // A pair of type code and bytes is an array, too. It may be cut, so the type of the first item decides.
    let (first_item, _) = read_head(data, first_item_at)?;
    matches!(first_item, Head::Int(_)).then_some(len)
}
