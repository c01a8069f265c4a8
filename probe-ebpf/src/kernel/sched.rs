//! Tracks whether each thread of the watched processes runs, waits for a CPU or sleeps.
//!
//! Raw tracepoints attach and detach in milliseconds, need no tracefs, and add about 0.1 us to a context switch of an
//! unwatched process. Minimum kernel: 5.15 (`bpf_task_pt_regs`). The argument order is that of every release except 5.18.0.

use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs};
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use probe_ebpf::{Offsets, Thread};

use crate::fields::read_field;
use crate::here;
use crate::maps::{OFFSETS, TARGETS, THREADS};

/// `sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, ..)`: counts the times of both threads if watched.
#[raw_tracepoint(tracepoint = "sched_switch")]
pub(crate) fn sched_switch(ctx: RawTracePointContext) -> i32 {
    let offsets = OFFSETS.load();
    let (preempted, prev, next) = (ctx.arg::<u64>(0) as u8 != 0, ctx.arg::<u64>(1), ctx.arg::<u64>(2));
    let now = here::now();
    if let Some(thread) = watched_thread(prev, &offsets) {
        // State 0 is TASK_RUNNING: the thread yielded. An unknown state counts as asleep unless the thread was preempted.
        let runnable = preempted || field_if_known(prev, offsets.task_state) == Some(0);
        let polls = !runnable && is_in_poll(&offsets);
        // SAFETY: a map value, checked for null; only this context switch writes the state of the outgoing thread.
        unsafe { (*thread).switched_out(now, runnable, polls) };
    }
    if let Some(thread) = watched_thread(next, &offsets) {
        // SAFETY: as above.
        unsafe { (*thread).switched_in(now) };
    }
    0
}

/// `sched_wakeup(struct task_struct *p)`: the kernel wakes a thread, which waits for a CPU from now on. Notes that if it is watched.
#[raw_tracepoint(tracepoint = "sched_wakeup")]
pub(crate) fn sched_wakeup(ctx: RawTracePointContext) -> i32 {
    if let Some(thread) = watched_thread(ctx.arg(0), &OFFSETS.load()) {
        // SAFETY: a map value, checked for null; the thread is asleep, so no context switch writes it concurrently.
        unsafe { (*thread).woken(here::now()) };
    }
    0
}

/// System call numbers of `epoll_wait`, `epoll_pwait`, `epoll_pwait2`; `arch/x86/entry/syscalls/syscall_64.tbl`.
#[cfg(bpf_target_arch = "x86_64")]
const POLLS: [u32; 3] = [232, 281, 441];
/// System call numbers of `epoll_pwait`, `epoll_pwait2`; `include/uapi/asm-generic/unistd.h`.
#[cfg(bpf_target_arch = "aarch64")]
const POLLS: [u32; 2] = [22, 441];

/// Whether the current thread, which is being switched out, is in an event loop's poll.
#[inline(always)]
fn is_in_poll(offsets: &Offsets) -> bool {
    // SAFETY: helpers on the current task, which exists while this program runs.
    let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
    field_if_known(registers, offsets.call).is_some_and(|call| POLLS.contains(&call))
}

/// Returns the accounting of the task at `task_address`, created on first use; `None` if its process is not watched.
#[inline(always)]
fn watched_thread(task_address: u64, offsets: &Offsets) -> Option<*mut Thread> {
    let process = field_if_known(task_address, offsets.task_tgid)?;
    // SAFETY: copied immediately; targets are only ever added.
    let target = unsafe { TARGETS.get(process) }.copied()?;
    let tid = field_if_known(task_address, offsets.task_pid)?;
    if let Some(known) = THREADS.get_ptr_mut(tid) {
        return Some(known);
    }
    let _ = THREADS.insert(tid, Thread { target, ..Thread::default() }, 0);
    THREADS.get_ptr_mut(tid)
}

#[inline(always)]
fn field_if_known(struct_address: u64, offset: u32) -> Option<u32> {
    if offset == Offsets::ABSENT {
        return None;
    }
    read_field(struct_address, offset)
}
