//! Estimate of the memory that msgpack takes once it is decoded: one byte can become a structure of a thousand.

use std::cell::Cell;
use std::fmt;

use rmp_serde::decode::Error;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Bytes of the largest structure. Without a field, all its fields are absent, or it is.
const EMPTY: usize = 1_024;
/// Bytes of a structure, in addition to its encoded fields.
const STRUCTURE: usize = 512;
/// Bytes of any other element of a list, in addition to its encoded content.
const ELEMENT: usize = 32;
/// Deepest nesting, which takes stack.
const DEPTH: usize = 64;

/// Checks the nesting, and that the estimate is at most `limit`, without allocating memory. Binary data counts nothing, because it is only
/// copied.
pub(crate) fn check(msgpack: &[u8], limit: usize) -> Result<(), Error> {
    let left = Cell::new(limit);
    let mut from = rmp_serde::Deserializer::from_read_ref(msgpack);
    from.set_max_depth(DEPTH);
    Meter { left: &left, is_element: false }.deserialize(&mut from).map(drop)
}

/// Subtracts the cost of one value. Its result tells whether the value is a text.
#[derive(Clone, Copy)]
struct Meter<'a> {
    left: &'a Cell<usize>,
    /// The value is one of a list, or of a map whose keys are not names of fields. There may be many.
    is_element: bool,
}

impl Meter<'_> {
    fn charge<E: de::Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or_else(|| E::custom("it would take more memory than the limit"))?);
        Ok(())
    }

    fn charge_element<E: de::Error>(self, bytes: usize) -> Result<(), E> {
        self.charge(if self.is_element { bytes } else { 0 })
    }
}

impl<'de> DeserializeSeed<'de> for Meter<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_any(self)
    }
}

macro_rules! charge_scalars {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: de::Error>(self, _: $type) -> Result<bool, E> {
            self.charge_element(ELEMENT)?;
            Ok(false)
        })*
    };
}

impl<'de> Visitor<'de> for Meter<'_> {
    type Value = bool;

    charge_scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f32: f32, visit_f64: f64, visit_bytes: &[u8]);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the feed")
    }

    fn visit_unit<E: de::Error>(self) -> Result<bool, E> {
        self.charge_element(EMPTY)?;
        Ok(false)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
        self.charge_element(ELEMENT)?;
        self.charge(text.len())?;
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<bool, A::Error> {
        self.charge_element(ELEMENT)?;
        while elements.next_element_seed(Self { is_element: true, ..self })?.is_some() {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<bool, A::Error> {
        let mut is_empty = true;
        while let Some(is_name) = fields.next_key_seed(Self { is_element: false, ..self })? {
            is_empty = false;
            fields.next_value_seed(Self { is_element: !is_name, ..self })?;
        }
        self.charge_element(if is_empty { EMPTY } else { STRUCTURE })?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_bytes::Bytes;
    use trace::{Analysis, Config};

    use super::*;

    fn costs(value: &impl Serialize, limit: usize) -> bool {
        check(&rmp_serde::to_vec_named(value).unwrap(), limit).is_err()
    }

    #[test]
    fn many_small_values_cost_more_than_their_bytes() {
        assert!(costs(&vec![(); 1_000], 1_000_000) && !costs(&vec![(); 1_000], 1_100_000));
        assert!(costs(&std::collections::BTreeMap::from([(7, None::<u8>), (8, None)]), 2_000));
        assert!(costs(&vec![vec![0; 100]; 100], 300_000) && !costs(&vec![vec![0; 100]; 100], 400_000));
        assert!(costs(&"text".repeat(1_000), 3_000));
        assert!(!costs(&vec![Bytes::new(&[0; 5_000])], 100));
        assert!(!costs(&Analysis::new(Config::default()), 64 << 10));
    }

    #[test]
    fn malformed_msgpack_is_an_error() {
        for wrong in [&b"\xdd\xff\xff\xff\xff"[..], b"\xc1", b"", &[0x91; 5_000]] {
            assert!(check(wrong, 1 << 20).is_err());
        }
    }
}
