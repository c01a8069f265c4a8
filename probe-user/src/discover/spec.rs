//! Parsing of `--pid PID` and `--pid PID=ROLE`.

use adapter::discover::{EngineKind, Engines, Role, role_words};

/// A process named by the user, optionally with its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSpec {
    /// Pid in the current procfs.
    pub pid: u32,
    /// The role; `None` to infer it.
    pub role: Option<Role>,
}

impl RoleSpec {
    /// Parses an argument such as `4711` or `4711=scheduler`. Roles have the names that `engines` give them, and underscores are accepted
    /// for dashes.
    pub fn parse(text: &str, engines: Engines) -> Result<Self, String> {
        let (pid_text, role_word) = match text.split_once('=') {
            Some((pid, role)) => (pid, Some(role)),
            None => (text, None),
        };
        let pid = parse_pid(pid_text).ok_or_else(|| {
            format!("`{pid_text}` is not a pid: use --pid 4711, or --pid 4711=scheduler to set the process's role")
        })?;
        let Some(word) = role_word else { return Ok(Self { pid, role: None }) };
        match find_role_by_name(word, engines) {
            Some(role) => Ok(Self { pid, role: Some(role) }),
            None => Err(format!("--pid {pid}: `{word}` is not a role; use one of {}", role_words(engines))),
        }
    }
}

/// Parses a process id, which is greater than 0.
fn parse_pid(text: &str) -> Option<u32> {
    text.trim().parse::<u32>().ok().filter(|&pid| pid > 0)
}

/// The role with this name, or with this alias of an engine.
fn find_role_by_name(text: &str, engines: &[EngineKind]) -> Option<Role> {
    let word = text.trim().to_ascii_lowercase().replace('_', "-");
    engines.iter().find_map(|engine| {
        let mut roles = engine.roles().iter().copied();
        roles.find(|role| role.word() == word).or_else(|| engine.role_with_alias(&word))
    })
}

#[cfg(test)]
mod tests {
    use super::super::toy::{SERVER, SOURCE, TOY};
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
        let message = |text: &str| RoleSpec::parse(text, &[TOY]).unwrap_err();
        assert!(message("scheduler").starts_with("`scheduler` is not a pid: use --pid 4711"));
        assert!(message("0").starts_with("`0` is not a pid"));
        assert!(message("scheduler=4711").starts_with("`scheduler` is not a pid"));
        assert_eq!(message("4711=sorcerer"), "--pid 4711: `sorcerer` is not a role; use one of source, server");
    }
}
