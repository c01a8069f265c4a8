//! Values that are inspected but not kept, in JSON and msgpack alike.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use trace::event::AnswerFinish;

use super::digest::Digest;
use super::text::ChoiceText;

/// A string, borrowed from the input if it contains no escapes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct BorrowedText<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Length of a list whose items are skipped, which allocates nothing.
pub(super) fn count_items(items: &[IgnoredAny]) -> u32 {
    items.len() as u32
}

/// Reads a list item by item, without keeping any. `add` combines the result so far, which begins as `first`, with the next item.
pub(super) fn fold_list<'de, D: Deserializer<'de>, T: Deserialize<'de>, A>(
    list: D,
    first: A,
    add: impl Fn(A, T) -> A,
) -> Result<A, D::Error> {
    struct ListVisitor<A, T, F> {
        first: A,
        add: F,
        /// Only names the type of the items.
        item: PhantomData<T>,
    }
    impl<'de, A, T: Deserialize<'de>, F: Fn(A, T) -> A> Visitor<'de> for ListVisitor<A, T, F> {
        type Value = A;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        /// Combines the items one after the other, without keeping them.
        fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<A, S::Error> {
            let mut result = self.first;
            while let Some(item) = items.next_element()? {
                result = (self.add)(result, item);
            }
            Ok(result)
        }
    }
    list.deserialize_seq(ListVisitor { first, add, item: PhantomData })
}

/// A finish reason: a name, or an object with the name in `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FinishReason(pub(super) AnswerFinish);

impl<'de> Deserialize<'de> for FinishReason {
    /// Accepts a value of any form. One without a name of a reason is `Other`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FinishVisitor;
        impl<'de> Visitor<'de> for FinishVisitor {
            type Value = FinishReason;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_str<E>(self, name: &str) -> Result<FinishReason, E> {
                Ok(FinishReason(AnswerFinish::from_name(name)))
            }

            /// An object has its name in `type`. Its other fields are skipped.
            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<FinishReason, A::Error> {
                let mut reason = FinishReason(AnswerFinish::Other);
                while let Some(BorrowedText(name)) = fields.next_key::<BorrowedText<'_>>()? {
                    if name == "type" {
                        reason = fields.next_value::<Option<FinishReason>>()?.unwrap_or(reason);
                    } else {
                        fields.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(reason)
            }

            /// A list names no reason, so it counts as another one.
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<FinishReason, A::Error> {
                // A deserializer requires that all items are read.
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FinishReason(AnswerFinish::Other))
            }

            fn visit_unit<E>(self) -> Result<FinishReason, E> {
                Ok(FinishReason(AnswerFinish::Other))
            }

            fn visit_bool<E>(self, _: bool) -> Result<FinishReason, E> {
                Ok(FinishReason(AnswerFinish::Other))
            }

            fn visit_i64<E>(self, _: i64) -> Result<FinishReason, E> {
                Ok(FinishReason(AnswerFinish::Other))
            }

            fn visit_u64<E>(self, _: u64) -> Result<FinishReason, E> {
                Ok(FinishReason(AnswerFinish::Other))
            }

            fn visit_f64<E>(self, _: f64) -> Result<FinishReason, E> {
                Ok(FinishReason(AnswerFinish::Other))
            }
        }
        deserializer.deserialize_any(FinishVisitor)
    }
}

/// Combines the finish reasons of two choices. Different ones become `Other`. `None` if neither choice has one.
pub(super) fn common_finish(known: Option<AnswerFinish>, next: Option<AnswerFinish>) -> Option<AnswerFinish> {
    match (known, next) {
        (Some(known), Some(next)) if known != next => Some(AnswerFinish::Other),
        _ => known.or(next),
    }
}

/// The choices of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choices<'a> {
    /// Their `finish_reason`, if any has one.
    pub(super) finish: Option<AnswerFinish>,
    pub(super) len: u32,
    /// `index` of the last one.
    pub(super) index: u32,
    /// Number of `token_ids` of the last one, if it lists them.
    pub(super) tokens: Option<u32>,
    /// Number of log probabilities of the last one, if it lists them.
    pub(super) logprobs: Option<u32>,
    pub(super) text: ChoiceText<'a>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    finish_reason: Option<FinishReason>,
    #[serde(default)]
    index: u32,
    #[serde(default)]
    token_ids: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    logprobs: Outline,
    /// Text of a completion.
    #[serde(default)]
    text: Option<Outline>,
    /// Part of a chat's message.
    #[serde(borrow, default)]
    delta: Option<ChatMessage<'a>>,
    /// Message of a chat that does not stream.
    #[serde(borrow, default)]
    message: Option<ChatMessage<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    /// Reads the list of an answer's choices without keeping any of them.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let first = Self::default();
        fold_list(deserializer, first, |choices_so_far, choice: Choice<'a>| choices_so_far.with_choice(&choice))
    }
}

impl<'a> Choices<'a> {
    /// These choices and the next one. Combines the finish reasons of all, and keeps other values of the last one: with several choices,
    /// these are not used.
    fn with_choice(self, choice: &Choice<'a>) -> Self {
        Self {
            finish: common_finish(self.finish, choice.finish_reason.map(|FinishReason(finish)| finish)),
            len: self.len.saturating_add(1),
            index: choice.index,
            tokens: choice.token_ids.as_deref().map(count_items),
            logprobs: choice.logprobs.generated_tokens(),
            text: choice.choice_text(),
        }
    }
}

impl<'a> Choice<'a> {
    /// Text of the choice. A chat has it in its message, and a completion in the field `text`.
    fn choice_text(&self) -> ChoiceText<'a> {
        // A streamed chat has its message in `delta`.
        let message = self.delta.or(self.message).unwrap_or_default();
        let content = self.text.unwrap_or(message.content);
        ChoiceText {
            content: content.digest,
            reasoning: message.reasoning.digest,
            // Other fields, and values that are no text, may have text that is not read.
            elsewhere: message.elsewhere || content.is_other() || message.reasoning.is_other(),
            tool_calls: message.tool_calls,
            // Only a completion has the field `text`.
            completion: self.text.is_some(),
        }
    }
}

/// A message of a chat, or a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ChatMessage<'a> {
    content: Outline,
    reasoning: Outline,
    /// Whether other fields, apart from the role, contain anything.
    elsewhere: bool,
    /// JSON of the tool calls; empty without any.
    tool_calls: &'a str,
}

impl<'de: 'a, 'a> Deserialize<'de> for ChatMessage<'a> {
    /// Reads a message whose fields may have values of any form.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessageVisitor;
        impl<'de> Visitor<'de> for MessageVisitor {
            type Value = ChatMessage<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            /// Keeps the fields that are compared. Of any other field, only keeps whether it contains anything.
            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<ChatMessage<'de>, A::Error> {
                let mut message = ChatMessage::default();
                while let Some(BorrowedText(name)) = fields.next_key::<BorrowedText<'_>>()? {
                    if name == "tool_calls" {
                        // Kept as JSON, which is parsed only if it lists calls.
                        message.tool_calls = empty_without_calls(fields.next_value::<&RawValue>()?.get());
                        continue;
                    }
                    let value = fields.next_value::<Outline>()?;
                    match &*name {
                        "content" => message.content = value,
                        // vLLM may have both names with the same text.
                        "reasoning" | "reasoning_content" => message.reasoning = value,
                        "role" => {}
                        _ => message.elsewhere |= value.is_filled,
                    }
                }
                Ok(message)
            }
        }
        deserializer.deserialize_map(MessageVisitor)
    }
}

/// The JSON of `tool_calls`, or an empty text if it lists no call: events without calls may have `null` or an empty list.
#[inline]
fn empty_without_calls(json: &str) -> &str {
    let lists_no_call = json == "null" || json.trim_matches(['[', ']', ' ', '\n', '\r', '\t']).is_empty();
    if lists_no_call { "" } else { json }
}

/// Outline of a value of any form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outline {
    is_null: bool,
    /// Whether it is anything but null, an empty string, an empty list, or an object of such values.
    is_filled: bool,
    /// Length of a list. Of an object, that of its tokens: `content` of a chat, `tokens` of completions.
    len: Option<u32>,
    /// Whether a list contains null. Of an object, whether its `token_logprobs` do.
    has_nulls: bool,
    /// Digest of a string; empty for other forms.
    digest: Digest,
}

impl Outline {
    /// Number of generated tokens in log probabilities, which have an entry for each. `None` if they also cover the prompt (`echo`), whose
    /// first token has no log probability.
    fn generated_tokens(self) -> Option<u32> {
        if self.has_nulls { None } else { self.len }
    }

    /// Whether it is neither text nor blank.
    fn is_other(self) -> bool {
        self.is_filled && self.digest.is_empty()
    }
}

/// Visitors of values that are neither text nor blank, of which nothing else is kept.
macro_rules! filled {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E>(self, _: $type) -> Result<Outline, E> {
            Ok(Outline { is_filled: true, ..Outline::default() })
        })*
    };
}

impl<'de> Deserialize<'de> for Outline {
    /// Accepts a value of any form, and keeps no text of it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutlineVisitor;
        impl<'de> Visitor<'de> for OutlineVisitor {
            type Value = Outline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Outline, E> {
                Ok(Outline { is_null: true, ..Outline::default() })
            }

            filled! { visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64 }

            fn visit_str<E>(self, text: &str) -> Result<Outline, E> {
                Ok(Outline { is_filled: !text.is_empty(), digest: Digest::of_text(text), ..Outline::default() })
            }

            /// A list is filled if it has any item.
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Outline, A::Error> {
                let mut len = 0_u32;
                let mut has_nulls = false;
                while let Some(item) = items.next_element::<Outline>()? {
                    len = len.saturating_add(1);
                    has_nulls |= item.is_null;
                }
                Ok(Outline { is_filled: len > 0, len: Some(len), has_nulls, ..Outline::default() })
            }

            /// An object is filled if any of its values is.
            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Outline, A::Error> {
                let mut outline = Outline::default();
                while let Some((BorrowedText(name), value)) = fields.next_entry::<BorrowedText<'_>, Outline>()? {
                    outline.is_filled |= value.is_filled;
                    match &*name {
                        // Log probabilities have an item for each token: in `content` for a chat, in `tokens` for a completion.
                        "content" | "tokens" => outline.len = value.len,
                        "token_logprobs" => outline.has_nulls = value.has_nulls,
                        _ => {}
                    }
                }
                Ok(outline)
            }
        }
        deserializer.deserialize_any(OutlineVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn choices(json: &str) -> Choices<'_> {
        serde_json::from_str(json).expect("choices of any form")
    }

    #[test]
    fn finish_reasons_of_any_form_are_read() {
        use AnswerFinish::{Abort, Length, Other, Stop, ToolCalls};
        for (json, expected) in [
            ("null", None),
            ("\"stop\"", Some(Stop)),
            ("\"length\"", Some(Length)),
            ("\"tool_calls\"", Some(ToolCalls)),
            ("\"content_filter\"", Some(Other)),
            (r#"{"type":"length","length":8}"#, Some(Length)),
            (r#"{"type":"stop","matched":[2,"x"]}"#, Some(Stop)),
            (r#"{"type":"abort","message":"m","status_code":null}"#, Some(Abort)),
            (r#"{"type":null}"#, Some(Other)),
            (r#"{"type":{"type":3}}"#, Some(Other)),
            ("{}", Some(Other)),
            ("[]", Some(Other)),
            ("true", Some(Other)),
            ("-1.5", Some(Other)),
        ] {
            let found: Option<FinishReason> = serde_json::from_str(json).expect("any value");
            assert_eq!(found.map(|reason| reason.0), expected, "{json}");
        }
        let different = r#"[{"finish_reason":"stop"},{"finish_reason":"length"}]"#;
        assert_eq!(choices(different).finish, Some(Other));
        assert_eq!(choices(r#"[{"finish_reason":null},{"finish_reason":"stop"}]"#).finish, Some(Stop));
    }

    #[test]
    fn log_probabilities_of_generated_tokens_are_counted_on_both_endpoints() {
        let chat = r#"[{"index":0,"delta":{"content":"a b"},"logprobs":{"content":[
            {"token":" a","logprob":-0.5,"bytes":[32,97],"top_logprobs":[{"token":" a","logprob":-0.5,"bytes":null}]},
            {"token":" b","logprob":-1.5,"bytes":[32,98],"top_logprobs":[]}]}}]"#;
        assert_eq!((choices(chat).logprobs, choices(chat).text.is_empty()), (Some(2), false));
        let completion = r#"[{"index":1,"text":"","logprobs":{"text_offset":[0,1],"token_logprobs":[-0.1,-9999.0],"tokens":["","\n"],
            "top_logprobs":[{"":-0.1},{"\n":-9999.0}]}}]"#;
        assert_eq!((choices(completion).logprobs, choices(completion).text.is_empty()), (Some(2), true));
    }

    #[test]
    fn log_probabilities_of_an_echoed_prompt_are_not_counted() {
        let json = r#"[{"text":"a b","logprobs":{"text_offset":[0,1],"token_logprobs":[null,-0.1],"tokens":["a"," b"],"top_logprobs":[null,{"b":-0.1}]}}]"#;
        assert_eq!(choices(json).logprobs, None);
    }

    #[test]
    fn values_of_unknown_form_count_nothing() {
        for logprobs in ["null", "0.5", "true", "\"x\"", "-1", "{}", "{\"content\":null}"] {
            let json = format!(r#"[{{"text":"a","logprobs":{logprobs}}}]"#);
            assert_eq!(choices(&json).logprobs, None, "{logprobs}");
        }
    }

    proptest! {
        #[test]
        fn json_escapes_do_not_change_the_digest(text in ".*") {
            let json = serde_json::json!([{ "text": text }]).to_string();
            prop_assert_eq!(choices(&json).text.content, Digest::of_text(&text));
        }
    }

    #[test]
    fn a_choice_without_text_is_empty() {
        for (choice, empty) in [
            (r#"{"delta":{"role":"assistant","content":""},"logprobs":null}"#, true),
            (r#"{"delta":{"content":"","tool_calls":[],"reasoning":null}}"#, true),
            (r#"{"text":""}"#, true),
            (r#"{"delta":{"role":"assistant","content":"a"}}"#, false),
            (r#"{"delta":{"reasoning":"a"}}"#, false),
            (r#"{"delta":{"tool_calls":[{"index":0}]}}"#, false),
            (r#"{"text":" "}"#, false),
        ] {
            assert_eq!(choices(&format!("[{choice}]")).text.is_empty(), empty, "{choice}");
        }
    }
}
