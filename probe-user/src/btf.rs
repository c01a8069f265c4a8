//! Minimal BTF parser that finds the offset of a field in a struct of the running kernel, and the type of a function's parameter.
//!
//! The kernel side carries no CO-RE relocations, since rustc emits none. User space reads the offsets here and passes them on before it
//! loads the object. A field that this kernel lacks is [`Offsets::ABSENT`].

use std::collections::HashMap;
use std::ops::Range;

use foreign::{ForeignRoot, ReadError};
use probe_ebpf::Offsets;

/// Type information of the running kernel (5.4 and later with `CONFIG_DEBUG_INFO_BTF`).
pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Maximum size of the type information. Kernels have 5 to 30 MB.
const MAX_BTF_BYTES: usize = 256 << 20;
const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
// Positions of words in `struct btf_header`.
const HEADER_LENGTH_AT: usize = 4;
const TYPES_OFFSET_AT: usize = 8;
const TYPES_LENGTH_AT: usize = 12;
const STRINGS_OFFSET_AT: usize = 16;
const STRINGS_LENGTH_AT: usize = 20;
/// Length of a word, of which headers and records consist.
const WORD_BYTES: usize = 4;
/// Length of a type's record, without what follows it for its kind.
const RECORD_BYTES: usize = 12;

// Kinds of types, as in include/uapi/linux/btf.h.
const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VARIABLE: u32 = 14;
const DATA_SECTION: u32 = 15;
const FLOAT: u32 = 16;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Maximum nesting of anonymous members; kernels have 3 or 4 levels.
const MAX_NESTING: u32 = 16;
/// Maximum number of typedefs and qualifiers in a row.
const MAX_ALIASES: u32 = 32;

/// Error of reading the kernel's types.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error("read {VMLINUX}: {0}; a kernel with CONFIG_DEBUG_INFO_BTF has it, where /sys is mounted")]
    Read(ReadError),
    /// Not BTF in this machine's byte order.
    #[error("not BTF: {0}")]
    Malformed(&'static str),
}

/// The type descriptions of one kernel.
#[derive(Debug)]
pub struct Btf {
    data: Vec<u8>,
    /// Position of each type's record; ids count from 1.
    type_positions: Vec<usize>,
    /// Position of the string section.
    strings: Range<usize>,
    /// Id of the first struct of each name.
    struct_ids: HashMap<Vec<u8>, u32>,
}

/// Kind of a type, and how many members or parameters it has.
#[derive(Clone, Copy)]
struct TypeInfo {
    kind: u32,
    member_count: usize,
    /// Offsets of members contain the sizes of bit fields.
    has_bitfields: bool,
}

/// A member of a struct or union.
struct Member {
    bit_offset: u32,
    type_id: u32,
}

impl Btf {
    /// Reads the BTF of the running kernel. Takes about 5 ms, and 6 MB until dropped.
    pub fn read_running_kernel() -> Result<Self, BtfError> {
        let first_error = match foreign::kernel::read(VMLINUX, MAX_BTF_BYTES) {
            Ok(data) => return Self::parse(data),
            Err(error) => error,
        };
        // In a root without /sys, fall back to the root of PID 1. The first error says more if that fails, too.
        let data = ForeignRoot::of_process(1).and_then(|root| root.read_sysfs(VMLINUX, MAX_BTF_BYTES));
        Self::parse(data.map_err(|_| BtfError::Read(first_error))?)
    }

    /// Parses BTF, the kernel's format of type descriptions. It has a header, a section with a record for each type, and a section of
    /// strings. The error says what is malformed.
    pub(crate) fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        // Id 0 is `void`, which has no record.
        let mut btf = Self { data, type_positions: vec![0], strings: 0..0, struct_ids: HashMap::new() };
        if btf.data.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(BtfError::Malformed("wrong magic or byte order"));
        }
        let header_bytes = btf.header_word(HEADER_LENGTH_AT)?;
        let types_offset = btf.header_word(TYPES_OFFSET_AT)?;
        let types_length = btf.header_word(TYPES_LENGTH_AT)?;
        let strings_offset = btf.header_word(STRINGS_OFFSET_AT)?;
        let strings_length = btf.header_word(STRINGS_LENGTH_AT)?;
        // Both offsets count from the end of the header.
        let types = section_range(header_bytes, types_offset, types_length);
        btf.strings = section_range(header_bytes, strings_offset, strings_length);
        if header_bytes < HEADER_BYTES || types.end > btf.data.len() || btf.strings.end > btf.data.len() {
            return Err(BtfError::Malformed("a section extends past the end"));
        }
        btf.index_types(&types)?;
        Ok(btf)
    }

    /// Notes the position of each type's record, and the id of each struct by its name. The records follow each other, and the id of a type
    /// is the number of its record. Behind a record comes a trailer, whose length depends on the kind of the type.
    fn index_types(&mut self, section: &Range<usize>) -> Result<(), BtfError> {
        let mut position = section.start;
        while position + RECORD_BYTES <= section.end {
            let info = self.type_info_at(position).ok_or(BtfError::Malformed("type cut short"))?;
            let id = self.type_positions.len() as u32;
            self.type_positions.push(position);
            if info.kind == STRUCT {
                let name = self.name_of_record(position).to_vec();
                // Of several structs with one name, the first is used.
                self.struct_ids.entry(name).or_insert(id);
            }
            let trailer_bytes = trailer_byte_count(info).ok_or(BtfError::Malformed("unknown kind of type"))?;
            position += RECORD_BYTES + trailer_bytes;
        }
        Ok(())
    }

    /// Name of the type or member whose record is at `position`. The record begins with the offset of its name. Offset 0 has the empty
    /// string, which also stands for an unreadable name.
    fn name_of_record(&self, position: usize) -> &[u8] {
        self.string_at(self.word_at(position).unwrap_or(0))
    }

    /// Byte offset of a field in a struct. `member_path` has the member's name, with those of the structs around it, joined by dots. `None`
    /// if the kernel lacks the field, or if it does not begin at a byte, as a bit field may.
    pub(crate) fn field_offset(&self, struct_name: &str, member_path: &str) -> Option<u32> {
        let mut type_id = *self.struct_ids.get(struct_name.as_bytes())?;
        let mut bit_offset = 0_u32;
        for name in member_path.split('.') {
            let member = self.find_member(type_id, name.as_bytes(), MAX_NESTING)?;
            bit_offset = bit_offset.checked_add(member.bit_offset)?;
            type_id = member.type_id;
        }
        bit_offset.is_multiple_of(u8::BITS).then_some(bit_offset / u8::BITS)
    }

    /// Offsets of the fields of kernel structs that the eBPF programs read, in bytes.
    pub fn probe_offsets(&self) -> Offsets {
        Offsets {
            task_pid: self.first_field_offset("task_struct", &["pid"]),
            task_tgid: self.first_field_offset("task_struct", &["tgid"]),
            // Renamed in Linux 5.14.
            task_state: self.first_field_offset("task_struct", &["__state", "state"]),
            // x86-64 and aarch64.
            call: self.first_field_offset("pt_regs", &["orig_ax", "syscallno"]),
        }
    }

    /// Offset of the first of these fields that the struct has.
    fn first_field_offset(&self, struct_name: &str, paths: &[&str]) -> u32 {
        paths.iter().find_map(|path| self.field_offset(struct_name, path)).unwrap_or(Offsets::ABSENT)
    }

    /// Whether parameter `index` of a kernel function is a pointer to the struct `struct_name`.
    pub(crate) fn takes_pointer_to(&self, function: &str, index: usize, struct_name: &str) -> bool {
        let pointed_type = self.pointed_type_id_of_parameter(function, index);
        pointed_type.is_some_and(|id| self.struct_ids.get(struct_name.as_bytes()) == Some(&id))
    }

    /// Id of the type to which a function's parameter points. `None` if there is no such function or parameter, or if it is no pointer.
    fn pointed_type_id_of_parameter(&self, function: &str, parameter_index: usize) -> Option<u32> {
        const PARAMETER_BYTES: usize = 8;
        let prototype = self.prototype_position(function)?;
        let info = self.type_info_at(prototype)?;
        if info.kind != FUNC_PROTO || parameter_index >= info.member_count {
            return None;
        }
        // The parameters follow the record of the prototype. Each has two words: the offset of its name and the id of its type.
        let parameter = prototype + RECORD_BYTES + parameter_index * PARAMETER_BYTES;
        let parameter_type_id = self.word_at(parameter + WORD_BYTES)?;
        let pointer = self.unaliased_type_position(parameter_type_id)?;
        if self.type_info_at(pointer)?.kind != POINTER {
            return None;
        }
        self.referenced_type(pointer)
    }

    /// Position of the record with the parameters of a function. `None` if there is no such function.
    fn prototype_position(&self, function: &str) -> Option<usize> {
        // The first type, with id 0, is `void`, which has no record.
        let mut types_after_void = self.type_positions.iter().skip(1);
        let function_record = *types_after_void.find(|position| self.is_function(**position, function))?;
        self.unaliased_type_position(self.referenced_type(function_record)?)
    }

    /// Id of the type that a function, pointer, typedef or qualifier refers to: the third word of its record.
    fn referenced_type(&self, position: usize) -> Option<u32> {
        self.word_at(position + 2 * WORD_BYTES)
    }

    /// Whether the record at `position` is a function of this name.
    fn is_function(&self, position: usize, name: &str) -> bool {
        self.type_info_at(position).is_some_and(|info| info.kind == FUNC)
            && self.word_at(position).is_some_and(|name_offset| self.string_at(name_offset) == name.as_bytes())
    }

    fn header_word(&self, position: usize) -> Result<usize, BtfError> {
        self.word_at(position).map(|word| word as usize).ok_or(BtfError::Malformed("header cut short"))
    }

    fn word_at(&self, position: usize) -> Option<u32> {
        let bytes = self.data.get(position..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    }

    /// Parses the second word of the type's record at `record_position`. `None` if the data ends before it.
    fn type_info_at(&self, record_position: usize) -> Option<TypeInfo> {
        let word = self.word_at(record_position + WORD_BYTES)?;
        // Bits 0 to 15 are the number of members, bits 24 to 28 the kind, and bit 31 the flag of bit fields.
        Some(TypeInfo {
            kind: (word >> 24) & 0x1f,
            member_count: (word & 0xffff) as usize,
            has_bitfields: word >> 31 == 1,
        })
    }

    /// Name at this offset of the string section; empty if it is outside.
    fn string_at(&self, offset: u32) -> &[u8] {
        let start = self.strings.start.saturating_add(offset as usize);
        let tail = self.data.get(start..self.strings.end).unwrap_or_default();
        tail.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Position of the record of a type. A typedef or a qualifier such as `const` is followed to the type for which it stands. `None` for
    /// `void`, and after [`MAX_ALIASES`] of them.
    fn unaliased_type_position(&self, mut type_id: u32) -> Option<usize> {
        for _ in 0..MAX_ALIASES {
            // Id 0 is void, which has no record.
            if type_id == 0 {
                return None;
            }
            let position = *self.type_positions.get(type_id as usize)?;
            match self.type_info_at(position)?.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => type_id = self.referenced_type(position)?,
                _ => return Some(position),
            }
        }
        None
    }

    /// Finds a member of a struct or union by its name. Also searches the anonymous structs and unions in it, at most `max_depth` levels
    /// deep. The offset in the result counts from the start of this type, even for a member of an inner one. `None` if there is none.
    fn find_member(&self, type_id: u32, name: &[u8], max_depth: u32) -> Option<Member> {
        const MEMBER_BYTES: usize = 12;
        let position = self.unaliased_type_position(type_id)?;
        let info = self.type_info_at(position)?;
        if info.kind != STRUCT && info.kind != UNION {
            return None;
        }
        for index in 0..info.member_count {
            let record = position + RECORD_BYTES + index * MEMBER_BYTES;
            let member = self.parse_member(record, info.has_bitfields)?;
            let member_name = self.name_of_record(record);
            if member_name == name {
                return Some(member);
            }
            // Members of an anonymous struct or union are named like those of the outer one.
            let is_anonymous = member_name.is_empty();
            if is_anonymous
                && max_depth > 0
                && let Some(inner) = self.find_member(member.type_id, name, max_depth - 1)
            {
                let bit_offset = member.bit_offset.checked_add(inner.bit_offset)?;
                return Some(Member { bit_offset, type_id: inner.type_id });
            }
        }
        None
    }

    /// Parses a member's record of three words: the offset of its name, the id of its type, its position in bits. `None` if the data ends
    /// before it.
    fn parse_member(&self, record_position: usize, has_bitfields: bool) -> Option<Member> {
        let type_id = self.word_at(record_position + WORD_BYTES)?;
        let position = self.word_at(record_position + 2 * WORD_BYTES)?;
        // The upper byte is then the size of a bit field.
        let bit_offset = if has_bitfields { position & 0x00ff_ffff } else { position };
        Some(Member { bit_offset, type_id })
    }
}

/// Range of a section whose offset counts from the end of the header.
fn section_range(header_bytes: usize, offset: usize, length: usize) -> Range<usize> {
    let start = header_bytes.saturating_add(offset);
    start..start.saturating_add(length)
}

/// Number of bytes that follow a type's record. `None` for an unknown kind of type. The numbers are the sizes of the structs in
/// include/uapi/linux/btf.h.
fn trailer_byte_count(info: TypeInfo) -> Option<usize> {
    Some(match info.kind {
        POINTER | FORWARD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
        INT | VARIABLE | DECLARATION_TAG => 4,
        ARRAY => 12,
        STRUCT | UNION | DATA_SECTION | ENUM64 => info.member_count * 12,
        ENUM | FUNC_PROTO => info.member_count * 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // struct outer { int a; struct { int b; }; inner_t c; }; struct inner { int d; } ; typedef struct inner inner_t;
    fn small() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0c\0inner\0d\0inner_t\0__state\0";
        let at = |s: &str| strings.windows(s.len() + 1).position(|w| &w[..s.len()] == s.as_bytes() && w[s.len()] == 0);
        let name = |s: &str| at(s).expect("a name of the table") as u32;
        let info = |kind: u32, members: u32| kind << 24 | members;
        let types: Vec<u32> = [
            vec![name("int"), info(1, 0), 4, 0x0100_0020],
            vec![name("outer"), info(4, 3), 12, name("a"), 1, 0, 0, 3, 32, name("c"), 5, 64],
            vec![0, info(4, 1), 4, name("b"), 1, 0],
            vec![name("inner"), info(4, 1), 4, name("d"), 1, 0],
            vec![name("inner_t"), info(8, 0), 4],
        ]
        .concat();
        let types_len = types.len() as u32 * 4;
        let mut data = MAGIC.to_ne_bytes().to_vec();
        data.extend([1, 0]);
        for word in [24, 0, types_len, types_len, strings.len() as u32] {
            data.extend(u32::to_ne_bytes(word));
        }
        data.extend(types.iter().flat_map(|w| w.to_ne_bytes()));
        data.extend(strings);
        data
    }

    #[test]
    fn finds_members_through_anonymous_structs_and_typedefs() {
        let btf = Btf::parse(small()).unwrap();
        assert_eq!(btf.field_offset("outer", "a"), Some(0));
        assert_eq!(btf.field_offset("outer", "b"), Some(4));
        assert_eq!(btf.field_offset("outer", "c.d"), Some(8));
        assert_eq!(btf.field_offset("outer", "missing"), None);
        assert_eq!(btf.field_offset("nothing", "a"), None);
        assert_eq!(btf.probe_offsets(), Offsets::NONE);
    }

    #[test]
    fn the_running_kernel_has_what_the_scheduler_programs_need() {
        match Btf::read_running_kernel() {
            Ok(btf) => assert!(btf.probe_offsets().sched(), "{:?}", btf.probe_offsets()),
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }

    #[test]
    fn the_running_kernel_has_poll_functions_with_timeouts() {
        let Ok(btf) = Btf::read_running_kernel() else {
            eprintln!("SKIPPED: the kernel's types cannot be read");
            return;
        };
        assert!(
            !btf.takes_pointer_to("do_epoll_wait", 1, "timespec64")
                && !btf.takes_pointer_to("do_epoll_wait", 4, "timespec64")
        );
        assert!(!btf.takes_pointer_to("no_such_function", 0, "timespec64"));
        if !(btf.takes_pointer_to("do_epoll_wait", 3, "timespec64")
            && btf.takes_pointer_to("do_sys_poll", 2, "timespec64"))
        {
            eprintln!("SKIPPED: this kernel's poll functions have other parameters, so uprobes count its polls");
        }
    }

    proptest! {
        #[test]
        fn corrupted_btf_never_panics(cut in 0_usize..240, at in 0_usize..240, byte: u8) {
            let mut data = small();
            if let Some(place) = data.get_mut(at) {
                *place = byte;
            }
            data.truncate(cut.max(at));
            if let Ok(btf) = Btf::parse(data) {
                let _ = (btf.field_offset("outer", "c.d"), btf.field_offset("outer", "b"), btf.probe_offsets());
                let _ = btf.takes_pointer_to("outer", 0, "inner");
            }
        }
    }
}
