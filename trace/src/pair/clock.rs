//! The clocks of the two servers of a pair.

use super::moment::PairMoment::{
    Allocated, DecodeBatch, DecodeFrame, DecodeQueued, PrefillEnded, PrefillFrame, PrefillQueued, PrefillStarted,
    Transferred,
};
use super::request::ServerRequest;
use crate::clock::{Anchor, MonoNs};

/// Anchors of recordings of one boot differ by less: their wall clock was not set meanwhile.
const SAME_CLOCK_NS: u64 = 50_000_000;
/// On one host the order of moments is wrong by less: the engine's own times are converted from its clock.
const SAME_CLOCK_ERROR_NS: i64 = 1_000_000;

/// What is known of the clocks before requests are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairClocks {
    /// One host: both use one clock, unless their messages contradict that.
    Same,
    /// Two hosts, whose wall clocks say that the decode server's clock is ahead by this much.
    ByWallClock {
        /// In nanoseconds; negative if it is behind.
        ahead_ns: i64,
    },
}

impl PairClocks {
    /// Relates the clocks of two recordings by their anchors. An anchor is a reading of the monotonic and the wall clock at the same
    /// instant. If both monotonic clocks began at the same wall-clock time, as on one host, they are the same clock.
    pub fn of_anchors(prefill: Anchor, decode: Anchor) -> Self {
        // The monotonic clock of a host that booted later is behind.
        let ahead_ns = mono_start_ns(prefill) - mono_start_ns(decode);
        if ahead_ns.unsigned_abs() <= u128::from(SAME_CLOCK_NS) {
            return Self::Same;
        }
        // In a damaged recording, the difference may be too large for the type of the result.
        let limit = i128::from(i64::MAX / 2);
        Self::ByWallClock { ahead_ns: ahead_ns.clamp(-limit, limit) as i64 }
    }
}

/// How times of the prefill server are compared with those of the decode server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockUse {
    /// Exactly: both use one clock.
    Same,
    /// The decode server's clock is ahead.
    Offset {
        /// By this much, in nanoseconds.
        ahead_ns: i64,
        /// Maximum error of that, from the order of messages; `None` if no messages bound it on both sides.
        uncertainty_ns: Option<u64>,
        /// The wall clocks contradict the order of the messages by this much.
        wall_error_ns: u64,
        /// Number of limits, each from two messages of a request, that contradict it. They are too few to prove that the clocks drift
        /// apart.
        contradictions: u64,
    },
    /// Not at all: the order of the messages of many requests contradicts every offset, by up to this much, so that the clocks drift apart.
    Drifting {
        /// In nanoseconds.
        by_ns: u64,
    },
}

impl ClockUse {
    /// Converts a time of the prefill server to the decode server's clock; `None` if the clocks drift apart, or the result is out of range.
    pub(super) fn convert_to_decode_clock(self, at: MonoNs) -> Option<MonoNs> {
        match self {
            Self::Same => Some(at),
            Self::Offset { ahead_ns, .. } => at.0.checked_add_signed(ahead_ns).map(MonoNs),
            Self::Drifting { .. } => None,
        }
    }

    /// How far the decode server's clock is ahead of the prefill server's, in nanoseconds; `None` if the clocks drift apart.
    pub fn ahead_ns(self) -> Option<i64> {
        match self {
            Self::Same => Some(0),
            Self::Offset { ahead_ns, .. } => Some(ahead_ns),
            Self::Drifting { .. } => None,
        }
    }

    /// Maximum error of a time that [`Self::convert_to_decode_clock`] converted, in nanoseconds; `None` if it is unknown.
    pub fn uncertainty_ns(self) -> Option<u64> {
        match self {
            Self::Same => Some(0),
            Self::Offset { uncertainty_ns, .. } => uncertainty_ns,
            Self::Drifting { .. } => None,
        }
    }
}

/// Of fewer contradictory limits than this share of the requests, the others are right: an attempt may have got a message of another one.
const MAX_CONTRADICTIONS: f64 = 0.05;

/// Limits of the decode server's lead, from the order of messages.
#[derive(Clone, Debug, Default)]
pub(super) struct ClockBounds {
    /// Lower limits.
    lower_limits_ns: Vec<i64>,
    /// Upper limits.
    upper_limits_ns: Vec<i64>,
    /// Requests that set a limit.
    requests: u64,
    /// Those whose limits exclude that both servers have one clock.
    requests_of_two_clocks: u64,
}

/// Limits that do not contradict each other.
#[derive(Clone, Copy, Debug)]
struct AgreedLimits {
    least_ns: Option<i64>,
    most_ns: Option<i64>,
    /// Number of limits that contradict these.
    contradictions: u64,
}

impl ClockBounds {
    /// Adds the limits that one request sets for the lead of the decode server's clock, which is how far it is ahead of the prefill
    /// server's. The limits follow from the order of the request's moments on both servers.
    pub(super) fn add_limits_of_request(&mut self, prefill: &ServerRequest<'_>, decode: &ServerRequest<'_>) {
        let least_ns = least_decode_clock_lead_ns(prefill, decode);
        let most_ns = greatest_decode_clock_lead_ns(prefill, decode);
        let sets_limit = least_ns.is_some() || most_ns.is_some();
        // If both servers had the same clock, the lead would be 0, except for the error of the engine's own times.
        let excludes_lead_of_zero = least_ns.is_some_and(|least_ns| least_ns > SAME_CLOCK_ERROR_NS)
            || most_ns.is_some_and(|most_ns| most_ns < -SAME_CLOCK_ERROR_NS);
        self.lower_limits_ns.extend(least_ns);
        self.upper_limits_ns.extend(most_ns);
        self.requests += u64::from(sets_limit);
        self.requests_of_two_clocks += u64::from(excludes_lead_of_zero);
    }

    /// Returns the strictest limits of the lead, which is how far the decode server's clock is ahead of the prefill server's. Each request
    /// sets a lower or an upper limit, or both. The strictest are the greatest lower and the smallest upper limit. If limits contradict
    /// each other, returns the limits around the lead that contradicts the fewest.
    fn sort_and_find_agreed_limits(&mut self) -> AgreedLimits {
        // The functions called below need sorted limits.
        self.lower_limits_ns.sort_unstable();
        self.upper_limits_ns.sort_unstable();
        let strictest = AgreedLimits {
            least_ns: self.lower_limits_ns.last().copied(),
            most_ns: self.upper_limits_ns.first().copied(),
            contradictions: 0,
        };
        if !self.are_contradictory() {
            return strictest;
        }
        // The lead is itself one of the lower limits. There is one, because limits contradict each other.
        let Some(lead_ns) = self.least_contradicted_lead() else { return strictest };
        // The smallest upper limit that this lead does not exceed.
        let most_ns = self.upper_limits_ns.iter().copied().find(|most_ns| *most_ns >= lead_ns);
        AgreedLimits {
            least_ns: Some(lead_ns),
            most_ns,
            contradictions: self.count_limits_contradicting(lead_ns) as u64,
        }
    }

    /// Whether a lower limit exceeds an upper limit, so that no lead is within all limits. Both lists are sorted.
    fn are_contradictory(&self) -> bool {
        let (Some(greatest_lower_limit_ns), Some(smallest_upper_limit_ns)) =
            (self.lower_limits_ns.last(), self.upper_limits_ns.first())
        else {
            return false;
        };
        greatest_lower_limit_ns > smallest_upper_limit_ns
    }

    /// The lead that contradicts the fewest limits; one of the lower limits always does. Both lists are sorted.
    fn least_contradicted_lead(&self) -> Option<i64> {
        self.lower_limits_ns.iter().copied().min_by_key(|lead_ns| self.count_limits_contradicting(*lead_ns))
    }

    /// Number of limits that this lead contradicts: lower limits above it, and upper limits below it. Both lists are sorted.
    fn count_limits_contradicting(&self, lead_ns: i64) -> usize {
        let fulfilled_lower_limits = self.lower_limits_ns.partition_point(|least_ns| *least_ns <= lead_ns);
        let contradicted_lower_limits = self.lower_limits_ns.len() - fulfilled_lower_limits;
        let contradicted_upper_limits = self.upper_limits_ns.partition_point(|most_ns| *most_ns < lead_ns);
        contradicted_lower_limits + contradicted_upper_limits
    }

    /// Whether the messages contradict that both servers have one clock, as those of two virtual machines from one snapshot may. Single
    /// requests are no proof: a message that was sent again has its last time.
    fn shows_two_clocks(&self) -> bool {
        // More than half of the requests.
        self.requests_of_two_clocks * 2 > self.requests
    }

    /// Decides how times of the two clocks are compared. The lead is how far the decode server's clock is ahead. It is taken from the wall
    /// clocks, and then clamped to the limits that the requests set. If many requests contradict every lead, the clocks drift apart.
    pub(super) fn decide_clock_use(mut self, clocks: PairClocks) -> ClockUse {
        if clocks == PairClocks::Same && !self.shows_two_clocks() {
            return ClockUse::Same;
        }
        let lead_by_wall_ns = match clocks {
            PairClocks::Same => 0,
            PairClocks::ByWallClock { ahead_ns } => ahead_ns,
        };
        let limits = self.sort_and_find_agreed_limits();
        // A few limits may be wrong, because a message may have been matched to the wrong attempt of a request.
        let has_too_many_contradictions = limits.contradictions as f64 > MAX_CONTRADICTIONS * self.requests as f64;
        if has_too_many_contradictions {
            return ClockUse::Drifting { by_ns: self.drift_ns() };
        }
        limits.nearest_offset_within_limits(lead_by_wall_ns)
    }

    /// How far the clocks drift apart: by as much as the strictest limits of both kinds contradict each other. Both lists are sorted.
    fn drift_ns(&self) -> u64 {
        let strictest = self.lower_limits_ns.last().zip(self.upper_limits_ns.first());
        strictest.map_or(0, |(least_ns, most_ns)| least_ns.abs_diff(*most_ns))
    }
}

impl AgreedLimits {
    /// Chooses the lead within the limits that is nearest to the lead by the wall clocks. The wall clocks may be wrong, but the limits
    /// follow from the order of messages.
    fn nearest_offset_within_limits(self, lead_by_wall_ns: i64) -> ClockUse {
        // Without a limit on one side, any lead in that direction is possible.
        let least_ns = self.least_ns.unwrap_or(i64::MIN);
        let most_ns = self.most_ns.unwrap_or(i64::MAX);
        let ahead_ns = lead_by_wall_ns.clamp(least_ns, most_ns);
        let is_bounded = self.least_ns.is_some() && self.most_ns.is_some();
        // The true lead is within the limits too, so the error is at most the distance to the farther limit.
        let error_ns = ahead_ns.abs_diff(least_ns).max(ahead_ns.abs_diff(most_ns));
        ClockUse::Offset {
            ahead_ns,
            uncertainty_ns: is_bounded.then_some(error_ns),
            wall_error_ns: ahead_ns.abs_diff(lead_by_wall_ns),
            contradictions: self.contradictions,
        }
    }
}

/// Least lead of the decode server's clock, by one request. The prefill of a request begins after the decode server has allocated memory
/// for it. If the allocation seems to be later, the decode server's clock is ahead by at least the difference. `None` if the time of either
/// is unknown.
fn least_decode_clock_lead_ns(prefill: &ServerRequest<'_>, decode: &ServerRequest<'_>) -> Option<i64> {
    // The earliest comes first, because the one nearest to the allocation sets the narrowest limit.
    let behind_allocation = [PrefillQueued, PrefillStarted, PrefillEnded, Transferred, PrefillFrame];
    let first_of_prefill = behind_allocation.into_iter().find_map(|moment| prefill.time_of_prefill_moment(moment))?;
    let allocated = decode.time_of_decode_moment(Allocated)?;
    Some(difference_ns(allocated, first_of_prefill))
}

/// Greatest lead of the decode server's clock, by one request. A request is decoded after its cache was transferred, so the decode server's
/// clock is ahead by at most the measured time between both. `None` if the time of either is unknown.
fn greatest_decode_clock_lead_ns(prefill: &ServerRequest<'_>, decode: &ServerRequest<'_>) -> Option<i64> {
    // The last comes first, because the one nearest to the decoding sets the narrowest limit.
    let before_decode = [Transferred, PrefillEnded, PrefillStarted, PrefillQueued];
    let last_of_prefill = before_decode.into_iter().find_map(|moment| prefill.time_of_prefill_moment(moment))?;
    let decoding = [DecodeQueued, DecodeBatch, DecodeFrame];
    let first_of_decode = decoding.into_iter().find_map(|moment| decode.time_of_decode_moment(moment))?;
    Some(difference_ns(first_of_decode, last_of_prefill))
}

/// Wall-clock time at which the monotonic clock of a recording was 0: when its host booted.
fn mono_start_ns(anchor: Anchor) -> i128 {
    i128::from(anchor.wall_ns) - i128::from(anchor.mono.0)
}

/// `later` minus `earlier` of two clocks, in nanoseconds; negative if `later` has the smaller time.
fn difference_ns(later: MonoNs, earlier: MonoNs) -> i64 {
    // Times of a damaged recording may be further apart than the number holds.
    let limit = i128::from(i64::MAX / 2);
    (i128::from(later.0) - i128::from(earlier.0)).clamp(-limit, limit) as i64
}
