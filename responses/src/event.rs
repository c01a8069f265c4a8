//! Elements of a connection's bytes, the trait of the parsers that find them, and the fields that one event of an HTTP response contains
//! about its request (docs/reference/report.md, "Deliveries").
//!
//! An event whose strings need no unescaping is parsed without allocation. Token ids are counted, not kept.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use trace::MonoNs;
use trace::event::{AnswerFinish, Event, Missed, MissedCause, UnknownArrival, What};

use super::Unreadable;
use super::fields::{BorrowedText, Choices, FinishReason, count_items};
use super::text::ChoiceText;

/// Longest accepted rid in bytes; the same as on the ZMQ side.
const LONGEST_RID: usize = 4096;

/// First HTTP status of an error.
const FIRST_ERROR_STATUS: u16 = 400;
/// Body of Starlette for a path that the server does not have, and for a method that the path does not have.
const NO_SUCH_PATH: &str = r#"{"detail":"Not Found"}"#;
const NO_SUCH_METHOD: &str = r#"{"detail":"Method Not Allowed"}"#;

/// Whether a response rejects a request to the engine, by its status and the length of its body. Other errors are not about such a request:
/// health checks fail without a body, and frameworks answer with a fixed one for paths that do not exist (`/metrics` if metrics are off).
pub(super) fn is_rejection(status: u16, body_bytes: Option<u64>) -> bool {
    // Length of the framework's own body for this status; 0 without one.
    let fixed_length = match status {
        404 => NO_SUCH_PATH.len() as u64,
        405 => NO_SUCH_METHOD.len() as u64,
        _ => 0,
    };
    // A body of unknown length may be any.
    let may_be_of_engine = body_bytes.is_none_or(|bytes| bytes > 0 && bytes != fixed_length);
    status >= FIRST_ERROR_STATUS && may_be_of_engine
}

/// An element found in the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseElement<'a> {
    /// Start of a response.
    Began,
    /// HTTP status of a response that rejects a request to the engine, from 400 on.
    Rejected(u16),
    /// Start of a worker's stream to a frontend, with the stream's name, which is not the request id.
    StreamNamed(&'a str),
    /// An event of a response, for one request.
    Completion(Completion<'a>),
    /// The last event of a stream, `[DONE]`.
    Done,
    /// An event that could not be read, so its content is unknown.
    Undecoded,
    /// End of a complete response.
    Ended,
    /// The server wrote an error instead of the rest.
    Failed,
    /// The server ended the response before its last event.
    CutShort,
    /// Number of gRPC messages that were not read.
    Unread(u64),
    /// A body, or the rest of the connection, cannot be read.
    Unreadable(Unreadable),
}

/// Stream of a connection that carries one response at a time. Only HTTP/2 has others.
pub(super) const SINGLE_STREAM: u32 = 0;

/// Receiver of the elements that a parser finds, each with its stream.
pub struct ElementSink<'e> {
    /// Stream of the elements that [`Self::push`] passes on.
    stream: u32,
    receive: &'e mut dyn FnMut(u32, ResponseElement<'_>),
}

impl<'e> ElementSink<'e> {
    /// Sink of a connection, which passes each element on to `receive`, with its stream.
    pub(super) fn of_connection(receive: &'e mut dyn FnMut(u32, ResponseElement<'_>)) -> Self {
        Self { stream: SINGLE_STREAM, receive }
    }

    /// Sink of one HTTP/2 stream of the connection.
    #[inline]
    pub(super) fn of_stream(&mut self, stream: u32) -> ElementSink<'_> {
        ElementSink { stream, receive: &mut *self.receive }
    }

    /// Passes on the next element.
    #[inline]
    pub fn push(&mut self, element: ResponseElement<'_>) {
        (self.receive)(self.stream, element);
    }

    /// Passes on the next element of an HTTP/2 stream.
    #[inline]
    pub(super) fn push_of_stream(&mut self, stream: u32, element: ResponseElement<'_>) {
        (self.receive)(stream, element);
    }
}

/// Parser of the bytes that a server writes on one connection.
pub trait ParseResponses: fmt::Debug + Send {
    /// Parses the next bytes of the connection, and passes the elements of responses in them to `elements`. After an error, no further byte
    /// can be read.
    fn parse(&mut self, bytes: &[u8], elements: &mut ElementSink<'_>) -> Result<(), Unreadable>;

    /// Ends a connection that the server has closed, and passes the elements that end with it to `elements`. Does nothing by default,
    /// because bodies state their ends.
    fn end_at_close_by_server(&mut self, _elements: &mut ElementSink<'_>) {}

    /// Whether a later position can be read after bytes were missed. Not by default, because a connection that carries one response has no
    /// such position.
    fn resumes_after_gap(&self) -> bool {
        false
    }

    /// Why the protocol hides which request arrived when. `None` for HTTP/1, which does not.
    fn why_arrivals_hidden(&self) -> Option<UnknownArrival> {
        Some(UnknownArrival::Protocol)
    }
}

/// Destination of the events that occur at one time.
pub(super) struct EventSink<'s> {
    pub(super) at: MonoNs,
    pub(super) events: &'s mut dyn FnMut(&Event<'_>),
}

impl EventSink<'_> {
    /// Passes on an event that occurs at the time of this sink.
    pub(super) fn emit(&mut self, what: What<'_>) {
        (self.events)(&Event { at: self.at, what });
    }

    /// Reports that an event of a response was missed.
    pub(super) fn report_missed_event(&mut self) {
        self.emit(What::Missed(Missed { hop: None, count: 1, cause: MissedCause::Unframed }));
    }
}

/// Kind of endpoint that an event belongs to, detected from its form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseForm {
    /// `/generate`: `meta_info`, with token ids or with the whole text so far.
    #[default]
    Generate,
    /// `/v1/completions`, `/v1/chat/completions`: `choices` with text, and with token ids where the client asked for them (vLLM).
    OpenAi,
    /// gRPC with text, whose tokens are not counted.
    GrpcText,
    /// A worker's stream to a frontend: new token ids, and the stream's own name in place of the rid.
    WorkerStream,
}

/// The part of a response that belongs to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The engine's request id: `meta_info.id`, or `id` on the `OpenAI` endpoints. On a worker's stream it is the stream's name, followed
    /// by `#` and the index of the choice if that is not 0.
    pub rid: Cow<'a, str>,
    /// Kind of endpoint.
    pub form: ResponseForm,
    /// Number of token ids in the event; `None` when it carries text only.
    pub tokens: Option<u32>,
    /// Cumulative token count stated in the event, if any.
    pub stated_tokens: Option<u32>,
    /// Index of the choice that the event is about; 0 for other forms.
    pub choice: u32,
    /// Number of tokens of the event's only choice so far (continuous usage). Whether it is exact depends on the engine.
    pub tokens_so_far: Option<u32>,
    /// Number of log probabilities of the only choice's generated tokens. Whether it is exact depends on the engine.
    pub logprobs: Option<u32>,
    /// Text of the event.
    pub text: ChoiceText<'a>,
    /// Whether it finishes the request.
    pub finished: bool,
    /// Its finish reason, if it finishes the request and was read.
    pub finish: Option<AnswerFinish>,
    /// Whether this is the body of a response that does not stream.
    pub is_whole_body: bool,
    /// The token ids, on a worker's stream only; empty for other forms.
    pub ids: &'a [u32],
}

#[derive(Deserialize)]
struct ResponseJson<'a> {
    #[serde(borrow, default)]
    id: Option<BorrowedText<'a>>,
    #[serde(default)]
    output_ids: Option<Vec<IgnoredAny>>,
    /// Name of `output_ids` up to 0.4.3.
    #[serde(default)]
    token_ids: Option<Vec<IgnoredAny>>,
    #[serde(borrow, default)]
    meta_info: Option<MetaInfo<'a>>,
    #[serde(borrow, default)]
    choices: Option<Choices<'a>>,
    /// In the first event of a stream: a list if the events will list the ids of their tokens.
    #[serde(default)]
    prompt_token_ids: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    usage: Option<CompletionUsage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct MetaInfo<'a> {
    #[serde(borrow, default)]
    id: Option<BorrowedText<'a>>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    finish_reason: Option<FinishReason>,
}

#[derive(Deserialize)]
struct CompletionUsage {
    #[serde(default)]
    completion_tokens: Option<u32>,
}

impl<'a> ResponseJson<'a> {
    /// Converts the JSON of an event to a completion: the part of a response that belongs to one request. `None` if it names no request, or
    /// is not about a completion.
    fn into_completion(self) -> Option<Completion<'a>> {
        let completion = if let Some(meta) = self.meta_info {
            // Only the engine's own endpoint has `meta_info`. The name of its list depends on the release.
            let listed_ids = self.output_ids.or(self.token_ids);
            completion_from_meta_info(meta, listed_ids.as_deref())?
        } else {
            // The other endpoints are those of `OpenAI`.
            let choices = self.choices?;
            let BorrowedText(rid) = self.id?;
            let stated_tokens = self.usage.and_then(|usage| usage.completion_tokens);
            // A server that lists ids also lists those of the prompt, in the first event of a response.
            let lists_ids = self.prompt_token_ids.is_some();
            completion_from_choices(rid, choices, stated_tokens, lists_ids)
        };
        // Longer ids are not accepted from the engine either.
        if completion.rid.is_empty() || completion.rid.len() > LONGEST_RID {
            return None;
        }
        Some(completion)
    }
}

/// Completion of an event of the engine's own endpoint, with the ids that it lists, if any. `None` if it names no request.
fn completion_from_meta_info<'a>(meta: MetaInfo<'a>, listed_ids: Option<&[IgnoredAny]>) -> Option<Completion<'a>> {
    let BorrowedText(rid) = meta.id?;
    Some(Completion {
        rid,
        tokens: listed_ids.map(count_items),
        stated_tokens: meta.completion_tokens,
        finished: meta.finish_reason.is_some(),
        finish: meta.finish_reason.map(|FinishReason(finish)| finish),
        ..Completion::default()
    })
}

/// Completion of an event of an `OpenAI` endpoint, which has a list of choices. `stated_tokens`: token count of its usage, if it has one.
/// `lists_ids`: the events of its response list the ids of their tokens.
fn completion_from_choices<'a>(
    rid: Cow<'a, str>,
    choices: Choices<'a>,
    stated_tokens: Option<u32>,
    lists_ids: bool,
) -> Completion<'a> {
    let mut completion = Completion {
        rid,
        form: ResponseForm::OpenAi,
        choice: choices.index,
        finished: choices.finish.is_some(),
        finish: choices.finish,
        ..Completion::default()
    };
    match choices.len {
        // A final event with the usage alone.
        0 => {
            completion.tokens = Some(0);
            completion.stated_tokens = stated_tokens;
            completion.text = choices.text;
        }
        1 => add_only_choice(&mut completion, choices, stated_tokens, lists_ids),
        // The usage is the sum of all choices, the text that of the last one, and the request that of the first. So no count is kept, and
        // the text counts as unread text of other fields.
        _ => completion.text.elsewhere = true,
    }
    completion
}

/// Adds the tokens and the text of an event's only choice. So a usage beside it counts the tokens of that choice so far.
#[inline]
fn add_only_choice<'a>(
    completion: &mut Completion<'a>,
    choice: Choices<'a>,
    stated_tokens: Option<u32>,
    lists_ids: bool,
) {
    // The first event of a chat, which names the role, has no ids.
    completion.tokens = if lists_ids { choice.tokens.or(Some(0)) } else { choice.tokens };
    completion.stated_tokens = stated_tokens;
    completion.tokens_so_far = stated_tokens;
    completion.logprobs = choice.logprobs;
    completion.text = choice.text;
}

/// Parses the data of one server-sent event. `None` for an event of another application, which is about no request.
pub(super) fn parse_event(json: &[u8]) -> Option<ResponseElement<'_>> {
    if json.trim_ascii() == b"[DONE]" {
        return Some(ResponseElement::Done);
    }
    let is_object = json.trim_ascii_start().first() == Some(&b'{');
    if !is_object {
        return None;
    }
    let Ok(body) = serde_json::from_slice::<ResponseJson<'_>>(json) else { return Some(ResponseElement::Undecoded) };
    let has_error = body.error.is_some();
    match body.into_completion() {
        Some(completion) => Some(ResponseElement::Completion(completion)),
        None if has_error => Some(ResponseElement::Failed),
        None => None,
    }
}

/// Parses the body of a response that does not stream: one object, or a list of objects for a batch. JSON responses are of many kinds, so
/// other objects and invalid ones are ignored.
pub(super) fn parse_body(json: &[u8], elements: &mut ElementSink<'_>) {
    let bodies: serde_json::Result<Vec<ResponseJson<'_>>> = match json.trim_ascii_start().first() {
        Some(b'[') => serde_json::from_slice(json),
        // A single object is treated as a batch of one.
        Some(b'{') => serde_json::from_slice(json).map(|body| vec![body]),
        _ => return,
    };
    let Ok(bodies) = bodies else { return };
    for completion in bodies.into_iter().filter_map(ResponseJson::into_completion) {
        elements.push(ResponseElement::Completion(Completion { is_whole_body: true, ..completion }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(json: &[u8]) -> Completion<'_> {
        match parse_event(json) {
            Some(ResponseElement::Completion(completion)) => completion,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn counts_of_tokens_are_read() {
        let generate = br#"{"output_ids":[1001,1002,1003],"meta_info":{"id":"a-1","finish_reason":null,"prompt_tokens":3,"completion_tokens":7}}"#;
        // Token ids of the first releases, and text only.
        let old = br#"{"text": "a [1] {", "token_ids": [], "meta_info": {"id": "a-1", "finish_reason": {"type": "stop", "matched": 2}, "completion_tokens": 0}}"#;
        let text = br#"{"text":"abc","meta_info":{"id":"a-1","completion_tokens":4}}"#;
        let chunk = br#"{"id":"a-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":null}"#;
        let usage = br#"{"id":"a-1","object":"text_completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#;
        for (json, form, tokens, stated, finished) in [
            (&generate[..], ResponseForm::Generate, Some(3), Some(7), false),
            (old, ResponseForm::Generate, Some(0), Some(0), true),
            (text, ResponseForm::Generate, None, Some(4), false),
            (chunk, ResponseForm::OpenAi, None, None, true),
            (usage, ResponseForm::OpenAi, Some(0), Some(9), false),
        ] {
            let found = completion(json);
            assert_eq!(
                (found.form, found.tokens, found.stated_tokens, found.finished),
                (form, tokens, stated, finished)
            );
            assert!(matches!(found.rid, Cow::Borrowed("a-1")));
        }
    }

    #[test]
    fn events_without_a_request_are_distinguished_from_undecodable_ones() {
        assert_eq!(parse_event(b"[DONE]"), Some(ResponseElement::Done));
        assert_eq!(parse_event(b"[1]"), None);
        assert_eq!(parse_event(br#"{"error":{"message":"no"}}"#), Some(ResponseElement::Failed));
        assert_eq!(parse_event(br#"{"text":"no"}"#), None);
        assert_eq!(parse_event(br#"{"output_ids":[1,2"#), Some(ResponseElement::Undecoded));
        let negative = br#"{"output_ids":[1],"meta_info":{"id":"r","completion_tokens":-1}}"#;
        assert_eq!(parse_event(negative), Some(ResponseElement::Undecoded));
    }

    #[test]
    fn several_choices_of_a_body_have_neither_a_count_nor_tool_calls() {
        let json = br#"{"id":"r","choices":[{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}],"usage":{"completion_tokens":9}}"#;
        let completion = completion(json);
        assert_eq!((completion.tokens, completion.stated_tokens), (None, None));
        assert!(completion.text.elsewhere && completion.text.tool_calls.is_empty());
    }

    #[test]
    fn a_batch_response_is_a_list() {
        let json = br#"[{"output_ids":[1],"meta_info":{"id":"a","completion_tokens":1}},{"output_ids":[1,2],"meta_info":{"id":"b","completion_tokens":2}}]"#;
        let mut seen = Vec::new();
        let mut receive = |_stream: u32, element: ResponseElement<'_>| match element {
            ResponseElement::Completion(completion) => seen.push((completion.rid.into_owned(), completion.tokens)),
            element => panic!("{element:?}"),
        };
        parse_body(json, &mut ElementSink::of_connection(&mut receive));
        assert_eq!(seen, [("a".to_owned(), Some(1)), ("b".to_owned(), Some(2))]);
    }
}
