//! Fields that one event of an HTTP response contains about its request (docs/reference/report.md, "Deliveries").
//!
//! An event whose strings need no unescaping is parsed without allocation. Token ids are counted, not kept.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::fields::{AnyFinished, Count, Text};

/// Longest accepted rid in bytes; the same as on the ZMQ side.
const LONGEST_RID: usize = 4096;

/// Kind of endpoint that an event belongs to, detected from its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/generate`: `meta_info`, with token ids or with the whole text so far.
    Generate,
    /// `/v1/completions`, `/v1/chat/completions`: `choices`, text only.
    OpenAi,
    /// Dynamo's response plane: new token ids, and the stream's own name in place of the rid.
    ResponsePlane,
}

/// The part of a response that belongs to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    /// `SGLang`'s request id: `meta_info.id`, or `id` on the `OpenAI` endpoints. On a response plane it is the stream's subject.
    pub rid: Cow<'a, str>,
    /// Kind of endpoint.
    pub form: Form,
    /// Number of token ids in the event; `None` when it carries text only.
    pub tokens: Option<u32>,
    /// Cumulative token count stated in the event, if any.
    pub completion_tokens: Option<u32>,
    /// Whether the event has a finish reason.
    pub finished: bool,
    /// Whether this is the body of a response that does not stream.
    pub whole: bool,
    /// The token ids, on a response plane only; empty for other forms.
    pub ids: &'a [u32],
}

/// Reason why an event was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRead {
    /// Not JSON of the expected form.
    Malformed,
    /// Readable, but not about a request: `[DONE]`, an error object, another application's response.
    OtherKind,
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
    #[serde(default)]
    choices: Option<AnyFinished>,
    #[serde(default)]
    usage: Option<Usage>,
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
    fn said(self) -> Option<Said<'a>> {
        let said = if let Some(meta) = self.meta_info {
            Said {
                rid: meta.id?.0,
                form: Form::Generate,
                tokens: self.output_ids.or(self.token_ids).map(|count| count.0),
                completion_tokens: meta.completion_tokens,
                finished: meta.finish_reason.is_some(),
                whole: false,
                ids: &[],
            }
        } else {
            let choices = self.choices?;
            Said {
                rid: self.id?.0,
                form: Form::OpenAi,
                tokens: None,
                completion_tokens: self.usage.and_then(|usage| usage.completion_tokens),
                finished: choices.0,
                whole: false,
                ids: &[],
            }
        };
        (!said.rid.is_empty() && said.rid.len() <= LONGEST_RID).then_some(said)
    }
}

/// Parses the data of one server-sent event.
pub fn event(json: &[u8]) -> Result<Said<'_>, NotRead> {
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(NotRead::OtherKind);
    }
    let body: Body<'_> = serde_json::from_slice(json).map_err(|_| NotRead::Malformed)?;
    body.said().ok_or(NotRead::OtherKind)
}

/// Parses the body of a response that does not stream: one object, or a list of objects for a batch.
pub fn body(json: &[u8], mut see: impl FnMut(Said<'_>)) -> Result<(), NotRead> {
    if json.trim_ascii_start().first() != Some(&b'[') {
        see(Said {
            whole: true,
            ..event(json)?
        });
        return Ok(());
    }
    let bodies: Vec<Body<'_>> = serde_json::from_slice(json).map_err(|_| NotRead::Malformed)?;
    let said = bodies.into_iter().filter_map(Body::said);
    said.map(|said| Said { whole: true, ..said }).for_each(see);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_and_the_claim_is_read() {
        let json = br#"{"output_ids":[1001,1002,1003],"meta_info":{"id":"a-1","finish_reason":null,"prompt_tokens":3,"completion_tokens":7}}"#;
        let said = event(json).unwrap();
        assert_eq!(
            (said.rid.as_ref(), said.tokens, said.completion_tokens),
            ("a-1", Some(3), Some(7))
        );
        assert!(!said.finished && matches!(said.rid, Cow::Borrowed(_)));
    }

    #[test]
    fn the_first_releases_and_text_alone() {
        let old = br#"{"text": "a [1] {", "token_ids": [], "meta_info": {"id": "r", "finish_reason": {"type": "stop", "matched": 2}, "completion_tokens": 0}}"#;
        let said = event(old).unwrap();
        assert_eq!((said.tokens, said.finished), (Some(0), true));
        let text = br#"{"text":"abc","meta_info":{"id":"r","completion_tokens":4}}"#;
        assert_eq!(
            (event(text).unwrap().tokens, event(text).unwrap().completion_tokens),
            (None, Some(4))
        );
    }

    #[test]
    fn the_openai_forms_give_text_and_at_most_a_claim() {
        let chunk = br#"{"id":"r","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":null}"#;
        let said = event(chunk).unwrap();
        assert_eq!(
            (said.form, said.tokens, said.completion_tokens, said.finished),
            (Form::OpenAi, None, None, true)
        );
        let usage =
            br#"{"id":"r","object":"text_completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#;
        assert_eq!(event(usage).unwrap().completion_tokens, Some(9));
    }

    #[test]
    fn what_speaks_of_no_request_is_told_from_what_cannot_be_read() {
        assert_eq!(event(b"[DONE]"), Err(NotRead::OtherKind));
        assert_eq!(event(br#"{"error":{"message":"no"}}"#), Err(NotRead::OtherKind));
        assert_eq!(event(br#"{"output_ids":[1,2"#), Err(NotRead::Malformed));
        assert_eq!(
            event(br#"{"output_ids":[1],"meta_info":{"id":"r","completion_tokens":-1}}"#),
            Err(NotRead::Malformed)
        );
    }

    #[test]
    fn a_batch_answers_with_a_list() {
        let json = br#"[{"output_ids":[1],"meta_info":{"id":"a","completion_tokens":1}},{"output_ids":[1,2],"meta_info":{"id":"b","completion_tokens":2}}]"#;
        let mut seen = Vec::new();
        body(json, |said| seen.push((said.rid.into_owned(), said.tokens))).unwrap();
        assert_eq!(seen, [("a".to_owned(), Some(1)), ("b".to_owned(), Some(2))]);
    }
}
