//! A pair in words: its servers, and the requests that only one of them has.

use trace::words::{count, duration, plural};

use super::hostile::escape_and_cut_line as escape_line;
use super::pair::{AbsentMomentLine, PairReport, PrefillServerLine};

impl PairReport {
    /// Its servers and their requests, as one paragraph each.
    pub(super) fn describe_in_paragraphs(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.prefill.iter().map(PrefillServerLine::describe).collect();
        if let Some(limit) = self.newest_finished {
            lines.push(format!(
                "of the newest {} finished requests of each server, and the unfinished ones",
                count(limit)
            ));
        }
        if self.requests_evicted > 0 {
            let evicted = plural(self.requests_evicted, "request");
            lines.push(format!("without {evicted} that are no longer kept (`--max-finished`)"));
        }
        lines.extend(self.describe_requests_of_one_server());
        lines
    }

    /// Numbers of the requests that were found on one server only; `None` if there are none, or if it is not known.
    fn describe_requests_of_one_server(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(requests) = self.decode_only
            && requests > 0
        {
            parts.push(format!("{} only on this server", count(requests)));
        }
        if let Some(requests) = self.prefill_only
            && requests > 0
        {
            parts.push(format!("{} only on the prefill server", count(requests)));
        }
        if parts.is_empty() { None } else { Some(format!("requests of one server: {}", parts.join(", "))) }
    }

    /// Moments that are not known, those with one reason together: `of 12 requests: prefill_queued, prefill_started (reason)`.
    pub(super) fn describe_absent_moments(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for group in self.absent.chunk_by(AbsentMomentLine::has_same_reason) {
            let Some(first) = group.first() else { continue };
            let moments: Vec<&str> = group.iter().map(|absent| absent.moment.as_str()).collect();
            lines.push(format!("of {}: {} ({})", plural(first.requests, "request"), moments.join(", "), first.reason));
        }
        lines
    }
}

impl AbsentMomentLine {
    /// Whether both moments are absent for the same reason of the same number of requests.
    fn has_same_reason(&self, other: &Self) -> bool {
        self.requests == other.requests && self.reason == other.reason
    }
}

impl PrefillServerLine {
    /// The server, its number of requests, the accuracy of its times, and the verdict of its own report.
    fn describe(&self) -> String {
        let verdict = self.verdict.as_deref().map_or_else(String::new, |verdict| format!("; its report: {verdict}"));
        let name = escape_line(&self.name);
        let requests = plural(self.requests, "request");
        format!("prefill server {name}: {requests}, {}{verdict}", self.describe_clock_accuracy())
    }
    /// How exactly its times can be compared with the decode server's.
    fn describe_clock_accuracy(&self) -> String {
        let mut words = match self.clock.as_str() {
            "same" => String::from("times exact (one host)"),
            "drifting" => String::from("times not compared: the clocks of the two hosts drift apart"),
            _ => self.describe_clock_error(),
        };
        if self.clock_contradictions > 0 {
            let times = plural(self.clock_contradictions, "pair");
            append!(words, ", without {times} of messages in an order that no such clock allows");
        }
        words
    }

    /// Error of times of two hosts, whose clocks are a constant time apart.
    fn describe_clock_error(&self) -> String {
        let Some(error_ns) = self.clock_uncertainty_ns else {
            return String::from("times of two hosts, by their wall clocks, with unknown error");
        };
        let mut words = format!("times of two hosts, exact to {}", duration(error_ns));
        if let Some(difference_ns) = self.wall_clock_error_ns {
            append!(words, " (their wall clocks differ by {} or more)", duration(difference_ns));
        }
        words
    }
}
