//! Dropping of capabilities, and change of root's user id to one that owns no files and no other processes.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::{Errno, Result};
use rustix::process::{Uid, getpriority_user};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::account::{Account, change_thread_user_and_leave_groups, is_root_with_capabilities};
use crate::plan::{Capabilities, Plan};

/// Bypasses file permissions. Kept if a named file needs it.
const BYPASS_PERMISSIONS: Capabilities = CapabilitySet::DAC_OVERRIDE;
/// Number of capability bits tried, more than the kernel has (Linux 6.x: 41). Unknown ones return an error.
const CAPABILITY_BITS: u32 = 64;

/// Result of [`drop_capabilities_and_change_user`].
pub(crate) struct DroppedRights {
    /// The remaining capabilities.
    pub(crate) kept: Capabilities,
    /// The new user, if a change was planned.
    pub(crate) user_change: Option<Result<u32>>,
}

/// Drops all capabilities except those that `plan` keeps or its files need. A capability is a part of root's rights. Also changes the user
/// if that is planned. Returns the capabilities that were kept, and the result of the change.
pub(crate) fn drop_capabilities_and_change_user(plan: &Plan) -> Result<DroppedRights> {
    let permitted = capabilities(None)?.permitted;
    // Without capabilities there is nothing to drop, and the user cannot be changed.
    if permitted.is_empty() {
        return Ok(DroppedRights { kept: permitted, user_change: None });
    }
    let keep = capabilities_to_keep(plan, permitted)?;
    // The next steps need capabilities themselves, so this process drops its own only at the end.
    reduce_bounding_set(keep)?;
    clear_ambient_set()?;
    let user_change = change_user_as_planned(plan);
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable: Capabilities::empty() })?;
    Ok(DroppedRights { kept: keep, user_change })
}

/// Clears the ambient capabilities, which an executed program would inherit.
fn clear_ambient_set() -> Result<()> {
    match clear_ambient_capability_set() {
        // Linux before 4.3 has no ambient capabilities.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Changes the user to the account of the plan, or to an unused one if the plan only leaves root. Returns the new id. `None` if the plan
/// keeps the user.
fn change_user_as_planned(plan: &Plan) -> Option<Result<u32>> {
    match plan.account {
        Some(account) => Some(change_thread_user_and_leave_groups(account).map(|()| account.user)),
        None => plan.unprivileged.then(change_to_unused_user),
    }
}

/// Removes all capabilities but `keep` from the bounding set of this thread. A program that the thread executes can gain only the
/// capabilities in this set.
fn reduce_bounding_set(keep: Capabilities) -> Result<()> {
    for bit in 0..CAPABILITY_BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if keep.contains(capability) {
            continue;
        }
        // The kernel returns an error for a bit that is no capability.
        let is_in_set = capability_is_in_bounding_set(capability).unwrap_or(false);
        if !is_in_set {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // Without CAP_SETPCAP, `no_new_privs` still prevents any program from gaining capabilities.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The `permitted` capabilities that the plan keeps or its files need. To find out what the files need, all capabilities may be switched
/// off for a moment. Fails if that is not possible.
fn capabilities_to_keep(plan: &Plan, permitted: Capabilities) -> Result<Capabilities> {
    let planned = plan.keep & permitted;
    if plan.unprivileged {
        // Such a plan has its files opened by another process, so this one needs no capability for them.
        return Ok(planned);
    }
    if plan.account.is_some() {
        // The new user must itself have the permission to write files, but may read all files that the plan names.
        let without_bypass = planned - BYPASS_PERMISSIONS;
        let reads_files = !plan.read.is_empty();
        return Ok(if reads_files { without_bypass | (READ_ALL & permitted) } else { without_bypass });
    }
    // A process that keeps its user may bypass file permissions only if a file of the plan needs that.
    let needs_bypass = permitted.contains(BYPASS_PERMISSIONS) && !are_files_accessible_without_capabilities(plan)?;
    Ok(if needs_bypass { planned | BYPASS_PERMISSIONS } else { planned })
}

/// Whether this process is not refused the access to a file.
fn is_accessible(path: &Path, access: Access) -> bool {
    // A missing file is reported when it is opened.
    !matches!(accessat(CWD, path, access, AtFlags::EACCESS), Err(Errno::ACCESS | Errno::PERM))
}

/// Whether all files of the plan can be accessed without capabilities. Switches the capabilities of this thread off for the test, and then
/// on again.
fn are_files_accessible_without_capabilities(plan: &Plan) -> Result<bool> {
    let this_thread = None;
    let own_capabilities = capabilities(this_thread)?;
    set_capabilities(this_thread, CapabilitySets { effective: Capabilities::empty(), ..own_capabilities })?;
    let all_accessible = plan.read.iter().all(|path| is_accessible(path, Access::READ_OK))
        && plan.write.iter().all(|path| is_accessible(path, Access::WRITE_OK));
    set_capabilities(this_thread, own_capabilities)?;
    Ok(all_accessible)
}

/// First of the user ids that no distribution, service manager or container runtime assigns (systemd's `UIDS-GIDS`), and their number.
const UNASSIGNED_USERS: Range<u32> = 1_879_048_192..2_147_352_576;
/// Number of ids at the end of a small user namespace that are tried, and number of attempts to find an unused one.
const LAST_USERS: u32 = 4_096;
/// Number of ids behind them that are not tried.
const RESERVED_LAST_USERS: u32 = 16;
const MAX_ATTEMPTS: u32 = 64;

/// An account that owns no files and has no processes. `None` if the user namespace has none.
pub fn unused_account() -> Option<Account> {
    let id = find_unused_uid(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default())?;
    Some(Account { user: id, group: id })
}

/// Capabilities to change the ids, and to read files of other users afterwards, in this process or in one that it starts before.
const NEEDED: [(CapabilitySet, &str); 3] =
    [(CapabilitySet::SETUID, "SETUID"), (CapabilitySet::SETGID, "SETGID"), (READ_ALL, "DAC_READ_SEARCH")];
/// Replaces the access that root has to its own files.
const READ_ALL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Whether this process runs as root and can change to an unused user. The error names the capability that it lacks.
pub fn can_drop_root() -> std::result::Result<bool, &'static str> {
    is_root_with_capabilities(&NEEDED)
}

/// Changes the user and group ids of this thread to unused ones. Returns the new id. Fails with `USERS` if none is found.
fn change_to_unused_user() -> Result<u32> {
    let no_unused_id = Errno::USERS;
    let account = unused_account().ok_or(no_unused_id)?;
    change_thread_user_and_leave_groups(account)?;
    Ok(account.user)
}

/// Chooses a user id that no process has, because a process with the same id could trace and change this one. `None` if no attempt finds
/// one.
fn find_unused_uid(uid_map: &str) -> Option<u32> {
    let choosable = choosable_uids(uid_map)?;
    let user_count = u64::from(choosable.end - choosable.start);
    for _ in 0..MAX_ATTEMPTS {
        // Random, because two processes in different PID namespaces may choose at the same time.
        let random = RandomState::new().build_hasher().finish();
        let user = choosable.start + (random % user_count) as u32;
        // The call asks for a property of the user's processes, so it finds none for an unused id.
        let is_unused = getpriority_user(Uid::from_raw(user)) == Err(Errno::SRCH);
        if is_unused {
            return Some(user);
        }
    }
    None
}

/// User ids from which one is chosen: those that no distribution assigns, if the user namespace maps them all. Otherwise the last ids of
/// its largest range. `None` if it maps too few. `uid_map` has lines of `inside outside count`.
fn choosable_uids(uid_map: &str) -> Option<Range<u32>> {
    let mapped = uid_map.lines().filter_map(parse_mapped_uids);
    let largest = mapped.max_by_key(|range| range.end - range.start)?;
    let maps_all_unassigned = largest.start <= UNASSIGNED_USERS.start && UNASSIGNED_USERS.end <= largest.end;
    if maps_all_unassigned { Some(UNASSIGNED_USERS) } else { last_uids_of(&largest) }
}

/// The last ids of a mapped range, without root and without the reserved ids at its very end, such as that of `nobody`. `None` if no id is
/// left.
fn last_uids_of(mapped: &Range<u32>) -> Option<Range<u32>> {
    let end = mapped.end.checked_sub(RESERVED_LAST_USERS)?;
    let first_of_last_users = end.saturating_sub(LAST_USERS);
    let first_after_root = 1;
    let start = first_of_last_users.max(mapped.start).max(first_after_root);
    (start < end).then_some(start..end)
}

/// The ids inside the user namespace in a line `inside outside count` of `uid_map`. `None` if the line is malformed.
fn parse_mapped_uids(line: &str) -> Option<Range<u32>> {
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
    let first = numbers.next()?.ok()?;
    // The id outside is skipped.
    let count = numbers.nth(1)?.ok()?;
    Some(first..first.saturating_add(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_user_is_mapped_and_unused() {
        assert_eq!(choosable_uids("         0          0 4294967295\n"), Some(UNASSIGNED_USERS));
        assert_eq!(choosable_uids("0 100000 65536\n"), Some(61_424..65_520));
        assert_eq!(choosable_uids("0 1000 1\n1 100000 65536\n"), Some(61_425..65_521));
        assert_eq!(choosable_uids("0 1000 1\n"), None);
        assert_eq!(choosable_uids("garbage\n"), None);
        let own_map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        let user = find_unused_uid(&own_map).unwrap();
        assert_eq!(getpriority_user(Uid::from_raw(user)), Err(Errno::SRCH));
        assert_ne!(Some(user), find_unused_uid(&own_map), "two processes that start at once get different ones");
        assert!(getpriority_user(rustix::process::geteuid()).is_ok(), "a used id is recognised");
    }
}
