//! Properties of a file that the kernel knows without asking its file system: a server of FUSE may never answer.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::path::Arg;

/// Identity and kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CachedIdentity {
    /// Major and minor number of its device.
    pub device: [u32; 2],
    /// Inode number.
    pub inode: u64,
    /// Whether it is a regular file.
    pub is_regular: bool,
}

impl CachedIdentity {
    /// Identity of an open file.
    pub fn of_file(file: impl AsFd) -> Result<Self, Errno> {
        Self::query(file, c"", AtFlags::EMPTY_PATH)
    }

    /// Identity of the file at a path relative to a folder of the kernel, such as an entry of `/proc/PID/map_files`. Follows links.
    pub fn of_entry(folder: impl AsFd, path: impl Arg) -> Result<Self, Errno> {
        Self::query(folder, path, AtFlags::empty())
    }

    /// Asks the kernel which file a path leads to, without a request to the file's own file system.
    fn query(folder: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<Self, Errno> {
        // Without a request to the file system, for its cached properties only.
        let found = statx(folder, path, flags | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO)?;
        Ok(Self {
            device: [found.stx_dev_major, found.stx_dev_minor],
            inode: found.stx_ino,
            is_regular: FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_has_one_identity_however_it_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("one"), "").unwrap();
        std::os::unix::fs::symlink("one", folder.path().join("link")).unwrap();
        let opened = File::open(folder.path()).unwrap();
        let one = CachedIdentity::of_file(File::open(folder.path().join("one")).unwrap()).unwrap();
        assert!(one.is_regular);
        assert_eq!(CachedIdentity::of_entry(&opened, "link"), Ok(one));
        let other = CachedIdentity::of_file(&opened).unwrap();
        assert!(!other.is_regular && other.inode != one.inode);
        assert_eq!(CachedIdentity::of_entry(&opened, "none"), Err(Errno::NOENT));
    }
}
