//! Delivers observations of the shared ring to the runs of the engines.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use probe_user::discover::ProcessId;
use probe_user::{Loss, Observation};
use trace::MonoNs;

use super::found_engine::EngineTraits;
use super::inbox::{Inbox, RunId};

/// Time in which a run must have had observations to have a share of lost ones.
pub(super) const LOSS_WINDOW: Duration = Duration::from_secs(1);

/// Numbers of observations that one read of the ring returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadCounts {
    pub(super) own: usize,
    /// Copied into the inboxes of other runs.
    pub(super) of_others: usize,
    /// The time was over before all were read.
    pub(super) has_unread: bool,
    /// Time of the last one.
    pub(super) last_at: Option<MonoNs>,
}

/// Numbers of observations in this [`LOSS_WINDOW`] and in the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecentTraffic {
    current: u64,
    last: u64,
}

impl RecentTraffic {
    /// Begins the next window.
    pub(super) fn begin_window(&mut self) {
        *self = Self { current: 0, last: self.current };
    }

    fn observations(self) -> u64 {
        self.current + self.last
    }
}

/// A run of a node.
pub(super) struct RunEntry {
    /// Unique name.
    pub(super) name: String,
    /// Its engine as last found; `None` before the first.
    pub(super) engine: Option<EngineTraits>,
    /// It waits for an engine of its name.
    pub(super) is_waiting: bool,
    pub(super) inbox: Inbox,
    pub(super) traffic: RecentTraffic,
}

/// Runs that receive the observations of a process.
pub(super) struct Receivers {
    /// The pid may be reused.
    pub(super) process: ProcessId,
    pub(super) runs: Vec<RunId>,
}

/// Delivers observations to the runs that receive them.
pub(super) struct Delivery<'d> {
    /// The run that reads.
    pub(super) run: RunId,
    pub(super) runs: &'d mut BTreeMap<RunId, RunEntry>,
    pub(super) receivers: &'d HashMap<u32, Receivers>,
    pub(super) counts: &'d mut ReadCounts,
    pub(super) emit: &'d mut dyn FnMut(&Observation<'_>),
}

impl Delivery<'_> {
    /// Passes an observation from the shared ring on to the runs that receive the observations of its process. Each run watches one engine.
    /// A frontend of two engines has two receivers.
    pub(super) fn deliver_observation(&mut self, observation: &Observation<'_>) {
        if let Some(at) = time_of_observation(observation) {
            self.counts.last_at = Some(at);
        }
        // The only run receives everything, also of processes that it does not know yet.
        if let Some(only_run) = self.only_run() {
            return self.emit_or_copy_to_inbox(only_run, observation);
        }
        // Lost observations may be of any process, so several runs share them.
        if let Observation::Lost { cause, count } = observation {
            return self.share_losses_among_runs(*cause, *count);
        }
        // Only losses have no process.
        let Some(pid) = pid_of_observation(observation) else { return };
        // Copies the reference, because `emit_or_copy_to_inbox` borrows `self`.
        let all_receivers = self.receivers;
        // No run has asked for the observations of any other process.
        let Some(receivers) = all_receivers.get(&pid) else { return };
        for run in &receivers.runs {
            self.emit_or_copy_to_inbox(*run, observation);
        }
    }

    /// The run of the node, if there is exactly one.
    #[inline]
    fn only_run(&self) -> Option<RunId> {
        if self.runs.len() == 1 { self.runs.first_key_value().map(|(run, _)| *run) } else { None }
    }

    /// Emits an observation if its receiver is the run that reads the ring now. Otherwise copies it into the inbox of its receiver, which
    /// reads it later.
    fn emit_or_copy_to_inbox(&mut self, receiver: RunId, observation: &Observation<'_>) {
        let Some(entry) = self.runs.get_mut(&receiver) else { return };
        let is_loss = matches!(observation, Observation::Lost { .. });
        // Losses are divided by this count, so they do not count themselves.
        if !is_loss {
            entry.traffic.current += 1;
        }
        if receiver == self.run {
            self.counts.own += 1;
            (self.emit)(observation);
        } else {
            self.counts.of_others += 1;
            entry.inbox.push_copy(observation);
        }
    }

    /// Divides `count` lost observations among the runs in proportion to their recent traffic, because the kernel side knows only the
    /// total. A run whose share is 0 gets a loss of 0, because it may have lost some nevertheless.
    fn share_losses_among_runs(&mut self, cause: Loss, count: u64) {
        let mut observing_runs = Vec::new();
        let mut weights = Vec::new();
        for (run, entry) in &*self.runs {
            // A run that waits for an engine misses nothing, unless it still reads the observations of the last one.
            let is_observing = !entry.is_waiting || *run == self.run;
            if is_observing {
                observing_runs.push(*run);
                weights.push(entry.traffic.observations());
            }
        }
        for (run, share) in observing_runs.into_iter().zip(divide_by_weight(count, &weights)) {
            self.emit_or_copy_to_inbox(run, &Observation::Lost { cause, count: share });
        }
    }
}

/// Divides `count` in proportion to the weights, or equally if all are 0. Returns a share for each weight; their sum is `count`.
fn divide_by_weight(count: u64, weights: &[u64]) -> Vec<u64> {
    let are_all_zero = weights.iter().all(|weight| *weight == 0);
    let equal_weights = vec![1; weights.len()];
    let weights = if are_all_zero { &equal_weights } else { weights };
    let mut count_left = count;
    let mut weight_left: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut shares = Vec::new();
    for weight in weights {
        let weight = u128::from(*weight);
        // A share of what is left, not of the total: the last weight above 0 takes all of the rest, so that rounding loses none.
        let share = (u128::from(count_left) * weight / weight_left.max(1)) as u64;
        count_left -= share;
        weight_left -= weight;
        shares.push(share);
    }
    shares
}

/// The process that an observation is of; `None` for lost ones, which may be of any.
fn pid_of_observation(observation: &Observation<'_>) -> Option<u32> {
    match observation {
        Observation::Sent(message) | Observation::Received(message) => Some(message.call.socket.pid),
        Observation::Unsent(call) | Observation::Processed(call) | Observation::Returned(call) => Some(call.socket.pid),
        Observation::Egress { pid, .. } | Observation::Exited { pid } => Some(*pid),
        Observation::Lost { .. } => None,
    }
}

/// Time of the observed call, by the kernel's monotonic clock; `None` for exits and losses.
pub(super) fn time_of_observation(observation: &Observation<'_>) -> Option<MonoNs> {
    match observation {
        Observation::Sent(message) | Observation::Received(message) => Some(message.call.at),
        Observation::Unsent(call) | Observation::Processed(call) | Observation::Returned(call) => Some(call.at),
        Observation::Egress { record, .. } => Some(MonoNs(record.head.at_ns)),
        Observation::Exited { .. } | Observation::Lost { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of_shares(count: u64, weights: &[u64]) -> u64 {
        divide_by_weight(count, weights).iter().sum()
    }

    #[test]
    fn lost_observations_are_shared_out_by_traffic_and_add_up() {
        assert_eq!(divide_by_weight(1_000, &[0, 300, 100]), [0, 750, 250]);
        assert_eq!(sum_of_shares(2, &[1, 1, 1]), 2);
        assert_eq!(sum_of_shares(u64::MAX, &[u64::MAX, u64::MAX]), u64::MAX);
        assert_eq!(divide_by_weight(7, &[0, 0]), [3, 4]);
        assert_eq!(divide_by_weight(7, &[]), [0; 0]);
    }
}
