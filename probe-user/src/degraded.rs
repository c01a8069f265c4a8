//! What the probe does without, why, and the line that grants it. Shown on screen and in the report.

use std::fmt;

use crate::capability::{Capability, Feature, Permissions};

/// One feature that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// Which.
    pub feature: Feature,
    /// In which process; `None` when in all.
    pub pid: Option<u32>,
    /// Why not.
    pub missing: Missing,
}

/// Why a feature is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The process lacks these capabilities.
    Capabilities(Vec<Capability>),
    /// The kernel is older than the feature.
    Kernel {
        /// What it needs.
        needs: (u32, u32),
        /// What runs.
        runs: (u32, u32),
    },
    /// The kernel does not describe its types, or lacks a field of them.
    KernelTypes(String),
    /// The process has no libzmq mapped.
    Libzmq,
    /// The system refused although nothing above is missing.
    Refused(String),
}

impl Degraded {
    /// Finds out why `feature` failed with `error`: first what is known to be needed, then what the system said.
    pub fn explain(feature: Feature, pid: Option<u32>, permissions: Permissions, error: impl fmt::Display) -> Self {
        let lacking = permissions.lacks(feature);
        let missing = if permissions.kernel() < feature.kernel() {
            Missing::Kernel {
                needs: feature.kernel(),
                runs: permissions.kernel(),
            }
        } else if lacking.is_empty() {
            Missing::Refused(first_words(&error.to_string()))
        } else {
            Missing::Capabilities(lacking)
        };
        Self { feature, pid, missing }
    }

    /// What to do about it: a line to run or to put into the pod's description.
    pub fn remedy(&self) -> String {
        match &self.missing {
            Missing::Capabilities(_) => format!(
                "run as root, or in the container's securityContext: capabilities: {{ add: [{}] }}; \
                 or kubectl debug POD -it --profile=sysadmin --target=CONTAINER --image=IMAGE",
                names(self.feature.needs(Permissions::here().kernel()), ", ")
            ),
            Missing::Kernel { needs, .. } => {
                format!(
                    "use a node with Linux {}.{} or later, or `tokengap tap`",
                    needs.0, needs.1
                )
            }
            Missing::KernelTypes(_) => "use a kernel built with CONFIG_DEBUG_INFO_BTF=y".to_owned(),
            Missing::Libzmq => "check that the pid is an engine process and that it has opened a ZMQ socket".to_owned(),
            Missing::Refused(_) => {
                "check kernel lockdown, seccomp and LSM policy (dmesg); `tokengap tap` needs none of this".to_owned()
            }
        }
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pid) = self.pid {
            write!(f, "pid {pid}: ")?;
        }
        write!(f, "{} (", self.feature.without())?;
        match &self.missing {
            Missing::Capabilities(lacking) => write!(f, "missing CAP_{}", names(lacking, ", CAP_"))?,
            Missing::Kernel { needs, runs } => {
                write!(f, "needs Linux {}.{}, this is {}.{}", needs.0, needs.1, runs.0, runs.1)?;
            }
            Missing::KernelTypes(what) => write!(f, "kernel types: {what}")?,
            Missing::Libzmq => write!(f, "no libzmq is mapped")?,
            Missing::Refused(what) => write!(f, "refused: {what}")?,
        }
        write!(f, ")")
    }
}

/// The verifier explains itself in thousands of lines.
fn first_words(error: &str) -> String {
    error.lines().next().unwrap_or_default().chars().take(300).collect()
}

fn names(capabilities: &[Capability], between: &str) -> String {
    capabilities.iter().map(|c| c.name()).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_missing_and_the_line_that_grants_it() {
        let degraded = Degraded {
            feature: Feature::Messages,
            pid: Some(7),
            missing: Missing::Capabilities(vec![Capability::SysAdmin]),
        };
        assert_eq!(
            degraded.to_string(),
            "pid 7: frames are not observed: no gap, no backlog (missing CAP_SYS_ADMIN)"
        );
        let needs = names(Feature::Messages.needs(Permissions::here().kernel()), ", ");
        assert_eq!(
            degraded.remedy(),
            format!(
                "run as root, or in the container's securityContext: capabilities: {{ add: [{needs}] }}; or \
                 kubectl debug POD -it --profile=sysadmin --target=CONTAINER --image=IMAGE"
            )
        );
    }

    #[test]
    fn a_refusal_without_a_known_cause_keeps_the_systems_words() {
        let here = Permissions::here();
        for feature in Feature::ALL {
            let degraded = Degraded::explain(feature, None, here, "Operation not permitted (os error 1)");
            match &degraded.missing {
                Missing::Capabilities(lacking) => assert_eq!(*lacking, here.lacks(feature)),
                Missing::Refused(words) => assert!(words.contains("os error 1")),
                Missing::Kernel { needs, .. } => assert_eq!(*needs, feature.kernel()),
                other => panic!("{other:?}"),
            }
        }
    }
}
