//! Methods of `CPython` extensions that are built with `PyO3`.
//!
//! Such a library is stripped and exports only its module's initialiser. `PyO3` keeps a table of each class's methods, in read-only data with
//! relocations: function, name and its length with the final zero, documentation and its length, flags. The relocations name the function.

use std::collections::{HashMap, HashSet};

use super::ImageError;
use super::image::{Image, NAMES, Segment, check};

/// Offsets in a table entry from the pointer to the name.
const FUNCTION: u64 = 8;
const LENGTH: u64 = 8;
const FLAGS: u64 = 32;
/// `METH_FASTCALL | METH_KEYWORDS`: the function gets an array of the arguments.
const FAST_WITH_KEYWORDS: u32 = 0x82;

/// File offset of the method. `None` if there is none, or more than one.
pub(super) fn find(image: &[u8], methods: &[&str]) -> Result<Option<u64>, ImageError> {
    let image = Image::parse(image)?;
    let segments = &image.segments;
    // One more than the limit, so that a file that exceeds it is refused.
    let names: HashMap<u64, u64> = methods.iter().flat_map(|method| places(segments, method)).take(NAMES + 1).collect();
    check("occurrences of a method's name", names.len(), NAMES)?;
    let relocations = image.relocations()?;
    let is_entry =
        |&(at, addend): &(u64, u64)| names.get(&addend).is_some_and(|length| is_entry(segments, at, *length));
    let functions_at: HashSet<u64> =
        relocations.iter().filter(|found| is_entry(found)).filter_map(|(at, _)| at.checked_sub(FUNCTION)).collect();
    let mut functions = relocations
        .iter()
        .filter(|(at, _)| functions_at.contains(at))
        .filter_map(|(_, addend)| in_file(segments, *addend));
    let first = functions.next();
    Ok(first.filter(|first| functions.all(|other| other == *first)))
}

/// Addresses of a name that ends with a zero, each with the name's length.
fn places<'s>(segments: &'s [Segment<'_>], method: &str) -> impl Iterator<Item = (u64, u64)> + use<'s> {
    let name = [method.as_bytes(), &[0]].concat();
    let data = segments.iter().filter(|segment| !segment.is_executable);
    data.flat_map(move |segment| {
        let found: Vec<usize> = memchr::memmem::find_iter(segment.bytes, &name).take(NAMES + 1).collect();
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
    let mut code = segments.iter().filter(|segment| segment.is_executable);
    code.find_map(|segment| {
        segment.from(address).filter(|bytes| !bytes.is_empty())?;
        Some((address - segment.address).wrapping_add(segment.offset))
    })
}

#[cfg(test)]
mod tests;
