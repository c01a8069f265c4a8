//! What is told to other systems while a run goes on: metrics to who asks, spans and metrics to a receiver. Never the run's
//! concern: trouble here, a panic included, is said, and the run goes on.

mod args;
mod endpoint;
mod environment;
mod exposition;
mod pace;
mod push;
mod queue;
mod scrapes;
mod sender;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use trace::metrics::{Family, Input, Pushed};
use trace::report::{Report, ReportInput};
use trace::{Analysis, Event, MonoNs};

pub(crate) use args::TelemetryArgs;
use endpoint::Refused;
use push::Push;
use scrapes::Answers;

/// The version that metrics and spans tell.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// All that one run tells.
#[derive(Default)]
pub(crate) struct Telemetry {
    answers: Option<Answers>,
    refused: Option<Arc<Refused>>,
    push: Option<Push>,
    failed: Option<String>,
}

impl Telemetry {
    /// Opens what `args` ask for, before the run, so that a mistake is told at once. `source` is what the report calls it.
    pub(crate) fn open(args: &TelemetryArgs, source: &str) -> anyhow::Result<Self> {
        let mut telemetry = Self {
            push: Push::open(args, source)?,
            ..Self::default()
        };
        if let Some(address) = args.metrics {
            let (answers, questions) = scrapes::pair();
            let (bound, refused) = endpoint::serve(address, questions, endpoint::BOUNDS)?;
            telemetry.refused = Some(refused);
            errln!("tokengap: metrics at http://{bound}/metrics");
            if !bound.ip().is_loopback() {
                errln!(
                    "tokengap: anybody who reaches {bound} can read them: there is no authentication (numbers and the names of \
                     hops, no request ids)"
                );
            }
            telemetry.answers = Some(answers);
        }
        Ok(telemetry)
    }

    /// An event that `analysis` has entered.
    pub(crate) fn event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        if self.push.is_some() {
            self.guarded(|telemetry| {
                if let Some(push) = &mut telemetry.push {
                    push.event(event, analysis);
                }
            });
        }
    }

    /// Time that `analysis` has let pass.
    pub(crate) fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.push.is_some() {
            self.guarded(|telemetry| {
                if let Some(push) = &mut telemetry.push {
                    push.tick(now, analysis, &|pushed| metrics(analysis, &input(), Some(pushed)));
                }
            });
        }
    }

    /// Between two turns of the run's loop: answers who asks.
    pub(crate) fn turn(&mut self, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.answers.as_ref().is_some_and(Answers::wanted) {
            self.guarded(|telemetry| telemetry.answer(analysis, &input(), false));
        }
    }

    /// The run has come to `report`: pushes what is left.
    pub(crate) fn conclude(&mut self, analysis: &Analysis, report: &Report, input: &ReportInput) {
        self.guarded(|telemetry| {
            if let Some(push) = &mut telemetry.push {
                push.finish(analysis, report, &|pushed| metrics(analysis, input, Some(pushed)));
            }
        });
    }

    /// Nothing more will come: `input` is what the report was told.
    pub(crate) fn finish(&mut self, analysis: &Analysis, input: &ReportInput) {
        self.guarded(|telemetry| telemetry.answer(analysis, input, true));
    }

    /// Whether something is pushed, so that the end has to wait for it.
    pub(crate) fn pushes(&self) -> bool {
        self.push.is_some()
    }

    /// What went wrong, for the report.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let push = self.push.as_ref().and_then(Push::trouble);
        let refused = self.refused.as_ref().and_then(|refused| refused.trouble());
        push.into_iter().chain(refused).chain(self.failed.clone()).collect()
    }

    /// What there is to say since the last call.
    pub(crate) fn news(&self) -> Option<String> {
        self.push.as_ref().and_then(Push::news)
    }

    fn answer(&mut self, analysis: &Analysis, input: &ReportInput, last: bool) {
        let pushed = self.push.as_ref().map(Push::pushed);
        if let Some(answers) = &self.answers {
            answers.give(metrics(analysis, input, pushed), last);
        }
    }

    /// Does `tell`; a panic in it costs the telling, not the run.
    fn guarded(&mut self, tell: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| tell(self))).is_err() {
            *self = Self {
                failed: Some("metrics: they failed and were left off; the run went on (this is a bug)".into()),
                ..Self::default()
            };
        }
    }
}

fn metrics(analysis: &Analysis, report: &ReportInput, pushed: Option<Pushed>) -> Vec<Family> {
    analysis.metrics(&Input {
        report,
        version: VERSION,
        pushed,
    })
}

/// Goes on serving the last metrics for as long as `args` ask, unless `asked_to_end`.
pub(crate) fn linger(args: &TelemetryArgs, asked_to_end: impl Fn() -> bool) {
    let began = Instant::now();
    while args.metrics_linger.is_some_and(|most| began.elapsed() < most) && !asked_to_end() {
        thread::sleep(Duration::from_millis(20));
    }
}
