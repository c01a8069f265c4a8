//! Parsing of `--pid PID` and `--pid PID=ROLE`.

use super::recognise::EngineKind;
use super::role::{Role, RoleWords, UnknownRole};

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
    #[error("`{0}` is not a pid: use --pid 4711, or --pid 4711=scheduler to set the process's role")]
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

impl RoleSpec {
    /// Parses an argument. Roles have the names that `engines` give them, and underscores are accepted for dashes.
    pub fn parse(text: &str, engines: &[EngineKind]) -> Result<Self, RoleSpecError> {
        let (pid, role) = text.split_once('=').map_or((text, None), |(pid, role)| (pid, Some(role)));
        let number = pid.trim().parse().ok().filter(|&pid| pid > 0);
        let pid = number.ok_or_else(|| RoleSpecError::Pid(pid.to_owned()))?;
        let role =
            role.map(|role| named(role, engines)).transpose().map_err(|source| RoleSpecError::Role { pid, source })?;
        Ok(Self { pid, role })
    }
}

fn named(text: &str, engines: &[EngineKind]) -> Result<Role, UnknownRole> {
    let word = text.trim().to_ascii_lowercase().replace('_', "-");
    let in_engine = |engine: &EngineKind| {
        let mut roles = engine.roles().iter().copied();
        roles.find(|role| role.word() == word).or_else(|| engine.alias(&word))
    };
    engines.iter().find_map(in_engine).ok_or_else(|| UnknownRole {
        text: text.to_owned(),
        roles: RoleWords::of(engines.iter().flat_map(|engine| engine.roles())),
    })
}

#[cfg(test)]
mod tests {
    use super::super::recognise::toy::{SERVER, SOURCE, TOY};
    use super::*;

    #[test]
    fn pids_parse_with_and_without_a_role() {
        let read = |text: &str| RoleSpec::parse(text, &[TOY]);
        let spec = |role| Ok(RoleSpec { pid: 4711, role });
        assert_eq!(read("4711"), spec(None));
        assert_eq!(read("4711=source"), spec(Some(SOURCE)));
        assert_eq!(read(" 4711 = HTTP_server"), spec(Some(SERVER)));
    }

    #[test]
    fn errors_include_the_correct_form() {
        let message = |text: &str| RoleSpec::parse(text, &[TOY]).unwrap_err().to_string();
        assert!(message("scheduler").starts_with("`scheduler` is not a pid: use --pid 4711"));
        assert!(message("0").starts_with("`0` is not a pid"));
        assert!(message("scheduler=4711").starts_with("`scheduler` is not a pid"));
        assert_eq!(message("4711=sorcerer"), "--pid 4711: `sorcerer` is not a role; use one of source, server");
    }
}
