//! Values that are inspected but not kept, in JSON and msgpack alike.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

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
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Choice {
            #[serde(default)]
            finish_reason: Option<IgnoredAny>,
            #[serde(default)]
            index: u32,
            #[serde(default)]
            token_ids: Option<Count>,
        }
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Choices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Choices, A::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = items.next_element::<Choice>()? {
                    choices.finished |= choice.finish_reason.is_some();
                    choices.len = choices.len.saturating_add(1);
                    choices.index = choice.index;
                    choices.tokens = choice.token_ids.map(|count| count.0);
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_seq(List)
    }
}
