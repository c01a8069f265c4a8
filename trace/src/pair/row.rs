//! One request of a decode server, with what the prefill server did for it.

use super::clock::ClockUse;
use super::moment::{MOMENTS, PATH_MOMENTS, PairLeg, PairMoment, TimedPairLeg};
use super::request::ServerRequest;
use crate::clock::MonoNs;

/// The same request on a prefill server.
#[derive(Clone, Copy)]
pub(super) struct PrefillPart<'r, 'a> {
    /// Index of the server.
    pub(super) server: usize,
    pub(super) request: &'r ServerRequest<'a>,
    pub(super) clock: ClockUse,
}

impl PrefillPart<'_, '_> {
    fn time_of(&self, moment: PairMoment) -> Option<MonoNs> {
        self.request.time_of_prefill_moment(moment).and_then(|at| self.clock.convert_to_decode_clock(at))
    }
}

/// An attempt of a request. All times are on the decode server's clock.
#[derive(Clone, Debug)]
pub struct PairRow<'a> {
    /// Its room; `None` if it was joined by its id.
    pub room: Option<u64>,
    /// Its id on the decode server.
    pub decode_rid: &'a str,
    /// Its id on the prefill server; `None` if it was not found there.
    pub prefill_rid: Option<&'a str>,
    /// Index of its prefill server.
    pub prefill_server: Option<usize>,
    /// Length of its prompt on the decode server; `None` if unknown.
    pub(super) prompt_tokens: Option<u32>,
    /// Time to first token on the decode server.
    pub ttft_ns: Option<u64>,
    /// The transfer failed.
    pub has_failed: bool,
    times: [Option<MonoNs>; MOMENTS],
    path: [Option<MonoNs>; PATH_MOMENTS],
}

impl<'a> PairRow<'a> {
    /// Row of a request of the decode server. `prefill` is the same request on a prefill server, if that was found.
    pub(super) fn new(decode: &ServerRequest<'a>, prefill: Option<PrefillPart<'_, 'a>>) -> Self {
        let mut times = [None; MOMENTS];
        for &moment in PairMoment::ALL {
            times[moment.index()] = if moment.is_of_prefill_server() {
                prefill.and_then(|prefill| prefill.time_of(moment))
            } else {
                decode.time_of_decode_moment(moment)
            };
        }
        let ttft_ns = decode.ttft_ns();
        // The path ends with the first token, so a request without one has no path yet.
        let path = if ttft_ns.is_some() { place_moments_on_path(&times) } else { [None; PATH_MOMENTS] };
        Self {
            room: decode.room,
            decode_rid: decode.rid,
            prefill_rid: prefill.map(|prefill| prefill.request.rid),
            prefill_server: prefill.map(|prefill| prefill.server),
            prompt_tokens: decode.prompt_tokens,
            ttft_ns,
            has_failed: prefill.is_some_and(|prefill| prefill.request.messages.failed.is_some()),
            times,
            path,
        }
    }

    /// When a moment was; `None` if that is not known.
    pub fn time_of(&self, moment: PairMoment) -> Option<MonoNs> {
        self.times[moment.index()]
    }

    /// The first known moment.
    pub fn first_time(&self) -> Option<MonoNs> {
        self.times.iter().flatten().min().copied()
    }

    /// Parts of its time to first token, in order. Their lengths sum to it.
    pub fn legs(&self) -> impl Iterator<Item = (PairLeg, u64)> {
        self.timed_legs().map(|timed| (timed.leg, timed.ns()))
    }

    /// The legs between the known moments of its path, in order, each with its begin and end.
    pub(super) fn timed_legs(&self) -> impl Iterator<Item = TimedPairLeg> {
        let begins = self.path_moments();
        // Each leg ends with the moment with which the next one begins.
        let ends = self.path_moments().skip(1);
        begins.zip(ends).map(|((from, began_at), (to, ended_at))| TimedPairLeg {
            leg: PairLeg { from, to },
            from: began_at,
            to: ended_at,
        })
    }

    fn path_moments(&self) -> impl Iterator<Item = (PairMoment, MonoNs)> {
        PairMoment::ALL.iter().zip(self.path).filter_map(|(moment, at)| Some((*moment, at?)))
    }
}

/// Places moments on the path of the first token, which begins and ends on the decode server. The most trusted moments are placed first. A
/// later one is left out if its time contradicts the order of those. Returns the times by the index of the moment.
fn place_moments_on_path(times: &[Option<MonoNs>; MOMENTS]) -> [Option<MonoNs>; PATH_MOMENTS] {
    let mut path = [None; PATH_MOMENTS];
    for moment in PairMoment::BY_TRUST {
        let index = moment.index();
        let Some(mut at) = times[index] else { continue };
        let placed = PlacedAround::of_index(&path, index);
        // A concurrent moment is one at which the prefill server receives the request, while the decode server allocates memory for it.
        if moment.is_concurrent() {
            // Without the time of the allocation, it is unknown whether the request waited for the memory or for the prefill server.
            let is_allocation_known = path[PairMoment::Allocated.index()].is_some();
            if !is_allocation_known {
                continue;
            }
            // What the prefill server did before the decode server waited for it takes no time of the path.
            at = placed.last_before.map_or(at, |last| at.max(last));
        }
        // The decode server's own moments are always placed. The others must lie between those that are placed already.
        let is_of_decode_alone = !moment.is_added_to_decode();
        if is_of_decode_alone || placed.encloses(at) {
            path[index] = Some(at);
        }
    }
    path
}

/// The moments on a path that are nearest to another one, of those that are placed already.
struct PlacedAround {
    last_before: Option<MonoNs>,
    first_after: Option<MonoNs>,
}

impl PlacedAround {
    /// The moments nearest to the one with this index.
    fn of_index(path: &[Option<MonoNs>], index: usize) -> Self {
        Self {
            last_before: path[..index].iter().flatten().max().copied(),
            first_after: path[index + 1..].iter().flatten().min().copied(),
        }
    }

    /// Whether a time lies between both moments. `false` if one is missing.
    fn encloses(&self, at: MonoNs) -> bool {
        self.last_before.is_some_and(|last| last <= at) && self.first_after.is_some_and(|first| at <= first)
    }
}
