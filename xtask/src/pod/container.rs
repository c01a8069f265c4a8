//! The program in a container as containerd would start it: runc, only the image's files, the capabilities of a level, read-only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::level::{Level, Place};
use super::seccomp;
use crate::e2e::process::Process;

/// Time limit: attaching takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A root folder with the image's one program.
pub(crate) fn image(program: &Path, dir: &Path) -> Result<PathBuf> {
    let root = dir.join("rootfs");
    for sub in ["usr/bin", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(sub))?;
    }
    fs::copy(program, root.join("usr/bin/tokengap")).with_context(|| format!("copy {}", program.display()))?;
    Ok(root)
}

/// Runs `tokengap ARGS` at this level, in the PID namespace of the caller; gives its status, standard output and, where it
/// failed, its last words.
pub(crate) fn run(level: &Level, root: &Path, dir: &Path, name: &str, args: &[&str]) -> Result<(bool, String, String)> {
    let bundle = dir.join(name);
    fs::create_dir_all(&bundle)?;
    fs::write(
        bundle.join("config.json"),
        serde_json::to_vec_pretty(&spec(level, root, args)?)?,
    )?;
    let mut runc = Command::new("runc");
    runc.arg("--root")
        .arg(dir.join("runc"))
        .arg("run")
        .arg("--bundle")
        .arg(&bundle);
    runc.arg(format!("tokengap-pod-{}-{name}", std::process::id()));
    let process = Process::start(name, runc, dir)?;
    let (status, lines) = process.end(PATIENCE)?;
    let words = fs::read_to_string(dir.join(format!("{name}.stderr")))?;
    Ok((status.success(), lines.join("\n"), words))
}

/// The OCI runtime's description. A user other than root has added capabilities in the bounding set and nowhere else.
fn spec(level: &Level, root: &Path, args: &[&str]) -> Result<Value> {
    let caps: Vec<String> = level.add.iter().map(|cap| format!("CAP_{cap}")).collect();
    let mut namespaces = vec![json!({"type": "mount"}), json!({"type": "ipc"}), json!({"type": "uts"})];
    if level.place == Place::Node {
        namespaces.push(json!({"type": "network"}));
    }
    let mut linux = json!({
        "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/scsi", "/sys/firmware"],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    });
    if level.place == Place::Apart {
        namespaces.push(json!({"type": "pid"}));
    }
    if level.place == Place::Mapped {
        namespaces.push(json!({"type": "user"}));
        let map = json!([{"containerID": 0, "hostID": 1_000_000, "size": 65_536}]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    linux["namespaces"] = namespaces.into();
    if level.seccomp {
        linux["seccomp"] = seccomp::profile(&caps)?;
    }
    let bound =
        |from: &str, options: &[&str]| json!({"destination": from, "type": "bind", "source": from, "options": options});
    // In a user namespace with another PID namespace, neither can be mounted again.
    let system = if level.place == Place::Mapped {
        [bound("/proc", &["rbind"]), bound("/sys", &["rbind", "ro"])]
    } else {
        [
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        ]
    };
    let mut mounts = system.to_vec();
    mounts.push(json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}));
    mounts.push(json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]}));
    let command = [&["/usr/bin/tokengap"], args].concat();
    Ok(json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": level.uid, "gid": level.uid},
            "args": command,
            "env": ["PATH=/usr/bin", "TMPDIR=/dev/shm"],
            "cwd": "/",
            "capabilities": {"bounding": caps, "effective": caps, "permitted": caps},
            "noNewPrivileges": true,
        },
        "root": {"path": root, "readonly": true},
        "mounts": mounts,
        "linux": linux,
    }))
}
