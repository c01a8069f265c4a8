//! SGLang's msgpack form of `array('q')`.

use std::ops::Range;

use crate::msgpack::{Head, be_bytes, read_head};

/// Length of a word of an `array('q')`.
pub(super) const WORD_BYTES: usize = 8;

/// An `array('q')` of up to 31 words.
pub(super) struct ShortArray {
    /// Position of the first word.
    pub(super) first_word: usize,
    /// Number of words.
    pub(super) words: u16,
}

/// Fast path for an `array('q')` in an extension with a length of one byte: `c7 LENGTH 01 00000002 a1 71`, and the words. `None` for any
/// other value.
#[inline]
pub(super) fn parse_short_array(data: &[u8], at: usize) -> Option<ShortArray> {
    /// The first eight bytes without the length, read as a little-endian number.
    const HEAD: u64 = 0xa102_0000_0001_00c7;
    const LENGTH_MASK: u64 = 0xff00;
    /// The type code, `0x71`.
    const TYPE_CODE_AT: usize = 8;
    /// Number of bytes of the type byte, the length, and the kind.
    const EXTENSION_HEAD: usize = 3;
    /// Number of bytes of the type code as msgpack string, with its length before it.
    const METADATA: usize = 6;
    let rest = data.get(at..)?;
    let head = u64::from_le_bytes(*rest.first_chunk()?);
    let len = usize::from(rest[1]);
    let has_known_head = head & !LENGTH_MASK == HEAD && rest.get(TYPE_CODE_AT) == Some(&b'q');
    let is_whole = rest.len() >= EXTENSION_HEAD + len;
    // `len` counts the metadata, which are shorter than a word, and the words. So whole words leave the metadata as the remainder.
    let has_whole_words = len % WORD_BYTES == METADATA;
    let first_word = at + EXTENSION_HEAD + METADATA;
    let words = (len / WORD_BYTES) as u16;
    (has_known_head && is_whole && has_whole_words).then_some(ShortArray { first_word, words })
}

/// Where the words of the `array('q')` at `at` are, in the forms of SGLang's encoder: extension type 1 (0.5.19 and later), or the pair
/// `["q", bytes]` (0.5.15 to 0.5.18). `None` for anything else.
pub(super) fn find_array_words(data: &[u8], at: usize) -> Option<Range<usize>> {
    if let Some(ShortArray { first_word, words }) = parse_short_array(data, at) {
        return Some(first_word..first_word + WORD_BYTES * usize::from(words));
    }
    let words = match read_head(data, at)? {
        (Head::Ext { kind: 1, end }, start) => range_of_words_in_extension(data, start, end)?,
        (Head::Array { len: 2 }, start) => range_of_words_in_pair(data, start)?,
        _ => return None,
    };
    ((words.end - words.start) % WORD_BYTES == 0).then_some(words)
}

/// Where the words are in an extension whose payload is from `start` to `end`: a big-endian length of four bytes, that many bytes of
/// metadata (the type code as msgpack string), and the words. `None` for other metadata.
fn range_of_words_in_extension(data: &[u8], start: usize, end: usize) -> Option<Range<usize>> {
    const LENGTH_BYTES: usize = 4;
    let metadata_length = u32::from_be_bytes(be_bytes(data, start)?) as usize;
    let metadata = start + LENGTH_BYTES;
    let metadata_end = metadata.checked_add(metadata_length)?;
    let is_only_type_code = offset_after_type_code(data, metadata)? == metadata_end;
    if !is_only_type_code || metadata_end > end {
        return None;
    }
    Some(metadata_end..end)
}

/// Where the words are in the pair of a type code and bytes, whose first item is at `start`. `None` for another pair.
fn range_of_words_in_pair(data: &[u8], start: usize) -> Option<Range<usize>> {
    let bytes_at = offset_after_type_code(data, start)?;
    match read_head(data, bytes_at)? {
        (Head::Bin { end }, first_word) => Some(first_word..end),
        _ => None,
    }
}

/// Offset after the string "q" at `at`; `None` for anything else.
fn offset_after_type_code(bytes: &[u8], at: usize) -> Option<usize> {
    let (Head::Str { end }, start) = read_head(bytes, at)? else { return None };
    let is_type_code = bytes.get(start..end)? == b"q";
    is_type_code.then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msgpack::skip_value;

    #[test]
    fn an_integer_array_decodes_from_both_encodings() {
        let words = 7i64.to_le_bytes();
        let ext = [&[0xc7, 14, 1, 0, 0, 0, 2, 0xa1, b'q'], words.as_slice()].concat();
        let long = [&[0xc8, 0, 14, 1, 0, 0, 0, 2, 0xa1, b'q'], words.as_slice()].concat();
        let pair = [&[0x92, 0xa1, b'q', 0xc4, 8], words.as_slice()].concat();
        for message in [ext, long, pair] {
            let found = find_array_words(&message, 0).unwrap();
            assert_eq!(message[found], words);
            assert_eq!(skip_value(&message, 0), Ok(message.len()));
        }
        assert_eq!(find_array_words(&[0xc7, 7, 1, 0, 0, 0, 2, 0xa1, b'q', 9], 0), None, "an incomplete word");
        assert_eq!(find_array_words(&[0x92, 0xa1, b'd', 0xc4, 0], 0), None, "floats");
    }
}
