//! Accounting of one thread: how long it ran, waited for a CPU and slept, and how often it went to its poll.

/// What a thread is doing, as the scheduler's tracepoints tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not seen yet: the time until its first switch belongs to no state.
    Unknown,
    /// On a CPU.
    Running,
    /// Runnable, waiting for a CPU.
    Waiting,
    /// Asleep: in a poll, on a lock, in I/O.
    Blocked,
}

/// One watched thread. Kept by the kernel side, read by user space while it changes: each field is read whole, the
/// struct is not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Index of its process among the targets.
    pub target: u32,
    /// Thread id in the namespace of the probe's user side; 0 until the thread was seen in a probe of its own.
    pub tid: u32,
    /// [`State`] as a number; 0 is [`State::Unknown`].
    pub state: u32,
    /// 1 while it sleeps in `epoll_wait` or `epoll_pwait`, or, where no scheduler is observed, is inside of them.
    pub polling: u32,
    /// `CLOCK_MONOTONIC` of the last change of state.
    pub since_ns: u64,
    /// Time on a CPU, up to `since_ns`.
    pub on_ns: u64,
    /// Time runnable and not running, up to `since_ns`.
    pub wait_ns: u64,
    /// Time asleep, up to `since_ns`.
    pub blocked_ns: u64,
    /// Times it left a CPU.
    pub switches: u64,
    /// Times it left a CPU although it could have gone on.
    pub preempted: u64,
    /// Calls of `epoll_wait` and `epoll_pwait` that it made: it is an event loop.
    pub epolls: u64,
    /// Poll calls (those and `poll`) that were allowed to sleep (timeout not 0): its wakeups. An event loop with work to do
    /// polls with timeout 0.
    pub waits: u64,
    /// Time asleep in `epoll_wait` and `epoll_pwait` and until it had a CPU again, up to the last time; where no scheduler is
    /// observed, time inside of them.
    pub polled_ns: u64,
    /// Since when it is polling.
    pub poll_ns: u64,
}

impl Thread {
    /// The state as a word.
    #[inline(always)]
    pub fn state(&self) -> State {
        match self.state {
            1 => State::Running,
            2 => State::Waiting,
            3 => State::Blocked,
            _ => State::Unknown,
        }
    }

    /// On-CPU, waiting and blocked time up to `now_ns`, the running state included.
    #[inline(always)]
    pub fn at(&self, now_ns: u64) -> (u64, u64, u64) {
        // Another CPU may have stamped `since_ns` a little after `now_ns` was read.
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

    /// It left a CPU at `now_ns`: to sleep in an event loop's poll, or `runnable` when it was preempted or yielded.
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

    /// It got a CPU at `now_ns`.
    #[inline(always)]
    pub fn switched_in(&mut self, now_ns: u64) {
        self.close(now_ns);
        self.state = State::Running as u32;
        self.poll_left(now_ns);
    }

    /// It was woken at `now_ns`. The kernel says so of a running thread as well, which changes nothing.
    #[inline(always)]
    pub fn woken(&mut self, now_ns: u64) {
        if self.state == State::Running as u32 || self.state == State::Waiting as u32 {
            return;
        }
        self.close(now_ns);
        self.state = State::Waiting as u32;
    }

    /// It entered an event loop's poll at `now_ns`, whose return is observed.
    #[inline(always)]
    pub fn poll_entered(&mut self, now_ns: u64) {
        self.poll_ns = now_ns;
        self.polling = 1;
    }

    /// It has slept in its poll, or returned from it, at `now_ns`; what began before the attach counts for nothing.
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
    fn time_goes_to_the_state_it_was_spent_in() {
        let mut t = Thread::default();
        t.switched_in(1_000); // what was before is unknown, so nobody's
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
    fn a_reading_from_before_the_last_change_is_not_negative() {
        let mut t = Thread::default();
        t.switched_in(100);
        assert_eq!(t.at(90), (0, 0, 0));
    }

    #[test]
    fn what_was_slept_in_a_poll_was_polled() {
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
    fn without_a_scheduler_its_returns_end_a_poll() {
        let mut t = Thread::default();
        t.poll_left(5); // entered before the attach
        t.poll_entered(10);
        t.poll_left(40);
        assert_eq!(t.polled_ns, 30);
    }
}
