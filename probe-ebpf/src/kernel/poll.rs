//! When a watched thread goes to its poll and comes back: its wakeups, and how long it stays away.
//!
//! Tracepoints of single system calls, so that the others cost 10 ns and not 26. They need tracefs.
//! Minimum kernel: 4.17; `sys_enter` arguments begin at byte 16 of the record, 8 bytes each.

use aya_ebpf::EbpfContext;
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;
use probe_ebpf::Thread;

use crate::here;
use crate::maps::TARGETS;

const ARGUMENTS: usize = 16;

/// `epoll_wait(fd, events, max, int timeout_ms)`, and `epoll_pwait` alike
#[tracepoint]
pub(crate) fn epoll_entered(ctx: TracePointContext) -> u32 {
    entered(&ctx, 3)
}

/// `poll(fds, count, int timeout_ms)`
#[tracepoint]
pub(crate) fn poll_entered(ctx: TracePointContext) -> u32 {
    entered(&ctx, 2)
}

/// The return of any of them.
#[tracepoint]
pub(crate) fn poll_left(_ctx: TracePointContext) -> u32 {
    if let Some(thread) = current() {
        // SAFETY: a map value, checked for null; only the thread itself writes its poll fields.
        unsafe { (*thread).poll_left(here::now()) };
    }
    0
}

#[inline(always)]
fn entered(ctx: &TracePointContext, timeout: usize) -> u32 {
    if let Some(thread) = current() {
        // SAFETY: a constant offset inside the tracepoint's record.
        let timeout_ms = unsafe {
            ctx.as_ptr()
                .cast::<u8>()
                .add(ARGUMENTS + 8 * timeout)
                .cast::<u64>()
                .read()
        } as i32;
        // SAFETY: a map value, checked for null; only the thread itself writes its poll fields.
        unsafe { (*thread).poll_entered(here::now(), timeout_ms != 0) };
    }
    0
}

#[inline(always)]
fn current() -> Option<*mut Thread> {
    // SAFETY: copied at once; targets are only ever added.
    let target = unsafe { TARGETS.get((here::key() >> 32) as u32) }.copied()?;
    here::thread(target, here::tid())
}
