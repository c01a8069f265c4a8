//! When a watched thread goes to its poll and comes back: its wakeups, and how long it stays away.
//!
//! Uprobes on libc's functions: only the target pays for them, and no tracefs is needed, which containers seldom have.
//! Minimum kernel: 5.15 (uprobes with attach cookies).

use aya_ebpf::EbpfContext;
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::Thread;

use crate::here;

/// `int epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)`, and `epoll_pwait` alike: event loops
#[uprobe]
pub(crate) fn epoll_entered(ctx: ProbeContext) -> u32 {
    if let (Some(timeout_ms), Some(thread)) = (ctx.arg::<i32>(3), current(&ctx)) {
        // SAFETY: a map value, checked for null; only the thread itself writes its poll fields.
        unsafe { (*thread).poll_entered(here::now(), timeout_ms != 0) };
    }
    0
}

/// The return of either.
#[uretprobe]
pub(crate) fn epoll_left(ctx: RetProbeContext) -> u32 {
    if let Some(thread) = current(&ctx) {
        // SAFETY: as above.
        unsafe { (*thread).poll_left(here::now()) };
    }
    0
}

/// `int poll(struct pollfd *fds, nfds_t count, int timeout_ms)`: a synchronous receive with nothing to take. How long it
/// waits is in the record of what it takes.
#[uprobe]
pub(crate) fn poll_entered(ctx: ProbeContext) -> u32 {
    if let (Some(timeout_ms), Some(thread)) = (ctx.arg::<i32>(2), current(&ctx)) {
        // SAFETY: as above.
        unsafe { (*thread).polled(timeout_ms != 0) };
    }
    0
}

#[inline(always)]
fn current<C: EbpfContext>(ctx: &C) -> Option<*mut Thread> {
    here::thread(here::target(ctx), here::tid())
}
