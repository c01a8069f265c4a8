//! A decoded message of any engine. SGLang messages also have the pickle protocol and the unabridged finish reason.

use adapter::decode::{Decode as _, Decoded, Decoders, Excerpt, Shape, SocketFormat};
use engines::sglang::wire::{Batch, Codec, Decoder, Limits, Value};
use trace::event::{Chunk, DispatchedRequest, EngineTimes, Kind};

/// Decoders of every engine.
pub(super) struct MessageReader {
    sglang: Decoder,
    all_engines: Decoders,
}

pub(super) enum AnyMessage<'a> {
    /// With the requests that a message to the scheduler names.
    Sglang(Batch<'a>, Vec<DispatchedRequest<'a>>),
    Other(Decoded<'a>),
}

impl MessageReader {
    /// A reader of messages up to `max_message_bytes`.
    pub(super) fn new(max_message_bytes: usize) -> Self {
        let limits = Limits { message: max_message_bytes, ..Limits::default() };
        let mut all_engines = Decoders::new(engines::FORMATS, max_message_bytes);
        all_engines.keep_ids();
        Self { sglang: Decoder::new(limits).with_ids(), all_engines }
    }

    /// Decodes a message of any engine. The error is a line for the user.
    pub(super) fn read<'a>(&'a mut self, message: &'a [u8]) -> Result<AnyMessage<'a>, String> {
        // SGLang's own decoder also has the finish reason as it was sent.
        if self.sglang.recognises(&[message]) {
            let batch = self.sglang.decode(message).map_err(|why| why.to_string())?;
            let is_control = batch.shape().kind == Kind::Control;
            let requests = if is_control { requests_of_control_message(message) } else { Vec::new() };
            return Ok(AnyMessage::Sglang(batch, requests));
        }
        // Each message may be of another engine, so the format of the last one is not remembered.
        let mut unknown_format = SocketFormat::default();
        match self.all_engines.decode(&mut unknown_format, &[message]) {
            Ok(decoded) => Ok(AnyMessage::Other(decoded)),
            // No known codec reads the bytes, so they may be a part of a message, or several.
            Err(why) if why.reason == "codec" => Err(format!("{why}; expected one message as returned by recv()")),
            Err(why) => Err(why.to_string()),
        }
    }
}

/// Requests that a control message of SGLang names. Only messages to the scheduler name any; for others, the list is empty.
fn requests_of_control_message(message: &[u8]) -> Vec<DispatchedRequest<'_>> {
    let mut requests = Vec::new();
    let read = (engines::sglang::FORMAT.read_requests)(&[Excerpt::whole(message)], &mut requests);
    if read.is_err() {
        requests.clear();
    }
    requests
}

impl<'a> AnyMessage<'a> {
    /// Kind, codec and layout of the message.
    pub(super) fn shape(&self) -> &Shape {
        match self {
            Self::Sglang(batch, _) => batch.shape(),
            Self::Other(decoded) => decoded.shape(),
        }
    }

    /// Name of the codec, with the protocol of a pickle.
    pub(super) fn codec(&self) -> String {
        match self {
            Self::Sglang(batch, _) => match batch.codec() {
                Codec::Pickle { protocol } => format!("pickle protocol {protocol}"),
                Codec::Msgpack => "msgpack".to_owned(),
            },
            Self::Other(decoded) => decoded.shape().codec.to_owned(),
        }
    }

    /// The message's chunks. An abort has one for each request that it names.
    pub(super) fn chunks(&self) -> &[Chunk<'a>] {
        match self {
            Self::Sglang(batch, _) => batch.chunks(),
            Self::Other(decoded) => decoded.chunks(),
        }
    }

    /// The engine's times of a chunk's request, if the chunk holds its first tokens.
    pub(super) fn engine_times(&self, chunk_index: usize) -> EngineTimes {
        match self {
            Self::Sglang(batch, _) => batch.engine_times(chunk_index),
            Self::Other(decoded) => decoded.engine_times(chunk_index),
        }
    }

    /// Requests that a message to the scheduler names; none for other messages. Prompts are not read.
    pub(super) fn requests(&self) -> &[DispatchedRequest<'a>] {
        match self {
            Self::Sglang(_, requests) => requests,
            Self::Other(_) => &[],
        }
    }

    /// Unabridged finish reason of a chunk, if it contains more than its kind.
    pub(super) fn finish_reason(&self, chunk_index: usize) -> Option<Value<'a>> {
        match self {
            Self::Sglang(batch, _) => batch.finish(chunk_index),
            // Their reasons are only a kind.
            Self::Other(_) => None,
        }
    }
}
