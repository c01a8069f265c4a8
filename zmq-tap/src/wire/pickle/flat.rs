//! The fast path: a batch of list items that need no building.
//!
//! Nine columns in ten are `MARK item... APPENDS` with nothing but numbers, `None`, booleans, strings and references to
//! strings inside. They are measured here and left where they are; a column that is read decodes them in place.

use super::super::arena::{Node, Seq, kinds};
use super::{op, scalar};

/// A batch that stays in the message.
pub(super) struct Flat {
    /// Its first item; the batch ends before the `APPENDS` at `end`.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) len: u32,
    pub(super) kinds: u8,
}

impl Flat {
    pub(super) fn run(&self) -> Seq {
        Seq::flat(self.start as u32, self.end as u32, self.len, self.kinds)
    }
}

/// Measures the batch whose first item is at `start`. `None` when an item needs the machine (or the bytes end): the
/// memo is then as it was. `memo_limit` is not exceeded; the machine reports it.
pub(super) fn scan(b: &[u8], start: usize, memo: &mut Vec<Node>, memo_limit: usize) -> Option<Flat> {
    let before = memo.len();
    let flat = walk(b, start, memo, memo_limit);
    if flat.is_none() {
        memo.truncate(before);
    }
    flat
}

/// [`scan`] without the clean-up.
pub(super) fn walk(b: &[u8], start: usize, memo: &mut Vec<Node>, memo_limit: usize) -> Option<Flat> {
    let (mut at, mut len, mut set) = (start, 0usize, 0u8);
    loop {
        match *b.get(at)? {
            op::BININT1 => {
                set |= kinds::INT;
                at += 2;
                if b.get(at) == Some(&op::BININT1) {
                    let run = runs(b, at, |word| word & 0x00ff_00ff_00ff_00ff == 0x004b_004b_004b_004b);
                    len += 4 * run;
                    at += 8 * run;
                }
            }
            op::NONE => {
                set |= kinds::NIL;
                at += 1;
                if b.get(at) == Some(&op::NONE) {
                    let run = 8 * runs(b, at, |word| word == 0x4e4e_4e4e_4e4e_4e4e);
                    len += run;
                    at += run;
                }
            }
            op::NEWTRUE | op::NEWFALSE => {
                set |= kinds::OTHER;
                at += 1;
                if matches!(b.get(at), Some(&(op::NEWTRUE | op::NEWFALSE))) {
                    let run = 8 * runs(b, at, |word| word & 0xfefe_fefe_fefe_fefe == 0x8888_8888_8888_8888);
                    len += run;
                    at += run;
                }
            }
            op::BININT2 => {
                set |= kinds::INT;
                at += 3;
            }
            op::BININT => {
                set |= kinds::INT;
                at += 5;
            }
            op::BINFLOAT => {
                set |= kinds::OTHER;
                let more = groups(b, at + 9, |float: &[u8; 9]| float[0] == op::BINFLOAT);
                len += more;
                at += 9 * (1 + more);
            }
            op::SHORT_BINUNICODE => {
                let end = at + 2 + usize::from(*b.get(at + 1)?);
                set |= kinds::STR;
                if b.get(end) == Some(&op::MEMOIZE) && memo.len() < memo_limit {
                    memo.push(Node::Str(at as u32));
                    at = end + 1;
                } else {
                    at = remember(b, Node::Str(at as u32), end, memo, memo_limit)?;
                }
            }
            op::BINUNICODE => {
                let (_, end) = scalar::payload(b, at)?;
                set |= kinds::STR;
                at = remember(b, Node::Str(at as u32), end, memo, memo_limit)?;
            }
            op::BINGET | op::LONG_BINGET => {
                let (slot, next) = slot(b, at)?;
                if slot >= memo.len() {
                    return None;
                }
                set |= kinds::GET;
                // The same string over and over.
                let more = if next == at + 2 {
                    repeats::<2>(b, at)
                } else {
                    repeats::<5>(b, at)
                };
                len += more;
                at = next + more * (next - at);
            }
            op::LONG1 | op::LONG4 => {
                set |= kinds::OTHER;
                at += scalar::int_len(b, at)?;
            }
            op::APPENDS => {
                return Some(Flat {
                    start,
                    end: at,
                    len: len as u32,
                    kinds: set,
                });
            }
            op::FRAME => {
                at = frame(b, at)?;
                continue;
            }
            _ => return None,
        }
        len += 1;
    }
}

/// How many 8-byte words from `at` on satisfy `same`: long runs of one short opcode are most of a frame.
fn runs(b: &[u8], at: usize, same: impl Fn(u64) -> bool) -> usize {
    b[at..]
        .as_chunks()
        .0
        .iter()
        .take_while(|word| same(u64::from_le_bytes(**word)))
        .count()
}

/// How many groups of `N` bytes from `at` on satisfy `same`.
fn groups<const N: usize>(b: &[u8], at: usize, same: impl Fn(&[u8; N]) -> bool) -> usize {
    let rest = b.get(at..).unwrap_or_default();
    rest.as_chunks().0.iter().take_while(|group| same(group)).count()
}

/// How often the `N` bytes at `at` are repeated at once.
pub(super) fn repeats<const N: usize>(b: &[u8], at: usize) -> usize {
    match b.get(at..).and_then(<[u8]>::first_chunk) {
        Some(first) => groups(b, at + N, |next: &[u8; N]| next == first),
        None => 0,
    }
}

/// What follows the `FRAME` at `at`, which CPython writes between any two items. `None` for one that the message does not hold or
/// that is empty: frames are never looked at twice.
pub(super) fn frame(b: &[u8], at: usize) -> Option<usize> {
    let (length, rest) = b.get(at + 1..)?.split_first_chunk()?;
    let whole = u64::from_le_bytes(*length) <= rest.len() as u64;
    (whole && rest.first() != Some(&op::FRAME)).then_some(at + FRAME)
}

/// Length of the opcode `FRAME`.
const FRAME: usize = 9;

/// What is to be read at `at` of a batch that [`scan`] measured.
fn past_frame(b: &[u8], at: usize) -> usize {
    if b.get(at) == Some(&op::FRAME) { at + FRAME } else { at }
}

/// The list of short integers alone whose `EMPTY_LIST MEMOIZE` is at `at`, and what follows it. Told by its first eight bytes
/// where it holds one number, as it does of a request that is decoding.
#[inline]
pub(super) fn number_list(b: &[u8], at: usize) -> Option<(Node, usize)> {
    let head = u64::from_le_bytes(*b.get(at..)?.first_chunk()?);
    let list = |len, start: usize, end: usize| Some((Node::Ints { len, at: start as u32 }, end + 1));
    // The opcodes in the order of their bytes, from the lowest on; between number and APPEND any byte.
    if head & 0xff00_0000_00ff_ffff == 0x6100_0000_004a_945d {
        return list(1, at + 2, at + 7);
    }
    if head & 0x0000_00ff_00ff_ffff == 0x0000_0061_004b_945d {
        return list(1, at + 2, at + 4);
    }
    if head & 0x0000_ff00_00ff_ffff == 0x0000_6100_004d_945d {
        return list(1, at + 2, at + 5);
    }
    match head.to_le_bytes() {
        [op::EMPTY_LIST, op::MEMOIZE, op::MARK, ..] => {
            let (len, end) = numbers(b, at + 3)?;
            list(u16::try_from(len).ok()?, at + 3, end)
        }
        [op::EMPTY_LIST, op::MEMOIZE, op::EMPTY_LIST | op::APPENDS, ..] => list(0, at + 2, at + 1),
        _ => None,
    }
}

/// How many short integers alone are in the batch that begins at `start`, as in most lists of token ids, and where it ends.
#[inline]
fn numbers(b: &[u8], start: usize) -> Option<(u32, usize)> {
    let (mut at, mut len) = (start, 0);
    loop {
        match *b.get(at)? {
            op::BININT1 => {
                let run = bytes_ahead(b, at).max(1);
                len += run;
                at += 2 * run as usize;
            }
            op::BININT2 => {
                len += 1;
                at += 3;
            }
            op::BININT => {
                len += 1;
                at += 5;
            }
            op::APPENDS => return Some((len, at)),
            _ => return None,
        }
    }
}

/// How many `BININT1` follow each other at `at`, as far as eight bytes tell: at most four.
fn bytes_ahead(b: &[u8], at: usize) -> u32 {
    let next = b.get(at..).and_then(<[u8]>::first_chunk);
    let other = |word: [u8; 8]| (u64::from_le_bytes(word) ^ 0x004b_004b_004b_004b) & 0x00ff_00ff_00ff_00ff;
    next.map_or(0, |word| other(*word).trailing_zeros() / 16)
}

/// The batch of one number before an `APPEND`.
pub(super) fn single(b: &[u8], start: usize) -> Option<Flat> {
    let end = start
        + match *b.get(start)? {
            op::BININT1 => 2,
            op::BININT2 => 3,
            op::BININT => 5,
            _ => return None,
        };
    let end = if *b.get(end)? == op::FRAME { frame(b, end)? } else { end };
    (*b.get(end)? == op::APPEND).then_some(Flat {
        start,
        end,
        len: 1,
        kinds: kinds::INT,
    })
}

/// The memo slot that the `GET` at `at` names, and what follows it.
fn slot(b: &[u8], at: usize) -> Option<(usize, usize)> {
    Some(match *b.get(at)? {
        op::BINGET => (usize::from(*b.get(at + 1)?), at + 2),
        op::LONG_BINGET => (u32::from_le_bytes(*b.get(at + 1..)?.first_chunk()?) as usize, at + 5),
        _ => return None,
    })
}

/// Numbers `node` if the opcode at `at` says so; gives what follows.
fn remember(b: &[u8], node: Node, at: usize, memo: &mut Vec<Node>, memo_limit: usize) -> Option<usize> {
    let (slot, next) = match *b.get(at)? {
        op::MEMOIZE => (memo.len(), at + 1),
        op::BINPUT => (usize::from(*b.get(at + 1)?), at + 2),
        op::LONG_BINPUT => (u32::from_le_bytes(*b.get(at + 1..)?.first_chunk()?) as usize, at + 5),
        _ => return Some(at),
    };
    if slot != memo.len() || slot >= memo_limit {
        return None;
    }
    memo.push(node);
    Some(next)
}

/// The item at `at` of a batch that [`scan`] measured, and what follows it.
pub(in super::super) fn item(b: &[u8], at: usize, memo: &[Node]) -> Option<(Node, usize)> {
    let at = past_frame(b, at);
    let here = at as u32;
    let (node, next) = match *b.get(at)? {
        op::BININT1 => (Node::Int(here), at + 2),
        op::BININT2 => (Node::Int(here), at + 3),
        op::BININT => (Node::Int(here), at + 5),
        op::LONG1 | op::LONG4 => (Node::Long(here), at + scalar::int_len(b, at)?),
        op::NONE => (Node::Nil, at + 1),
        op::NEWTRUE => (Node::Bool(true), at + 1),
        op::NEWFALSE => (Node::Bool(false), at + 1),
        op::BINFLOAT => (Node::Float(here), at + 9),
        op::SHORT_BINUNICODE | op::BINUNICODE => (Node::Str(here), after_put(b, scalar::payload(b, at)?.1)),
        _ => {
            let (slot, next) = slot(b, at)?;
            (*memo.get(slot)?, next)
        }
    };
    Some((node, next))
}

/// The bytes of the string at `at` of a batch that [`scan`] measured, and what follows it.
pub(in super::super) fn string(b: &[u8], at: usize) -> Option<(&[u8], usize)> {
    // As nearly every one is written.
    if let [op::SHORT_BINUNICODE, len, rest @ ..] = b.get(at..)?
        && let Some((text, [op::MEMOIZE, ..])) = rest.split_at_checked(usize::from(*len))
    {
        return Some((text, at + 3 + text.len()));
    }
    let (start, end) = scalar::payload(b, past_frame(b, at))?;
    Some((b.get(start..end)?, after_put(b, end)))
}

/// The integer at `at` of a batch that [`scan`] measured and found nothing but short ones in, and what follows it.
pub(in super::super) fn short_int(b: &[u8], at: usize) -> Option<(i32, usize)> {
    scalar::short_int(b, past_frame(b, at))
}

/// What follows the opcode at `at` if that one numbers a value, else `at`.
fn after_put(b: &[u8], at: usize) -> usize {
    at + match b.get(at) {
        Some(&op::MEMOIZE) => 1,
        Some(&op::BINPUT) => 2,
        Some(&op::LONG_BINPUT) => 5,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Opcodes of lists, and other bytes.
    fn byte() -> impl Strategy<Value = u8> {
        let ops = [
            op::BININT1,
            op::BININT2,
            op::BININT,
            op::APPEND,
            op::APPENDS,
            op::MARK,
            op::NONE,
        ];
        prop_oneof![8 => prop::sample::select(ops.to_vec()), 1 => any::<u8>()]
    }

    proptest! {
        /// The list of numbers that is told by its first bytes is what the opcodes say one by one.
        #[test]
        fn a_list_of_numbers_is_what_its_opcodes_say(rest in prop::collection::vec(byte(), 6..40)) {
            let bytes = [&[op::EMPTY_LIST, op::MEMOIZE], rest.as_slice()].concat();
            let mut memo = Vec::new();
            let slowly = match bytes[2] {
                op::MARK => walk(&bytes, 3, &mut memo, 1 << 20).filter(|flat| flat.kinds & !kinds::INT == 0),
                op::EMPTY_LIST | op::APPENDS => Some(Flat { start: 2, end: 1, len: 0, kinds: 0 }),
                _ => single(&bytes, 2),
            };
            let told = |flat: Flat| (Node::Ints { len: flat.len as u16, at: flat.start as u32 }, flat.end + 1);
            prop_assert_eq!(number_list(&bytes, 0), slowly.map(told), "{:02x?}", bytes);
        }
    }
}
