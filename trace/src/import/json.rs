//! Lines that are one JSON object: a log collector's wrapper, a structured logger's line, or the engine's own records.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::meta::Meta;

/// Wanted fields of a line's JSON object; prompts and outputs are skipped.
#[derive(Debug, Default)]
pub(super) struct Object<'l> {
    /// `time`, `ts`, `timestamp`, `@timestamp`.
    pub(super) time: Option<Scalar<'l>>,
    /// `log`, `msg`, `message`.
    pub(super) message: Option<Cow<'l, str>>,
    /// `event`, as the engine's request logger names it.
    pub(super) event: Option<Cow<'l, str>>,
    /// `rid`, or `id` of request metrics.
    pub(super) rid: Option<Cow<'l, str>>,
    /// Whether it is a record of the engine's request metrics.
    pub(super) metrics: bool,
    /// Times by the engine, from the record itself or from `out.meta_info`.
    pub(super) meta: Meta,
}

/// A number or a string; anything else is [`Scalar::Other`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'l> {
    Number(f64),
    /// An integer, since a timestamp in nanoseconds must be exact.
    Whole(u64),
    Text(Cow<'l, str>),
    Other,
}

impl<'l> Scalar<'l> {
    fn text(self) -> Option<Cow<'l, str>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self) -> Option<f64> {
        match *self {
            Self::Number(n) => Some(n),
            Self::Whole(n) => Some(n as f64),
            Self::Text(_) | Self::Other => None,
        }
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Object<'l> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Object::default();
        deserializer.deserialize_map(Fill(&mut object))?;
        Ok(object)
    }
}

/// Visitor that fills an object from a map.
struct Fill<'o, 'l>(&'o mut Object<'l>);

impl<'de: 'l, 'l> Visitor<'de> for Fill<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let object = self.0;
        while let Some(Scalar::Text(key)) = map.next_key::<Scalar<'de>>()? {
            match &*key {
                "time" | "ts" | "timestamp" | "@timestamp" => {
                    let time = map.next_value::<Scalar<'de>>()?;
                    object.time.get_or_insert(time);
                }
                "log" | "msg" | "message" => {
                    let text = map.next_value::<Scalar<'de>>()?.text();
                    object.message = object.message.take().or(text);
                }
                "event" => object.event = map.next_value::<Scalar<'de>>()?.text(),
                "rid" | "id" => {
                    let text = map.next_value::<Scalar<'de>>()?.text();
                    object.rid = object.rid.take().or(text);
                }
                "request_parameters" => {
                    object.metrics = true;
                    map.next_value::<IgnoredAny>()?;
                }
                "text" | "output_ids" | "obj" => drop(map.next_value::<IgnoredAny>()?),
                "fields" | "out" | "meta_info" => map.next_value_seed(Nested(object))?,
                key => {
                    let value = map.next_value::<Scalar<'de>>()?;
                    if let Some(number) = value.number() {
                        object.meta.set(key, number);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Nested object with the same keys; other values in its place are ignored.
struct Nested<'o, 'l>(&'o mut Object<'l>);

impl<'de: 'l, 'l> serde::de::DeserializeSeed<'de> for Nested<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! ignored {
    ($($visit:ident: $of:ty),*) => {
        $(fn $visit<E>(self, _: $of) -> Result<Self::Value, E> {
            Ok(Self::Value::default())
        })*
    };
}

impl<'de: 'l, 'l> Visitor<'de> for Nested<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    ignored!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Fill(self.0).visit_map(map)
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Scalar<'l> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Scalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
                Ok(Scalar::Number(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Scalar::Whole(number))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Scalar::Number(number as f64))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Scalar::Other)
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Scalar::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Other)
            }
        }

        deserializer.deserialize_any(Any)
    }
}
