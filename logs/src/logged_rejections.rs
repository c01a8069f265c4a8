//! Requests that access lines say were rejected. Such a line names neither its request nor its server, and a router logs the same line as
//! the server behind it. They are counted if all lines that were read are of one engine, which is known only at the end.

use std::collections::BTreeSet;

use super::import_stats::ImportStats;

/// Longest address that is kept, in bytes.
const MAX_ADDRESS_BYTES: usize = 256;

/// A request that was answered with an error status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedRejection {
    pub(super) at_ns: u64,
    pub(super) status: u16,
}

/// The rejected requests of all lines so far.
#[derive(Debug)]
pub(super) struct LoggedRejections {
    list: Vec<LoggedRejection>,
    max: usize,
    /// Number of those beyond the limit.
    beyond_limit: u64,
    /// The first two addresses that servers serve, by these logs.
    addresses: BTreeSet<Box<str>>,
    has_several_logs: bool,
}

impl LoggedRejections {
    /// An empty list for at most `max` rejections.
    pub(super) fn new(max: usize, has_several_logs: bool) -> Self {
        Self { list: Vec::new(), max, beyond_limit: 0, addresses: BTreeSet::new(), has_several_logs }
    }

    /// Keeps a rejected request. Beyond the limit, only counts it.
    pub(super) fn add_rejection(&mut self, rejection: LoggedRejection) {
        if self.list.len() < self.max {
            self.list.push(rejection);
        } else {
            self.beyond_limit += 1;
        }
    }

    /// Adds the address that a server serves.
    pub(super) fn add_address(&mut self, address: &str) {
        // A second address is enough to show that there are several servers.
        if self.addresses.len() < 2 && address.len() <= MAX_ADDRESS_BYTES {
            self.addresses.insert(address.into());
        }
    }

    /// Returns a reason to doubt that the server of one engine wrote all lines; `None` without a doubt.
    fn reason_to_doubt_one_engine(&self, is_engine_known: bool) -> Option<&'static str> {
        if self.has_several_logs {
            Some("several logs were read")
        } else if self.addresses.len() > 1 {
            Some("servers at several addresses wrote this log")
        } else if !is_engine_known {
            Some("no other line is an engine's")
        } else if self.beyond_limit > 0 {
            Some("they are more than are held (--max-held)")
        } else {
            None
        }
    }

    /// Removes and returns the rejected requests, and counts them in `stats`. If they may be of several engines or of none, returns an
    /// empty list and keeps the reason in `stats`. `is_engine_known`: another line of the log is surely an engine's.
    pub(super) fn take_and_count_if_of_one_engine(
        &mut self,
        is_engine_known: bool,
        stats: &mut ImportStats,
    ) -> Vec<LoggedRejection> {
        let rejections = std::mem::take(&mut self.list);
        // Rejections beyond the limit were counted but not kept.
        let lines = rejections.len() as u64 + self.beyond_limit;
        if lines == 0 {
            return rejections;
        }
        match self.reason_to_doubt_one_engine(is_engine_known) {
            None => {
                stats.rejected += lines;
                rejections
            }
            Some(why) => {
                stats.rejected_uncounted += lines;
                stats.rejected_uncounted_why = Some(why);
                Vec::new()
            }
        }
    }
}
