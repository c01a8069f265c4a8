//! The libzmq that a process has mapped: its file and release.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use memchr::memmem;

use super::release::Release;
use crate::proc::maps::MappedFile;
use crate::proc::{ProcDir, ReadError};

/// A mapped libzmq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibZmq {
    /// Path inside the process's mount namespace.
    pub path: PathBuf,
    /// Path where this process can open the mapped file itself: below `/proc/PID/root`, or in `/proc/PID/map_files` if it was replaced on
    /// disk. `None` when neither is permitted.
    pub open_at: Option<PathBuf>,
    /// Release derived from the file name (`libzmq-2f02442c.so.5.2.5` is 4.3.5).
    pub release: Option<Release>,
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

/// Describes the mapped libzmq. The error explains why [`LibZmq::open_at`] is `None`.
pub(crate) fn learn(process: &ProcDir, file: &MappedFile) -> (LibZmq, Option<ReadError>) {
    let release = release(&String::from_utf8_lossy(file.name()));
    let lib = |open_at| LibZmq { path: file.path.clone(), open_at, release };
    match open(process, file) {
        Ok((at, _)) => (lib(Some(at)), None),
        Err(error) => (lib(None), Some(error)),
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
    use crate::proc::maps;

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
        let me = ProcDir::of(std::process::id()).unwrap();
        let files = maps::files(&me.read("maps", 1 << 24).unwrap());
        let exe = std::env::current_exe().unwrap();
        let mapped = files.iter().find(|f| f.path == exe).unwrap();
        let (lib, error) = learn(&me, mapped);
        assert_eq!((std::fs::metadata(lib.open_at.unwrap()).unwrap().ino(), error), (mapped.inode, None));
    }
}
