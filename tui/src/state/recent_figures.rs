//! Current figures on the screen are those of the last whole seconds of the report's time series, on every recording in the repository.

use trace::{Analysis, ReportInput};

use outputs::report::Report;

use super::Model;
use super::agreement::Replayed;
use super::model::RunValues;

/// Sum of the last values of a column that are over.
fn sum_of_last(column: &[u64], over: usize, seconds: usize) -> u64 {
    column[over - seconds..over].iter().sum()
}

fn assert_near(what: &str, shown: Option<f64>, expected: f64) {
    assert!(shown.is_some_and(|shown| (shown - expected).abs() < 1e-6), "{what}: {shown:?} instead of {expected}");
}

/// Returns the number of seconds that the figures are taken over.
fn assert_figures_of_series(name: &str, analysis: &Analysis, input: &ReportInput) -> u64 {
    let mut model = Model::default();
    model.refresh(analysis, RunValues::default());
    let report = Report::of(analysis, input);
    let Some(series) = &report.series else { return 0 };
    let begun = analysis.time_series().begun().unwrap_or_default();
    let over = (analysis.ledger().now().since(begun) / 1_000_000_000) as usize;
    let seconds = over.min(10);
    assert_eq!((series.slot_ns, model.recent_seconds), (1_000_000_000, seconds as u64), "{name}");
    let Some(rates) = model.send_rates else {
        assert_eq!(over, 0, "{name}");
        return 0;
    };
    let mean = |column: &[u64]| sum_of_last(column, over, seconds) as f64 / seconds as f64;
    assert_near(name, Some(rates.tokens), mean(&series.tokens.sent));
    for hop in &series.hops {
        let on_screen = model.hops.iter().find(|shown| shown.name == hop.name).expect("the hop");
        let frames = hop.frames_sent.as_ref().or(hop.frames_received.as_ref()).expect("frames");
        assert_near(&hop.name, on_screen.rates.map(|rates| rates.frames), mean(frames));
        assert_near(&hop.name, on_screen.rates.map(|rates| rates.bytes), mean(&hop.bytes));
    }
    let gaps = series.gap_ns.as_ref().map_or(0, |gap| sum_of_last(&gap.count, over, seconds));
    assert_eq!(model.gap.window.map_or(0, |window| window.count), gaps, "{name}");
    seconds as u64
}

#[test]
fn current_figures_are_means_of_the_last_values_of_the_series() {
    let mut longest = 0;
    for name in Replayed::NAMES {
        Replayed::new(name, &mut |analysis, input| {
            longest = longest.max(assert_figures_of_series(name, analysis, input));
        });
    }
    assert!(longest >= 2, "{longest}");
}
