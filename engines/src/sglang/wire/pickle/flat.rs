//! Fast path for batches of list items that need no building.
//!
//! About nine columns in ten are `MARK item... APPENDS` with only numbers, `None`, booleans, strings and references to strings. Such a
//! batch is measured and left in the message. A column that is read decodes it in place.

use super::super::arena::{ListRun, Node, kinds};
use super::{op, scalar};
use crate::msgpack::NextOffset;
use crate::msgpack::runs::{count_equal_words, count_repeats};

/// A batch that stays in the message.
pub(super) struct FlatBatch {
    /// Position of the first item. The batch ends before the `APPENDS` at `end`.
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) len: u32,
    pub(super) kinds: u8,
}

impl FlatBatch {
    pub(super) fn to_list_run(&self) -> ListRun {
        ListRun::flat(self.start as u32, self.end as u32, self.len, self.kinds)
    }
}

/// Measures the batch whose first item is at `start`, and enters its strings into the memo. The machine must run the opcodes one by one if
/// an item is a container or object, the memo reaches its limit, or the message ends: `None`, with the memo unchanged.
pub(super) fn measure_batch_and_memoize_strings(
    bytes: &[u8],
    start: usize,
    memo: &mut Vec<Node>,
    memo_limit: usize,
) -> Option<FlatBatch> {
    let memo_before = memo.len();
    let batch = scan_items(bytes, start, memo, memo_limit);
    if batch.is_none() {
        memo.truncate(memo_before);
    }
    batch
}

/// Measures the batch of flat items from `start` on, and enters its strings into the memo. `None` if the machine must run the opcodes one
/// by one; the memo may then have some of the strings.
pub(super) fn scan_items(data: &[u8], start: usize, memo: &mut Vec<Node>, memo_limit: usize) -> Option<FlatBatch> {
    let mut at = start;
    let mut len = 0_usize;
    // Bit set of `kinds`.
    let mut set = 0_u8;
    loop {
        match *data.get(at)? {
            op::BININT1 => {
                set |= kinds::INT;
                at += op::BININT1_LEN;
                if data.get(at) == Some(&op::BININT1) {
                    // A word holds four of them.
                    let words = count_words_of_one_byte_ints(data, at);
                    len += 4 * words;
                    at += 8 * words;
                }
            }
            op::NONE => {
                set |= kinds::NIL;
                let repeats = count_repeats::<1>(data, at);
                len += repeats;
                at += 1 + repeats;
            }
            op::NEWTRUE | op::NEWFALSE => {
                set |= kinds::OTHER;
                at += 1;
                if matches!(data.get(at), Some(&(op::NEWTRUE | op::NEWFALSE))) {
                    let bools = 8 * count_words_of_bools(data, at);
                    len += bools;
                    at += bools;
                }
            }
            op::BININT2 => {
                set |= kinds::INT;
                at += op::BININT2_LEN;
            }
            op::BININT => {
                set |= kinds::INT;
                at += op::BININT_LEN;
            }
            op::BINFLOAT => {
                set |= kinds::OTHER;
                let further_floats = count_floats(data, at + op::BINFLOAT_LEN);
                len += further_floats;
                at += op::BINFLOAT_LEN * (1 + further_floats);
            }
            op::SHORT_BINUNICODE | op::BINUNICODE => {
                set |= kinds::STR;
                let ScannedStrings { count, next } = memoize_strings(data, at, memo, memo_limit);
                if count > 0 {
                    // The end of the loop counts one of them.
                    len += count - 1;
                    at = next;
                } else {
                    let text = scalar::payload_range(data, at)?;
                    at = memoize_node_if_requested(data, Node::Str(at as u32), text.end, memo, memo_limit)?;
                }
            }
            op::BINGET | op::LONG_BINGET => {
                let MemoGet { slot, next } = read_memo_get(data, at)?;
                // The machine reports a reference to a slot that is not set.
                if slot >= memo.len() {
                    return None;
                }
                set |= kinds::GET;
                // The same string repeated.
                let get_len = next - at;
                let repeats = match get_len {
                    op::BINGET_LEN => count_repeats::<{ op::BINGET_LEN }>(data, at),
                    _ => count_repeats::<{ op::LONG_BINGET_LEN }>(data, at),
                };
                len += repeats;
                at = next + repeats * get_len;
            }
            op::LONG1 | op::LONG4 => {
                set |= kinds::OTHER;
                at += scalar::int_opcode_len(data, at)?;
            }
            op::APPENDS => {
                return Some(FlatBatch { start, end: at, len: len as u32, kinds: set });
            }
            op::FRAME => {
                at = offset_after_single_frame_header(data, at)?;
                continue;
            }
            _ => return None,
        }
        len += 1;
    }
}

/// Number of consecutive words from `at` on that are four `BININT1` (0x4b) with a value each, so that every other byte is known.
#[inline]
fn count_words_of_one_byte_ints(data: &[u8], at: usize) -> usize {
    count_equal_words(data, at, 0x00ff_00ff_00ff_00ff, 0x004b_004b_004b_004b)
}

/// Number of consecutive words from `at` on that are eight `NEWTRUE` (0x88) or `NEWFALSE` (0x89), which differ in the lowest bit only.
#[inline]
fn count_words_of_bools(data: &[u8], at: usize) -> usize {
    count_equal_words(data, at, 0xfefe_fefe_fefe_fefe, 0x8888_8888_8888_8888)
}

/// Consecutive short strings of a batch.
struct ScannedStrings {
    count: usize,
    /// Offset after them.
    next: usize,
}

/// Enters short strings from `at` on into the memo, the table of values for later references. Stops at another item, and at a string that
/// is memoized in an explicit slot, which is rare.
fn memoize_strings(bytes: &[u8], mut at: usize, memo: &mut Vec<Node>, memo_limit: usize) -> ScannedStrings {
    /// Length of `SHORT_BINUNICODE` with the length of the text, and of `MEMOIZE`.
    const OPCODE_BYTES: usize = 3;
    let first = memo.len();
    let mut rest = bytes.get(at..).unwrap_or_default();
    while memo.len() < memo_limit
        && let [op::SHORT_BINUNICODE, len, text @ ..] = rest
        && let Some((_, [op::MEMOIZE, after @ ..])) = text.split_at_checked(usize::from(*len))
    {
        memo.push(Node::Str(at as u32));
        at += OPCODE_BYTES + usize::from(*len);
        rest = after;
    }
    ScannedStrings { count: memo.len() - first, next: at }
}

/// Number of consecutive `BINFLOAT` from `at` on.
fn count_floats(bytes: &[u8], at: usize) -> usize {
    /// Number of opcodes that are compared without a branch for each.
    const BLOCK: usize = 8;
    let opcodes: &[[u8; op::BINFLOAT_LEN]] = bytes.get(at..).unwrap_or_default().as_chunks().0;
    let blocks = opcodes.as_chunks::<BLOCK>().0;
    let blocks_of_floats = blocks.iter().take_while(|block| {
        // The differences from the opcode are collected in one byte, which stays 0 if all are floats.
        let difference = block.iter().fold(0, |difference, opcode| difference | (opcode[0] ^ op::BINFLOAT));
        difference == 0
    });
    let in_blocks = BLOCK * blocks_of_floats.count();
    // The next block may begin with floats.
    let in_rest = opcodes[in_blocks..].iter().take_while(|opcode| opcode[0] == op::BINFLOAT).count();
    in_blocks + in_rest
}

/// Offset after the `FRAME` at `at`, which CPython writes between any two items. `None` if the message ends before the frame, or if another
/// `FRAME` follows: two frames in a row are left to the machine.
pub(super) fn offset_after_single_frame_header(bytes: &[u8], at: usize) -> Option<usize> {
    let (length, rest) = bytes.get(at + 1..)?.split_first_chunk()?;
    let fits = u64::from_le_bytes(*length) <= rest.len() as u64;
    (fits && rest.first() != Some(&op::FRAME)).then_some(at + op::FRAME_LEN)
}

/// Offset of the item at `at` in a batch that [`measure_batch_and_memoize_strings`] measured, after a `FRAME` if there is one.
fn past_frame(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at) == Some(&op::FRAME) { at + op::FRAME_LEN } else { at }
}

/// A list that holds only short integers, as offsets from its `EMPTY_LIST MEMOIZE`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ShortIntList {
    pub(super) len: u16,
    /// Offset of the first integer.
    pub(super) first: usize,
    /// Offset after the list.
    pub(super) next: usize,
}

/// Byte of the word with this index, counted from the lowest.
#[inline]
fn nth_byte(word: u64, index: usize) -> u8 {
    (word >> (8 * index)) as u8
}

/// Parses a list of only short integers at the beginning of `bytes`. `None` for any other list. A list of several integers is
/// `EMPTY_LIST MEMOIZE MARK integers APPENDS`. A list of one, as of a decoding request, is `EMPTY_LIST MEMOIZE integer APPEND`, and fits
/// into eight bytes.
#[inline]
pub(super) fn parse_short_int_list(bytes: &[u8]) -> Option<ShortIntList> {
    const LIST: u16 = u16::from_le_bytes([op::EMPTY_LIST, op::MEMOIZE]);
    const LIST_WITH_MARK: u32 = u32::from_le_bytes([op::EMPTY_LIST, op::MEMOIZE, op::MARK, 0]);
    const LIST_WITH_MARK_BYTES: usize = 3;
    const THREE_BYTES: u32 = 0xff_ffff;
    // The first eight bytes as one number, of which the first byte is the lowest: one load for all comparisons.
    let head = u64::from_le_bytes(*bytes.first_chunk()?);
    // The common case of several numbers.
    if head as u32 & THREE_BYTES == LIST_WITH_MARK {
        let first = LIST_WITH_MARK_BYTES;
        let ShortIntBatch { len, end } = scan_short_ints(bytes, first)?;
        let after_appends = end + 1;
        return Some(ShortIntList { len: u16::try_from(len).ok()?, first, next: after_appends });
    }
    if head as u16 == LIST { parse_list_without_mark(head) } else { None }
}

/// Parses a list of one short integer or none, whose first eight bytes are `head` and begin with `EMPTY_LIST MEMOIZE`. `None` for any other
/// list.
#[inline]
fn parse_list_without_mark(head: u64) -> Option<ShortIntList> {
    /// Length of `EMPTY_LIST MEMOIZE`.
    const FIRST: usize = 2;
    let opcode = nth_byte(head, FIRST);
    let int_len = match opcode {
        op::BININT | op::BININT2 => wide_int_len(opcode),
        op::BININT1 => op::BININT1_LEN,
        // An empty list, before the next list or at the end of the batch.
        op::EMPTY_LIST | op::APPENDS => return Some(ShortIntList { len: 0, first: FIRST, next: FIRST }),
        _ => return None,
    };
    // Picklers append a single number without a mark.
    let append_at = FIRST + int_len;
    let is_single = nth_byte(head, append_at) == op::APPEND;
    is_single.then_some(ShortIntList { len: 1, first: FIRST, next: append_at + 1 })
}

/// A batch of only short integers.
struct ShortIntBatch {
    len: u32,
    /// Offset of the `APPENDS` that ends it.
    end: usize,
}

/// Measures the batch of integers at `start`. `None` unless all are short, as in most lists of token ids.
///
/// Token ids have two widths at random, which defeats branch prediction. Widths therefore come from a table. Only runs of one-byte
/// integers, as in columns of small numbers, get a branch.
#[inline]
fn scan_short_ints(bytes: &[u8], start: usize) -> Option<ShortIntBatch> {
    let mut at = start;
    let mut len = 0;
    loop {
        let opcode = *bytes.get(at)?;
        let width = short_int_len(opcode);
        if opcode == op::BININT1 {
            at += op::BININT1_LEN;
            len += 1;
            while has_four_one_byte_ints_at(bytes, at) {
                at += 4 * op::BININT1_LEN;
                len += 4;
            }
        } else if width > 0 {
            at += width;
            len += 1;
        } else {
            // The end of the batch, or an item of another kind.
            return (opcode == op::APPENDS).then_some(ShortIntBatch { len, end: at });
        }
    }
}

/// Length of a `BININT` or a `BININT2` with its argument.
#[inline]
fn wide_int_len(opcode: u8) -> usize {
    // Three bytes, or five, without a branch.
    3 + 2 * usize::from(opcode == op::BININT)
}

/// Length of the short integer that begins with `opcode`; 0 for any other opcode. From a table, because branches would be unpredictable.
#[inline]
pub(super) fn short_int_len(opcode: u8) -> usize {
    static LENGTHS: [u8; 256] = {
        let mut lengths = [0; 256];
        lengths[op::BININT1 as usize] = op::BININT1_LEN as u8;
        lengths[op::BININT2 as usize] = op::BININT2_LEN as u8;
        lengths[op::BININT as usize] = op::BININT_LEN as u8;
        lengths
    };
    LENGTHS[usize::from(opcode)].into()
}

/// Whether the next four opcodes at `at` are `BININT1`, which are integers of one byte.
#[inline]
fn has_four_one_byte_ints_at(bytes: &[u8], at: usize) -> bool {
    let next = bytes.get(at..).and_then(<[u8]>::first_chunk);
    // `BININT1` is 0x4b. Opcodes and values alternate, and the mask leaves out the values.
    next.is_some_and(|word| u64::from_le_bytes(*word) & 0x00ff_00ff_00ff_00ff == 0x004b_004b_004b_004b)
}

/// Parses a batch of one short integer before an `APPEND`; `None` for anything else.
pub(super) fn scan_single_int(bytes: &[u8], start: usize) -> Option<FlatBatch> {
    let width = short_int_len(*bytes.get(start)?);
    if width == 0 {
        return None;
    }
    let mut end = start + width;
    let mut next_opcode = *bytes.get(end)?;
    if next_opcode == op::FRAME {
        end = offset_after_single_frame_header(bytes, end)?;
        next_opcode = *bytes.get(end)?;
    }
    (next_opcode == op::APPEND).then_some(FlatBatch { start, end, len: 1, kinds: kinds::INT })
}

/// A reference to the memo.
pub(super) struct MemoGet {
    pub(super) slot: usize,
    /// Offset after the opcode.
    pub(super) next: usize,
}

/// Reads the `GET` opcode at `at`, which refers to an earlier value by its slot in the memo. `None` for any other opcode.
pub(super) fn read_memo_get(bytes: &[u8], at: usize) -> Option<MemoGet> {
    Some(match *bytes.get(at)? {
        op::BINGET => MemoGet { slot: usize::from(*bytes.get(at + 1)?), next: at + op::BINGET_LEN },
        op::LONG_BINGET => {
            let slot = u32::from_le_bytes(*bytes.get(at + 1..)?.first_chunk()?) as usize;
            MemoGet { slot, next: at + op::LONG_BINGET_LEN }
        }
        _ => return None,
    })
}

/// Enters `node` into the memo, the table of values for later references, if the opcode at `at` requests it. Returns the offset after that
/// opcode, or `at` if it is another one. `None` at the limit, and for a slot out of order: both are left to the machine.
fn memoize_node_if_requested(
    bytes: &[u8],
    node: Node,
    at: usize,
    memo: &mut Vec<Node>,
    memo_limit: usize,
) -> Option<NextOffset> {
    let (slot, next) = match *bytes.get(at)? {
        op::MEMOIZE => (memo.len(), at + op::MEMOIZE_LEN),
        op::BINPUT => (usize::from(*bytes.get(at + 1)?), at + op::BINPUT_LEN),
        op::LONG_BINPUT => {
            let slot = u32::from_le_bytes(*bytes.get(at + 1..)?.first_chunk()?) as usize;
            (slot, at + op::LONG_BINPUT_LEN)
        }
        // `pickletools.optimize` removes the slots to which nothing refers.
        _ => return Some(at),
    };
    if slot != memo.len() || slot >= memo_limit {
        return None;
    }
    memo.push(node);
    Some(next)
}

/// The item at `at` of a batch that [`measure_batch_and_memoize_strings`] measured, and the offset after it. A reference is replaced by its
/// value in the memo.
pub(in super::super) fn read_item(bytes: &[u8], at: usize, memo: &[Node]) -> Option<(Node, NextOffset)> {
    // A pickle is cut into frames of any length, so one can begin before any item.
    let at = past_frame(bytes, at);
    let offset = at as u32;
    let (node, next) = match *bytes.get(at)? {
        op::BININT1 => (Node::Int(offset), at + op::BININT1_LEN),
        op::BININT2 => (Node::Int(offset), at + op::BININT2_LEN),
        op::BININT => (Node::Int(offset), at + op::BININT_LEN),
        op::LONG1 | op::LONG4 => (Node::Long(offset), at + scalar::int_opcode_len(bytes, at)?),
        op::NONE => (Node::Nil, at + 1),
        op::NEWTRUE => (Node::Bool(true), at + 1),
        op::NEWFALSE => (Node::Bool(false), at + 1),
        op::BINFLOAT => (Node::Float(offset), at + op::BINFLOAT_LEN),
        op::SHORT_BINUNICODE | op::BINUNICODE => {
            (Node::Str(offset), offset_after_memo_put(bytes, scalar::payload_range(bytes, at)?.end))
        }
        _ => {
            let MemoGet { slot, next } = read_memo_get(bytes, at)?;
            (*memo.get(slot)?, next)
        }
    };
    Some((node, next))
}

/// The string at the beginning of `bytes`, in a batch that [`measure_batch_and_memoize_strings`] measured, and the bytes after it.
#[inline]
pub(in super::super) fn read_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // The form of nearly every string.
    if let [op::SHORT_BINUNICODE, len, rest @ ..] = bytes
        && let Some((text, [op::MEMOIZE, after @ ..])) = rest.split_at_checked(usize::from(*len))
    {
        return Some((text, after));
    }
    read_other_string(bytes)
}

/// The string at the beginning of `bytes`, and the bytes after it. Knows all encodings of a string, and skips a `FRAME` before it.
#[cold]
fn read_other_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = scalar::payload_range(bytes, past_frame(bytes, 0))?;
    let after = bytes.get(offset_after_memo_put(bytes, text.end)..)?;
    Some((bytes.get(text)?, after))
}

/// The integer at `at` of a batch in which [`measure_batch_and_memoize_strings`] found only short integers, and the offset after it.
pub(in super::super) fn read_short_int(bytes: &[u8], at: usize) -> Option<(i32, NextOffset)> {
    scalar::read_short_int(bytes, past_frame(bytes, at))
}

/// Offset after the opcode at `at` that enters a value into the memo, or `at` if it is another opcode.
fn offset_after_memo_put(bytes: &[u8], at: usize) -> usize {
    at + match bytes.get(at) {
        Some(&op::MEMOIZE) => op::MEMOIZE_LEN,
        Some(&op::BINPUT) => op::BINPUT_LEN,
        Some(&op::LONG_BINPUT) => op::LONG_BINPUT_LEN,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Opcodes of lists, mixed with other bytes.
    fn byte() -> impl Strategy<Value = u8> {
        let ops = [op::BININT1, op::BININT2, op::BININT, op::APPEND, op::APPENDS, op::MARK, op::NONE];
        prop_oneof![8 => prop::sample::select(ops.to_vec()), 1 => any::<u8>()]
    }

    proptest! {
        /// Compares the fast parser for lists of numbers with parsing opcode by opcode.
        #[test]
        fn the_fast_list_parser_agrees_with_the_opcode_parser(rest in prop::collection::vec(byte(), 6..40)) {
            let bytes = [&[op::EMPTY_LIST, op::MEMOIZE], rest.as_slice()].concat();
            let mut memo = Vec::new();
            let expected = match bytes[2] {
                op::MARK => scan_items(&bytes, 3, &mut memo, 1 << 20).filter(|flat| flat.kinds & !kinds::INT == 0),
                op::EMPTY_LIST | op::APPENDS => Some(FlatBatch { start: 2, end: 1, len: 0, kinds: 0 }),
                _ => scan_single_int(&bytes, 2),
            };
            let to_numbers = |flat: FlatBatch| ShortIntList { len: flat.len as u16, first: flat.start, next: flat.end + 1 };
            prop_assert_eq!(parse_short_int_list(&bytes), expected.map(to_numbers), "{:02x?}", bytes);
        }
    }
}
