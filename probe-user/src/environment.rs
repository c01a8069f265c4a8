//! Environment of this process. The remedy for a missing permission depends on it.

use std::path::Path;
use std::sync::OnceLock;

use crate::capability::Capability;

/// Environment that this process runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunEnvironment {
    /// A shell on a host.
    Host,
    /// A systemd service.
    Unit,
    /// A Docker container.
    Docker,
    /// A Podman container.
    Podman,
    /// A container in a Kubernetes pod.
    Kubernetes,
}

impl RunEnvironment {
    /// Environment of the calling process, determined once.
    pub fn current() -> Self {
        static CURRENT: OnceLock<RunEnvironment> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            Self::from_evidence(
                |name| std::env::var_os(name).is_some(),
                |path| Path::new(path).exists(),
                &foreign::kernel::read_text("/proc/self/cgroup").unwrap_or_default(),
                &foreign::kernel::read_text("/proc/self/mountinfo").unwrap_or_default(),
            )
        })
    }

    /// Recognises the environment by its variables, files, control group and mounts.
    fn from_evidence(
        has_variable: impl Fn(&str) -> bool,
        file_exists: impl Fn(&str) -> bool,
        cgroup: &str,
        mounts: &str,
    ) -> Self {
        // Tested before the container runtimes, because the containers of a pod have the marks of their runtime, too.
        if has_variable("KUBERNETES_SERVICE_HOST")
            || file_exists("/var/run/secrets/kubernetes.io/serviceaccount")
            || cgroup.contains("/kubepods")
        {
            return Self::Kubernetes;
        }
        // An image unpacked as a machine's root still has this file. Docker's mounts and cgroup exist only in a running container.
        if file_exists("/.dockerenv") && (cgroup.contains("docker") || mounts.contains("/docker/")) {
            return Self::Docker;
        }
        if file_exists("/run/.containerenv") {
            return Self::Podman;
        }
        // A shell that a service started inherits the variable, but not the cgroup.
        if has_variable("INVOCATION_ID") && cgroup.lines().any(|line| line.ends_with(".service")) {
            return Self::Unit;
        }
        Self::Host
    }

    /// Identifier for JSON.
    pub const fn identifier(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Unit => "systemd",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Phrase for the middle of a sentence, such as `in a Docker container`.
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::Host => "on a host",
            Self::Unit => "in a systemd service",
            Self::Docker => "in a Docker container",
            Self::Podman => "in a Podman container",
            Self::Kubernetes => "in a Kubernetes pod",
        }
    }

    /// How to grant these capabilities to a process that runs as root. In a container, other users do not receive them.
    pub(crate) fn grant_remedy(self, capabilities: &[Capability]) -> String {
        match self {
            Self::Host => {
                let program = own_program_for_shell();
                format!(
                    "sudo {program}, or: setcap {}+ep {program}",
                    join_names(capabilities, "CAP_", ",").to_ascii_lowercase()
                )
            }
            Self::Unit => format!("in [Service]: AmbientCapabilities={}", join_names(capabilities, "CAP_", " ")),
            Self::Docker | Self::Podman => {
                // Each option brings the space before it.
                let no_separator = "";
                let options = join_names(capabilities, " --cap-add ", no_separator);
                format!("{} run --user 0{options}", self.identifier())
            }
            Self::Kubernetes => {
                let no_prefix = "";
                let names = join_names(capabilities, no_prefix, ", ");
                format!(
                    "securityContext: {{ runAsUser: 0, capabilities: {{ add: [{names}] }} }}; or kubectl debug POD -it \
                     --profile=sysadmin --target=CONTAINER --image=IMAGE"
                )
            }
        }
    }

    /// How to permit these system calls.
    pub(crate) fn seccomp_remedy(self, calls: &[&str]) -> String {
        match self {
            Self::Host => "start it outside the sandbox that set the filter".to_owned(),
            Self::Unit => format!("in [Service]: SystemCallFilter={}", calls.join(" ")),
            Self::Docker | Self::Podman => format!("{} run --security-opt seccomp=unconfined", self.identifier()),
            Self::Kubernetes => "securityContext: { seccompProfile: { type: Unconfined } }".to_owned(),
        }
    }

    /// How to run in the initial user namespace.
    pub(crate) const fn user_namespace_remedy(self) -> &'static str {
        match self {
            Self::Host => "run it outside the user namespace, as root of the host",
            Self::Unit => "in [Service]: PrivateUsers=no",
            Self::Docker => "docker run --userns=host",
            Self::Podman => "run podman as root, without --userns",
            Self::Kubernetes => "hostUsers: true in the pod, or a DaemonSet, or `tokengap tap`",
        }
    }

    /// How to make the engine's processes visible.
    pub const fn pid_namespace_remedy(self) -> &'static str {
        match self {
            Self::Host => "start the engine, or run it in the engine's PID namespace: nsenter --pid --target PID",
            Self::Unit => "start the engine; in [Service]: ProtectProc=default",
            Self::Docker => "docker run --pid=container:ENGINE, or --pid=host",
            Self::Podman => "podman run --pid=container:ENGINE, or --pid=host",
            Self::Kubernetes => {
                "kubectl debug -it POD --image=IMAGE --target=CONTAINER, or shareProcessNamespace: true (sidecar), or \
                 hostPID: true (node)"
            }
        }
    }
}

/// Path of the running program, for a shell. After `pip install` or `cargo install`, its folder is not on root's PATH, and after `uvx` on
/// nobody's.
fn own_program_for_shell() -> String {
    const FOUND_BY_SHELL: &str = "$(command -v tokengap)";
    let path = std::env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok());
    let Some(path) = path else { return FOUND_BY_SHELL.to_owned() };
    // Such a path could change the line that the user copies.
    if path.contains(char::is_control) {
        return FOUND_BY_SHELL.to_owned();
    }
    // Anything else is quoted, so that a shell takes it as one word.
    let is_plain = path.chars().all(|character| character.is_ascii_alphanumeric() || "/._-+@".contains(character));
    if is_plain { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// Names of these capabilities, each with the prefix.
fn join_names(capabilities: &[Capability], prefix: &str, separator: &str) -> String {
    let names: Vec<String> = capabilities.iter().map(|capability| format!("{prefix}{}", capability.name())).collect();
    names.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_takes_precedence_over_its_container_runtime() {
        let at = |variable: &'static str, file: &'static str, cgroup: &str| {
            let mounts = "22 21 254:0 / / rw - ext4 /dev/vda rw\n";
            RunEnvironment::from_evidence(|name| name == variable, |path| path == file, cgroup, mounts)
        };
        assert_eq!(at("", "", "0::/user.slice/session-1.scope\n"), RunEnvironment::Host);
        assert_eq!(at("INVOCATION_ID", "", "0::/system.slice/tokengap.service\n"), RunEnvironment::Unit);
        assert_eq!(at("INVOCATION_ID", "", "0::/user.slice/session-1.scope\n"), RunEnvironment::Host);
        assert_eq!(at("", "/.dockerenv", "0::/system.slice/docker-1f.scope\n"), RunEnvironment::Docker);
        assert_eq!(at("", "/.dockerenv", "0::/\n"), RunEnvironment::Host, "an image unpacked as a machine");
        let mounts = "91 80 8:1 /var/lib/docker/containers/1f/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n";
        let mounted = RunEnvironment::from_evidence(|_| false, |path| path == "/.dockerenv", "0::/\n", mounts);
        assert_eq!(mounted, RunEnvironment::Docker);
        assert_eq!(at("", "/run/.containerenv", "0::/\n"), RunEnvironment::Podman);
        assert_eq!(at("KUBERNETES_SERVICE_HOST", "/.dockerenv", "0::/\n"), RunEnvironment::Kubernetes);
        assert_eq!(at("", "", "0::/kubepods/besteffort/pod1/c1\n"), RunEnvironment::Kubernetes);
    }

    #[test]
    fn each_environment_has_its_own_grant_command() {
        let needs = [Capability::Bpf, Capability::SysPtrace];
        let program = std::env::current_exe().unwrap().display().to_string();
        let on_host = format!("sudo {program}, or: setcap cap_bpf,cap_sys_ptrace+ep {program}");
        assert_eq!(RunEnvironment::Host.grant_remedy(&needs), on_host);
        assert_eq!(
            RunEnvironment::Unit.grant_remedy(&needs),
            "in [Service]: AmbientCapabilities=CAP_BPF CAP_SYS_PTRACE"
        );
        assert_eq!(
            RunEnvironment::Docker.grant_remedy(&needs),
            "docker run --user 0 --cap-add BPF --cap-add SYS_PTRACE"
        );
        assert!(
            RunEnvironment::Kubernetes
                .grant_remedy(&needs)
                .starts_with("securityContext: { runAsUser: 0, capabilities: { add: [BPF, SYS_PTRACE] } }; or kubectl")
        );
    }
}
