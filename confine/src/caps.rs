//! Dropping of capabilities.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::outcome::Missing;
use crate::plan::{Capabilities, Plan};
use crate::user;

/// Bypasses file permissions. Kept if a named file needs it.
const BYPASS_PERMISSIONS: Capabilities = CapabilitySet::DAC_OVERRIDE;
/// Number of capability bits tried, more than the kernel has (Linux 6.x: 41). Unknown ones return an error.
const CAPABILITY_BITS: u32 = 64;

/// Drops all capabilities except those that `plan` keeps or its files need, and changes the user if planned. Returns the remaining
/// capabilities and whether the user changed.
pub(crate) fn drop_capabilities(plan: &Plan, missing: &mut Vec<Missing>) -> Result<(Capabilities, bool)> {
    let permitted = capabilities(None)?.permitted;
    if permitted.is_empty() {
        return Ok((permitted, false));
    }
    let mut keep = plan.keep & permitted;
    if plan.unprivileged {
        // Another process writes its files, see `Plan::unprivileged`.
        keep |= user::READ_ALL & permitted;
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
    let user_change = plan.unprivileged.then(user::drop_root);
    if let Some(Err(error)) = user_change {
        missing.push(Missing::User(error));
    }
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable: Capabilities::empty() })?;
    Ok((keep, user_change == Some(Ok(()))))
}

/// Whether all named files can be accessed without capabilities, tested with none in effect.
fn files_accessible_without_capabilities(plan: &Plan) -> Result<bool> {
    let before = capabilities(None)?;
    set_capabilities(None, CapabilitySets { effective: Capabilities::empty(), ..before })?;
    let accessible = |path: &std::path::PathBuf, access| {
        // A missing file is reported when it is opened.
        !matches!(accessat(CWD, path, access, AtFlags::EACCESS), Err(Errno::ACCESS | Errno::PERM))
    };
    let all_accessible = plan.read.iter().all(|path| accessible(path, Access::READ_OK))
        && plan.write.iter().all(|path| accessible(path, Access::WRITE_OK));
    set_capabilities(None, before)?;
    Ok(all_accessible)
}
