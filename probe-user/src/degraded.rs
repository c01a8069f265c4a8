//! Unavailable features of the probe, with the cause and a remedy for each. Appears on screen and in the report.

use std::fmt;

use crate::capability::{Capability, Feature, KernelVersion, Permissions};
use crate::environment::RunEnvironment;
use crate::examine::filter::{self, SystemCall};
use crate::examine::{lockdown_level, ptrace_scope};

/// An unavailable feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// The feature.
    pub feature: Feature,
    /// The affected process; `None` for all.
    pub pid: Option<u32>,
    /// The cause.
    pub missing: Missing,
}

/// Why a feature is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum Missing {
    /// The process lacks these capabilities.
    Capabilities(Vec<Capability>),
    /// The process has its capabilities in a user namespace, where the kernel disregards them.
    UserNamespace,
    /// A seccomp filter refuses these system calls.
    Filtered(Vec<SystemCall>),
    /// `kernel.yama.ptrace_scope` is 3, which forbids all ptrace access to other processes.
    PtraceScope,
    /// Kernel lockdown prevents programs from reading kernel memory.
    Lockdown,
    /// The kernel is older than the feature requires.
    Kernel { needs: KernelVersion, runs: KernelVersion },
    /// The kernel has no BTF, or a required field is missing from it.
    KernelTypes(String),
    /// The process has no libzmq mapped.
    Libzmq,
    /// The process has no OpenSSL mapped.
    Libssl,
    /// The system refused for a reason not listed above.
    Refused(String),
}

impl Degraded {
    /// Determines why `feature` failed with `error`. Checks the known requirements first, and uses the text of the error only if all are
    /// met.
    pub(crate) fn from_failure(
        feature: Feature,
        pid: Option<u32>,
        permissions: Permissions,
        error: impl fmt::Display,
    ) -> Self {
        let known_cause = unmet_requirement(feature, permissions).or_else(|| machine_restriction(feature));
        let missing = known_cause.unwrap_or_else(|| Missing::Refused(first_line(&error.to_string())));
        Self { feature, pid, missing }
    }

    /// Remedy in the current environment: a command, or a line for a configuration file.
    pub fn remedy(&self) -> String {
        self.remedy_in(RunEnvironment::current())
    }

    /// Remedy for the unavailable feature where tokengap runs in this environment.
    fn remedy_in(&self, environment: RunEnvironment) -> String {
        match &self.missing {
            Missing::Capabilities(lacking) => {
                let needs = self.feature.required_capabilities(Permissions::current().kernel());
                // The probe may use perf events instead of the links that this kernel version has. They need further capabilities.
                let others = lacking.iter().filter(|capability| !needs.contains(capability));
                environment.grant_remedy(&needs.iter().chain(others).copied().collect::<Vec<_>>())
            }
            Missing::UserNamespace => environment.user_namespace_remedy().to_owned(),
            Missing::Filtered(calls) => environment.seccomp_remedy(&call_names(calls)),
            Missing::PtraceScope => {
                "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot: the value 3 cannot be changed at run time"
                    .to_owned()
            }
            Missing::Lockdown => "boot without lockdown=confidentiality, or `tokengap tap`".to_owned(),
            Missing::Kernel { needs, .. } => {
                format!("use a node with Linux {needs} or later, or `tokengap tap`")
            }
            Missing::KernelTypes(_) => "mount /sys, or use a kernel built with CONFIG_DEBUG_INFO_BTF=y".to_owned(),
            Missing::Libzmq => "check that the pid is an engine process and that it has opened a ZMQ socket".to_owned(),
            Missing::Libssl => {
                "terminate TLS in front of the server: only OpenSSL in a shared library of the process can be read"
                    .to_owned()
            }
            Missing::Refused(_) => {
                "check LSM policy (dmesg) and the kernel configuration; `tokengap tap` needs neither".to_owned()
            }
        }
    }
}

impl fmt::Display for Degraded {
    /// Writes what is lost without the feature, and why the feature is missing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pid) = self.pid {
            write!(f, "pid {pid}: ")?;
        }
        write!(f, "{} (", self.feature.consequence_of_lack())?;
        match &self.missing {
            Missing::Capabilities(lacking) => {
                let names: Vec<String> = lacking.iter().map(ToString::to_string).collect();
                write!(f, "missing {}", names.join(", "))?;
            }
            Missing::UserNamespace => write!(f, "capabilities of a user namespace do not allow tracing")?,
            Missing::Filtered(calls) => write!(f, "a seccomp filter blocks {}", call_names(calls).join(", "))?,
            Missing::PtraceScope => write!(f, "kernel.yama.ptrace_scope is 3")?,
            Missing::Lockdown => write!(f, "kernel lockdown is set to confidentiality")?,
            Missing::Kernel { needs, runs } => {
                let feature = self.feature.kernel_feature_name();
                write!(f, "needs {feature} of Linux {needs}, this is {runs}")?;
            }
            Missing::KernelTypes(what) => write!(f, "kernel types: {what}")?,
            Missing::Libzmq => write!(f, "libzmq is not loaded")?,
            Missing::Libssl => write!(f, "libssl is not loaded")?,
            Missing::Refused(what) => write!(f, "refused: {what}")?,
        }
        write!(f, ")")
    }
}

/// A requirement of the feature that this process does not meet: a newer kernel, or a capability. `None` if it meets all.
fn unmet_requirement(feature: Feature, permissions: Permissions) -> Option<Missing> {
    if permissions.kernel() < feature.oldest_kernel() {
        return Some(Missing::Kernel { needs: feature.oldest_kernel(), runs: permissions.kernel() });
    }
    let lacking = permissions.capabilities_missing_for(feature);
    // In a user namespace, capabilities only look effective. The kernel always refuses its own programs there. It may refuse the other
    // features although no capability is missing.
    if permissions.is_in_user_namespace() && (feature.is_in_kernel() || lacking.is_empty()) {
        return Some(Missing::UserNamespace);
    }
    (!lacking.is_empty()).then_some(Missing::Capabilities(lacking))
}

/// A restriction of the machine that prevents the feature despite all capabilities. `None` if no known one does.
fn machine_restriction(feature: Feature) -> Option<Missing> {
    let mut filtered = filter::calls_refused_by_seccomp();
    filtered.retain(|call| feature.required_calls().contains(call));
    if !filtered.is_empty() {
        return Some(Missing::Filtered(filtered));
    }
    // A scope of 3 forbids ptrace access to all processes. Only features outside the kernel need that access.
    if !feature.is_in_kernel() && ptrace_scope() == Some(3) {
        return Some(Missing::PtraceScope);
    }
    // Only programs in the kernel depend on lockdown.
    let is_locked_down = feature.is_in_kernel() && lockdown_level().as_deref() == Some("confidentiality");
    is_locked_down.then_some(Missing::Lockdown)
}

fn call_names(calls: &[SystemCall]) -> Vec<&'static str> {
    calls.iter().map(|call| call.name()).collect()
}

/// The error and its causes in one line. A cause is omitted if the line contains it, because some errors repeat their cause.
pub(crate) fn error_with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let cause = cause.to_string();
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Maximum number of characters shown of an error.
const MAX_ERROR_CHARS: usize = 300;

/// Shortens an error to its first line, because the verifier's log can have thousands of lines.
fn first_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_missing_and_the_line_that_grants_it() {
        let degraded = Degraded {
            feature: Feature::Messages,
            pid: Some(7),
            missing: Missing::Capabilities(vec![Capability::SysPtrace]),
        };
        assert_eq!(degraded.to_string(), "pid 7: frames are not observed: no gap, no backlog (missing CAP_SYS_PTRACE)");
        let needs = Feature::Messages.required_capabilities(Permissions::current().kernel());
        assert_eq!(degraded.remedy_in(RunEnvironment::Docker), RunEnvironment::Docker.grant_remedy(needs));
    }

    #[test]
    fn the_remedy_also_grants_capabilities_that_only_this_kernel_requires() {
        let missing = Missing::Capabilities(vec![Capability::SysAdmin]);
        let degraded = Degraded { feature: Feature::Queues, pid: None, missing };
        let granted = [Capability::SysPtrace, Capability::DacReadSearch, Capability::SysAdmin];
        assert_eq!(degraded.remedy_in(RunEnvironment::Docker), RunEnvironment::Docker.grant_remedy(&granted));
    }

    #[test]
    fn a_cause_that_the_error_already_names_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot attach to {path}: {source}")]
        struct Refused {
            path: &'static str,
            source: std::io::Error,
        }
        let error = Refused { path: "libzmq.so", source: std::io::Error::from_raw_os_error(22) };
        assert_eq!(error_with_causes(&error), "cannot attach to libzmq.so: Invalid argument (os error 22)");
    }

    #[test]
    fn an_older_kernel_is_named_with_what_it_lacks() {
        let lines = [Feature::Messages, Feature::Scheduler, Feature::SocketReads].map(|feature| {
            let missing = Missing::Kernel { needs: feature.oldest_kernel(), runs: KernelVersion::new(5, 10) };
            Degraded { feature, pid: None, missing }.to_string()
        });
        let reasons = [
            "(needs bpf_get_attach_cookie of Linux 5.15, this is 5.10)",
            "(needs bpf_task_pt_regs of Linux 5.15, this is 5.10)",
            "(needs the tracepoint sock_recv_length of Linux 6.5, this is 5.10)",
        ];
        for (line, reason) in lines.iter().zip(reasons) {
            assert!(line.ends_with(reason), "{line}");
        }
    }

    #[test]
    fn causes_other_than_capabilities_have_their_own_line() {
        let of = |missing| Degraded { feature: Feature::Scheduler, pid: None, missing };
        let filtered = of(Missing::Filtered(vec![SystemCall::Bpf]));
        assert!(filtered.to_string().ends_with("(a seccomp filter blocks bpf)"));
        assert_eq!(filtered.remedy_in(RunEnvironment::Docker), "docker run --security-opt seccomp=unconfined");
        assert_eq!(of(Missing::UserNamespace).remedy_in(RunEnvironment::Unit), "in [Service]: PrivateUsers=no");
    }

    #[test]
    fn an_unexplained_refusal_keeps_the_system_error() {
        let here = Permissions::current();
        for feature in Feature::ALL {
            let degraded = Degraded::from_failure(feature, None, here, "Operation not permitted (os error 1)");
            match &degraded.missing {
                Missing::Capabilities(lacking) => assert_eq!(*lacking, here.capabilities_missing_for(feature)),
                Missing::Refused(words) => assert!(words.contains("os error 1")),
                Missing::Kernel { needs, .. } => assert_eq!(*needs, feature.oldest_kernel()),
                Missing::UserNamespace => assert!(here.is_in_user_namespace()),
                Missing::Filtered(calls) => assert!(calls.iter().all(|call| feature.required_calls().contains(call))),
                other => panic!("{other:?}"),
            }
        }
    }
}
