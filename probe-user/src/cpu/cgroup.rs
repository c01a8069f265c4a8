//! Throttling of a process by its CPU limit: `cpu.stat` of its cgroup, in version 1 or 2.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use foreign::kernel;

#[derive(Debug)]
pub(super) struct Cgroup {
    /// Content of `/proc/PID/cgroup`.
    text: String,
    file: File,
    last_ns: u64,
}

impl Cgroup {
    /// The cgroup of `pid`; `None` if it is not visible from here (another cgroup namespace) or has no limit to report.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let text = kernel::read_text(format!("/proc/{pid}/cgroup")).ok()?;
        let file = candidates(&text).into_iter().find_map(|path| kernel::open(path).ok())?;
        let (_, last_ns) = read(&file)?;
        Some(Self { text, file, last_ns })
    }

    /// Whether the process is still in this cgroup.
    pub(super) fn contains(&self, pid: u32) -> bool {
        kernel::read_text(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text == self.text)
    }

    /// Nanoseconds in which its run queues were throttled since the last call, summed over CPUs. `None` when the limit is gone or nothing
    /// has been counted yet.
    pub(super) fn since_last(&mut self) -> Option<u64> {
        let (periods, now_ns) = read(&self.file)?;
        let last_ns = std::mem::replace(&mut self.last_ns, now_ns);
        (periods > 0).then(|| now_ns.saturating_sub(last_ns))
    }
}

/// Controllers and path in each line of `/proc/PID/cgroup`: `4:cpu,cpuacct:/path`, or `0::/path` of version 2.
pub(super) fn groups(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// Possible paths of `cpu.stat`, from the lines of `/proc/PID/cgroup`.
fn candidates(text: &str) -> Vec<PathBuf> {
    let mount = Path::new("/sys/fs/cgroup");
    let mut candidates = Vec::new();
    for (controllers, path) in groups(text) {
        // `/..` leads outside the current cgroup namespace, so the path is not below our mount.
        if path.starts_with("/..") {
            continue;
        }
        let inside = path.trim_start_matches('/');
        if controllers.is_empty() {
            candidates.extend([mount.join(inside), mount.join("unified").join(inside)]);
        } else if controllers.split(',').any(|c| c == "cpu") {
            candidates.extend([mount.join(controllers).join(inside), mount.join("cpu").join(inside)]);
        }
    }
    candidates.into_iter().map(|place| place.join("cpu.stat")).collect()
}

fn read(file: &File) -> Option<(u64, u64)> {
    let mut text = [0; 2048];
    let n = file.read_at(&mut text, 0).ok()?;
    parse(std::str::from_utf8(&text[..n]).ok()?)
}

/// Number of scheduling periods with runnable threads, and throttled nanoseconds.
fn parse(text: &str) -> Option<(u64, u64)> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line?.trim().parse::<u64>().ok()
    };
    let throttled_ns = match value("throttled_usec") {
        Some(micros) => micros.saturating_mul(1000),
        None => value("throttled_time")?,
    };
    Some((value("nr_periods")?, throttled_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_stat_of_both_cgroup_versions_parses() {
        let second =
            "usage_usec 90\nuser_usec 60\nsystem_usec 30\nnr_periods 20\nnr_throttled 3\nthrottled_usec 51000\n";
        assert_eq!(parse(second), Some((20, 51_000_000)));
        let first = "nr_periods 20\nnr_throttled 3\nthrottled_time 51000000\n";
        assert_eq!(parse(first), parse(second));
        // The root cgroup has no limit.
        assert_eq!(parse("usage_usec 90\nuser_usec 60\nsystem_usec 30\n"), None);
    }

    #[test]
    fn cpu_stat_paths_are_resolved() {
        let path = |text| candidates(text).first().map(|p| p.display().to_string());
        assert_eq!(path("0::/kubepods/pod1/c1\n").as_deref(), Some("/sys/fs/cgroup/kubepods/pod1/c1/cpu.stat"));
        let first = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n";
        assert_eq!(path(first).as_deref(), Some("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.stat"));
        assert_eq!(path("0::/../../other\n"), None);
        assert_eq!(path("garbage\n"), None);
    }
}
