//! Change of root's user id to one that owns no files and no other processes.

use rustix::io::Result;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// User and group id of a process that dropped root. No distribution assigns it. `nobody` (65534) would share its id with other programs.
pub const UNPRIVILEGED: u32 = 65_533;

/// Capabilities to change the ids, and to read files of other users afterwards.
const NEEDED: [(CapabilitySet, &str); 3] =
    [(CapabilitySet::SETUID, "SETUID"), (CapabilitySet::SETGID, "SETGID"), (READ_ALL, "DAC_READ_SEARCH")];
/// Replaces the access that root has to its own files.
pub(crate) const READ_ALL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

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
pub(crate) fn drop_root() -> Result<()> {
    let (user, group) = (Uid::from_raw(UNPRIVILEGED), Gid::from_raw(UNPRIVILEGED));
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)
}
