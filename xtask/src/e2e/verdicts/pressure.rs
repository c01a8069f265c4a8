//! Conditions that make a process late: neighbours on its CPU, a quota, an idle-priority thread. All are undone when dropped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Threads of a process with their names.
pub(super) fn threads(pid: u32) -> Result<BTreeMap<u32, String>> {
    let folder = format!("/proc/{pid}/task");
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))? {
        let path = entry?.path();
        let tid = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        let (Some(tid), Ok(name)) = (tid, fs::read_to_string(path.join("comm"))) else {
            continue;
        };
        threads.insert(tid, name.trim_end().to_owned());
    }
    Ok(threads)
}

fn id(tid: u32) -> Result<Pid> {
    Pid::from_raw(tid as i32).with_context(|| format!("{tid} is no thread id"))
}

/// Runs a thread at real-time priority, of which the kernel reserves a twentieth for others. Nice values would not work across the kernel's
/// automatic session groups.
pub(super) fn before_all(tid: u32) -> Result<()> {
    schedule(tid, ["--fifo", "--pid", "1"])
}

/// Runs a thread only when the CPU is otherwise idle.
pub(super) fn after_all(tid: u32) -> Result<()> {
    schedule(tid, ["--idle", "--pid", "0"])
}

fn schedule(tid: u32, policy: [&str; 3]) -> Result<()> {
    let done = Command::new("chrt").args(policy).arg(tid.to_string()).status();
    ensure!(
        done.context("starting chrt, of util-linux")?.success(),
        "chrt {policy:?} is refused for thread {tid}"
    );
    Ok(())
}

/// First and last CPU available to us; equal if there is only one.
pub(super) fn cpus() -> Result<(usize, usize)> {
    let ours = sched_getaffinity(None)?;
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| ours.is_set(*cpu));
    let first = allowed.next().context("no CPU is ours to use")?;
    Ok((first, allowed.next_back().unwrap_or(first)))
}

/// Pins a thread to one CPU.
pub(super) fn pin(tid: u32, cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(Some(id(tid)?), &only).with_context(|| format!("pinning thread {tid} to CPU {cpu}"))
}

/// Processes in a busy loop on one CPU.
pub(super) struct Neighbours(Vec<Child>);

impl Neighbours {
    pub(super) fn on(cpu: usize, count: usize) -> Result<Self> {
        let mut neighbours = Self(Vec::new());
        for _ in 0..count {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let child = shell.spawn().context("starting a busy neighbour")?;
            let pid = child.id();
            neighbours.0.push(child);
            pin(pid, cpu)?;
        }
        Ok(neighbours)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if the process has already exited.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A cgroup with a CPU quota of 20 % and one process in it.
pub(super) struct Quota {
    folder: PathBuf,
    pid: u32,
}

impl Quota {
    /// Reason why no quota can be set here; `None` if it can.
    pub(super) fn refusal() -> Option<String> {
        let tried = Hierarchy::find().and_then(|hierarchy| {
            let folder = hierarchy
                .root()
                .join(format!("tokengap-e2e-try-{}", std::process::id()));
            let made = fs::create_dir(&folder).and_then(|()| hierarchy.limit(&folder));
            let gone = fs::remove_dir(&folder);
            made.and(gone).with_context(|| format!("making {}", folder.display()))
        });
        tried
            .err()
            .map(|error| format!("no cgroup with a CPU quota can be made: {error:#}"))
    }

    pub(super) fn on(pid: u32) -> Result<Self> {
        let hierarchy = Hierarchy::find()?;
        let folder = hierarchy.root().join(format!("tokengap-e2e-{pid}"));
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let quota = Self { folder, pid };
        hierarchy.limit(&quota.folder).context("setting a quota")?;
        fs::write(quota.folder.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("moving {pid} to {}", quota.folder.display()))?;
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Move the process to the parent group, because only an empty group can be removed.
        let back = self.folder.parent().unwrap_or(Path::new("/")).join("cgroup.procs");
        let _ = fs::write(back, self.pid.to_string());
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Location of the CPU quota settings.
enum Hierarchy {
    /// cgroup v2 with the `cpu` controller.
    Second(PathBuf),
    /// cgroup v1.
    First(PathBuf),
}

impl Hierarchy {
    fn find() -> Result<Self> {
        let mounted = |place: &str| PathBuf::from("/sys/fs/cgroup").join(place);
        let has_cpu =
            |file: &Path| fs::read_to_string(file).is_ok_and(|text| text.split_whitespace().any(|c| c == "cpu"));
        let second = mounted("");
        if has_cpu(&second.join("cgroup.subtree_control")) {
            return Ok(Self::Second(second));
        }
        let first = mounted("cpu");
        ensure!(
            first.join("cpu.shares").exists() || first.join("tasks").exists(),
            "neither version of cgroups has a cpu controller below /sys/fs/cgroup"
        );
        Ok(Self::First(first))
    }

    fn root(&self) -> &Path {
        match self {
            Self::Second(root) | Self::First(root) => root,
        }
    }

    /// Limits CPU time to 20 ms in 100 ms, with the highest weight.
    fn limit(&self, folder: &Path) -> std::io::Result<()> {
        let files: &[(&str, &str)] = match self {
            Self::Second(_) => &[("cpu.max", "20000 100000"), ("cpu.weight", "10000")],
            Self::First(_) => &[
                ("cpu.cfs_period_us", "100000"),
                ("cpu.cfs_quota_us", "20000"),
                ("cpu.shares", "262144"),
            ],
        };
        files
            .iter()
            .try_for_each(|(name, value)| fs::write(folder.join(name), value))
    }
}
