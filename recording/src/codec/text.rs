//! Texts of a block: each is written at its first use and referenced by index afterwards.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::bytes::{ColumnCursor, MalformedBlock, PutNumber};
use super::columns::BlockColumns;

/// Form of 32 lower-case hexadecimal digits, as in a rid from `uuid4().hex`.
const FORM_HEX: u64 = 0;
/// Form of the same in five groups: `str(uuid4())`.
const FORM_GROUPED_HEX: u64 = 1;
/// First form of plain texts: the form minus this is the length.
const FORM_PLAIN: u64 = 2;
/// Lengths of texts in both forms, and the number of bytes that either of them encodes.
const HEX_LENGTH: usize = 32;
const GROUPED_HEX_LENGTH: usize = 36;
const HEX_BYTES: usize = 16;
/// Offsets of the hyphens between the groups in a text.
const HYPHEN_OFFSETS: [usize; 4] = [8, 13, 18, 23];
/// Byte offsets at which a new group starts.
const GROUP_STARTS: [usize; 4] = [4, 6, 8, 10];

/// Texts, concatenated in one string.
#[derive(Debug, Default)]
pub(crate) struct TextArena {
    text: String,
    ends: Vec<u32>,
}

impl TextArena {
    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// Marks the end of the text that was just appended, and returns its index.
    fn end_text(&mut self) -> u32 {
        self.ends.push(self.text.len() as u32);
        self.ends.len() as u32 - 1
    }

    /// The text with this index; `None` if there is none.
    fn get(&self, index: u32) -> Option<&str> {
        let index = index as usize;
        let end = *self.ends.get(index)? as usize;
        // A text begins where the one before ends.
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        self.text.get(start..end)
    }
}

/// Texts of a block being written.
#[derive(Debug, Default)]
pub(super) struct TextTable {
    arena: TextArena,
    indices: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl TextTable {
    /// Forgets all texts, for a new block.
    pub(super) fn clear(&mut self) {
        self.arena.clear();
        self.indices.clear();
    }

    /// Whether the text with this index is `text`.
    pub(super) fn is_text(&self, index: u32, text: &str) -> bool {
        self.arena.get(index).is_some_and(|known| known == text)
    }

    /// Returns the index of a text in the block. Writes the text to the columns if the block does not have it yet.
    pub(super) fn add_text(&mut self, text: &str, columns: &mut BlockColumns<Vec<u8>>) -> TextIndex {
        let Self { arena, indices, hasher } = self;
        // The table holds only indices. It compares their texts in the arena.
        let hash = hasher.hash_one(text);
        if let Some(&index) = indices.find(hash, |&index| arena.get(index) == Some(text)) {
            return TextIndex { index, is_new: false };
        }
        write_text(text, columns);
        arena.text.push_str(text);
        let index = arena.end_text();
        indices.insert_unique(hash, index, |&index| hasher.hash_one(arena.get(index)));
        TextIndex { index, is_new: true }
    }
}

/// Index of a text in its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextIndex {
    pub(super) index: u32,
    /// This is its first use.
    pub(super) is_new: bool,
}

/// Writes a text to the columns. A hexadecimal id takes half of its length.
fn write_text(text: &str, columns: &mut BlockColumns<Vec<u8>>) {
    if let Some(bytes) = decode_hex(text.as_bytes()) {
        columns.text.put_number(if text.len() == HEX_LENGTH { FORM_HEX } else { FORM_GROUPED_HEX });
        columns.hex.extend_from_slice(&bytes);
    } else {
        // From `FORM_PLAIN` on, the number also has the length.
        columns.text.put_number(FORM_PLAIN + text.len() as u64);
        columns.plain.extend_from_slice(text.as_bytes());
    }
}

/// Decodes 32 hex digits, or the 36 characters of a UUID with hyphens; `None` for any other text.
fn decode_hex(text: &[u8]) -> Option<[u8; HEX_BYTES]> {
    let hyphens: &[usize] = match text.len() {
        HEX_LENGTH => &[],
        GROUPED_HEX_LENGTH => &HYPHEN_OFFSETS,
        _ => return None,
    };
    let mut bytes = [0; HEX_BYTES];
    let mut digit_count = 0;
    for (index, &character) in text.iter().enumerate() {
        if hyphens.contains(&index) {
            if character != b'-' {
                return None;
            }
            continue;
        }
        // Two digits make a byte, the upper one first.
        let byte = &mut bytes[digit_count / 2];
        *byte = (*byte << 4) | hex_digit(character)?;
        digit_count += 1;
    }
    Some(bytes)
}

/// Value of a lower-case hexadecimal digit; `None` for another character.
fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        // A reader restores lower case only, so a text with upper case is kept as plain text.
        _ => None,
    }
}

impl TextArena {
    /// Reads all texts of a block. They replace those of the previous block.
    pub(super) fn read_texts(&mut self, columns: &mut BlockColumns<ColumnCursor<'_>>) -> Result<(), MalformedBlock> {
        self.clear();
        while !columns.text.is_empty() {
            let form = columns.text.read_number()?;
            // From `FORM_PLAIN` on, the form also has the length of the text.
            if let Some(length) = form.checked_sub(FORM_PLAIN) {
                let bytes = columns.plain.read_bytes(length as usize)?;
                let text = std::str::from_utf8(bytes).map_err(|_| MalformedBlock("a text is not UTF-8"))?;
                self.text.push_str(text);
            } else {
                let is_grouped = form == FORM_GROUPED_HEX;
                self.push_hex(columns.hex.read_bytes(HEX_BYTES)?, is_grouped);
            }
            self.end_text();
        }
        Ok(())
    }

    /// Appends bytes as lower-case hexadecimal digits. If `is_grouped`, puts hyphens between the groups, as a UUID has them.
    #[inline]
    fn push_hex(&mut self, bytes: &[u8], is_grouped: bool) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for (position, byte) in bytes.iter().enumerate() {
            if is_grouped && GROUP_STARTS.contains(&position) {
                self.text.push('-');
            }
            self.text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            self.text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

/// Position of a reader in a block's texts: a new text is always the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextReader<'b> {
    texts: &'b TextArena,
    next: u32,
}

impl<'b> TextReader<'b> {
    pub(super) fn new(texts: &'b TextArena) -> Self {
        Self { texts, next: 0 }
    }

    /// The text with this index; an error if there is none.
    pub(super) fn get(&self, index: u32) -> Result<&'b str, MalformedBlock> {
        self.texts.get(index).ok_or(MalformedBlock("reference to an unknown text"))
    }

    /// Takes the next new text, and returns its index.
    pub(super) fn take_new_text_index(&mut self) -> Result<u32, MalformedBlock> {
        let index = self.next;
        if index as usize >= self.texts.ends.len() {
            return Err(MalformedBlock("reference to an unknown text"));
        }
        self.next += 1;
        Ok(index)
    }

    /// Text with that index, which may be the next new one.
    pub(super) fn get_text_or_take_new(&mut self, index: u32) -> Result<&'b str, MalformedBlock> {
        // The first reference to the next new text takes it.
        if index == self.next {
            self.next += 1;
        }
        self.get(index)
    }

    /// Skips `count` new texts: those of a record that refers to its texts by index, or that is skipped.
    pub(super) fn skip_new(&mut self, count: u32) {
        self.next = self.next.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_stored_in_sixteen_bytes() {
        let mut columns = BlockColumns::default();
        let mut texts = TextTable::default();
        texts.add_text("20cba755fa2c4d6aa1e2b0c1d2e3f405", &mut columns);
        texts.add_text("20cba755-fa2c-4d6a-a1e2-b0c1d2e3f405", &mut columns);
        texts.add_text("20CBA755FA2C4D6AA1E2B0C1D2E3F405", &mut columns);
        assert_eq!((columns.hex.len(), columns.plain.len()), (32, 32));
    }
}
