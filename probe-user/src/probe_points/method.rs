//! Methods of `CPython` extensions that are built with `PyO3`.
//!
//! Such a library is stripped and exports only its module's initialiser. `PyO3` keeps a table of each class's methods, in read-only data
//! with relocations: function, name and its length with the final zero, documentation and its length, flags. The relocations name the
//! function.

use std::collections::{HashMap, HashSet};

use super::ImageError;
use super::image::{DynamicRelocation, Image, LoadedSegment, MAX_NAMES, check_limit};

/// Distances in a table entry between the pointer to the name and other fields: the function comes before it, the others after it.
const FUNCTION_DISTANCE: u64 = 8;
const LENGTH_DISTANCE: u64 = 8;
const FLAGS_DISTANCE: u64 = 32;
/// `METH_FASTCALL | METH_KEYWORDS`: the function gets an array of the arguments.
const FAST_WITH_KEYWORDS: u32 = 0x82;

/// File offset of the function that implements a method with one of these names in a Python extension. `None` if there is no such function,
/// or more than one. An extension has a table entry for each method, with a pointer to its name and one to its function. Relocations say
/// which addresses the loader writes into these pointers.
pub(super) fn find_method_offset(image: &[u8], method_names: &[&str]) -> Result<Option<u64>, ImageError> {
    let image = Image::parse(image)?;
    let segments = &image.segments;
    let lengths_by_address = find_name_lengths_by_address(segments, method_names)?;
    let relocations = image.relocations()?;
    let function_fields = find_function_pointer_addresses(segments, &relocations, &lengths_by_address);
    let mut function_offsets = HashSet::new();
    for DynamicRelocation { address, addend } in &relocations {
        // The addend is the address of the function, which the loader writes into the field.
        if function_fields.contains(address) {
            function_offsets.extend(file_offset_of_code(segments, *addend));
        }
    }
    // With two different functions, it is unknown which one is called.
    if function_offsets.len() > 1 {
        return Ok(None);
    }
    Ok(function_offsets.into_iter().next())
}

/// Finds all occurrences of these methods' names in the data. Returns the length of each by its address. Fails if there are too many.
fn find_name_lengths_by_address(
    segments: &[LoadedSegment<'_>],
    method_names: &[&str],
) -> Result<HashMap<u64, u64>, ImageError> {
    // One more than the limit, so that a file that exceeds it is refused.
    let occurrences =
        method_names.iter().flat_map(|method| find_name_occurrences(segments, method)).take(MAX_NAMES + 1);
    let lengths_by_address: HashMap<u64, u64> = occurrences.map(|name| (name.address, name.length_bytes)).collect();
    check_limit("occurrences of a method's name", lengths_by_address.len(), MAX_NAMES)?;
    Ok(lengths_by_address)
}

/// Finds the table entries of methods by their names. `lengths_by_address` has the address of each name with its length. Returns the
/// address of each entry's pointer to its function.
fn find_function_pointer_addresses(
    segments: &[LoadedSegment<'_>],
    relocations: &[DynamicRelocation],
    lengths_by_address: &HashMap<u64, u64>,
) -> HashSet<u64> {
    let mut function_fields = HashSet::new();
    for DynamicRelocation { address, addend } in relocations {
        // Where the loader writes the address of a name, there is an entry's pointer to its name. The pointer to the function follows it.
        if let Some(length_bytes) = lengths_by_address.get(addend)
            && is_name_pointer_of_method_entry(segments, *address, *length_bytes)
            && let Some(function_field) = address.checked_sub(FUNCTION_DISTANCE)
        {
            function_fields.insert(function_field);
        }
    }
    function_fields
}

/// A name that ends with a zero, which its length includes.
struct NameOccurrence {
    address: u64,
    length_bytes: u64,
}

/// Finds all occurrences of the method's name in the data of the file, each with the zero byte after it.
fn find_name_occurrences<'s>(
    segments: &'s [LoadedSegment<'_>],
    method: &str,
) -> impl Iterator<Item = NameOccurrence> + use<'s> {
    let name = [method.as_bytes(), &[0]].concat();
    // Names are in the data.
    let data = segments.iter().filter(|segment| !segment.is_executable);
    data.flat_map(move |segment| {
        // One more than the limit, by which the caller notices that it is exceeded.
        let found: Vec<usize> = memchr::memmem::find_iter(segment.bytes, &name).take(MAX_NAMES + 1).collect();
        let length_bytes = name.len() as u64;
        found.into_iter().map(move |position| NameOccurrence {
            address: segment.address.wrapping_add(position as u64),
            length_bytes,
        })
    })
}

/// Whether the pointer at this address, to a name of `length_bytes` bytes, is a field of an entry in a method table. Such an entry has the
/// length in another field, and in a third the flags of a method that gets an array of its arguments.
fn is_name_pointer_of_method_entry(segments: &[LoadedSegment<'_>], address: u64, length_bytes: u64) -> bool {
    // The fields are at fixed distances from the pointer.
    let length = address.checked_add(LENGTH_DISTANCE).and_then(|field| word_at(segments, field));
    let flags = address.checked_add(FLAGS_DISTANCE).and_then(|field| word_at(segments, field));
    length == Some(length_bytes) && flags.is_some_and(|flags| flags as u32 == FAST_WITH_KEYWORDS)
}

/// The 64 bits at an address of the data; `None` if the file has no bytes there.
fn word_at(segments: &[LoadedSegment<'_>], address: u64) -> Option<u64> {
    let bytes = segments.iter().find_map(|segment| segment.bytes_from(address))?;
    Some(u64::from_le_bytes(*bytes.first_chunk()?))
}

/// Offset in the file of the code at an address. `None` if no executable segment has the address.
fn file_offset_of_code(segments: &[LoadedSegment<'_>], address: u64) -> Option<u64> {
    let mut code = segments.iter().filter(|segment| segment.is_executable);
    code.find_map(|segment| {
        // A segment without bytes at the address is skipped.
        segment.bytes_from(address).filter(|bytes| !bytes.is_empty())?;
        Some((address - segment.address).wrapping_add(segment.offset))
    })
}

#[cfg(test)]
mod tests;
