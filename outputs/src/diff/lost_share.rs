//! Comparison of lost tokens over all tokens of two runs, which needs no slots.

use trace::words::{count, plural};

use super::measure::{Judged, relative_change};
use super::problem_outcome::{LEAST_DEPENDENT_COUNT, LEAST_FACTOR_WITHOUT_SLOTS, LOST_OF_ALL};
use super::{ChangeVerdict, ComparedMeasure, MeasureUnit};
use crate::report::Report;

/// Smallest number of requests that lost tokens in the run with the larger share. Tokens of one request are lost together, so only requests
/// show how often it happens. As for quantiles of requests, ten must be affected.
const LEAST_LOSSY_REQUESTS: u64 = 10;

/// Losses of a whole run that lost tokens.
struct RunLosses {
    lost: u64,
    sent: u64,
    /// Requests that lost tokens.
    requests: u64,
}

impl RunLosses {
    /// Losses that deliveries prove. `None` without any, and if deliveries were not observed.
    fn of_run(run: &Report) -> Option<Self> {
        let lost = run.chunks.tokens_lost.filter(|lost| *lost > 0)?;
        let requests = run.losses.confirmed.as_ref()?.requests;
        Some(Self { lost, sent: run.tokens.sent, requests })
    }

    /// Share of the lost tokens in all that were sent.
    fn share(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}

/// Compares the shares of lost tokens. `None` unless both runs lost some: without losses in one of them, the counts alone decide.
pub(super) fn compare_lost_shares(a: &Report, b: &Report) -> Option<ComparedMeasure> {
    let a = RunLosses::of_run(a)?;
    let b = RunLosses::of_run(b)?;
    let Judged { verdict, note } = judge_lost_shares(&a, &b);
    let [share_a, share_b] = [Some(a.share()), Some(b.share())];
    Some(ComparedMeasure {
        name: LOST_OF_ALL.to_owned(),
        unit: MeasureUnit::Share,
        a: share_a,
        b: share_b,
        change: relative_change(share_a, share_b),
        interval: None,
        p: None,
        verdict,
        note,
    })
}

/// Judges how the share of lost tokens changed. Both runs must have sent enough tokens, and enough requests must have lost some. Then the
/// share is worse or better if it at least doubled or halved.
fn judge_lost_shares(a: &RunLosses, b: &RunLosses) -> Judged {
    let before = count(a.sent);
    let after = count(b.sent);
    if a.sent.min(b.sent) < LEAST_DEPENDENT_COUNT {
        let note = format!("{before} tokens before and {after} after, {} are needed", count(LEAST_DEPENDENT_COUNT));
        return Judged { verdict: ChangeVerdict::NotEnoughData, note: Some(note) };
    }
    let is_rise = b.share() > a.share();
    let [smaller, larger] = if is_rise { [a, b] } else { [b, a] };
    if larger.requests < LEAST_LOSSY_REQUESTS {
        let requests = plural(larger.requests, "request");
        let note =
            format!("{requests} lost tokens in the run with the larger share, {LEAST_LOSSY_REQUESTS} are needed");
        return Judged { verdict: ChangeVerdict::NotEnoughData, note: Some(note) };
    }
    if larger.share() < LEAST_FACTOR_WITHOUT_SLOTS * smaller.share() {
        return Judged { verdict: ChangeVerdict::WithinNoise, note: None };
    }
    let verdict = if is_rise { ChangeVerdict::Worse } else { ChangeVerdict::Better };
    Judged { verdict, note: Some(format!("of all {before} and {after} tokens: at least twofold")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(a: [u64; 3], b: [u64; 3]) -> ChangeVerdict {
        let [a, b] = [a, b].map(|[lost, sent, requests]| RunLosses { lost, sent, requests });
        judge_lost_shares(&a, &b).verdict
    }

    #[test]
    fn a_twofold_share_in_ten_requests_is_a_change() {
        let before = [262, 16_529, 36];
        assert_eq!(verdict(before, [4_069, 85_490, 312]), ChangeVerdict::Worse);
        assert_eq!(verdict([4_069, 85_490, 312], before), ChangeVerdict::Better);
        assert_eq!(verdict(before, [2_600, 85_490, 312]), ChangeVerdict::WithinNoise);
        assert_eq!(verdict(before, before), ChangeVerdict::WithinNoise);
    }

    #[test]
    fn few_tokens_or_requests_are_not_enough_data() {
        assert_eq!(verdict([10, 1_000, 1], [20, 1_000, 10]), ChangeVerdict::Worse);
        assert_eq!(verdict([10, 1_000, 1], [20, 999, 10]), ChangeVerdict::NotEnoughData);
        assert_eq!(verdict([10, 1_000, 10], [20, 1_000, 9]), ChangeVerdict::NotEnoughData);
        assert_eq!(verdict([20, 1_000, 9], [10, 1_000, 10]), ChangeVerdict::NotEnoughData);
    }
}
