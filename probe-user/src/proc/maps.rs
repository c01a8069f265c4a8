//! Mapped files from `/proc/PID/maps`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Addresses of a mapping, from which its name in `map_files` is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A mapped file, even if it has several mappings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedFile {
    /// Path in the process's mount namespace.
    pub(crate) path: PathBuf,
    pub(crate) inode: u64,
    /// Whether the file was unlinked or replaced after it was mapped.
    pub(crate) is_deleted: bool,
    /// Address range of the first mapping, which is the name of its entry in `map_files`.
    pub(crate) range: AddressRange,
}

impl MappedFile {
    pub(crate) fn name(&self) -> &[u8] {
        self.path.file_name().map_or(b"", OsStrExt::as_bytes)
    }
}

/// Identity of a file.
#[derive(PartialEq, Eq, Hash)]
struct FileKey {
    device_major: u32,
    device_minor: u32,
    inode: u64,
}

/// All mapped files, each once, in address order. Skips lines that are not about a file.
pub(crate) fn parse_mapped_files(text: &[u8]) -> Vec<MappedFile> {
    let mut seen = HashSet::new();
    text.split(|&byte| byte == b'\n').filter_map(|line| parse_file_if_new(line, &mut seen)).collect()
}

/// Parses a line such as `7f12-7f34 r-xp 00002000 fe:00 247030      /usr/lib/x.so (deleted)`, which has addresses, permissions, offset,
/// device, inode and path. Adds its file to `seen_files`. Returns `None` if the line is not about a file, or if the file was in
/// `seen_files` before. Most lines are further mappings of a file.
fn parse_file_if_new(line: &[u8], seen_files: &mut HashSet<FileKey>) -> Option<MappedFile> {
    let slash = line.iter().position(|&byte| byte == b'/')?;
    let (head, name) = line.split_at(slash);
    let MappingHead { range, file } = parse_mapping_head(head)?;
    let inode = file.inode;
    let is_anonymous = inode == 0;
    if is_anonymous {
        return None;
    }
    let is_new = seen_files.insert(file);
    if !is_new {
        return None;
    }
    let path = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let is_deleted = path.len() < name.len();
    Some(MappedFile { path: PathBuf::from(OsString::from_vec(unescape_path(path))), inode, is_deleted, range })
}

/// The address range and the file in a line, without the path.
struct MappingHead {
    range: AddressRange,
    file: FileKey,
}

/// Parses the part of a line before the path: addresses, permissions, offset, device and inode. `None` if it is malformed, or if a further
/// word follows.
fn parse_mapping_head(head: &[u8]) -> Option<MappingHead> {
    let mut fields = std::str::from_utf8(head).ok()?.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    // Permissions and offset come between.
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let has_further_word = fields.next().is_some();
    if has_further_word {
        return None;
    }
    let device_major = u32::from_str_radix(major, 16).ok()?;
    let device_minor = u32::from_str_radix(minor, 16).ok()?;
    Some(MappingHead { range: parse_range(start, end)?, file: FileKey { device_major, device_minor, inode } })
}

/// An executable mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExecutableMapping<'a> {
    /// Address range, which is the name of its entry in `map_files`.
    pub(crate) range: AddressRange,
    /// Position in the file of its first byte.
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// Path as the kernel writes it.
    pub(crate) path: &'a [u8],
}

impl ExecutableMapping<'_> {
    /// Positions in the file that are mapped.
    pub(crate) fn file_range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.range.end.saturating_sub(self.range.start))
    }
}

/// The executable mappings of files in the text of `/proc/PID/maps`.
pub(crate) fn executable_mappings(text: &[u8]) -> impl Iterator<Item = ExecutableMapping<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(parse_executable_mapping)
}

/// Parses a line such as `7f12-7f34 r-xp 00002000 fe:00 247030      /usr/lib/x.so (deleted)`, which has addresses, permissions, offset,
/// device, inode and path. Returns `None` if the mapping is not executable or maps no file.
fn parse_executable_mapping(line: &[u8]) -> Option<ExecutableMapping<'_>> {
    let slash = line.iter().position(|&byte| byte == b'/')?;
    let head = std::str::from_utf8(&line[..slash]).ok()?;
    let mut fields = head.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    // `r-xp`: the third character is the right to execute.
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    // The device comes between.
    let inode = fields.nth(1)?.parse().ok()?;
    let range = parse_range(start, end)?;
    let path = line[slash..].strip_suffix(b" (deleted)").unwrap_or(&line[slash..]);
    Some(ExecutableMapping { range, offset, inode, path })
}

/// The address range of a mapping, from its hexadecimal ends.
fn parse_range(start: &str, end: &str) -> Option<AddressRange> {
    Some(AddressRange { start: u64::from_str_radix(start, 16).ok()?, end: u64::from_str_radix(end, 16).ok()? })
}

/// Unescapes a path: the kernel writes a newline as `\012` and escapes nothing else.
fn unescape_path(path: &[u8]) -> Vec<u8> {
    let mut unescaped = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind_byte)) = rest.split_first() {
        if let Some(behind_escape) = rest.strip_prefix(br"\012") {
            unescaped.push(b'\n');
            rest = behind_escape;
        } else {
            unescaped.push(byte);
            rest = behind_byte;
        }
    }
    unescaped
}

/// Maximum number of directories that [`find_package_directories`] returns. An environment has two or three.
const MAX_PACKAGE_DIRECTORIES: usize = 16;

/// The `site-packages` and `dist-packages` directories of mapped extension modules.
pub(crate) fn find_package_directories(files: &[MappedFile]) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    for file in files {
        if dirs.len() == MAX_PACKAGE_DIRECTORIES {
            break;
        }
        let mut ancestors = file.path.ancestors();
        let package_dir = ancestors.find(|dir| dir.ends_with("site-packages") || dir.ends_with("dist-packages"));
        if let Some(package_dir) = package_dir
            && !dirs.iter().any(|known| known == package_dir)
        {
            dirs.push(package_dir.to_owned());
        }
    }
    dirs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Captured from a pyzmq process in a venv, shortened.
    const MAPS: &[u8] = b"\
55f0c0a3e000-55f0c0a3f000 r--p 00000000 fe:00 3407966                    /root/.pyenv/versions/3.11.7/bin/python3.11
7f58a0000000-7f58a0021000 rw-p 00000000 00:00 0 
7f58a9a2c000-7f58a9a3e000 r--p 00000000 fe:00 3459512                    /srv/v/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5
7f58a9a3e000-7f58a9ac5000 r-xp 00012000 fe:00 3459512                    /srv/v/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5
7f58a9c22000-7f58a9c2c000 r--p 00000000 fe:00 3459463                    /srv/v/lib/python3.11/site-packages/zmq/backend/cython/_zmq.cpython-311-x86_64-linux-gnu.so (deleted)
7f58aa000000-7f58aa022000 r--s 00000000 00:05 1031                       /memfd:pool (deleted)
7ffd7f5d3000-7ffd7f5f4000 rw-p 00000000 00:00 0                          [stack]
7f58aa100000-7f58aa101000 r--p 00000000 fe:00 77                         /tmp/two\\012lines
";

    #[test]
    fn executable_mappings_have_their_file_range() {
        let found: Vec<_> = executable_mappings(MAPS).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].inode, found[0].file_range()), (3_459_512, 0x12000..0x99000));
        assert!(found[0].path.ends_with(b"/libzmq-2f02442c.so.5.2.5"));
    }

    #[test]
    fn each_mapped_file_is_listed_once() {
        let files = parse_mapped_files(MAPS);
        let names: Vec<_> = files.iter().map(|f| String::from_utf8_lossy(f.name()).into_owned()).collect();
        assert_eq!(
            names,
            [
                "python3.11",
                "libzmq-2f02442c.so.5.2.5",
                "_zmq.cpython-311-x86_64-linux-gnu.so",
                "memfd:pool",
                "two\nlines"
            ]
        );
        let zmq = &files[1];
        assert_eq!((zmq.inode, zmq.is_deleted), (3_459_512, false));
        assert_eq!(zmq.range, AddressRange { start: 0x7f58_a9a2_c000, end: 0x7f58_a9a3_e000 });
        assert!(files[2].is_deleted);
    }

    #[test]
    fn the_venv_shows_in_the_extension_modules() {
        assert_eq!(
            find_package_directories(&parse_mapped_files(MAPS)),
            [PathBuf::from("/srv/v/lib/python3.11/site-packages")]
        );
    }

    proptest! {
        #[test]
        fn arbitrary_lines_have_bounded_file_ranges(line in "[0-9a-f]{1,16}-[0-9a-f]{1,16} r-xp [0-9a-f]{1,16} .{0,40}") {
            for mapping in executable_mappings(line.as_bytes()) {
                prop_assert!(mapping.file_range().start == mapping.offset);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            parse_mapped_files(&bytes);
        }

        #[test]
        fn arbitrary_file_names_round_trip(name in "[^\n\\\\\0/]{1,40}") {
            prop_assume!(!name.ends_with(" (deleted)"));
            let line = format!("7f00-7f01 r-xp 00000000 fe:01 9                          /opt/{name}");
            let found = parse_mapped_files(line.as_bytes());
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(&found[0].path, &PathBuf::from(format!("/opt/{name}")));
        }
    }
}
