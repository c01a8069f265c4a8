//! Consistency check of a stream's counts. Where messages have them, `completion_tokens` is cumulative, so counts show missing tokens.
//! Formats without counts ([`IdColumn::Uncounted`]) have nothing to check; a stream's count is then the sum of its observed ids.
//!
//! The scheduler keeps a send offset per request, and a chunk lists the ids between the old offset and the new one. A delta
//! therefore lists exactly `completion - high` ids, where `high` is the highest count of the stream so far. While a retracted
//! request with `input_embeds` recomputes its tokens (0.5.10rc0 and later), its counts are below `high` and it lists no ids.

use crate::event::{Finish, IdColumn};

/// A first chunk of `DeltaAfterPromptTail` lists at most this many ids of the prompt
/// (`INIT_INCREMENTAL_DETOKENIZATION_OFFSET` in `schedule_batch.py`).
const PROMPT_TAIL: u32 = 5;
/// Number of consecutive chunks that must contradict the release's claim before it is rejected.
const CONTRADICTIONS: u8 = 3;

/// Highest plausible count of a first chunk. A stream that lists all ids so far or none, and starts above this, was joined late.
/// A non-streaming request's first chunk comes at 50 tokens.
const PLAUSIBLE_START: u32 = 64;
/// After this many consecutive observed frames of its connection, a stream that starts higher was not joined late: a running request
/// would have been in one of them. Releases up to 0.4.8 emit only at multiples of the interval. A request with several tokens per
/// step may never hit one, so its finish is its first chunk.
const WATCHED_LONG: u64 = 50;

/// Counts reported by a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported {
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
    /// The rid belongs to another request from here on; the chunk has not been counted.
    Restart,
    /// Tokens between the previous chunk and this one never crossed this hop.
    Loss { missing: u32 },
    /// The chunk lists more ids than it has new tokens, and no known behaviour explains it.
    Surplus { extra: u32 },
    /// The chunk lists fewer ids than its count, after one that listed all ids so far: they belong to different requests with the same rid.
    Overlap,
    /// Lists all ids so far, though the release claims new ones only. `confirmed`: at least the third such chunk in a row.
    Inflated { listed: u32, new: u32, confirmed: bool },
}

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

    pub(crate) fn fits(new: u32) -> Self {
        Self::of(new, new, Verdict::Fits)
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
enum CatchUp {
    #[default]
    No,
    SinceJoin,
    SinceLoss,
}

/// Counts of one stream: one rid on one hop.
#[derive(Clone, Copy, Debug, Default)]
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
    pub(crate) fn step(&mut self, reported: Reported, epoch: u32) -> Step {
        let Some(completion) = reported.completion else {
            return if reported.claim == IdColumn::Uncounted {
                self.summed(reported, epoch)
            } else {
                self.uncounted(reported)
            };
        };
        if self.finished {
            let lists_new = reported.listed.is_some_and(|l| l > 0) && self.reads_as(reported.claim) == Evidence::Delta;
            let repeat =
                reported.finish.is_some() && (completion == self.high || completion == self.last) && !lists_new;
            return Step::of(0, 0, if repeat { Verdict::Repeat } else { Verdict::Restart });
        }
        // A column that is empty by design carries no information.
        let listed = reported.listed.filter(|&l| l > 0 || reported.claim != IdColumn::Absent);
        let step = match (self.begun, listed) {
            (false, listed) => self.begin(reported, listed, completion, epoch),
            (true, None) => self.absent(completion),
            (true, Some(listed)) => match self.reads_as(reported.claim) {
                Evidence::Cumulative => self.cumulative(reported.claim, listed, completion),
                Evidence::Delta => self.delta(reported, listed, completion, epoch),
                // A cumulative list never has fewer ids than the count.
                Evidence::Undecided if listed > 0 && listed < completion && reported.finish.is_none() => {
                    self.evidence = Evidence::Delta;
                    self.delta(reported, listed, completion, epoch)
                }
                Evidence::Undecided => self.undecided(listed, completion, epoch),
            },
        };
        if step.verdict != Verdict::Restart {
            self.begun = true;
            self.last = completion;
            self.finished |= reported.finish.is_some();
        }
        step
    }

    /// Whether its last chunk listed all ids so far although its column has new ids only. It may then mix two requests.
    pub(crate) fn listed_all(&self) -> bool {
        self.contradictions > 0 && self.evidence != Evidence::Cumulative
    }

    /// Whether a chunk after the first listed all ids so far although the release sends new ids only. It may have begun another request.
    pub(crate) fn may_mix_requests(&self) -> bool {
        self.contradictions > 0
    }

    /// Meaning of the listed ids: by the stream's own evidence, otherwise by the release's claim.
    pub(crate) fn reads_as(&self, claim: IdColumn) -> Evidence {
        match (self.evidence, claim) {
            (Evidence::Undecided, IdColumn::Delta | IdColumn::DeltaAfterPromptTail | IdColumn::Uncounted) => {
                Evidence::Delta
            }
            (Evidence::Undecided, IdColumn::Cumulative) => Evidence::Cumulative,
            (shown, _) => shown,
        }
    }

    /// Enters a chunk of a format without counts. Positions are only known in a stream that is whole: its connection was observed for long
    /// before its first chunk, and no observation was missed since.
    fn summed(&mut self, reported: Reported, epoch: u32) -> Step {
        let listed = reported.listed.unwrap_or(0);
        if self.finished {
            let repeat = reported.finish.is_some() && listed == 0;
            return Step::of(0, 0, if repeat { Verdict::Repeat } else { Verdict::Restart });
        }
        let first = !std::mem::replace(&mut self.begun, true);
        let missed = std::mem::replace(&mut self.epoch, epoch) != epoch && !first;
        self.whole = if first { reported.watched >= Some(WATCHED_LONG) } else { self.whole && !missed };
        self.high = self.high.saturating_add(listed);
        self.last = self.high;
        self.finished = reported.finish.is_some();
        let verdict = match (first, missed) {
            (true, _) if !self.whole => Verdict::JoinedLate,
            (false, true) => Verdict::Rebased,
            _ => Verdict::Fits,
        };
        Step::of(listed, listed, verdict)
    }

    fn uncounted(&mut self, reported: Reported) -> Step {
        self.begun = true;
        self.finished |= reported.finish.is_some();
        match (self.reads_as(reported.claim), reported.listed) {
            (Evidence::Delta, Some(listed)) => {
                self.high = self.high.saturating_add(listed);
                Step::fits(listed)
            }
            (Evidence::Cumulative, Some(listed)) => self.absent(listed),
            _ => Step::fits(0),
        }
    }

    fn begin(&mut self, reported: Reported, listed: Option<u32>, completion: u32, epoch: u32) -> Step {
        let claim = reported.claim;
        self.epoch = epoch;
        self.high = completion;
        // An evicted request resumes with a later chunk, or with a finish without a token.
        let continues = reported.watched.is_none() && (completion > 1 || reported.finish.is_some());
        let Some(listed) = listed.filter(|_| claim != IdColumn::Cumulative) else {
            let watched_long = reported.watched >= Some(WATCHED_LONG) && !reported.retracted;
            self.whole = (completion <= PLAUSIBLE_START || watched_long) && !continues;
            let verdict = if self.whole { Verdict::Fits } else { Verdict::JoinedLate };
            return Step::of(completion, completion, verdict);
        };
        if listed < completion {
            self.catch_up = if listed == 0 { CatchUp::SinceJoin } else { CatchUp::No };
            return Step::of(listed, listed, Verdict::JoinedLate);
        }
        if continues && claim == IdColumn::Undecided {
            return Step::of(completion, completion, Verdict::JoinedLate);
        }
        // A first chunk with count 0 is not the start of a retracted request.
        self.whole = completion > 0 || !reported.retracted;
        let extra = listed - completion;
        let explained = match claim {
            IdColumn::Delta => extra == 0,
            IdColumn::DeltaAfterPromptTail => extra <= PROMPT_TAIL,
            _ => true,
        };
        Step::of(completion, completion, if explained { Verdict::Fits } else { Verdict::Surplus { extra } })
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
            return Step { verdict: Verdict::Inflated { listed, new: step.new, confirmed: true }, ..step };
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
            self.high = if listed > 0 { completion } else { self.high.max(completion) };
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

    fn delta(&mut self, reported: Reported, listed: u32, completion: u32, epoch: u32) -> Step {
        let tail = reported.claim == IdColumn::DeltaAfterPromptTail;
        let surplus_of_first =
            listed.checked_sub(completion).is_some_and(|extra| extra <= if tail { PROMPT_TAIL } else { 0 });
        let from_zero = listed > 0 && surplus_of_first && !(tail && reported.finish.is_some());
        if completion <= self.high && from_zero {
            return Step::of(0, 0, Verdict::Restart);
        }
        let new = completion.saturating_sub(self.high);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.contradictions = 0;
            self.catch_up = if listed == 0 { CatchUp::SinceLoss } else { CatchUp::No };
            self.high = if listed > 0 { completion } else { self.high.max(completion) };
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
        if reported.finish == Some(Finish::Abort) {
            return Step::of(new, new.min(listed), Verdict::Fits);
        }
        if listed < new {
            let carried = listed;
            // Text frames of 0.5.1 to 0.5.4.post2 start a new window after a retraction.
            let explained = tail && reported.retracted;
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
        self.high = if listed > 0 { completion } else { self.high.max(completion) };
        if listed > 0 {
            self.catch_up = CatchUp::No;
        }
        let new = if joined { listed } else { new };
        Step::of(new, new.min(listed), if listed > 0 { Verdict::Rebased } else { Verdict::Fits })
    }
}

#[cfg(test)]
mod tests;
