//! Who is calling: the current thread as the probe's programs and user space name it.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_ns_current_pid_tgid};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use probe_ebpf::Thread;

use crate::maps::{NAMESPACE_DEV, NAMESPACE_INO, TARGETS, THREADS};

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// Process and thread id in the initial namespace, as one key.
#[inline(always)]
pub(crate) fn key() -> u64 {
    bpf_get_current_pid_tgid()
}

/// Index of the target that this uprobe was attached for: its attach cookie.
///
/// Minimum kernel: 5.15.
#[inline(always)]
pub(crate) fn target<C: EbpfContext>(ctx: &C) -> u32 {
    // SAFETY: the context of the running program.
    unsafe { bpf_get_attach_cookie(ctx.as_ptr()) as u32 }
}

/// The current thread's id in user space's namespace. Minimum kernel: 5.7 for the translation.
#[inline(always)]
pub(crate) fn tid() -> u32 {
    let ino = NAMESPACE_INO.load();
    if ino == 0 {
        return key() as u32;
    }
    let mut ids = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: the helper writes at most the given size.
    unsafe {
        bpf_get_ns_current_pid_tgid(
            NAMESPACE_DEV.load(),
            ino,
            &raw mut ids,
            size_of::<bpf_pidns_info>() as u32,
        );
    }
    ids.pid
}

/// The current thread's accounting, created at its first probe.
///
/// In a namespace of its own, user space does not know the ids that the scheduler's programs see: a target's first probe
/// tells them.
#[inline(always)]
pub(crate) fn thread(target: u32, tid: u32) -> Option<*mut Thread> {
    let key = key();
    if let Some(known) = THREADS.get_ptr_mut(key as u32) {
        // SAFETY: a map value, checked for null.
        unsafe { (*known).tid = tid };
        return Some(known);
    }
    if NAMESPACE_INO.load() != 0 {
        let _ = TARGETS.insert((key >> 32) as u32, target, 0);
    }
    let _ = THREADS.insert(
        key as u32,
        Thread {
            target,
            tid,
            ..Thread::default()
        },
        0,
    );
    THREADS.get_ptr_mut(key as u32)
}
