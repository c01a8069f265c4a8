//! Who is calling: the current thread as the probe's programs and user space name it.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_ns_current_pid_tgid};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use probe_ebpf::{Cookie, Loss, Thread};

use crate::maps::{ACCOUNTING, NAMESPACE_DEV, NAMESPACE_INO, TARGETS, THREADS, lost};

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// What the running program was attached with. Minimum kernel: 5.15.
#[inline(always)]
pub(crate) fn cookie<C: EbpfContext>(ctx: &C) -> Cookie {
    // SAFETY: the context of the running program.
    Cookie(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) })
}

/// The current thread's id in the initial namespace, by which maps know it.
#[inline(always)]
pub(crate) fn key() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// The thread that runs into a uprobe.
pub(crate) struct Caller {
    /// Index of its process among the targets.
    pub(crate) target: u32,
    /// Its id in user space's namespace.
    pub(crate) tid: u32,
    /// Its accounting: a map value, checked for null. `None` where nobody accounts for threads.
    thread: Option<*mut Thread>,
}

impl Caller {
    /// The current thread.
    ///
    /// In a namespace of its own, user space does not know the ids that the scheduler's programs see: a target's first
    /// probe tells them.
    #[inline(always)]
    pub(crate) fn of(target: u32) -> Option<Self> {
        let ids = bpf_get_current_pid_tgid();
        let (key, tid) = (ids as u32, tid(ids));
        let caller = |thread| Self { target, tid, thread };
        if ACCOUNTING.load() == 0 {
            return Some(caller(None));
        }
        if let Some(thread) = THREADS.get_ptr_mut(key) {
            // SAFETY: a map value, checked for null; only the thread itself writes its name. An ended thread's id may be
            // another's now.
            unsafe {
                (*thread).tid = tid;
                (*thread).target = target;
            }
            return Some(caller(Some(thread)));
        }
        if NAMESPACE_INO.load() != 0 {
            let _ = TARGETS.insert((ids >> 32) as u32, target, 0);
        }
        let _ = THREADS.insert(
            key,
            Thread {
                target,
                tid,
                ..Thread::default()
            },
            0,
        );
        let Some(thread) = THREADS.get_ptr_mut(key) else {
            lost(Loss::InFlight);
            return None;
        };
        Some(caller(Some(thread)))
    }

    /// Its accounting.
    #[inline(always)]
    pub(crate) fn thread(&mut self) -> Option<&mut Thread> {
        // SAFETY: a map value, checked for null. Other CPUs write the scheduler's fields of a thread that does not run, and
        // this one runs.
        self.thread.map(|thread| unsafe { &mut *thread })
    }
}

/// The id of the current thread in user space's namespace. Minimum kernel: 5.7 for the translation.
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
