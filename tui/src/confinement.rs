//! What each command gives up before it reads the first byte that somebody else has written, and what it keeps.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// `--no-confine` was given.
static OFF: AtomicBool = AtomicBool::new(false);

/// Leaves everything as it is.
pub(crate) fn leave_off() {
    OFF.store(true, Ordering::Relaxed);
    eprintln!("tokengap: --no-confine: what it reads of others could make it do whatever you may do");
}

/// For a command that makes something of files: it reads `read`, makes `make` and reaches no network and no other process.
#[cfg(target_os = "linux")]
pub(crate) fn files(read: &[&Path], make: &[Option<&Path>]) {
    use confine::{Plan, Work};
    let mut plan = Plan::new(Work::Files);
    for path in read.iter().filter(|path| is_named(path)) {
        plan = plan.read(*path);
    }
    for path in make.iter().flatten().filter(|path| is_named(path)) {
        plan = plan.make(path);
    }
    apply(&plan);
}

/// Elsewhere there is nothing to give up.
#[cfg(not(target_os = "linux"))]
pub(crate) fn files(_read: &[&Path], _make: &[Option<&Path>]) {}

/// `-` is standard input or output.
#[cfg(target_os = "linux")]
fn is_named(path: &Path) -> bool {
    path != Path::new("-")
}

/// Gives up all that `plan` does not keep.
#[cfg(target_os = "linux")]
fn apply(plan: &confine::Plan) {
    if OFF.load(Ordering::Relaxed) {
        return;
    }
    let outcome = plan.apply();
    for missing in &outcome.missing {
        tracing::warn!("{missing}");
    }
    tracing::info!(
        "confined: Landlock {}, seccomp {}, capabilities kept: {}",
        if outcome.landlock { "on" } else { "off" },
        if outcome.seccomp { "on" } else { "off" },
        if outcome.kept.is_empty() {
            String::from("none")
        } else {
            format!("{:?}", outcome.kept)
        }
    );
}
