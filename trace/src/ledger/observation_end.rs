//! Stages that ceased to be observed: their receiver has exited, or is not watched any more. What follows is unknown.

use super::{Hop, Ledger, Thread};
use crate::clock::MonoNs;
use crate::stats::WINDOW_NS;

/// Stages of the hops of one name that are not observed any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservationEnd {
    /// `receives`, `deliveries`, or both.
    pub stages: &'static str,
    /// Name of the hops.
    pub hop: Box<str>,
    /// Since when.
    pub at: MonoNs,
}

/// When a stage ceased to be observed on the last of these hops. `None` while it is observed on any of them, and if it never was.
/// `is_observed`: whether the stage is observed on a hop. `end_of`: when it ceased to be observed there.
fn last_observation_end<'a>(
    hops: impl Iterator<Item = &'a Hop> + Clone,
    is_observed: fn(&Hop) -> bool,
    end_of: fn(&Hop) -> Option<MonoNs>,
) -> Option<MonoNs> {
    if hops.clone().any(is_observed) {
        return None;
    }
    hops.filter_map(end_of).max()
}

fn receives_end<'a>(hops: impl Iterator<Item = &'a Hop> + Clone) -> Option<MonoNs> {
    last_observation_end(hops, |hop| hop.shows.received, |hop| hop.receives_end)
}

fn deliveries_end<'a>(hops: impl Iterator<Item = &'a Hop> + Clone) -> Option<MonoNs> {
    last_observation_end(hops, |hop| hop.shows.delivered, |hop| hop.deliveries_end)
}

impl Ledger {
    /// When the receives of this group ceased to be observed; `None` while they are, and if none was.
    pub fn group_receives_end(&self, group: usize) -> Option<MonoNs> {
        receives_end(self.hops.all.iter().filter(|hop| hop.group == group))
    }

    /// When the tokenizer's receives, without which no gap is known, ceased to be observed; `None` while they are, and if none was.
    pub fn receives_end(&self) -> Option<MonoNs> {
        receives_end(self.hops.all.iter().filter(|hop| hop.last))
    }

    /// When deliveries to clients ceased to be observed; `None` while they are, and if none was.
    pub fn deliveries_end(&self) -> Option<MonoNs> {
        deliveries_end(self.hops.all.iter()).filter(|_| self.totals.tokens.delivered > 0)
    }

    /// Until when the scheduler's sends are known, once receives of its output are not observed any more: until the last receive or the
    /// last sample of its threads. A sender that is not sampled any more has exited or is not watched. `None` if its threads were never
    /// sampled, and if something was sent later.
    pub(crate) fn sends_known_until(&self) -> Option<MonoNs> {
        let receives_end = receives_end(self.hops.all.iter().filter(|hop| !hop.carries_requests))?;
        let senders = self.threads().iter().filter(|thread| self.is_scheduler_role(&thread.role));
        let sampled_at = senders.filter_map(Thread::last_sample_at).max()?;
        let end = receives_end.max(sampled_at);
        if self.was_sent_after(end) { None } else { Some(end) }
    }

    /// Whether a hop begins at processes of this role whose sends are the scheduler's.
    fn is_scheduler_role(&self, role: &str) -> bool {
        let mut origins = self.hops.all.iter().filter(|hop| hop.origin);
        origins.any(|hop| *self.groups()[hop.group].ends.from == *role)
    }

    /// When the scheduler's sends ceased to be observed; `None` while they are.
    pub fn sends_end(&self) -> Option<MonoNs> {
        /// Time of two samples: threads are sampled each second.
        const UNSAMPLED_NS: u64 = 2_000_000_000;
        self.sends_known_until().filter(|end| self.now.since(*end) >= UNSAMPLED_NS)
    }

    /// Whether a frame of the output was sent after this time.
    pub fn was_sent_after(&self, at: MonoNs) -> bool {
        self.output_groups().any(|(_, group)| group.last_frame_at > Some(at))
    }

    /// Stages that are not observed any more, by group of hops. A group counts only if the run has gone on since then: frames were sent, or
    /// ten seconds have passed. If observations end together with the run, nothing is left unobserved.
    pub fn observation_ends(&self) -> Vec<ObservationEnd> {
        let mut ends = Vec::new();
        for (index, group) in self.groups().iter().enumerate() {
            let receives_end = self.group_receives_end(index);
            let deliveries_end = self.group_deliveries_end(index);
            // If both have ended, the time is that of the receives.
            let Some(at) = receives_end.or(deliveries_end) else { continue };
            let stages = match (receives_end, deliveries_end) {
                (Some(_), Some(_)) => "receives and deliveries",
                (Some(_), None) => "receives",
                (None, _) => "deliveries",
            };
            let has_run_on = self.was_sent_after(at) || self.now.since(at) >= WINDOW_NS;
            if has_run_on {
                ends.push(ObservationEnd { stages, hop: group.name.as_str().into(), at });
            }
        }
        ends
    }

    /// When the deliveries of this group ceased to be observed; `None` while they are, and if none was.
    fn group_deliveries_end(&self, group_index: usize) -> Option<MonoNs> {
        // Where no delivery was ever observed, none has ceased to be.
        if self.totals.tokens.delivered == 0 {
            return None;
        }
        deliveries_end(self.hops.all.iter().filter(|hop| hop.group == group_index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Analysis, Config};
    use crate::event::{self, Capabilities, Chunk, CpuSample, Event, Frame, Received, What};
    use crate::id::{FrameId, HopId, ThreadId};

    const SECOND: u64 = 1_000_000_000;

    fn apply(analysis: &mut Analysis, at: u64, what: What<'_>) {
        analysis.apply(&Event::new(MonoNs(at), what));
    }

    fn announce(analysis: &mut Analysis, at: u64, shown: Capabilities) {
        let hop = event::Hop { origin: true, ..event::Hop::only(HopId(0), "scheduler->tokenizer", shown) };
        apply(analysis, at, What::Hop(hop));
    }

    /// A run whose receiver is not watched any more after three seconds, and whose scheduler is sampled until then or longer.
    fn run_until(last_sample: u64, end: u64) -> Analysis {
        let mut analysis = Analysis::new(Config::default());
        let frame = FrameId::new(HopId(0), 0, 0);
        announce(&mut analysis, 0, Capabilities::SENT | Capabilities::RECEIVED);
        apply(&mut analysis, 10, What::Sent(Frame::token_ids(frame, 100, &[Chunk::counted("a", 1, 1)])));
        apply(&mut analysis, 20, What::Received(Received::in_wakeup(frame, 0)));
        let scheduler = ThreadId { pid: 7, tid: 7 };
        for second in 1..=last_sample {
            let at = second * SECOND + SECOND / 2;
            if second == 3 {
                announce(&mut analysis, at, Capabilities::SENT);
            }
            apply(&mut analysis, at, What::Cpu(CpuSample::new(scheduler, "scheduler", SECOND, 0)));
        }
        for second in last_sample + 1..=end {
            analysis.tick(MonoNs(second * SECOND));
        }
        analysis
    }

    #[test]
    fn sends_are_unknown_once_neither_the_sender_is_sampled_nor_a_receiver_is_watched() {
        assert_eq!(run_until(2, 9).ledger().sends_end(), None, "the receiver is watched");
        assert_eq!(run_until(4, 5).ledger().sends_end(), None, "the next sample may come");
        assert_eq!(run_until(9, 9).ledger().sends_end(), None, "an idle scheduler is sampled");
        let ended = run_until(4, 9);
        assert_eq!(ended.ledger().sends_end(), Some(MonoNs(4 * SECOND + SECOND / 2)));
        let slots = ended.time_series().all_slots(ended.ledger());
        let are_unknown: Vec<bool> = slots.iter().map(|slot| slot.sends_ended).collect();
        assert_eq!(are_unknown, [false, false, false, false, false, true, true, true, true]);
    }
}
