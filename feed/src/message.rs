//! What a feed's messages say: a topic, and a msgpack map with the same fields in each and a body of its kind.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use trace::record::{Anchor, Closing, Payload};
use trace::{Analysis, Config};

use crate::image::{Image, ImageError};

/// The name of what is sent, with the version of its meaning.
pub const SCHEMA: &str = "tokengap.feed/1";

/// What can be subscribed to: the first frame of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    /// The state, then every record: all that a watcher needs.
    Stream,
    /// The report as it is, once a second.
    Report,
    /// The events, each with its fields by name.
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

/// What every message says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`SCHEMA`].
    pub schema: String,
    /// Of which kind the body is.
    pub kind: Kind,
    /// Whose run it is: the name given to the source.
    pub pod: String,
    /// The same in all messages of a run, and in no other run.
    pub instance: String,
    /// Counts the messages of the topic from 1: what is missing was not received. A `start` repeats the number before it.
    pub seq: u64,
    /// Both clocks of the source when it was sent.
    pub mono_ns: u64,
    /// Nanoseconds since the Unix epoch.
    pub wall_ns: u64,
}

impl Head {
    /// Both clocks.
    pub fn anchor(&self) -> Anchor {
        Anchor {
            mono: trace::MonoNs(self.mono_ns),
            wall_ns: self.wall_ns,
        }
    }
}

/// Kinds of body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The state from which blocks go on.
    Start,
    /// Records.
    Block,
    /// What the report says beside them, once a second.
    About,
    /// The run is over, and what the report says beside its records.
    End,
    /// The report.
    Report,
    /// Events.
    Events,
}

/// A stream's first message, and the first one after a gap.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Start {
    /// Version of the source. Another version's state is not taken over.
    pub tokengap: String,
    /// What the report calls the source.
    pub source: String,
    /// Limits and thresholds of the source's analysis.
    pub config: Config,
    /// Whether token ids are in the blocks.
    pub payload: Payload,
    /// Number of the first record that comes.
    pub record: u64,
    /// As in `about`.
    pub closing: Closing,
    /// The analysis: msgpack packed with zstd; none where it is too large.
    pub image: Option<ByteBuf>,
    /// What a screen keeps of the past, likewise.
    pub history: Option<ByteBuf>,
}

#[derive(Serialize, Deserialize)]
struct Block {
    block: ByteBuf,
}

#[derive(Serialize, Deserialize)]
struct About {
    closing: Closing,
}

/// A body, read.
#[derive(Debug)]
pub enum Body {
    /// The state; the analysis of its image, or why there is none.
    Start(Box<Start>, Result<Box<Analysis>, ImageError>),
    /// A block of records, for [`trace::record::BlockReader`].
    Block(Bytes),
    /// What the report says beside the records.
    About(Box<Closing>),
    /// The same, at the end.
    End(Box<Closing>),
}

/// A message of the stream.
#[derive(Debug)]
pub struct Message {
    /// Whose, and which.
    pub head: Head,
    /// What it says.
    pub body: Body,
}

/// Bytes that are no message of the stream.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Another version's.
    #[error("it speaks {0} and this tokengap {SCHEMA}: use the version of the source")]
    Schema(String),
    /// Not msgpack, or not these fields.
    #[error("a message cannot be read: {0}")]
    Read(#[from] rmp_serde::decode::Error),
    /// A kind that is no part of a stream.
    #[error("a message of kind {0:?} is no part of a stream")]
    Kind(Kind),
}

/// What is sent of `head` and a body that is msgpack already.
pub(crate) fn encode(head: &Head, body: &[u8]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    const FIELDS: u8 = 7;
    const MAP: u8 = 0x80;
    let mut bytes = rmp_serde::to_vec_named(head)?;
    debug_assert_eq!(bytes.first(), Some(&(MAP | FIELDS)));
    // One field more: the body, which is not copied through another serializer.
    bytes[0] = MAP | (FIELDS + 1);
    bytes.extend_from_slice(b"\xa4body");
    bytes.extend_from_slice(body);
    Ok(bytes)
}

/// Bodies, encoded.
pub(crate) mod body {
    use super::{About, Block, ByteBuf, Closing, Serialize, Start};

    type Encoded = Result<Vec<u8>, rmp_serde::encode::Error>;

    pub(crate) fn start(start: &Start) -> Encoded {
        rmp_serde::to_vec_named(start)
    }

    pub(crate) fn block(block: &[u8]) -> Encoded {
        rmp_serde::to_vec_named(&Block {
            block: ByteBuf::from(block),
        })
    }

    pub(crate) fn about(closing: Closing) -> Encoded {
        rmp_serde::to_vec_named(&About { closing })
    }

    pub(crate) fn report(report: &impl Serialize) -> Encoded {
        rmp_serde::to_vec_named(report)
    }

    /// `count` events that follow each other as msgpack already.
    pub(crate) fn events(count: u32, events: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x81\xa6events\xdd".to_vec();
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend_from_slice(events);
        bytes
    }
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

impl Message {
    /// Reads the second frame of a message of the stream.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let Schema { schema } = rmp_serde::from_slice(bytes)?;
        if schema != SCHEMA {
            return Err(MessageError::Schema(schema.chars().take(80).collect()));
        }
        let head: Head = rmp_serde::from_slice(bytes)?;
        let body = match head.kind {
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

    fn head(kind: Kind) -> Head {
        Head {
            schema: SCHEMA.into(),
            kind,
            pod: "pod-7".into(),
            instance: "00ff".into(),
            seq: 3,
            mono_ns: 5,
            wall_ns: 7,
        }
    }

    #[test]
    fn messages_come_back() {
        let start = Start {
            tokengap: "0.1.0".into(),
            source: "tap".into(),
            record: 70,
            image: Some(ByteBuf::from(
                Image::of(&Analysis::new(Config::default())).unwrap().pack().unwrap(),
            )),
            ..Start::default()
        };
        let bytes = encode(&head(Kind::Start), &body::start(&start).unwrap()).unwrap();
        let read = Message::read(&bytes).unwrap();
        assert_eq!(read.head, head(Kind::Start));
        let Body::Start(got, Ok(analysis)) = read.body else {
            panic!("{read:?}")
        };
        assert_eq!(
            (got.record, got.source.as_str(), got.config),
            (70, "tap", Config::default())
        );
        assert_eq!(analysis.ledger().totals().events, 0);
        let bytes = encode(&head(Kind::Block), &body::block(b"abc").unwrap()).unwrap();
        assert!(matches!(Message::read(&bytes).unwrap().body, Body::Block(b) if &b[..] == b"abc"));
        let bytes = encode(&head(Kind::End), &body::about(Closing::default()).unwrap()).unwrap();
        assert!(matches!(Message::read(&bytes).unwrap().body, Body::End(c) if *c == Closing::default()));
    }

    #[test]
    fn another_version_is_told_by_its_name() {
        let later = Head {
            schema: "tokengap.feed/2".into(),
            ..head(Kind::Block)
        };
        let bytes = encode(&later, &body::block(b"").unwrap()).unwrap();
        let error = Message::read(&bytes).unwrap_err().to_string();
        assert!(
            error.contains("tokengap.feed/2") && error.contains("tokengap.feed/1"),
            "{error}"
        );
        let bytes = encode(&head(Kind::Events), &body::events(0, &[])).unwrap();
        assert!(matches!(Message::read(&bytes), Err(MessageError::Kind(Kind::Events))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::read(&bytes);
        }

        #[test]
        fn a_changed_start_is_read_or_refused(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let image = Image::of(&Analysis::new(Config::default())).unwrap().pack().unwrap();
            let start = Start { image: Some(ByteBuf::from(image)), ..Start::default() };
            let mut bytes = encode(&head(Kind::Start), &body::start(&start).unwrap()).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = Message::read(&bytes);
        }
    }
}
