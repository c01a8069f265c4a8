//! Walk over the opcodes of a pickled message to the scheduler.
//!
//! The machine needs the whole message. This walk works on a prefix and keeps no values: the height of the stack is enough to tell the
//! keys of an object's state from its values.

use super::super::Undecoded;
use super::flat::MemoGet;
use super::{flat, op, scalar};

/// Fields of the messages to the scheduler that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestField {
    Rid,
    InputIds,
    BootstrapRoom,
    AbortAll,
}

const FIELDS: [(RequestField, &[u8]); 6] = [
    (RequestField::Rid, b"rid"),
    // vLLM's names.
    (RequestField::Rid, b"request_id"),
    (RequestField::InputIds, b"prompt_token_ids"),
    (RequestField::InputIds, b"input_ids"),
    (RequestField::BootstrapRoom, b"bootstrap_room"),
    (RequestField::AbortAll, b"abort_all"),
];

/// A step of the walk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WalkItem<'a> {
    /// A class or function. The module is another string if the message refers to an earlier one.
    Global { module: &'a [u8], name: &'a [u8] },
    /// A key of a dict with its value's offset, the number of open marks, and whether it is the first key.
    Field { field: RequestField, value_at: usize, depth: usize, is_first: bool },
}

/// Maximum number of open marks.
const MAX_DEPTH: usize = 64;

/// Height of the stack at an open `MARK`.
#[derive(Clone, Copy, Default)]
struct OpenMark {
    height: u32,
    is_dict: bool,
}

/// State of the walk. It ends at `STOP`, or with an error at the end of the captured bytes.
pub(crate) struct PickleWalk<'a> {
    bytes: &'a [u8],
    at: usize,
    stack_height: u32,
    /// The first `open_marks` of them are in use.
    marks: [OpenMark; MAX_DEPTH],
    open_marks: usize,
    /// The last opcode has pushed an empty dict, so a mark opens its entries.
    follows_empty_dict: bool,
    /// Number of memo slots in use.
    memo_len: u32,
    /// Memo slots of the fields' names.
    name_slots: [Option<u32>; FIELDS.len()],
    /// The last two strings.
    last_strings: [&'a [u8]; 2],
}

impl<'a> PickleWalk<'a> {
    /// A walk from the beginning of a pickle, of which `bytes` are the first bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            stack_height: 0,
            marks: [OpenMark::default(); MAX_DEPTH],
            open_marks: 0,
            follows_empty_dict: false,
            memo_len: 0,
            name_slots: [None; FIELDS.len()],
            last_strings: [b""; 2],
        }
    }

    /// The next class or field; `None` at the end of the pickle.
    pub(crate) fn next_item(&mut self) -> Result<Option<WalkItem<'a>>, Undecoded> {
        loop {
            let at = self.at;
            let opcode = *self.bytes.get(at).ok_or(Undecoded::Truncated { at })?;
            let follows_empty_dict = std::mem::take(&mut self.follows_empty_dict);
            self.at = at + 1;
            match opcode {
                op::STOP => return Ok(None),
                op::MEMOIZE => {
                    self.memo_len += 1;
                    // `MEMOIZE` and `FRAME` may stand between an empty dict and its first key.
                    self.follows_empty_dict = follows_empty_dict;
                }
                // The opcode and the version.
                op::PROTO => self.at = at + 2,
                op::FRAME => {
                    self.at = at + op::FRAME_LEN;
                    self.follows_empty_dict = follows_empty_dict;
                }
                op::MARK => self.open_mark(follows_empty_dict)?,
                op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => {
                    let text = scalar::payload_range(self.bytes, at).ok_or(Undecoded::Truncated { at })?;
                    self.at = text.end;
                    // The only field of an object is set without a mark.
                    let is_only_field = follows_empty_dict && self.open_marks == 0;
                    if let Some(item) = self.push_string_and_find_field(&self.bytes[text], is_only_field) {
                        return Ok(Some(item));
                    }
                }
                op::BINGET | op::LONG_BINGET => {
                    let MemoGet { slot, next } =
                        flat::read_memo_get(self.bytes, at).ok_or(Undecoded::Truncated { at })?;
                    self.at = next;
                    if let Some(item) = self.push_memoized_and_find_field(slot) {
                        return Ok(Some(item));
                    }
                }
                op::STACK_GLOBAL => {
                    self.pop(1)?;
                    let [module, name] = self.last_strings;
                    return Ok(Some(WalkItem::Global { module, name }));
                }
                op::EMPTY_DICT => {
                    self.stack_height += 1;
                    self.follows_empty_dict = true;
                }
                op::NONE | op::NEWTRUE | op::NEWFALSE | op::EMPTY_TUPLE | op::EMPTY_LIST | op::EMPTY_SET => {
                    self.stack_height += 1;
                }
                op::BININT1 | op::BININT2 | op::BININT | op::LONG1 | op::LONG4 => {
                    self.at = at + scalar::int_opcode_len(self.bytes, at).ok_or(Undecoded::Truncated { at })?;
                    self.stack_height += 1;
                }
                op::BINFLOAT => {
                    self.at = at + op::BINFLOAT_LEN;
                    self.stack_height += 1;
                }
                op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                    self.at = scalar::payload_range(self.bytes, at).ok_or(Undecoded::Truncated { at })?.end;
                    self.stack_height += 1;
                }
                // Takes one value and leaves one.
                op::TUPLE1 => {}
                op::REDUCE | op::NEWOBJ | op::BUILD | op::APPEND | op::TUPLE2 | op::POP => self.pop(1)?,
                op::SETITEM | op::TUPLE3 | op::NEWOBJ_EX => self.pop(2)?,
                op::APPENDS | op::SETITEMS | op::ADDITEMS | op::POP_MARK => self.stack_height = self.close_mark()?,
                op::TUPLE | op::FROZENSET => self.stack_height = self.close_mark()? + 1,
                op => return Err(Undecoded::Refused { at, op, what: "no release writes it in a request" }),
            }
        }
    }

    /// Pushes a string on the pickle's stack, of which only the height is known. Returns the field if the string is the name of one. If
    /// `is_only_field`, the string directly follows an empty dict without a mark, so it is the name of the object's one field.
    fn push_string_and_find_field(&mut self, text: &'a [u8], is_only_field: bool) -> Option<WalkItem<'a>> {
        // `STACK_GLOBAL` takes module and name from the last two strings.
        let [_, previous] = self.last_strings;
        self.last_strings = [previous, text];
        // The opcode `MEMOIZE`, if it follows, is consumed together with the string.
        let is_memoized = self.bytes.get(self.at) == Some(&op::MEMOIZE);
        self.at += usize::from(is_memoized);
        let mut item = None;
        // The same text may also be a value, so it must also stand where a key does.
        if let Some(field_index) = FIELDS.iter().position(|(_, name)| *name == text)
            && (is_only_field || self.is_at_key())
        {
            item = Some(self.field_item(field_index, is_only_field));
            // Later objects refer to the name by its memo slot, which is the next free one.
            if is_memoized {
                self.name_slots[field_index].get_or_insert(self.memo_len);
            }
        }
        self.memo_len += u32::from(is_memoized);
        self.stack_height += 1;
        item
    }

    /// Pushes the value in a memo slot, an earlier value of the pickle. Returns the field if the value is the name of one.
    #[inline]
    fn push_memoized_and_find_field(&mut self, slot: usize) -> Option<WalkItem<'a>> {
        let mut name_slots = self.name_slots.iter();
        let named_field = name_slots.position(|known| known.is_some_and(|known| known as usize == slot));
        let mut item = None;
        // The same string may also be a value.
        if let Some(field_index) = named_field
            && self.is_at_key()
        {
            let is_only_field = false;
            item = Some(self.field_item(field_index, is_only_field));
        }
        self.stack_height += 1;
        item
    }

    /// Opens a mark at the present height of the stack. Fails at the limit.
    #[inline]
    fn open_mark(&mut self, is_dict: bool) -> Result<(), Undecoded> {
        let mark = self.marks.get_mut(self.open_marks);
        let mark = mark.ok_or(Undecoded::Limit { limit: "depth", value: MAX_DEPTH })?;
        *mark = OpenMark { height: self.stack_height, is_dict };
        self.open_marks += 1;
        Ok(())
    }

    /// Whether the next value is a key of the innermost dict. Keys and values alternate, so this depends on the number of values that are
    /// on the stack since the dict's mark.
    fn is_at_key(&self) -> bool {
        let Some(innermost) = self.open_marks.checked_sub(1) else { return false };
        let mark = self.marks[innermost];
        // Wraps if values below the mark were taken, which no valid pickle does.
        let values_in_dict = self.stack_height.wrapping_sub(mark.height);
        mark.is_dict && values_in_dict.is_multiple_of(2)
    }

    /// The field whose name has just been read, by its index in [`FIELDS`].
    fn field_item(&self, field_index: usize, is_only_field: bool) -> WalkItem<'a> {
        let (field, _) = FIELDS[field_index];
        // For the first key of a dict, nothing has been pushed since the dict's mark.
        let is_after_mark =
            self.open_marks.checked_sub(1).is_some_and(|last| self.marks[last].height == self.stack_height);
        WalkItem::Field { field, value_at: self.at, depth: self.open_marks, is_first: is_only_field || is_after_mark }
    }

    /// Takes this many values from the stack, of which only the height is known.
    fn pop(&mut self, values: u32) -> Result<(), Undecoded> {
        self.stack_height = self.stack_height.checked_sub(values).ok_or_else(|| self.underflow())?;
        Ok(())
    }

    /// Closes the innermost mark. Returns the height of the stack at it.
    fn close_mark(&mut self) -> Result<u32, Undecoded> {
        self.open_marks = self.open_marks.checked_sub(1).ok_or_else(|| self.underflow())?;
        Ok(self.marks[self.open_marks].height)
    }

    /// Error for an opcode that takes more values or marks than there are.
    fn underflow(&self) -> Undecoded {
        Undecoded::Malformed { at: self.at, what: "an opcode needs more values than there are" }
    }
}

/// The text at `at`; `None` for another value, or if it was not captured.
pub(crate) fn text_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let at = offset_after_frame_header(bytes, at);
    let is_text = matches!(bytes.get(at)?, &(op::SHORT_BINUNICODE | op::BINUNICODE));
    if !is_text {
        return None;
    }
    bytes.get(scalar::payload_range(bytes, at)?)
}

/// Whether the value at `at` is `True`.
pub(crate) fn is_true_at(bytes: &[u8], at: usize) -> bool {
    bytes.get(offset_after_frame_header(bytes, at)) == Some(&op::NEWTRUE)
}

/// The integer at `at` if it is the value of a field, and so is followed by the next field or by the end of the state. `None` for anything
/// else.
pub(crate) fn field_int_at(bytes: &[u8], at: usize) -> Option<i64> {
    let at = offset_after_frame_header(bytes, at);
    let next = offset_after_frame_header(bytes, at + scalar::int_opcode_len(bytes, at)?);
    match *bytes.get(next)? {
        op::SHORT_BINUNICODE | op::BINGET | op::LONG_BINGET | op::SETITEMS => scalar::read_int(bytes, at),
        _ => None,
    }
}

/// Passes each text of the list that a pickle holds to `add_text`. Fails for any other pickle, but only after the texts before the error
/// were passed.
pub(crate) fn read_text_list<'a>(bytes: &'a [u8], mut add_text: impl FnMut(&'a [u8])) -> Result<(), Undecoded> {
    let mut at = 0;
    loop {
        at = match bytes.get(at) {
            Some(&op::STOP) => return Ok(()),
            // The opcode and the version.
            Some(&op::PROTO) => at + 2,
            Some(&op::FRAME) => at + op::FRAME_LEN,
            Some(&(op::EMPTY_LIST | op::MEMOIZE | op::MARK | op::APPEND | op::APPENDS)) => at + 1,
            Some(_) => {
                add_text(text_at(bytes, at).ok_or(Undecoded::Malformed { at, what: "not a list of texts" })?);
                scalar::payload_range(bytes, at).map_or(bytes.len(), |text| text.end)
            }
            None => return Err(Undecoded::Truncated { at }),
        };
    }
}

/// Number of ids in the list or the array at `at`; `None` for another value, or if the captured bytes do not show it. `is_whole`: whether
/// `bytes` is the whole message.
pub(crate) fn count_ids_at(bytes: &[u8], at: usize, is_whole: bool) -> Option<u32> {
    let at = offset_after_frame_header(bytes, at);
    if *bytes.get(at)? != op::EMPTY_LIST {
        return count_array_ids(bytes, at);
    }
    // A list may be long, so it is not walked in vain if its end was not captured.
    let is_captured = is_whole || has_list_end(bytes.get(at..)?);
    if is_captured { count_listed_ids(bytes, at + 1) } else { None }
}

/// Whether these bytes may contain the end of a list with a string behind it, such as the next field's name.
fn has_list_end(bytes: &[u8]) -> bool {
    let mut ends = memchr::memchr2_iter(op::APPENDS, op::APPEND, bytes);
    ends.any(|at| bytes.get(at + 1) == Some(&op::SHORT_BINUNICODE))
}

/// Number of integers in the list after the `EMPTY_LIST` that ends at `at`. `None` if the list has other items. The list must be the value
/// of a field, behind which the next field begins or the object's state ends; `None` for any other list.
fn count_listed_ids(bytes: &[u8], mut at: usize) -> Option<u32> {
    let mut len = 0;
    let mut is_in_batch = false;
    loop {
        let opcode = *bytes.get(at)?;
        let width = flat::short_int_len(opcode);
        if width > 0 {
            len += 1;
            at += width;
            continue;
        }
        match opcode {
            op::LONG1 | op::LONG4 => {
                len += 1;
                at += scalar::int_opcode_len(bytes, at)?;
            }
            op::MEMOIZE => at += 1,
            op::FRAME => at += op::FRAME_LEN,
            // A list is written in batches of 1,000 items, each between `MARK` and `APPENDS`.
            op::MARK if !is_in_batch => {
                is_in_batch = true;
                at += 1;
            }
            op::APPENDS if is_in_batch => {
                is_in_batch = false;
                at += 1;
            }
            // A single item is appended without a mark.
            op::APPEND if !is_in_batch && len > 0 => return Some(len),
            // The next key, or the end of the state.
            op::SHORT_BINUNICODE | op::BINGET | op::LONG_BINGET | op::SETITEMS if !is_in_batch => return Some(len),
            _ => return None,
        }
    }
}

/// Number of integers in the array at `at`: `_array_reconstructor(array, code, format, data)`. `None` for anything else.
fn count_array_ids(bytes: &[u8], mut at: usize) -> Option<u32> {
    // Enough for the names of the function and the class, the call's mark, type code and format, and their memo opcodes.
    const MAX_OPCODES: usize = 20;
    let mut format = None;
    for _ in 0..MAX_OPCODES {
        at = match *bytes.get(at)? {
            op::SHORT_BINUNICODE => scalar::payload_range(bytes, at)?.end,
            op::BINGET => at + op::BINGET_LEN,
            op::LONG_BINGET => at + op::LONG_BINGET_LEN,
            op::FRAME => at + op::FRAME_LEN,
            op::MEMOIZE | op::STACK_GLOBAL | op::MARK => at + 1,
            op::BININT1 => {
                // The only number before the data.
                format = bytes.get(at + 1).copied();
                at + op::BININT1_LEN
            }
            // The data, which need not be captured, because their length precedes them.
            op::SHORT_BINBYTES => return Some(u32::from(*bytes.get(at + 1)?) / bytes_per_item(format?)?),
            op::BINBYTES => {
                let data_bytes = u32::from_le_bytes(*bytes.get(at + 1..)?.first_chunk()?);
                return Some(data_bytes / bytes_per_item(format?)?);
            }
            _ => return None,
        };
    }
    None
}

/// Bytes of an array's item by the machine format code, in the documentation of Python's `array`; `None` for what cannot be an id.
fn bytes_per_item(format: u8) -> Option<u32> {
    // Integers of 8, 16, 32 and 64 bits, unsigned and signed, in both byte orders.
    match format {
        0..=1 => Some(1),
        2..=5 => Some(2),
        6..=9 => Some(4),
        10..=13 => Some(8),
        _ => None,
    }
}

/// Offset of the value at `at`, behind the header of a frame if one begins there.
fn offset_after_frame_header(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at) == Some(&op::FRAME) { at + op::FRAME_LEN } else { at }
}
