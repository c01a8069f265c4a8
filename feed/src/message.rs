//! Messages of a feed: a topic frame, then a msgpack map with common fields and a body.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use trace::record::{Anchor, Payload};
use trace::report::ReportInput;
use trace::{Analysis, Config};

use crate::cost;
use crate::image::{Image, ImageError};

/// Longest message with a block in bytes. Sources close a block after 1 MiB.
const MAX_BLOCK: usize = 16 << 20;
/// Largest estimate of the memory that a decoded message takes, without a state and blocks.
const MAX_DECODED: usize = 16 << 20;

/// Name and version of the message format.
pub const SCHEMA: &str = "tokengap.feed/1";

/// Topics to subscribe to: the first frame of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The state, then every record: all that a watcher needs.
    Stream,
    /// The current report, once a second.
    Report,
    /// Events with named fields.
    Events,
}

impl Topic {
    pub(crate) const ALL: [Self; 3] = [Self::Stream, Self::Report, Self::Events];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Report => "report",
            Self::Events => "events",
        }
    }
}

/// Fields common to all messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Kind of the body.
    pub kind: Kind,
    /// Name of the source (`--feed-name`).
    pub pod: String,
    /// Identifier of the run, unique to it.
    pub instance: String,
    /// Message number within the topic, from 1; a jump means dropped messages. A `start` repeats the previous number.
    pub seq: u64,
    /// Monotonic clock of the source at sending, in nanoseconds.
    pub mono_ns: u64,
    /// Wall clock of the source at sending, in nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

impl Head {
    /// Both clocks as an anchor.
    pub fn anchor(&self) -> Anchor {
        Anchor { mono: trace::MonoNs(self.mono_ns), wall_ns: self.wall_ns }
    }
}

/// Kinds of body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The state that the following blocks continue.
    Start,
    /// A block of records.
    Block,
    /// Report fields that do not derive from records, once a second.
    About,
    /// End of the run, with the report fields that do not derive from records.
    End,
    /// The report.
    Report,
    /// A list of events.
    Events,
}

/// First message of a stream, also sent after a gap.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Start {
    /// Version of the source. A state of another version is rejected.
    pub tokengap: String,
    /// Name of the source in the report.
    pub source: String,
    /// Limits of the source's analysis.
    pub config: Config,
    /// Whether blocks contain token ids.
    pub payload: Payload,
    /// Number of the first record that follows.
    pub record: u64,
    /// Same content as the body of `about`.
    pub closing: ReportInput,
    /// The analysis as msgpack compressed with zstd; absent if it is too large.
    pub image: Option<ByteBuf>,
    /// The screen's history, in the same encoding.
    pub history: Option<ByteBuf>,
}

/// Body of [`Kind::Block`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Block {
    pub(crate) block: ByteBuf,
}

/// Body of [`Kind::About`] and [`Kind::End`].
#[derive(Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) closing: ReportInput,
}

/// A decoded body.
#[derive(Debug)]
pub enum Body {
    /// The state, with the analysis decoded from its image or the reason why there is none.
    Start(Box<Start>, Result<Box<Analysis>, ImageError>),
    /// A block of records, for [`trace::record::BlockReader`].
    Block(Bytes),
    /// Report fields that do not derive from records.
    About(Box<ReportInput>),
    /// The same fields at the end of the run.
    End(Box<ReportInput>),
}

/// A message of the stream.
#[derive(Debug)]
pub struct Message {
    /// Common fields.
    pub head: Head,
    /// Decoded body.
    pub body: Body,
}

/// Reasons why bytes are not a message of the stream.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The message has another schema version.
    #[error("the source speaks {0}, this tokengap speaks {SCHEMA}: use the source's version")]
    Schema(String),
    /// A block of this many bytes.
    #[error("a block of {0} bytes exceeds the limit of {MAX_BLOCK}")]
    Block(usize),
    /// The message is not msgpack, has other fields, or would take too much memory.
    #[error("cannot decode a message: {0}")]
    Read(#[from] rmp_serde::decode::Error),
    /// The kind of message does not belong to a stream.
    #[error("unexpected message of kind {0:?} in the stream")]
    Kind(Kind),
}

/// Encodes a message from `head` and a body that is already msgpack.
pub(crate) fn encode(head: &Head, body: &[u8]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    const FIELDS: u8 = 7;
    const MAP: u8 = 0x80;
    let mut bytes = rmp_serde::to_vec_named(head)?;
    debug_assert_eq!(bytes.first(), Some(&(MAP | FIELDS)));
    // The map has one more field: the body, appended unchanged so that no serializer copies it.
    bytes[0] = MAP | (FIELDS + 1);
    bytes.extend_from_slice(b"\xa4body");
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Body of `count` concatenated events, each already msgpack.
pub(crate) fn events_body(count: u32, events: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x81\xa6events\xdd".to_vec();
    bytes.extend_from_slice(&count.to_be_bytes());
    bytes.extend_from_slice(events);
    bytes
}

#[derive(Deserialize)]
struct Schema {
    schema: String,
}

#[derive(Deserialize)]
struct With<T> {
    body: T,
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    Ok(rmp_serde::from_slice::<With<T>>(bytes)?.body)
}

impl Head {
    /// Decodes the common fields of the second frame of a stream message.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let Schema { schema } = rmp_serde::from_slice(bytes)?;
        if schema != SCHEMA {
            return Err(MessageError::Schema(schema.chars().take(80).collect()));
        }
        Ok(rmp_serde::from_slice(bytes)?)
    }
}

impl Message {
    /// Decodes the second frame of a stream message.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        Self::of(Head::read(bytes)?, bytes)
    }

    /// Decodes the message with these common fields.
    pub(crate) fn of(head: Head, bytes: &[u8]) -> Result<Self, MessageError> {
        cost::check(bytes, MAX_DECODED)?;
        let body = match head.kind {
            Kind::Block if bytes.len() > MAX_BLOCK => return Err(MessageError::Block(bytes.len())),
            Kind::Start => {
                let start: Box<Start> = read(bytes)?;
                let analysis = match &start.image {
                    Some(image) => Image::analysis(image).map(Box::new),
                    None => Err(ImageError::None),
                };
                Body::Start(start, analysis)
            }
            Kind::Block => Body::Block(read::<Block>(bytes)?.block.into_vec().into()),
            Kind::About => Body::About(Box::new(read::<About>(bytes)?.closing)),
            Kind::End => Body::End(Box::new(read::<About>(bytes)?.closing)),
            kind => return Err(MessageError::Kind(kind)),
        };
        Ok(Self { head, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzzing::head;

    fn message(kind: Kind, body: &impl Serialize) -> Vec<u8> {
        encode(&head(kind), &rmp_serde::to_vec_named(body).unwrap()).unwrap()
    }

    fn block(block: &[u8]) -> Block {
        Block { block: ByteBuf::from(block) }
    }

    #[test]
    fn messages_round_trip() {
        let start = Start {
            tokengap: "0.1.0".into(),
            source: "tap".into(),
            record: 70,
            image: Some(ByteBuf::from(Image::of(&Analysis::new(Config::default())).unwrap().pack().unwrap())),
            ..Start::default()
        };
        let bytes = message(Kind::Start, &start);
        let read = Message::read(&bytes).unwrap();
        assert_eq!(read.head, head(Kind::Start));
        let Body::Start(got, Ok(analysis)) = read.body else { panic!("{read:?}") };
        assert_eq!((got.record, got.source.as_str(), got.config), (70, "tap", Config::default()));
        assert_eq!(analysis.ledger().totals().events, 0);
        let bytes = message(Kind::Block, &block(b"abc"));
        assert!(matches!(Message::read(&bytes).unwrap().body, Body::Block(b) if &b[..] == b"abc"));
        let bytes = message(Kind::End, &About { closing: ReportInput::default() });
        assert!(matches!(Message::read(&bytes).unwrap().body, Body::End(c) if *c == ReportInput::default()));
    }

    #[test]
    fn another_schema_version_is_named_in_the_error() {
        let later = Head { schema: "tokengap.feed/2".into(), ..head(Kind::Block) };
        let bytes = encode(&later, &rmp_serde::to_vec_named(&block(b"")).unwrap()).unwrap();
        let error = Message::read(&bytes).unwrap_err().to_string();
        assert!(error.contains("tokengap.feed/2") && error.contains("tokengap.feed/1"), "{error}");
        let bytes = encode(&head(Kind::Events), &events_body(0, &[])).unwrap();
        assert!(matches!(Message::read(&bytes), Err(MessageError::Kind(Kind::Events))));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::read(&bytes);
        }

        #[test]
        fn corrupted_start_messages_never_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut bytes = crate::fuzzing::start(Image::of(&Analysis::new(Config::default())).unwrap().0);
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = Message::read(&bytes);
        }
    }
}
