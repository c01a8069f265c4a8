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
    rid_bytes: "bytes of request ids kept in memory",
    hops: "hops",
    lanes_per_hop: "connections of one hop",
    pending_frames: "frames sent and not yet received",
    pending_chunks: "chunks in frames sent and not yet received",
    early_receives: "receives observed before their sends, of one hop",
    in_flight_per_rid: "chunks sent and not yet delivered, of one request",
    in_flight: "chunks sent and not yet delivered, of all requests",
    in_process_per_rid: "chunks inside one process between two hops, of one request",
    in_process: "chunks inside processes between two hops, of all requests",
    lost_ranges_per_rid: "ranges of lost tokens of one request",
    lost_ranges: "the same of all requests",
    lossy_requests: "finished requests with lost tokens",
    token_ids: "token ids kept of undelivered and lost chunks",
    threads: "threads of the engine",
    stack_functions: "sampled functions of one role",
    samples_per_receiver: "CPU samples of one receiving thread",
    series_slots: "slots of the run's time series",
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
    pub fn set(&self, limits: &mut Limits, value: usize) {
        *(self.at)(limits) = value;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ReachedCounts;
    use super::*;

    #[test]
    fn every_reported_limit_can_be_set_by_its_name() {
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
    fn setting_a_limit_changes_no_other() {
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
