//! Translates messages between the processes of an engine into events ([`Translator`]), and keeps what responses are compared with
//! ([`Clients`]). The relay and the probe share it. They differ in how they find the hop of a message ([`Hops`]).

mod clients;
mod engine;

use adapter::decode::{Decoded, Decoders, Excerpt, Format, Refused, Shape, SocketFormat};
use probe_user::discover::Engine;
use trace::event::{
    Dispatch, DispatchKind, DispatchedRequest, Event, Frame, Kind, Missed, PairMessage, Received, Undecoded, What,
};
use trace::{FrameId, HopId, MonoNs, ThreadId, fault};

pub use clients::Clients;
use engine::EngineProperties;

/// Number of parts of a message to the scheduler that are read: a router's identity, the type, the request.
pub(crate) const REQUEST_PARTS: usize = 3;

pub(crate) type Sink<'s> = &'s mut dyn FnMut(&Event<'_>);

/// Finds, names and announces the hops of messages.
pub(crate) trait Hops {
    /// Identity of a message before it is decoded: its sockets, or the relay's frame.
    type Source: Copy;

    /// Format of the messages on its socket.
    fn socket_format(&mut self, source: Self::Source) -> &mut SocketFormat;

    /// Announces the hop of a message, and numbers its frame. `content` is `None` if it was not decoded. Returns `None` if the frame is not
    /// reported.
    fn number_frame(
        &mut self,
        source: Self::Source,
        content: Option<MessageContent>,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<FrameId>;
}

/// Properties of a decoded message that identify its hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageContent {
    /// Kind of message.
    pub kind: Kind,
    /// Whether it has entries of requests.
    pub has_chunks: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedMessage<'m, S> {
    /// Place of the observation.
    pub source: S,
    /// Time of the observation.
    pub at: MonoNs,
    /// Time at which a relay had written it.
    pub forwarded: Option<MonoNs>,
    /// Length of all parts.
    pub bytes: u64,
    /// Its parts, or the reason why they are not complete.
    pub parts: Result<&'m [&'m [u8]], &'static str>,
    /// How it was observed.
    pub by: ObservedBy,
}

/// How a message was observed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ObservedBy {
    /// At its sender on this machine, whose clock its content may contain.
    LocalSend,
    /// At a sender that may be on another machine.
    RemoteSend,
    /// At its receiver only.
    Receive {
        /// Number of the receiver's wakeup.
        wakeup: Option<u64>,
        /// Thread that received it.
        thread: Option<ThreadId>,
    },
}

/// A combination of class, codec and layout among the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Class without its module.
    pub class: &'static str,
    /// Serialisation format: `pickle`, `msgpack`, ...
    pub codec: &'static str,
    /// The releases whose layout it fits.
    pub schema: &'static str,
    /// Number of frames with this form.
    pub frames: u64,
}

/// Translates messages into events.
#[derive(Debug)]
pub(crate) struct Translator {
    formats: &'static [Format],
    decoders: Decoders,
    engine: EngineProperties,
    forms: Vec<Form>,
    /// Events of frames include token ids, if the decoders keep them.
    shows_ids: bool,
    /// Index of the format of the last message to the scheduler.
    last_requests_format: usize,
    /// Memory for the requests of the next message to the scheduler.
    request_memory: Vec<DispatchedRequest<'static>>,
}

impl Translator {
    /// A translator of messages in these formats, of up to `max_message_bytes` bytes.
    pub(crate) fn new(formats: &'static [Format], max_message_bytes: usize) -> Self {
        Self {
            formats,
            decoders: Decoders::new(formats, max_message_bytes),
            engine: EngineProperties::default(),
            forms: Vec::new(),
            shows_ids: false,
            last_requests_format: 0,
            request_memory: Vec::new(),
        }
    }

    /// Makes later events carry token ids.
    pub(crate) fn show_ids(&mut self) {
        self.shows_ids = true;
        self.decoders.keep_ids();
    }

    /// Makes the decoders keep what the comparison with responses needs, from the next message on.
    pub(crate) fn prepare_comparison(&mut self, clients: &Clients) {
        if clients.needs_ids() {
            self.decoders.keep_ids();
        }
        if clients.compares_text() {
            self.decoders.keep_text();
        }
    }

    /// Sets the properties of the engine as discovery found them. Frames complete them.
    pub(crate) fn set_engine(&mut self, known: Engine) {
        self.engine.set_known(known);
    }

    /// Emits the properties of the engine, if discovery found any that were not emitted yet.
    pub(crate) fn report_engine(&mut self, sink: Sink<'_>) {
        self.engine.emit_known_once(MonoNs::now(), sink);
    }

    /// The forms of messages so far.
    pub(crate) fn forms(&self) -> &[Form] {
        &self.forms
    }

    /// An empty list for the requests of a message. [`Self::recycle_requests`] takes its memory back for the next message, so that none
    /// needs an allocation.
    pub(crate) fn take_request_list<'a>(&mut self) -> Vec<DispatchedRequest<'a>> {
        std::mem::take(&mut self.request_memory)
    }

    /// Keeps the memory of a list for the next message. The standard library collects a vector's own iterator in place, so only the
    /// lifetime changes.
    pub(crate) fn recycle_requests(&mut self, mut requests: Vec<DispatchedRequest<'_>>) {
        requests.clear();
        self.request_memory = requests.into_iter().map(|_| unreachable!("the list was cleared")).collect();
    }

    /// Whether a message names new requests to the scheduler, as far as it was captured. Output may contain aborts and control messages,
    /// but no such requests.
    pub(crate) fn names_new_requests(&mut self, parts: &[Excerpt<'_>]) -> bool {
        let mut requests = self.take_request_list();
        let content = self.read_requests(parts, &mut requests);
        let names_new = !requests.is_empty() && content != Ok(DispatchKind::Aborts);
        self.recycle_requests(requests);
        names_new
    }

    /// Reads a message to the scheduler in the format of any known engine. Returns what it asks for, and fills `requests` with the requests
    /// that it names. After an error, `requests` has those in the captured bytes of a message that was cut.
    pub(crate) fn read_requests<'a>(
        &mut self,
        parts: &[Excerpt<'a>],
        requests: &mut Vec<DispatchedRequest<'a>>,
    ) -> Result<DispatchKind, Refused> {
        let mut refused = None;
        // An engine sends one format, so the one that was read last is tried first.
        for attempt in 0..self.formats.len() {
            let index = (self.last_requests_format + attempt) % self.formats.len();
            requests.clear();
            match (self.formats[index].read_requests)(parts, requests) {
                Ok(kind) => {
                    self.last_requests_format = index;
                    return Ok(kind);
                }
                // The format was right, but the message was cut.
                Err(why) if !requests.is_empty() => return Err(why),
                // The reason of the first format stands for all.
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        Err(refused.unwrap_or(Refused { reason: "codec", detail: "no engine is known".to_owned() }))
    }

    /// Reads a message from one scheduler to another from its first parts. The whole message has `part_count` parts. `None` if it is no
    /// such message.
    pub(crate) fn read_pair_message(&self, parts: &[Excerpt<'_>], part_count: u64) -> Option<PairMessage> {
        self.formats.iter().find_map(|format| (format.read_pair_message)(parts, part_count))
    }

    /// Decodes a message and emits its frame. A frame that was sent is first passed to `clients`. If the message cannot be decoded, emits
    /// that instead. Returns the number of the frame; `None` if it was not decoded, or is not reported.
    pub(crate) fn translate_message<'c, H: Hops>(
        &mut self,
        message: ObservedMessage<'_, H::Source>,
        hops: &mut H,
        clients: impl Iterator<Item = &'c mut Clients>,
        sink: Sink<'_>,
    ) -> Option<FrameId> {
        let ObservedMessage { source, at, forwarded, bytes, parts, by } = message;
        let decoded = parts.and_then(|parts| {
            fault::inject_at("decoder");
            self.decoders.decode(hops.socket_format(source), parts).map_err(|why| {
                tracing::debug!("undecoded message of {bytes} bytes: {why}");
                why.reason
            })
        });
        let mut decoded = match decoded {
            Ok(decoded) => decoded,
            Err(reason) => {
                let id = hops.number_frame(source, None, at, sink)?;
                sink(&Event::new(at, What::Undecoded(Undecoded { id, bytes, forwarded, reason })));
                clients.for_each(Clients::record_missed_frames);
                return None;
            }
        };
        let shape = *decoded.shape();
        let has_chunks = !decoded.chunks().is_empty();
        let content = MessageContent { kind: shape.kind, has_chunks };
        let id = hops.number_frame(source, Some(content), at, sink)?;
        if has_chunks {
            self.engine.update_from_shape(&shape, at, sink);
        }
        count_message_form(&mut self.forms, &shape);
        if let ObservedBy::Receive { wakeup, thread } = by {
            if !self.shows_ids {
                decoded.hide_ids();
            }
            let frame = Some(decoded.frame(id, bytes));
            sink(&Event::new(at, What::Received(Received { id, wakeup, by: thread, frame })));
            return Some(id);
        }
        let format = hops.socket_format(source).format(self.formats);
        let frame = Frame { forwarded, ..decoded.frame(id, bytes) };
        // Before the event, because the response may follow at once.
        for clients_of_server in clients {
            clients_of_server.record_frame(&frame, format.and_then(|format| format.response_id));
        }
        if !self.shows_ids {
            decoded.hide_ids();
        }
        sink(&Event::new(at, What::Sent(Frame { forwarded, ..decoded.frame(id, bytes) })));
        // Clocks of two machines are not comparable.
        if matches!(by, ObservedBy::LocalSend) {
            emit_engine_times(&decoded, id.hop, at, sink);
        }
        Some(id)
    }
}

/// Emits the times that a frame states: how long it waited in its sender before it was sent at `sent_at`, and those of its requests.
#[inline]
fn emit_engine_times(decoded: &Decoded<'_>, hop: HopId, sent_at: MonoNs, sink: Sink<'_>) {
    if let Some(wait) = decoded.send_wait(hop, sent_at) {
        sink(&Event::new(sent_at, What::SendWait(wait)));
    }
    for times in decoded.request_times(sent_at) {
        sink(&Event::new(sent_at, What::RequestTimes(times)));
    }
}

/// Emits that messages were missed. Also notes it for `clients`, so that their responses are not compared with an incomplete text.
pub(crate) fn report_missed_and_tell_clients<'c>(
    missed: Missed,
    at: MonoNs,
    clients: impl Iterator<Item = &'c mut Clients>,
    sink: Sink<'_>,
) {
    clients.for_each(Clients::record_missed_frames);
    sink(&Event::new(at, What::Missed(missed)));
}

/// A message to the scheduler, which was sent at `at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchedMessage<'r, 'a> {
    pub id: FrameId,
    pub at: MonoNs,
    pub bytes: u64,
    /// The requests that it names.
    pub requests: &'r [DispatchedRequest<'a>],
}

impl DispatchedMessage<'_, '_> {
    /// Emits an event for each request of the message. The first event also stands for the message itself. If the message was not read,
    /// emits why, and an event for each request in its captured bytes.
    pub(crate) fn emit_requests_or_refusal(self, content: Result<DispatchKind, Refused>, sink: Sink<'_>) {
        match content {
            Ok(kind) => self.emit_requests_of_kind(kind, sink),
            Err(why) => self.emit_refusal_and_captured_requests(why.reason, sink),
        }
    }

    /// Emits why the message was not read. Of a message that was cut, also emits the first requests. They count from 1, because an event
    /// with index 0 stands for the message itself.
    fn emit_refusal_and_captured_requests(self, reason: &'static str, sink: Sink<'_>) {
        let Self { id, at, bytes, requests } = self;
        sink(&Event::new(at, What::Undecoded(Undecoded::new(id, bytes, reason))));
        let kind = DispatchKind::Requests;
        for (index, request) in (1..).zip(requests) {
            let captured = Dispatch { id, bytes: 0, kind, index, request: Some(*request) };
            sink(&Event::new(at, What::Dispatched(captured)));
        }
    }

    /// Emits a message of this kind with its requests. The first event also stands for the message itself, and alone has its length.
    fn emit_requests_of_kind(self, kind: DispatchKind, sink: Sink<'_>) {
        let Self { id, at, bytes, requests } = self;
        let first = Dispatch { id, bytes, kind, index: 0, request: requests.first().copied() };
        sink(&Event::new(at, What::Dispatched(first)));
        // The first event has the first request already.
        for (index, request) in (0..).zip(requests).skip(1) {
            let further = Dispatch { bytes: 0, index, request: Some(*request), ..first };
            sink(&Event::new(at, What::Dispatched(further)));
        }
    }
}

/// Counts the form of a message. The list is short enough to search for every frame.
fn count_message_form(forms: &mut Vec<Form>, shape: &Shape) {
    let Shape { class, codec, schema, .. } = *shape;
    let known = forms.iter_mut().find(|form| form.class == class && form.codec == codec && form.schema == schema);
    match known {
        Some(form) => form.frames += 1,
        None => forms.push(Form { class, codec, schema, frames: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: &[u8] = include_bytes!("../../../zmq-tap/fixtures/messages/0.5.23/req_batch_3rid.pkl");

    #[test]
    fn messages_to_the_scheduler_share_one_list_of_requests() {
        let mut translator = Translator::new(engines::FORMATS, 1 << 20);
        let mut memory_of_message = || {
            let mut requests = translator.take_request_list();
            let kind = translator.read_requests(&[Excerpt::whole(BATCH)], &mut requests).expect("requests");
            assert_eq!((kind, requests.len()), (DispatchKind::Requests, 3));
            let memory = (requests.as_ptr().addr(), requests.capacity());
            translator.recycle_requests(requests);
            memory
        };
        let first = memory_of_message();
        assert_eq!(memory_of_message(), first);
    }
}
