//! Entry of a sent chunk into the delivery tracker of its request.

use super::DeliveryTracker;
use crate::ledger::in_flight_entry::InFlightEntry;
use crate::ledger::outcome::{JudgedList, UnjudgedCause};

impl DeliveryTracker {
    /// Records a chunk that was sent, with the ids of its tokens, if kept. The chunk waits in flight for its delivery, in an entry of its
    /// own. Unless `has_own_entry`, it shares that of the chunk before. A chunk that no delivery can judge is returned as unjudged instead.
    pub(crate) fn push_chunk(&mut self, chunk: InFlightEntry, token_ids: &[i64], has_own_entry: bool) -> JudgedList {
        let chunk = InFlightEntry { chunks: 1, ..chunk };
        self.chunks_entered += 1;
        // A gap before the first chunk hides no chunk that is waited for.
        let after_gap = chunk.follows_gap && self.has_begun;
        if !self.has_begun {
            self.has_begun = true;
            // Tokens before the first observed chunk are not waited for.
            self.delivered_to = self.delivered_to.max(chunk.start_count());
        }
        if let Some(cause) = self.unjudged_cause_of_sent_chunk(&chunk) {
            let mut judged = JudgedList::default();
            judged.push_chunks(chunk.as_unjudged(cause));
            self.outcomes.add_counts(judged.count_outcomes());
            return judged;
        }
        self.chunks_in_flight += 1;
        let entry = InFlightEntry { ids: token_ids.len() as u32, follows_gap: after_gap, ..chunk };
        if has_own_entry || self.in_flight.is_empty() {
            let is_behind = entry.reported_count < entry.end_count;
            self.entries_behind += u32::from(is_behind);
            self.ids.extend(token_ids);
            self.in_flight.push_back(entry);
        } else {
            self.add_chunk_to_last_entry(entry, token_ids);
        }
        JudgedList::default()
    }

    /// Why no later delivery can judge a chunk that was just sent; `None` if one can.
    #[inline]
    fn unjudged_cause_of_sent_chunk(&self, chunk: &InFlightEntry) -> Option<UnjudgedCause> {
        if self.is_text_only {
            return Some(UnjudgedCause::TextOnly);
        }
        let was_delivered_before =
            chunk.tokens > 0 && chunk.end_count <= self.delivered_to && self.in_flight.is_empty();
        was_delivered_before.then_some(UnjudgedCause::MissedObservations)
    }

    /// Appends the ids of a chunk to those of the newest entry in flight. If they do not continue them without a gap, drops the entry's
    /// ids: it could not be told which of its tokens they belong to.
    #[inline]
    fn extend_or_drop_ids_of_last_entry(&mut self, chunk: &InFlightEntry, chunk_ids: &[i64]) {
        let Some(last) = self.in_flight.back_mut() else { return };
        let follows_directly = last.ids > 0 && last.end_count.checked_add(chunk.tokens) == Some(chunk.end_count);
        let has_all_ids = chunk_ids.len() == chunk.tokens as usize;
        if follows_directly && has_all_ids {
            last.ids += chunk.tokens;
            self.ids.extend(chunk_ids);
        } else {
            self.ids.truncate(self.ids.len() - last.ids as usize);
            last.ids = 0;
        }
    }

    /// Adds a chunk to the newest entry in flight, because there is no room for an entry of its own. `token_ids`: ids of its tokens, if
    /// kept.
    #[inline]
    fn add_chunk_to_last_entry(&mut self, chunk: InFlightEntry, token_ids: &[i64]) {
        // Before the entry's count changes, with which the ids are compared.
        self.extend_or_drop_ids_of_last_entry(&chunk, token_ids);
        let Some(last) = self.in_flight.back_mut() else { return };
        // A retracted request reports lower counts again while it recomputes.
        let was_behind = last.reported_count < last.end_count;
        last.end_count = last.end_count.max(chunk.end_count);
        let is_behind = chunk.reported_count < last.end_count;
        // While counts run behind, a shared entry cannot be found by the reported count of each of its chunks.
        last.reported_count = if was_behind || is_behind { 0 } else { chunk.reported_count };
        self.entries_behind += u32::from(is_behind && !was_behind);
        self.is_incomplete |= was_behind || is_behind;
        last.tokens = last.tokens.saturating_add(chunk.tokens);
        last.missing_tokens = last.missing_tokens.saturating_add(chunk.missing_tokens);
        last.is_imprecise |= chunk.is_imprecise;
        last.follows_gap |= chunk.follows_gap;
        last.chunks += 1;
    }
}
