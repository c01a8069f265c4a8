//! Consistency check of a stream's counts. Where messages have them, `completion_tokens` is cumulative, so counts show missing tokens.
//! Formats without counts ([`IdColumn::Uncounted`]) have nothing to check; a stream's count is then the sum of its observed ids.
//!
//! The scheduler keeps a send offset per request, and a chunk lists the ids between the old offset and the new one. A delta
//! therefore lists exactly `completion - highest` ids, where `highest` is the highest count of the stream so far. While a retracted
//! request with `input_embeds` recomputes its tokens (0.5.10rc0 and later), its counts are below `highest` and it lists no ids.

use crate::event::{Finish, IdColumn};

/// A first chunk of `DeltaAfterPromptTail` lists at most this many ids of the prompt
/// (`INIT_INCREMENTAL_DETOKENIZATION_OFFSET` in `schedule_batch.py`).
const MAX_PROMPT_TAIL_TOKENS: u32 = 5;
/// Number of consecutive chunks that must contradict the release's claim before it is rejected.
const MIN_CONTRADICTIONS: u8 = 3;

/// Highest plausible count of a first chunk. A stream that lists all ids so far or none, and starts above this, was joined late.
/// A non-streaming request's first chunk comes at 50 tokens.
const MAX_START_TOKENS: u32 = 64;
/// After this many consecutive observed frames of its connection, a stream that starts higher was not joined late: a running request
/// would have been in one of them. Releases up to 0.4.8 emit only at multiples of the interval. A request with several tokens per
/// step may never hit one, so its finish is its first chunk.
const LONG_WATCHED_FRAMES: u64 = 50;

/// Counts reported by a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportedCounts {
    pub(crate) claim: IdColumn,
    pub(crate) listed: Option<u32>,
    pub(crate) completion_tokens: Option<u32>,
    pub(crate) finish: Option<Finish>,
    /// The retraction counter has grown since the last chunk.
    pub(crate) retracted: bool,
    /// Consecutive frames observed on its connection before this one; `None` while an evicted request may resume.
    pub(crate) watched_frames: Option<u64>,
}

impl ReportedCounts {
    /// Whether the connection was observed for so long that an earlier chunk of the stream would have been seen.
    fn was_watched_long(&self) -> bool {
        self.watched_frames.is_some_and(|frames| frames >= LONG_WATCHED_FRAMES)
    }

    /// Whether the chunk, with count `completion`, may continue an evicted request: with a later token than the first, or with a finish
    /// without a token.
    fn may_resume_evicted(&self, completion: u32) -> bool {
        self.watched_frames.is_none() && (completion > 1 || self.finish.is_some())
    }
}

/// Conclusion from a chunk's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountVerdict {
    /// The counts add up, or nothing can be concluded.
    Fits,
    /// The first chunk seen was not the stream's first.
    JoinedLate,
    /// Observations were missed: the stream restarts here, and the chunk is not judged.
    Rebased,
    /// A repeated finish (0.4.x with overlap scheduling), without new tokens.
    Repeat,
    /// The rid belongs to another request from here on; the chunk has not been counted.
    Restart,
    /// Tokens between the previous chunk and this one never crossed this hop.
    Loss { missing: u32 },
    /// The chunk was overtaken by a later one on another connection: it brings tokens that seemed to be missing.
    Late,
    /// The chunk lists more ids than it has new tokens, and no known behaviour explains it.
    Surplus { extra: u32 },
    /// The chunk lists fewer ids than its count, after one that listed all ids so far: they belong to different requests with the same rid.
    Overlap,
    /// Lists all ids so far, though the release claims new ones only. `confirmed`: at least the third such chunk in a row.
    Inflated { listed: u32, new: u32, confirmed: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountStep {
    /// Tokens that the scheduler generated since the previous chunk, by its own count.
    pub(crate) new: u32,
    /// Tokens this chunk carries: the new ones, unless some are missing.
    pub(crate) carried: u32,
    pub(crate) verdict: CountVerdict,
}

impl CountStep {
    fn new(new: u32, carried: u32, verdict: CountVerdict) -> Self {
        Self { new, carried, verdict }
    }

    pub(crate) fn fits(new: u32) -> Self {
        Self::new(new, new, CountVerdict::Fits)
    }

    /// Tokens that the chunk brings to the hop: not those that are missing before it.
    #[inline]
    pub(crate) fn tokens_on_hop(self) -> u32 {
        match self.verdict {
            CountVerdict::Loss { .. } | CountVerdict::Late => self.carried,
            _ => self.new,
        }
    }

    fn without_tokens(verdict: CountVerdict) -> Self {
        Self::new(0, 0, verdict)
    }

    /// Step of a chunk after the finish of its stream. Unless it `repeats_finish`, it belongs to another request that has the rid now.
    fn after_finish(repeats_finish: bool) -> Self {
        Self::without_tokens(if repeats_finish { CountVerdict::Repeat } else { CountVerdict::Restart })
    }
}

/// Type of the ids in a stream, inferred from its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// No chunk so far distinguishes the two types.
    #[default]
    Undecided,
    /// New ids only.
    Delta,
    /// All ids so far.
    Cumulative,
}

/// Whether deltas have been empty since a gap in observation: counts then run behind an unobserved send offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CatchUpState {
    #[default]
    No,
    SinceJoin,
    SinceLoss,
}

/// Counts of one stream: one rid on one hop.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCount {
    /// Highest `completion_tokens` seen.
    pub(crate) highest: u32,
    /// Last `completion_tokens` seen.
    last_count: u32,
    /// The hop's epoch when the stream began or was rebased.
    pub(crate) epoch: u32,
    contradicting_chunks: u8,
    pub(crate) evidence: Evidence,
    catch_up: CatchUpState,
    has_begun: bool,
    /// Seen from its first token on.
    pub(crate) is_whole: bool,
    pub(crate) is_finished: bool,
}

impl StreamCount {
    /// Counts a chunk and compares its counts with those before. Returns its new tokens, with the conclusion from its counts (the verdict).
    /// `epoch` changes whenever observations of the hop were missed.
    pub(crate) fn count_and_check_chunk(&mut self, reported: ReportedCounts, epoch: u32) -> CountStep {
        let Some(completion_count) = reported.completion_tokens else {
            return if reported.claim == IdColumn::Uncounted {
                self.count_chunk_of_uncounted_format(reported, epoch)
            } else {
                self.count_chunk_without_count(reported)
            };
        };
        if self.is_finished {
            return self.check_chunk_after_finish(reported, completion_count);
        }
        // An id column that is empty by design carries no information.
        let listed = reported.listed.filter(|&listed| listed > 0 || reported.claim != IdColumn::Absent);
        let step = if !self.has_begun {
            self.begin_stream(reported, listed, completion_count, epoch)
        } else if let Some(listed) = listed {
            self.count_chunk_by_listed_ids(reported, listed, completion_count, epoch)
        } else {
            self.raise_count_to(completion_count)
        };
        // A restart means that the chunk belongs to another request, and was not counted.
        if step.verdict != CountVerdict::Restart {
            self.has_begun = true;
            self.last_count = completion_count;
            self.is_finished |= reported.finish.is_some();
        }
        step
    }

    /// Whether its last chunk had a lower count than one before it.
    pub(crate) fn is_behind(&self) -> bool {
        self.last_count < self.highest
    }

    /// Whether its last chunk listed all ids so far although its column has new ids only. It may then mix two requests.
    pub(crate) fn last_chunk_listed_all(&self) -> bool {
        self.contradicting_chunks > 0 && self.evidence != Evidence::Cumulative
    }

    /// Whether a chunk after the first listed all ids so far although the release sends new ids only. It may have begun another request.
    pub(crate) fn may_mix_requests(&self) -> bool {
        self.contradicting_chunks > 0
    }

    /// Judges a chunk after the finish. It either repeats the finish, or belongs to another request that has the rid now.
    /// `completion_count` is its count.
    fn check_chunk_after_finish(&self, reported: ReportedCounts, completion_count: u32) -> CountStep {
        let lists_ids = reported.listed.is_some_and(|listed| listed > 0);
        let has_new_tokens = lists_ids && self.meaning_of_ids(reported.claim) == Evidence::Delta;
        // A retracted request that recomputes ends with a count below its highest.
        let has_known_count = completion_count == self.highest || completion_count == self.last_count;
        let repeats_finish = reported.finish.is_some() && has_known_count && !has_new_tokens;
        CountStep::after_finish(repeats_finish)
    }

    /// Counts a later chunk of the stream by the number of ids that it lists. What they are is known of the stream (new ids or all so far),
    /// or may be decided by this chunk. `completion_count`: the chunk's own count.
    fn count_chunk_by_listed_ids(
        &mut self,
        reported: ReportedCounts,
        listed_ids: u32,
        completion_count: u32,
        epoch: u32,
    ) -> CountStep {
        match self.meaning_of_ids(reported.claim) {
            Evidence::Cumulative => return self.count_chunk_with_all_ids(reported.claim, listed_ids, completion_count),
            Evidence::Delta => return self.count_chunk_with_new_ids(reported, listed_ids, completion_count, epoch),
            Evidence::Undecided => {}
        }
        // A list of all ids has at least as many as the count. (In a final chunk it may not: ids of an abort may be trimmed.)
        let lists_too_few_for_all = listed_ids > 0 && listed_ids < completion_count && reported.finish.is_none();
        if lists_too_few_for_all {
            self.evidence = Evidence::Delta;
            return self.count_chunk_with_new_ids(reported, listed_ids, completion_count, epoch);
        }
        self.count_chunk_of_undecided_ids(listed_ids, completion_count, epoch)
    }

    /// Whether the listed ids are new ones or all so far: by the stream's own evidence, otherwise by `claimed_ids`, what the engine's
    /// release is known to list.
    pub(crate) fn meaning_of_ids(&self, claimed_ids: IdColumn) -> Evidence {
        if self.evidence != Evidence::Undecided {
            return self.evidence;
        }
        match claimed_ids {
            IdColumn::Delta | IdColumn::DeltaAfterPromptTail | IdColumn::Uncounted => Evidence::Delta,
            IdColumn::Cumulative => Evidence::Cumulative,
            IdColumn::Undecided | IdColumn::Absent => Evidence::Undecided,
        }
    }

    /// Records a chunk of a format that never has counts. It lists its new ids, so the count of the stream is their sum.
    fn count_chunk_of_uncounted_format(&mut self, reported: ReportedCounts, epoch: u32) -> CountStep {
        let new = reported.listed.unwrap_or(0);
        if self.is_finished {
            let repeats_finish = reported.finish.is_some() && new == 0;
            return CountStep::after_finish(repeats_finish);
        }
        let verdict = self.check_continuity_without_counts(reported, epoch);
        self.has_begun = true;
        self.epoch = epoch;
        self.highest = self.highest.saturating_add(new);
        self.last_count = self.highest;
        self.is_finished = reported.finish.is_some();
        // No count can show that tokens are missing before it, so it carries all new ones.
        let carried = new;
        CountStep::new(new, carried, verdict)
    }

    /// Checks whether a chunk without a count directly follows the last observed one of its stream. If chunks before it may have been
    /// missed, marks the stream as not whole: positions in it are then unknown. Called before the chunk is counted.
    #[inline]
    fn check_continuity_without_counts(&mut self, reported: ReportedCounts, epoch: u32) -> CountVerdict {
        if !self.has_begun {
            self.is_whole = reported.was_watched_long();
            return if self.is_whole { CountVerdict::Fits } else { CountVerdict::JoinedLate };
        }
        let has_missed_chunks = self.epoch != epoch;
        if has_missed_chunks {
            self.is_whole = false;
            return CountVerdict::Rebased;
        }
        CountVerdict::Fits
    }

    /// Records a chunk that has no count, although those of its format may have one.
    fn count_chunk_without_count(&mut self, reported: ReportedCounts) -> CountStep {
        self.has_begun = true;
        self.is_finished |= reported.finish.is_some();
        let Some(listed) = reported.listed else { return CountStep::fits(0) };
        match self.meaning_of_ids(reported.claim) {
            Evidence::Delta => {
                self.highest = self.highest.saturating_add(listed);
                CountStep::fits(listed)
            }
            Evidence::Cumulative => self.raise_count_to(listed),
            // Unknown which of the ids are new.
            Evidence::Undecided => CountStep::fits(0),
        }
    }

    /// Records the first observed chunk of a stream, with count `completion_count`. If the chunk lists all its tokens, the stream is whole:
    /// observed from its first token on.
    fn begin_stream(
        &mut self,
        reported: ReportedCounts,
        listed_ids: Option<u32>,
        completion_count: u32,
        epoch: u32,
    ) -> CountStep {
        let claim = reported.claim;
        self.epoch = epoch;
        self.highest = completion_count;
        let may_resume = reported.may_resume_evicted(completion_count);
        // A list of all ids so far does not show whether chunks before it were missed.
        let ids_showing_start = if claim == IdColumn::Cumulative { None } else { listed_ids };
        let Some(listed_ids) = ids_showing_start else {
            return self.begin_stream_without_ids(reported, completion_count, may_resume);
        };
        if listed_ids < completion_count {
            // Tokens before the chunk were missed. If it lists no ids at all, its count may also be too low.
            self.catch_up = if listed_ids == 0 { CatchUpState::SinceJoin } else { CatchUpState::No };
            return CountStep::new(listed_ids, listed_ids, CountVerdict::JoinedLate);
        }
        // An undecided column may list all ids so far. Then a later chunk of an evicted request would look like a first one.
        if may_resume && claim == IdColumn::Undecided {
            return CountStep::new(completion_count, completion_count, CountVerdict::JoinedLate);
        }
        self.begin_stream_with_all_ids(reported, listed_ids, completion_count)
    }

    /// Begins a stream with a chunk that lists all its tokens, and maybe more ids than those.
    fn begin_stream_with_all_ids(
        &mut self,
        reported: ReportedCounts,
        listed_ids: u32,
        completion_count: u32,
    ) -> CountStep {
        // A chunk with count 0 is not the start if the request was retracted.
        self.is_whole = completion_count > 0 || !reported.retracted;
        let extra = listed_ids - completion_count;
        let is_explained = may_list_extra_ids(reported.claim, extra);
        let verdict = if is_explained { CountVerdict::Fits } else { CountVerdict::Surplus { extra } };
        CountStep::new(completion_count, completion_count, verdict)
    }

    /// Judges by its count alone whether the first observed chunk is the stream's first. `may_resume`: it may continue an evicted request.
    fn begin_stream_without_ids(
        &mut self,
        reported: ReportedCounts,
        completion_count: u32,
        may_resume: bool,
    ) -> CountStep {
        // A low count is plausible for a first chunk. With a higher count, it is the first one if an earlier one would have been observed.
        let has_low_count = completion_count <= MAX_START_TOKENS;
        let is_surely_first = reported.was_watched_long() && !reported.retracted;
        self.is_whole = (has_low_count || is_surely_first) && !may_resume;
        let verdict = if self.is_whole { CountVerdict::Fits } else { CountVerdict::JoinedLate };
        CountStep::new(completion_count, completion_count, verdict)
    }

    /// Raises the highest count to `completion_count`. Returns the step of a chunk whose ids show nothing more.
    fn raise_count_to(&mut self, completion_count: u32) -> CountStep {
        let new = completion_count.saturating_sub(self.highest);
        self.highest = self.highest.max(completion_count);
        CountStep::fits(new)
    }

    /// Counts a chunk of a stream that lists all ids so far (`listed_ids`: their number). The repeated ids are a finding if the engine's
    /// release is known to list only new ones (`claimed_ids`), and several chunks have contradicted that.
    fn count_chunk_with_all_ids(&mut self, claimed_ids: IdColumn, listed_ids: u32, completion_count: u32) -> CountStep {
        // In releases that send all ids (up to 0.4.6.post3), counts never fall, so a lower count is that of another request with the rid.
        let may_send_all_ids = matches!(claimed_ids, IdColumn::Cumulative | IdColumn::Undecided);
        let lists_all = listed_ids == completion_count;
        if may_send_all_ids && lists_all && completion_count < self.highest {
            return CountStep::without_tokens(CountVerdict::Restart);
        }
        let has_rejected_claim = self.contradicting_chunks >= MIN_CONTRADICTIONS;
        let step = self.raise_count_to(completion_count);
        // If all tokens of the chunk are new, a list of new ids would be the same, so it proves nothing.
        let lists_new_only = listed_ids == step.new;
        if lists_all && !lists_new_only {
            self.evidence = Evidence::Cumulative;
        }
        if has_rejected_claim && listed_ids > step.new {
            let verdict = CountVerdict::Inflated { listed: listed_ids, new: step.new, confirmed: true };
            return CountStep { verdict, ..step };
        }
        step
    }

    /// Counts a chunk that may list new ids only, or all so far: that is not known of the stream yet. The first chunk that allows only one
    /// of these readings decides it. `epoch` changes whenever observations of the hop were missed.
    fn count_chunk_of_undecided_ids(&mut self, listed_ids: u32, completion_count: u32, epoch: u32) -> CountStep {
        // In either reading, its ids begin with its request's first token. The stream is beyond it, so another request has the rid now.
        if listed_ids > 0 && listed_ids == completion_count && completion_count < self.highest {
            return CountStep::without_tokens(CountVerdict::Restart);
        }
        let new = completion_count.saturating_sub(self.highest);
        let carried = new.min(listed_ids);
        if epoch != self.epoch {
            self.rebase_count(listed_ids, completion_count, epoch);
            return CountStep::new(new, carried, CountVerdict::Rebased);
        }
        self.decide_meaning_of_ids(listed_ids, new, completion_count);
        self.highest = self.highest.max(completion_count);
        CountStep::new(new, carried, CountVerdict::Fits)
    }

    /// Continues the count after missed observations. The count of a chunk with ids becomes the new base. It may be lower, because another
    /// request may have the rid. A chunk without ids may be one of a retracted request that recomputes, whose lower count is ignored.
    fn rebase_count(&mut self, listed: u32, completion: u32, epoch: u32) {
        self.epoch = epoch;
        self.highest = if listed > 0 { completion } else { self.highest.max(completion) };
    }

    /// Decides whether the stream lists new ids or all so far, if the chunk allows only one of them.
    #[inline]
    fn decide_meaning_of_ids(&mut self, listed_ids: u32, new_tokens: u32, completion_count: u32) {
        // If all its tokens are new, both lists are the same.
        if new_tokens == 0 || new_tokens == completion_count {
            return;
        }
        if listed_ids == new_tokens {
            self.evidence = Evidence::Delta;
        } else if listed_ids == completion_count {
            self.evidence = Evidence::Cumulative;
        }
    }

    /// Counts a chunk of a stream that lists only new ids. Compares their number (`listed_ids`) with the growth of the count to
    /// `completion_count`. `epoch` changes whenever observations of the hop were missed.
    fn count_chunk_with_new_ids(
        &mut self,
        reported: ReportedCounts,
        listed_ids: u32,
        completion_count: u32,
        epoch: u32,
    ) -> CountStep {
        // The stream has these tokens already, so a first chunk is that of another request with the rid.
        if completion_count <= self.highest && looks_like_first_chunk(reported, listed_ids, completion_count) {
            return CountStep::without_tokens(CountVerdict::Restart);
        }
        let has_missed_chunks = epoch != self.epoch;
        if has_missed_chunks {
            return self.rebase_count_of_new_ids(listed_ids, completion_count, epoch);
        }
        let new = completion_count.saturating_sub(self.highest);
        if self.catch_up != CatchUpState::No {
            return self.count_chunk_while_catching_up(listed_ids, completion_count, new);
        }
        let is_behind = completion_count < self.highest;
        self.highest = self.highest.max(completion_count);
        if listed_ids == new {
            return self.check_chunk_with_matching_ids(new, completion_count, is_behind);
        }
        self.check_chunk_with_differing_ids(reported, listed_ids, completion_count, new)
    }

    /// Judges a chunk of a stream with new ids only that lists more or fewer ids than it has new tokens (`new_tokens`). `completion_count`:
    /// the chunk's own count.
    #[inline]
    fn check_chunk_with_differing_ids(
        &mut self,
        reported: ReportedCounts,
        listed_ids: u32,
        completion_count: u32,
        new_tokens: u32,
    ) -> CountStep {
        // An abort's ids may be trimmed to what the client asked for.
        if reported.finish == Some(Finish::Abort) {
            return CountStep::new(new_tokens, new_tokens.min(listed_ids), CountVerdict::Fits);
        }
        // If the last chunk listed all ids, it may belong to another request with the rid.
        let mixes_requests = self.last_chunk_listed_all();
        if listed_ids < new_tokens {
            let missing_ids = new_tokens - listed_ids;
            let verdict = verdict_of_missing_ids(reported, missing_ids, mixes_requests);
            return CountStep::new(new_tokens, listed_ids, verdict);
        }
        // From here on, the chunk lists extra ids. In some releases, they are those of the prompt's tail.
        if reported.claim == IdColumn::DeltaAfterPromptTail {
            return CountStep::fits(new_tokens);
        }
        // It lists all ids so far, against what is known of the stream.
        if listed_ids == completion_count {
            return self.count_contradicting_chunk(listed_ids, new_tokens);
        }
        let extra = listed_ids - new_tokens;
        let verdict = if mixes_requests { CountVerdict::Overlap } else { CountVerdict::Surplus { extra } };
        CountStep::new(new_tokens, new_tokens, verdict)
    }

    /// Continues a stream whose chunks list only new ids after missed observations. The chunk is not judged.
    #[inline]
    fn rebase_count_of_new_ids(&mut self, listed_ids: u32, completion_count: u32, epoch: u32) -> CountStep {
        let new = completion_count.saturating_sub(self.highest);
        self.contradicting_chunks = 0;
        // Without ids, the chunk's count may be too low, until a chunk with ids shows it.
        self.catch_up = if listed_ids == 0 { CatchUpState::SinceLoss } else { CatchUpState::No };
        self.rebase_count(listed_ids, completion_count, epoch);
        CountStep::new(new, new.min(listed_ids), CountVerdict::Rebased)
    }

    /// Judges a chunk that lists exactly its new tokens. It fits, unless the previous chunk listed all ids so far: the two then belong to
    /// different requests with the same rid. `is_behind`: the chunk's count, `completion_count`, is below the stream's highest.
    #[inline]
    fn check_chunk_with_matching_ids(&mut self, new_tokens: u32, completion_count: u32, is_behind: bool) -> CountStep {
        // Asked before `contradicting_chunks` changes, on which it depends.
        let mixes_requests = self.last_chunk_listed_all();
        if new_tokens > 0 {
            self.contradicting_chunks = 0;
            // If all its tokens are new, a list of all ids so far would be the same.
            if new_tokens != completion_count {
                self.evidence = Evidence::Delta;
            }
        }
        let is_overlap = mixes_requests && (new_tokens > 0 || is_behind);
        let verdict = if is_overlap { CountVerdict::Overlap } else { CountVerdict::Fits };
        CountStep::new(new_tokens, new_tokens, verdict)
    }

    /// Counts a chunk that lists all ids so far although the release is known to list new ones only. Several such chunks in a row show that
    /// the stream lists all ids.
    fn count_contradicting_chunk(&mut self, listed_ids: u32, new_tokens: u32) -> CountStep {
        self.contradicting_chunks = self.contradicting_chunks.saturating_add(1);
        let confirmed = self.contradicting_chunks >= MIN_CONTRADICTIONS;
        if confirmed {
            self.evidence = Evidence::Cumulative;
        }
        CountStep::new(
            new_tokens,
            new_tokens,
            CountVerdict::Inflated { listed: listed_ids, new: new_tokens, confirmed },
        )
    }

    /// Records a chunk after observations were missed, until one with ids shows the stream's count. Counts of chunks without ids may be too
    /// low.
    fn count_chunk_while_catching_up(
        &mut self,
        listed_ids: u32,
        completion_count: u32,
        tokens_above_highest: u32,
    ) -> CountStep {
        // In a stream joined late, only the listed tokens are new, because those before the chunk are not counted.
        let new_tokens = if self.catch_up == CatchUpState::SinceJoin { listed_ids } else { tokens_above_highest };
        if listed_ids > 0 {
            self.highest = completion_count;
            self.catch_up = CatchUpState::No;
            CountStep::new(new_tokens, new_tokens.min(listed_ids), CountVerdict::Rebased)
        } else {
            self.highest = self.highest.max(completion_count);
            CountStep::new(new_tokens, 0, CountVerdict::Fits)
        }
    }
}

/// Verdict on a chunk that lists fewer ids than it has new tokens: `missing_ids` fewer. `mixes_requests`: the chunk before listed all ids
/// so far, so it may be that of another request with the rid.
fn verdict_of_missing_ids(reported: ReportedCounts, missing_ids: u32, mixes_requests: bool) -> CountVerdict {
    // Text frames of 0.5.1 to 0.5.4.post2 start a new window after a retraction.
    let starts_new_window = reported.claim == IdColumn::DeltaAfterPromptTail && reported.retracted;
    if starts_new_window {
        CountVerdict::Rebased
    } else if mixes_requests {
        CountVerdict::Overlap
    } else {
        CountVerdict::Loss { missing: missing_ids }
    }
}

/// Whether a first chunk may list this many ids more than its count, by what the release is known to list.
fn may_list_extra_ids(claimed_ids: IdColumn, extra_ids: u32) -> bool {
    match claimed_ids {
        IdColumn::Delta => extra_ids == 0,
        IdColumn::DeltaAfterPromptTail => extra_ids <= MAX_PROMPT_TAIL_TOKENS,
        // It is not known which ids the others list.
        _ => true,
    }
}

/// Whether the chunk lists its ids from the first token on. Before them it may list ids of the prompt's tail, in releases that send those.
fn looks_like_first_chunk(reported: ReportedCounts, listed_ids: u32, completion_count: u32) -> bool {
    let may_list_prompt = reported.claim == IdColumn::DeltaAfterPromptTail;
    // A last chunk lists ids of the prompt's tail only if it is also the first.
    if listed_ids == 0 || (may_list_prompt && reported.finish.is_some()) {
        return false;
    }
    let max_extra = if may_list_prompt { MAX_PROMPT_TAIL_TOKENS } else { 0 };
    listed_ids.checked_sub(completion_count).is_some_and(|extra| extra <= max_extra)
}

#[cfg(test)]
mod tests;
