//! Drops the rights that a command does not need, before it reads the first byte of untrusted data.
//!
//! [`Plan::apply`] takes these steps. None can be undone, and all later threads inherit them:
//!
//! 1. Look up the files and ports that the command needs.
//! 2. Disable core dumps, so that data of other processes stays in memory.
//! 3. Remove all capabilities that are not kept from the bounding, ambient, inheritable, effective and permitted sets.
//! 4. Change root's user id to an unused one, which has no files and no other processes, for a plan with [`Plan::unprivileged`], or to
//!    those of [`Plan::account`].
//! 5. Set `no_new_privs`, so that no program started later regains them.
//! 6. Landlock (Linux 5.13): files, TCP ports and abstract sockets. Landlock treats reading `/proc/PID` of another process as tracing it
//!    and refuses that, so commands that watch processes do not use it ([`Work::Observe`], [`Work::Attach`], [`Work::Open`], [`Work::Move`]).
//! 7. seccomp: system calls. A call that this work never makes fails with `EPERM`, or ends the process if no traffic passes through it
//!    ([`Work::Files`]). An unlisted call fails with `ENOSYS`, so that a libc falls back to an older one.
//!
//! The process must have one thread, since capabilities and Landlock belong to threads. Steps that failed are listed in
//! [`Outcome::missing`] and are not errors: the commands must work on old kernels too.

mod account;
mod apply;
mod caps;
mod landlock_rules;
mod plan;
mod seccomp;
mod syscalls;

pub use account::{Account, can_change_user};
pub use apply::{Outcome, drop_all_capabilities_but, refuse_programs};
pub use caps::{can_drop_root, unused_account};
pub use plan::{Capabilities, Plan, PortAccess, Work};
