//! Dynamo's response plane: one TCP connection per request, from the worker to the frontend, in two-part frames (docs/internals/EGRESS.md,
//! "Dynamo"). Releases 0.8.1 to 1.6.1 write the same frames. Chunks are JSON up to 1.3, and msgpack from 1.4 on.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::fields::Text;
use super::{Limits, Unreadable};

/// Prefix length: big-endian lengths of header and body, and a checksum that is 0 in release builds.
const PREFIX: usize = 24;
/// Limit of a header in bytes; headers contain only a few names.
const LONGEST_HEADER: u64 = 64 << 10;

/// An element found in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// Name of the connection: a fresh UUID, not the request id.
    Subject(&'a str),
    /// One output of the engine.
    Chunk(Chunk<'a>),
    /// A chunk that was not read: too long, or of another kind.
    Undecoded,
    /// The worker's final marker: everything was written.
    Ended,
    /// The generator failed. Nothing more follows, and the client did not cause it.
    Failed,
    /// The bytes are not response-plane frames.
    Broken(Unreadable),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk<'a> {
    /// Index of the choice it belongs to. Releases without parallel sampling do not send it.
    pub(super) index: u32,
    /// Number of token ids; `None` if the chunk carries text.
    pub(super) tokens: Option<u32>,
    /// `completion_usage.completion_tokens`, present in the last chunk.
    pub(super) completion_tokens: Option<u32>,
    pub(super) finished: bool,
    /// The token ids, if any.
    pub(super) ids: &'a [u32],
}

/// Frame parser of one connection.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    limits: Limits,
    /// The incomplete frame.
    partial: Vec<u8>,
    /// Remaining bytes of a frame beyond the limit.
    skip: u64,
    broken: bool,
    /// The final marker has arrived.
    ended: bool,
}

#[derive(Deserialize)]
struct Handshake<'a> {
    #[serde(borrow)]
    subject: Text<'a>,
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
    event: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(default)]
    index: Option<u32>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
    #[serde(default)]
    completion_usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    completion_tokens: Option<u32>,
}

/// Whether a connection with these first bytes is a response plane. `None` if more bytes are needed.
pub(super) fn begins(bytes: &[u8]) -> Option<bool> {
    const START: &[u8] = br#"{"subject":"#;
    let known = bytes.len().min(PREFIX);
    // A header of less than 64 KiB, no body, checksum 0.
    let plain = |at: usize| matches!(at, 6 | 7) || bytes[at] == 0;
    if !(0..known).all(plain) {
        return Some(false);
    }
    let header = &bytes[known..];
    let same = header.iter().zip(START).all(|(a, b)| a == b);
    if !same {
        return Some(false);
    }
    (header.len() >= START.len()).then_some(true)
}

impl Frames {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, partial: Vec::new(), skip: 0, broken: false, ended: false }
    }

    /// Parses the next bytes of the connection.
    pub(super) fn feed(&mut self, mut input: &[u8], mut emit: impl FnMut(Item<'_>)) {
        while !input.is_empty() && !self.broken && !self.ended {
            if self.skip > 0 {
                let skip = input.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                self.skip -= skip as u64;
                input = &input[skip..];
                continue;
            }
            if self.partial.is_empty() {
                // A complete frame is parsed in place.
                match self.frame(input, &mut emit) {
                    Received::Frame(used) => input = &input[used..],
                    Received::More(_) => {
                        self.partial.extend_from_slice(input);
                        return;
                    }
                    Received::Nothing => return,
                }
                continue;
            }
            let partial = std::mem::take(&mut self.partial);
            let more = match self.frame(&partial, &mut emit) {
                Received::More(more) => more,
                // The frame was incomplete before, so a complete one ends exactly here.
                Received::Frame(_) | Received::Nothing => return,
            };
            self.partial = partial;
            let take = input.len().min(more);
            self.partial.extend_from_slice(&input[..take]);
            input = &input[take..];
            if take == more {
                let whole = std::mem::take(&mut self.partial);
                match self.frame(&whole, &mut emit) {
                    Received::Frame(_) | Received::Nothing => {}
                    Received::More(_) => self.partial = whole,
                }
            }
        }
    }

    /// Parses the frame at the start of `bytes`.
    fn frame(&mut self, bytes: &[u8], emit: &mut impl FnMut(Item<'_>)) -> Received {
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else {
            return Received::More(PREFIX - bytes.len());
        };
        let number = |at: usize| prefix[at..at + 8].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let (header, body) = (number(0), number(8));
        if header > LONGEST_HEADER || body > u64::from(u32::MAX) {
            self.broken = true;
            emit(Item::Broken(Unreadable::Frames));
            return Received::Nothing;
        }
        let length = PREFIX + (header + body) as usize;
        if body > self.limits.event_bytes as u64 {
            self.skip = (length - bytes.len().min(length)) as u64;
            emit(Item::Undecoded);
            return Received::Frame(bytes.len().min(length));
        }
        if bytes.len() < length {
            return Received::More(length - bytes.len());
        }
        let (header, body) = bytes[PREFIX..length].split_at(header as usize);
        if let Ok(Handshake { subject }) = serde_json::from_slice(header) {
            emit(Item::Subject(&subject.0));
        }
        if !body.is_empty() {
            self.chunk(body, emit);
        }
        Received::Frame(length)
    }

    fn chunk(&mut self, body: &[u8], emit: &mut impl FnMut(Item<'_>)) {
        let outer: Option<Outer<'_>> = match body.first() {
            Some(b'{') => serde_json::from_slice(body).ok(),
            _ => rmp_serde::from_slice(body).ok(),
        };
        match outer {
            Some(Outer { complete_final: true, .. }) => {
                self.ended = true;
                emit(Item::Ended);
            }
            Some(Outer { data: Some(Annotated { data: Some(output), .. }), .. }) => emit(Item::Chunk(Chunk {
                index: output.index.unwrap_or(0),
                tokens: if let Some(ids) = &output.token_ids {
                    Some(ids.len() as u32)
                } else {
                    // The end of a cancelled request.
                    let has_text = output.text.is_some_and(|text| !text.0.is_empty());
                    (output.finish_reason.is_some() && !has_text).then_some(0)
                },
                completion_tokens: output.completion_usage.and_then(|usage| usage.completion_tokens),
                finished: output.finish_reason.is_some(),
                ids: output.token_ids.as_deref().unwrap_or_default(),
            })),
            // An error of the generator, or a comment between chunks. Neither has tokens.
            Some(Outer { data: Some(Annotated { event: Some(event), .. }), .. }) => {
                if event.0 == "error" {
                    emit(Item::Failed);
                }
            }
            Some(_) | None => emit(Item::Undecoded),
        }
    }
}

enum Received {
    /// Number of bytes that belong to a frame, or to a skipped frame.
    Frame(usize),
    /// Minimum number of missing bytes.
    More(usize),
    /// The connection cannot be read.
    Nothing,
}
