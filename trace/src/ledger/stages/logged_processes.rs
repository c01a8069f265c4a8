//! Processes that log their state: `states`, wait for messages, whether more messages were ready, CPU use.

use crate::clock::MonoNs;
use crate::event::LoggedState;
use crate::stats::Distribution;

/// Maximum number of processes; further ones are ignored.
const MAX_PROCESSES: usize = 64;
/// Maximum age of a logged value that is still current, in nanoseconds.
const MAX_AGE_NS: u64 = 10_000_000_000;
/// Health checks of one silence state the same last message, to a few seconds: their times are whole seconds.
const SAME_MESSAGE_NS: u64 = 3_000_000_000;
/// Maximum number of steps in a timeline. When all are used, neighbours are merged, which doubles their length.
const MAX_STEPS: usize = 240;
/// Length of a step before any are merged.
const FIRST_STEP_NS: u64 = 1_000_000_000;

/// State of one process, from its own log.
#[derive(Debug, Default)]
pub struct LoggedProcess {
    /// Source: a role, a process, or the log file.
    pub by: Box<str>,
    /// Number of messages it logged as received.
    pub messages: u64,
    /// Number of log lines that show whether more messages were ready.
    more_logged: u64,
    /// Number of those where some were.
    more_ready: u64,
    /// Wait for a message.
    pub recv_wait: Distribution,
    /// Requests with state in the process.
    pub states: StateSeries,
    /// Last logged value of `states`.
    last_states: Option<LoggedValue<u32>>,
    /// Number of log lines with CPU use.
    pub cpu_logged: u64,
    /// Highest logged share of one core.
    pub cpu_max: Option<LoggedValue<f64>>,
    /// Last logged share of one core.
    pub cpu: Option<LoggedValue<f64>>,
    /// Longest silence towards it that its health checks reported.
    pub silence: Option<LoggedSilence>,
}

/// A value and the time at which it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedValue<T> {
    /// Time of the log line.
    pub at: MonoNs,
    /// The value.
    pub value: T,
}

impl<T> LoggedValue<T> {
    /// The value, if recent enough to be valid at `at`.
    fn current_at(self, at: MonoNs) -> Option<T> {
        (at.since(self.at) <= MAX_AGE_NS).then_some(self.value)
    }
}

/// A silence that health checks reported: no message came, although each asked for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedSilence {
    /// Time of the last message before.
    pub last_message: MonoNs,
    /// Time of the first check without an answer.
    pub since: MonoNs,
    /// Time at which the last check gave up.
    pub until: MonoNs,
    /// Number of checks.
    pub checks: u64,
}

impl LoggedSilence {
    /// Joins two silences into one with the failed checks of both, if they name the same last message. `None` if a message came in between.
    fn joined_with(self, later: Self) -> Option<Self> {
        let is_same_message = self.last_message.0.abs_diff(later.last_message.0) <= SAME_MESSAGE_NS;
        if !is_same_message {
            return None;
        }
        Some(Self {
            last_message: self.last_message.min(later.last_message),
            since: self.since.min(later.since),
            until: self.until.max(later.until),
            checks: self.checks + later.checks,
        })
    }

    /// Time from the first check without an answer until the last one gave up.
    pub fn ns(&self) -> u64 {
        self.until.since(self.since)
    }
}

/// Maximum of `states` over time, in steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateSeries {
    /// Overall maximum.
    pub max: Option<LoggedValue<u32>>,
    /// Length of a step in nanoseconds.
    pub step_ns: u64,
    /// Start of the first step.
    pub from: MonoNs,
    /// Maximum in each step; `None` without a log line.
    pub steps: Vec<Option<u32>>,
}

impl StateSeries {
    /// Records the number of states at a time.
    fn record_states(&mut self, at: MonoNs, states: u32) {
        if self.max.is_none_or(|max| states > max.value) {
            self.max = Some(LoggedValue { at, value: states });
        }
        if self.steps.is_empty() {
            self.step_ns = FIRST_STEP_NS;
            self.from = at;
        }
        let index = self.step_index_within_limit(at);
        if self.steps.len() <= index {
            self.steps.resize(index + 1, None);
        }
        // `None` is less than any number.
        self.steps[index] = self.steps[index].max(Some(states));
    }

    /// Index of the step with this time. If it is beyond the limit of steps, doubles the length of all steps until it is not.
    fn step_index_within_limit(&mut self, at: MonoNs) -> usize {
        // `since` is 0 for an earlier time, so values before the first count in its step: timestamps may go back slightly.
        let mut index = at.since(self.from) / self.step_ns;
        while index >= MAX_STEPS as u64 {
            self.double_step_length();
            index = at.since(self.from) / self.step_ns;
        }
        index as usize
    }

    /// Joins every two steps into one of twice the length, with the larger maximum of both.
    fn double_step_length(&mut self) {
        let joined = self.steps.chunks(2).map(|pair| pair.iter().copied().flatten().max());
        self.steps = joined.collect();
        self.step_ns = self.step_ns.saturating_mul(2);
    }
}

impl LoggedProcess {
    /// Records the number of requests with state in the process.
    fn record_states(&mut self, at: MonoNs, states: u32) {
        self.states.record_states(at, states);
        // Timestamps of log lines may go back slightly.
        if self.last_states.is_none_or(|last| last.at <= at) {
            self.last_states = Some(LoggedValue { at, value: states });
        }
    }

    /// Records the logged share of one core that the process used, and keeps the highest and the last one.
    fn record_cpu_share(&mut self, at: MonoNs, cpu_share: f64) {
        self.cpu_logged += 1;
        if self.cpu_max.is_none_or(|max| cpu_share > max.value) {
            self.cpu_max = Some(LoggedValue { at, value: cpu_share });
        }
        if self.cpu.is_none_or(|last| last.at <= at) {
            self.cpu = Some(LoggedValue { at, value: cpu_share });
        }
    }

    /// Records that the process says at `at` that it has had no message since `since`. Keeps the longest such silence. `logged_wait_ns`:
    /// how long it has waited for a message, if it says that.
    fn record_message_silence(&mut self, at: MonoNs, since: MonoNs, logged_wait_ns: Option<u64>) {
        // A logged wait dates the last message. Without one, `since` stands for its time.
        let last_message = logged_wait_ns.map_or(since, |ns| MonoNs(at.0.saturating_sub(ns)));
        let mut silence = LoggedSilence { last_message, since, until: at, checks: 1 };
        if let Some(longest) = self.silence {
            // An earlier check may have seen the same silence.
            silence = longest.joined_with(silence).unwrap_or(silence);
            if silence.ns() < longest.ns() {
                return;
            }
        }
        self.silence = Some(silence);
    }

    /// Its last logged `states`, if recent enough to be valid at `at`.
    pub(crate) fn states_at(&self, at: MonoNs) -> Option<u32> {
        self.last_states?.current_at(at)
    }

    /// Its last logged CPU use, if recent enough to be valid at `at`.
    pub(crate) fn cpu_at(&self, at: MonoNs) -> Option<f64> {
        self.cpu?.current_at(at)
    }

    /// Share of received messages after which more were ready.
    pub fn more_share(&self) -> Option<f64> {
        (self.more_logged > 0).then(|| self.more_ready as f64 / self.more_logged as f64)
    }
}

#[derive(Debug, Default)]
pub(super) struct LoggedProcesses {
    pub(super) list: Vec<LoggedProcess>,
}

impl LoggedProcesses {
    /// The process with this name, which is added if unknown; `None` at the limit of processes.
    fn process_or_add(&mut self, process_name: &str) -> Option<&mut LoggedProcess> {
        let known_index = self.list.iter().position(|process| *process.by == *process_name);
        if known_index.is_none() {
            if self.list.len() >= MAX_PROCESSES {
                return None;
            }
            self.list.push(LoggedProcess { by: process_name.into(), ..LoggedProcess::default() });
        }
        // A new one is the last.
        let index = known_index.unwrap_or(self.list.len() - 1);
        self.list.get_mut(index)
    }

    /// Records a line in which a process logs its state.
    pub(super) fn record_state(&mut self, at: MonoNs, logged: &LoggedState<'_>) {
        let Some(process) = self.process_or_add(logged.by) else { return };
        process.messages += u64::from(logged.rids.is_some());
        if let Some(are_more_messages_ready) = logged.more {
            process.more_logged += 1;
            process.more_ready += u64::from(are_more_messages_ready);
        }
        if let Some(since) = logged.unanswered_since {
            process.record_message_silence(at, since, logged.recv_wait_ns);
        } else if let Some(ns) = logged.recv_wait_ns {
            // The message has come, so this wait is over.
            process.recv_wait.record(ns);
        }
        if let Some(states) = logged.states {
            process.record_states(at, states);
        }
        // A log may contain any text that parses as a number.
        if let Some(cpu) = logged.cpu.filter(|cpu| cpu.is_finite()) {
            process.record_cpu_share(at, cpu);
        }
    }

    /// Number of states at `at` of the process with this name. If it logs none, that of the only process that logs states. `None` if there
    /// is no such process, or several.
    pub(super) fn state_count_at(&self, process_name: &str, at: MonoNs) -> Option<u32> {
        let mut logging = self.list.iter().filter(|process| process.last_states.is_some());
        if let Some(process) = logging.clone().find(|process| *process.by == *process_name) {
            return process.states_at(at);
        }
        let only = logging.next()?;
        if logging.next().is_some() {
            return None;
        }
        only.states_at(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn peaks_survive_when_steps_are_merged() {
        let mut states = StateSeries::default();
        for second in 0..1_000 {
            states.record_states(MonoNs(second * SECOND), if second == 777 { 900 } else { 5 });
        }
        assert!(states.steps.len() <= MAX_STEPS && states.step_ns == 8 * SECOND);
        assert_eq!(states.steps[777 / 8], Some(900));
        assert_eq!(states.max, Some(LoggedValue { at: MonoNs(777 * SECOND), value: 900 }));
        assert_eq!(states.steps.iter().flatten().filter(|&&s| s == 900).count(), 1);
    }

    #[test]
    fn failed_health_checks_of_one_silence_are_joined() {
        let mut processes = LoggedProcesses::default();
        let mut check = |at: u64, last: u64| {
            let unanswered_since = Some(MonoNs((at - 20) * SECOND));
            let recv_wait_ns = Some((at - last) * SECOND);
            let logged = LoggedState { by: "a", recv_wait_ns, unanswered_since, ..LoggedState::default() };
            processes.record_state(MonoNs(at * SECOND), &logged);
        };
        check(120, 90);
        check(1_020, 990);
        check(1_050, 991);
        check(2_000, 1_979);
        let silence = processes.list[0].silence.unwrap();
        assert_eq!((silence.since, silence.until, silence.checks), (MonoNs(1_000 * SECOND), MonoNs(1_050 * SECOND), 2));
        assert_eq!((silence.last_message, processes.list[0].recv_wait.count()), (MonoNs(990 * SECOND), 0));
    }

    #[test]
    fn logged_states_expire_and_belong_to_their_process() {
        let mut processes = LoggedProcesses::default();
        let logged = |by, states| LoggedState { by, states: Some(states), ..LoggedState::default() };
        processes.record_state(MonoNs(0), &logged("a", 850));
        assert_eq!(
            processes.state_count_at("elsewhere", MonoNs(SECOND)),
            Some(850),
            "the only process that logs states"
        );
        processes.record_state(MonoNs(SECOND), &logged("b", 10));
        assert_eq!(processes.state_count_at("elsewhere", MonoNs(SECOND)), None);
        assert_eq!(processes.state_count_at("b", MonoNs(2 * SECOND)), Some(10));
        assert_eq!(processes.state_count_at("a", MonoNs(60 * SECOND)), None);
    }
}
