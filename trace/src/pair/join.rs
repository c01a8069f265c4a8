//! The join of both servers' requests, and its sums.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::RangeInclusive;

use hashbrown::HashMap;

use super::clock::{ClockBounds, ClockUse, PairClocks};
use super::moment::{PairLeg, PairMoment};
use super::request::ServerRequest;
use super::row::{PairRow, PrefillPart};
use crate::clock::MonoNs;
use crate::ledger::Ledger;
use crate::stats::{Spread, Tally};

/// A prefill server, and how its clock relates to that of the decode server.
#[derive(Clone, Copy, Debug)]
pub struct PrefillServer<'a> {
    /// Its analysis.
    pub ledger: &'a Ledger,
    /// Both clocks.
    pub clocks: PairClocks,
}

/// A decode server's requests with those of its prefill servers.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    decode: &'a Ledger,
    prefill: Vec<PrefillServer<'a>>,
    finished_limit: usize,
    clock_uses: Vec<ClockUse>,
    rows: Vec<PairRow<'a>>,
    /// Requests of the prefill servers without one on the decode server; `None` if not all requests of a server were read.
    pub prefill_only: Option<u64>,
    legs: Vec<PairLegLengths>,
    ttft: Tally,
    ttft_sum_ns: u128,
}

/// Lengths of a leg over requests.
#[derive(Clone, Debug)]
pub struct PairLegLengths {
    /// Which leg.
    pub leg: PairLeg,
    lengths: Tally,
    /// Exact sum in nanoseconds.
    pub sum_ns: u128,
    /// Number of requests.
    pub requests: u64,
}

impl PairLegLengths {
    /// Lengths of a leg over no requests so far.
    fn of_leg(leg: PairLeg) -> Self {
        Self { leg, lengths: Tally::default(), sum_ns: 0, requests: 0 }
    }

    /// Adds the length of the leg in one request.
    fn add_length_of_request(&mut self, leg_ns: u64) {
        let once = 1;
        self.lengths.record(leg_ns, once);
        self.sum_ns += u128::from(leg_ns);
        self.requests += 1;
    }

    /// Summary, with quantiles accurate to 6 %.
    pub fn spread(&self) -> Spread {
        Spread::of_tally(&self.lengths).unwrap_or_default()
    }

    /// Mean length.
    pub fn mean_ns(&self) -> u64 {
        mean(self.sum_ns, self.requests)
    }
}

fn mean(sum_ns: u128, count: u64) -> u64 {
    (sum_ns / u128::from(count.max(1))) as u64
}

/// A request of a prefill server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestPosition {
    server: usize,
    request: usize,
}

/// Positions by key; `None` for a key that several requests have, so that none is joined wrongly.
struct UniquePositions<K>(HashMap<K, Option<RequestPosition>>);

impl<K: Eq + Hash> UniquePositions<K> {
    fn new() -> Self {
        Self(HashMap::new())
    }

    /// Adds a request with this key.
    fn add_position(&mut self, key: K, position: RequestPosition) {
        // A second request with the key makes it ambiguous.
        self.0.entry(key).and_modify(|known| *known = None).or_insert(Some(position));
    }

    fn find_position(&self, key: &K) -> Option<RequestPosition> {
        self.0.get(key).copied().flatten()
    }
}

/// The unique rooms of requests, and the unique ids of those without a room.
struct RequestIndex<'a> {
    by_room: UniquePositions<u64>,
    by_rid: UniquePositions<&'a str>,
}

impl<'a> RequestIndex<'a> {
    /// Index of all requests of these servers. A room is the number by which both servers of a pair know one request. Requests without a
    /// room are found by their rid.
    fn new(servers: &[Vec<ServerRequest<'a>>]) -> Self {
        let mut index = Self { by_room: UniquePositions::new(), by_rid: UniquePositions::new() };
        for (server, requests) in servers.iter().enumerate() {
            for (request_index, request) in requests.iter().enumerate() {
                let position = RequestPosition { server, request: request_index };
                match request.room {
                    Some(room) => index.by_room.add_position(room, position),
                    None => index.by_rid.add_position(request.rid, position),
                }
            }
        }
        index
    }

    /// Finds the indexed request that has the same room as this one. A room is the number by which both servers of a pair know one request.
    /// If this request has no room, its rid must be the same. `None` unless exactly one request matches.
    fn find_position(&self, request: &ServerRequest<'a>) -> Option<RequestPosition> {
        match request.room {
            Some(room) => self.by_room.find_position(&room),
            None => self.by_rid.find_position(&request.rid),
        }
    }
}

/// A request of the decode server, with the same request on a prefill server, if exactly one was found.
struct JoinedRequest<'r, 'a> {
    request: &'r ServerRequest<'a>,
    position: Option<RequestPosition>,
}

/// Joins each request of the decode server with the same request on a prefill server. The indexes find requests by room or rid. If several
/// requests of the decode server have one room or rid, none of them is joined.
fn join_decode_requests<'r, 'a>(
    decode_requests: &'r [ServerRequest<'a>],
    decode_index: &RequestIndex<'a>,
    prefill_index: &RequestIndex<'a>,
) -> Vec<JoinedRequest<'r, 'a>> {
    let mut joined_requests = Vec::with_capacity(decode_requests.len());
    for request in decode_requests {
        let is_unique = decode_index.find_position(request).is_some();
        let position = if is_unique { prefill_index.find_position(request) } else { None };
        joined_requests.push(JoinedRequest { request, position });
    }
    joined_requests
}

/// Rows of the joined requests, in their order. `prefill_requests` and `clock_uses` have an entry for each prefill server.
fn rows_of_joined_requests<'a>(
    joined_requests: &[JoinedRequest<'_, 'a>],
    prefill_requests: &[Vec<ServerRequest<'a>>],
    clock_uses: &[ClockUse],
) -> Vec<PairRow<'a>> {
    let mut rows = Vec::with_capacity(joined_requests.len());
    for joined in joined_requests {
        let prefill_part = joined.position.map(|RequestPosition { server, request }| PrefillPart {
            server,
            request: &prefill_requests[server][request],
            clock: clock_uses[server],
        });
        rows.push(PairRow::new(joined.request, prefill_part));
    }
    rows
}

/// Decides for each prefill server how its clock is compared with that of the decode server. The decision follows from the order of the
/// moments of the joined requests. `prefill_requests` has the requests of each server.
fn decide_clock_uses(
    prefill: &[PrefillServer<'_>],
    prefill_requests: &[Vec<ServerRequest<'_>>],
    joined_requests: &[JoinedRequest<'_, '_>],
) -> Vec<ClockUse> {
    let mut bounds = vec![ClockBounds::default(); prefill.len()];
    for joined in joined_requests {
        if let Some(RequestPosition { server, request }) = joined.position {
            bounds[server].add_limits_of_request(&prefill_requests[server][request], joined.request);
        }
    }
    let bounds_of_servers = bounds.into_iter().zip(prefill);
    bounds_of_servers.map(|(bounds, server)| bounds.decide_clock_use(server.clocks)).collect()
}

impl<'a> Pair<'a> {
    /// Joins the requests of a decode server with those of its prefill servers: by room, and by id where neither has a room. A room or an
    /// id that several requests of a side have joins none.
    pub fn join(prefill: Vec<PrefillServer<'a>>, decode: &'a Ledger) -> Self {
        Self::join_newest(prefill, decode, usize::MAX)
    }

    /// Joins the requests of both sides as [`Self::join`] does, but reads only the newest `finished_limit` finished requests of each
    /// server. That bounds the time of the join.
    pub fn join_newest(prefill: Vec<PrefillServer<'a>>, decode: &'a Ledger, finished_limit: usize) -> Self {
        let prefill_requests: Vec<Vec<ServerRequest<'a>>> = prefill
            .iter()
            .map(|server| ServerRequest::newest_finished_and_open_requests(server.ledger, finished_limit))
            .collect();
        let decode_requests = ServerRequest::newest_finished_and_open_requests(decode, finished_limit);
        let prefill_index = RequestIndex::new(&prefill_requests);
        // An index is built for a list of servers. There is one decode server.
        let decode_index = RequestIndex::new(std::slice::from_ref(&decode_requests));
        let joined_requests = join_decode_requests(&decode_requests, &decode_index, &prefill_index);
        let clock_uses = decide_clock_uses(&prefill, &prefill_requests, &joined_requests);
        let rows = rows_of_joined_requests(&joined_requests, &prefill_requests, &clock_uses);
        let prefill_count: usize = prefill_requests.iter().map(Vec::len).sum();
        let joined_count = rows.iter().filter(|row| row.prefill_rid.is_some()).count();
        let mut pair = Self {
            decode,
            prefill,
            finished_limit,
            clock_uses,
            rows,
            prefill_only: None,
            legs: Vec::new(),
            ttft: Tally::default(),
            ttft_sum_ns: 0,
        };
        // The number is right only if all requests of both sides were read.
        let are_all_read = pair.has_all_requests(decode) && pair.has_all_prefill_requests();
        pair.prefill_only = are_all_read.then_some(prefill_count.saturating_sub(joined_count) as u64);
        pair.sum_legs_and_ttft();
        pair
    }

    /// Whether all requests of this server were read: the ledger keeps them, and the limit of the join was not reached.
    fn has_all_requests(&self, ledger: &Ledger) -> bool {
        ledger.finished_evicted() == 0 && ledger.finished_count() <= self.finished_limit
    }

    fn has_all_prefill_requests(&self) -> bool {
        self.prefill_ledgers().all(|ledger| self.has_all_requests(ledger))
    }

    /// Number of the newest finished requests that were read from each server, if a server has more than that. `None` if all were read.
    pub fn finished_limit_if_reached(&self) -> Option<usize> {
        let mut ledgers = self.prefill_ledgers().chain([self.decode]);
        let is_limit_reached = ledgers.any(|ledger| ledger.finished_count() > self.finished_limit);
        is_limit_reached.then_some(self.finished_limit)
    }

    /// Time of the decode server up to which its requests were read.
    pub fn observed_until(&self) -> MonoNs {
        self.decode.now()
    }

    /// Requests of the decode server that are not among [`Self::rows`], because their summaries are no longer kept.
    pub fn requests_evicted(&self) -> u64 {
        self.decode.finished_evicted()
    }

    /// Requests of the decode server without one on a prefill server; `None` if not all requests of a prefill server were read.
    pub fn decode_only(&self) -> Option<u64> {
        let only = self.rows.iter().filter(|row| row.prefill_rid.is_none()).count();
        self.has_all_prefill_requests().then_some(only as u64)
    }

    /// Sums the times to first token of all joined requests, and the lengths of their legs. A leg is the part of the path between two
    /// moments.
    fn sum_legs_and_ttft(&mut self) {
        // In the order of the path, because moments compare in this order.
        let mut legs: BTreeMap<PairLeg, PairLegLengths> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.prefill_rid.is_some()) {
            let Some(ttft_ns) = row.ttft_ns else { continue };
            let once = 1;
            self.ttft.record(ttft_ns, once);
            self.ttft_sum_ns += u128::from(ttft_ns);
            for (leg, ns) in row.legs() {
                legs.entry(leg).or_insert_with(|| PairLegLengths::of_leg(leg)).add_length_of_request(ns);
            }
        }
        self.legs = legs.into_values().collect();
    }

    /// Requests of the decode server.
    pub fn rows(&self) -> &[PairRow<'a>] {
        &self.rows
    }

    /// Requests of the decode server that were found on a prefill server, too.
    pub fn joined(&self) -> impl Iterator<Item = &PairRow<'a>> {
        self.rows.iter().filter(|row| row.prefill_rid.is_some())
    }

    /// Requests of the decode server that were found on the prefill server with this index.
    pub fn joined_with(&self, server: usize) -> impl Iterator<Item = &PairRow<'a>> {
        self.rows.iter().filter(move |row| row.prefill_server == Some(server))
    }

    pub(super) fn decode_ledger(&self) -> &'a Ledger {
        self.decode
    }

    /// Maximum number of finished requests of each server.
    pub(super) fn finished_limit(&self) -> usize {
        self.finished_limit
    }

    pub(super) fn prefill_ledgers(&self) -> impl Iterator<Item = &'a Ledger> {
        self.prefill.iter().map(|server| server.ledger)
    }

    /// How the times of each prefill server are compared with those of the decode server.
    pub fn clock_uses(&self) -> &[ClockUse] {
        &self.clock_uses
    }

    /// Legs of joined requests, in order. Their sums add up to the sum of the requests' times to first token.
    pub fn legs(&self) -> &[PairLegLengths] {
        &self.legs
    }

    /// Time to first token of joined requests; `None` without any.
    pub fn ttft(&self) -> Option<Spread> {
        Spread::of_tally(&self.ttft)
    }

    /// Sum of these times in nanoseconds.
    pub fn ttft_sum_ns(&self) -> u128 {
        self.ttft_sum_ns
    }

    /// Mean of these times; `None` without any.
    pub fn ttft_mean_ns(&self) -> Option<u64> {
        (self.ttft.count() > 0).then(|| mean(self.ttft_sum_ns, self.ttft.count()))
    }

    /// Share of a leg in the time to first token of all joined requests, from 0 to 1.
    pub fn share_of_leg(&self, leg: &PairLegLengths) -> f64 {
        if self.ttft_sum_ns == 0 { 0.0 } else { leg.sum_ns as f64 / self.ttft_sum_ns as f64 }
    }

    /// The leg with the greatest share. A leg is the part of the time to first token between two moments. `None` without any time to first
    /// token, or if the error of the clocks leaves open which leg it is.
    pub fn worst_leg(&self) -> Option<&PairLegLengths> {
        let worst = self.legs.iter().max_by_key(|lengths| lengths.sum_ns)?;
        // It is the worst for certain if even its smallest possible sum is not below the greatest possible sum of any other leg.
        let min_of_worst_ns = *self.possible_sums_ns(worst).start();
        let mut others = self.legs.iter().filter(|other| other.leg != worst.leg);
        let is_certain = others.all(|other| *self.possible_sums_ns(other).end() <= min_of_worst_ns);
        is_certain.then_some(worst)
    }

    /// Range of the true time that all requests together spent on a leg, in nanoseconds. A leg is the part of the path between two moments.
    /// If these are times of different clocks, the measured sum may be wrong by the error of the clocks.
    fn possible_sums_ns(&self, lengths: &PairLegLengths) -> RangeInclusive<u128> {
        let sum_ns = lengths.sum_ns;
        // If the leg starts and ends with times of the same clock, the sum is exact.
        if !lengths.leg.is_across_clocks() {
            return sum_ns..=sum_ns;
        }
        // An error of the clocks only moves time from one leg across them to another, so no leg is longer than all of them together.
        let all_legs_ns = self.sum_across_clocks_ns();
        let Some(error_ns) = self.clock_uncertainty_ns() else { return 0..=all_legs_ns };
        // The error may be this large in every request.
        let error_of_sum_ns = u128::from(error_ns) * u128::from(lengths.requests);
        let min_ns = sum_ns.saturating_sub(error_of_sum_ns);
        let max_ns = (sum_ns + error_of_sum_ns).min(all_legs_ns.max(sum_ns));
        min_ns..=max_ns
    }

    /// Time that all requests together spent on the legs that begin on one clock and end on another.
    fn sum_across_clocks_ns(&self) -> u128 {
        let across = self.legs.iter().filter(|lengths| lengths.leg.is_across_clocks());
        across.map(|lengths| lengths.sum_ns).sum()
    }

    /// Maximum error of the times of all prefill servers whose times are compared with those of the decode server; `None` if it is unknown.
    pub fn clock_uncertainty_ns(&self) -> Option<u64> {
        let mut max_ns = 0;
        for (server, clock) in self.clock_uses.iter().enumerate() {
            let has_requests = self.joined_with(server).next().is_some();
            // Times of clocks that drift apart are not compared.
            let are_times_compared = has_requests && !matches!(clock, ClockUse::Drifting { .. });
            if are_times_compared {
                max_ns = clock.uncertainty_ns()?.max(max_ns);
            }
        }
        Some(max_ns)
    }

    /// Ledger of the prefill server of a request, if its times can be compared with those of the decode server. The error is the reason why
    /// there is none.
    fn comparable_prefill_ledger(&self, row: &PairRow<'a>) -> Result<&'a Ledger, &'static str> {
        let server = row.prefill_server.ok_or("the request was not found on the prefill server")?;
        if matches!(self.clock_uses[server], ClockUse::Drifting { .. }) {
            return Err("the clocks of the two hosts cannot be compared");
        }
        Ok(self.prefill[server].ledger)
    }

    /// Why a moment of a request is not known; `None` if it is.
    pub fn reason_moment_is_unknown(&self, row: &PairRow<'a>, moment: PairMoment) -> Option<&'static str> {
        if row.time_of(moment).is_some() {
            return None;
        }
        // Ledger of the server to which the moment belongs.
        let ledger = if moment.is_of_prefill_server() {
            match self.comparable_prefill_ledger(row) {
                Ok(ledger) => ledger,
                Err(reason) => return Some(reason),
            }
        } else {
            self.decode
        };
        let counts = ledger.pair_message_counts();
        Some(match moment {
            PairMoment::Allocated => reason_message_is_absent(ledger, row, counts.allocated),
            PairMoment::Transferred if row.has_failed => "the transfer failed",
            PairMoment::Transferred => reason_message_is_absent(ledger, row, counts.transferred),
            PairMoment::PrefillQueued
            | PairMoment::PrefillStarted
            | PairMoment::DecodeQueued
            | PairMoment::DecodeBatch => ledger.reasons_for_absent_engine_times().entries,
            PairMoment::PrefillEnded => ledger.reasons_for_absent_engine_times().prefill_end,
            _ => "not observed, or not reached",
        })
    }
}

const EVICTED: &str = "its messages were evicted at the limit pair_rooms, or not observed";
const NO_MESSAGES: &str = "no message between the schedulers was read: an older recording, or another transfer backend";

/// Why a message of a request is absent. `messages` is the number of messages of its kind that were read, for any request. Messages name
/// their request by its room.
fn reason_message_is_absent(ledger: &Ledger, row: &PairRow<'_>, messages: u64) -> &'static str {
    if messages == 0 {
        NO_MESSAGES
    } else if row.room.is_some_and(|room| ledger.may_have_evicted_room(room)) {
        EVICTED
    } else {
        "its message was not observed, or not sent yet"
    }
}
