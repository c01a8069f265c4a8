//! A msgpack reader without allocation: one pass validates the message, and later reads go directly to a position.

pub(crate) mod runs;
pub(crate) mod type_byte;

use std::ops::Range;

use adapter::decode::Excerpt;

use runs::{count_equal_words, count_repeats};
use type_byte::{
    ARRAY_16, ARRAY_32, BIN_8, BIN_32, EXT_8, EXT_32, FALSE, FIXARRAY_0, FIXARRAY_15, FIXEXT_1, FIXEXT_16, FIXINT_MAX,
    FIXMAP_0, FIXMAP_15, FIXSTR_0, FIXSTR_31, FLOAT_32, FLOAT_64, INT_8, INT_16, INT_32, INT_64, MAP_16, MAP_32,
    NEGATIVE_FIXINT_MIN, NIL, RESERVED, STR_8, STR_32, TRUE, UINT_8, UINT_16, UINT_32, UINT_64,
};

/// Offset in a message of the byte behind what was just read.
pub(crate) type NextOffset = usize;

/// Bytes that are not msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidMsgpack {
    /// The bytes end inside the value that starts here.
    Truncated { at: usize },
    /// A type byte without a meaning.
    Reserved { at: usize },
}

/// Head of a value, with the end of its payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Head {
    Nil,
    Bool(bool),
    Int(i64),
    /// An unsigned integer beyond `i64`.
    Huge(u64),
    Float(f64),
    /// UTF-8 according to msgpack, unchecked here.
    Str {
        end: usize,
    },
    Bin {
        end: usize,
    },
    Array {
        len: u32,
    },
    Map {
        len: u32,
    },
    /// An extension type and the end of its bytes.
    Ext {
        kind: i8,
        end: usize,
    },
}

/// Reads the head at `at`. Returns it with the start of its payload (string bytes, first item). `None` if the value is cut, or if its type
/// byte has no meaning. A container may be cut after its head.
pub(crate) fn read_head(data: &[u8], at: usize) -> Option<(Head, NextOffset)> {
    let first = *data.get(at)?;
    let at = at + 1;
    match first {
        // Small integers, and lengths of short containers and strings, are part of the type byte.
        0..=FIXINT_MAX => Some((Head::Int(i64::from(first)), at)),
        NEGATIVE_FIXINT_MIN..=u8::MAX => Some((Head::Int(i64::from(first as i8)), at)),
        FIXMAP_0..=FIXMAP_15 => Some((Head::Map { len: u32::from(first - FIXMAP_0) }, at)),
        FIXARRAY_0..=FIXARRAY_15 => Some((Head::Array { len: u32::from(first - FIXARRAY_0) }, at)),
        FIXSTR_0..=FIXSTR_31 => sized_head(data, at, usize::from(first - FIXSTR_0), |end| Head::Str { end }),
        NIL => Some((Head::Nil, at)),
        FALSE => Some((Head::Bool(false), at)),
        TRUE => Some((Head::Bool(true), at)),
        // Bytes with a length of 1, 2 or 4 bytes, as below for extensions and strings.
        BIN_8..=BIN_32 => {
            let (len, at) = read_length(data, at, first - BIN_8)?;
            sized_head(data, at, len, |end| Head::Bin { end })
        }
        EXT_8..=EXT_32 => {
            let (len, at) = read_length(data, at, first - EXT_8)?;
            let kind = *data.get(at)? as i8;
            sized_head(data, at + 1, len, |end| Head::Ext { kind, end })
        }
        // Numbers: two floats, unsigned integers of 1 to 8 bytes, and signed ones.
        FLOAT_32 => Some((Head::Float(f64::from(f32::from_be_bytes(be_bytes(data, at)?))), at + 4)),
        FLOAT_64 => Some((Head::Float(f64::from_be_bytes(be_bytes(data, at)?)), at + 8)),
        UINT_8 => Some((Head::Int(i64::from(*data.get(at)?)), at + 1)),
        UINT_16 => Some((Head::Int(i64::from(u16::from_be_bytes(be_bytes(data, at)?))), at + 2)),
        UINT_32 => Some((Head::Int(i64::from(u32::from_be_bytes(be_bytes(data, at)?))), at + 4)),
        UINT_64 => {
            let wide = u64::from_be_bytes(be_bytes(data, at)?);
            Some((i64::try_from(wide).map_or(Head::Huge(wide), Head::Int), at + 8))
        }
        INT_8 => Some((Head::Int(i64::from(*data.get(at)? as i8)), at + 1)),
        INT_16 => Some((Head::Int(i64::from(i16::from_be_bytes(be_bytes(data, at)?))), at + 2)),
        INT_32 => Some((Head::Int(i64::from(i32::from_be_bytes(be_bytes(data, at)?))), at + 4)),
        INT_64 => Some((Head::Int(i64::from_be_bytes(be_bytes(data, at)?)), at + 8)),
        // Extensions of 1, 2, 4, 8 and 16 bytes.
        FIXEXT_1..=FIXEXT_16 => {
            let kind = *data.get(at)? as i8;
            sized_head(data, at + 1, 1 << (first - FIXEXT_1), |end| Head::Ext { kind, end })
        }
        STR_8..=STR_32 => {
            let (len, at) = read_length(data, at, first - STR_8)?;
            sized_head(data, at, len, |end| Head::Str { end })
        }
        ARRAY_16 | ARRAY_32 => {
            // No array has a one-byte length, so the two types stand for 2 and 4 bytes.
            let (len, at) = read_length(data, at, first - ARRAY_16 + 1)?;
            Some((Head::Array { len: len as u32 }, at))
        }
        MAP_16 | MAP_32 => {
            // As for arrays.
            let (len, at) = read_length(data, at, first - MAP_16 + 1)?;
            Some((Head::Map { len: len as u32 }, at))
        }
        RESERVED => None,
    }
}

/// The bytes of the string at `at`, and the offset after it. `None` if the value is cut or not a string.
pub(crate) fn read_string(bytes: &[u8], at: usize) -> Option<(&[u8], NextOffset)> {
    // The usual form of a request id: the type byte, a length of one byte, and the text.
    if let [STR_8, len, rest @ ..] = bytes.get(at..)? {
        let text = rest.get(..usize::from(*len))?;
        return Some((text, at + 2 + text.len()));
    }
    match read_head(bytes, at)? {
        (Head::Str { end }, start) => Some((bytes.get(start..end)?, end)),
        _ => None,
    }
}

/// The text in `bytes`; `None` unless they are UTF-8. A text from an engine is nearly always ASCII, which is much faster to validate.
#[allow(unsafe_code)]
pub(crate) fn utf8(bytes: &[u8]) -> Option<&str> {
    /// Length of most request ids of SGLang, which are UUIDs in hexadecimal.
    const RID_BYTES: usize = 32;
    let is_ascii = match <&[u8; RID_BYTES]>::try_from(bytes) {
        // The bytes are combined with a few vector instructions. The upper bit is set if it is set in any of them.
        Ok(id) => id.iter().fold(0, |bits, byte| bits | byte) < 0x80,
        Err(_) => bytes.is_ascii(),
    };
    if is_ascii {
        // SAFETY: ASCII is UTF-8.
        return Some(unsafe { str::from_utf8_unchecked(bytes) });
    }
    str::from_utf8(bytes).ok()
}

/// Reads the big-endian length at `at`, and returns it with the offset after it. The `size_code` is the number of the type byte among those
/// of its kind: 0, 1 and 2 for lengths of 1, 2 and 4 bytes, as in `STR_8`, `STR_16` and `STR_32`.
fn read_length(bytes: &[u8], at: usize, size_code: u8) -> Option<(usize, NextOffset)> {
    Some(match size_code {
        0 => (usize::from(*bytes.get(at)?), at + 1),
        1 => (usize::from(u16::from_be_bytes(be_bytes(bytes, at)?)), at + 2),
        _ => (u32::from_be_bytes(be_bytes(bytes, at)?) as usize, at + 4),
    })
}

/// Head of a value whose payload of `len` bytes begins at `at`, and that position. `make_head` makes the head from the end of the payload.
/// `None` if the payload is cut.
fn sized_head(bytes: &[u8], at: usize, len: usize, make_head: impl FnOnce(usize) -> Head) -> Option<(Head, usize)> {
    let end = at.checked_add(len)?;
    (end <= bytes.len()).then(|| (make_head(end), at))
}

/// The `N` bytes at `at`, of a big-endian number. `None` if the bytes end before.
pub(crate) fn be_bytes<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Length of a value by its first byte, including the payload; 0 if the first byte does not determine it.
const LENGTH: [u8; 256] = {
    let mut length = [0; 256];
    let mut first = 0;
    while first < 256 {
        let type_byte = first as u8;
        length[first] = match type_byte {
            0..=FIXINT_MAX | NEGATIVE_FIXINT_MIN..=u8::MAX | NIL | FALSE | TRUE => 1,
            FIXSTR_0..=FIXSTR_31 => 1 + type_byte - FIXSTR_0,
            UINT_8 | INT_8 => 2,
            UINT_16 | INT_16 => 3,
            FLOAT_32 | UINT_32 | INT_32 => 5,
            FLOAT_64 | UINT_64 | INT_64 => 9,
            _ => 0,
        };
        first += 1;
    }
    length
};

/// Length of a value that begins with the byte `first`, including the payload; 0 if this byte does not determine it.
#[inline]
fn short_value_len(first: u8) -> usize {
    usize::from(LENGTH[usize::from(first)])
}

/// Length of the run of short values at the beginning of `bytes`, and at most of `values_left` values. A value is short if its first byte
/// determines its length. Subtracts the number of these values from `values_left`.
#[inline]
fn measure_and_count_off_short_values(bytes: &[u8], values_left: &mut u64) -> usize {
    let mut skipped = 0;
    while *values_left > 0
        && let Some(first) = bytes.get(skipped)
        // A length of 0 stands for a value that is not short.
        && let value_length @ 1.. = short_value_len(*first)
        && skipped + value_length <= bytes.len()
    {
        skipped += value_length;
        *values_left -= 1;
    }
    skipped
}

/// Offset after the `value_count` values from `at` on in a part of a message. The contents of strings, bytes and extensions need not have
/// been captured, because their heads state the length. `None` if a head was not captured, or if the values end beyond the part.
pub(crate) fn offset_after_values(part: Excerpt<'_>, mut at: u64, value_count: u32) -> Option<u64> {
    // A container is one value, and adds its items to the values left.
    let mut values_left = u64::from(value_count);
    while values_left > 0 {
        let bytes = part.bytes_from(at)?;
        // Skip a run of short values, whose first byte shows their length.
        let skipped_bytes = measure_and_count_off_short_values(bytes, &mut values_left);
        if skipped_bytes > 0 {
            at += skipped_bytes as u64;
            continue;
        }
        values_left -= 1;
        // Skip a longer value by its length, since its payload may not have been captured.
        if let Some(payload) = payload_range(bytes) {
            at += payload.end;
            continue;
        }
        let (head, head_length) = read_head(bytes, 0)?;
        values_left += count_values_inside(head);
        at += head_length as u64;
    }
    (at <= part.length).then_some(at)
}

/// Number of values in a container: items, or keys and values. 0 for any other value.
#[inline]
fn count_values_inside(head: Head) -> u64 {
    match head {
        Head::Array { len } => u64::from(len),
        Head::Map { len } => 2 * u64::from(len),
        _ => 0,
    }
}

/// Range of the payload of the string, bytes or extension at the beginning of `bytes`. It may end beyond `bytes`. `None` for another value.
pub(crate) fn payload_range(bytes: &[u8]) -> Option<Range<u64>> {
    let first = *bytes.first()?;
    let (length, start) = match first {
        // The type byte of a short string contains the length.
        FIXSTR_0..=FIXSTR_31 => (usize::from(first - FIXSTR_0), 1),
        // Three type bytes in a row are followed by a length of 1, 2 and 4 bytes.
        BIN_8..=BIN_32 => read_length(bytes, 1, first - BIN_8)?,
        STR_8..=STR_32 => read_length(bytes, 1, first - STR_8)?,
        // Extensions have a byte for their kind behind the length.
        EXT_8..=EXT_32 => {
            let (length, kind_at) = read_length(bytes, 1, first - EXT_8)?;
            (length, kind_at + 1)
        }
        // Extensions of 1, 2, 4, 8 and 16 bytes, which follow the type byte and the kind.
        FIXEXT_1..=FIXEXT_16 => (1 << (first - FIXEXT_1), 2),
        _ => return None,
    };
    Some(start as u64..start as u64 + length as u64)
}

/// End of the value at `at` in a message that has been validated, so that the end is within the message. `None` only if no value starts at
/// `at`.
pub(crate) fn end_of_validated_value(bytes: &[u8], at: usize) -> Option<NextOffset> {
    match *bytes.get(at..)? {
        // The head of a short extension has three bytes: type byte, length, and kind.
        [EXT_8, len, ..] => Some(at + 3 + usize::from(len)),
        [first, ..] if short_value_len(first) > 0 => Some(at + short_value_len(first)),
        _ => skip_value(bytes, at).ok(),
    }
}

/// Skips the value at `at`, and returns its end or the error in it. Works without recursion: a container is skipped by its head, and its
/// items are added to the number of values that are left to skip.
pub(crate) fn skip_value(data: &[u8], mut at: usize) -> Result<NextOffset, InvalidMsgpack> {
    let mut values_left = 1u64;
    while values_left > 0 {
        values_left -= 1;
        let rest = data.get(at..).unwrap_or_default();
        match *rest {
            // Values of one byte, which mostly come in long runs.
            [first, ..] if short_value_len(first) == 1 => {
                let following = count_one_byte_values(rest, values_left);
                at += 1 + following;
                values_left -= following as u64;
                continue;
            }
            // Other values whose first byte shows their length.
            [first, ..] if short_value_len(first) > 0 => {
                at += short_value_len(first);
                continue;
            }
            // Strings, bytes and extensions with a one-byte length, and following values of the same type.
            [type_byte @ (STR_8 | BIN_8 | EXT_8), len, ..] => {
                at = skip_values_of_type(data, at, type_byte, len, &mut values_left);
                continue;
            }
            _ => {}
        }
        let (head, payload) = read_head(data, at).ok_or_else(|| invalid_at(data, at))?;
        at = match head {
            Head::Str { end } | Head::Bin { end } | Head::Ext { end, .. } => end,
            // The items of a container follow its head.
            Head::Array { len } => {
                values_left += u64::from(len);
                payload
            }
            Head::Map { len } => {
                // Each entry is a key and a value.
                values_left += 2 * u64::from(len);
                payload
            }
            _ => payload,
        };
    }
    if at <= data.len() { Ok(at) } else { Err(InvalidMsgpack::Truncated { at: data.len() }) }
}

/// Skips the value at `at`, whose one-byte length is `len`, and the following ones of the same type as long as values are left. Returns the
/// end of the last one.
#[inline]
fn skip_values_of_type(data: &[u8], mut at: usize, type_byte: u8, len: u8, values_left: &mut u64) -> NextOffset {
    // An extension also has a byte for its kind.
    let head_len = 2 + usize::from(type_byte == EXT_8);
    at += head_len + usize::from(len);
    while *values_left > 0
        && let Some([next_type, next_len]) = data.get(at..at + 2)
        && *next_type == type_byte
    {
        at += head_len + usize::from(*next_len);
        *values_left -= 1;
    }
    at
}

/// Number of one-byte values, at most `limit`, that follow the one-byte value at the beginning of `bytes`. After a small integer, whose
/// byte is below 0x80, all small integers count. After another value, only identical values count.
fn count_one_byte_values(bytes: &[u8], limit: u64) -> usize {
    /// The upper bit of each byte of a word, which is not set in a small integer.
    const UPPER_BITS: u64 = 0x8080_8080_8080_8080;
    /// The upper bits of a word of small integers.
    const SMALL_INTEGERS: u64 = 0;
    /// Number of values in a word.
    const WORD_VALUES: usize = 8;
    // The first value, and at most `limit` values behind it.
    let max_bytes = usize::try_from(limit).map_or(bytes.len(), |limit| bytes.len().min(limit + 1));
    let bytes = bytes.get(..max_bytes).unwrap_or_default();
    let begins_with_small_integer = matches!(bytes, [0..=FIXINT_MAX, ..]);
    if !begins_with_small_integer {
        return count_repeats::<1>(bytes, 0);
    }
    let start = 0;
    let in_words = WORD_VALUES * count_equal_words(bytes, start, UPPER_BITS, SMALL_INTEGERS);
    let behind_words = bytes[in_words..].iter().take_while(|byte| **byte <= FIXINT_MAX).count();
    // Without the first value, which is in this sum.
    in_words + behind_words - 1
}

/// Why there is no value at `at`.
fn invalid_at(bytes: &[u8], at: usize) -> InvalidMsgpack {
    match bytes.get(at) {
        Some(&RESERVED) => InvalidMsgpack::Reserved { at },
        _ => InvalidMsgpack::Truncated { at },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares the length table and the shortcuts with the reader of heads, one value at a time.
        #[test]
        fn skipping_agrees_with_reading(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            match (skip_value(&bytes, 0), read_head(&bytes, 0)) {
                (Ok(end), Some((Head::Str { end: read } | Head::Bin { end: read } | Head::Ext { end: read, .. }, _))) => {
                    prop_assert_eq!(end, read);
                }
                (Ok(end), Some((Head::Array { .. } | Head::Map { .. }, first))) => {
                    prop_assert!(end >= first && end <= bytes.len());
                }
                (Ok(end), Some((_, next))) => prop_assert_eq!(end, next),
                (Ok(end), None) => prop_assert!(false, "skipped to {end}, but reading fails"),
                (Err(_), Some((Head::Array { .. } | Head::Map { .. }, _)) | None) => {}
                (Err(why), Some(head)) => prop_assert!(false, "{head:?}: {why:?}"),
            }
            if let Ok(end) = skip_value(&bytes, 0) {
                prop_assert_eq!(end_of_validated_value(&bytes, 0), Some(end));
            }
        }
    }

    #[test]
    fn containers_of_absurd_length_are_reported_as_truncated() {
        assert_eq!(
            skip_value(&[0xdd, 0xff, 0xff, 0xff, 0xff].repeat(1000), 0),
            Err(InvalidMsgpack::Truncated { at: 5000 })
        );
        assert_eq!(skip_value(&[0x91, 0xc1], 0), Err(InvalidMsgpack::Reserved { at: 1 }));
    }
}
