//! Where a request's first token was between the scheduler's send and the tokenizer's receive: waiting on hops, and inside the processes
//! between them.

use smallvec::SmallVec;

use super::hop::Hop;

use super::stream::Stream;
use super::{Ledger, Request};
use crate::clock::MonoNs;
use crate::id::{HopId, Ticket};

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

/// Parts of the gap of a request whose first token had come this far at `until`: the tokenizer's receive, or now while it waits. Leaves
/// out what was not observed: the time before the send to the next hop, if the receive in between was missed.
pub(crate) fn parts_of_gap<'a>(
    request: &'a Request,
    hops: &'a [Hop],
    until: MonoNs,
) -> impl Iterator<Item = GapPart> + 'a {
    let whole_streams = request.streams.iter().filter(|stream| stream.is_whole());
    whole_streams.flat_map(move |stream| {
        let hop = hops.iter().find(|hop| hop.id == stream.hop);
        let shows_receives = hop.is_some_and(|hop| hop.shows.received);
        let leads_to_tokenizer = hop.is_some_and(|hop| hop.last);
        let part = |place, from: MonoNs, to: Option<MonoNs>| {
            let ns = to.unwrap_or(until).since(from);
            Some(GapPart { place, hop: stream.hop, ns, is_open: to.is_none() })
        };
        let sent = stream.first_at;
        let sent_on = sent_on_at(request, stream);
        let parts = match stream.first_received() {
            Some(received) if leads_to_tokenizer => [part(GapPlace::OnHop, sent, Some(received)), None],
            Some(received) => {
                [part(GapPlace::OnHop, sent, Some(received)), part(GapPlace::InReceiver, received, sent_on)]
            }
            None if !shows_receives => [part(GapPlace::OnHopOrInReceiver, sent, sent_on), None],
            // It was sent on, so its receive was missed.
            None if sent_on.is_some() => [None, None],
            None => [part(GapPlace::OnHop, sent, None), None],
        };
        parts.into_iter().flatten()
    })
}

/// When the receiver of a stream's hop sent the first token on; `None` if it did not yet, or is the tokenizer.
fn sent_on_at(request: &Request, stream: &Stream) -> Option<MonoNs> {
    let next = request.streams.iter().filter(|next| next.is_whole() && next.ends.from == stream.ends.to);
    next.map(|next| next.first_at).filter(|at| *at >= stream.first_at).min()
}

impl Ledger {
    /// Adds a long gap that ended at `received` to the sums of long ones, with its parts.
    pub(super) fn record_long_gap(&mut self, ticket: Ticket, gap_ns: u64, received: MonoNs) {
        let Some(request) = self.table.get(ticket) else { return };
        self.long_gaps.record(gap_ns);
        let parts: SmallVec<[GapPart; 4]> = parts_of_gap(request, &self.hops.all, received).collect();
        for part in parts {
            let Some(hop) = self.hops.all.iter_mut().find(|hop| hop.id == part.hop) else { continue };
            let sums = match part.place {
                GapPlace::OnHop => Some(&mut hop.long_gap_waits),
                GapPlace::InReceiver => {
                    self.hops.processing_stages.get_mut(hop.ends.to).map(|stage| &mut stage.long_gaps_inside)
                }
                GapPlace::OnHopOrInReceiver => {
                    self.hops.processing_stages.get_mut(hop.ends.to).map(|stage| &mut stage.long_gaps_through)
                }
            };
            if let Some(sums) = sums {
                sums.record_part(part.ns, gap_ns);
            }
        }
    }
}
