//! Offsets inside kernel structs, read from the running kernel's BTF by user space and handed over before the load.

/// Byte offsets; [`Offsets::ABSENT`] where this kernel has no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// `task_struct.pid`: the thread id in the initial namespace.
    pub task_pid: u32,
    /// `task_struct.tgid`: the process id in the initial namespace.
    pub task_tgid: u32,
    /// `task_struct.__state` (5.14 and later) or `.state`.
    pub task_state: u32,
    /// In `struct pt_regs`: the number of the system call that the thread is in.
    pub call: u32,
}

impl Offsets {
    /// "This kernel has no such field": it is not read.
    pub const ABSENT: u32 = u32::MAX;

    /// Nothing known: programs that need an offset see nothing.
    pub const NONE: Self = Self {
        task_pid: Self::ABSENT,
        task_tgid: Self::ABSENT,
        task_state: Self::ABSENT,
        call: Self::ABSENT,
    };

    /// Every field that the scheduler programs need is known.
    pub fn sched(&self) -> bool {
        [self.task_pid, self.task_tgid, self.task_state]
            .iter()
            .all(|o| *o != Self::ABSENT)
    }
}
