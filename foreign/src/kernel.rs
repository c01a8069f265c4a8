//! Files that only the kernel makes, in `/proc` and `/sys`.
//!
//! `/proc/PID/root`, `cwd`, `exe` and the entries of `fd` are not among them: each leads to a file that the process chose.

use std::fs::File;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::ReadError;
use crate::regular_file::read_to_limit;

/// Limit for `/proc/PID/status`, whose longest lines list groups and CPUs.
pub const MAX_STATUS_BYTES: usize = 1 << 20;
/// Limit of [`read_text`]: `/proc/PID/mountinfo` of a machine with thousands of containers.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// Opens a file of the kernel, which is one in `/proc` or `/sys`. Does not follow the links there that lead to the files of a process.
/// Fails with `XDEV` for any other path, and for a path with `..`.
pub fn open(path: impl AsRef<Path>) -> Result<File, ReadError> {
    let path = path.as_ref();
    let is_in_kernel_folder = ["/proc", "/sys"].iter().any(|folder| path.starts_with(folder));
    // The kernel writes the path of a cgroup outside the current namespace with `..`, which leads out of the folder.
    let has_parent = path.components().any(|part| part == Component::ParentDir);
    if !is_in_kernel_folder || has_parent {
        return Err(ReadError::Os(Errno::XDEV));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        // Seccomp profiles of old container runtimes refuse the call. The plain open still follows such a link in the middle of the path,
        // so callers must not pass a path that a process has chosen.
        Err(Errno::NOSYS | Errno::PERM) => Ok(File::from(openat(CWD, path, flags | OFlags::NOFOLLOW, Mode::empty())?)),
        opened => Ok(File::from(opened?)),
    }
}

/// Reads a file of the kernel of at most `limit` bytes.
pub fn read(path: impl AsRef<Path>, limit: usize) -> Result<Vec<u8>, ReadError> {
    read_to_limit(&open(path)?, limit)
}

/// Reads a text of the kernel. Bytes that are not UTF-8, as a process's name may contain, are replaced.
pub fn read_text(path: impl AsRef<Path>) -> Result<String, ReadError> {
    let bytes = read(path, MAX_TEXT_BYTES)?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Value of a line of `/proc/PID/status`; `None` if there is no such line. `key` ends with its colon.
pub fn status_field<'a>(status: &'a [u8], key: &str) -> Option<&'a str> {
    let value = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(key.as_bytes()))?;
    Some(std::str::from_utf8(value).ok()?.trim())
}

/// The user (`id_field` is `Uid:`) or group (`Gid:`) in a process's `status`. `None` if its real, effective, saved and file system ids
/// differ.
pub fn id_if_all_kinds_equal(status: &[u8], id_field: &str) -> Option<u32> {
    let mut ids = status_field(status, id_field)?.split_ascii_whitespace();
    let first = ids.next()?;
    let are_all_equal = ids.all(|id| id == first);
    if are_all_equal { first.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let me = std::process::id();
        assert!(read_text(format!("/proc/{me}/status")).unwrap().contains(&format!("Pid:\t{me}\n")));
        assert!(read_text("/proc/self/status").unwrap().starts_with("Name:"));
        assert_eq!(read("/proc/self/cmdline", 1), Err(ReadError::TooLong(1)));
        assert_eq!(read_text("/proc/self/nothing"), Err(ReadError::Gone));
    }

    #[test]
    fn no_link_leads_to_a_file_of_a_process() {
        for path in ["/proc/self/root/etc/passwd", "/proc/self/cwd/Cargo.toml", "/proc/self/exe", "/proc/self/fd/0"] {
            assert_eq!(read_text(path), Err(ReadError::Os(Errno::LOOP)), "{path}");
        }
        for path in ["/etc/passwd", "/sys/fs/cgroup/../../../etc/passwd", "proc/self/status"] {
            assert_eq!(read_text(path), Err(ReadError::Os(Errno::XDEV)), "{path}");
        }
    }
}
