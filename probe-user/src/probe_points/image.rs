//! A library's file as bytes that another user wrote: every table in it has a limit, so that no file takes more than a moment.

use object::elf::ProgramHeader64;
use object::read::elf::{ElfFile64, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, Object as _, elf};

/// Maximum number of program headers. Libraries have about a dozen.
const MAX_SEGMENTS: usize = 64;
/// Maximum number of exported symbols. libc has 3,000, the largest extension modules some ten thousand.
const MAX_SYMBOLS: usize = 1 << 17;
/// Maximum number of relocations. An extension module of 60 MB has some hundred thousand.
pub(super) const MAX_RELOCATIONS: usize = 1 << 21;
/// Maximum number of occurrences of a method's name.
pub(super) const MAX_NAMES: usize = 4096;

/// Why a file is not analysed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("not a library for this machine: {0}")]
    Malformed(#[from] object::Error),
    #[error("more than {limit} {what}, the limit")]
    TooMany { what: &'static str, limit: usize },
    #[error("segments that overlap")]
    Overlap,
}

/// The parsed file.
pub(super) struct Image<'a> {
    elf: ElfFile64<'a>,
    pub(super) segments: Vec<LoadedSegment<'a>>,
}

/// A segment that is loaded into memory.
pub(super) struct LoadedSegment<'a> {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) bytes: &'a [u8],
    /// Offset of its bytes in the file.
    pub(super) offset: u64,
    pub(super) is_executable: bool,
}

impl<'a> LoadedSegment<'a> {
    /// The segment of a program header, if it is loaded and inside the file.
    fn from_header(header: &ProgramHeader64<Endianness>, endian: Endianness, file: &'a [u8]) -> Option<Self> {
        if header.p_type(endian) != elf::PT_LOAD {
            return None;
        }
        Some(Self {
            address: header.p_vaddr(endian),
            size: header.p_memsz(endian),
            bytes: header.data(endian, file).ok()?,
            offset: header.p_offset(endian),
            is_executable: header.p_flags(endian) & elf::PF_X != 0,
        })
    }

    /// Bytes of the segment from an address on. `None` if the file has no bytes there.
    pub(super) fn bytes_from(&self, address: u64) -> Option<&'a [u8]> {
        let offset = address.checked_sub(self.address)?;
        self.bytes.get(usize::try_from(offset).ok()?..)
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.address..self.address.saturating_add(self.size)).contains(&address)
    }
}

/// An exported function or variable.
pub(super) struct ExportedSymbol {
    pub(super) name: &'static str,
    pub(super) address: u64,
}

/// A word that the loader fills with an address.
#[derive(Clone, Copy)]
pub(super) struct DynamicRelocation {
    /// Address of the word.
    pub(super) address: u64,
    /// Address that is written there, relative to where the library is loaded.
    pub(super) addend: u64,
}

impl<'a> Image<'a> {
    /// Parses an ELF file. Refuses one whose segments overlap.
    pub(super) fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        let elf = ElfFile64::<Endianness>::parse(file)?;
        let headers = elf.elf_program_headers();
        check_limit("segments", headers.len(), MAX_SEGMENTS)?;
        let segments: Vec<LoadedSegment<'a>> =
            headers.iter().filter_map(|header| LoadedSegment::from_header(header, elf.endian(), file)).collect();
        let loaded_bytes: usize = segments.iter().map(|segment| segment.bytes.len()).sum();
        // In a hostile file, all segments may be the same bytes, which would then be searched many times. In an honest file, the segments
        // together have at most twice its length.
        if loaded_bytes > file.len().saturating_mul(2) {
            return Err(ImageError::Overlap);
        }
        Ok(Self { elf, segments })
    }

    /// The exports that have one of these names, in the order of the file. Fails if the file has too many symbols.
    pub(super) fn exports(&self, names: &[&'static str]) -> Result<Vec<ExportedSymbol>, ImageError> {
        let table = self.elf.elf_dynamic_symbol_table();
        check_limit("exported symbols", table.len(), MAX_SYMBOLS)?;
        let endian = self.elf.endian();
        let string_section = self.elf.elf_section_table().section(table.string_section());
        let strings = string_section.and_then(|section| section.data(endian, self.elf.data())).unwrap_or_default();
        let mut exports = Vec::new();
        for symbol in table.iter() {
            // An undefined symbol is imported.
            if symbol.is_undefined(endian) {
                continue;
            }
            // The name of a malformed symbol is outside of the strings.
            let Some(text) = strings.get(symbol.st_name(endian) as usize..) else { continue };
            if let Some(name) = names.iter().find(|name| begins_with_string(text, name)) {
                exports.push(ExportedSymbol { name, address: symbol.st_value(endian) });
            }
        }
        Ok(exports)
    }

    /// Relocations of the dynamic section. An error if there are too many.
    pub(super) fn relocations(&self) -> Result<Vec<DynamicRelocation>, ImageError> {
        let relocations = self.elf.dynamic_relocations().into_iter().flatten();
        // One more than the limit, so that a file that exceeds it is refused.
        let found: Vec<DynamicRelocation> = relocations
            .take(MAX_RELOCATIONS + 1)
            .map(|(address, relocation)| DynamicRelocation { address, addend: relocation.addend() as u64 })
            .collect();
        check_limit("relocations", found.len(), MAX_RELOCATIONS)?;
        Ok(found)
    }
}

/// Whether the bytes begin with this string and its final zero. The end of another string, which may be as far away as the end of the file,
/// is not searched.
fn begins_with_string(bytes: &[u8], string: &str) -> bool {
    bytes.strip_prefix(string.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
}

/// An error if more was found than the limit.
pub(super) fn check_limit(what: &'static str, found: usize, limit: usize) -> Result<(), ImageError> {
    if found > limit { Err(ImageError::TooMany { what, limit }) } else { Ok(()) }
}
