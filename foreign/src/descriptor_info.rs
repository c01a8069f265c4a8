//! The file that another process has open.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::regular_file::read_to_limit;
use crate::{ExpectedFile, ReadError, RegularFile};

/// Maximum size of `fdinfo`. That of a file with locks has a line for each.
const MAX_INFO_BYTES: usize = 64 << 10;

/// `O_PATH` in the octal flags of `fdinfo`: a process needs no right to a file for such a descriptor of it.
const O_PATH: u32 = 0o10_000_000;

/// Lines of `/proc/PID/fdinfo/FD` (`ino` since Linux 5.14). Inode and mount together identify a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DescriptorInfo {
    flags: u32,
    mount_id: u64,
    inode: u64,
}

impl DescriptorInfo {
    /// Parses a file of `/proc/PID/fdinfo`. `None` if one of the lines is missing or malformed.
    fn parse(text: &str) -> Option<Self> {
        // The flags are in octal.
        let flags_radix = 8;
        Some(Self {
            flags: u32::from_str_radix(info_field(text, "flags")?, flags_radix).ok()?,
            mount_id: info_field(text, "mnt_id")?.parse().ok()?,
            inode: info_field(text, "ino")?.parse().ok()?,
        })
    }

    /// Reads a file of `/proc/PID/fdinfo`, relative to the process's folder.
    fn read(process_dir: impl AsFd, info_path: &str) -> Result<Self, ReadError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let text = read_to_limit(&File::from(openat(process_dir, info_path, flags, Mode::empty())?), MAX_INFO_BYTES)?;
        // Without these lines, the file cannot be compared with another one.
        Self::parse(&String::from_utf8_lossy(&text)).ok_or(ReadError::Replaced)
    }
}

/// Value of a line `NAME: VALUE` of `fdinfo`; `None` if there is no such line.
fn info_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

impl RegularFile {
    /// Opens the regular file behind a `descriptor` of another process. `process_dir` is the directory of that process in `/proc`. Refuses
    /// a descriptor that was opened with `O_PATH`, because the process may not be allowed to read that file.
    pub fn open_by_process(process_dir: impl AsFd, descriptor: u32) -> Result<Self, ReadError> {
        let opened = Self::open_at(&process_dir, format!("fd/{descriptor}"), ExpectedFile::ANY)?;
        // Read after the open, because the process can put another file behind its descriptor at any time.
        let theirs = DescriptorInfo::read(&process_dir, &format!("fdinfo/{descriptor}"))?;
        let ours = DescriptorInfo::read(CWD, &format!("/proc/self/fdinfo/{}", opened.file().as_raw_fd()))?;
        if theirs.flags & O_PATH != 0 {
            return Err(ReadError::Denied);
        }
        let is_same_file = theirs.mount_id == ours.mount_id && theirs.inode == ours.inode;
        if !is_same_file {
            return Err(ReadError::Replaced);
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_the_process_may_use_is_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "log").unwrap();
        let me = openat(CWD, "/proc/self", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let open =
            |descriptor: &dyn std::os::fd::AsRawFd| RegularFile::open_by_process(&me, descriptor.as_raw_fd() as u32);
        let append = File::options().append(true).open(file.path()).unwrap();
        assert_eq!(open(&append).unwrap().read(10), Ok(b"log".to_vec()));
        let located = openat(CWD, file.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(open(&located).err(), Some(ReadError::Denied));
        let (_, pipe) = std::io::pipe().unwrap();
        assert_eq!(open(&pipe).err(), Some(ReadError::NotRegular));
        assert_eq!(RegularFile::open_by_process(&me, 1 << 20).err(), Some(ReadError::Gone));
    }

    #[test]
    fn fdinfo_parses() {
        let info = DescriptorInfo::parse("pos:\t0\nflags:\t010000000\nmnt_id:\t25\nino:\t9\n").unwrap();
        assert_eq!(info, DescriptorInfo { flags: O_PATH, mount_id: 25, inode: 9 });
        assert_eq!(DescriptorInfo::parse("pos:\t0\nflags:\t02\n"), None);
    }
}
