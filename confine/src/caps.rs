//! Dropping of capabilities, and change of root's user id to one that owns no files and no other processes.

use std::path::PathBuf;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::account::{Account, change_user};
use crate::plan::{Capabilities, Plan};

/// Bypasses file permissions. Kept if a named file needs it.
const BYPASS_PERMISSIONS: Capabilities = CapabilitySet::DAC_OVERRIDE;
/// Number of capability bits tried, more than the kernel has (Linux 6.x: 41). Unknown ones return an error.
const CAPABILITY_BITS: u32 = 64;

/// Drops all capabilities except those that `plan` keeps or its files need, and changes the user if planned. Returns the remaining
/// capabilities and the result of a planned change of the user.
pub(crate) fn drop_capabilities(plan: &Plan) -> Result<(Capabilities, Option<Result<()>>)> {
    let permitted = capabilities(None)?.permitted;
    if permitted.is_empty() {
        return Ok((permitted, None));
    }
    let mut keep = plan.keep & permitted;
    if plan.unprivileged {
        // Another process writes its files, see `Plan::unprivileged`.
        keep |= READ_ALL & permitted;
    } else if plan.account.is_some() {
        keep -= BYPASS_PERMISSIONS;
        if !plan.read.is_empty() {
            keep |= READ_ALL & permitted;
        }
    } else if permitted.contains(BYPASS_PERMISSIONS) && !files_accessible_without_capabilities(plan)? {
        keep |= BYPASS_PERMISSIONS;
    }
    // The bounding set comes first, since changing it needs CAP_SETPCAP. Without that capability `no_new_privs` still prevents any
    // program from gaining capabilities.
    for bit in 0..CAPABILITY_BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if !keep.contains(capability) && capability_is_in_bounding_set(capability).unwrap_or(false) {
            match remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        }
    }
    match clear_ambient_capability_set() {
        // Linux before 4.3 has none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    let user_change = match plan.account {
        Some(account) => Some(change_user(account)),
        None => plan.unprivileged.then(drop_root),
    };
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable: Capabilities::empty() })?;
    Ok((keep, user_change))
}

/// Whether all named files can be accessed without capabilities, tested with none in effect.
fn files_accessible_without_capabilities(plan: &Plan) -> Result<bool> {
    let before = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: Capabilities::empty(), ..before })?;
    let accessible = |path: &PathBuf, access| {
        // A missing file is reported when it is opened.
        !matches!(accessat(CWD, path, access, AtFlags::EACCESS), Err(Errno::ACCESS | Errno::PERM))
    };
    let all_accessible = plan.read.iter().all(|path| accessible(path, Access::READ_OK))
        && plan.write.iter().all(|path| accessible(path, Access::WRITE_OK));
    set_capabilities(None, before)?;
    Ok(all_accessible)
}

/// User and group id of a process that dropped root. No distribution assigns it. `nobody` (65534) would share its id with other programs.
pub const UNPRIVILEGED: u32 = 65_533;

/// An account that owns no files.
pub fn account_without_files() -> Account {
    Account { user: UNPRIVILEGED, group: UNPRIVILEGED }
}

/// Capabilities to change the ids, and to read files of other users afterwards.
const NEEDED: [(CapabilitySet, &str); 3] =
    [(CapabilitySet::SETUID, "SETUID"), (CapabilitySet::SETGID, "SETGID"), (READ_ALL, "DAC_READ_SEARCH")];
/// Replaces the access that root has to its own files.
const READ_ALL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Whether this process runs as root and can change to [`UNPRIVILEGED`]. The error names the capability that it lacks.
pub fn can_drop_root() -> std::result::Result<bool, &'static str> {
    if !geteuid().is_root() {
        return Ok(false);
    }
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    match NEEDED.iter().find(|(needed, _)| !has.contains(*needed)) {
        Some((_, name)) => Err(name),
        None => Ok(true),
    }
}

/// Changes the user and group ids of this thread and leaves all groups. Permitted capabilities stay, effective ones do not.
fn drop_root() -> Result<()> {
    let (user, group) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}
