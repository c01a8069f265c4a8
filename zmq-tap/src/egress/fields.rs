//! Values that are inspected but not kept, in JSON and msgpack alike.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The length of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(pub(super) u32);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'de> Visitor<'de> for Counter {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Count, A::Error> {
                let mut count = 0_u32;
                while items.next_element::<IgnoredAny>()?.is_some() {
                    count = count.saturating_add(1);
                }
                Ok(Count(count))
            }
        }
        deserializer.deserialize_seq(Counter)
    }
}

/// A string, borrowed from the input if it contains no escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrower;
        impl<'de> Visitor<'de> for Borrower {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrower)
    }
}

/// The choices of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choices {
    /// Whether any has a `finish_reason`.
    pub(super) finished: bool,
    /// Number of choices.
    pub(super) len: u32,
    /// `index` of the last one.
    pub(super) index: u32,
    /// Number of `token_ids` of the last one, if it lists them.
    pub(super) tokens: Option<u32>,
    /// Number of log probabilities of the last one, if it lists them.
    pub(super) logprobs: Option<u32>,
    /// Whether the last one has no text.
    pub(super) empty: bool,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
    #[serde(default)]
    index: u32,
    #[serde(default)]
    token_ids: Option<Count>,
    #[serde(default)]
    logprobs: Outline,
    #[serde(default)]
    text: Option<Outline>,
    #[serde(default)]
    delta: Option<Outline>,
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Choices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Choices, A::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = items.next_element::<Choice>()? {
                    choices = Choices {
                        finished: choices.finished || choice.finish_reason.is_some(),
                        len: choices.len.saturating_add(1),
                        index: choice.index,
                        tokens: choice.token_ids.map(|count| count.0),
                        logprobs: choice.logprobs.generated(),
                        empty: [choice.text, choice.delta].iter().flatten().all(|part| part.blank),
                    };
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// Outline of a value of any form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outline {
    null: bool,
    /// Whether it is null, an empty string, an empty list, or an object whose values except the role are blank.
    blank: bool,
    /// Length of a list. Of an object, that of its tokens: `content` of a chat, `tokens` of completions.
    len: Option<u32>,
    /// Whether a list contains null. Of an object, whether its `token_logprobs` do.
    nulls: bool,
}

impl Outline {
    /// Number of generated tokens in log probabilities, which have an entry for each. `None` if they also cover the prompt (`echo`), whose
    /// first token has no log probability.
    fn generated(self) -> Option<u32> {
        self.len.filter(|_| !self.nulls)
    }
}

impl<'de> Deserialize<'de> for Outline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Outline;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Outline, E> {
                let (null, blank) = (true, true);
                Ok(Outline {
                    null,
                    blank,
                    ..Outline::default()
                })
            }

            fn visit_bool<E>(self, _: bool) -> Result<Outline, E> {
                Ok(Outline::default())
            }

            fn visit_i64<E>(self, _: i64) -> Result<Outline, E> {
                Ok(Outline::default())
            }

            fn visit_u64<E>(self, _: u64) -> Result<Outline, E> {
                Ok(Outline::default())
            }

            fn visit_f64<E>(self, _: f64) -> Result<Outline, E> {
                Ok(Outline::default())
            }

            fn visit_str<E>(self, text: &str) -> Result<Outline, E> {
                let blank = text.is_empty();
                Ok(Outline {
                    blank,
                    ..Outline::default()
                })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Outline, A::Error> {
                let (mut len, mut nulls) = (0_u32, false);
                while let Some(item) = items.next_element::<Outline>()? {
                    len = len.saturating_add(1);
                    nulls |= item.null;
                }
                Ok(Outline {
                    null: false,
                    blank: len == 0,
                    len: Some(len),
                    nulls,
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Outline, A::Error> {
                let mut outline = Outline {
                    blank: true,
                    ..Outline::default()
                };
                while let Some((Text(name), value)) = fields.next_entry::<Text<'_>, Outline>()? {
                    outline.blank &= value.blank || name == "role";
                    match &*name {
                        "content" | "tokens" => outline.len = value.len,
                        "token_logprobs" => outline.nulls = value.nulls,
                        _ => {}
                    }
                }
                Ok(outline)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(json: &str) -> Choices {
        serde_json::from_str(json).expect("choices of any form")
    }

    #[test]
    fn log_probabilities_of_generated_tokens_are_counted_on_both_endpoints() {
        let chat = r#"[{"index":0,"delta":{"content":"a b"},"logprobs":{"content":[
            {"token":" a","logprob":-0.5,"bytes":[32,97],"top_logprobs":[{"token":" a","logprob":-0.5,"bytes":null}]},
            {"token":" b","logprob":-1.5,"bytes":[32,98],"top_logprobs":[]}]}}]"#;
        assert_eq!((choices(chat).logprobs, choices(chat).empty), (Some(2), false));
        let completion = r#"[{"index":1,"text":"","logprobs":{"text_offset":[0,1],"token_logprobs":[-0.1,-9999.0],"tokens":["","\n"],
            "top_logprobs":[{"":-0.1},{"\n":-9999.0}]}}]"#;
        assert_eq!(
            (choices(completion).logprobs, choices(completion).empty),
            (Some(2), true)
        );
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
            assert_eq!(choices(&format!("[{choice}]")).empty, empty, "{choice}");
        }
    }
}
