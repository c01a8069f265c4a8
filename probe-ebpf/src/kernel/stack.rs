//! Keeps uprobe programs off the kernel's private stacks.
//!
//! From Linux 6.13 on (ARM64: 6.17), the kernel moves the stack frames of a program to memory that each CPU has once, if no other run of the
//! program can begin on that CPU meanwhile. It assumes this of uprobes, too. But a uprobe runs in the context of its thread, and on a preemptible
//! kernel another thread can take the CPU and hit the same probe: the second run then overwrites the frames of the first, whose pointers the
//! verifier has checked before. This crashed Linux 7.3. A program with a tail call never gets a private stack.

use aya_ebpf::helpers::bpf_tail_call;
use aya_ebpf::{EbpfContext, Global};

/// Always 0, which the verifier knows: it removes the call, but has seen it.
#[unsafe(no_mangle)]
static TAIL_CALLS: Global<u32> = Global::new(0);

/// Must be called by each uprobe program with a stack frame. User space removes the call for kernels without private stacks, because some
/// of them refuse tail calls beside calls of functions.
#[inline(always)]
pub(crate) fn refuse_private_stack<C: EbpfContext>(ctx: &C) {
    if TAIL_CALLS.load() != 0 {
        // SAFETY: never reached. A map would bind all programs that name it to one attach type.
        unsafe { bpf_tail_call(ctx.as_ptr(), core::ptr::null_mut(), 0) };
    }
}
