//! CPU and waiting time of one thread, from a file that is kept open.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use foreign::kernel;

use crate::proc::stat;

/// Number of bytes read of `schedstat` or `stat`, each of which is one shorter line.
const MAX_TIMES_BYTES: usize = 1_024;

/// Nanoseconds since the thread started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadTimes {
    pub(super) on_ns: u64,
    pub(super) wait_ns: Option<u64>,
}

/// An open file with a thread's times: `schedstat`, or `stat` if the kernel has no other.
#[derive(Debug)]
pub(super) struct ThreadTimesFile {
    file: File,
    /// Unit of the times in `stat`, for kernels without `schedstat`.
    tick_ns: Option<u64>,
}

impl ThreadTimesFile {
    /// Opens `schedstat`, which counts nanoseconds, or else `stat`, which counts ticks and no waiting time. `None` if the thread has
    /// exited.
    pub(super) fn open(pid: u32, tid: u32) -> Option<Self> {
        if let Ok(file) = kernel::open(format!("/proc/{pid}/task/{tid}/schedstat")) {
            const NEVER_COUNTED: ThreadTimes = ThreadTimes { on_ns: 0, wait_ns: Some(0) };
            // Without `tick_ns`, `ThreadTimesFile::read` expects the format of `schedstat`.
            let schedstat = Self { file, tick_ns: None };
            // If all numbers are 0, the kernel may not count them (CONFIG_SCHED_INFO switched off), or the thread has never run.
            if schedstat.read().is_some_and(|times| times != NEVER_COUNTED) {
                return Some(schedstat);
            }
        }
        let file = kernel::open(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        Some(Self { file, tick_ns: Some(1_000_000_000 / hertz) })
    }

    /// Current times; `None` when the thread has exited.
    pub(super) fn read(&self) -> Option<ThreadTimes> {
        let mut text = [0; MAX_TIMES_BYTES];
        let length = self.file.read_at(&mut text, 0).ok()?;
        if length == 0 {
            return None;
        }
        let text = std::str::from_utf8(&text[..length]).ok()?;
        // Only the times in `stat` are counted in ticks.
        match self.tick_ns {
            None => parse_schedstat(text),
            Some(tick_ns) => parse_stat(text, tick_ns),
        }
    }
}

/// An open file with a thread's state.
#[derive(Debug)]
pub(super) struct ThreadStateFile {
    file: File,
}

impl ThreadStateFile {
    /// Opens the thread's `stat`; `None` when it has exited.
    pub(super) fn open(pid: u32, tid: u32) -> Option<Self> {
        Some(Self { file: kernel::open(format!("/proc/{pid}/task/{tid}/stat")).ok()? })
    }

    /// The current state letter; `None` when the thread has exited.
    pub(super) fn read(&self) -> Option<char> {
        let mut text = [0; STATE_BYTES];
        let length = self.file.read_at(&mut text, 0).ok()?;
        stat::state_letter(&text[..length])
    }
}

/// The state follows a name of at most 64 bytes.
const STATE_BYTES: usize = 128;

/// Whether the thread is running or runnable. The kernel adds the wait to a thread's times only when it gets a CPU, so a long wait is
/// invisible until then.
#[cfg(any(test, feature = "python-stacks"))]
pub(crate) fn wants_cpu(pid: u32, tid: u32) -> bool {
    ThreadStateFile::open(pid, tid).and_then(|file| file.read()) == Some('R')
}

/// Parses `schedstat`: `on_ns wait_ns slices`.
fn parse_schedstat(text: &str) -> Option<ThreadTimes> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some(ThreadTimes { on_ns: numbers.next()?.ok()?, wait_ns: Some(numbers.next()?.ok()?) })
}

/// Parses `stat`: `tid (name with ) and spaces) state ppid .. utime stime ..`. The times are fields 14 and 15, counted from 1; proc(5).
fn parse_stat(text: &str, tick_ns: u64) -> Option<ThreadTimes> {
    // The first field after the name is the state, field 3.
    let fields_before_times = 14 - 3;
    let mut ticks = stat::fields_after_name(text.as_bytes())?.skip(fields_before_times).map(str::parse::<u64>);
    let user_ticks = ticks.next()?.ok()?;
    let system_ticks = ticks.next()?.ok()?;
    let used_ticks = user_ticks.checked_add(system_ticks)?;
    Some(ThreadTimes { on_ns: used_ticks.checked_mul(tick_ns)?, wait_ns: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_the_lines_of_the_kernel() {
        assert_eq!(
            parse_schedstat("53014311 220948 1014\n"),
            Some(ThreadTimes { on_ns: 53_014_311, wait_ns: Some(220_948) })
        );
        let line = "8203 (ZMQbg/IO/0 (x)) S 1 8178 8178 0 -1 4194368 90 0 0 0 17 5 0 0 20 0 4 0 339884 30 10\n";
        assert_eq!(parse_stat(line, 10_000_000), Some(ThreadTimes { on_ns: 220_000_000, wait_ns: None }));
        assert_eq!(parse_stat("8203 (x", 1), None);
    }

    #[test]
    fn reads_the_current_thread() {
        let pid = std::process::id();
        assert!(ThreadTimesFile::open(pid, pid).and_then(|source| source.read()).is_some());
        assert!(ThreadTimesFile::open(u32::MAX, 1).is_none());
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        assert!(wants_cpu(pid, tid) && !wants_cpu(u32::MAX, 1));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[ -~]{0,120}") {
            let _ = (parse_schedstat(&text), parse_stat(&text, u64::MAX));
        }
    }
}
