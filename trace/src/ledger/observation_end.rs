//! Stages that ceased to be observed: their receiver has exited, or is not watched any more. What follows is unknown.

use super::{Hop, Ledger};
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

/// When the last of these hops ceased to be observed; `None` while one of them is observed, and if none ever was. `end`: when a hop ceased
/// to be observed.
fn last_observation_end<'a>(
    hops: impl Iterator<Item = &'a Hop> + Clone,
    is_observed: fn(&Hop) -> bool,
    end: fn(&Hop) -> Option<MonoNs>,
) -> Option<MonoNs> {
    if hops.clone().any(is_observed) {
        return None;
    }
    hops.filter_map(end).max()
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

    /// Whether a frame of the output was sent after this time.
    pub fn was_sent_after(&self, at: MonoNs) -> bool {
        self.output_groups().any(|(_, group)| group.last_frame_at > Some(at))
    }

    /// Groups with stages that are not observed any more, if the run has gone on since then: frames were sent, or ten seconds have passed. An engine
    /// that ends together with its run has left nothing unobserved.
    pub fn observation_ends(&self) -> Vec<ObservationEnd> {
        let groups = self.groups().iter().enumerate();
        let ends = groups.filter_map(|(index, group)| {
            let receives = self.group_receives_end(index);
            let deliveries = deliveries_end(self.hops.all.iter().filter(|hop| hop.group == index));
            // Where none was ever observed, none has ceased to be.
            let deliveries = if self.totals.tokens.delivered > 0 { deliveries } else { None };
            let stages = match (receives, deliveries) {
                (Some(_), Some(_)) => "receives and deliveries",
                (Some(_), None) => "receives",
                // If both are `None`, the next line leaves.
                (None, _) => "deliveries",
            };
            let at = receives.or(deliveries)?;
            let has_run_on = self.was_sent_after(at) || self.now.since(at) >= WINDOW_NS;
            has_run_on.then(|| ObservationEnd { stages, hop: group.name.as_str().into(), at })
        });
        ends.collect()
    }
}
