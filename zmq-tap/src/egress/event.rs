//! Fields that one event of an HTTP response contains about its request (docs/reference/report.md, "Deliveries").
//!
//! An event whose strings need no unescaping is parsed without allocation. Token ids are counted, not kept.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::fields::{Choices, Count, Text};
use super::text::ChoiceText;

/// Longest accepted rid in bytes; the same as on the ZMQ side.
const LONGEST_RID: usize = 4096;

/// Kind of endpoint that an event belongs to, detected from its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/generate`: `meta_info`, with token ids or with the whole text so far.
    Generate,
    /// `/v1/completions`, `/v1/chat/completions`: `choices` with text, and with token ids where the client asked for them (vLLM).
    OpenAi,
    /// gRPC with text, whose tokens are not counted.
    GrpcText,
    /// Dynamo's response plane: new token ids, and the stream's own name in place of the rid.
    ResponsePlane,
}

/// The part of a response that belongs to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// The engine's request id: `meta_info.id`, or `id` on the `OpenAI` endpoints. On a response plane it is the stream's subject.
    pub rid: Cow<'a, str>,
    /// Kind of endpoint.
    pub form: Form,
    /// Number of token ids in the event; `None` when it carries text only.
    pub tokens: Option<u32>,
    /// Cumulative token count stated in the event, if any.
    pub completion_tokens: Option<u32>,
    /// Index of the choice that the event is about; 0 for other forms.
    pub choice: u32,
    /// Other counts of the choice.
    pub hints: Hints,
    /// Text of the choice.
    pub text: ChoiceText<'a>,
    /// Whether the event has a finish reason.
    pub finished: bool,
    /// Whether this is the body of a response that does not stream.
    pub whole: bool,
    /// The token ids, on a response plane only; empty for other forms.
    pub ids: &'a [u32],
}

/// Information in an event with one choice about its tokens, apart from their ids. Whether it is exact depends on the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Number of tokens of the choice so far (continuous usage).
    pub so_far: Option<u32>,
    /// Number of log probabilities of generated tokens.
    pub logprobs: Option<u32>,
    /// Whether the choice has no text.
    pub empty: bool,
}

/// Reason why an event was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecoded {
    /// Not JSON of the expected form.
    Malformed,
    /// Readable, but not about a request: `[DONE]`, another application's response.
    OtherKind,
    /// An error object: the server gives up the response.
    Failed,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(default)]
    output_ids: Option<Count>,
    /// Name of `output_ids` up to 0.4.3.
    #[serde(default)]
    token_ids: Option<Count>,
    #[serde(borrow, default)]
    meta_info: Option<Meta<'a>>,
    #[serde(borrow, default)]
    choices: Option<Choices<'a>>,
    /// In the first event of a stream: a list if the events will list the ids of their tokens.
    #[serde(default)]
    prompt_token_ids: Option<Count>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    completion_tokens: Option<u32>,
}

impl<'a> Body<'a> {
    fn completion(self) -> Option<Completion<'a>> {
        let completion = if let Some(meta) = self.meta_info {
            Completion {
                rid: meta.id?.0,
                form: Form::Generate,
                tokens: self.output_ids.or(self.token_ids).map(|count| count.0),
                completion_tokens: meta.completion_tokens,
                choice: 0,
                hints: Hints::default(),
                text: ChoiceText::default(),
                finished: meta.finish_reason.is_some(),
                whole: false,
                ids: &[],
            }
        } else {
            let choices = self.choices?;
            // The usage of several choices is their sum.
            let usage = self.usage.filter(|_| choices.len <= 1);
            let completion_tokens = usage.and_then(|usage| usage.completion_tokens);
            let hints = Hints { so_far: completion_tokens, logprobs: choices.logprobs, empty: choices.text.is_empty() };
            Completion {
                rid: self.id?.0,
                form: Form::OpenAi,
                // A final event with the usage alone lists none, nor does the first one of a chat, which names the role.
                tokens: match choices.len {
                    0 => Some(0),
                    1 => choices.tokens.or(self.prompt_token_ids.map(|_| 0)),
                    _ => None,
                },
                completion_tokens,
                choice: choices.index,
                hints: if choices.len == 1 { hints } else { Hints::default() },
                text: if choices.len > 1 {
                    // Of these, the text of the last one is known, and the request of the first.
                    ChoiceText { elsewhere: true, ..ChoiceText::default() }
                } else {
                    choices.text
                },
                finished: choices.finished,
                whole: false,
                ids: &[],
            }
        };
        (!completion.rid.is_empty() && completion.rid.len() <= LONGEST_RID).then_some(completion)
    }
}

/// Parses the data of one server-sent event.
pub fn event(json: &[u8]) -> Result<Completion<'_>, Undecoded> {
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(Undecoded::OtherKind);
    }
    let body: Body<'_> = serde_json::from_slice(json).map_err(|_| Undecoded::Malformed)?;
    let failed = body.error.is_some();
    body.completion().ok_or(if failed { Undecoded::Failed } else { Undecoded::OtherKind })
}

/// Parses the body of a response that does not stream: one object, or a list of objects for a batch.
pub fn body(json: &[u8], mut emit: impl FnMut(Completion<'_>)) -> Result<(), Undecoded> {
    if json.trim_ascii_start().first() != Some(&b'[') {
        emit(Completion { whole: true, ..event(json)? });
        return Ok(());
    }
    let bodies: Vec<Body<'_>> = serde_json::from_slice(json).map_err(|_| Undecoded::Malformed)?;
    let completions = bodies.into_iter().filter_map(Body::completion);
    completions.map(|completion| Completion { whole: true, ..completion }).for_each(emit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_and_the_reported_count_is_read() {
        let json = br#"{"output_ids":[1001,1002,1003],"meta_info":{"id":"a-1","finish_reason":null,"prompt_tokens":3,"completion_tokens":7}}"#;
        let completion = event(json).unwrap();
        assert_eq!(
            (completion.rid.as_ref(), completion.tokens, completion.completion_tokens),
            ("a-1", Some(3), Some(7))
        );
        assert!(!completion.finished && matches!(completion.rid, Cow::Borrowed(_)));
    }

    #[test]
    fn token_ids_of_the_first_releases_and_text_only_events_parse() {
        let old = br#"{"text": "a [1] {", "token_ids": [], "meta_info": {"id": "r", "finish_reason": {"type": "stop", "matched": 2}, "completion_tokens": 0}}"#;
        let completion = event(old).unwrap();
        assert_eq!((completion.tokens, completion.finished), (Some(0), true));
        let text = br#"{"text":"abc","meta_info":{"id":"r","completion_tokens":4}}"#;
        assert_eq!((event(text).unwrap().tokens, event(text).unwrap().completion_tokens), (None, Some(4)));
    }

    #[test]
    fn openai_events_give_text_and_at_most_a_reported_count() {
        let chunk = br#"{"id":"r","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":null}"#;
        let completion = event(chunk).unwrap();
        assert_eq!(
            (completion.form, completion.tokens, completion.completion_tokens, completion.finished),
            (Form::OpenAi, None, None, true)
        );
        let usage =
            br#"{"id":"r","object":"text_completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#;
        assert_eq!(event(usage).unwrap().completion_tokens, Some(9));
    }

    #[test]
    fn events_without_a_request_are_distinguished_from_undecodable_ones() {
        assert_eq!(event(b"[DONE]"), Err(Undecoded::OtherKind));
        assert_eq!(event(br#"{"error":{"message":"no"}}"#), Err(Undecoded::Failed));
        assert_eq!(event(br#"{"text":"no"}"#), Err(Undecoded::OtherKind));
        assert_eq!(event(br#"{"output_ids":[1,2"#), Err(Undecoded::Malformed));
        assert_eq!(
            event(br#"{"output_ids":[1],"meta_info":{"id":"r","completion_tokens":-1}}"#),
            Err(Undecoded::Malformed)
        );
    }

    #[test]
    fn several_choices_of_a_body_have_neither_a_count_nor_tool_calls() {
        let json = br#"{"id":"r","choices":[{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}],"usage":{"completion_tokens":9}}"#;
        let completion = event(json).unwrap();
        assert_eq!((completion.tokens, completion.completion_tokens), (None, None));
        assert!(completion.text.elsewhere && completion.text.tool_calls.is_empty());
    }

    #[test]
    fn a_batch_response_is_a_list() {
        let json = br#"[{"output_ids":[1],"meta_info":{"id":"a","completion_tokens":1}},{"output_ids":[1,2],"meta_info":{"id":"b","completion_tokens":2}}]"#;
        let mut seen = Vec::new();
        body(json, |completion| {
            seen.push((completion.rid.into_owned(), completion.tokens));
        })
        .unwrap();
        assert_eq!(seen, [("a".to_owned(), Some(1)), ("b".to_owned(), Some(2))]);
    }
}
