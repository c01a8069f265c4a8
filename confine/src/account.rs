//! Change of root's user to the owner of the files that a command works on.

use rustix::io::Result;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// User and group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// Capabilities to change the ids.
const NEEDED: [(CapabilitySet, &str); 2] = [(CapabilitySet::SETUID, "SETUID"), (CapabilitySet::SETGID, "SETGID")];

/// Whether this process runs as root and can change to any user. The error names the capability that it lacks.
pub fn can_change_user() -> std::result::Result<bool, &'static str> {
    is_root_with_capabilities(&NEEDED)
}

/// Whether this process runs as root and has all the needed capabilities. Each of them is given with its name. `false` without root,
/// whatever the capabilities are. If root lacks a capability, the error is its name.
pub(crate) fn is_root_with_capabilities(
    needed_capabilities: &[(CapabilitySet, &'static str)],
) -> std::result::Result<bool, &'static str> {
    if !geteuid().is_root() {
        return Ok(false);
    }
    // Capabilities that cannot be read count as lacking.
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    for (capability, name) in needed_capabilities {
        if !effective.contains(*capability) {
            return Err(name);
        }
    }
    Ok(true)
}

/// Changes the user and group ids of this thread and leaves all groups. Permitted capabilities stay, effective ones do not.
pub(crate) fn change_thread_user_and_leave_groups(account: Account) -> Result<()> {
    // This process already runs as the user. Then its groups stay as they are.
    if geteuid().as_raw() == account.user {
        return Ok(());
    }
    let user = Uid::from_raw(account.user);
    let group = Gid::from_raw(account.group);
    // Otherwise the kernel would also drop the permitted capabilities when the thread stops being root.
    set_keep_capabilities(true)?;
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    // Last, because no capability is in effect from then on. Real, effective and saved ids all change.
    set_thread_res_uid(user, user, user)
}
