//! The libzmq that a process has mapped: its file and release.

use std::path::PathBuf;

use memchr::memmem;
use trace::engine::Version;

use crate::proc::maps::MappedFile;

/// A mapped libzmq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibZmq {
    /// Path inside the process's mount namespace.
    pub path: PathBuf,
    /// Release derived from the file name (`libzmq-2f02442c.so.5.2.5` is 4.3.5).
    pub release: Option<Version>,
}

/// Selects the mapped files that contain libzmq, by their names. Separate libraries (`libzmq-2f02442c.so.5.2.5` from pyzmq wheels, a
/// distribution's `libzmq.so.5.2.5`) come first, because extension modules then only call them. Without a separate library, these are the
/// modules that may link it statically (`_zmq.abi3.so`).
pub(crate) fn mapped_libzmq_files(files: &[MappedFile]) -> Vec<&MappedFile> {
    let mut libraries: Vec<&MappedFile> = files.iter().filter(|file| is_libzmq_name(file.name())).collect();
    let has_separate_library = libraries.iter().any(|file| file.name().starts_with(b"libzmq"));
    if has_separate_library {
        libraries.retain(|file| file.name().starts_with(b"libzmq"));
    }
    libraries
}

/// Whether a file with this name may contain libzmq.
pub(crate) fn is_libzmq_name(name: &[u8]) -> bool {
    [&b"zmq"[..], b".so"].iter().all(|part| memmem::find(name, part).is_some())
}

impl LibZmq {
    pub(crate) fn from_mapped(file: &MappedFile) -> Self {
        let release = release_in_file_name(&String::from_utf8_lossy(file.name()));
        Self { path: file.path.clone(), release }
    }
}

/// Release of libzmq, from the ABI version in a file name. `None` if the name has no known one. Release 4.2.x has ABI version 5.1.x, and
/// 4.3.x has 5.2.x (see its `configure.ac`).
fn release_in_file_name(name: &str) -> Option<Version> {
    let (_, abi) = name.split_once(".so.")?;
    let has_patch_level = abi.matches('.').count() == 2;
    // The fourth number of `Version` is not used by libzmq.
    match Version::parse_package_version(abi)?.numbers() {
        [5, 1, patch, _] if has_patch_level => Some(Version::new(4, 2, patch)),
        [5, 2, patch, _] => Some(Version::new(4, 3, patch)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{ProcDir, maps};

    #[test]
    fn the_file_name_gives_the_release() {
        let cases = [
            ("libzmq-2f02442c.so.5.2.5", Some(Version::new(4, 3, 5))),
            ("libzmq-f468291a.so.5.2.4", Some(Version::new(4, 3, 4))),
            ("libzmq.so.5.1.5", Some(Version::new(4, 2, 5))),
            ("libzmq.so.5", None),
            ("libzmq.cpython-39-x86_64-linux-gnu.so", None),
        ];
        for (name, expected) in cases {
            assert_eq!(release_in_file_name(name), expected, "{name}");
        }
    }

    #[test]
    fn a_mapped_file_is_opened_through_the_process() {
        let me = ProcDir::open(std::process::id()).unwrap();
        let files = maps::parse_mapped_files(&me.mappings(1 << 24).unwrap());
        let exe = std::env::current_exe().unwrap();
        let mapped = files.iter().find(|f| f.path == exe).unwrap();
        assert_eq!(me.open_library(mapped).unwrap().inode, mapped.inode);
    }

    #[test]
    fn a_path_with_another_inode_is_not_opened() {
        let me = ProcDir::open(std::process::id()).unwrap();
        let files = maps::parse_mapped_files(&me.mappings(1 << 24).unwrap());
        let exe = std::env::current_exe().unwrap();
        let mapped = files.iter().find(|f| f.path == exe).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libzmq.so.5");
        std::fs::write(&path, "another file").unwrap();
        let replaced = MappedFile { path, ..mapped.clone() };
        // Without the right to use `map_files`, nothing is opened.
        assert!(me.open_library(&replaced).map_or(true, |opened| opened.inode == mapped.inode));
    }
}
