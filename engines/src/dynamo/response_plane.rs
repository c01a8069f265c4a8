//! Dynamo's response plane: one TCP connection per request, from the worker to the frontend, in two-part frames (docs/internals/EGRESS.md,
//! "Dynamo"). Releases 0.8.1 to 1.6.1 write the same frames. Chunks are JSON up to 1.3, and msgpack from 1.4 on.

use std::borrow::Cow;

use responses::{
    BorrowedText, Completion, ElementSink, Framed, Limits, NextMessage, ParseResponses, Recognition, ResponseElement,
    ResponseForm, StreamProtocol, Unreadable,
};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Dynamo's response plane.
pub(crate) const RESPONSE_PLANE: StreamProtocol =
    StreamProtocol { begins: recognise_response_plane, parser: |limits| Box::new(ResponseFrames::new(limits)) };

/// Prefix length: big-endian lengths of header and body, and a checksum that is 0 in release builds.
pub(super) const PREFIX_BYTES: usize = 24;
/// Limit of a header in bytes; headers contain only a few names.
const MAX_HEADER_BYTES: u64 = 64 << 10;

/// Frame parser of one connection.
#[derive(Debug)]
struct ResponseFrames {
    limits: Limits,
    framed: Framed<PREFIX_BYTES>,
    /// Name of the connection.
    subject: String,
    /// The final marker has arrived.
    has_ended: bool,
}

#[derive(Deserialize)]
struct Handshake<'a> {
    #[serde(borrow)]
    subject: BorrowedText<'a>,
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow, default)]
    data: Option<Annotated<'a>>,
    #[serde(default)]
    complete_final: bool,
}

#[derive(Deserialize)]
struct Annotated<'a> {
    #[serde(borrow, default)]
    data: Option<Output<'a>>,
    #[serde(borrow, default)]
    event: Option<BorrowedText<'a>>,
}

#[derive(Deserialize)]
struct Output<'a> {
    /// Index of the choice it belongs to. Releases without parallel sampling do not send it.
    #[serde(default)]
    index: Option<u32>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(borrow, default)]
    text: Option<BorrowedText<'a>>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
    /// In the last chunk.
    #[serde(default)]
    completion_usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    completion_tokens: Option<u32>,
}

/// Whether a connection with these first bytes is a response plane. Bytes that are only a part of the expected beginning are too few to
/// tell.
fn recognise_response_plane(bytes: &[u8]) -> Recognition {
    const START: &[u8] = br#"{"subject":"#;
    let (prefix, header) = bytes.split_at(bytes.len().min(PREFIX_BYTES));
    // A header of less than 64 KiB (its length is in the bytes 6 and 7), no body, checksum 0.
    for (index, byte) in prefix.iter().enumerate() {
        let is_of_header_length = matches!(index, 6 | 7);
        if *byte != 0 && !is_of_header_length {
            return Recognition::No;
        }
    }
    Recognition::begins_with(header, START)
}

/// Length of the frame after this prefix. Fails if a length is too large for a frame.
fn frame_bytes_after_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<u64, Unreadable> {
    let FrameLengths { header, body } = FrameLengths::parse(prefix);
    let is_valid = header <= MAX_HEADER_BYTES && u32::try_from(body).is_ok();
    if is_valid { Ok(header + body) } else { Err(Unreadable::Frames) }
}

impl ParseResponses for ResponseFrames {
    /// Passes the elements of all frames that end in `input` to `elements`. Ignores everything after the worker's final marker.
    fn parse(&mut self, mut input: &[u8], elements: &mut ElementSink<'_>) -> Result<(), Unreadable> {
        // Taken out of `self`, which `parse_frame` needs while a frame borrows from `framed`.
        let mut framed = std::mem::take(&mut self.framed);
        while !self.has_ended {
            // After an error nothing more is parsed, so `framed` is not put back.
            match framed.next_message(&mut input, self.limits.event_bytes, frame_bytes_after_prefix)? {
                NextMessage::Incomplete => break,
                NextMessage::Complete { prefix, message } => self.parse_frame(prefix, message, elements),
                NextMessage::Skipped => elements.push(ResponseElement::Undecoded),
            }
        }
        self.framed = framed;
        Ok(())
    }
}

impl ResponseFrames {
    fn new(limits: Limits) -> Self {
        Self { limits, framed: Framed::default(), subject: String::new(), has_ended: false }
    }

    /// Parses a frame, which is a header and a chunk of the response, and passes what it holds to `elements`. The header of the first frame
    /// names the stream.
    fn parse_frame(&mut self, prefix: &[u8; PREFIX_BYTES], frame: &[u8], elements: &mut ElementSink<'_>) {
        let header_bytes = FrameLengths::parse(prefix).header;
        let (header, body) = frame.split_at(header_bytes as usize);
        if let Ok(Handshake { subject }) = serde_json::from_slice(header) {
            self.subject = subject.0.into_owned();
            elements.push(ResponseElement::StreamNamed(&self.subject));
        }
        if !body.is_empty() {
            self.parse_chunk(body, elements);
        }
    }

    /// Parses a chunk of a response, and passes it to `elements`: output, an error, or the end. A comment is ignored.
    fn parse_chunk(&mut self, body: &[u8], elements: &mut ElementSink<'_>) {
        let Some(outer) = Outer::decode(body) else { return elements.push(ResponseElement::Undecoded) };
        let is_final_marker = outer.complete_final;
        if is_final_marker {
            self.has_ended = true;
            return elements.push(ResponseElement::Ended);
        }
        match outer.data {
            Some(Annotated { data: Some(output), .. }) => {
                elements.push(ResponseElement::Completion(output.to_completion(&self.subject)));
            }
            Some(Annotated { event: Some(event), .. }) => {
                // Other events are comments between chunks. None has tokens.
                if event.0 == "error" {
                    elements.push(ResponseElement::Failed);
                }
            }
            _ => elements.push(ResponseElement::Undecoded),
        }
    }
}

impl<'a> Outer<'a> {
    /// Decodes a chunk, whose codec depends on the worker's release: JSON up to 1.3, msgpack from 1.4 on. `None` if it is malformed.
    #[inline]
    fn decode(body: &'a [u8]) -> Option<Self> {
        match body.first() {
            Some(b'{') => serde_json::from_slice(body).ok(),
            _ => rmp_serde::from_slice(body).ok(),
        }
    }
}

/// Lengths in a frame's prefix, in bytes.
pub(super) struct FrameLengths {
    pub(super) header: u64,
    pub(super) body: u64,
}

impl FrameLengths {
    /// Lengths of header and body, in the big-endian prefix of a frame.
    pub(super) fn parse(prefix: &[u8; PREFIX_BYTES]) -> Self {
        // A prefix is always three numbers, of which the last is a checksum, so this never returns early.
        let [header, body, _checksum] = *prefix.as_chunks::<8>().0 else { return Self { header: 0, body: 0 } };
        Self { header: u64::from_be_bytes(header), body: u64::from_be_bytes(body) }
    }
}

impl Output<'_> {
    /// The output as a completion of the stream `subject`. Its number of tokens is `None` if the output does not show it.
    fn to_completion<'a>(&'a self, subject: &'a str) -> Completion<'a> {
        // The choices of a request share a stream and are counted separately.
        let rid = match self.index.unwrap_or(0) {
            0 => Cow::Borrowed(subject),
            index => Cow::Owned(format!("{subject}#{index}")),
        };
        Completion {
            rid,
            form: ResponseForm::WorkerStream,
            tokens: self.token_count(),
            stated_tokens: self.completion_usage.as_ref().and_then(|usage| usage.completion_tokens),
            finished: self.finish_reason.is_some(),
            ids: self.token_ids.as_deref().unwrap_or_default(),
            ..Completion::default()
        }
    }

    /// Number of tokens in the output. `None` if it has text without ids, or neither of them before the end.
    #[inline]
    fn token_count(&self) -> Option<u32> {
        if let Some(ids) = &self.token_ids {
            return Some(ids.len() as u32);
        }
        let has_text = self.text.as_ref().is_some_and(|text| !text.0.is_empty());
        // The end of a cancelled request has neither ids nor text, so no tokens.
        let is_end_without_output = self.finish_reason.is_some() && !has_text;
        is_end_without_output.then_some(0)
    }
}
