//! Rights of the user of another process.

use foreign::ReadError;
use foreign::kernel::{id_if_all_kinds_equal, status_field};
use rustix::io::Errno;
use rustix::process::{Gid, getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

/// Capabilities that permit to open files of all users.
const FILE_ACCESS: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::DAC_OVERRIDE);
/// Capabilities to take the ids of another user.
const CHANGE_IDS: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

/// User and groups with which a process opens files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessAccount {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

/// User and groups of the process with this `status`. Refuses a process that has the rights of several users, because any process may
/// execute a program with the rights of root.
pub(super) fn parse_account(status: &[u8]) -> Result<ProcessAccount, ReadError> {
    let user = id_if_all_kinds_equal(status, "Uid:").ok_or(ReadError::Denied)?;
    let group = id_if_all_kinds_equal(status, "Gid:").ok_or(ReadError::Denied)?;
    let group_words = status_field(status, "Groups:").ok_or(ReadError::Denied)?.split_ascii_whitespace();
    let groups: Result<Vec<u32>, _> = group_words.map(str::parse).collect();
    Ok(ProcessAccount { user, group, groups: groups.map_err(|_| ReadError::Denied)? })
}

/// Calls `open` with the access to files that an account has. During the call, this thread has the user and the groups of the account, and
/// no capability that opens files of all users. After the call it takes its own rights again, and the process exits if that fails. A
/// process that may not take other ids keeps its own ones.
pub(super) fn call_with_rights_of<T>(account: &ProcessAccount, open: impl FnOnce() -> T) -> Result<T, ReadError> {
    let own_capabilities = capabilities(None)?;
    // This process does not restore its own groups, so they are left out.
    let own_account = ProcessAccount { user: geteuid().as_raw(), group: getegid().as_raw(), groups: Vec::new() };
    let may_take_ids = own_capabilities.effective.contains(CHANGE_IDS);
    // This process has stayed root, so the process that asks is root as well. It gains nothing from the capabilities that are kept here.
    if !may_take_ids && geteuid().is_root() {
        return Ok(open());
    }
    let must_take_ids = may_take_ids && *account != own_account;
    let ids_to_take = must_take_ids.then_some(account);
    let ids_to_restore = must_take_ids.then_some(&own_account);
    let reduced = CapabilitySets { effective: own_capabilities.permitted.difference(FILE_ACCESS), ..own_capabilities };
    let opened = take_rights(ids_to_take, reduced).map(|()| open());
    // Also done if the rights of the account could not be taken, because some of them may have been taken before the failure.
    if let Err(error) = take_rights(ids_to_restore, own_capabilities) {
        tracing::error!("the opener cannot take its own rights again: {error}");
        std::process::exit(1);
    }
    opened.map_err(ReadError::from)
}

/// Gives this thread the ids of an account, if there is one, and these capabilities.
fn take_rights(account: Option<&ProcessAccount>, capabilities: CapabilitySets) -> Result<(), Errno> {
    if let Some(account) = account {
        take_ids_of(account)?;
    }
    // After the ids, which change the effective set.
    set_capabilities(None, capabilities)
}

/// Gives this thread the groups of an account, and the account's user and group for access to files.
fn take_ids_of(account: &ProcessAccount) -> Result<(), Errno> {
    let groups: Vec<Gid> = account.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups)?;
    set_file_ids(account.user, account.group)
}

/// Sets the user and group with which this thread accesses files. Fails if the kernel did not accept both.
#[expect(unsafe_code, reason = "rustix has no wrapper for these system calls")]
fn set_file_ids(user: u32, group: u32) -> Result<(), Errno> {
    // Both calls return the previous id. With an invalid id they change nothing, so they show which ids are in effect.
    const INVALID: u32 = u32::MAX;
    // SAFETY: both calls take a number and change only the credentials of this thread.
    let ids_now = unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
        [libc::setfsuid(INVALID), libc::setfsgid(INVALID)]
    };
    if ids_now == [user.cast_signed(), group.cast_signed()] { Ok(()) } else { Err(Errno::PERM) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const STATUS: &str =
        "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\nFDSize:\t64\nGroups:\t4 100 \n";

    #[test]
    fn ids_are_those_of_one_user() {
        let account = ProcessAccount { user: 1000, group: 100, groups: vec![4, 100] };
        assert_eq!(parse_account(STATUS.as_bytes()), Ok(account));
        // A program that gets root's rights from its file.
        let setuid = STATUS.replace("1000\t1000\t1000\n", "0\t0\t0\n");
        assert_eq!(parse_account(setuid.as_bytes()), Err(ReadError::Denied));
        assert_eq!(parse_account(b"Name:\tx\n"), Err(ReadError::Denied));
    }

    #[test]
    fn files_of_root_are_not_opened_with_the_rights_of_another_user() {
        if !geteuid().is_root() {
            return eprintln!("SKIPPED: changing the user needs root");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        let account = ProcessAccount { user: 1000, group: 100, groups: vec![4] };
        let read = || std::fs::read(file.path()).map_err(|error| error.kind());
        let as_other = call_with_rights_of(&account, read).unwrap();
        assert_eq!(as_other, Err(std::io::ErrorKind::PermissionDenied));
        let as_root = ProcessAccount { user: 0, group: 0, groups: Vec::new() };
        assert_eq!(call_with_rights_of(&as_root, read), Ok(Ok(Vec::new())));
        assert_eq!(read(), Ok(Vec::new()));
    }
}
