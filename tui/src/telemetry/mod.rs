//! What is told to other systems while a run goes on. Never the run's concern: who asks gets a copy of the numbers, and trouble
//! here is said, and the run goes on.

mod args;
mod endpoint;
mod exposition;
mod scrapes;

use std::thread;
use std::time::{Duration, Instant};

use trace::Analysis;
use trace::metrics::Input;
use trace::report::ReportInput;

pub(crate) use args::TelemetryArgs;
use scrapes::Answers;

/// The version that metrics and spans tell.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// All that one run tells.
#[derive(Default)]
pub(crate) struct Telemetry {
    answers: Option<Answers>,
}

impl Telemetry {
    /// Opens what `args` ask for, before the run, so that a mistake is told at once.
    pub(crate) fn open(args: &TelemetryArgs) -> anyhow::Result<Self> {
        let mut telemetry = Self::default();
        if let Some(address) = args.metrics {
            let (answers, questions) = scrapes::pair();
            let bound = endpoint::serve(address, questions)?;
            eprintln!("tokengap: metrics at http://{bound}/metrics");
            if !bound.ip().is_loopback() {
                eprintln!(
                    "tokengap: anybody who reaches {bound} can read them: there is no authentication (numbers and the names of \
                     hops, no request ids)"
                );
            }
            telemetry.answers = Some(answers);
        }
        Ok(telemetry)
    }

    /// Between two turns of the run's loop: answers who asks.
    pub(crate) fn turn(&mut self, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if let Some(answers) = self.answers.as_ref().filter(|answers| answers.wanted()) {
            answers.give(analysis.metrics(&metrics_input(&input())), false);
        }
    }

    /// The run is over: `input` is what its report was told.
    pub(crate) fn finish(&mut self, analysis: &Analysis, input: &ReportInput) {
        if let Some(answers) = &self.answers {
            answers.give(analysis.metrics(&metrics_input(input)), true);
        }
    }
}

fn metrics_input(report: &ReportInput) -> Input<'_> {
    Input {
        report,
        version: VERSION,
        pushed: None,
    }
}

/// Goes on serving the last metrics for as long as `args` ask, unless `asked_to_end`.
pub(crate) fn linger(args: &TelemetryArgs, asked_to_end: impl Fn() -> bool) {
    let began = Instant::now();
    while args.metrics_linger.is_some_and(|most| began.elapsed() < most) && !asked_to_end() {
        thread::sleep(Duration::from_millis(20));
    }
}
