//! Messages in a gRPC body: those of SGLang's native service are read, others are counted.

mod message;

use memchr::memmem;

use super::buffer::BoundedBuffer;
use super::event::{ElementSink, ResponseElement, parse_body, parse_event};
use super::framed::{Framed, NextMessage};
use super::{Recognition, Unreadable};
use message::{GrpcMessage, GrpcOutput};

/// Size of a message's prefix: a flag for compression, and the length.
const PREFIX: usize = 5;
/// Number of messages of a response after which it counts as text if none of them shows that it has ids. Of the ids of a large vocabulary,
/// one in ten does not.
const MAX_UNDECIDED: u32 = 32;

/// Parser of one body.
#[derive(Debug, Default)]
pub(super) struct GrpcParser {
    framed: Framed<PREFIX>,
    first_field: FirstField,
    /// Messages with their prefixes, while it is unknown whether they have ids.
    undecided: BoundedBuffer,
    /// Number of messages in `undecided`.
    undecided_count: u32,
    /// Number of messages of the response so far.
    message_count: u64,
    /// Number of unread messages that may have output.
    unread_messages: u64,
    /// Output was found, so the response must have a last message.
    has_output: bool,
    /// Whether its last message was found.
    has_last_message: bool,
}

/// Content of field 1 of a response's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FirstField {
    #[default]
    Unknown,
    Ids,
    Text,
}

/// Whether these bytes begin with a gRPC message whose first field is text or bytes. A prefix with a flag for compression and the length
/// comes before the message. `frame_length`: length of the HTTP/2 frame that the message must fill; `None` for any.
pub(super) fn begins_with_message(start: &[u8], frame_length: Option<u32>) -> Recognition {
    // Compressed messages are not read.
    let is_compressed = start.first().is_some_and(|flag| *flag != 0);
    if is_compressed {
        return Recognition::No;
    }
    let Some((prefix, message)) = start.split_first_chunk::<PREFIX>() else {
        return Recognition::TooShort;
    };
    let message_bytes = message_length(*prefix);
    let fills_frame = frame_length.is_none_or(|length| message_bytes.checked_add(PREFIX as u32) == Some(length));
    // A message of no bytes has no field.
    if !fills_frame || message_bytes == 0 {
        return Recognition::No;
    }
    match message.first() {
        // Tags of the fields 1 and 2, with the wire type of text and bytes.
        Some(0x0a | 0x12) => Recognition::Yes,
        Some(_) => Recognition::No,
        None => Recognition::TooShort,
    }
}

impl GrpcParser {
    /// Parses a piece of the body. Messages longer than `limit` bytes are skipped.
    pub(super) fn parse(&mut self, mut piece: &[u8], limit: usize, elements: &mut ElementSink<'_>) {
        // Taken out of `self`, because the messages borrow from it while `self` changes.
        let mut framed = std::mem::take(&mut self.framed);
        // Any length is valid, so this never fails.
        while let Ok(next) = framed.next_message(&mut piece, limit, |prefix| Ok(message_length(*prefix).into())) {
            match next {
                NextMessage::Incomplete => break,
                NextMessage::Complete { prefix, message } => {
                    self.message_count += 1;
                    self.parse_message(*prefix, message, limit, elements);
                }
                NextMessage::Skipped => {
                    self.message_count += 1;
                    elements.push(ResponseElement::Undecoded);
                }
            }
        }
        self.framed = framed;
    }

    /// Parses a complete gRPC message of the response, and emits its elements. `prefix`: the bytes before it, which are a flag for
    /// compression and its length. `limit`: number of bytes of messages that may be kept.
    fn parse_message(&mut self, prefix: [u8; PREFIX], message: &[u8], limit: usize, elements: &mut ElementSink<'_>) {
        let [compression_flag, ..] = prefix;
        let is_compressed = compression_flag != 0;
        // Compressed messages are not read.
        let parsed = if is_compressed { GrpcMessage::Other } else { GrpcMessage::parse(message) };
        match parsed {
            GrpcMessage::Output(mut output) => {
                self.has_output = true;
                self.has_last_message = output.is_last;
                output.is_whole_body = self.message_count == 1 && output.is_last;
                // Whether the messages of this response have ids or text. Until that is decided, they are kept.
                let is_decided = self.decide_first_field_or_keep_message(&output, prefix, message, limit, elements);
                if is_decided {
                    self.emit_output(output, elements);
                }
            }
            GrpcMessage::Json { json, is_whole_body } => {
                // Results of other calls are JSON as well.
                if memmem::find(json, b"\"choices\"").is_some() {
                    self.has_output = true;
                    self.has_last_message = is_whole_body;
                }
                emit_json(json, is_whole_body, elements);
            }
            GrpcMessage::Empty { is_last } => self.has_last_message |= is_last,
            GrpcMessage::Other => self.unread_messages += 1,
        }
    }

    /// Decides whether the messages of the response have ids or text in their first field, which only their bytes can show. While that is
    /// unknown, keeps this message, with its prefix, and returns false. Once it is decided, emits the kept messages and returns true.
    /// `limit`: number of bytes that may be kept.
    fn decide_first_field_or_keep_message(
        &mut self,
        output: &GrpcOutput<'_>,
        prefix: [u8; PREFIX],
        message: &[u8],
        limit: usize,
        elements: &mut ElementSink<'_>,
    ) -> bool {
        if self.first_field != FirstField::Unknown {
            return true;
        }
        // Ids below 128 are also valid text, and ASCII text is also a valid list of ids.
        let may_be_either = !output.must_be_ids() && output.count_ids().is_some();
        let is_kept = may_be_either && self.keep_undecided_message(prefix, message, limit);
        if is_kept {
            return false;
        }
        // If either is possible and no room is left, text is more likely: most ids are not valid text.
        self.first_field = if output.must_be_ids() { FirstField::Ids } else { FirstField::Text };
        self.emit_undecided(elements);
        true
    }

    /// Keeps a message, with its prefix, until its first field is decided. Returns false if there is no room, so that it is decided now.
    #[inline]
    fn keep_undecided_message(&mut self, prefix: [u8; PREFIX], message: &[u8], limit: usize) -> bool {
        let exceeds_limit = self.undecided.len() + PREFIX + message.len() > limit;
        if self.undecided_count == MAX_UNDECIDED || exceeds_limit {
            return false;
        }
        let kept = self.undecided.extend(&[&prefix, message].concat());
        if kept.is_ok() {
            self.undecided_count += 1;
        }
        kept.is_ok()
    }

    /// Ends the response: emits the messages that are still undecided, and reports unread messages and a missing end.
    pub(super) fn end_body(mut self, elements: &mut ElementSink<'_>) {
        if self.undecided_count > 0 {
            // Text with as many bytes as tokens would be taken for ids, but then the reported counts are the same.
            self.first_field = if self.undecided_match_stated_counts() { FirstField::Ids } else { FirstField::Text };
            self.emit_undecided(elements);
        }
        // A single unknown message is the result of another call, so nothing of interest was missed.
        if self.unread_messages > 0 && (self.has_output || self.message_count > 1) {
            elements.push(ResponseElement::Unreadable(Unreadable::Grpc));
            elements.push(ResponseElement::Unread(self.unread_messages));
        }
        // The server ended the response before its last message.
        if self.has_output && !self.has_last_message {
            elements.push(ResponseElement::CutShort);
        }
    }

    /// Whether the undecided messages are of one request, and list as many ids as their stated token counts say. A server lists either the
    /// new ids in each message, or all ids so far.
    fn undecided_match_stated_counts(&self) -> bool {
        let mut previous: Option<GrpcOutput<'_>> = None;
        let mut each_lists_new_ids = true;
        let mut each_lists_all_ids = true;
        for output in self.undecided_outputs() {
            if previous.is_some_and(|previous| !previous.has_same_request(&output)) {
                return false;
            }
            let listed_ids = output.count_ids();
            // The count that a message states includes the tokens of the messages before.
            let tokens_so_far = output.completion_tokens;
            let tokens_before = previous.map_or(0, |previous| previous.completion_tokens);
            each_lists_new_ids &= listed_ids == tokens_so_far.checked_sub(tokens_before);
            each_lists_all_ids &= listed_ids == Some(tokens_so_far);
            previous = Some(output);
        }
        each_lists_new_ids || each_lists_all_ids
    }

    /// The messages that wait for the decision whether their first field holds text or ids.
    fn undecided_outputs(&self) -> impl Iterator<Item = GrpcOutput<'_>> {
        let mut rest = &self.undecided[..];
        // Each call removes the next message from `rest`.
        std::iter::from_fn(move || {
            let (prefix, behind_prefix) = rest.split_first_chunk()?;
            let (message, behind_message) = behind_prefix.split_at_checked(message_length(*prefix) as usize)?;
            rest = behind_message;
            // Only messages that parse as outputs are kept.
            match GrpcMessage::parse(message) {
                GrpcMessage::Output(output) => Some(output),
                _ => None,
            }
        })
    }

    /// Emits the waiting messages, once their first field is decided.
    fn emit_undecided(&mut self, elements: &mut ElementSink<'_>) {
        let is_only_message = self.undecided_count == 1 && self.message_count == 1;
        for mut output in self.undecided_outputs() {
            output.is_whole_body = is_only_message && output.is_last;
            self.emit_output(output, elements);
        }
        self.undecided = BoundedBuffer::default();
        self.undecided_count = 0;
    }

    /// Emits a message as a completion.
    fn emit_output(&self, output: GrpcOutput<'_>, elements: &mut ElementSink<'_>) {
        let has_text = self.first_field != FirstField::Ids;
        match output.as_completion(has_text) {
            Some(completion) => elements.push(ResponseElement::Completion(completion)),
            None => elements.push(ResponseElement::Undecoded),
        }
    }
}

/// Emits the elements of JSON that is a whole body, or else one event.
#[inline]
fn emit_json(json: &[u8], is_whole_body: bool, elements: &mut ElementSink<'_>) {
    if is_whole_body {
        parse_body(json, elements);
    } else if let Some(element) = parse_event(json) {
        elements.push(element);
    }
}

/// Length of the message behind this prefix.
fn message_length([_, length @ ..]: [u8; PREFIX]) -> u32 {
    u32::from_be_bytes(length)
}
