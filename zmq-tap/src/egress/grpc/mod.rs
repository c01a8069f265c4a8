//! Messages in a gRPC body: those of SGLang's native service are read, others are counted.

mod message;

use memchr::memmem;
use message::Message;
pub(super) use message::Output;

/// Size of a message's prefix: a flag for compression, and the length.
const PREFIX: usize = 5;
/// Number of messages of a response after which it counts as text if none of them shows that it has ids. Of the ids of a large vocabulary,
/// one in ten does not.
const MAX_UNDECIDED: u32 = 32;

/// An element found in a piece of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// Ids of a request.
    Output(Output<'a>),
    /// Text of a request.
    Text(Output<'a>),
    /// JSON of an `OpenAI` endpoint.
    Json { json: &'a [u8], whole: bool },
    /// A message longer than the limit was skipped.
    TooLong,
}

/// End of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Number of messages that were not read and may have output.
    pub(super) unread: u64,
    /// The server ended the response before its last message.
    pub(super) failed: bool,
}

/// Parser of one body.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    /// An incomplete message with its prefix.
    buffer: Vec<u8>,
    /// Number of bytes left of a message that is skipped.
    skip: u64,
    field: Field,
    /// Messages with their prefixes, while it is unknown whether they have ids.
    undecided: Vec<u8>,
    /// Number of messages in `undecided`.
    waiting: u32,
    /// Number of messages.
    count: u64,
    /// Number of unread messages that may have output.
    unread: u64,
    /// Output was found, so the response must have a last message.
    begun: bool,
    ended: bool,
}

/// Content of field 1 of a response's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    Unknown,
    Ids,
    Text,
}

/// Whether these bytes begin with a message whose first field is text or bytes. `frame`: it must fill a frame of this length. `None` if the
/// bytes are too few.
pub(super) fn begins(start: &[u8], frame: Option<u32>) -> Option<bool> {
    if start.first().is_some_and(|flag| *flag != 0) {
        return Some(false);
    }
    let (prefix, message) = start.split_first_chunk::<PREFIX>()?;
    let [_, size @ ..] = *prefix;
    let size = u32::from_be_bytes(size);
    let fits = frame.is_none_or(|frame| size.checked_add(PREFIX as u32) == Some(frame));
    if !fits || size == 0 {
        return Some(false);
    }
    message.first().map(|tag| matches!(tag, 0x0a | 0x12))
}

impl Messages {
    /// Starts the next body.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Parses a piece of the body. Messages longer than `limit` bytes are skipped.
    pub(super) fn feed(&mut self, mut piece: &[u8], limit: usize, emit: &mut impl FnMut(Found<'_>)) {
        while !piece.is_empty() {
            if self.skip > 0 {
                let skipped = piece.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                (self.skip, piece) = (self.skip - skipped as u64, &piece[skipped..]);
                continue;
            }
            // A message that is complete within one piece is not copied.
            if self.buffer.is_empty()
                && let Some((message, rest)) = split(piece)
                && message.len() <= PREFIX + limit
            {
                self.message(message, limit, emit);
                piece = rest;
                continue;
            }
            let needed = match length(&self.buffer) {
                Some(length) => PREFIX + length,
                None => PREFIX,
            };
            let (now, rest) = piece.split_at(piece.len().min(needed - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            piece = rest;
            match length(&self.buffer) {
                Some(length) if length > limit => {
                    self.skip = (length + PREFIX - self.buffer.len()) as u64;
                    self.buffer.clear();
                    self.count += 1;
                    emit(Found::TooLong);
                }
                Some(length) if self.buffer.len() == PREFIX + length => {
                    let buffer = std::mem::take(&mut self.buffer);
                    self.message(&buffer, limit, emit);
                    self.buffer = buffer;
                    self.buffer.clear();
                }
                _ => {}
            }
        }
    }

    /// Processes a message with its prefix.
    fn message(&mut self, message: &[u8], limit: usize, emit: &mut impl FnMut(Found<'_>)) {
        let first = self.count == 0;
        self.count += 1;
        let parsed = match message.split_at(PREFIX) {
            ([0, ..], message) => Message::parse(message),
            _ => Message::Other,
        };
        match parsed {
            Message::Output(mut output) => {
                (self.begun, self.ended) = (true, output.last);
                output.whole = first && output.last;
                self.output(output, message, limit, emit);
            }
            Message::Json { json, whole } => {
                // Results of other calls are JSON as well.
                if memmem::find(json, b"\"choices\"").is_some() {
                    (self.begun, self.ended) = (true, whole);
                }
                emit(Found::Json { json, whole });
            }
            Message::Empty { last } => self.ended |= last,
            Message::Other => self.unread += 1,
        }
    }

    fn output(&mut self, output: Output<'_>, message: &[u8], limit: usize, emit: &mut impl FnMut(Found<'_>)) {
        if self.field == Field::Unknown {
            let full = self.waiting == MAX_UNDECIDED || self.undecided.len() + message.len() > limit;
            if output.has_ids() {
                self.field = Field::Ids;
                self.emit_undecided(emit);
            } else if output.ids().is_none() || full {
                self.field = Field::Text;
                self.emit_undecided(emit);
            } else {
                self.undecided.extend_from_slice(message);
                self.waiting += 1;
                return;
            }
        }
        self.emit(output, emit);
    }

    /// Processes the end of the body.
    pub(super) fn end(&mut self, emit: &mut impl FnMut(Found<'_>)) -> End {
        if self.waiting > 0 {
            // Of text that has as many bytes as tokens, the same is reported as of complete ids.
            self.field = if self.is_complete() { Field::Ids } else { Field::Text };
            self.emit_undecided(emit);
        }
        // A single unknown message is the result of another call.
        let is_output = self.begun || self.count > 1;
        let end = End { unread: if is_output { self.unread } else { 0 }, failed: self.begun && !self.ended };
        self.clear();
        end
    }

    /// Whether the undecided messages, read as ids of one request, have as many as they claim, either new ones or all so far.
    fn is_complete(&self) -> bool {
        let (mut before, mut new, mut all) = (None, true, true);
        for output in self.undecided() {
            let ids = output.ids();
            let claimed = output.completion_tokens;
            let since = before.map_or(0, |before: Output<'_>| before.completion_tokens);
            new &= ids == claimed.checked_sub(since);
            all &= ids == Some(claimed);
            if before.is_some_and(|before| !before.is_of(&output)) {
                return false;
            }
            before = Some(output);
        }
        new || all
    }

    fn undecided(&self) -> impl Iterator<Item = Output<'_>> {
        let mut rest = &self.undecided[..];
        std::iter::from_fn(move || {
            let message;
            (message, rest) = split(rest)?;
            match Message::parse(&message[PREFIX..]) {
                Message::Output(output) => Some(output),
                _ => None,
            }
        })
    }

    fn emit_undecided(&mut self, emit: &mut impl FnMut(Found<'_>)) {
        let only = self.waiting == 1 && self.count == 1;
        for mut output in self.undecided() {
            output.whole = only && output.last;
            self.emit(output, emit);
        }
        (self.undecided, self.waiting) = (Vec::new(), 0);
    }

    fn emit(&self, output: Output<'_>, emit: &mut impl FnMut(Found<'_>)) {
        emit(match self.field {
            Field::Ids => Found::Output(output),
            _ => Found::Text(output),
        });
    }
}

/// Length of the message that begins here; `None` if its prefix is incomplete.
fn length(bytes: &[u8]) -> Option<usize> {
    let [_, length @ ..] = bytes.first_chunk::<PREFIX>()?;
    usize::try_from(u32::from_be_bytes(*length)).ok()
}

/// Splits off the first message with its prefix, if it is complete.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(PREFIX.checked_add(length(bytes)?)?)
}
