//! Kernel struct offsets. User space reads them from the running kernel's BTF and sets them before loading.

/// Byte offsets; [`Offsets::ABSENT`] if the kernel has no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// `task_struct.pid`: thread id in the initial namespace.
    pub task_pid: u32,
    /// `task_struct.tgid`: process id in the initial namespace.
    pub task_tgid: u32,
    /// `task_struct.__state` (5.14 and later) or `.state`.
    pub task_state: u32,
    /// In `struct pt_regs`: number of the thread's current system call.
    pub call: u32,
}

impl Offsets {
    /// The kernel has no such field; it is not read.
    pub const ABSENT: u32 = u32::MAX;

    /// No field is known; programs that need one observe nothing.
    pub const NONE: Self =
        Self { task_pid: Self::ABSENT, task_tgid: Self::ABSENT, task_state: Self::ABSENT, call: Self::ABSENT };

    /// Whether every field that the scheduler programs need is known.
    pub fn sched(&self) -> bool {
        [self.task_pid, self.task_tgid, self.task_state].iter().all(|o| *o != Self::ABSENT)
    }
}
