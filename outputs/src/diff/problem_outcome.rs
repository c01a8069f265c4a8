//! Outcome for each problem that users notice, most severe first: lost tokens, wait for the first token, inter-token latency, merged
//! chunks. Their comparison over all tokens and requests, and the description of the method.

use serde::{Deserialize, Serialize};
use trace::detect::thresholds::GAP_WARNING_NS;
use trace::stats::Spread;
use trace::words::{count, duration, names, percent, share};

use super::{ChangeVerdict, ComparedMeasure, DiffOptions, MeasureUnit};
use crate::report::{FaultKind, Gap, Report, TtftReport};

/// Outcome for one problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemOutcome {
    /// Name of the problem: `lost tokens`, `first-token gap`, `inter-token latency`, `merged chunks`.
    pub name: String,
    /// State of the problem in the second run.
    pub state: ProblemState,
    /// Its number before and after; empty if unknown.
    pub numbers: String,
}

/// State of a problem after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemState {
    /// The problem no longer occurs.
    Fixed,
    /// Smaller than before.
    Improved,
    /// New, or larger than before.
    Regressed,
    /// No change beyond noise.
    Unchanged,
    /// Not observed for long enough.
    NotEnoughData,
    /// Not observed by one of the runs.
    NotObserved,
}

names! {
    ProblemState {
        Fixed = "FIXED",
        Improved = "IMPROVED",
        Regressed = "REGRESSED",
        Unchanged = "UNCHANGED",
        NotEnoughData = "NOT ENOUGH DATA",
        NotObserved = "NOT OBSERVED",
    }
}

impl ProblemState {
    /// Whether it reports a change.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Fixed | Self::Improved | Self::Regressed)
    }

    /// Turns an improvement into a fix if the second run does not have the problem (`is_resolved`).
    fn improved_is_fixed_if(self, is_resolved: bool) -> Self {
        if self == Self::Improved && is_resolved { Self::Fixed } else { self }
    }
}

/// Names of the measures of all chunks.
pub(super) const DROPPED_CONFIRMED: &str = "chunks dropped, confirmed";
pub(super) const DROPPED_PREDICTED: &str = "chunks dropped, predicted";
pub(super) const MERGED: &str = "chunks merged";
/// Name of the measure of lost tokens that needs no slots.
pub(super) const LOST_OF_ALL: &str = "tokens lost, of all sent";
/// Measures of proven losses: of all tokens, which needs no slots, then of slots.
const LOSS_MEASURES: [&str; 2] = [LOST_OF_ALL, DROPPED_CONFIRMED];
/// Measures of the first-token gap: of all requests, which need no slots, then of slots.
const GAP_MEASURES: [&str; 5] =
    ["gap of all requests, p99", "gap of all requests, p90", "gap of all requests, median", "gap, p99", "gap, median"];
/// Measures of the time to first token.
const TTFT_MEASURES: [&str; 3] =
    ["TTFT of all requests, p99", "TTFT of all requests, p90", "TTFT of all requests, median"];
/// Measures of the latency at clients: the one that decides, then the one that replaces it.
const LATENCY_MEASURES: [&str; 2] = ["ITL at clients, p99", "ITL at clients, median"];

/// A value below the limit divided by this factor is far below it.
const FAR_BELOW_FACTOR: f64 = 10.0;

/// Outcomes of the problems, most severe first; empty without measures. The time to first token is among them if both runs observed it.
pub(super) fn judge_problems(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> Vec<ProblemOutcome> {
    if measures.is_empty() {
        return Vec::new();
    }
    let mut problems = vec![
        judge_lost_tokens(a, b, measures),
        judge_first_token_gap(a, b, measures),
        ProblemOutcome::by_deciding_measure("inter-token latency", measures, &LATENCY_MEASURES),
        judge_merged_chunks(a, b, measures),
    ];
    let is_ttft_compared = deciding_measure(measures, &TTFT_MEASURES).is_some();
    if is_ttft_compared {
        let behind_lost_tokens = 1;
        let ttft = ProblemOutcome::by_deciding_measure("time to first token", measures, &TTFT_MEASURES);
        problems.insert(behind_lost_tokens, ttft);
    }
    problems
}

impl ProblemOutcome {
    /// Outcome of a problem whose state and numbers are those of the measure that decides among the named ones.
    fn by_deciding_measure(problem_name: &str, measures: &[ComparedMeasure], measure_names: &[&str]) -> Self {
        Self {
            name: problem_name.to_owned(),
            state: state_by_deciding_measure(measures, measure_names),
            numbers: describe_deciding_measure(measures, measure_names),
        }
    }
}

/// Outcome of merged chunks. An improvement is a fix if the second run merged none.
fn judge_merged_chunks(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> ProblemOutcome {
    let is_none_merged_in_a = a.chunks.merged == Some(0);
    let is_none_merged_in_b = b.chunks.merged == Some(0);
    // Counts of whole runs need no slots.
    let state = if is_none_merged_in_a && is_none_merged_in_b {
        ProblemState::Unchanged
    } else {
        state_by_deciding_measure(measures, &[MERGED]).improved_is_fixed_if(is_none_merged_in_b)
    };
    ProblemOutcome { name: String::from("merged chunks"), state, numbers: describe_merged_shares(a, b) }
}

/// Outcome of the first-token gap, the time from a request's first send to its first receive. If the gap was no problem in either run, its
/// numbers are set against the limit of the finding.
fn judge_first_token_gap(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> ProblemOutcome {
    let has_finding_before = has_gap_finding(a);
    let has_finding_after = has_gap_finding(b);
    let state = state_by_deciding_measure(measures, &GAP_MEASURES).improved_is_fixed_if(!has_finding_after);
    let is_no_problem = state == ProblemState::Unchanged && !has_finding_before && !has_finding_after;
    let known_gaps = deciding_measure(measures, &GAP_MEASURES).and_then(|measure| measure.a.zip(measure.b));
    let plain_numbers = describe_deciding_measure(measures, &GAP_MEASURES);
    let numbers = match known_gaps {
        Some((gap_before, gap_after)) if is_no_problem => {
            describe_gap_against_limit(gap_before.max(gap_after), plain_numbers)
        }
        _ => plain_numbers,
    };
    ProblemOutcome { name: String::from("first-token gap"), state, numbers }
}

/// Whether the run has a finding about first-token gaps, because one of them reached the limit.
fn has_gap_finding(run: &Report) -> bool {
    run.findings.iter().any(|finding| finding.kind == "first-token-gap")
}

/// Says how far the longer gap of both runs is below the limit of the finding, with the numbers in parentheses. If it is not below the
/// limit, returns the numbers alone.
fn describe_gap_against_limit(longer_gap_ns: f64, numbers: String) -> String {
    let limit = duration(GAP_WARNING_NS);
    if longer_gap_ns < GAP_WARNING_NS as f64 / FAR_BELOW_FACTOR {
        format!("far below the limit of {limit} in both runs ({numbers})")
    } else if longer_gap_ns < GAP_WARNING_NS as f64 {
        format!("below the limit of {limit} in both runs ({numbers})")
    } else {
        numbers
    }
}

/// Outcome of lost tokens. Proven losses count if both runs observed them. Otherwise predicted losses count, if both runs have only those.
fn judge_lost_tokens(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> ProblemOutcome {
    let name = String::from("lost tokens");
    let a_observes_losses = a.chunks.dropped_confirmed.is_some();
    let b_observes_losses = b.chunks.dropped_confirmed.is_some();
    // Proven losses are counted in tokens.
    if a_observes_losses && b_observes_losses {
        let state = state_of_proven_losses(a, b, measures);
        return ProblemOutcome { name, state, numbers: describe_lost_tokens(a, b) };
    }
    let is_none_proven = !a_observes_losses && !b_observes_losses;
    // Predicted losses are counted in chunks. Proven losses cannot be compared with them.
    if is_none_proven
        && let Some(lost_a) = a.chunks.dropped_predicted
        && let Some(lost_b) = b.chunks.dropped_predicted
    {
        let state = state_of_predicted_losses(lost_a, lost_b, measures);
        return ProblemOutcome { name, state, numbers: format_before_and_after(Some(lost_a), Some(lost_b), count) };
    }
    ProblemOutcome { name, state: ProblemState::NotObserved, numbers: String::new() }
}

/// State of the lost tokens of two runs that only predict losses, of these numbers of chunks.
fn state_of_predicted_losses(lost_a: u64, lost_b: u64, measures: &[ComparedMeasure]) -> ProblemState {
    if lost_a == 0 && lost_b == 0 {
        return ProblemState::Unchanged;
    }
    state_by_deciding_measure(measures, &[DROPPED_PREDICTED]).improved_is_fixed_if(lost_b == 0)
}

/// Text for two counts of 0, to which shares would add nothing.
const NONE_IN_BOTH: &str = "0 in both runs";

/// State of the lost tokens of two runs that both observed losses.
fn state_of_proven_losses(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> ProblemState {
    let is_none_lost_in_a = a.chunks.tokens_lost == Some(0);
    let is_none_lost_in_b = b.chunks.tokens_lost == Some(0);
    // Counts of whole runs need no slots.
    if is_none_lost_in_a && is_none_lost_in_b && judges_lost_tokens(a) && judges_lost_tokens(b) {
        return ProblemState::Unchanged;
    }
    state_by_deciding_measure(measures, &LOSS_MEASURES).improved_is_fixed_if(is_none_lost_in_b)
}

/// Numbers of lost tokens in both runs: `12 -> 0`. If the runs sent different numbers of tokens, shares come first:
/// `4.7 % -> 3.7 % (4,069 -> 1,876)`.
fn describe_lost_tokens(a: &Report, b: &Report) -> String {
    /// Smallest factor between the numbers of sent tokens from which losses are comparable only as shares.
    const LEAST_FACTOR: f64 = 1.1;
    if a.chunks.tokens_lost == Some(0) && b.chunks.tokens_lost == Some(0) {
        return String::from(NONE_IN_BOTH);
    }
    let counts = format_before_and_after(a.chunks.tokens_lost, b.chunks.tokens_lost, count);
    let more_tokens = a.tokens.sent.max(b.tokens.sent);
    let fewer_tokens = a.tokens.sent.min(b.tokens.sent);
    let sent_different_numbers = more_tokens as f64 >= LEAST_FACTOR * fewer_tokens as f64;
    // Shares cannot be formed without counts or tokens, and add nothing if both runs sent about as many tokens.
    if counts.is_empty() || fewer_tokens == 0 || !sent_different_numbers {
        return counts;
    }
    // The shares are text already.
    let shares = format_before_and_after(lost_share(a), lost_share(b), |share| share);
    format!("{shares} ({counts})")
}

/// Share of lost tokens in those that were sent.
fn lost_share(run: &Report) -> Option<String> {
    Some(share(run.chunks.tokens_lost?, run.tokens.sent))
}

/// Whether the run could have shown lost tokens.
fn judges_lost_tokens(run: &Report) -> bool {
    run.judged.iter().all(|judgement| judgement.fault != FaultKind::LostTokens || judgement.judged)
}

/// Share of merged chunks before and after: `0.0 % -> 30.0 %`.
fn describe_merged_shares(a: &Report, b: &Report) -> String {
    if a.chunks.merged == Some(0) && b.chunks.merged == Some(0) {
        return String::from(NONE_IN_BOTH);
    }
    // The shares are text already.
    format_before_and_after(merged_share(a), merged_share(b), |share| share)
}

/// Share of merged chunks in those that were sent.
fn merged_share(report: &Report) -> Option<String> {
    Some(share(report.chunks.merged?, report.chunks.sent))
}

/// `9.1 ms -> 93.3 ms`; empty if one is unknown.
fn format_before_and_after<T>(a: Option<T>, b: Option<T>, format_number: impl Fn(T) -> String) -> String {
    a.zip(b).map_or_else(String::new, |(a, b)| format!("{} -> {}", format_number(a), format_number(b)))
}

/// Text for the measure that decides: `p99 9.1 ms -> 93.3 ms`.
fn describe_deciding_measure(measures: &[ComparedMeasure], measure_names: &[&str]) -> String {
    let Some(measure) = deciding_measure(measures, measure_names) else { return String::new() };
    // The names of these measures end with the quantile: `gap, p99`.
    let quantile = measure.name.rsplit(", ").next().unwrap_or_default();
    // Only measures of slots have a test.
    let slots = if measure.p.is_some() { " of slots" } else { "" };
    let numbers = format_before_and_after(measure.a, measure.b, |value| measure.unit.format_value(Some(value)));
    if numbers.is_empty() { numbers } else { format!("{quantile}{slots} {numbers}") }
}

/// The first of the named measures that became better or worse. Without one, the first that was judged, and without that, the first of all.
/// `None` if no measure has one of the names.
fn deciding_measure<'m>(measures: &'m [ComparedMeasure], measure_names: &[&str]) -> Option<&'m ComparedMeasure> {
    let named = measure_names.iter().filter_map(|name| measures.iter().find(|measure| measure.name == *name));
    let named: Vec<&ComparedMeasure> = named.collect();
    let changed = named.iter().find(|measure| matches!(measure.verdict, ChangeVerdict::Better | ChangeVerdict::Worse));
    let judged = named.iter().find(|measure| was_judged(measure));
    changed.or(judged).or(named.first()).copied()
}

/// Whether there was enough data for a verdict, or at least for a test. Such a test found a large difference but cannot confirm it.
fn was_judged(measure: &ComparedMeasure) -> bool {
    let was_tested = measure.p.is_some();
    match measure.verdict {
        ChangeVerdict::NotComparable => false,
        ChangeVerdict::NotEnoughData => was_tested,
        ChangeVerdict::Better | ChangeVerdict::Worse | ChangeVerdict::Changed | ChangeVerdict::WithinNoise => true,
    }
}

/// State of a problem by the measure that decides. `Unchanged` includes a change that is neither better nor worse.
fn state_by_deciding_measure(measures: &[ComparedMeasure], measure_names: &[&str]) -> ProblemState {
    match deciding_measure(measures, measure_names).map(|measure| measure.verdict) {
        Some(ChangeVerdict::Better) => ProblemState::Improved,
        Some(ChangeVerdict::Worse) => ProblemState::Regressed,
        Some(ChangeVerdict::WithinNoise | ChangeVerdict::Changed) => ProblemState::Unchanged,
        Some(ChangeVerdict::NotEnoughData) => ProblemState::NotEnoughData,
        Some(ChangeVerdict::NotComparable) | None => ProblemState::NotObserved,
    }
}

/// A quantile of all requests or tokens of a run.
struct ComparedQuantile {
    name: String,
    /// `p99`.
    label: &'static str,
    a_ns: u64,
    b_ns: u64,
    /// Requests or tokens of both runs.
    a_count: u64,
    b_count: u64,
    /// Smallest number of them in each run.
    least_count: u64,
    /// `requests` or `tokens`.
    counted: &'static str,
}

/// A quantile of both runs, of requests.
struct QuantileOfRequests {
    label: &'static str,
    a_ns: Option<u64>,
    b_ns: Option<u64>,
    /// Smallest number of requests in each run.
    least_count: u64,
}

impl QuantileOfRequests {
    /// The quantiles of both runs, the highest first. Each needs so many requests that ten lie beyond it.
    fn all_descending(a: &RequestTimes, b: &RequestTimes) -> [Self; 3] {
        [
            Self { label: "p99", a_ns: a.p99_ns, b_ns: b.p99_ns, least_count: 1_000 },
            Self { label: "p90", a_ns: a.p90_ns, b_ns: b.p90_ns, least_count: 100 },
            Self { label: "median", a_ns: a.p50_ns, b_ns: b.p50_ns, least_count: 20 },
        ]
    }
}

/// Times of the requests of one run.
struct RequestTimes {
    count: u64,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
}

impl RequestTimes {
    fn of_spread(spread: &Spread) -> Self {
        let Spread { count, p50, p90, p99, .. } = *spread;
        Self { count, p50_ns: Some(p50), p90_ns: Some(p90), p99_ns: Some(p99) }
    }

    fn of_gap(gap: &Gap) -> Self {
        Self { count: gap.count, p50_ns: gap.p50, p90_ns: gap.p90, p99_ns: gap.p99 }
    }
}

/// Quantiles of the times of all requests. Leaves out those that a run does not have, or for which it has too few requests. The highest is
/// the first, because the worst waits matter most.
fn quantiles_of_requests(quantity: &str, a: &RequestTimes, b: &RequestTimes) -> Vec<ComparedQuantile> {
    let mut quantiles = Vec::new();
    for QuantileOfRequests { label, a_ns, b_ns, least_count } in QuantileOfRequests::all_descending(a, b) {
        let has_enough = a.count >= least_count && b.count >= least_count;
        if has_enough && let (Some(a_ns), Some(b_ns)) = (a_ns, b_ns) {
            quantiles.push(ComparedQuantile {
                name: format!("{quantity} of all requests, {label}"),
                label,
                a_ns,
                b_ns,
                a_count: a.count,
                b_count: b.count,
                least_count,
                counted: "requests",
            });
        }
    }
    quantiles
}

/// Keeps the highest of the quantiles and the median. The highest one alone may mislead, because a few slow requests raise it, whatever
/// happened to the others.
fn keep_highest_and_median(mut quantiles: Vec<ComparedQuantile>) -> Vec<ComparedQuantile> {
    // The first is the highest and the last is the median. Those between them are removed.
    let last = quantiles.len().saturating_sub(1);
    if last > 1 {
        quantiles.drain(1..last);
    }
    quantiles
}

/// Quantiles of the time to first token of all requests; empty if the runs measured it between other points, or of too few requests.
fn quantiles_of_ttft(a: &Report, b: &Report) -> Vec<ComparedQuantile> {
    // The main group has the most requests of which the same moments were observed.
    let Some(group_a) = a.ttft.as_ref().and_then(TtftReport::main_group) else { return Vec::new() };
    let Some(group_b) = b.ttft.as_ref().and_then(TtftReport::main_group) else { return Vec::new() };
    // Times between different moments cannot be compared.
    if group_a.from != group_b.from || group_a.to != group_b.to {
        return Vec::new();
    }
    let times_a = RequestTimes::of_spread(&group_a.ns);
    let times_b = RequestTimes::of_spread(&group_b.ns);
    keep_highest_and_median(quantiles_of_requests("TTFT", &times_a, &times_b))
}

/// Quantiles of the first-token gap of all requests; empty if a run did not observe it, or too few requests have one.
fn quantiles_of_gap(a: &Report, b: &Report) -> Vec<ComparedQuantile> {
    let Some((gap_a, gap_b)) = a.gap_ns.as_ref().zip(b.gap_ns.as_ref()) else { return Vec::new() };
    keep_highest_and_median(quantiles_of_requests("gap", &RequestTimes::of_gap(gap_a), &RequestTimes::of_gap(gap_b)))
}

/// Waits of all frames on a hop that both runs have.
pub(super) struct ComparedWaits {
    pub(super) hop: String,
    pub(super) measure: ComparedMeasure,
}

/// Compares the queue waits of all frames, hop by hop, by the highest quantile that the number of frames allows. Skips hops with too few.
pub(super) fn compare_queue_waits(a: &Report, b: &Report, least_time_ns: u64) -> Vec<ComparedWaits> {
    let mut compared = Vec::new();
    for hop in &a.hops {
        let same_hop = b.hops.iter().find(|other| other.name == hop.name);
        let waits_of_b = same_hop.and_then(|other| other.queue_wait_ns.as_ref());
        let (Some(waits_of_a), Some(waits_of_b)) = (&hop.queue_wait_ns, waits_of_b) else { continue };
        if let Some(quantile) = highest_quantile_of_waits(&hop.name, waits_of_a, waits_of_b) {
            compared.push(ComparedWaits { hop: hop.name.clone(), measure: compare_quantile(quantile, least_time_ns) });
        }
    }
    compared
}

/// The highest quantile of the queue waits of a hop's frames that their number allows; `None` if a run has too few of them.
fn highest_quantile_of_waits(hop_name: &str, a: &Spread, b: &Spread) -> Option<ComparedQuantile> {
    // Waits of neighbouring frames depend on each other, so there must be more of them than of requests.
    if a.count.min(b.count) < LEAST_DEPENDENT_COUNT {
        return None;
    }
    // Waits of frames have the same quantiles as times of requests.
    let quantiles = quantiles_of_requests("queue wait", &RequestTimes::of_spread(a), &RequestTimes::of_spread(b));
    let highest = quantiles.into_iter().next()?;
    let name = format!("queue wait of all frames, {} on {hop_name}", highest.label);
    Some(ComparedQuantile { name, counted: "frames", ..highest })
}

/// Smallest number of tokens or frames in each run: those of one request are not independent, so even a median needs many.
pub(super) const LEAST_DEPENDENT_COUNT: u64 = 1_000;
/// Smallest factor between the values of whole runs that counts as a change: without slots, noise cannot be estimated.
pub(super) const LEAST_FACTOR_WITHOUT_SLOTS: f64 = 2.0;

/// Inter-token latency of all tokens in both runs, as median and p99. `measured_at` says where it was measured: `of the engine` or `at
/// clients`.
fn quantiles_of_itl(measured_at: &str, a: &Spread, b: &Spread) -> [ComparedQuantile; 2] {
    let quantile_of_tokens = |label: &'static str, a_ns: u64, b_ns: u64| ComparedQuantile {
        name: format!("ITL {measured_at}, {label}"),
        a_ns,
        b_ns,
        a_count: a.count,
        b_count: b.count,
        least_count: LEAST_DEPENDENT_COUNT,
        label,
        counted: "tokens",
    };
    [quantile_of_tokens("median", a.p50, b.p50), quantile_of_tokens("p99", a.p99, b.p99)]
}

/// Compares times that need no slots (short spans of a run): the time to first token of all requests, and the inter-token latency of all
/// tokens at the engine and at clients. Adds the first-token gap of all requests if the runs are too short for slots to decide
/// (`are_runs_short`).
pub(super) fn compare_times_of_whole_runs(
    a: &Report,
    b: &Report,
    least_time_ns: u64,
    are_runs_short: bool,
) -> Vec<ComparedMeasure> {
    let mut quantiles = Vec::new();
    quantiles.extend(quantiles_of_ttft(a, b));
    if are_runs_short {
        quantiles.extend(quantiles_of_gap(a, b));
    }
    if let (Some(itl_a), Some(itl_b)) = (&a.itl_ns.sent_by_token, &b.itl_ns.sent_by_token) {
        quantiles.extend(quantiles_of_itl("of the engine", itl_a, itl_b));
    }
    if let (Some(itl_a), Some(itl_b)) = (&a.itl_ns.delivered_by_token, &b.itl_ns.delivered_by_token) {
        quantiles.extend(quantiles_of_itl("at clients", itl_a, itl_b));
    }
    quantiles.into_iter().map(|quantile| compare_quantile(quantile, least_time_ns)).collect()
}

/// Verdict on a quantile, and its reason if it needs one.
struct QuantileVerdict {
    verdict: ChangeVerdict,
    note: Option<String>,
}

impl ComparedQuantile {
    /// Whether the quantile is at least twice as large in one of the runs, and longer by `least_time_ns`.
    fn has_changed(&self, least_time_ns: u64) -> bool {
        let shorter_ns = self.a_ns.min(self.b_ns);
        let longer_ns = self.a_ns.max(self.b_ns);
        longer_ns as f64 >= LEAST_FACTOR_WITHOUT_SLOTS * shorter_ns as f64 && longer_ns - shorter_ns >= least_time_ns
    }

    /// Judges the quantile by its change, if both runs have enough requests or tokens. Only a change of at least `least_time_ns` counts.
    fn judge(&self, least_time_ns: u64) -> QuantileVerdict {
        let counted = self.counted;
        let before = count(self.a_count);
        let after = count(self.b_count);
        if self.a_count.min(self.b_count) < self.least_count {
            let needed = count(self.least_count);
            let note = format!("{before} {counted} before and {after} after, {needed} are needed");
            return QuantileVerdict { verdict: ChangeVerdict::NotEnoughData, note: Some(note) };
        }
        if !self.has_changed(least_time_ns) {
            return QuantileVerdict { verdict: ChangeVerdict::WithinNoise, note: None };
        }
        // A larger quantile is worse, because it measures how long users wait.
        let verdict = if self.b_ns > self.a_ns { ChangeVerdict::Worse } else { ChangeVerdict::Better };
        let least_time = duration(least_time_ns);
        let note = format!("of all {before} and {after} {counted}: at least twofold and {least_time}");
        QuantileVerdict { verdict, note: Some(note) }
    }
}

/// Compares a quantile of both runs. It changed if it is at least twice as large in one of them, and longer by `least_time_ns`.
fn compare_quantile(quantile: ComparedQuantile, least_time_ns: u64) -> ComparedMeasure {
    let QuantileVerdict { verdict, note } = quantile.judge(least_time_ns);
    let ComparedQuantile { name, a_ns, b_ns, .. } = quantile;
    ComparedMeasure {
        name,
        unit: MeasureUnit::Ns,
        a: Some(a_ns as f64),
        b: Some(b_ns as f64),
        change: (a_ns > 0).then(|| b_ns as f64 / a_ns as f64 - 1.0),
        interval: None,
        p: None,
        verdict,
        note,
    }
}

/// How the runs were compared, in one sentence.
pub(super) fn describe_method(options: &DiffOptions) -> String {
    format!(
        "Rates, times and sizes are means of slots; shares of chunks and tokens, ITL and what is of all requests are of the whole run. \
         Mann-Whitney U test over time slots, with a smaller effective sample size if neighbouring slots correlate, corrected to {} over \
         all measures together (Benjamini-Hochberg); the interval has the shifts that this test does not reject (Hodges-Lehmann); a change \
         counts when the test rejects zero and the change is at least {}, for times at least {} and by half; an unconfirmed difference of \
         that size needs {} slots to be called noise",
        percent(options.alpha),
        percent(options.least_change),
        duration(options.least_time_ns),
        options.least_slots_for_noise
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the requests became slow, which the highest quantile hides: there, as slow ones were before.
    #[test]
    fn the_median_is_compared_beside_the_highest_quantile() {
        let times = |p50_ns| RequestTimes { count: 300, p50_ns: Some(p50_ns), p90_ns: Some(1_581 << 20), p99_ns: None };
        let quantiles = keep_highest_and_median(quantiles_of_requests("TTFT", &times(23 << 20), &times(1_832 << 20)));
        let compared: Vec<ComparedMeasure> =
            quantiles.into_iter().map(|quantile| compare_quantile(quantile, 20_000_000)).collect();
        let verdicts: Vec<(&str, ChangeVerdict)> =
            compared.iter().map(|measure| (measure.name.as_str(), measure.verdict)).collect();
        assert_eq!(
            verdicts,
            [(TTFT_MEASURES[1], ChangeVerdict::WithinNoise), (TTFT_MEASURES[2], ChangeVerdict::Worse)]
        );
        assert_eq!(state_by_deciding_measure(&compared, &TTFT_MEASURES), ProblemState::Regressed);
        assert_eq!(describe_deciding_measure(&compared, &TTFT_MEASURES), "median 24.1 ms -> 1.921 s");
    }

    #[test]
    fn the_state_follows_the_measure_with_the_reported_numbers() {
        let measure = |name: &str, [a, b]: [f64; 2], verdict| ComparedMeasure {
            name: name.into(),
            unit: MeasureUnit::Ns,
            a: Some(a),
            b: Some(b),
            change: None,
            interval: None,
            p: Some(0.1),
            verdict,
            note: None,
        };
        let names = ["gap, p99", "gap, median"];
        let mut measures = [
            measure(names[0], [9.1e6, 93.3e6], ChangeVerdict::NotEnoughData),
            measure(names[1], [3.1e6, 2.6e6], ChangeVerdict::WithinNoise),
        ];
        assert_eq!(describe_deciding_measure(&measures, &names), "p99 of slots 9.1 ms -> 93.3 ms");
        assert_eq!(
            state_by_deciding_measure(&measures, &names).improved_is_fixed_if(true),
            ProblemState::NotEnoughData
        );
        measures[1].verdict = ChangeVerdict::Worse;
        assert_eq!(state_by_deciding_measure(&measures, &names).improved_is_fixed_if(true), ProblemState::Regressed);
        assert_eq!(describe_deciding_measure(&measures, &names), "median of slots 3.1 ms -> 2.6 ms");
    }
}
