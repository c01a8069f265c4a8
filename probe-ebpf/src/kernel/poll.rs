//! When a watched thread goes to its poll and comes back: its wakeups, and how long it stays away.
//!
//! Uprobes on libc's functions: only the target pays for them, and no tracefs is needed, which containers seldom have.
//! Minimum kernel: 5.15 (uprobes with attach cookies).

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};

use crate::here::{self, Caller};

/// `int epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)`, and `epoll_pwait` alike: event loops
#[uprobe]
pub(crate) fn epoll_entered(ctx: ProbeContext) -> u32 {
    if let (Some(timeout_ms), Some(mut caller)) = (ctx.arg::<i32>(3), Caller::of(&ctx)) {
        caller.thread().poll_entered(here::now(), timeout_ms != 0);
    }
    0
}

/// The return of either.
#[uretprobe]
pub(crate) fn epoll_left(ctx: RetProbeContext) -> u32 {
    if let Some(mut caller) = Caller::of(&ctx) {
        caller.thread().poll_left(here::now());
    }
    0
}

/// `int poll(struct pollfd *fds, nfds_t count, int timeout_ms)`: a synchronous receive with nothing to take. How long it
/// waits is in the record of what it takes.
#[uprobe]
pub(crate) fn poll_entered(ctx: ProbeContext) -> u32 {
    if let (Some(timeout_ms), Some(mut caller)) = (ctx.arg::<i32>(2), Caller::of(&ctx)) {
        caller.thread().polled(timeout_ms != 0);
    }
    0
}
