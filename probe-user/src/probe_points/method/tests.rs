//! A minimal library: a segment of names and table entries with relocations, and a segment of code.

use object::elf;
use proptest::prelude::*;

use super::*;

const DATA: u64 = 0x1000;
const CODE: u64 = 0x3000;
/// Difference between addresses and file offsets of the code.
const SHIFT: u64 = 0x1000;
const NAME: u64 = DATA + 0x10;
const ENTRY: u64 = DATA + 0x100;
const METHOD: u64 = CODE + 0x40;
const RELATIVE: u64 = 8;

/// Builds a library with these words in its data, by address, and these relocations.
fn library(words: &[(u64, u64)], relocations: &[(u64, u64)]) -> Vec<u8> {
    let mut file = vec![0; 0x3000];
    let mut put = |at: u64, value: &[u8]| file[at as usize..at as usize + value.len()].copy_from_slice(value);
    put(0, b"\x7fELF\x02\x01\x01");
    // Type, machine, version.
    put(16, &[3, 0, 62, 0, 1, 0, 0, 0]);
    // Program headers, section headers.
    put(32, &64_u64.to_le_bytes());
    put(40, &0x400_u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 2, 0, 64, 0, 4, 0, 3, 0]);
    let segments = [(elf::PF_R, DATA, DATA, 0x1000_u64), (elf::PF_X, CODE - SHIFT, CODE, 0x1000)];
    for (n, (flags, offset, address, size)) in segments.into_iter().enumerate() {
        let at = 64 + 56 * n as u64;
        put(at, &elf::PT_LOAD.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        for (field, value) in [(8, offset), (16, address), (24, address), (32, size), (40, size)] {
            put(at + field, &value.to_le_bytes());
        }
    }
    // Sections: none, dynamic symbols, relocations, names.
    let mut section = |n: u64, kind: u32, link: u32, offset: u64, size: u64, entry: u64| {
        let at = 0x400 + 64 * n;
        put(at + 4, &kind.to_le_bytes());
        put(at + 24, &offset.to_le_bytes());
        put(at + 32, &size.to_le_bytes());
        put(at + 40, &link.to_le_bytes());
        put(at + 56, &entry.to_le_bytes());
    };
    section(1, elf::SHT_DYNSYM, 3, 0x600, 24, 24);
    section(2, elf::SHT_RELA, 1, 0x700, 24 * relocations.len() as u64, 24);
    section(3, elf::SHT_STRTAB, 0, 0x640, 1, 0);
    for (n, (at, addend)) in relocations.iter().enumerate() {
        let place = 0x700 + 24 * n as u64;
        put(place, &at.to_le_bytes());
        put(place + 8, &RELATIVE.to_le_bytes());
        put(place + 16, &addend.to_le_bytes());
    }
    put(NAME, b"push_batch\0");
    for (at, word) in words {
        put(*at, &word.to_le_bytes());
    }
    file
}

const WORDS: [(u64, u64); 2] = [(ENTRY + LENGTH_DISTANCE, 11), (ENTRY + FLAGS_DISTANCE, 0x82)];
const RELOCATIONS: [(u64, u64); 2] = [(ENTRY - FUNCTION_DISTANCE, METHOD), (ENTRY, NAME)];

#[test]
fn a_method_is_found_by_its_table_entry() {
    let image = library(&WORDS, &RELOCATIONS);
    assert_eq!(find_method_offset(&image, &["other", "push_batch"]), Ok(Some(METHOD - SHIFT)));
    assert_eq!(find_method_offset(&image, &["other"]), Ok(None));
    // Part of another name.
    assert_eq!(find_method_offset(&image, &["batch"]), Ok(None));
}

#[test]
fn other_uses_of_the_name_are_no_methods() {
    let no = |words: &[(u64, u64)], relocations: &[(u64, u64)]| {
        assert_eq!(find_method_offset(&library(words, relocations), &["push_batch"]), Ok(None));
    };
    // Another length, another calling convention, no function, and a function that is no code.
    no(&[(ENTRY + LENGTH_DISTANCE, 10), WORDS[1]], &RELOCATIONS);
    no(&[WORDS[0], (ENTRY + FLAGS_DISTANCE, 0x8)], &RELOCATIONS);
    no(&WORDS, &RELOCATIONS[1..]);
    no(&WORDS, &[(ENTRY - FUNCTION_DISTANCE, NAME), RELOCATIONS[1]]);
    // Two classes with such a method.
    let second = ENTRY + 0x80;
    let words = [WORDS[0], WORDS[1], (second + LENGTH_DISTANCE, 11), (second + FLAGS_DISTANCE, 0x82)];
    let relocations = [RELOCATIONS[0], RELOCATIONS[1], (second - FUNCTION_DISTANCE, METHOD + 0x20), (second, NAME)];
    no(&words, &relocations);
}

#[test]
fn many_names_and_relocations_are_refused_or_take_a_moment() {
    let began = std::time::Instant::now();
    let mut image = library(&WORDS, &RELOCATIONS);
    let relocations_at = image.len();
    let (relocation, count) = ([ENTRY.to_le_bytes(), RELATIVE.to_le_bytes(), NAME.to_le_bytes()].concat(), 200_000);
    image.extend(relocation.repeat(count));
    let section_at = 0x400 + 64 * 2;
    image[section_at + 24..section_at + 32].copy_from_slice(&relocations_at.to_le_bytes());
    image[section_at + 32..section_at + 40].copy_from_slice(&(24 * count).to_le_bytes());
    let segment_at = 64;
    let mut with_names = |count: usize| {
        let names_at = image.len();
        image.extend(b"push_batch\0".repeat(count));
        let bytes = (image.len() - names_at).to_le_bytes();
        image[segment_at + 8..segment_at + 16].copy_from_slice(&names_at.to_le_bytes());
        image[segment_at + 32..segment_at + 40].copy_from_slice(&bytes);
        find_method_offset(&image, &["push_batch"])
    };
    assert_eq!(with_names(MAX_NAMES), Ok(None));
    let what = "occurrences of a method's name";
    assert_eq!(with_names(MAX_NAMES + 1), Err(ImageError::TooMany { what, limit: MAX_NAMES }));
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

proptest! {
    #[test]
    fn damaged_libraries_never_panic(place in 0_usize..0x1000, bytes in proptest::collection::vec(any::<u8>(), 1..16)) {
        let mut image = library(&WORDS, &RELOCATIONS);
        image[place..place + bytes.len()].copy_from_slice(&bytes);
        let _ = find_method_offset(&image, &["push_batch"]);
        image.truncate(place);
        let _ = find_method_offset(&image, &["push_batch"]);
    }
}
