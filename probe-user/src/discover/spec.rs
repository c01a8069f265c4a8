//! Parsing of `--pid PID` and `--pid PID=ROLE`.

use std::str::FromStr;

use super::role::{Role, UnknownRole};

/// A process named by the user, optionally with its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSpec {
    /// Pid in the current procfs.
    pub pid: u32,
    /// The role; `None` to infer it.
    pub role: Option<Role>,
}

/// Error of parsing a `--pid` argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleSpecError {
    /// The part before `=` is not a pid.
    #[error("`{0}` is no pid: write --pid 4711, or --pid 4711=scheduler to say what the process does")]
    Pid(String),
    /// The part after `=` is not a role.
    #[error("--pid {pid}: {source}")]
    Role {
        /// The pid in the argument.
        pid: u32,
        /// The unknown role.
        source: UnknownRole,
    },
}

impl FromStr for RoleSpec {
    type Err = RoleSpecError;

    fn from_str(text: &str) -> Result<Self, RoleSpecError> {
        let (pid, role) = text
            .split_once('=')
            .map_or((text, None), |(pid, role)| (pid, Some(role)));
        let number = pid.trim().parse().ok().filter(|&pid| pid > 0);
        let pid = number.ok_or_else(|| RoleSpecError::Pid(pid.to_owned()))?;
        let role = role
            .map(str::parse)
            .transpose()
            .map_err(|source| RoleSpecError::Role { pid, source })?;
        Ok(Self { pid, role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_and_without_a_role() {
        assert_eq!("4711".parse(), Ok(RoleSpec { pid: 4711, role: None }));
        assert_eq!(
            "4711=scheduler".parse(),
            Ok(RoleSpec {
                pid: 4711,
                role: Some(Role::Scheduler)
            })
        );
        assert_eq!(
            " 4711 = tokenizer".parse(),
            Ok(RoleSpec {
                pid: 4711,
                role: Some(Role::Tokenizer)
            })
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        let said = |text: &str| text.parse::<RoleSpec>().unwrap_err().to_string();
        assert!(said("scheduler").starts_with("`scheduler` is no pid: write --pid 4711"));
        assert!(said("0").starts_with("`0` is no pid"));
        assert!(said("scheduler=4711").starts_with("`scheduler` is no pid"));
        assert!(said("4711=server").starts_with("--pid 4711: `server` is no role; the roles are scheduler,"));
    }
}
