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

/// Whether any item of a list has a `finish_reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnyFinished(pub(super) bool);

impl<'de> Deserialize<'de> for AnyFinished {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Choice {
            #[serde(default)]
            finish_reason: Option<IgnoredAny>,
        }
        struct Choices;
        impl<'de> Visitor<'de> for Choices {
            type Value = AnyFinished;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<AnyFinished, A::Error> {
                let mut any = false;
                while let Some(choice) = items.next_element::<Choice>()? {
                    any |= choice.finish_reason.is_some();
                }
                Ok(AnyFinished(any))
            }
        }
        deserializer.deserialize_seq(Choices)
    }
}
