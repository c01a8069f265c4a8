//! Opcodes that carry their value: their lengths and values, read in place.

use std::ops::Range;

use super::op;
use crate::msgpack::NextOffset;

/// Where the payload of the string or bytes opcode at `at` is. `None` for another opcode, or if the message ends before the payload does.
#[inline]
pub(in super::super) fn payload_range(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    // The opcode is followed by a length of one, four or eight bytes, and that by the payload.
    let len_at = at + 1;
    let (start, len) = match *bytes.get(at)? {
        op::SHORT_BINUNICODE | op::SHORT_BINBYTES => (len_at + 1, usize::from(*bytes.get(len_at)?)),
        op::BINUNICODE | op::BINBYTES => (len_at + 4, u32::from_le_bytes(le_bytes(bytes, len_at)?) as usize),
        op::BINUNICODE8 | op::BINBYTES8 | op::BYTEARRAY8 => {
            let len = u64::from_le_bytes(le_bytes(bytes, len_at)?);
            (len_at + 8, usize::try_from(len).ok()?)
        }
        _ => return None,
    };
    let end = start.checked_add(len)?;
    (end <= bytes.len()).then_some(start..end)
}

/// The `N` bytes at `at`, of a little-endian number. `None` if the bytes end before.
#[inline]
fn le_bytes<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Whether the string at `at` is `text`.
#[inline]
pub(in super::super) fn text_equals(bytes: &[u8], at: usize, text: &[u8]) -> bool {
    // The encoding of field names.
    if let Some([op::SHORT_BINUNICODE, len, rest @ ..]) = bytes.get(at..) {
        return usize::from(*len) == text.len() && rest.starts_with(text);
    }
    payload_range(bytes, at).and_then(|payload| bytes.get(payload)) == Some(text)
}

/// Integer of the opcode at `at`; `None` for another opcode, or if the integer does not fit 64 bits.
pub(in super::super) fn read_int(data: &[u8], at: usize) -> Option<i64> {
    let (opcode, argument) = data.get(at..)?.split_first()?;
    match *opcode {
        op::BININT1 => Some(i64::from(*argument.first()?)),
        op::BININT2 => Some(i64::from(u16::from_le_bytes(*argument.first_chunk()?))),
        op::BININT => Some(i64::from(i32::from_le_bytes(*argument.first_chunk()?))),
        // The number of bytes, in one byte or four, then the number in these bytes.
        op::LONG1 => {
            let (len, digits) = argument.split_first()?;
            decode_long(digits.get(..usize::from(*len))?)
        }
        op::LONG4 => {
            let (len, digits) = argument.split_first_chunk()?;
            decode_long(digits.get(..u32::from_le_bytes(*len) as usize)?)
        }
        _ => None,
    }
}

/// Integer of at most 32 bits at `at`, and the offset after it. `None` for another opcode.
pub(super) fn read_short_int(bytes: &[u8], at: usize) -> Option<(i32, NextOffset)> {
    let rest = bytes.get(at..)?;
    Some(match *rest.first()? {
        op::BININT1 => (i32::from(*rest.get(1)?), at + op::BININT1_LEN),
        op::BININT2 => (i32::from(u16::from_le_bytes([*rest.get(1)?, *rest.get(2)?])), at + op::BININT2_LEN),
        op::BININT => (i32::from_le_bytes(*rest.get(1..)?.first_chunk()?), at + op::BININT_LEN),
        _ => return None,
    })
}

/// Decodes two's complement, little endian, in the minimum number of bytes. `None` for more than eight bytes.
fn decode_long(digits: &[u8]) -> Option<i64> {
    // The highest bit of the last byte is the sign; an empty number is 0.
    let negative = digits.last().is_some_and(|top| top & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    // More than eight bytes do not fit.
    wide.get_mut(..digits.len())?.copy_from_slice(digits);
    Some(i64::from_le_bytes(wide))
}

/// Float of the `BINFLOAT` at `at`.
pub(in super::super) fn read_float(bytes: &[u8], at: usize) -> Option<f64> {
    // Big endian, unlike the integers.
    Some(f64::from_be_bytes(*bytes.get(at + 1..)?.first_chunk()?))
}

/// Length of the integer opcode at `at` with its value, which may exceed 64 bits. `None` for another opcode, or if the value is cut.
pub(super) fn int_opcode_len(bytes: &[u8], at: usize) -> Option<usize> {
    let len = match *bytes.get(at)? {
        op::BININT1 => op::BININT1_LEN,
        op::BININT2 => op::BININT2_LEN,
        op::BININT => op::BININT_LEN,
        // The opcode, and the number of bytes of the value in one byte or in four.
        op::LONG1 => 2 + usize::from(*bytes.get(at + 1)?),
        op::LONG4 => {
            let value_bytes = u32::from_le_bytes(le_bytes(bytes, at + 1)?) as usize;
            value_bytes.checked_add(5)?
        }
        _ => return None,
    };
    (at.checked_add(len)? <= bytes.len()).then_some(len)
}
