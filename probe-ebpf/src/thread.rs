//! Accounting of one thread: time running, waiting for a CPU and sleeping, and number of polls.

/// State of a thread according to the scheduler tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not observed yet. Time before the first context switch belongs to no state.
    Unknown,
    /// On a CPU.
    Running,
    /// Runnable, waiting for a CPU.
    Waiting,
    /// Asleep: in a poll, on a lock, in I/O.
    Blocked,
}

/// Accounting of a watched thread. User space reads it while the kernel side updates it: each field is consistent, the struct
/// as a whole is not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Target index of its process.
    pub target: u32,
    /// Thread id in user space's PID namespace; 0 until the thread hits a uprobe.
    pub tid: u32,
    /// [`State`] as a number; 0 is [`State::Unknown`].
    pub state: u32,
    /// 1 while it sleeps in `epoll_wait` or `epoll_pwait`; without scheduler tracepoints, while it is inside them.
    pub polling: u32,
    /// Time of the last state change (`CLOCK_MONOTONIC`).
    pub since_ns: u64,
    /// Time on a CPU, up to `since_ns`.
    pub on_ns: u64,
    /// Time runnable but not running, up to `since_ns`.
    pub wait_ns: u64,
    /// Time asleep, up to `since_ns`.
    pub blocked_ns: u64,
    /// Number of times it was switched out.
    pub switches: u64,
    /// Number of times it was switched out while runnable.
    pub preempted: u64,
    /// Number of `epoll_wait` and `epoll_pwait` calls. Only event loops make them.
    pub epolls: u64,
    /// Number of wakeups: calls of `epoll_wait`, `epoll_pwait` and `poll` with a timeout other than 0. An event loop with
    /// pending work polls with timeout 0.
    pub waits: u64,
    /// Time asleep in completed `epoll_wait` and `epoll_pwait` calls, including the wait for a CPU afterwards; without
    /// scheduler tracepoints, time inside them.
    pub polled_ns: u64,
    /// Start of the current poll.
    pub poll_ns: u64,
}

impl Thread {
    /// Current state.
    #[inline(always)]
    pub fn state(&self) -> State {
        match self.state {
            1 => State::Running,
            2 => State::Waiting,
            3 => State::Blocked,
            _ => State::Unknown,
        }
    }

    /// Nanoseconds that the thread ran, waited for a CPU and slept, in this order, up to `now_ns`. Includes its current state.
    #[inline(always)]
    pub fn at(&self, now_ns: u64) -> (u64, u64, u64) {
        // Another CPU may have set `since_ns` slightly after `now_ns` was read.
        let open = now_ns.saturating_sub(self.since_ns);
        let (mut on, mut wait, mut blocked) = (self.on_ns, self.wait_ns, self.blocked_ns);
        match self.state() {
            State::Running => on += open,
            State::Waiting => wait += open,
            State::Blocked => blocked += open,
            State::Unknown => {}
        }
        (on, wait, blocked)
    }

    /// Records that the thread left its CPU at `now_ns`, which ends its state so far. `runnable`: it was preempted or yielded,
    /// and still waits for a CPU. `polls`: it sleeps in an event loop's poll.
    #[inline(always)]
    pub fn switched_out(&mut self, now_ns: u64, runnable: bool, polls: bool) {
        self.close(now_ns);
        if polls {
            self.poll_ns = now_ns;
            self.polling = 1;
        }
        self.switches += 1;
        self.preempted += u64::from(runnable);
        self.state = if runnable { State::Waiting } else { State::Blocked } as u32;
    }

    /// Records that the thread was switched in at `now_ns`.
    #[inline(always)]
    pub fn switched_in(&mut self, now_ns: u64) {
        self.close(now_ns);
        self.state = State::Running as u32;
        self.poll_left(now_ns);
    }

    /// Records a wakeup at `now_ns`. Ignored for a running thread, for which the kernel reports wakeups as well.
    #[inline(always)]
    pub fn woken(&mut self, now_ns: u64) {
        if self.state == State::Running as u32 || self.state == State::Waiting as u32 {
            return;
        }
        self.close(now_ns);
        self.state = State::Waiting as u32;
    }

    /// Records that the thread entered an event loop's poll at `now_ns`, whose return is probed.
    #[inline(always)]
    pub fn poll_entered(&mut self, now_ns: u64) {
        self.poll_ns = now_ns;
        self.polling = 1;
    }

    /// Records the end of a poll at `now_ns`. A poll that began before the attach is not counted.
    #[inline(always)]
    pub fn poll_left(&mut self, now_ns: u64) {
        if self.polling == 1 {
            self.polled_ns += now_ns.saturating_sub(self.poll_ns);
            self.polling = 0;
        }
    }

    #[inline(always)]
    fn close(&mut self, now_ns: u64) {
        (self.on_ns, self.wait_ns, self.blocked_ns) = self.at(now_ns);
        self.since_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_accounted_to_the_state_it_was_spent_in() {
        let mut t = Thread::default();
        t.switched_in(1_000); // the time before is unknown and not counted
        t.switched_out(1_300, true, false);
        t.switched_in(1_350);
        t.switched_out(1_400, false, false);
        t.woken(2_400);
        t.switched_in(2_410);
        assert_eq!((t.on_ns, t.wait_ns, t.blocked_ns), (350, 60, 1_000));
        assert_eq!((t.switches, t.preempted), (2, 1));
        assert_eq!(t.at(2_500), (440, 60, 1_000));
    }

    #[test]
    fn waking_a_running_thread_changes_nothing() {
        let mut t = Thread::default();
        t.switched_in(10);
        let before = t;
        t.woken(20);
        assert_eq!(t, before);
    }

    #[test]
    fn a_reading_older_than_the_last_change_is_not_negative() {
        let mut t = Thread::default();
        t.switched_in(100);
        assert_eq!(t.at(90), (0, 0, 0));
    }

    #[test]
    fn sleep_in_a_poll_counts_as_polled() {
        let mut t = Thread::default();
        t.switched_in(5); // asleep since before the attach
        t.switched_out(10, false, true);
        t.woken(30);
        t.switched_in(40);
        t.switched_out(50, false, false); // on a lock
        t.switched_in(90);
        assert_eq!((t.polling, t.polled_ns), (0, 30));
    }

    #[test]
    fn without_scheduler_tracepoints_the_return_ends_a_poll() {
        let mut t = Thread::default();
        t.poll_left(5); // entered before the attach
        t.poll_entered(10);
        t.poll_left(40);
        assert_eq!(t.polled_ns, 30);
    }
}
