//! Invariant of every report: each chunk sent is counted exactly once as delivered, merged, lost, in flight or unjudged.

use super::Ledger;

impl Ledger {
    /// Checks in debug builds that the ledger's sums agree.
    ///
    /// # Panics
    /// In debug builds, if it does not hold.
    pub fn debug_check_balance(&self) {
        if cfg!(debug_assertions)
            && self.is_checked
            && let Err(what) = self.check_balance()
        {
            panic!("the ledger does not balance: {what}");
        }
    }

    /// Checks the sums over hops, groups and requests.
    ///
    /// # Errors
    /// The first sum that does not hold, with its terms.
    pub fn check_balance(&self) -> Result<(), String> {
        self.check_tracked_chunks()?;
        self.check_live_requests()?;
        let waiting: u64 = self.hops.all.iter().map(|hop| hop.counts.backlog).sum();
        let by_group = self.hops.groups.iter().map(|group| group.backlog).sum();
        check_equal("frames that wait, by hop and by line", waiting, by_group)
    }

    /// Checks that each chunk with an expected delivery has an outcome, is in flight, or belongs to a closed request.
    fn check_tracked_chunks(&self) -> Result<(), String> {
        let chunks = self.totals.chunks;
        let on_hops: u64 = self.hops.all.iter().map(|hop| hop.tracked_chunks).sum();
        check_equal("chunks expected, by hop and in total", on_hops, chunks.tracked)?;
        for hop in self.hops.all.iter().filter(|hop| hop.tracks_deliveries) {
            let expected = hop.counts.chunks - hop.untracked_chunks;
            check_equal("chunks sent on a hop and expected", expected, hop.tracked_chunks)?;
        }
        let mut in_flight = 0;
        for tracker in self.table.iter().filter_map(|request| request.tracker.as_ref()) {
            if !tracker.is_balanced() {
                return Err(format!("chunks of a request: {tracker:?}"));
            }
            in_flight += tracker.chunks_in_flight;
        }
        // `undelivered` counts those of requests that were closed before a delivery.
        let settled = chunks.outcomes.chunks() + in_flight + chunks.undelivered;
        check_equal("chunks expected and their outcomes", chunks.tracked, settled)
    }

    /// Checks that the number of live requests is that of the records.
    fn check_live_requests(&self) -> Result<(), String> {
        let live = self.table.iter().filter(|request| request.is_mapped && request.finish.is_none()).count() as u64;
        let ending = self.table.iter().filter(|request| request.is_end_in_transit).count() as u64;
        // A finished request counts as live until its end has reached the tokenizer.
        check_equal("live requests, one by one and counted", live + ending, self.live_count())
    }
}

fn check_equal(what: &str, one: u64, other: u64) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{what}: {one} and {other}")) }
}
