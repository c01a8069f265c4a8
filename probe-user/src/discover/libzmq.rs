//! The libzmq that a process has mapped: its file, release and functions.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use memchr::memmem;
use object::{Object, ObjectSymbol};

use super::release::Release;
use crate::proc::maps::MappedFile;
use crate::proc::{ProcDir, ReadError};

/// Functions that may be probed. pyzmq sends with `zmq_msg_send` and receives with `zmq_msg_recv`; other clients may use `zmq_send` and
/// `zmq_recv`. `zmq_getsockopt` marks the previous message as processed.
pub const FUNCTIONS: [&str; 6] = ["zmq_msg_send", "zmq_msg_recv", "zmq_send", "zmq_recv", "zmq_getsockopt", "zmq_poll"];

/// Maximum file size; libzmq has about 1 MB.
const LARGEST: usize = 64 << 20;
/// Maximum number of cached libzmq files, each of which is parsed once.
const REMEMBERED: usize = 256;

/// A mapped libzmq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibZmq {
    /// Path inside the process's mount namespace.
    pub path: PathBuf,
    /// Path where this process can open the mapped file itself: below `/proc/PID/root`, or in `/proc/PID/map_files` if it was replaced on
    /// disk. `None` when neither is permitted.
    pub open_at: Option<PathBuf>,
    /// Device number in the mapping; on overlayfs it differs from the one in `stat`.
    pub dev: (u32, u32),
    /// Inode. Together with `dev` it shows whether two processes share the file, and therefore a uprobe.
    pub inode: u64,
    /// Release derived from the file name (`libzmq-2f02442c.so.5.2.5` is 4.3.5).
    pub release: Option<Release>,
    /// The functions of [`FUNCTIONS`] that it exports; `None` when the file could not be read.
    pub functions: Option<Vec<&'static str>>,
}

/// Selects the mapped files that contain libzmq by their names: a separate library (`libzmq-2f02442c.so.5.2.5` from pyzmq wheels, a
/// distribution's `libzmq.so.5.2.5`), which extension modules only call, or else modules that may link it statically (`_zmq.abi3.so`).
pub(crate) fn mapped(files: &[MappedFile]) -> Vec<&MappedFile> {
    let zmq = |file: &&MappedFile| [&b"zmq"[..], b".so"].iter().all(|part| memmem::find(file.name(), part).is_some());
    let mut found: Vec<&MappedFile> = files.iter().filter(zmq).collect();
    if found.iter().any(|file| file.name().starts_with(b"libzmq")) {
        found.retain(|file| file.name().starts_with(b"libzmq"));
    }
    found
}

/// Cache of exported functions, by device and inode of the file.
#[derive(Debug, Default)]
pub(crate) struct Libraries(HashMap<((u32, u32), u64), Vec<&'static str>>);

impl Libraries {
    /// Opens and parses the mapped libzmq. The error explains why [`LibZmq::open_at`] or `functions` is `None`.
    pub(crate) fn learn(&mut self, process: &ProcDir, file: &MappedFile) -> (LibZmq, Option<ReadError>) {
        let mut lib = LibZmq {
            path: file.path.clone(),
            open_at: None,
            dev: file.dev,
            inode: file.inode,
            release: release(&String::from_utf8_lossy(file.name())),
            functions: None,
        };
        let error = self.open_and_parse(process, file, &mut lib).err();
        (lib, error)
    }

    fn open_and_parse(&mut self, process: &ProcDir, file: &MappedFile, lib: &mut LibZmq) -> Result<(), ReadError> {
        let (at, opened) = open(process, file)?;
        lib.open_at = Some(at);
        let key = (file.dev, file.inode);
        if !self.0.contains_key(&key) {
            let parsed = functions(&crate::proc::read_to_limit(opened, LARGEST)?);
            if self.0.len() >= REMEMBERED {
                self.0.clear();
            }
            self.0.insert(key, parsed);
        }
        lib.functions = self.0.get(&key).cloned();
        Ok(())
    }
}

/// Opens the mapped file itself: by its path if that still has the same inode, otherwise through `map_files`.
pub(crate) fn open(process: &ProcDir, file: &MappedFile) -> Result<(PathBuf, File), ReadError> {
    let by_path = process.open_in_root(&file.path).and_then(|opened| {
        // The device is not compared, since overlayfs shows different ones in `maps` and `stat`.
        let same = !file.deleted && opened.metadata()?.ino() == file.inode;
        same.then_some(opened).ok_or(ReadError::Gone)
    });
    match by_path {
        Ok(opened) => {
            let inside = file.path.strip_prefix("/").unwrap_or(&file.path);
            Ok((process.path.join("root").join(inside), opened))
        }
        Err(ReadError::Denied) => Err(ReadError::Denied),
        Err(_) => {
            let opened = process.open_mapped(file.range)?;
            let at = process.path.join(format!("map_files/{:x}-{:x}", file.range.0, file.range.1));
            Ok((at, opened))
        }
    }
}

/// The functions of [`FUNCTIONS`] that an ELF image exports; none if it is not an ELF image.
fn functions(image: &[u8]) -> Vec<&'static str> {
    let Ok(elf) = object::File::parse(image) else {
        return Vec::new();
    };
    let defined: Vec<&str> =
        elf.dynamic_symbols().filter(|s| !s.is_undefined()).filter_map(|s| s.name().ok()).collect();
    FUNCTIONS.into_iter().filter(|name| defined.contains(name)).collect()
}

/// Release for the ABI version in a file name: libzmq 4.2.x is 5.1.x, and 4.3.x is 5.2.x (see its `configure.ac`).
fn release(name: &str) -> Option<Release> {
    let (_, abi) = name.split_once(".so.")?;
    match abi.parse::<Release>().ok()?.number {
        [5, 1, patch] if abi.matches('.').count() == 2 => Some(Release::new(4, 2, patch)),
        [5, 2, patch] => Some(Release::new(4, 3, patch)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{ProcRoot, maps};

    #[test]
    fn the_file_name_gives_the_release() {
        let cases = [
            ("libzmq-2f02442c.so.5.2.5", Some(Release::new(4, 3, 5))),
            ("libzmq-f468291a.so.5.2.4", Some(Release::new(4, 3, 4))),
            ("libzmq.so.5.1.5", Some(Release::new(4, 2, 5))),
            ("libzmq.so.5", None),
            ("libzmq.cpython-39-x86_64-linux-gnu.so", None),
        ];
        for (name, expected) in cases {
            assert_eq!(release(name), expected, "{name}");
        }
    }

    #[test]
    fn a_mapped_file_is_opened_through_the_process() {
        let me = ProcRoot::new("/proc").process(std::process::id()).unwrap();
        let files = maps::files(&me.read("maps", 1 << 24).unwrap());
        let exe = std::env::current_exe().unwrap();
        let mapped = files.iter().find(|f| f.path == exe).unwrap();
        let (at, _) = open(&me, mapped).unwrap();
        assert_eq!(std::fs::metadata(at).unwrap().ino(), mapped.inode);
        // A test program exports no ZMQ function.
        let (lib, error) = Libraries::default().learn(&me, mapped);
        assert_eq!((lib.functions, error), (Some(vec![]), None));
    }

    #[test]
    fn a_file_that_is_not_elf_has_no_exports() {
        assert!(functions(b"#!/bin/sh\n").is_empty());
        assert!(functions(b"\x7fELF").is_empty());
    }
}
