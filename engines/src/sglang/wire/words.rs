//! SGLang's msgpack form of `array('q')`.

use std::ops::Range;

use crate::msgpack::{Head, be_bytes, read_head};

/// Length of a word of an `array('q')`.
pub(super) const WORD_BYTES: usize = 8;

/// Fast path for an `array('q')` of up to 31 words with two bytes of metadata. Returns the position of the first word and the number of
/// words. `None` for any other value.
#[inline]
pub(super) fn parse_short_array(data: &[u8], at: usize) -> Option<(usize, u16)> {
    // `c7 LENGTH 01 00000002 a1 71`.
    let rest = data.get(at..)?;
    // Eight bytes are compared at once; the mask leaves out the length.
    let head = u64::from_le_bytes(*rest.first_chunk()?);
    let len = usize::from(rest[1]);
    let has_known_head = head & !0xff00 == 0xa102_0000_0001_00c7 && rest.get(8) == Some(&b'q');
    let is_whole = rest.len() >= 3 + len;
    // Six bytes of metadata, and the words.
    let has_whole_words = len % WORD_BYTES == 6;
    // The type byte, the length, the kind, and the metadata precede the words.
    (has_known_head && is_whole && has_whole_words).then_some((at + 9, (len / WORD_BYTES) as u16))
}

/// Where the words of the `array('q')` at `at` are, in the forms of SGLang's encoder: extension type 1 (0.5.19 and later), or the pair
/// `["q", bytes]` (0.5.15 to 0.5.18). `None` for anything else.
pub(super) fn find_array_words(data: &[u8], at: usize) -> Option<Range<usize>> {
    if let Some((start, words)) = parse_short_array(data, at) {
        return Some(start..start + WORD_BYTES * usize::from(words));
    }
    let words = match read_head(data, at)? {
        (Head::Ext { kind: 1, end }, start) => {
            // A big-endian length of four bytes, that many bytes of metadata (the type code as msgpack string), then the words.
            let metadata = start + 4;
            let metadata_end = metadata.checked_add(u32::from_be_bytes(be_bytes(data, start)?) as usize)?;
            let is_only_type_code = skip_type_code(data, metadata)? == metadata_end;
            if !is_only_type_code || metadata_end > end {
                return None;
            }
            metadata_end..end
        }
        (Head::Array { len: 2 }, start) => {
            let behind_code = skip_type_code(data, start)?;
            match read_head(data, behind_code)? {
                (Head::Bin { end }, start) => start..end,
                _ => return None,
            }
        }
        _ => return None,
    };
    ((words.end - words.start) % WORD_BYTES == 0).then_some(words)
}

/// Offset after the string "q" at `at`; `None` for anything else.
fn skip_type_code(bytes: &[u8], at: usize) -> Option<usize> {
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
