//! Who is calling: the current thread as the probe's programs and user space name it.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_ns_current_pid_tgid};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use probe_ebpf::{Call, Loss, Thread};

use crate::maps::{NAMESPACE_DEV, NAMESPACE_INO, TARGETS, THREADS, lost};

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// The thread that runs into a uprobe.
pub(crate) struct Caller {
    /// Index of its process among the targets: the uprobe's attach cookie.
    pub(crate) target: u32,
    /// Its id in user space's namespace.
    pub(crate) tid: u32,
    /// Its accounting: a map value, checked for null.
    thread: *mut Thread,
}

impl Caller {
    /// The current thread. Minimum kernel: 5.15 for the cookie.
    ///
    /// In a namespace of its own, user space does not know the ids that the scheduler's programs see: a target's first
    /// probe tells them.
    #[inline(always)]
    pub(crate) fn of<C: EbpfContext>(ctx: &C) -> Option<Self> {
        let key = bpf_get_current_pid_tgid();
        // SAFETY: the context of the running program.
        let target = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) as u32 };
        let tid = tid(key);
        if let Some(thread) = THREADS.get_ptr_mut(key as u32) {
            // SAFETY: a map value, checked for null; only the thread itself writes its name.
            unsafe { (*thread).tid = tid };
            return Some(Self { target, tid, thread });
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
        let Some(thread) = THREADS.get_ptr_mut(key as u32) else {
            lost(Loss::InFlight);
            return None;
        };
        Some(Self { target, tid, thread })
    }

    /// Its accounting.
    #[inline(always)]
    pub(crate) fn thread(&mut self) -> &mut Thread {
        // SAFETY: a map value, checked for null. Other CPUs write the scheduler's fields of a thread that does not run, and
        // this one runs.
        unsafe { &mut *self.thread }
    }

    /// It enters a call.
    #[inline(always)]
    pub(crate) fn enters(&mut self, call: Call) {
        self.thread().call = call;
    }

    /// It returns from the call it entered.
    #[inline(always)]
    pub(crate) fn returns(&mut self) -> Option<Call> {
        let call = self.thread().returned();
        if call.is_none() {
            lost(Loss::InFlight);
        }
        call
    }
}

/// The id of `key`'s thread in user space's namespace. Minimum kernel: 5.7 for the translation.
#[inline(always)]
fn tid(key: u64) -> u32 {
    let ino = NAMESPACE_INO.load();
    if ino == 0 {
        return key as u32;
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
