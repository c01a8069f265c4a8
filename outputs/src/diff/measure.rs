//! How to judge the change of a measure.

use trace::words::count;

use super::mann_whitney::{self, MannWhitney};
use super::measure_list::{ExactTotals, GoodDirection, Measure, list_measures, live_requests, loaded_slot_indices};
use super::problem_outcome::{self, DROPPED_CONFIRMED, DROPPED_PREDICTED, MERGED};
use super::{ChangeVerdict, ComparedMeasure, DiffOptions, MeasureUnit};
use crate::report::{Report, Series};

/// What all measures of a comparison have in common.
struct Criteria<'o> {
    /// Largest p-value of a change.
    max_p_value: f64,
    /// Number of slots under load in the run that has fewer.
    fewest_slots: usize,
    /// How the number of live requests changed.
    load: LoadChange,
    options: &'o DiffOptions,
}

impl<'o> Criteria<'o> {
    /// Criteria for a comparison of these two runs, with the tests of all its measures.
    fn of_comparison(a: &Series, b: &Series, tests: &[Option<MannWhitney>], options: &'o DiffOptions) -> Self {
        // All tests together set the level, since many tests find a difference somewhere by chance.
        let p_values = tests.iter().flatten().map(MannWhitney::p_value).collect();
        Self {
            max_p_value: mann_whitney::significance_level(p_values, options.alpha),
            fewest_slots: loaded_slot_indices(a).len().min(loaded_slot_indices(b).len()),
            load: LoadChange::of_runs(a, b, options),
            options,
        }
    }
}

/// How the load of the second run differs from that of the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadChange {
    Lower,
    Equal,
    Higher,
}

impl LoadChange {
    /// Compares the mean numbers of live requests. The token rate is not the load: a slower engine sends fewer tokens under the same load.
    fn of_runs(a: &Series, b: &Series, options: &DiffOptions) -> Self {
        let live_a = mean_live_requests(a);
        let live_b = mean_live_requests(b);
        if !is_change_large_enough(MeasureUnit::Number, live_a, live_b, options) {
            Self::Equal
        } else if live_b > live_a {
            Self::Higher
        } else {
            Self::Lower
        }
    }
}

/// Mean number of live requests in the slots under load. 0 without such slots, because the run then has no live requests.
fn mean_live_requests(series: &Series) -> f64 {
    mean_of_slots(Some(&live_requests(series))).unwrap_or(0.0)
}

/// Verdict on a measure, and its reason if it needs one.
pub(super) struct Judged {
    pub(super) verdict: ChangeVerdict,
    pub(super) note: Option<String>,
}

/// Compares all measures of both runs by their values in each slot, a short span of the run. Empty if one of the runs has no slots.
pub(super) fn compare_measures(a: &Report, b: &Report, options: &DiffOptions) -> Vec<ComparedMeasure> {
    let (Some(series_a), Some(series_b)) = (&a.series, &b.series) else { return Vec::new() };
    let mut measures = list_measures(series_a, series_b);
    set_whole_run_values_and_exact_totals(&mut measures, a, b);
    let tests: Vec<Option<MannWhitney>> = measures.iter().map(|measure| test_measure(measure, options)).collect();
    let criteria = Criteria::of_comparison(series_a, series_b, &tests, options);
    let mut compared = judge_measures(measures, &tests, &criteria);
    let are_runs_short = criteria.fewest_slots < options.least_slots_for_noise;
    // Few slots decide little. The waits of all frames may still decide.
    if are_runs_short {
        replace_slot_waits_by_frame_waits(&mut compared, a, b, options.least_time_ns);
    }
    let times_of_whole_runs = problem_outcome::compare_times_of_whole_runs(a, b, options.least_time_ns, are_runs_short);
    // They stand behind the first-token gaps of slots, and one of them may make these gaps superfluous.
    insert_behind_gaps(&mut compared, times_of_whole_runs);
    remove_superseded_gaps(&mut compared);
    compared
}

/// Judges each measure by its test. `tests` has one entry for each measure, which is `None` if a run has too few slots.
fn judge_measures(
    measures: Vec<Measure>,
    tests: &[Option<MannWhitney>],
    criteria: &Criteria<'_>,
) -> Vec<ComparedMeasure> {
    let with_tests = measures.into_iter().zip(tests);
    with_tests.map(|(measure, test)| judge_measure(measure, test.as_ref(), criteria)).collect()
}

/// Removes the first-token gaps of slots that did not change, if the gap of all requests has a verdict.
fn remove_superseded_gaps(compared_measures: &mut Vec<ComparedMeasure>) {
    // Beside the verdict on all requests, a gap of slots without a change only confuses.
    if compared_measures.iter().any(is_decided_gap_of_requests) {
        compared_measures.retain(|measure| measure.verdict.is_change() || !is_gap_of_slots(measure));
    }
}

/// Inserts times of the whole runs behind the gaps, the other times that clients notice. Without gaps they come first.
fn insert_behind_gaps(compared_measures: &mut Vec<ComparedMeasure>, whole_run_measures: Vec<ComparedMeasure>) {
    let last_gap = compared_measures.iter().rposition(is_gap_of_slots);
    let behind_gaps = last_gap.map_or(0, |last| last + 1);
    compared_measures.splice(behind_gaps..behind_gaps, whole_run_measures);
}

/// Whether the measure is a quantile of the first-token gap in each slot.
fn is_gap_of_slots(measure: &ComparedMeasure) -> bool {
    measure.name.starts_with("gap, ")
}

/// Whether the measure is a quantile of the first-token gap over all requests, and there were enough requests for a verdict.
fn is_decided_gap_of_requests(measure: &ComparedMeasure) -> bool {
    measure.name.starts_with("gap of all requests, ") && measure.verdict != ChangeVerdict::NotEnoughData
}

/// Replaces the queue waits per slot of each hop by the queue wait over all its frames. A slot is a short span of a run. A wait per slot
/// that changed stays. A hop with too few frames keeps all its waits per slot.
fn replace_slot_waits_by_frame_waits(
    compared_measures: &mut Vec<ComparedMeasure>,
    a: &Report,
    b: &Report,
    least_time_ns: u64,
) {
    for waits in problem_outcome::compare_queue_waits(a, b, least_time_ns) {
        let names_per_slot = ["median", "p99"].map(|quantile| format!("queue wait, {quantile} on {}", waits.hop));
        let is_wait_per_slot = |measure: &ComparedMeasure| names_per_slot.contains(&measure.name);
        // The new measure stands where the waits per slot stood. Without any, it comes first.
        let former_index = compared_measures.iter().position(is_wait_per_slot).unwrap_or(0);
        compared_measures.retain(|measure| measure.verdict.is_change() || !is_wait_per_slot(measure));
        // The shorter list may end before the former index.
        let new_index = former_index.min(compared_measures.len());
        compared_measures.insert(new_index, waits.measure);
    }
}

/// Tests whether the measure's values per slot, a short span of time, differ between the runs; `None` if a run has too few of them.
fn test_measure(measure: &Measure, options: &DiffOptions) -> Option<MannWhitney> {
    let a = measure.a.as_ref()?;
    let b = measure.b.as_ref()?;
    let has_enough_slots = a.len() >= options.least_slots && b.len() >= options.least_slots;
    if has_enough_slots { Some(MannWhitney::of_samples(a, b)) } else { None }
}

/// Both runs' values of a measure, the result of the test, and the verdict.
fn judge_measure(measure: Measure, test: Option<&MannWhitney>, criteria: &Criteria<'_>) -> ComparedMeasure {
    // Without values of the whole runs, the means of the slots are shown.
    let [a, b] = measure
        .whole_runs
        .unwrap_or_else(|| [mean_of_slots(measure.a.as_deref()), mean_of_slots(measure.b.as_deref())]);
    let change = relative_change(a, b);
    // Exact totals are facts, which no test can refute.
    let Judged { verdict, note } = if let Some(judged) = judge_exact_totals(&measure) {
        judged
    } else if let Some(test) = test {
        judge_by_test(&measure, a, b, test, criteria)
    } else {
        explain_missing_test(&measure, criteria)
    };
    let p_value = test.map(MannWhitney::p_value);
    let interval = test.and_then(|test| test.shift_interval(criteria.max_p_value));
    ComparedMeasure { name: measure.name, unit: measure.unit, a, b, change, interval, p: p_value, verdict, note }
}

/// How much larger `b` is than `a`, relative to `a`; `None` if one is unknown, or `a` is 0.
pub(super) fn relative_change(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) if a != 0.0 => Some(b / a - 1.0),
        _ => None,
    }
}

/// Verdict by the test of the slots, which are short spans of both runs. A difference between the runs' values `a` and `b` counts only if
/// it is large enough to matter.
fn judge_by_test(
    measure: &Measure,
    a: Option<f64>,
    b: Option<f64>,
    test: &MannWhitney,
    criteria: &Criteria<'_>,
) -> Judged {
    let within_noise = Judged { verdict: ChangeVerdict::WithinNoise, note: None };
    let (Some(a), Some(b)) = (a, b) else { return within_noise };
    let is_large =
        is_change_large_enough(measure.unit, a, b, criteria.options) && (b - a).abs() >= measure.least_distance;
    // A small difference does not matter, even if the test confirms it.
    if !is_large {
        return within_noise;
    }
    if confirms_change(test, measure.unit, a, b, criteria) {
        let is_rise = b > a;
        return Judged { verdict: verdict_on_change(measure.good, is_rise, criteria.load), note: None };
    }
    // With more slots, the test might confirm the difference.
    let needed = criteria.options.least_slots_for_noise;
    if criteria.fewest_slots < needed {
        return Judged {
            verdict: ChangeVerdict::NotEnoughData,
            note: Some(describe_needed_slots(criteria.fewest_slots, needed)),
        };
    }
    within_noise
}

/// Whether the test confirms that the measure went from `a` to `b`. A single slot can move the mean, so most slots must have shifted the
/// same way.
fn confirms_change(test: &MannWhitney, unit: MeasureUnit, a: f64, b: f64, criteria: &Criteria<'_>) -> bool {
    let Some(interval) = test.shift_interval(criteria.max_p_value) else { return false };
    is_shift_confirmed(unit, a, b, interval, criteria.options) && test.p_value() <= criteria.max_p_value
}

/// Verdict on a measure that changed beyond noise. `good` is the direction of improvement. Of a measure such as the token rate, more is
/// better only if the load is not higher: a change that follows the load is neither better nor worse.
fn verdict_on_change(good: GoodDirection, is_rise: bool, load: LoadChange) -> ChangeVerdict {
    let same_change_of_load = if is_rise { LoadChange::Higher } else { LoadChange::Lower };
    let follows_load = load == same_change_of_load;
    match good {
        GoodDirection::Neither => ChangeVerdict::Changed,
        GoodDirection::MoreAtEqualLoad if follows_load => ChangeVerdict::Changed,
        GoodDirection::MoreAtEqualLoad => better_or_worse(is_rise),
        GoodDirection::Less => better_or_worse(!is_rise),
    }
}

/// Verdict on a change that is an improvement or else a regression.
fn better_or_worse(is_better: bool) -> ChangeVerdict {
    if is_better { ChangeVerdict::Better } else { ChangeVerdict::Worse }
}

/// Mean; `None` without values.
fn mean_of_slots(values: Option<&[f64]>) -> Option<f64> {
    let values = values.filter(|values| !values.is_empty())?;
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

/// Verdict if one run has none of the counted chunks and the other has some. Such a change is a fact, whatever the number of slots. `None`
/// if there are no exact totals, or the slots must decide.
fn judge_exact_totals(measure: &Measure) -> Option<Judged> {
    let ExactTotals { a, b } = measure.exact?;
    if a == 0 && b > 0 {
        let note = format!("none before, {} after: counted, not sampled", count(b));
        return Some(Judged { verdict: ChangeVerdict::Worse, note: Some(note) });
    }
    if a > 0 && b == 0 {
        let note = format!("{} before, none after: counted, not sampled", count(a));
        return Some(Judged { verdict: ChangeVerdict::Better, note: Some(note) });
    }
    // Two other totals must be compared by their slots.
    None
}

/// Whether the slots confirm that the mean went from `mean_a` to `mean_b`. `shift_interval` has the lowest and the highest plausible shift
/// of the slots. Both must have the direction of the mean, and the farther one must be large enough to matter.
fn is_shift_confirmed(
    unit: MeasureUnit,
    mean_a: f64,
    mean_b: f64,
    shift_interval: [f64; 2],
    options: &DiffOptions,
) -> bool {
    let [low, high] = shift_interval;
    if mean_b > mean_a {
        low >= 0.0 && is_change_large_enough(unit, mean_a, mean_a + high, options)
    } else {
        high <= 0.0 && is_change_large_enough(unit, mean_a, mean_a + low, options)
    }
}

/// Verdict on a measure without a test, with the reason: a run does not observe the measure, or has a value of it in too few slots (short
/// spans of the run).
fn explain_missing_test(measure: &Measure, criteria: &Criteria<'_>) -> Judged {
    if let Some(unobserved) = describe_run_without_measure(measure) {
        return Judged { verdict: ChangeVerdict::NotComparable, note: Some(unobserved.to_owned()) };
    }
    let least_slots = criteria.options.least_slots;
    // If a run has too few slots, only a longer run helps. Otherwise the measure has a value in too few of them.
    let why = if criteria.fewest_slots < least_slots {
        describe_needed_slots(criteria.fewest_slots, criteria.options.least_slots_for_noise)
    } else {
        describe_seldom_values(criteria.options)
    };
    Judged { verdict: ChangeVerdict::NotEnoughData, note: Some(why) }
}

/// Why slots cannot judge a measure that seldom has a value.
pub(super) fn describe_seldom_values(options: &DiffOptions) -> String {
    format!("it has a value in fewer than {} slots of a run", options.least_slots)
}

/// Which run does not observe the measure; `None` if both do.
fn describe_run_without_measure(measure: &Measure) -> Option<&'static str> {
    match (&measure.a, &measure.b) {
        (None, None) => Some("neither run observes it"),
        (None, Some(_)) => Some("the first run does not observe it"),
        (Some(_), None) => Some("the second run does not observe it"),
        (Some(_), Some(_)) => None,
    }
}

/// Warning that a run is too short to tell changes from noise: `short runs: ...`. `None` if both runs have enough slots, or one has no time
/// series.
pub(super) fn describe_short_runs(a: &Report, b: &Report, options: &DiffOptions) -> Option<String> {
    let slots_a = loaded_slot_indices(a.series.as_ref()?).len();
    let slots_b = loaded_slot_indices(b.series.as_ref()?).len();
    let fewest_slots = slots_a.min(slots_b);
    let needed = options.least_slots_for_noise;
    if fewest_slots < needed { Some(describe_needed_slots(fewest_slots, needed)) } else { None }
}

/// Why slots cannot confirm a change. The words are the same for every measure, so that a text can print them once.
fn describe_needed_slots(fewest: usize, needed: usize) -> String {
    format!(
        "short runs: only {fewest} slots under load, {needed} are needed to tell changes from noise: record for longer"
    )
}

/// Whether a change would be large enough to matter if it were certain.
fn is_change_large_enough(unit: MeasureUnit, a: f64, b: f64, options: &DiffOptions) -> bool {
    /// A time must grow by half or fall by a third. Either is a third of the larger value.
    const LEAST_CHANGE_OF_TIME: f64 = 1.0 / 3.0;
    /// A change of a share by less is not meaningful.
    const LEAST_DISTANCE_OF_SHARES: f64 = 0.02;
    let distance = (b - a).abs();
    let relative = relative_distance(a, b);
    // The option is relative to the smaller value: a rise from 1 to 1 + c is c / (1 + c) of the larger value.
    let least_relative = options.least_change / (1.0 + options.least_change);
    match unit {
        MeasureUnit::Ns => distance >= options.least_time_ns as f64 && relative >= LEAST_CHANGE_OF_TIME,
        MeasureUnit::PerSecond | MeasureUnit::Number => relative >= least_relative,
        MeasureUnit::Share => relative >= least_relative && distance >= LEAST_DISTANCE_OF_SHARES,
    }
}

/// Distance of two values relative to the larger one, so that a rise and the fall back to the old value count the same.
fn relative_distance(a: f64, b: f64) -> f64 {
    // Not 0, because the distance is divided by it.
    let larger_value = a.abs().max(b.abs()).max(f64::MIN_POSITIVE);
    (b - a).abs() / larger_value
}

/// Sets the values of the whole runs in the measures of dropped and merged chunks: the shares of all chunks. Adds the exact totals where
/// these prove a change without a test of slots.
fn set_whole_run_values_and_exact_totals(measures: &mut [Measure], a: &Report, b: &Report) {
    for name in [DROPPED_CONFIRMED, DROPPED_PREDICTED, MERGED] {
        let Some(measure) = measures.iter_mut().find(|measure| measure.name == name) else { continue };
        let total_a = count_chunks_of_measure(name, a);
        let total_b = count_chunks_of_measure(name, b);
        measure.whole_runs = Some([share_of_chunks(total_a, a), share_of_chunks(total_b, b)]);
        let (Some(total_a), Some(total_b)) = (total_a, total_b) else { continue };
        let totals = ExactTotals { a: total_a, b: total_b };
        let is_conclusive = are_totals_conclusive(name, totals, a, b);
        measure.exact = if is_conclusive { Some(totals) } else { None };
    }
}

/// Whether a change of these totals is a fact about the engine, and not about the load or a prediction.
fn are_totals_conclusive(measure_name: &str, totals: ExactTotals, a: &Report, b: &Report) -> bool {
    match measure_name {
        DROPPED_CONFIRMED => true,
        // A few merged chunks may come from the load alone. Only none or many show how the engine works.
        MERGED => are_merged_chunks_none_or_many(totals.a, a) && are_merged_chunks_none_or_many(totals.b, b),
        // Predicted drops may not happen.
        _ => false,
    }
}

/// Number of a run's chunks with the outcome that this measure counts; `None` if not observed.
fn count_chunks_of_measure(measure_name: &str, run: &Report) -> Option<u64> {
    match measure_name {
        DROPPED_CONFIRMED => run.chunks.dropped_confirmed,
        DROPPED_PREDICTED => run.chunks.dropped_predicted,
        // `MERGED`, the only other measure of chunks.
        _ => run.chunks.merged,
    }
}

/// Share of these chunks in all that the run's scheduler sent; `None` if their number is unknown.
fn share_of_chunks(chunks: Option<u64>, run: &Report) -> Option<f64> {
    Some(chunks? as f64 / run.chunks.sent.max(1) as f64)
}

/// Whether a number of merged chunks shows that the engine merges none, or that it merges as a rule.
fn are_merged_chunks_none_or_many(merged_chunks: u64, run: &Report) -> bool {
    /// Smallest share of the chunks of a run that counts as many.
    const MANY_MERGED: f64 = 0.02;
    merged_chunks == 0 || share_of_chunks(Some(merged_chunks), run).is_some_and(|share| share >= MANY_MERGED)
}
