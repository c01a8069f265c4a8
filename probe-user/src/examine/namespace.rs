//! Whether this process is in the initial namespaces. In others, capabilities, process ids and clocks differ in meaning.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use foreign::kernel;

/// A kind of namespace whose initial instance has a fixed inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Process ids.
    Pid,
    /// User ids, and the scope of capabilities.
    User,
    /// Clocks.
    Time,
}

impl NamespaceKind {
    /// Inode of the initial namespace; see `include/linux/proc_ns.h`.
    pub(crate) const fn initial_inode(self) -> u64 {
        match self {
            Self::Pid => 0xefff_fffc,
            Self::User => 0xefff_fffd,
            Self::Time => 0xefff_fffa,
        }
    }

    /// File name in `/proc/self/ns`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pid => "pid",
            Self::User => "user",
            Self::Time => "time",
        }
    }

    /// Whether this process is in the initial namespace; `None` if that cannot be read.
    pub fn is_initial(self) -> Option<bool> {
        let shown = fs::metadata(format!("/proc/self/ns/{}", self.name())).ok()?;
        Some(shown.ino() == self.initial_inode())
    }
}

/// Nanoseconds by which this process's `CLOCK_MONOTONIC` is ahead of kernel timestamps; `None` without time namespaces.
pub fn clock_offset_ns() -> Option<i64> {
    parse_monotonic_offset_ns(&kernel::read_text("/proc/self/timens_offsets").ok()?)
}

/// Offset of `CLOCK_MONOTONIC`, in nanoseconds, from the content of `/proc/PID/timens_offsets`. `None` if it is malformed.
fn parse_monotonic_offset_ns(timens_offsets: &str) -> Option<i64> {
    let line = timens_offsets.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<i64>);
    let seconds = numbers.next()?.ok()?;
    let nanoseconds = numbers.next()?.ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offsets_parse() {
        assert_eq!(
            parse_monotonic_offset_ns("monotonic           0         0\nboottime            0         0\n"),
            Some(0)
        );
        assert_eq!(parse_monotonic_offset_ns("monotonic      -86400       500\n"), Some(-86_399_999_999_500));
        assert_eq!(parse_monotonic_offset_ns("boottime 0 0\n"), None);
        assert_eq!(parse_monotonic_offset_ns("monotonic 9223372036854775807 0\n"), None);
    }
}
