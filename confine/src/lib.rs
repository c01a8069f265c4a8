//! tokengap gives up what it does not need, before it reads the first byte that somebody else has written.
//!
//! [`Plan::apply`] does it in this order, each step for good and inherited by every thread that is started later:
//!
//! 1. What may be read, written and reached is looked up while everything is still allowed.
//! 2. Core dumps: what was read of others stays in memory, and goes with the process.
//! 3. Capabilities: all that are not kept leave the bounding set, the ambient and inheritable ones, the effective and permitted.
//! 4. `no_new_privs`: no program that is started could gain any back.
//! 5. Landlock (Linux 5.13): files, TCP ports and abstract sockets. It cannot go with reading `/proc/PID` of another process,
//!    which it treats as tracing it, so sources that watch processes have none ([`Work::Probe`], [`Work::Move`]).
//! 6. seccomp: system calls. A call that this work never makes fails with `EPERM`, or ends the process where no traffic runs
//!    through it ([`Work::Files`]); one that nobody has thought of fails with `ENOSYS`, so that a libc takes its older way.
//!
//! It is for a process of one thread: capabilities and Landlock belong to threads. What could not be done is told
//! ([`Outcome::missing`]) and is no error: a tool that is asked for on an old kernel has to work there.

mod caps;
mod files;
mod plan;
mod seccomp;
mod syscalls;

pub use caps::Kept;
pub use plan::{Missing, Outcome, Plan, Reach, Work};
