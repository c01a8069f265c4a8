//! Throttling of a process by its CPU limit: `cpu.stat` of its cgroup, in version 1 or 2.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use foreign::kernel;

/// Number of bytes read of `cpu.stat`, which has a few hundred.
const MAX_CPU_STAT_BYTES: usize = 2_048;

#[derive(Debug)]
pub(super) struct Cgroup {
    /// Content of `/proc/PID/cgroup`.
    text: String,
    file: File,
    last_throttled_ns: u64,
}

/// The used lines of `cpu.stat`.
#[derive(Debug, PartialEq, Eq)]
struct CpuStat {
    /// Number of scheduling periods with runnable threads.
    periods: u64,
    throttled_ns: u64,
}

impl Cgroup {
    /// The cgroup of `pid`; `None` if it is not visible from here (another cgroup namespace) or has no limit to report.
    pub(super) fn of_process(pid: u32) -> Option<Self> {
        let text = kernel::read_text(format!("/proc/{pid}/cgroup")).ok()?;
        let file = possible_cpu_stat_paths(&text).into_iter().find_map(|path| kernel::open(path).ok())?;
        let last_throttled_ns = read_cpu_stat(&file)?.throttled_ns;
        // The text shows later whether the process is still in this cgroup.
        Some(Self { text, file, last_throttled_ns })
    }

    /// Whether the process is still in this cgroup.
    pub(super) fn contains(&self, pid: u32) -> bool {
        kernel::read_text(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text == self.text)
    }

    /// Nanoseconds since the last call in which the run queues of the cgroup were throttled, summed over CPUs. `None` if the cgroup has no
    /// limit any more, or if its counters cannot be read.
    pub(super) fn take_throttled_ns(&mut self) -> Option<u64> {
        let stat = read_cpu_stat(&self.file)?;
        let since_last_ns = stat.throttled_ns.saturating_sub(self.last_throttled_ns);
        self.last_throttled_ns = stat.throttled_ns;
        // The kernel counts scheduling periods only while there is a limit.
        if stat.periods == 0 {
            return None;
        }
        Some(since_last_ns)
    }
}

/// A line of `/proc/PID/cgroup`: `4:cpu,cpuacct:/path`, or `0::/path` of version 2.
pub(super) struct GroupLine<'t> {
    /// Names of the controllers, joined by commas; empty in version 2.
    controllers: &'t str,
    pub(super) path: &'t str,
}

impl<'t> GroupLine<'t> {
    /// Parses a line of `/proc/PID/cgroup`. `None` if it is invalid.
    fn parse(line: &'t str) -> Option<Self> {
        let (_hierarchy, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some(Self { controllers, path })
    }

    pub(super) fn is_version_2(&self) -> bool {
        self.controllers.is_empty()
    }

    pub(super) fn has_controller(&self, wanted: &str) -> bool {
        self.controllers.split(',').any(|controller| controller == wanted)
    }
}

/// The control groups in the text of `/proc/PID/cgroup`.
pub(super) fn parse_groups(text: &str) -> impl Iterator<Item = GroupLine<'_>> {
    text.lines().filter_map(GroupLine::parse)
}

/// Possible paths of `cpu.stat`, from the lines of `/proc/PID/cgroup`.
fn possible_cpu_stat_paths(cgroup_text: &str) -> Vec<PathBuf> {
    let mount = Path::new("/sys/fs/cgroup");
    let mut folders = Vec::new();
    for group in parse_groups(cgroup_text) {
        // `/..` leads outside the current cgroup namespace, so the path is not below our mount.
        if group.path.starts_with("/..") {
            continue;
        }
        let path = group.path.trim_start_matches('/');
        if group.is_version_2() {
            // Version 2 is mounted alone, or in `unified` beside version 1.
            folders.extend([mount.join(path), mount.join("unified").join(path)]);
        } else if group.has_controller("cpu") {
            // Version 1 is mounted under the names of its controllers, such as `cpu,cpuacct`, with a link `cpu` to it.
            folders.extend([mount.join(group.controllers).join(path), mount.join("cpu").join(path)]);
        }
    }
    folders.into_iter().map(|folder| folder.join("cpu.stat")).collect()
}

/// Reads the open `cpu.stat` of a control group again, from its start. `None` if it cannot be read or has no throttling counters.
fn read_cpu_stat(file: &File) -> Option<CpuStat> {
    let mut text = [0; MAX_CPU_STAT_BYTES];
    let length = file.read_at(&mut text, 0).ok()?;
    parse_cpu_stat(std::str::from_utf8(&text[..length]).ok()?)
}

/// Parses the throttling counters; `None` if the text has none.
fn parse_cpu_stat(text: &str) -> Option<CpuStat> {
    // Version 2 of control groups counts microseconds, version 1 nanoseconds.
    let throttled_ns = match number_after(text, "throttled_usec") {
        Some(micros) => micros.saturating_mul(1000),
        None => number_after(text, "throttled_time")?,
    };
    Some(CpuStat { periods: number_after(text, "nr_periods")?, throttled_ns })
}

/// Number in the line `KEY NUMBER`.
fn number_after(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_stat_of_both_cgroup_versions_parses() {
        let second =
            "usage_usec 90\nuser_usec 60\nsystem_usec 30\nnr_periods 20\nnr_throttled 3\nthrottled_usec 51000\n";
        assert_eq!(parse_cpu_stat(second), Some(CpuStat { periods: 20, throttled_ns: 51_000_000 }));
        let first = "nr_periods 20\nnr_throttled 3\nthrottled_time 51000000\n";
        assert_eq!(parse_cpu_stat(first), parse_cpu_stat(second));
        // The root cgroup has no limit.
        assert_eq!(parse_cpu_stat("usage_usec 90\nuser_usec 60\nsystem_usec 30\n"), None);
    }

    #[test]
    fn cpu_stat_paths_are_resolved() {
        let path = |text| possible_cpu_stat_paths(text).first().map(|p| p.display().to_string());
        assert_eq!(path("0::/kubepods/pod1/c1\n").as_deref(), Some("/sys/fs/cgroup/kubepods/pod1/c1/cpu.stat"));
        let first = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n";
        assert_eq!(path(first).as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.stat"));
        assert_eq!(path("0::/../../other\n"), None);
        assert_eq!(path("garbage\n"), None);
    }
}
