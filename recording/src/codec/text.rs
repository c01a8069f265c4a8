//! Texts of a block: each is written at its first use and referenced by index afterwards.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::bytes::{Cursor, Malformed, Put};
use super::columns::Columns;

/// Form of 32 lower-case hexadecimal digits, as in a rid from `uuid4().hex`.
const HEX: u64 = 0;
/// Form of the same in five groups: `str(uuid4())`.
const GROUPED: u64 = 1;
/// First code of plain texts: the code minus `PLAIN` is the length.
const PLAIN: u64 = 2;
/// Byte offsets at which a new group starts.
const GROUPS: [usize; 4] = [4, 6, 8, 10];

/// Texts, concatenated in one string.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    text: String,
    ends: Vec<u32>,
}

impl Arena {
    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    fn end(&mut self) -> u32 {
        self.ends.push(self.text.len() as u32);
        self.ends.len() as u32 - 1
    }

    fn get(&self, id: u32) -> Option<&str> {
        let end = *self.ends.get(id as usize)? as usize;
        let start = match id {
            0 => 0,
            _ => self.ends[id as usize - 1] as usize,
        };
        self.text.get(start..end)
    }
}

/// Texts of a block being written.
#[derive(Debug, Default)]
pub(super) struct Texts {
    arena: Arena,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    pub(super) fn clear(&mut self) {
        self.arena.clear();
        self.ids.clear();
    }

    pub(super) fn is(&self, id: u32, text: &str) -> bool {
        self.arena.get(id).is_some_and(|known| known == text)
    }

    /// Returns the text's index, and whether it is new. A new text is written.
    pub(super) fn place(&mut self, text: &str, columns: &mut Columns<Vec<u8>>) -> (u32, bool) {
        let Self { arena, ids, hasher } = self;
        let hash = hasher.hash_one(text);
        if let Some(&id) = ids.find(hash, |&id| arena.get(id) == Some(text)) {
            return (id, false);
        }
        write(text, columns);
        arena.text.push_str(text);
        let id = arena.end();
        ids.insert_unique(hash, id, |&id| hasher.hash_one(arena.get(id)));
        (id, true)
    }
}

fn write(text: &str, columns: &mut Columns<Vec<u8>>) {
    if let Some(bytes) = hex(text.as_bytes()) {
        columns.text.number(if text.len() == 32 { HEX } else { GROUPED });
        columns.hex.extend_from_slice(&bytes);
    } else {
        columns.text.number(PLAIN + text.len() as u64);
        columns.plain.extend_from_slice(text.as_bytes());
    }
}

/// Decodes 32 hex digits, or the 36 characters of a UUID with hyphens.
fn hex(text: &[u8]) -> Option<[u8; 16]> {
    let hyphens: &[usize] = match text.len() {
        32 => &[],
        36 => &[8, 13, 18, 23],
        _ => return None,
    };
    if hyphens.iter().any(|&at| text[at] != b'-') {
        return None;
    }
    let mut digits = (0..text.len()).filter(|at| !hyphens.contains(at)).map(|at| digit(text[at]));
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        *byte = digits.next()?? << 4 | digits.next()??;
    }
    Some(bytes)
}

fn digit(c: u8) -> Option<u8> {
    char::from(c).to_digit(16).filter(|_| !c.is_ascii_uppercase()).map(|digit| digit as u8)
}

impl Arena {
    /// Reads all texts of a block.
    pub(super) fn fill(&mut self, columns: &mut Columns<Cursor<'_>>) -> Result<(), Malformed> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.clear();
        while !columns.text.is_empty() {
            let form = columns.text.number()?;
            if let Some(length) = form.checked_sub(PLAIN) {
                let bytes = columns.plain.bytes(length as usize)?;
                let text = std::str::from_utf8(bytes).map_err(|_| Malformed("a text is not UTF-8"))?;
                self.text.push_str(text);
            } else {
                for (place, byte) in columns.hex.bytes(16)?.iter().enumerate() {
                    if form == GROUPED && GROUPS.contains(&place) {
                        self.text.push('-');
                    }
                    self.text.push(char::from(DIGITS[usize::from(byte >> 4)]));
                    self.text.push(char::from(DIGITS[usize::from(byte & 15)]));
                }
            }
            self.end();
        }
        Ok(())
    }
}

/// Position of a reader in a block's texts: a new text is always the next one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'b> {
    texts: &'b Arena,
    next: u32,
}

impl<'b> Reading<'b> {
    pub(super) fn new(texts: &'b Arena) -> Self {
        Self { texts, next: 0 }
    }

    pub(super) fn get(&self, id: u32) -> Result<&'b str, Malformed> {
        self.texts.get(id).ok_or(Malformed("reference to an unknown text"))
    }

    /// Index of the next new text.
    pub(super) fn new_place(&mut self) -> Result<u32, Malformed> {
        let id = self.next;
        if id as usize >= self.texts.ends.len() {
            return Err(Malformed("reference to an unknown text"));
        }
        self.next += 1;
        Ok(id)
    }

    /// Text with that index, which may be the next new one.
    pub(super) fn named(&mut self, id: u32) -> Result<&'b str, Malformed> {
        self.next += u32::from(id == self.next);
        self.get(id)
    }

    /// Skips the new texts of a record that was read by index or skipped.
    pub(super) fn pass(&mut self, new: u32) {
        self.next = self.next.saturating_add(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_stored_in_sixteen_bytes() {
        let mut columns = Columns::default();
        let mut texts = Texts::default();
        texts.place("20cba755fa2c4d6aa1e2b0c1d2e3f405", &mut columns);
        texts.place("20cba755-fa2c-4d6a-a1e2-b0c1d2e3f405", &mut columns);
        texts.place("20CBA755FA2C4D6AA1E2B0C1D2E3F405", &mut columns);
        assert_eq!((columns.hex.len(), columns.plain.len()), (32, 32));
    }
}
