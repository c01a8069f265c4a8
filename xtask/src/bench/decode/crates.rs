//! Peers from crates.io for the same codecs: serde-pickle and rmp-serde into the columns that tokengap reads, and serde-pickle into a
//! generic value. Both build the whole message before its type is known.

use std::fmt;

use anyhow::ensure;
use serde::Deserialize;
use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde_pickle::{DeOptions, Value};

/// Decoder of a peer; returns the number of requests in the message.
pub(super) type Read = fn(&[u8]) -> anyhow::Result<usize>;

/// Peers that can read `frame`, by name.
pub(super) fn readers(frame: &str) -> &'static [(&'static str, Read)] {
    match frame.split('/').next() {
        Some("0.5.23-msgpack") => &[("rmp-serde, typed", packed)],
        Some("0.5.23") => &[("serde-pickle, any value", any), ("serde-pickle, typed", called)],
        _ => &[("serde-pickle, any value", any), ("serde-pickle, typed", built)],
    }
}

/// Treats classes as null and calls as their arguments; without these options serde-pickle rejects every frame.
fn options() -> DeOptions {
    DeOptions::new().keep_restore_state().replace_unresolved_globals()
}

fn any(message: &[u8]) -> anyhow::Result<usize> {
    let value: Value = serde_pickle::value_from_slice(message, options())?;
    let columns = match &value {
        Value::Dict(columns) => Some(columns),
        Value::Tuple(call) => call.iter().find_map(|part| match part {
            Value::Dict(columns) => Some(columns),
            _ => None,
        }),
        _ => None,
    };
    let rids = columns.and_then(|columns| columns.get(&serde_pickle::HashableValue::String("rids".into())));
    match rids {
        Some(Value::List(rids)) => Ok(rids.len()),
        other => anyhow::bail!("no list of rids but {other:?}"),
    }
}

/// The columns that tokengap reads; serde skips the others.
#[derive(Deserialize)]
struct Columns<Ids> {
    rids: Vec<String>,
    finished_reasons: Vec<Option<IgnoredAny>>,
    output_ids: Vec<Ids>,
    prompt_tokens: Vec<u32>,
    completion_tokens: Vec<u32>,
    cached_tokens: Vec<u32>,
}

impl<Ids> Columns<Ids> {
    fn requests(&self) -> anyhow::Result<usize> {
        let columns = [
            self.finished_reasons.len(),
            self.output_ids.len(),
            self.prompt_tokens.len(),
            self.completion_tokens.len(),
            self.cached_tokens.len(),
        ];
        ensure!(columns == [self.rids.len(); 5], "columns of {columns:?} requests");
        Ok(self.rids.len())
    }
}

/// A dataclass: an object whose state holds its columns.
fn built(message: &[u8]) -> anyhow::Result<usize> {
    let columns: Columns<Vec<i64>> = serde_pickle::from_slice(message, options())?;
    columns.requests()
}

/// A `msgspec.Struct`: a call with its columns. The ids are calls of `array`'s reconstructor, with the words as bytes.
fn called(message: &[u8]) -> anyhow::Result<usize> {
    type Array = (IgnoredAny, String, u8, Bytes);
    let (_, columns): (IgnoredAny, Columns<Array>) = serde_pickle::from_slice(message, options())?;
    columns.requests()
}

/// Owned bytes.
struct Bytes;

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Kept;
        impl Visitor<'_> for Kept {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: de::Error>(self, _: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes)
            }
        }
        from.deserialize_bytes(Kept)
    }
}

/// A msgpack extension, under the name that rmp-serde requires.
#[derive(Deserialize)]
#[serde(rename = "_ExtStruct")]
struct Ext<'a>(#[serde(borrow)] (i8, &'a [u8]));

/// A `msgspec.Struct` encoded as an array, with the column positions of 0.5.23.
struct Packed {
    requests: usize,
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Places)
    }
}

struct Places;

impl<'de> Visitor<'de> for Places {
    type Value = Packed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a class name and its fields")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Packed, A::Error> {
        let mut lens = Vec::new();
        for place in 0.. {
            let len = match place {
                1 => seq.next_element::<Vec<&str>>()?.map(|rids| rids.len()),
                3 => seq
                    .next_element::<Vec<Option<IgnoredAny>>>()?
                    .map(|reasons| reasons.len()),
                7 => seq.next_element::<Vec<Ext<'_>>>()?.map(|ids| {
                    let words = ids.iter().filter(|Ext((kind, words))| *kind == 1 && words.len() >= 6);
                    words.count()
                }),
                11 | 13 | 14 => seq.next_element::<Vec<u32>>()?.map(|counts| counts.len()),
                _ => match seq.next_element::<IgnoredAny>()? {
                    Some(_) => continue,
                    None => None,
                },
            };
            match len {
                Some(len) => lens.push(len),
                None => break,
            }
        }
        match lens.as_slice() {
            [requests, rest @ ..] if rest.len() == 5 && rest.iter().all(|len| len == requests) => {
                Ok(Packed { requests: *requests })
            }
            _ => Err(de::Error::custom(format!("columns of {lens:?} requests"))),
        }
    }
}

fn packed(message: &[u8]) -> anyhow::Result<usize> {
    let Packed { requests } = rmp_serde::from_slice(message)?;
    Ok(requests)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_reader_finds_the_requests() {
        for frame in super::super::FRAMES {
            let message = hot::paths::message(frame).expect("a recorded frame");
            for (name, read) in super::readers(frame) {
                assert_eq!(
                    read(&message).unwrap_or_else(|why| panic!("{frame}, {name}: {why}")),
                    256
                );
            }
        }
    }
}
