//! Consistency check of a stream's counts. `completion_tokens` is cumulative in every release, so counts show missing tokens.
//!
//! The scheduler keeps a send offset per request, and a chunk lists the ids between the old offset and the new one. A delta
//! therefore lists exactly `completion - high` ids, where `high` is the highest count of the stream so far. While a retracted
//! request with `input_embeds` recomputes its tokens (0.5.10rc0 and later), its counts are below `high` and it lists no ids.

use serde::{Deserialize, Serialize};

use crate::event::{Finish, IdColumn};

/// A first chunk of `DeltaAfterPromptTail` lists at most this many ids of the prompt
/// (`INIT_INCREMENTAL_DETOKENIZATION_OFFSET` in `schedule_batch.py`).
const PROMPT_TAIL: u32 = 5;
/// Number of consecutive chunks that must contradict the release's claim before it is rejected.
const CONTRADICTIONS: u8 = 3;

/// Highest plausible count of a first chunk. A stream with all ids so far or no ids that starts above this was joined late.
/// A non-streaming request's first chunk comes at 50 tokens.
const PLAUSIBLE_START: u32 = 64;
/// After this many consecutive observed frames of its connection, a stream that starts higher was not joined late: a running request
/// would have been in one of them. Releases up to 0.4.8 emit only at multiples of the interval. A request with several tokens per
/// step may never hit one, so its finish is its first chunk.
const WATCHED_LONG: u64 = 50;

/// Counts reported by a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) claim: IdColumn,
    pub(crate) listed: Option<u32>,
    pub(crate) completion: Option<u32>,
    pub(crate) finish: Option<Finish>,
    /// The retraction counter has grown since the last chunk.
    pub(crate) retracted: bool,
    /// Consecutive frames observed on its connection before this one; `None` while an evicted request may resume.
    pub(crate) watched: Option<u64>,
}

/// Conclusion from a chunk's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The counts add up, or nothing can be concluded.
    Fits,
    /// The first chunk seen was not the stream's first.
    JoinedLate,
    /// Observations were missed: the stream restarts here, and the chunk is not judged.
    Rebased,
    /// A repeated finish (0.4.x with overlap scheduling), without new tokens.
    Repeat,
    /// The rid belongs to another request from here on; the chunk has not been entered.
    Restart,
    /// Tokens between the previous chunk and this one never crossed this hop.
    Loss { missing: u32 },
    /// Lists more ids than it has new tokens, and no known behaviour explains it.
    Surplus { extra: u32 },
    /// Lists fewer ids than its count, after a chunk that listed all ids so far: the two belong to different requests with the same rid.
    Overlap,
    /// Lists all ids so far, though the release claims new ones only. `confirmed`: at least the third such chunk in a row.
    Inflated { listed: u32, new: u32, confirmed: bool },
}

/// One step of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Tokens that the scheduler generated since the previous chunk, by its own count.
    pub(crate) new: u32,
    /// Tokens this chunk carries: the new ones, unless some are missing.
    pub(crate) carried: u32,
    pub(crate) verdict: Verdict,
}

impl Step {
    fn of(new: u32, carried: u32, verdict: Verdict) -> Self {
        Self { new, carried, verdict }
    }

    fn fits(new: u32) -> Self {
        Self::of(new, new, Verdict::Fits)
    }
}

/// Type of the ids in a stream, inferred from its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum CatchUp {
    #[default]
    No,
    SinceJoin,
    SinceLoss,
}

/// Counts of one stream: one rid on one hop.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Highest `completion_tokens` seen.
    pub(crate) high: u32,
    /// Last `completion_tokens` seen.
    last: u32,
    /// The hop's epoch when the stream began or was rebased.
    pub(crate) epoch: u32,
    contradictions: u8,
    pub(crate) evidence: Evidence,
    catch_up: CatchUp,
    begun: bool,
    /// Seen from its first token on.
    pub(crate) whole: bool,
    pub(crate) finished: bool,
}

impl Count {
    /// Enters a chunk. `epoch` changes whenever observations of the hop were missed.
    pub(crate) fn step(&mut self, said: Said, epoch: u32) -> Step {
        let Some(completion) = said.completion else {
            return self.uncounted(said);
        };
        if self.finished {
            let lists_new = said.listed.is_some_and(|l| l > 0) && self.reads_as(said.claim) == Evidence::Delta;
            let repeat = said.finish.is_some() && (completion == self.high || completion == self.last) && !lists_new;
            return Step::of(0, 0, if repeat { Verdict::Repeat } else { Verdict::Restart });
        }
        // A column that is empty by design carries no information.
        let listed = said.listed.filter(|&l| l > 0 || said.claim != IdColumn::Absent);
        let step = match (self.begun, listed) {
            (false, listed) => self.begin(said, listed, completion, epoch),
            (true, None) => self.absent(completion),
            (true, Some(listed)) => match self.reads_as(said.claim) {
                Evidence::Cumulative => self.cumulative(said.claim, listed, completion),
                Evidence::Delta => self.delta(said, listed, completion, epoch),
                // A cumulative list never has fewer ids than the count.
                Evidence::Undecided if listed > 0 && listed < completion && said.finish.is_none() => {
                    self.evidence = Evidence::Delta;
                    self.delta(said, listed, completion, epoch)
                }
                Evidence::Undecided => self.undecided(listed, completion, epoch),
            },
        };
        if step.verdict != Verdict::Restart {
            self.begun = true;
            self.last = completion;
            self.finished |= said.finish.is_some();
        }
        step
    }

    /// Whether its last chunk listed all ids so far although its column has new ids only. It may then mix two requests.
    pub(crate) fn listed_all(&self) -> bool {
        self.contradictions > 0 && self.evidence != Evidence::Cumulative
    }

    /// Whether a chunk after the first listed all ids so far although the release sends new ids only. It may have begun another request.
    pub(crate) fn may_mix(&self) -> bool {
        self.contradictions > 0
    }

    /// Meaning of the listed ids: by the stream's own evidence, otherwise by the release's claim.
    pub(crate) fn reads_as(&self, claim: IdColumn) -> Evidence {
        match (self.evidence, claim) {
            (Evidence::Undecided, IdColumn::Delta | IdColumn::DeltaAfterPromptTail) => Evidence::Delta,
            (Evidence::Undecided, IdColumn::Cumulative) => Evidence::Cumulative,
            (shown, _) => shown,
        }
    }

    fn uncounted(&mut self, said: Said) -> Step {
        self.begun = true;
        self.finished |= said.finish.is_some();
        match (self.reads_as(said.claim), said.listed) {
            (Evidence::Delta, Some(listed)) => {
                self.high = self.high.saturating_add(listed);
                Step::fits(listed)
            }
            (Evidence::Cumulative, Some(listed)) => self.absent(listed),
            _ => Step::fits(0),
        }
    }

    fn begin(&mut self, said: Said, listed: Option<u32>, completion: u32, epoch: u32) -> Step {
        let claim = said.claim;
        self.epoch = epoch;
        self.high = completion;
        // An evicted request resumes with a later chunk, or with a finish without a token.
        let goes_on = said.watched.is_none() && (completion > 1 || said.finish.is_some());
        let Some(listed) = listed.filter(|_| claim != IdColumn::Cumulative) else {
            let watched_long = said.watched >= Some(WATCHED_LONG) && !said.retracted;
            self.whole = (completion <= PLAUSIBLE_START || watched_long) && !goes_on;
            let verdict = if self.whole { Verdict::Fits } else { Verdict::JoinedLate };
            return Step::of(completion, completion, verdict);
        };
        if listed < completion {
            self.catch_up = if listed == 0 { CatchUp::SinceJoin } else { CatchUp::No };
            return Step::of(listed, listed, Verdict::JoinedLate);
        }
        if goes_on && claim == IdColumn::Undecided {
            return Step::of(completion, completion, Verdict::JoinedLate);
        }
        // A first chunk with count 0 is not the start of a retracted request.
        self.whole = completion > 0 || !said.retracted;
        let extra = listed - completion;
        let explained = match claim {
            IdColumn::Delta => extra == 0,
            IdColumn::DeltaAfterPromptTail => extra <= PROMPT_TAIL,
            _ => true,
        };
        Step::of(
            completion,
            completion,
            if explained {
                Verdict::Fits
            } else {
                Verdict::Surplus { extra }
            },
        )
    }

    fn absent(&mut self, completion: u32) -> Step {
        let new = completion.saturating_sub(self.high);
        self.high = self.high.max(completion);
        Step::fits(new)
    }

    fn cumulative(&mut self, claim: IdColumn, listed: u32, completion: u32) -> Step {
        // Counts never fall in releases that send all ids (up to 0.4.6.post3), so another request has the rid now.
        let old = matches!(claim, IdColumn::Cumulative | IdColumn::Undecided);
        if old && listed == completion && completion < self.high {
            return Step::of(0, 0, Verdict::Restart);
        }
        let claimed_delta = self.contradictions >= CONTRADICTIONS;
        let step = self.absent(completion);
        if listed == completion && listed != step.new {
            self.evidence = Evidence::Cumulative;
        }
        if claimed_delta && listed > step.new {
            return Step {
                verdict: Verdict::Inflated {
                    listed,
                    new: step.new,
                    confirmed: true,
                },
                ..step
            };
        }
        step
    }

    /// Enters a chunk of an unknown release. The first chunk with only one possible reading decides the type of the ids.
    fn undecided(&mut self, listed: u32, completion: u32, epoch: u32) -> Step {
        // In either reading it starts at its first token, so another request has the rid now.
        if listed > 0 && listed == completion && completion < self.high {
            return Step::of(0, 0, Verdict::Restart);
        }
        let new = completion.saturating_sub(self.high);
        if epoch != self.epoch {
            // A lower count belongs to another request, whose start was missed.
            self.epoch = epoch;
            self.high = if listed > 0 {
                completion
            } else {
                self.high.max(completion)
            };
            return Step::of(new, new.min(listed), Verdict::Rebased);
        }
        if new > 0 {
            match (listed == new, listed == completion) {
                (true, false) => self.evidence = Evidence::Delta,
                (false, true) => self.evidence = Evidence::Cumulative,
                _ => {}
            }
        }
        self.high = self.high.max(completion);
        Step::of(new, new.min(listed), Verdict::Fits)
    }

    fn delta(&mut self, said: Said, listed: u32, completion: u32, epoch: u32) -> Step {
        let tail = said.claim == IdColumn::DeltaAfterPromptTail;
        let surplus_of_first = listed
            .checked_sub(completion)
            .is_some_and(|extra| extra <= if tail { PROMPT_TAIL } else { 0 });
        let from_zero = listed > 0 && surplus_of_first && !(tail && said.finish.is_some());
        if completion <= self.high && from_zero {
            return Step::of(0, 0, Verdict::Restart);
        }
        let new = completion.saturating_sub(self.high);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.contradictions = 0;
            self.catch_up = if listed == 0 { CatchUp::SinceLoss } else { CatchUp::No };
            self.high = if listed > 0 {
                completion
            } else {
                self.high.max(completion)
            };
            return Step::of(new, new.min(listed), Verdict::Rebased);
        }
        if self.catch_up != CatchUp::No {
            return self.catching_up(listed, completion, new);
        }
        let behind = completion < self.high;
        self.high = self.high.max(completion);
        if listed == new {
            let overlaps = self.listed_all() && (new > 0 || behind);
            if new > 0 {
                self.contradictions = 0;
                if listed != completion {
                    self.evidence = Evidence::Delta;
                }
            }
            let verdict = if overlaps { Verdict::Overlap } else { Verdict::Fits };
            return Step::of(new, new, verdict);
        }
        // An abort's ids may be trimmed to what the client asked for.
        if said.finish == Some(Finish::Abort) {
            return Step::of(new, new.min(listed), Verdict::Fits);
        }
        if listed < new {
            let carried = listed;
            // Text frames of 0.5.1 to 0.5.4.post2 start a new window after a retraction.
            let explained = tail && said.retracted;
            let verdict = match () {
                () if explained => Verdict::Rebased,
                () if self.listed_all() => Verdict::Overlap,
                () => Verdict::Loss { missing: new - listed },
            };
            return Step::of(new, carried, verdict);
        }
        if listed == completion && !tail {
            self.contradictions = self.contradictions.saturating_add(1);
            let confirmed = self.contradictions >= CONTRADICTIONS;
            if confirmed {
                self.evidence = Evidence::Cumulative;
            }
            return Step::of(new, new, Verdict::Inflated { listed, new, confirmed });
        }
        let verdict = match () {
            () if tail => Verdict::Fits,
            () if self.listed_all() => Verdict::Overlap,
            () => Verdict::Surplus { extra: listed - new },
        };
        Step::of(new, new, verdict)
    }

    fn catching_up(&mut self, listed: u32, completion: u32, new: u32) -> Step {
        let joined = self.catch_up == CatchUp::SinceJoin;
        self.high = if listed > 0 {
            completion
        } else {
            self.high.max(completion)
        };
        if listed > 0 {
            self.catch_up = CatchUp::No;
        }
        let new = if joined { listed } else { new };
        Step::of(
            new,
            new.min(listed),
            if listed > 0 { Verdict::Rebased } else { Verdict::Fits },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(claim: IdColumn, listed: u32, completion: u32) -> Said {
        Said {
            claim,
            listed: Some(listed),
            completion: Some(completion),
            finish: None,
            retracted: false,
            watched: Some(0),
        }
    }

    /// Enters (listed, completion) pairs and returns the steps.
    fn verdicts(claim: IdColumn, chunks: &[(u32, u32)]) -> (Count, Vec<Step>) {
        let mut count = Count::default();
        let steps = chunks
            .iter()
            .map(|&(listed, completion)| count.step(said(claim, listed, completion), 0))
            .collect();
        (count, steps)
    }

    #[test]
    fn speculative_bursts_and_stream_intervals_add_up() {
        let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (4, 5), (50, 55), (0, 55), (1, 56)]);
        assert!(steps.iter().all(|s| s.verdict == Verdict::Fits), "{steps:?}");
        assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 56);
    }

    #[test]
    fn a_missing_frame_is_a_loss_of_exactly_its_tokens() {
        let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (1, 2), (2, 7), (1, 8)]);
        assert_eq!(
            steps[2],
            Step {
                new: 5,
                carried: 2,
                verdict: Verdict::Loss { missing: 3 }
            }
        );
        assert_eq!(steps[3].verdict, Verdict::Fits);
    }

    #[test]
    fn recomputing_after_a_retraction_with_embeds_is_healthy() {
        let (_, steps) = verdicts(
            IdColumn::Delta,
            &[(1, 1), (99, 100), (0, 1), (0, 60), (0, 99), (3, 103), (1, 104)],
        );
        assert!(steps.iter().all(|s| s.verdict == Verdict::Fits), "{steps:?}");
        assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 104);
    }

    #[test]
    fn joining_while_a_request_recomputes_is_no_loss() {
        let (_, steps) = verdicts(IdColumn::Delta, &[(0, 50), (0, 51), (0, 99), (3, 103), (1, 104)]);
        let expected = [
            Verdict::JoinedLate,
            Verdict::Fits,
            Verdict::Fits,
            Verdict::Rebased,
            Verdict::Fits,
        ];
        assert_eq!(steps.iter().map(|s| s.verdict).collect::<Vec<_>>(), expected);
        assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 4);
    }

    #[test]
    fn a_lost_observation_rebases_and_counts_by_the_scheduler() {
        let mut count = Count::default();
        count.step(said(IdColumn::Delta, 1, 1), 0);
        let step = count.step(said(IdColumn::Delta, 1, 9), 1);
        assert_eq!(
            step,
            Step {
                new: 8,
                carried: 1,
                verdict: Verdict::Rebased
            }
        );
        assert_eq!(count.step(said(IdColumn::Delta, 1, 10), 1).verdict, Verdict::Fits);
    }

    #[test]
    fn a_prompt_tail_is_no_surplus() {
        let (_, steps) = verdicts(IdColumn::DeltaAfterPromptTail, &[(6, 1), (1, 2), (1, 3)]);
        assert!(steps.iter().all(|s| s.verdict == Verdict::Fits), "{steps:?}");
        assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 3);
        let (_, steps) = verdicts(IdColumn::DeltaAfterPromptTail, &[(6, 1), (1, 3)]);
        assert_eq!(steps[1].verdict, Verdict::Loss { missing: 1 });
    }

    #[test]
    fn a_delta_claim_that_lists_everything_is_given_up_after_three_chunks() {
        let (count, steps) = verdicts(IdColumn::Delta, &[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
        assert_eq!(count.evidence, Evidence::Cumulative);
        assert_eq!(
            steps[1].verdict,
            Verdict::Inflated {
                listed: 2,
                new: 1,
                confirmed: false
            }
        );
        assert_eq!(
            steps[3].verdict,
            Verdict::Inflated {
                listed: 4,
                new: 1,
                confirmed: true
            }
        );
        assert_eq!(
            steps[4].verdict,
            Verdict::Inflated {
                listed: 5,
                new: 1,
                confirmed: true
            }
        );
        assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 5);
    }

    #[test]
    fn a_restart_in_flight_is_another_request() {
        let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (1, 2), (1, 3), (1, 1)]);
        assert_eq!(steps[3].verdict, Verdict::Restart);
    }

    #[test]
    fn a_finish_said_twice_is_a_repeat_and_a_chunk_after_it_a_new_request() {
        let mut count = Count::default();
        let finish = |listed, completion| Said {
            finish: Some(Finish::Stop),
            ..said(IdColumn::Cumulative, listed, completion)
        };
        count.step(said(IdColumn::Cumulative, 1, 1), 0);
        assert_eq!(count.step(finish(2, 2), 0).verdict, Verdict::Fits);
        assert_eq!(count.step(finish(2, 2), 0).verdict, Verdict::Repeat);
        assert_eq!(
            count.step(said(IdColumn::Cumulative, 1, 1), 0).verdict,
            Verdict::Restart
        );
    }

    #[test]
    fn a_finish_trimmed_to_the_stop_is_no_surplus() {
        let mut count = Count::default();
        count.step(said(IdColumn::Delta, 10, 10), 0);
        let finish = Said {
            finish: Some(Finish::Stop),
            ..said(IdColumn::Delta, 0, 9)
        };
        assert_eq!(
            count.step(finish, 0),
            Step {
                new: 0,
                carried: 0,
                verdict: Verdict::Fits
            }
        );
    }

    #[test]
    fn streams_of_unknown_release_decide_themselves() {
        let column = IdColumn::Absent;
        let (count, _) = verdicts(column, &[(1, 1), (2, 2), (3, 3)]);
        assert_eq!(count.evidence, Evidence::Cumulative);
        // A frame lost before the first decisive chunk is a loss: that chunk does not carry all new tokens.
        let (count, steps) = verdicts(IdColumn::Undecided, &[(1, 1), (1, 3)]);
        assert_eq!(
            (count.evidence, steps[1].verdict),
            (Evidence::Delta, Verdict::Loss { missing: 1 })
        );
        let (count, steps) = verdicts(column, &[(1, 1), (1, 2), (1, 4)]);
        assert_eq!(count.evidence, Evidence::Delta);
        assert_eq!(steps[2].verdict, Verdict::Loss { missing: 1 });
    }

    #[test]
    fn on_an_unknown_layout_all_ids_so_far_that_begin_again_are_another_request() {
        let (_, steps) = verdicts(IdColumn::Undecided, &[(1, 1), (2, 2), (3, 3), (1, 1)]);
        assert_eq!(steps[3].verdict, Verdict::Restart);
    }

    /// A chunk whose count is rejected as a sum still advances the stream by its ids. Otherwise the next chunk would show a loss.
    #[test]
    fn on_an_unknown_layout_new_ids_count_where_no_count_is_believed() {
        let (mut count, _) = verdicts(IdColumn::Undecided, &[(1, 1), (2, 3)]);
        let uncounted = Said {
            completion: None,
            ..said(IdColumn::Undecided, 4, 0)
        };
        assert_eq!(count.step(uncounted, 0), Step::fits(4));
        assert_eq!(count.step(said(IdColumn::Undecided, 1, 8), 0), Step::fits(1));
    }

    #[test]
    fn on_an_unknown_layout_a_lower_count_behind_a_loss_of_ours_is_not_judged() {
        let mut count = Count::default();
        count.step(said(IdColumn::Undecided, 6, 6), 0);
        let finish = Said {
            finish: Some(Finish::Stop),
            ..said(IdColumn::Undecided, 1, 2)
        };
        assert_eq!(count.step(finish, 1).verdict, Verdict::Rebased);
        assert_eq!(count.high, 2);
    }
}
