//! Dropping of capabilities.

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use crate::plan::{Missing, Plan};
use crate::user;

/// Capabilities that the process keeps, with the kernel's names.
pub type Kept = CapabilitySet;

/// Bypasses file permissions. Kept if a named file needs it.
const PAST_OWNERS: Kept = CapabilitySet::DAC_OVERRIDE;
/// Number of bits tried, more than the kernel has (Linux 6.x: 41). Unknown ones return an error.
const MOST: u32 = 64;

/// Drops all capabilities except those that `plan` keeps or its files need, and changes the user if planned. Returns the remaining
/// capabilities and whether the user changed.
pub(crate) fn give_up(plan: &Plan, missing: &mut Vec<Missing>) -> Result<(Kept, bool)> {
    let had = capabilities(None)?.permitted;
    if had.is_empty() {
        return Ok((had, false));
    }
    let mut keep = plan.keep & had;
    if plan.unprivileged {
        // Another process writes its files, see `Plan::unprivileged`.
        keep |= user::READ_ALL & had;
    } else if had.contains(PAST_OWNERS) && !reaches_without(plan)? {
        keep |= PAST_OWNERS;
    }
    // The bounding set comes first, since changing it needs CAP_SETPCAP. Without that capability `no_new_privs` still prevents any
    // program from gaining capabilities.
    for bit in 0..MOST {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if !keep.contains(one) && capability_is_in_bounding_set(one).unwrap_or(false) {
            match remove_capability_from_bounding_set(one) {
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
    let left = plan.unprivileged.then(user::leave_root);
    if let Some(Err(error)) = left {
        missing.push(Missing::User(error));
    }
    set_capabilities(
        None,
        CapabilitySets {
            effective: keep,
            permitted: keep,
            inheritable: Kept::empty(),
        },
    )?;
    Ok((keep, left == Some(Ok(()))))
}

/// Whether all named files can be accessed without capabilities, tested with none in effect.
fn reaches_without(plan: &Plan) -> Result<bool> {
    let all = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: Kept::empty(),
            ..all
        },
    )?;
    let may = |path: &std::path::PathBuf, access| {
        // What is not there is told when it is opened.
        !matches!(
            accessat(CWD, path, access, AtFlags::EACCESS),
            Err(Errno::ACCESS | Errno::PERM)
        )
    };
    let reached = plan.read.iter().all(|path| may(path, Access::READ_OK))
        && plan.write.iter().all(|path| may(path, Access::WRITE_OK));
    set_capabilities(None, all)?;
    Ok(reached)
}
