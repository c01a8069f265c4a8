//! Methods of `CPython` extensions that are built with `PyO3`.
//!
//! Such a library is stripped and exports only its module's initialiser. `PyO3` keeps a table of each class's methods, in read-only data with
//! relocations: function, name and its length with the final zero, documentation and its length, flags. The relocations name the function.

use object::{Object as _, ObjectSegment as _, SegmentFlags, elf};

use super::{ProbePointsError, read};
use crate::library::Library;

/// Offsets in a table entry from the pointer to the name.
const FUNCTION: u64 = 8;
const LENGTH: u64 = 8;
const FLAGS: u64 = 32;
/// `METH_FASTCALL | METH_KEYWORDS`: the function gets an array of the arguments.
const FAST_WITH_KEYWORDS: u32 = 0x82;

/// File offset of the only method with one of these names in the library.
pub(crate) fn of_library(library: &Library, methods: &'static [&'static str]) -> Result<u64, ProbePointsError> {
    let path = || library.path.display().to_string();
    let image = read(library)?;
    let found = find(&image, methods).map_err(|source| ProbePointsError::Elf { path: path(), source })?;
    found.ok_or_else(|| ProbePointsError::NoMethod { path: path(), methods })
}

/// File offset of the method. `None` if there is none, or more than one.
pub(crate) fn find(image: &[u8], methods: &[&str]) -> Result<Option<u64>, object::Error> {
    let file = object::File::parse(image)?;
    let segments: Vec<Segment<'_>> = file.segments().filter_map(|segment| Segment::of(&segment)).collect();
    let names: Vec<(u64, u64)> = methods.iter().flat_map(|method| places(&segments, method)).collect();
    let relocations = || file.dynamic_relocations().into_iter().flatten();
    let named = |addend: i64| names.iter().find(|(at, _)| *at == addend as u64);
    let entries: Vec<(u64, u64)> = relocations()
        .filter_map(|(at, relocation)| Some((at, named(relocation.addend())?.1)))
        .filter(|(at, length)| is_entry(&segments, *at, *length))
        .collect();
    let function = |at: u64| entries.iter().any(|(name, _)| name.checked_sub(FUNCTION) == Some(at));
    let mut functions: Vec<u64> = relocations()
        .filter(|(at, _)| function(*at))
        .filter_map(|(_, relocation)| in_file(&segments, relocation.addend() as u64))
        .collect();
    functions.dedup();
    Ok(match functions.as_slice() {
        [only] => Some(*only),
        _ => None,
    })
}

struct Segment<'a> {
    address: u64,
    bytes: &'a [u8],
    /// Offset of its bytes in the file.
    offset: u64,
    executable: bool,
}

impl<'a> Segment<'a> {
    fn of(segment: &object::Segment<'a, '_>) -> Option<Self> {
        let executable = matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & elf::PF_X != 0);
        Some(Self {
            address: segment.address(),
            bytes: segment.data().ok()?,
            offset: segment.file_range().0,
            executable,
        })
    }

    fn from(&self, address: u64) -> Option<&'a [u8]> {
        self.bytes.get(usize::try_from(address.checked_sub(self.address)?).ok()?..)
    }
}

/// Addresses of a name that ends with a zero, each with the name's length.
fn places<'s>(segments: &'s [Segment<'_>], method: &str) -> impl Iterator<Item = (u64, u64)> + use<'s> {
    let name = [method.as_bytes(), &[0]].concat();
    let data = segments.iter().filter(|segment| !segment.executable);
    data.flat_map(move |segment| {
        let found: Vec<usize> = memchr::memmem::find_iter(segment.bytes, &name).collect();
        let length = name.len() as u64;
        found.into_iter().map(move |at| (segment.address.wrapping_add(at as u64), length))
    })
}

/// Whether a pointer to a name of this length belongs to a table entry.
fn is_entry(segments: &[Segment<'_>], name: u64, length: u64) -> bool {
    let word = |at: u64| {
        let bytes = segments.iter().find_map(|segment| segment.from(at))?;
        Some(u64::from_le_bytes(*bytes.first_chunk()?))
    };
    let word = |offset: u64| word(name.checked_add(offset)?);
    word(LENGTH) == Some(length) && word(FLAGS).is_some_and(|flags| flags as u32 == FAST_WITH_KEYWORDS)
}

/// Offset in the file of code at an address.
fn in_file(segments: &[Segment<'_>], address: u64) -> Option<u64> {
    let mut code = segments.iter().filter(|segment| segment.executable);
    code.find_map(|segment| {
        segment.from(address).filter(|bytes| !bytes.is_empty())?;
        Some(address - segment.address + segment.offset)
    })
}

#[cfg(test)]
mod tests;
