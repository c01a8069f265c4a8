//! Changes of a request's receiver while its chunks were sent.

use std::fmt;

use session::units::format_duration;
use trace::ledger::{ChunkRecord, RequestHistory};
use trace::path::Ends;

use super::hop_ends::HopEnds;

/// The request's chunks go to another receiver of the same role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiverChange {
    role: String,
    from: String,
    to: String,
    /// Number of the first chunk for the new receiver, counted from 1; `None` if earlier chunks are not kept any more.
    chunk: Option<usize>,
    /// From the first kept chunk to this one; `None` if a send was not observed.
    after_ns: Option<u64>,
}

impl fmt::Display for ReceiverChange {
    /// `detokenizer worker 1 to worker 2 at chunk 2, 500 ms after its first`, as far as these are known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} to {}", self.role, self.from, self.to)?;
        // If earlier chunks are not kept, the time since the first kept one would mislead.
        let Some(chunk) = self.chunk else { return Ok(()) };
        write!(f, " at chunk {chunk}")?;
        match self.after_ns {
            Some(after_ns) => write!(f, ", {} after its first", format_duration(after_ns)),
            None => Ok(()),
        }
    }
}

/// Joins the descriptions of the first few changes, and the number of the others; `None` without any.
pub(crate) fn describe_receiver_changes(changes: &[ReceiverChange]) -> Option<String> {
    const MAX_NAMED: usize = 3;
    let mut named: Vec<String> = changes.iter().take(MAX_NAMED).map(ReceiverChange::to_string).collect();
    if changes.len() > MAX_NAMED {
        named.push(format!("{} more changes", changes.len() - MAX_NAMED));
    }
    (!named.is_empty()).then(|| named.join("; "))
}

/// Changes of the receiver on every leg of the path, in the order of the legs. All hops between the same two roles are one leg.
pub(crate) fn receiver_changes(history: &RequestHistory, hops: &[HopEnds]) -> Vec<ReceiverChange> {
    let mut changes = Vec::new();
    let mut seen_legs: Vec<&Ends<Box<str>>> = Vec::new();
    for HopEnds { ends, .. } in hops {
        if !seen_legs.contains(&ends) {
            seen_legs.push(ends);
            changes.extend(changes_on_leg(history, hops, ends));
        }
    }
    changes
}

/// Lists the changes of receiver on a leg: one for each chunk that has another receiver than the chunk before it. A leg is all hops with
/// the same ends, the sending and the receiving role.
fn changes_on_leg(history: &RequestHistory, hops: &[HopEnds], leg_ends: &Ends<Box<str>>) -> Vec<ReceiverChange> {
    let mut changes = Vec::new();
    let mut chunks = chunks_on_leg(history, hops, leg_ends).enumerate();
    let Some((_, first)) = chunks.next() else { return changes };
    let mut last_receiver = first.receiver;
    for (index, ReceivedBy { chunk, receiver }) in chunks {
        if receiver == last_receiver {
            continue;
        }
        // Both times are known, or none is used.
        let sent_times = first.chunk.sent.zip(chunk.sent);
        changes.push(ReceiverChange {
            role: leg_ends.to.to_string(),
            from: last_receiver.to_owned(),
            to: receiver.to_owned(),
            // Without the first chunks, the number of this one is unknown.
            chunk: history.since.is_none().then_some(index + 1),
            after_ns: sent_times.map(|(first_sent, sent)| sent.since(first_sent)),
        });
        last_receiver = receiver;
    }
    changes
}

/// Chunks that were sent on the hops with these ends, in their order, each with its receiver.
fn chunks_on_leg<'a>(
    history: &'a RequestHistory,
    hops: &'a [HopEnds],
    leg_ends: &'a Ends<Box<str>>,
) -> impl Iterator<Item = ReceivedBy<'a>> {
    history.chunks.iter().filter_map(move |chunk| {
        let hop = hops.iter().find(|hop| hop.id == chunk.hop && hop.ends == *leg_ends)?;
        Some(ReceivedBy { chunk, receiver: &hop.receiver })
    })
}

struct ReceivedBy<'a> {
    chunk: &'a ChunkRecord,
    receiver: &'a str,
}

#[cfg(test)]
mod tests {
    use trace::{HopId, MonoNs};

    use super::*;

    const MS: u64 = 1_000_000;

    fn hop(id: u16, from: &str, to: &str) -> HopEnds {
        HopEnds { id: HopId(id), ends: Ends::new(from, to).to_owned(), receiver: format!("worker {id}") }
    }

    fn chunk(hop: u16, number: u32, sent_ms: u64) -> ChunkRecord {
        ChunkRecord {
            hop: HopId(hop),
            number,
            sent: Some(MonoNs(sent_ms * MS)),
            received: None,
            wakeup: None,
            tokens: 1,
            end: Some(number),
            outcome: None,
            judged_at: None,
            merged_into: None,
        }
    }

    #[test]
    fn a_change_names_both_receivers_of_its_leg() {
        let hops =
            [hop(1, "router", "detokenizer"), hop(2, "router", "detokenizer"), hop(3, "detokenizer", "tokenizer")];
        let chunks = vec![chunk(1, 1, 1), chunk(3, 1, 2), chunk(2, 2, 501), chunk(3, 2, 502)];
        let history = RequestHistory { chunks, ..RequestHistory::default() };
        let changes = receiver_changes(&history, &hops);
        let described = describe_receiver_changes(&changes);
        assert_eq!(described.as_deref(), Some("detokenizer worker 1 to worker 2 at chunk 2, 500 ms after its first"));
        assert_eq!(describe_receiver_changes(&[]), None);
    }
}
