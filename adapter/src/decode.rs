//! Decoding of an engine's messages: the trait that an engine implements, and the choice of the engine whose format a socket carries.

use std::fmt;

use trace::engine::Waiter;
use trace::event::{
    Chunk, DispatchKind, DispatchedRequest, EngineTimes, Frame, IdColumn, Kind, PairMessage, RequestTimes, SendWait,
};
use trace::path::Ends;
use trace::{FrameId, HopId, MonoNs};

/// Default length in bytes of the longest message to decode.
pub const LONGEST: usize = 64 << 20;

/// Message format of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Name of the engine.
    pub engine: &'static str,
    /// Creates a decoder for messages up to this many bytes.
    pub decoder: fn(usize) -> Box<dyn Decode>,
    /// Whether a message may begin with this byte. Rejects most positions of a stream that is joined midway.
    pub may_begin_with: fn(u8) -> bool,
    /// Tests whether a message of this length begins with these bytes, which may be fewer. At random bytes, a false answer must be
    /// less likely than 2^-23, because a frame scanner that joins midway tests every position.
    pub opening: fn(&[u8], u64) -> Opening,
    /// Ends of the hop that carries this kind of message, as far as the kind shows them: `scheduler->upstream`.
    pub hop: fn(Kind) -> Option<Ends<&'static str>>,
    /// Roles in hop names that respond to clients.
    pub receivers: &'static [&'static str],
    /// How a response names its request, if not by the id on the hops. The events of such a response must count their tokens exactly where
    /// they have log probabilities or continuous usage.
    pub response_id: Option<ReadResponseId>,
    /// Reads messages to the scheduler.
    pub read_requests: ReadRequests,
    /// Reads messages from the scheduler of one server of a pair to the other's.
    pub read_pair_message: ReadPairMessage,
}

/// Reads what identifies the requests in the parts of one message to the scheduler, and adds it to the list. Reads neither prompt nor text,
/// and allocates nothing but the list's memory. On error the list has the requests in the captured bytes of a message that was cut by the
/// capture, and none of another one.
pub type ReadRequests = for<'a> fn(&[Excerpt<'a>], &mut Vec<DispatchedRequest<'a>>) -> Result<DispatchKind, Refused>;

/// Reads a message from one scheduler to another from its first parts, at most [`PAIR_MESSAGE_PARTS`], and its number of parts. `None` if
/// it tells nothing of a request.
pub type ReadPairMessage = fn(&[Excerpt<'_>], u64) -> Option<PairMessage>;

/// Number of parts of a message between schedulers that are read.
pub const PAIR_MESSAGE_PARTS: usize = 3;
/// Maximum length of such a part in bytes.
pub const PAIR_MESSAGE_PART_BYTES: u64 = 32;

/// The captured bytes of one part of a message: all of it, or both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excerpt<'a> {
    /// Length of the part.
    pub length: u64,
    /// Its first bytes; all of it if `tail` is empty.
    pub head: &'a [u8],
    /// Its last bytes, if bytes between them and `head` were not captured.
    pub tail: &'a [u8],
}

impl<'a> Excerpt<'a> {
    /// A part that was captured completely.
    pub const fn whole(part: &'a [u8]) -> Self {
        Self { length: part.len() as u64, head: part, tail: &[] }
    }

    /// Whether every byte of the part was captured.
    pub fn is_whole(&self) -> bool {
        self.head.len() as u64 == self.length
    }

    /// The captured bytes from this offset of the part on, up to the first byte that was not captured. The head has the first bytes of the
    /// part, and the tail its last bytes. `None` for an offset that was not captured.
    pub fn bytes_from(&self, part_offset: u64) -> Option<&'a [u8]> {
        // The tail ends where the part ends.
        let tail_start = self.length.checked_sub(self.tail.len() as u64)?;
        match bytes_from_offset(self.head, part_offset) {
            // The offset is not in the head, or just behind it, where the tail may begin.
            Some([]) | None => bytes_from_offset(self.tail, part_offset.checked_sub(tail_start)?),
            in_head => in_head,
        }
    }
}

/// The bytes from `offset` on. `None` if it is beyond their end.
#[inline]
fn bytes_from_offset(bytes: &[u8], offset: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(offset).ok()?..)
}

/// Derives from a request id the id shown in its response, and the index of its choice there. `None` if the choice is not known.
pub type ReadResponseId = fn(&str) -> Option<(&str, u32)>;

/// Whether a message begins at the tested position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// No message begins here.
    No,
    /// Too few bytes to tell.
    More,
    /// A message begins here, with this last byte if the format defines one.
    Yes(Option<u8>),
}

/// Reason why a message was not decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refused {
    /// Stable short name, for counting.
    pub reason: &'static str,
    /// Description of the error.
    pub detail: String,
}

impl Refused {
    /// Reason for a message in no known format. States its number of parts if there are several, or else its first bytes.
    fn unknown_format(parts: &[&[u8]]) -> Self {
        const MAX_SHOWN_BYTES: usize = 8;
        if parts.len() > 1 {
            return Self {
                reason: "multipart",
                detail: format!("a message of {} parts, which no known engine sends", parts.len()),
            };
        }
        let first: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(MAX_SHOWN_BYTES).collect();
        Self { reason: "codec", detail: format!("not in a known format: it begins with {first:02x?}") }
    }
}

/// Decoder of one engine's messages. Reuses its memory from message to message.
pub trait Decode: fmt::Debug + Send {
    /// Whether the message looks like one of this engine, judged by its first bytes.
    fn recognises(&self, parts: &[&[u8]]) -> bool;

    /// Makes [`Decode::decode`] fill [`Chunk::ids`], from the next message on.
    fn keep_ids(&mut self);

    /// Makes [`Decode::decode`] fill [`Chunk::text`], from the next message on. Does nothing for an engine whose messages carry no text.
    fn keep_text(&mut self) {}

    /// Decodes all parts of one message. On error no part of the message is used.
    fn decode<'a>(&'a mut self, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Refused>;
}

/// Properties of a message that follow from its class and layout alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name of the engine.
    pub engine: &'static str,
    /// Class of the message.
    pub class: &'static str,
    /// Serialisation format: `pickle`, `msgpack`, ...
    pub codec: &'static str,
    /// The releases whose layout it fits.
    pub schema: &'static str,
    /// Kind of message.
    pub kind: Kind,
    /// Meaning of the id column.
    pub ids: IdColumn,
    /// Behaviour of a waiter in these releases; `None` if they differ or are not known.
    pub waiter: Option<Waiter>,
}

/// The engine's times of one request as it writes them: seconds of the monotonic clock, 0 for a moment that it did not set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSeconds {
    /// Entry to the scheduler's queue.
    pub queued: f64,
    /// First entry to a batch.
    pub batch_entered: f64,
    /// End of the prefill.
    pub prefill_finished: f64,
}

/// The engine's times in one entry of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkSeconds {
    /// Index of the entry.
    pub chunk: usize,
    /// Its times.
    pub seconds: EngineSeconds,
}

impl EngineSeconds {
    /// The times on this machine's monotonic clock, none of which can be later than `latest_possible`. Times that cannot be true are
    /// counted and left out.
    fn check_times(self, latest_possible: MonoNs) -> CheckedTimes {
        let mut checker = StepChecker { next_step_at: latest_possible, impossible: 0 };
        // From the last step to the first, because each must not be later than the one that followed.
        let prefill_finished = checker.check_step(self.prefill_finished);
        let batch_entered = checker.check_step(self.batch_entered);
        let queued = checker.check_step(self.queued);
        CheckedTimes { times: EngineTimes { queued, batch_entered, prefill_finished }, impossible: checker.impossible }
    }
}

/// The engine's times of a request without those that cannot be true.
struct CheckedTimes {
    times: EngineTimes,
    /// Number of times that were left out.
    impossible: u8,
}

/// Checks the steps of a request from the last to the first: none can be later than the step that followed it.
struct StepChecker {
    /// Time of the step that followed, as far as it is known.
    next_step_at: MonoNs,
    /// Number of times that cannot be true.
    impossible: u8,
}

impl StepChecker {
    /// Returns the time of a step. Steps are checked from the last to the first, so no time can be later than that of the previous call.
    /// `None` if the engine did not set the time, or if it is impossible. Counts impossible times.
    fn check_step(&mut self, seconds: f64) -> Option<MonoNs> {
        // The engine leaves unset times at 0.
        if seconds == 0.0 {
            return None;
        }
        let time = MonoNs::from_seconds(seconds).filter(|time| *time <= self.next_step_at);
        match time {
            Some(time) => self.next_step_at = time,
            None => self.impossible += 1,
        }
        time
    }
}

/// A decoded message. Borrows the message and the decoder; drop it before decoding the next.
#[derive(Debug)]
pub struct Decoded<'a> {
    shape: Shape,
    chunks: Vec<Chunk<'a>>,
    /// Timestamp of the content, by the sender's monotonic clock.
    pub made_at: Option<MonoNs>,
    /// The engine's times of requests whose first tokens are in the message, in the order of the entries.
    pub engine_seconds: &'a [ChunkSeconds],
    /// Buffer that the memory of `chunks` returns to.
    home: &'a mut Vec<Chunk<'static>>,
}

impl<'a> Decoded<'a> {
    /// A message with its entries. Their memory returns to `home`.
    pub fn new(shape: Shape, chunks: Vec<Chunk<'a>>, home: &'a mut Vec<Chunk<'static>>) -> Self {
        Self { shape, chunks, made_at: None, engine_seconds: &[], home }
    }

    /// Time that the content waited in the sender, for a message that was sent at `sent_at` on the same machine. `hop` is the connection
    /// that carried it, and is returned with the time. `None` without a timestamp, or if the timestamp is later than `sent_at`.
    pub fn send_wait(&self, hop: HopId, sent_at: MonoNs) -> Option<SendWait> {
        // When the sender made the content, by the timestamp in the message.
        let made_at = self.made_at?;
        if made_at > sent_at {
            return None;
        }
        Some(SendWait { hop, ns: sent_at.since(made_at) })
    }

    /// The engine's own times of the requests whose first tokens are in the message. They say when a request was queued, when it first
    /// entered a batch, and when its prompt was processed. `sent_at` is when the message was sent on the same machine, and no time can be
    /// later. Leaves out entries without a request id, and those in which the engine set no time.
    pub fn request_times(&self, sent_at: MonoNs) -> impl Iterator<Item = RequestTimes<'_>> {
        self.engine_seconds.iter().filter_map(move |entry| {
            let rid = self.chunks.get(entry.chunk)?.rid;
            let CheckedTimes { times, impossible } = entry.seconds.check_times(sent_at);
            let is_unset = impossible == 0 && times == EngineTimes::default();
            if rid.is_empty() || is_unset {
                return None;
            }
            Some(RequestTimes { rid, times, impossible })
        })
    }

    /// The engine's times in the entry with the index `chunk_index`. All are `None` if it has none. Times after the send are not rejected,
    /// because the time of the send is not known here.
    pub fn engine_times(&self, chunk_index: usize) -> EngineTimes {
        let Ok(index) = self.engine_seconds.binary_search_by_key(&chunk_index, |entry| entry.chunk) else {
            return EngineTimes::default();
        };
        let no_limit = MonoNs(u64::MAX);
        self.engine_seconds[index].seconds.check_times(no_limit).times
    }

    /// Properties of the message.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Entries per request, ready for [`trace::event::Frame`]; none for control messages and idle batches.
    pub fn chunks(&self) -> &[Chunk<'a>] {
        &self.chunks
    }

    /// Removes the token ids from the entries.
    pub fn hide_ids(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.ids = &[]);
    }

    /// The message as a frame of `bytes` bytes that no relay forwards.
    pub fn frame(&self, id: FrameId, bytes: u64) -> Frame<'_> {
        let Shape { kind, ids, .. } = self.shape;
        Frame { id, bytes, forwarded: None, kind, ids, chunks: &self.chunks }
    }
}

impl Drop for Decoded<'_> {
    fn drop(&mut self) {
        *self.home = recycle(std::mem::take(&mut self.chunks));
    }
}

/// Returns an empty vector with the memory of `chunks`. The standard library collects a vector's own iterator in place, so only the
/// lifetime changes.
pub fn recycle<'to>(mut chunks: Vec<Chunk<'_>>) -> Vec<Chunk<'to>> {
    chunks.clear();
    chunks.into_iter().map(|_| unreachable!("the vector was cleared")).collect()
}

/// One decoder of each known engine.
#[derive(Debug)]
pub struct Decoders {
    decoders: Vec<Box<dyn Decode>>,
}

/// The format that a socket carries, once known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketFormat {
    decoder_index: Option<usize>,
}

impl SocketFormat {
    /// The format, once known. `formats` are those of the decoders.
    pub fn format(self, formats: &[Format]) -> Option<&Format> {
        formats.get(self.decoder_index?)
    }
}

impl Decoders {
    /// Decoders for messages up to `longest` bytes.
    pub fn new(formats: &[Format], longest: usize) -> Self {
        Self { decoders: formats.iter().map(|format| (format.decoder)(longest)).collect() }
    }

    /// Makes every decoder fill [`Chunk::ids`], from the next message on.
    pub fn keep_ids(&mut self) {
        for decoder in &mut self.decoders {
            decoder.keep_ids();
        }
    }

    /// Makes every decoder fill [`Chunk::text`], from the next message on.
    pub fn keep_text(&mut self) {
        for decoder in &mut self.decoders {
            decoder.keep_text();
        }
    }

    /// Decodes all parts of one message of a socket. At first the engine is unknown, so a decoder that recognises the message is chosen.
    /// Once a decoder has decoded a message with output, `format` keeps it for all later messages of the socket.
    pub fn decode<'a>(&'a mut self, format: &mut SocketFormat, parts: &[&'a [u8]]) -> Result<Decoded<'a>, Refused> {
        let index = match format.decoder_index {
            Some(known) => known,
            None => self.find_decoder(parts)?,
        };
        let decoded = self.decoders[index].decode(parts)?;
        // A control message does not decide the format, since other formats may have messages of the same form.
        if !decoded.shape.kind.is_control() {
            format.decoder_index = Some(index);
        }
        Ok(decoded)
    }

    /// Index of the first decoder that recognises the message. An error if none does.
    fn find_decoder(&self, parts: &[&[u8]]) -> Result<usize, Refused> {
        let recognising = self.decoders.iter().position(|decoder| decoder.recognises(parts));
        recognising.ok_or_else(|| Refused::unknown_format(parts))
    }
}
