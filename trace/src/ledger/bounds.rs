//! Memory limits of the ledger by name. Findings use the same names.

use super::limits::Limits;

/// One memory limit.
#[derive(Debug)]
pub struct Bound {
    /// Field name in [`Limits`].
    pub name: &'static str,
    /// Name of the limited resource.
    pub about: &'static str,
    at: fn(&mut Limits) -> &mut usize,
}

macro_rules! bounds {
    ($($name:ident: $about:literal,)*) => {
        &[$(Bound { name: stringify!($name), about: $about, at: |limits| &mut limits.$name }),*]
    };
}

/// All memory limits except `live_rids` and `finished_kept`, which have their own flags in every command.
pub const BOUNDS: &[Bound] = bounds! {
    rid_bytes: "bytes of rids of requests that are remembered",
    hops: "hops",
    lanes_per_hop: "connections of one hop",
    pending_frames: "frames sent and not yet taken",
    pending_chunks: "chunks in them",
    early_takes: "takes told before their sends, of one hop",
    outstanding_per_rid: "chunks sent and not yet delivered, of one request",
    outstanding: "the same of all requests",
    passing_per_rid: "chunks inside one process between two hops, of one request",
    passing: "the same of all requests",
    lost_ranges_per_rid: "ranges of lost tokens of one request",
    lost_ranges: "the same of all requests",
    lossy_kept: "requests that are over and lost tokens",
    token_ids: "token ids kept of undelivered and lost chunks",
    threads: "threads of the engine",
    hot_functions: "sampled functions of one role",
    samples_per_taker: "CPU samples of one thread that takes frames",
    series_slots: "slots of the run's course",
};

impl Bound {
    /// Limit with that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        BOUNDS.iter().find(|bound| bound.name == name)
    }

    /// Value of the limit.
    pub fn get(&self, mut limits: Limits) -> usize {
        *(self.at)(&mut limits)
    }

    /// Sets the limit.
    pub fn set(&self, limits: &mut Limits, most: usize) {
        *(self.at)(limits) = most;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ReachedCounts;
    use super::*;

    #[test]
    fn every_limit_that_a_report_names_can_be_set_by_that_name() {
        let limits = Limits::default();
        for reached in ReachedCounts::default().list(&limits) {
            let known = Bound::named(reached.name).map(|bound| bound.get(limits));
            assert!(
                known == Some(reached.limit) || reached.name == "live_rids",
                "{reached:?}"
            );
        }
    }

    #[test]
    fn a_bound_that_is_set_changes_nothing_else() {
        for (place, bound) in BOUNDS.iter().enumerate() {
            let mut limits = Limits::default();
            bound.set(&mut limits, 7);
            let changed = BOUNDS
                .iter()
                .enumerate()
                .filter(|(_, b)| b.get(limits) != b.get(Limits::default()));
            assert_eq!(changed.map(|(at, _)| at).collect::<Vec<_>>(), [place], "{}", bound.name);
        }
    }
}
