//! Minimal BTF parser that finds the offset of a field in a struct of the running kernel, and the type of a function's parameter.
//!
//! The kernel side carries no CO-RE relocations, since rustc emits none. User space reads the offsets here and passes them on before it
//! loads the object. A field that this kernel lacks is [`Offsets::ABSENT`].

use std::collections::HashMap;

use foreign::{ForeignRoot, ReadError};
use probe_ebpf::Offsets;

/// Type information of the running kernel (5.4 and later with `CONFIG_DEBUG_INFO_BTF`).
pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Maximum size of the type information. Kernels have 5 to 30 MB.
const LARGEST: usize = 256 << 20;
const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
const TYPE: usize = 12;
const POINTER: u32 = 2;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
/// Maximum nesting of anonymous members; kernels have 3 or 4 levels.
const NESTING: u32 = 16;
/// Maximum number of typedefs and qualifiers in a row.
const ALIASES: u32 = 32;

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
    types: Vec<usize>,
    /// Position of the string section, and its end.
    strings: (usize, usize),
    /// First struct of each name.
    structs: HashMap<Vec<u8>, u32>,
}

impl Btf {
    /// Reads the BTF of the running kernel. Takes about 5 ms, and 6 MB until dropped.
    pub fn running() -> Result<Self, BtfError> {
        let data = foreign::kernel::read(VMLINUX, LARGEST)
            // In a root without /sys, fall back to the root of PID 1.
            .or_else(|error| {
                ForeignRoot::of_process(1).and_then(|root| root.read_sysfs(VMLINUX, LARGEST)).map_err(|_| error)
            })
            .map_err(BtfError::Read)?;
        Self::parse(data)
    }

    /// Parses BTF in the kernel's export format.
    pub(crate) fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let mut btf = Self { data, types: vec![0], strings: (0, 0), structs: HashMap::new() };
        if btf.data.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(BtfError::Malformed("wrong magic or byte order"));
        }
        let word = |at: usize| btf.word(at).map(|w| w as usize).ok_or(BtfError::Malformed("header cut short"));
        let header = word(4)?;
        let (types_at, types_len) = (header.saturating_add(word(8)?), word(12)?);
        let (strings_at, strings_len) = (header.saturating_add(word(16)?), word(20)?);
        let (types_end, strings_end) = (types_at.saturating_add(types_len), strings_at.saturating_add(strings_len));
        if header < HEADER || types_end > btf.data.len() || strings_end > btf.data.len() {
            return Err(BtfError::Malformed("a section extends past the end"));
        }
        btf.strings = (strings_at, strings_end);
        let mut at = types_at;
        while at + TYPE <= types_end {
            let (kind, members) = btf.kind(at).ok_or(BtfError::Malformed("type cut short"))?;
            let id = btf.types.len() as u32;
            btf.types.push(at);
            if kind == STRUCT {
                let name = btf.string(btf.word(at).unwrap_or(0)).to_vec();
                btf.structs.entry(name).or_insert(id);
            }
            at += TYPE + trailer(kind, members).ok_or(BtfError::Malformed("unknown kind of type"))?;
        }
        Ok(btf)
    }

    /// Byte offset of `path` (members joined by dots) in `struct name`.
    pub(crate) fn offset(&self, name: &str, path: &str) -> Option<u32> {
        let mut id = *self.structs.get(name.as_bytes())?;
        let mut bits = 0_u32;
        for member in path.split('.') {
            let (at, of) = self.member(id, member.as_bytes(), NESTING)?;
            bits = bits.checked_add(at)?;
            id = of;
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Offsets that the kernel side needs.
    pub fn offsets(&self) -> Offsets {
        let of = |name: &str, paths: &[&str]| {
            paths.iter().find_map(|path| self.offset(name, path)).unwrap_or(Offsets::ABSENT)
        };
        Offsets {
            task_pid: of("task_struct", &["pid"]),
            task_tgid: of("task_struct", &["tgid"]),
            task_state: of("task_struct", &["__state", "state"]),
            call: of("pt_regs", &["orig_ax", "syscallno"]),
        }
    }

    /// Whether parameter `index` of kernel function `name` is a pointer to `struct of`.
    pub(crate) fn takes(&self, name: &str, index: usize, of: &str) -> bool {
        let is_function = |at: usize| {
            let kind = self.kind(at).map(|(kind, _)| kind);
            kind == Some(FUNC) && self.word(at).is_some_and(|label| self.string(label) == name.as_bytes())
        };
        let pointed = || {
            let at = *self.types.iter().skip(1).find(|at| is_function(**at))?;
            let signature = self.resolve(self.word(at + 8)?)?;
            let (FUNC_PROTO, parameters) = self.kind(signature)? else {
                return None;
            };
            let parameter = (index < parameters).then_some(signature + TYPE + index * 8)?;
            let pointer = self.resolve(self.word(parameter + 4)?)?;
            (self.kind(pointer)?.0 == POINTER).then(|| self.word(pointer + 8))?
        };
        pointed().is_some_and(|id| self.structs.get(of.as_bytes()) == Some(&id))
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.data.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    fn kind(&self, at: usize) -> Option<(u32, usize)> {
        let info = self.word(at + 4)?;
        Some(((info >> 24) & 0x1f, (info & 0xffff) as usize))
    }

    fn string(&self, offset: u32) -> &[u8] {
        let (start, end) = self.strings;
        let tail = self.data.get(start.saturating_add(offset as usize)..end).unwrap_or_default();
        tail.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Skips typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<usize> {
        for _ in 0..ALIASES {
            let at = *self.types.get(id as usize).filter(|_| id != 0)?;
            match self.kind(at)?.0 {
                // TYPEDEF VOLATILE CONST RESTRICT TYPE_TAG
                8..=11 | 18 => id = self.word(at + 8)?,
                _ => return Some(at),
            }
        }
        None
    }

    /// Bit offset and type of a member, searching anonymous structs and unions too.
    fn member(&self, id: u32, name: &[u8], depth: u32) -> Option<(u32, u32)> {
        let at = self.resolve(id)?;
        let (kind, members) = self.kind(at)?;
        if kind != STRUCT && kind != UNION {
            return None;
        }
        let bitfields = self.word(at + 4)? >> 31 == 1;
        for i in 0..members {
            let record = at + TYPE + i * 12;
            let (label, of, offset) = (self.word(record)?, self.word(record + 4)?, self.word(record + 8)?);
            let bits = if bitfields { offset & 0x00ff_ffff } else { offset };
            let label = self.string(label);
            if label == name {
                return Some((bits, of));
            }
            if label.is_empty()
                && depth > 0
                && let Some((inner, of)) = self.member(of, name, depth - 1)
            {
                return Some((bits.checked_add(inner)?, of));
            }
        }
        None
    }
}

/// Number of bytes that follow a type's record; see include/uapi/linux/btf.h.
fn trailer(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // PTR FWD TYPEDEF VOLATILE CONST RESTRICT FUNC FLOAT TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // INT VAR DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        // STRUCT UNION DATASEC ENUM64
        4 | 5 | 15 | 19 => members * 12,
        // ENUM FUNC_PROTO
        6 | 13 => members * 8,
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
        assert_eq!(btf.offset("outer", "a"), Some(0));
        assert_eq!(btf.offset("outer", "b"), Some(4));
        assert_eq!(btf.offset("outer", "c.d"), Some(8));
        assert_eq!(btf.offset("outer", "missing"), None);
        assert_eq!(btf.offset("nothing", "a"), None);
        assert_eq!(btf.offsets(), Offsets::NONE);
    }

    #[test]
    fn the_running_kernel_has_what_the_scheduler_programs_need() {
        match Btf::running() {
            Ok(btf) => assert!(btf.offsets().sched(), "{:?}", btf.offsets()),
            Err(error) => eprintln!("SKIPPED: {error}"),
        }
    }

    #[test]
    fn the_running_kernel_has_poll_functions_with_timeouts() {
        let Ok(btf) = Btf::running() else {
            eprintln!("SKIPPED: the kernel's types cannot be read");
            return;
        };
        assert!(!btf.takes("do_epoll_wait", 1, "timespec64") && !btf.takes("do_epoll_wait", 4, "timespec64"));
        assert!(!btf.takes("no_such_function", 0, "timespec64"));
        if !(btf.takes("do_epoll_wait", 3, "timespec64") && btf.takes("do_sys_poll", 2, "timespec64")) {
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
                let _ = (btf.offset("outer", "c.d"), btf.offset("outer", "b"), btf.offsets());
                let _ = btf.takes("outer", 0, "inner");
            }
        }
    }
}
