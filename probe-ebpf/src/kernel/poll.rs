//! Counts the polls, and so the wakeups, of watched threads. The scheduler tracepoints measure how long a poll sleeps; without
//! them, a probe on the return does.
//!
//! Where the kernel allows fentry, programs at its own poll functions count, which costs no trap. Otherwise uprobes on libc
//! functions do: only the target pays for them, and they need no tracefs, which containers seldom mount. Minimum kernel: 5.15
//! (uprobes with attach cookies; timeouts in a `struct timespec64`).

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::macros::{fentry, uprobe, uretprobe};
use aya_ebpf::programs::{FEntryContext, ProbeContext, RetProbeContext};
use probe_ebpf::ProbePoint;

use crate::here::{self, Caller};
use crate::maps::TARGETS;
use crate::regs::Registers;
use crate::stack::refuse_private_stack;

/// `int do_epoll_wait(int fd, struct epoll_event *events, int max, struct timespec64 *timeout)`, behind all variants of
/// `epoll_wait`.
#[fentry(function = "do_epoll_wait")]
pub(crate) fn kernel_epoll(ctx: FEntryContext) -> i32 {
    let _ = count_kernel_poll(ctx.arg(3), 1);
    0
}

/// `int do_sys_poll(struct pollfd *fds, unsigned int count, struct timespec64 *timeout)`, behind `poll` and `ppoll`.
#[fentry(function = "do_sys_poll")]
pub(crate) fn kernel_poll_entered(ctx: FEntryContext) -> i32 {
    let _ = count_kernel_poll(ctx.arg(2), 0);
    0
}

/// Counts a poll with this timeout, which is a kernel address: 0 to wait without limit.
#[inline(always)]
fn count_kernel_poll(timeout_address: u64, epoll_count: u64) -> Option<()> {
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: copied immediately; targets are only ever added.
    let target = unsafe { TARGETS.get(process) }.copied()?;
    let waits = timeout_address == 0 || {
        // SAFETY: a read of kernel memory; a fault is an error value.
        let time = unsafe { bpf_probe_read_kernel(timeout_address as *const [u64; 2]) };
        time.ok()? != [0, 0]
    };
    let mut caller = Caller::of(target)?;
    let thread = caller.thread()?;
    thread.epolls += epoll_count;
    thread.waits += u64::from(waits);
    Some(())
}

/// Entry of a poll function:
///
/// - `int epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms)` and `epoll_pwait`, called by event loops;
/// - `int poll(struct pollfd *fds, nfds_t count, int timeout_ms)`, called by a synchronous receive that finds no message.
#[uprobe]
pub(crate) fn poll_entered(ctx: ProbeContext) -> u32 {
    refuse_private_stack(&ctx);
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

/// Return of `epoll_wait` and `epoll_pwait`: the current thread leaves its poll.
#[uretprobe]
pub(crate) fn poll_left(ctx: RetProbeContext) -> u32 {
    refuse_private_stack(&ctx);
    // The entry has registered the thread. See `Call::target` for returns in other targets.
    if let Some(thread) = here::known_thread(here::cookie(&ctx).target()) {
        thread.poll_left(here::now());
    }
    0
}
