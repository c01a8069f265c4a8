//! Counts the polls, and so the wakeups, of watched threads. The scheduler tracepoints measure how long a poll sleeps; without
//! them, a probe on the return does.
//!
//! These are uprobes on libc functions: only the target pays for them, and they need no tracefs, which containers seldom
//! mount. Minimum kernel: 5.15 (uprobes with attach cookies).

use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use probe_ebpf::ProbePoint;

use crate::here::{self, Caller};
use crate::regs::Registers;

/// Entry of a poll function:
///
/// - `int epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)` and `epoll_pwait`, called by event loops;
/// - `int poll(struct pollfd *fds, nfds_t count, int timeout_ms)`, called by a synchronous receive that finds no message.
#[uprobe]
pub(crate) fn poll_entered(ctx: ProbeContext) -> u32 {
    let cookie = here::cookie(&ctx);
    let regs = Registers::of(ctx.regs);
    let (of_poll, of_epoll) = (regs.arg::<2>(), regs.arg::<3>());
    if let Some(mut caller) = Caller::of(cookie.target())
        && let Some(thread) = caller.thread()
    {
        let timeout = if matches!(cookie.probe_point(), Some(ProbePoint::Epoll)) {
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

/// Return of `epoll_wait` and `epoll_pwait`.
#[uretprobe]
pub(crate) fn poll_left(ctx: RetProbeContext) -> u32 {
    if let Some(mut caller) = Caller::of(here::cookie(&ctx).target())
        && let Some(thread) = caller.thread()
    {
        thread.poll_left(here::now());
    }
    0
}
