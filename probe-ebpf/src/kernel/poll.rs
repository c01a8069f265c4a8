//! When a watched thread goes to its poll: its wakeups. How long it stays away is what the scheduler tells of it, or, where
//! that is not observed, the return from its poll.
//!
//! Uprobes on libc's functions: only the target pays for them, and no tracefs is needed, which containers seldom have.
//! Minimum kernel: 5.15 (uprobes with attach cookies).

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::Site;

use crate::here::{self, Caller};
use crate::regs::Registers;

/// `int epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)`, and `epoll_pwait` alike: event loops.
/// `int poll(struct pollfd *fds, nfds_t count, int timeout_ms)`: a synchronous receive with nothing to take.
#[uprobe]
pub(crate) fn poll_entered(ctx: ProbeContext) -> u32 {
    let cookie = here::cookie(&ctx);
    let regs = Registers::of(ctx.regs);
    let (of_poll, of_epoll) = (regs.arg::<2>(), regs.arg::<3>());
    if let Some(mut caller) = Caller::of(cookie.target())
        && let Some(thread) = caller.thread()
    {
        let timeout = if matches!(cookie.site(), Some(Site::Epoll)) {
            thread.epolls += 1;
            if cookie.returns() {
                thread.poll_entered(here::now());
            }
            of_epoll
        } else {
            of_poll
        };
        thread.waits += u64::from(timeout as i32 != 0);
    }
    0
}

/// The return of `epoll_wait` and `epoll_pwait`.
#[uretprobe]
pub(crate) fn poll_left(ctx: RetProbeContext) -> u32 {
    if let Some(mut caller) = Caller::of(here::cookie(&ctx).target())
        && let Some(thread) = caller.thread()
    {
        thread.poll_left(here::now());
    }
    0
}
