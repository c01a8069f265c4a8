//! The whole path of a request's first token: the legs of its time to first token, with the way from scheduler to tokenizer hop by hop. The
//! one table of legs behind screen and exports.

use std::ops::Range;

use super::request::RequestNumbers;
use super::ttft_path::{TimedLeg, TtftLeg, TtftMoment, TtftPath};
use crate::clock::MonoNs;

/// When a request's first chunk crossed the hops between two roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstCrossing {
    /// When it was sent; `None` if not observed.
    pub sent: Option<MonoNs>,
    /// When it was received; `None` if not observed.
    pub received: Option<MonoNs>,
    /// These hops lead to the tokenizer.
    pub is_last: bool,
}

/// A part of the way from scheduler to tokenizer; hops by their index in the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayPart {
    /// Waiting on the hop.
    OnHop(usize),
    /// Inside the process that received from the hop.
    Behind(usize),
}

/// Parts of the way that follow each other. The moments between them were not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayParts {
    /// Position of its begin: twice the hop's index at a send, one more at a receive.
    from: usize,
    to: usize,
}

impl WayParts {
    /// Indices of the hops among them.
    pub fn hops(self) -> Range<usize> {
        // A hop is among them if the parts begin at or before its send.
        self.from.div_ceil(2)..self.to.div_ceil(2)
    }

    /// The hop, if the only part is waiting on it.
    pub fn only_hop(self) -> Option<usize> {
        (self.hops().len() == 1 && self.to == self.from + 1).then_some(self.from / 2)
    }

    /// The parts, in order. Each begins at one position: with the send on a hop (a channel between two processes), or with the receive from
    /// it.
    pub fn iter(self) -> impl Iterator<Item = WayPart> {
        (self.from..self.to).map(|position| {
            // Each hop has two positions. The even one is its send, the odd one its receive.
            let hop_index = position / 2;
            let begins_with_send = position % 2 == 0;
            if begins_with_send { WayPart::OnHop(hop_index) } else { WayPart::Behind(hop_index) }
        })
    }
}

/// Where the first token spends a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstTokenPlace {
    /// On a leg of the time to first token.
    Ttft(TtftLeg),
    /// On a part of the way from scheduler to tokenizer.
    Way(WayParts),
}

/// A leg of a first token's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTokenLeg {
    /// Where it is.
    pub place: FirstTokenPlace,
    /// When it begins.
    pub from: MonoNs,
    /// When it ends.
    pub to: MonoNs,
}

impl FirstTokenLeg {
    fn on_ttft(timed: TimedLeg) -> Self {
        Self { place: FirstTokenPlace::Ttft(timed.leg), from: timed.at, to: timed.end() }
    }

    /// Whether it lies before the first send by the scheduler.
    pub fn is_before_way(self) -> bool {
        matches!(self.place, FirstTokenPlace::Ttft(leg) if leg.from < TtftMoment::FirstSent)
    }

    /// Whether it lies behind the first receive by the tokenizer.
    pub fn is_behind_way(self) -> bool {
        matches!(self.place, FirstTokenPlace::Ttft(leg) if leg.from > TtftMoment::FirstSent)
    }
}

/// An observed moment on the way from scheduler to tokenizer.
#[derive(Clone, Copy, Debug)]
struct WayStop {
    /// Which one: see [`send_position`] and [`receive_position`].
    position: usize,
    at: MonoNs,
}

/// Position on the way of the send on the hop with this index in the path.
fn send_position(hop_index: usize) -> usize {
    2 * hop_index
}

/// Position on the way of the receive on the hop with this index in the path.
fn receive_position(hop_index: usize) -> usize {
    2 * hop_index + 1
}

/// The legs of a request's first token: its times between two moments, in order. They do not overlap. `crossings`: when its first chunk
/// crossed each hop (channel between two processes), in the order of the path.
pub fn first_token_legs(numbers: &RequestNumbers, crossings: &[FirstCrossing]) -> Vec<FirstTokenLeg> {
    let path = TtftPath::new(numbers);
    let mut legs = Vec::new();
    for timed in path.legs() {
        // The leg behind the first send is the way from the scheduler to the tokenizer, which is split by hop.
        if timed.leg.from == TtftMoment::FirstSent {
            legs.extend(legs_of_way(crossings, Some(timed.at), Some(timed)));
        } else {
            legs.push(FirstTokenLeg::on_ttft(timed));
        }
    }
    // Without a moment after the first send, there is no leg of the whole way, but the hops may show a part of it.
    let whole_way = None;
    match path.moments().last() {
        // Without any moment, the start of the way is unknown, too.
        None => legs.extend(legs_of_way(crossings, None, whole_way)),
        Some((TtftMoment::FirstSent, at)) => legs.extend(legs_of_way(crossings, Some(at), whole_way)),
        // Without a delivery, the time to first token ends here, but its processing may follow.
        Some((TtftMoment::FirstReceived, received)) => legs.extend(first_token_processing_leg(numbers, received)),
        // Any other moment ends the path.
        Some(_) => {}
    }
    legs
}

/// The leg from the first receive to the end of its processing; `None` if that was not observed.
fn first_token_processing_leg(numbers: &RequestNumbers, received_at: MonoNs) -> Option<FirstTokenLeg> {
    let processed = numbers.processed_first.filter(|processed| *processed >= received_at)?;
    let leg = TtftLeg { from: TtftMoment::FirstReceived, to: TtftMoment::Processed };
    Some(FirstTokenLeg::on_ttft(TimedLeg { leg, at: received_at, ns: processed.since(received_at) }))
}

/// The legs of the way from the scheduler to the tokenizer. The way begins at `way_start`, the first send, and is split at each observed
/// send and receive of the first chunk. `whole_leg`: the leg of the time to first token that begins with the way; `None` if no later moment
/// was observed.
fn legs_of_way(
    crossings: &[FirstCrossing],
    way_start: Option<MonoNs>,
    whole_leg: Option<TimedLeg>,
) -> Vec<FirstTokenLeg> {
    let stops = stops_of_way(crossings, way_start, whole_leg);
    if let Some(whole_leg) = whole_leg
        && !do_stops_show_where_time_passed(&stops)
    {
        // The hops show no more than the whole leg.
        return vec![FirstTokenLeg::on_ttft(whole_leg)];
    }
    let mut legs = Vec::new();
    // Each pair of neighbouring stops is a leg.
    for pair in stops.windows(2) {
        let from = pair[0];
        let to = pair[1];
        let parts = WayParts { from: from.position, to: to.position };
        legs.push(FirstTokenLeg { place: FirstTokenPlace::Way(parts), from: from.at, to: to.at });
    }
    legs
}

/// Whether the stops show more than begin and end of the way: a moment in between, or that the whole way lies on one hop or in one process.
fn do_stops_show_where_time_passed(stops: &[WayStop]) -> bool {
    // Neighbouring positions are the two ends of one hop, or of one process.
    let has_leg_at_one_place = stops.windows(2).any(|pair| pair[0].position + 1 == pair[1].position);
    stops.len() > 2 || has_leg_at_one_place
}

/// The observed moments (stops) on the way from scheduler to tokenizer, in order: its `way_start`, the sends and receives of the first
/// chunk on the hops, and the end of the way, which is that of `whole_leg`. A stop whose time contradicts the order is left out. The
/// position of a stop is twice the hop's index for a send, and one more for a receive, so it grows along the way.
fn stops_of_way(crossings: &[FirstCrossing], way_start: Option<MonoNs>, whole_leg: Option<TimedLeg>) -> Vec<WayStop> {
    let end = whole_leg.and_then(|whole_leg| end_stop_of_way(crossings, whole_leg));
    // Without a known end, no stop lies behind it.
    let last_at = whole_leg.map_or(MonoNs(u64::MAX), TimedLeg::end);
    let end_position = end.map_or(usize::MAX, |end| end.position);
    let mut stops: Vec<WayStop> = Vec::new();
    if let Some(at) = way_start {
        stops.push(WayStop { position: send_position(0), at });
    }
    for stop in observed_stops(crossings) {
        let follows_previous =
            stops.last().is_none_or(|previous| previous.position < stop.position && previous.at <= stop.at);
        let is_before_end = stop.position < end_position && stop.at <= last_at;
        if follows_previous && is_before_end {
            stops.push(stop);
        }
    }
    stops.extend(end);
    stops
}

/// End of the way from scheduler to tokenizer. It is the end of `whole_leg`, the leg of the time to first token that begins with the way.
/// `None` if there is no crossing, or if the last one is not on the hop into the tokenizer although that hop is known.
fn end_stop_of_way(crossings: &[FirstCrossing], whole_leg: TimedLeg) -> Option<WayStop> {
    let last = crossings.last()?;
    let has_hop_into_tokenizer = crossings.iter().any(|crossing| crossing.is_last);
    let ends_elsewhere = has_hop_into_tokenizer && !last.is_last;
    if ends_elsewhere {
        return None;
    }
    // The way ends with the receive on the last hop or, if that was not observed, with a later moment behind it.
    let last_receive = receive_position(crossings.len() - 1);
    let ends_with_receive = whole_leg.leg.to == TtftMoment::FirstReceived;
    let position = if ends_with_receive { last_receive } else { last_receive + 1 };
    Some(WayStop { position, at: whole_leg.end() })
}

/// The observed sends and receives of the first chunk, in the order of the path.
fn observed_stops(crossings: &[FirstCrossing]) -> impl Iterator<Item = WayStop> {
    crossings.iter().enumerate().flat_map(|(index, crossing)| {
        let sent = crossing.sent.map(|at| WayStop { position: send_position(index), at });
        let received = crossing.received.map(|at| WayStop { position: receive_position(index), at });
        sent.into_iter().chain(received)
    })
}

#[cfg(test)]
mod tests {
    use super::super::ttft_path::test_paths::numbers_of;
    use super::*;

    fn crossing(sent: Option<u64>, received: Option<u64>, is_last: bool) -> FirstCrossing {
        FirstCrossing { sent: sent.map(MonoNs), received: received.map(MonoNs), is_last }
    }

    /// Each leg with its length: `hop 0`, `behind 0`, or the name of a leg of the time to first token.
    fn legs(times: [Option<u64>; 5], crossings: &[FirstCrossing]) -> Vec<(String, u64)> {
        let legs = first_token_legs(&numbers_of(times), crossings);
        assert!(legs.windows(2).all(|pair| pair[0].to <= pair[1].from), "{legs:?}");
        let named = legs.iter().map(|leg| {
            let name = match leg.place {
                FirstTokenPlace::Ttft(leg) => leg.to_string(),
                FirstTokenPlace::Way(parts) => {
                    let parts = parts.iter().map(|part| match part {
                        WayPart::OnHop(hop) => format!("hop {hop}"),
                        WayPart::Behind(hop) => format!("behind {hop}"),
                    });
                    parts.collect::<Vec<_>>().join("+")
                }
            };
            (name, leg.to.since(leg.from))
        });
        named.collect()
    }

    fn named<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
        expected.map(|(name, ns)| (name.to_owned(), ns)).to_vec()
    }

    #[test]
    fn the_way_to_the_tokenizer_is_split_at_every_observed_hop() {
        let times = [Some(100), Some(130), Some(400), Some(450), Some(470)];
        let crossings = [crossing(Some(400), Some(410), false), crossing(Some(415), Some(450), true)];
        let expected = named([
            ("dispatch", 30),
            ("intake+queue+prefill", 270),
            ("hop 0", 10),
            ("behind 0", 5),
            ("hop 1", 35),
            ("processing+delivery", 20),
        ]);
        assert_eq!(legs(times, &crossings), expected);
        let without_receive = [crossing(Some(400), None, false), crossing(Some(415), Some(450), true)];
        let expected = named([("hop 0+behind 0", 15), ("hop 1", 35)]);
        assert_eq!(legs(times, &without_receive)[2..4], expected[..]);
    }

    #[test]
    fn without_moments_on_hops_the_legs_are_those_of_the_time_to_first_token() {
        let times = [Some(100), None, Some(400), None, Some(470)];
        let expected = named([("dispatch+intake+queue+prefill", 300), ("output+processing+delivery", 70)]);
        assert_eq!(legs(times, &[]), expected);
        assert_eq!(legs(times, &[crossing(Some(400), None, true)]), expected);
        let elsewhere = [crossing(Some(400), None, true), crossing(None, None, false)];
        assert_eq!(legs(times, &elsewhere), expected, "the last hop is not that into the tokenizer");
    }

    #[test]
    fn a_tap_shows_a_part_of_the_way() {
        let sends = [crossing(Some(400), None, false), crossing(Some(430), None, true)];
        assert_eq!(legs([None, None, Some(400), None, None], &sends), named([("hop 0+behind 0", 30)]));
        assert_eq!(legs([None; 5], &sends), named([("hop 0+behind 0", 30)]), "joined late");
    }
}
