//! One request on its way through both servers of a pair.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::pair::{Pair, PairMoment, PairRow};
use trace::words::{duration, plural};

use super::Clock;
use super::bar::Segment;
use super::ttft::RequestLegLine;

/// A leg with a smaller share of the time to first token is counted with the others like it, so that a request takes few lines.
const SMALLEST_SHARE: f64 = 0.01;

/// A request of both servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairRequestLine {
    /// Its room, as text: JSON numbers are too short; `null` if it was joined by its id.
    pub room: Option<String>,
    /// Its id on the prefill server.
    pub prefill_rid: String,
    /// Its id on the decode server.
    pub decode_rid: String,
    /// Time to first token on the decode server.
    pub ttft_ns: u64,
    /// Its moments since the start of the decode server's capture, negative before it; `null` if unknown.
    pub moments: BTreeMap<String, Option<i64>>,
    /// Why moments are `null`.
    pub absent: BTreeMap<String, String>,
    /// Parts of `ttft_ns`, in order. They sum to it.
    pub legs: Vec<RequestLegLine>,
}

impl PairRequestLine {
    /// The request of a row, with times since `capture_start`; `None` if it is not on a prefill server, or its time to first token is
    /// unknown.
    pub fn new<'a>(pair: &Pair<'a>, row: &PairRow<'a>, capture_start: MonoNs) -> Option<Self> {
        let mut moments = BTreeMap::new();
        let mut absent = BTreeMap::new();
        for moment in PairMoment::ALL {
            let name = moment.as_str().to_owned();
            if let Some(reason) = pair.reason_moment_is_unknown(row, *moment) {
                absent.insert(name.clone(), reason.to_owned());
            }
            moments.insert(name, row.time_of(*moment).map(|at| signed_ns_since(capture_start, at)));
        }
        Some(Self {
            // The number that both servers have for the request.
            room: row.room.map(|room| room.to_string()),
            prefill_rid: row.prefill_rid?.to_owned(),
            decode_rid: row.decode_rid.to_owned(),
            ttft_ns: row.ttft_ns?,
            moments,
            absent,
            legs: row.legs().map(|(leg, ns)| RequestLegLine { name: leg.to_string(), ns }).collect(),
        })
    }

    /// Its legs in order, with their shares in its time to first token.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        let share = |ns: u64| ns as f64 / self.ttft_ns.max(1) as f64;
        self.legs.iter().map(move |leg| Segment { name: leg.name.clone(), share: share(leg.ns) })
    }

    /// Its legs in order, each with its length: `prefill 16.0 ms, transfer 600.0 ms, 9 others 44.0 ms`.
    pub(super) fn describe_legs(&self) -> String {
        let least_ns = SMALLEST_SHARE * self.ttft_ns as f64;
        let (long, short): (Vec<_>, Vec<_>) = self.legs.iter().partition(|leg| leg.ns as f64 >= least_ns);
        let mut parts: Vec<String> = long.iter().map(|leg| format!("{} {}", leg.name, duration(leg.ns))).collect();
        let others_ns: u64 = short.iter().map(|leg| leg.ns).sum();
        if others_ns > 0 {
            parts.push(format!("{} {}", plural(short.len() as u64, "other"), duration(others_ns)));
        }
        parts.join(", ")
    }

    /// When its time to first token began; `-` if it was before the capture.
    pub(super) fn describe_ttft_begin(&self, clock: &Clock) -> String {
        // The time begins with the first known one of these.
        let first_moments = [PairMoment::DecodeArrived, PairMoment::DecodeRead, PairMoment::DecodeRequest];
        let began_ns = first_moments.iter().find_map(|moment| self.moments.get(moment.as_str()).copied().flatten());
        // A negative time is before the capture.
        let began_ns = began_ns.and_then(|ns| u64::try_from(ns).ok());
        began_ns.map_or_else(|| "-".to_owned(), |ns| clock.describe_moment(ns))
    }
}

/// Nanoseconds from `start` to `at`. Negative for a moment before it, such as one on the prefill server before the decode server was
/// observed.
fn signed_ns_since(start: MonoNs, at: MonoNs) -> i64 {
    at.0.cast_signed().wrapping_sub(start.0.cast_signed())
}

/// The requests with the longest times to first token, longest first.
pub(super) fn slowest_requests(pair: &Pair<'_>, capture_start: MonoNs, max_requests: usize) -> Vec<PairRequestLine> {
    let mut rows: Vec<&PairRow<'_>> = pair.joined().filter(|row| row.ttft_ns.is_some()).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.ttft_ns), row.decode_rid));
    rows.truncate(max_requests);
    rows.into_iter().filter_map(|row| PairRequestLine::new(pair, row, capture_start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg(name: &str, ns: u64) -> RequestLegLine {
        RequestLegLine { name: name.to_owned(), ns }
    }

    #[test]
    fn short_legs_are_counted_together_and_nothing_is_left_out() {
        let mut line = PairRequestLine {
            room: None,
            prefill_rid: "p".to_owned(),
            decode_rid: "d".to_owned(),
            ttft_ns: 1_000_000_000,
            moments: BTreeMap::new(),
            absent: BTreeMap::new(),
            legs: vec![leg("socket", 9_000_000), leg("transfer", 981_000_000), leg("output", 10_000_000)],
        };
        assert_eq!(line.describe_legs(), "transfer 981.0 ms, output 10.0 ms, 1 other 9.0 ms");
        assert!((line.segments().map(|part| part.share).sum::<f64>() - 1.0).abs() < 1e-9);
        line.legs[0].ns = 0;
        assert_eq!(line.describe_legs(), "transfer 981.0 ms, output 10.0 ms");
        (line.ttft_ns, line.legs) = (0, Vec::new());
        assert_eq!((line.describe_legs(), line.segments().count()), (String::new(), 0));
    }
}
