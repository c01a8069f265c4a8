//! Where a request's first token was between the scheduler's send and the tokenizer's receive: waiting on hops, and inside the processes
//! between them.

use smallvec::SmallVec;

use super::hop::Hop;
use super::hops::Hops;
use super::stream::Stream;
use super::{Ledger, Request};
use crate::clock::MonoNs;
use crate::id::{HopId, Ticket};
use crate::stats::LongDurations;

/// Kind of place in which a first token spends a part of its gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapPlace {
    /// It waits on the hop.
    OnHop,
    /// It is inside the process that received it from the hop.
    InReceiver,
    /// On the hop or inside its receiver, where receives are not observed.
    OnHopOrInReceiver,
}

/// A part of a request's first-token gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GapPart {
    pub(crate) place: GapPlace,
    pub(crate) hop: HopId,
    pub(crate) ns: u64,
    /// Whether it has not ended.
    pub(crate) is_open: bool,
}

/// Parts of a request's first-token gap: the time from the scheduler's send of its first token to `until`. That is the tokenizer's receive,
/// or now while the token waits. A part is left out if the receive at its end was missed.
pub(crate) fn parts_of_first_token_gap<'a>(
    request: &'a Request,
    hops: &'a [Hop],
    until: MonoNs,
) -> impl Iterator<Item = GapPart> + 'a {
    // A request has one stream on each hop. Only a whole one was seen from its first token on.
    let whole_streams = request.streams.iter().filter(|stream| stream.is_whole());
    whole_streams.flat_map(move |stream| {
        let hop = hops.iter().find(|hop| hop.id == stream.hop);
        let sent_on = sent_on_at(request, stream);
        gap_parts_of_stream(stream, hop, sent_on, until).into_iter().flatten()
    })
}

/// Parts of a request's first-token gap on the hop of this stream (its chunks on one hop) and inside the hop's receiver. `sent_on_at`: when
/// the receiver sent the token on; `None` if it did not yet, or is the tokenizer. A part that has not ended counts up to `until`.
fn gap_parts_of_stream(
    stream: &Stream,
    hop: Option<&Hop>,
    sent_on_at: Option<MonoNs>,
    until: MonoNs,
) -> [Option<GapPart>; 2] {
    let part_between = |place: GapPlace, from: MonoNs, to: Option<MonoNs>| {
        let ns = to.unwrap_or(until).since(from);
        GapPart { place, hop: stream.hop, ns, is_open: to.is_none() }
    };
    let sent = stream.first_at;
    if let Some(received) = stream.first_received() {
        let on_hop = part_between(GapPlace::OnHop, sent, Some(received));
        // The gap ends when the tokenizer receives the token.
        let is_end_of_gap = hop.is_some_and(|hop| hop.last);
        let in_receiver = (!is_end_of_gap).then(|| part_between(GapPlace::InReceiver, received, sent_on_at));
        return [Some(on_hop), in_receiver];
    }
    let shows_receives = hop.is_some_and(|hop| hop.shows.received);
    if !shows_receives {
        return [Some(part_between(GapPlace::OnHopOrInReceiver, sent, sent_on_at)), None];
    }
    if sent_on_at.is_some() {
        // It was sent on, so its receive was missed.
        return [None, None];
    }
    [Some(part_between(GapPlace::OnHop, sent, None)), None]
}

/// When the receiver of a stream's hop sent the first token on; `None` if it did not yet, or is the tokenizer.
fn sent_on_at(request: &Request, stream: &Stream) -> Option<MonoNs> {
    let next = request.streams.iter().filter(|next| next.is_whole() && next.ends.from == stream.ends.to);
    next.map(|next| next.first_at).filter(|at| *at >= stream.first_at).min()
}

impl Hops {
    /// Sums of the parts that long first-token gaps spent at this place of the hop; `None` if the hop is unknown.
    fn long_gap_sums_mut(&mut self, place: GapPlace, hop_id: HopId) -> Option<&mut LongDurations> {
        let hop = self.all.iter_mut().find(|hop| hop.id == hop_id)?;
        let receiver = hop.ends.to;
        match place {
            GapPlace::OnHop => Some(&mut hop.long_gap_waits),
            // A receiver has its sums over all hops that lead to it.
            GapPlace::InReceiver => self.processing_stages.get_mut(receiver).map(|stage| &mut stage.long_gaps_inside),
            GapPlace::OnHopOrInReceiver => {
                self.processing_stages.get_mut(receiver).map(|stage| &mut stage.long_gaps_through)
            }
        }
    }
}

impl Ledger {
    /// Adds a long gap that ended at `received_at` to the sums of long ones, with its parts.
    pub(super) fn record_long_gap(&mut self, ticket: Ticket, gap_ns: u64, received_at: MonoNs) {
        let Some(request) = self.table.get(ticket) else { return };
        self.long_gaps.record(gap_ns);
        // Collected first, because reading the parts borrows the hops, whose sums change below.
        let parts: SmallVec<[GapPart; 4]> = parts_of_first_token_gap(request, &self.hops.all, received_at).collect();
        for part in parts {
            if let Some(sums) = self.hops.long_gap_sums_mut(part.place, part.hop) {
                sums.record_part(part.ns, gap_ns);
            }
        }
    }
}
