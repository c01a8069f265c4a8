//! Registers of the probed thread, read from the program's context with one load each and no helper call.

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_user;

/// Register values at the probed instruction.
#[derive(Clone, Copy)]
pub(crate) struct Registers(*mut pt_regs);

macro_rules! read {
    ($regs:expr, $($field:tt)+) => {
        // SAFETY: the context of the running program. Volatile keeps the compiler from merging several loads into one at a
        // computed offset; the verifier accepts only constant offsets into the context.
        unsafe { (&raw const (*$regs.0).$($field)+).read_volatile() }
    };
}

impl Registers {
    pub(crate) fn of(regs: *mut pt_regs) -> Self {
        Self(regs)
    }

    /// Returns argument `N` at a function's entry.
    #[cfg(bpf_target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn arg<const N: usize>(self) -> u64 {
        match N {
            0 => read!(self, rdi),
            1 => read!(self, rsi),
            2 => read!(self, rdx),
            _ => read!(self, rcx),
        }
    }

    /// Returns argument `N` at a function's entry.
    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    pub(crate) fn arg<const N: usize>(self) -> u64 {
        read!(self, regs[N])
    }

    /// Returns a function's `int` result, the low 32 bits of the register, at its return.
    #[cfg(bpf_target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn result(self) -> i32 {
        read!(self, rax) as i32
    }

    /// Returns a function's `int` result, the low 32 bits of the register, at its return.
    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    pub(crate) fn result(self) -> i32 {
        read!(self, regs[0]) as i32
    }

    /// Returns a value kept in a register or in the memory it points to ([`probe_ebpf::Kept`]).
    #[inline(always)]
    pub(crate) fn kept(self, (register, offset): (u16, Option<i8>)) -> Option<u64> {
        let value = self.register(register);
        match offset {
            None => Some(value),
            // SAFETY: a read of the target's memory; a fault is an error value.
            Some(offset) => unsafe { bpf_probe_read_user(slot(value, offset) as *const u64) }.ok(),
        }
    }

    /// Returns two kept values. Uses one read if they are adjacent, as compilers usually spill arguments.
    #[inline(always)]
    pub(crate) fn kept_pair(self, first: (u16, Option<i8>), second: (u16, Option<i8>)) -> Option<(u64, u64)> {
        if let (register, Some(offset)) = first
            && second == (register, Some(offset.wrapping_add(8)))
        {
            let at = slot(self.register(register), offset);
            // SAFETY: a read of the target's memory; a fault is an error value.
            let [first, second] = unsafe { bpf_probe_read_user(at as *const [u64; 2]) }.ok()?;
            return Some((first, second));
        }
        Some((self.kept(first)?, self.kept(second)?))
    }

    /// Loads all registers and selects one, because the verifier rejects a variable offset into the context.
    #[cfg(bpf_target_arch = "x86_64")]
    #[inline(always)]
    fn register(self, number: u16) -> u64 {
        let held = [
            read!(self, rbx),
            read!(self, rbp),
            read!(self, r12),
            read!(self, r13),
            read!(self, r14),
            read!(self, r15),
            read!(self, rsp),
            0,
        ];
        held[usize::from(number) & 7]
    }

    /// Unused: probe points that need it are found only on x86-64.
    #[cfg(bpf_target_arch = "aarch64")]
    #[inline(always)]
    fn register(self, _: u16) -> u64 {
        0
    }
}

#[inline(always)]
fn slot(base: u64, offset: i8) -> u64 {
    base.wrapping_add_signed(i64::from(offset))
}
