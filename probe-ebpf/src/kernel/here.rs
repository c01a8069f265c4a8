//! Identity of the current thread, in the initial namespace and in user space's namespace.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::bpf_pidns_info;
use aya_ebpf::helpers::generated::{bpf_get_attach_cookie, bpf_get_ns_current_pid_tgid};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use probe_ebpf::{Cookie, Loss, Thread};

use crate::maps::{ACCOUNTING, NAMESPACE_DEV, NAMESPACE_INO, TARGETS, THREADS, count_loss};

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// Attach cookie of the running program. Minimum kernel: 5.15.
#[inline(always)]
pub(crate) fn cookie<C: EbpfContext>(ctx: &C) -> Cookie {
    // SAFETY: the context of the running program.
    Cookie(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) })
}

/// Id of the current thread in the initial namespace; the maps use it as their key.
#[inline(always)]
pub(crate) fn key() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// The thread that hit a uprobe.
pub(crate) struct Caller {
    /// Target index of its process.
    pub(crate) target: u32,
    /// Thread id in user space's namespace.
    pub(crate) tid: u32,
    /// Accounting of the thread: a map value, checked for null. `None` if thread accounting is off.
    thread: Option<*mut Thread>,
}

impl Caller {
    /// Identifies the current thread as one of `target`.
    ///
    /// If user space runs in its own PID namespace, it does not know the ids that the scheduler tracepoints use. A target's
    /// first probe hit registers its id.
    #[inline(always)]
    pub(crate) fn of(target: u32) -> Option<Self> {
        let ids = bpf_get_current_pid_tgid();
        let (key, tid) = (ids as u32, namespaced_tid(ids));
        let caller = |thread| Self { target, tid, thread };
        if ACCOUNTING.load() == 0 {
            return Some(caller(None));
        }
        if let Some(thread) = THREADS.get_ptr_mut(key) {
            // SAFETY: a map value, checked for null; only the thread itself writes these fields. They are written again
            // because the kernel reuses thread ids.
            unsafe {
                (*thread).tid = tid;
                (*thread).target = target;
            }
            return Some(caller(Some(thread)));
        }
        if NAMESPACE_INO.load() != 0 {
            let _ = TARGETS.insert((ids >> 32) as u32, target, 0);
        }
        let _ = THREADS.insert(key, Thread { target, tid, ..Thread::default() }, 0);
        let Some(thread) = THREADS.get_ptr_mut(key) else {
            count_loss(Loss::InFlight);
            return None;
        };
        Some(caller(Some(thread)))
    }

    /// Accounting of the thread.
    #[inline(always)]
    pub(crate) fn thread(&mut self) -> Option<&mut Thread> {
        // SAFETY: a map value, checked for null. Other CPUs write the scheduler fields only of threads that are not running;
        // this thread is running.
        self.thread.map(|thread| unsafe { &mut *thread })
    }
}

/// Accounting of the current thread if it is registered as one of `target`.
#[inline(always)]
pub(crate) fn known_thread(target: u32) -> Option<&'static mut Thread> {
    let thread = THREADS.get_ptr_mut(key())?;
    // SAFETY: a map value, checked for null; this thread is running, as in `Caller::thread`.
    let thread = unsafe { &mut *thread };
    (thread.target == target).then_some(thread)
}

/// Id of the current thread in user space's namespace. Minimum kernel: 5.7 for the translation.
#[inline(always)]
fn namespaced_tid(thread_key: u64) -> u32 {
    let ino = NAMESPACE_INO.load();
    if ino == 0 {
        return thread_key as u32;
    }
    let mut ids = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: the helper writes at most the given size.
    unsafe {
        bpf_get_ns_current_pid_tgid(NAMESPACE_DEV.load(), ino, &raw mut ids, size_of::<bpf_pidns_info>() as u32);
    }
    ids.pid
}
