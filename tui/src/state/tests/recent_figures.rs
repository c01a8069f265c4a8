//! Current figures on the screen are those of the last seconds of the report's time series, on every recording in the repository.

use trace::{Analysis, ReportInput};

use outputs::report::{Report, Series};

use super::agreement::Replayed;
use crate::state::Model;
use crate::state::model::RunValues;

/// Sum of the last values of a column.
fn sum_of_last(column: &[u64], seconds: usize) -> u64 {
    column[column.len().saturating_sub(seconds)..].iter().sum()
}

fn assert_near(what: &str, shown: Option<f64>, expected: f64) {
    assert!(shown.is_some_and(|shown| (shown - expected).abs() < 1e-6), "{what}: {shown:?} instead of {expected}");
}

/// After the end of the sends, neither the screen has a rate of them nor the series a value.
fn assert_rates_are_unknown(model: &Model, series: &Series) {
    assert_eq!(model.send_rates, None);
    for hop in &series.hops {
        let Some(frames_sent) = &hop.frames_sent else { continue };
        let on_screen = model.hops.iter().find(|shown| shown.name == hop.name).expect("the hop");
        assert_eq!((on_screen.rates, frames_sent.last()), (None, Some(&None)), "{}", hop.name);
    }
}

/// Returns the number of seconds that the figures are taken over.
fn assert_figures_of_series(name: &str, analysis: &Analysis, input: &ReportInput) -> u64 {
    let mut model = Model::default();
    model.refresh(analysis, RunValues::default());
    let report = Report::of(analysis, input);
    let Some(series) = &report.series else { return 0 };
    let begun = analysis.time_series().begun().unwrap_or_default();
    let elapsed_ns = analysis.ledger().now().since(begun);
    // At the end of a second, the next one has no slot yet.
    let has_begun = !elapsed_ns.is_multiple_of(1_000_000_000);
    let whole_seconds = (elapsed_ns / 1_000_000_000) as usize;
    let seconds = whole_seconds.min(9) + usize::from(has_begun);
    assert_eq!(series.slot_ns, 1_000_000_000, "{name}");
    assert_eq!(series.len(), whole_seconds + usize::from(has_begun), "{name}");
    let length_ns = elapsed_ns - whole_seconds.saturating_sub(9) as u64 * 1_000_000_000;
    assert_eq!(model.recent_window.length_ns(), length_ns, "{name}");
    if model.sends_end.is_some() {
        assert_rates_are_unknown(&model, series);
        return 0;
    }
    let Some(rates) = model.send_rates else {
        assert!(elapsed_ns < 100_000_000, "{name}");
        return 0;
    };
    let mean = |column: &[Option<u64>]| {
        let known: Vec<u64> = column.iter().map(|value| value.unwrap_or(0)).collect();
        sum_of_last(&known, seconds) as f64 * 1e9 / length_ns as f64
    };
    assert_near(name, Some(rates.tokens), mean(&series.tokens.sent));
    for hop in &series.hops {
        let on_screen = model.hops.iter().find(|shown| shown.name == hop.name).expect("the hop");
        let frames = hop.frames_sent.as_ref().or(hop.frames_received.as_ref()).expect("an observed end");
        assert_near(&hop.name, on_screen.rates.map(|rates| rates.frames), mean(frames));
        assert_near(&hop.name, on_screen.rates.map(|rates| rates.bytes), mean(&hop.bytes));
    }
    let counts: Vec<u64> = series.gap_ns.iter().flat_map(|gap| &gap.count).map(|count| count.unwrap_or(0)).collect();
    let gaps = sum_of_last(&counts, seconds);
    assert_eq!(model.gap.window.map_or(0, |window| window.count), gaps, "{name}");
    let max = series.gap_ns.as_ref().map(|gap| &gap.max[gap.max.len().saturating_sub(seconds)..]);
    let max = max.and_then(|max| max.iter().flatten().max().copied());
    assert_eq!(model.gap.window.map(|window| window.max), max, "{name}: now is part of the window");
    seconds as u64
}

#[test]
fn current_figures_are_means_of_the_last_values_of_the_series() {
    let longest = Replayed::check_each(|name| {
        let mut longest = 0;
        Replayed::new(name, &mut |analysis, input| {
            longest = longest.max(assert_figures_of_series(name, analysis, input));
        });
        longest
    });
    assert!(longest.iter().any(|longest| *longest >= 2), "{longest:?}");
}
