//! Functions of the engine's threads, by stack sampling: over the whole run, and while the backlog grew.
//!
//! A busy consumer always has a hot function. The functions that dominate while the backlog grows are the cause of the growth.

use std::cmp::Reverse;
use std::collections::VecDeque;

use hashbrown::HashMap;

use super::hops::Hops;
use super::limits::push_bounded;
use super::ttft_path::TtftMoment;
use super::{Hop, Ledger};
use crate::clock::MonoNs;
use crate::event::StackSample;
use crate::id::ThreadId;

/// Minimum number of queued frames for a growing backlog; fewer are normal.
const MIN_BACKLOG: u64 = 4;
/// Maximum number of processes with a tracked backlog; the one silent longest is evicted.
const MAX_PROCESSES: usize = 256;
/// With fewer samples of a running thread, a share is not significant.
const MIN_SAMPLES: u64 = 20;
/// How long samples are kept for requests that turn out to be late, and how many of each role.
const MAX_RECENT_NS: u64 = 60_000_000_000;
const MAX_RECENT: usize = 4_096;

/// Numbers of stack samples, by state of the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackCounts {
    /// Stacks read.
    pub samples: u64,
    /// Those of a thread that was running or runnable.
    pub running: u64,
    /// Those of a running thread that held the GIL; only meaningful with [`StackRole::gil_observed`].
    pub gil: u64,
}

/// Number of stacks of running threads that contain a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackHits {
    /// As the innermost function.
    pub own: u64,
    /// At any depth.
    pub total: u64,
    /// As the innermost function of a thread that held the GIL; only meaningful with [`StackRole::gil_observed`].
    pub gil: u64,
}

impl StackHits {
    /// Samples of the function of `sample`.
    fn of_sample(sample: &StackSample<'_>) -> Self {
        Self { own: u64::from(sample.own), total: u64::from(sample.total), gil: u64::from(sample.gil.unwrap_or(0)) }
    }
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFunction {
    /// Function name, with the class name if the interpreter provides it (CPython 3.11 and later).
    pub function: Box<str>,
    /// Source file.
    pub file: Box<str>,
    /// Over the run.
    pub all: StackHits,
    /// While frames piled up in front of its process.
    pub growing: StackHits,
    /// As the innermost function while requests waited that were late there.
    late: LateSamples,
}

impl StackFunction {
    /// The innermost function of a sample, without any samples so far.
    fn new(sample: &StackSample<'_>) -> Self {
        Self {
            function: sample.function.into(),
            file: sample.file.into(),
            all: StackHits::default(),
            growing: StackHits::default(),
            late: LateSamples::default(),
        }
    }
}

/// Stack samples of a running thread while requests waited that were late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LateSamples {
    /// In the server's socket.
    unread: u64,
    /// In the process that answers clients, before their dispatch.
    undispatched: u64,
}

impl LateSamples {
    /// Samples while requests waited on the leg that begins with this moment.
    fn count(mut self, leg_from: TtftMoment) -> u64 {
        *self.counter_of_leg(leg_from)
    }

    /// Counter of the samples while requests waited on the leg that begins with this moment.
    fn counter_of_leg(&mut self, leg_from: TtftMoment) -> &mut u64 {
        if leg_from == TtftMoment::Arrived { &mut self.unread } else { &mut self.undispatched }
    }
}

/// Stack samples of one function in one interval.
#[derive(Clone, Copy, Debug)]
struct RecentSamples {
    from: MonoNs,
    to: MonoNs,
    /// Index of the function in its role.
    function: usize,
    own: u64,
    /// Those that count as samples while requests were late.
    late: LateSamples,
}

/// The most frequent innermost function in some samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopFunction<'s> {
    /// The function.
    pub(crate) function: &'s StackFunction,
    /// Its samples.
    pub(crate) own: u64,
    /// Samples of a running thread.
    pub(crate) running: u64,
}

impl TopFunction<'_> {
    /// Whether there are enough samples for a share.
    pub(crate) fn is_significant(&self) -> bool {
        self.running >= MIN_SAMPLES
    }
}

/// Stack samples of the processes of one role.
#[derive(Clone, Debug, Default)]
pub struct StackRole {
    /// `tokenizer`, `scheduler`, ...
    pub role: Box<str>,
    /// Over the run.
    pub all: StackCounts,
    /// While frames piled up in front of the process.
    pub growing: StackCounts,
    /// Whether its processes were seen to receive frames, so that a backlog is known.
    pub receives: bool,
    /// Whether every sample showed the holder of the GIL.
    pub gil_observed: bool,
    /// Stacks whose innermost function was evicted at the limit.
    pub left_out: u64,
    functions: Vec<StackFunction>,
    /// Of the last minute.
    recent: VecDeque<RecentSamples>,
    late: LateSamples,
}

impl StackRole {
    /// The functions in which threads of the role ran, the most frequent innermost one first.
    pub fn functions(&self) -> Vec<&StackFunction> {
        let mut sorted: Vec<_> = self.functions.iter().collect();
        sorted.sort_by_key(|function| (Reverse(function.all.own), Reverse(function.all.total), &function.function));
        sorted
    }

    /// The most frequent innermost function while requests waited that were late on the leg that begins with this moment; `None` without
    /// samples.
    pub(crate) fn top_function_of_late(&self, leg_from: TtftMoment) -> Option<TopFunction<'_>> {
        let function = self.functions.iter().max_by_key(|function| function.late.count(leg_from))?;
        Some(TopFunction { function, own: function.late.count(leg_from), running: self.late.count(leg_from) })
    }

    /// The most frequent innermost function over the run; `None` without samples.
    pub(crate) fn top_function(&self) -> Option<TopFunction<'_>> {
        let function = self.functions.iter().max_by_key(|function| function.all.own)?;
        Some(TopFunction { function, own: function.all.own, running: self.all.running })
    }

    /// Counts recent samples as taken while a request was late on the leg that begins with `leg_from`, if more than half of their interval
    /// is between `from` and `to`. A leg is a part of the time to first token. A sample counts once per leg, even if several requests were
    /// late on it then.
    fn count_late_samples(&mut self, leg_from: TtftMoment, from: MonoNs, to: MonoNs) {
        for samples in &mut self.recent {
            let overlap_ns = samples.to.min(to).since(samples.from.max(from));
            let is_mostly_late = overlap_ns > samples.to.since(samples.from) / 2;
            let counted_samples = samples.late.counter_of_leg(leg_from);
            let is_counted_already = *counted_samples > 0;
            if is_mostly_late && !is_counted_already {
                *counted_samples = samples.own;
                *self.functions[samples.function].late.counter_of_leg(leg_from) += samples.own;
                *self.late.counter_of_leg(leg_from) += samples.own;
            }
        }
    }

    /// Keeps the samples of the function at `function_index` for a while, because a request that was late at that time is recognised later.
    fn keep_recent_samples(&mut self, at: MonoNs, sample: &StackSample<'_>, function_index: usize) {
        let own = u64::from(sample.own);
        let from = MonoNs(at.0.saturating_sub(sample.interval_ns));
        self.recent.retain(|recent| at.since(recent.to) <= MAX_RECENT_NS);
        push_bounded(
            &mut self.recent,
            RecentSamples { from, to: at, function: function_index, own, late: LateSamples::default() },
            MAX_RECENT,
        );
    }

    fn new(role: &str) -> Self {
        Self { role: role.into(), gil_observed: true, ..Self::default() }
    }

    /// Adds the samples of a function, which is added if unknown. `is_growing`: the backlog grew meanwhile. Returns `false` if this or
    /// another function was left out at the limit.
    fn add_samples_of_function(
        &mut self,
        at: MonoNs,
        sample: &StackSample<'_>,
        is_growing: bool,
        max_functions: usize,
    ) -> bool {
        let hits = StackHits::of_sample(sample);
        let mut functions = self.functions.iter();
        let known_index =
            functions.position(|known| *known.function == *sample.function && *known.file == *sample.file);
        if let Some(index) = known_index {
            self.functions[index].add_hits(hits, is_growing);
            self.keep_recent_samples(at, sample, index);
            return true;
        }
        let mut new_function = StackFunction::new(sample);
        new_function.add_hits(hits, is_growing);
        if self.functions.len() < max_functions {
            self.functions.push(new_function);
            self.keep_recent_samples(at, sample, self.functions.len() - 1);
            return true;
        }
        self.replace_rarest_function(at, sample, new_function);
        false
    }

    /// Replaces the rarest function by `new_function`, whose first sample is `sample`. If the new one is rarer still, it is left out
    /// instead. The samples of the function that is left out are only counted.
    fn replace_rarest_function(&mut self, at: MonoNs, sample: &StackSample<'_>, new_function: StackFunction) {
        let functions = self.functions.iter_mut().enumerate();
        // The function in the fewest samples. Of equal ones, the one that was the innermost function in the fewest.
        let rarest = functions.min_by_key(|(_, function)| (function.all.total, function.all.own));
        let left_out = match rarest {
            Some((index, rarest)) if rarest.all.total < new_function.all.total => {
                let evicted = std::mem::replace(rarest, new_function);
                // Recent samples of the evicted function must not count for the one with its index now.
                self.recent.retain(|recent| recent.function != index);
                self.keep_recent_samples(at, sample, index);
                evicted
            }
            _ => new_function,
        };
        self.left_out += left_out.all.own;
    }
}

impl StackFunction {
    /// Adds samples. If the backlog grew meanwhile (`is_growing`), they also count among those of such times.
    fn add_hits(&mut self, hits: StackHits, is_growing: bool) {
        self.all.add_hits(hits);
        if is_growing {
            self.growing.add_hits(hits);
        }
    }
}

impl StackHits {
    /// Adds the counts of others.
    fn add_hits(&mut self, more: Self) {
        self.own += more.own;
        self.total += more.total;
        self.gil += more.gil;
    }
}

/// A process's backlog from one interval of samples to the next.
#[derive(Clone, Copy, Debug)]
struct BacklogWindow {
    at: MonoNs,
    backlog: Option<u64>,
    is_growing: bool,
    /// Thread of the samples being entered.
    thread: ThreadId,
}

impl BacklogWindow {
    /// The interval that ends at `at`, after the `previous` one. `backlog_frames`: number of frames that wait for the process at its end;
    /// `None` if it is not seen to receive frames.
    fn after_previous_window(
        previous: Option<Self>,
        at: MonoNs,
        thread: ThreadId,
        backlog_frames: Option<u64>,
    ) -> Self {
        let mut is_growing = false;
        if let Some(frames) = backlog_frames
            && let Some(frames_before) = previous.and_then(|previous| previous.backlog)
        {
            // A few frames are normal, even if they are more than before.
            is_growing = frames > frames_before && frames >= MIN_BACKLOG;
        }
        Self { at, backlog: backlog_frames, is_growing, thread }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    roles: Vec<StackRole>,
    windows: HashMap<u32, BacklogWindow>,
}

impl Stacks {
    /// Adds a sample. `count_waiting_frames` counts those for its process; `None` if it is not seen to receive frames. Returns false if a
    /// function was evicted or rejected at the limit.
    fn add_sample(
        &mut self,
        at: MonoNs,
        sample: &StackSample<'_>,
        count_waiting_frames: impl FnOnce() -> Option<u64>,
        max_functions: usize,
    ) -> bool {
        let last = self.last_window_and_make_room(sample.thread.pid);
        // The samples of a process in one interval come in a row, thread by thread: one event for each function.
        let same_interval = last.filter(|last| last.at == at);
        let is_first_of_thread = same_interval.is_none_or(|window| window.thread != sample.thread);
        let window = match same_interval {
            Some(known) => BacklogWindow { thread: sample.thread, ..known },
            None => BacklogWindow::after_previous_window(last, at, sample.thread, count_waiting_frames()),
        };
        self.windows.insert(sample.thread.pid, window);
        let role = self.role_or_add(sample.role);
        role.receives |= window.backlog.is_some();
        role.gil_observed &= sample.gil.is_some();
        let counts = StackCounts {
            // Each event of a thread repeats the thread's number of samples, so it is added once.
            samples: if is_first_of_thread { u64::from(sample.samples) } else { 0 },
            running: u64::from(sample.own),
            gil: u64::from(sample.gil.unwrap_or(0)),
        };
        role.all.add_counts(counts);
        if window.is_growing {
            role.growing.add_counts(counts);
        }
        // An empty function name means that the thread did not run.
        sample.function.is_empty() || role.add_samples_of_function(at, sample, window.is_growing, max_functions)
    }

    /// Backlog of a process in the last interval of samples; `None` if the process is new. At the limit of processes, a new one evicts the
    /// one silent longest.
    fn last_window_and_make_room(&mut self, pid: u32) -> Option<BacklogWindow> {
        let last = self.windows.get(&pid).copied();
        if last.is_none() && self.windows.len() >= MAX_PROCESSES {
            let longest_silent = self.windows.iter().min_by_key(|(_, window)| window.at).map(|(pid, _)| *pid);
            self.windows.retain(|pid, _| Some(*pid) != longest_silent);
        }
        last
    }

    /// Samples of the processes with this role, which is added if unknown.
    fn role_or_add(&mut self, role: &str) -> &mut StackRole {
        let known_index = self.roles.iter().position(|stacks| *stacks.role == *role);
        if known_index.is_none() {
            self.roles.push(StackRole::new(role));
        }
        // A new one is the last.
        let index = known_index.unwrap_or(self.roles.len() - 1);
        &mut self.roles[index]
    }
}

impl StackCounts {
    /// Adds the counts of others.
    fn add_counts(&mut self, more: Self) {
        self.samples += more.samples;
        self.running += more.running;
        self.gil += more.gil;
    }
}

impl Ledger {
    /// Records a sample of a thread's stack.
    pub(super) fn record_stack_sample(&mut self, at: MonoNs, sample: &StackSample<'_>) {
        let limit = self.limits.stack_functions;
        let has_room = self.stacks.add_sample(at, sample, || waiting_frames_of_process(&self.hops, sample), limit);
        if !has_room {
            self.limits.count_reached("stack_functions");
        }
    }

    /// Counts stack samples of the process that answers clients that were taken while a request was late, between `from` and `to`. The
    /// request was late on the leg (part of its time to first token) that begins with the moment `leg_from`.
    pub(super) fn count_late_stack_samples(&mut self, leg_from: TtftMoment, from: MonoNs, to: MonoNs) {
        let Some(hop) = self.hops.all.iter().find(|hop| hop.last) else { return };
        let role = &self.hops.groups[hop.group].ends.to;
        if let Some(stacks) = self.stacks.roles.iter_mut().find(|stacks| *stacks.role == **role) {
            stacks.count_late_samples(leg_from, from, to);
        }
    }

    /// Functions of the engine's threads, by role in the order first observed; empty without stack samples.
    pub fn stacks(&self) -> &[StackRole] {
        &self.stacks.roles
    }
}

/// Number of frames that wait for the process of a sample; `None` if it is not seen to receive frames.
fn waiting_frames_of_process(hops: &Hops, sample: &StackSample<'_>) -> Option<u64> {
    // Stays `None` without a hop into the process.
    let mut waiting = None;
    for hop in hops.all.iter().filter(|hop| does_hop_lead_to_process(hops, hop, sample)) {
        *waiting.get_or_insert(0) += hop.counts.backlog;
    }
    waiting
}

/// Whether a hop (channel) leads to the process of this sample.
fn does_hop_lead_to_process(hops: &Hops, hop: &Hop, sample: &StackSample<'_>) -> bool {
    if let Some(receiver) = hop.last_receiver {
        return receiver.pid == sample.thread.pid;
    }
    // A consumer far behind may not have received any frame sent since the attach. Then the hop's name identifies its role.
    hop.shows.received && *hops.groups[hop.group].ends.to == *sample.role
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sample(tid: u32, function: &'static str, [samples, total, own]: [u32; 3]) -> StackSample<'static> {
        StackSample {
            thread: ThreadId { pid: 7, tid },
            role: "tokenizer",
            function,
            file: "tokenizer_manager.py",
            interval_ns: 500 * MS,
            samples,
            total,
            own,
            gil: Some(own),
        }
    }

    #[test]
    fn functions_are_counted_separately_while_the_backlog_grows() {
        let mut stacks = Stacks::default();
        let mut enter = |ms: u64, sample: &StackSample<'_>, backlog: u64| {
            assert!(stacks.add_sample(MonoNs(ms * MS), sample, || Some(backlog), 8));
        };
        enter(500, &sample(7, "recv_pyobj", [50, 5, 5]), 0);
        enter(1_000, &sample(7, "_handle_batch_output", [50, 40, 40]), 120);
        enter(1_000, &sample(7, "recv_pyobj", [50, 42, 2]), 120);
        enter(1_000, &sample(9, "", [50, 0, 0]), 120);
        enter(1_500, &sample(7, "recv_pyobj", [50, 9, 9]), 60);
        let role = &stacks.roles[0];
        assert_eq!((role.all.samples, role.all.running), (200, 56));
        assert_eq!((role.growing.samples, role.growing.running), (100, 42));
        let functions = role.functions();
        assert_eq!(&*functions[0].function, "_handle_batch_output");
        assert_eq!((functions[1].all.own, functions[1].growing.own), (16, 2));
    }

    #[test]
    fn the_rarest_function_is_evicted_and_its_stacks_are_counted() {
        let mut stacks = Stacks::default();
        let mut enter = |function, numbers| stacks.add_sample(MonoNs(1), &sample(7, function, numbers), || None, 2);
        assert!(enter("a", [9, 9, 1]) && enter("b", [9, 2, 2]));
        assert!(!enter("c", [9, 1, 1]));
        assert!(!enter("d", [9, 5, 5]));
        let role = &stacks.roles[0];
        let names: Vec<_> = role.functions().iter().map(|f| &*f.function).collect();
        assert_eq!((names, role.left_out, role.receives), (vec!["d", "a"], 3, false));
        assert_eq!(role.all.running, 9, "stacks of evicted functions count as running");
    }

    #[test]
    fn processes_are_bounded() {
        let mut stacks = Stacks::default();
        for pid in 0..2_000 {
            let mut one = sample(1, "f", [1, 1, 1]);
            one.thread.pid = pid;
            stacks.add_sample(MonoNs(u64::from(pid)), &one, || Some(1), 8);
        }
        assert_eq!(stacks.windows.len(), MAX_PROCESSES);
    }
}
