//! Export of metrics and spans during a run: metrics on scrape, spans and metrics by push. A failure here, even a panic, is reported but
//! does not affect the run.

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

/// Version in metrics and spans.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// All telemetry of a run.
#[derive(Default)]
pub(crate) struct Telemetry {
    answers: Option<Answers>,
    refused: Option<Arc<Refused>>,
    push: Option<Push>,
    failed: Option<String>,
}

impl Telemetry {
    /// Opens what `args` request. Called before the run, so that errors appear at once. `source` is the name in the report.
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

    /// Processes an event after `analysis`.
    pub(crate) fn event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        if self.push.is_some() {
            self.guarded(|telemetry| {
                if let Some(push) = &mut telemetry.push {
                    push.event(event, analysis);
                }
            });
        }
    }

    /// Processes a tick after `analysis`.
    pub(crate) fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.push.is_some() {
            self.guarded(|telemetry| {
                if let Some(push) = &mut telemetry.push {
                    push.tick(now, analysis, &|pushed| metrics(analysis, &input(), Some(pushed)));
                }
            });
        }
    }

    /// Answers pending scrapes. Called between two turns of the run loop.
    pub(crate) fn turn(&mut self, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.answers.as_ref().is_some_and(Answers::wanted) {
            self.guarded(|telemetry| telemetry.answer(analysis, &input(), false));
        }
    }

    /// Pushes the rest at the end of a run with `report`.
    pub(crate) fn conclude(&mut self, analysis: &Analysis, report: &Report, input: &ReportInput) {
        self.guarded(|telemetry| {
            if let Some(push) = &mut telemetry.push {
                push.finish(analysis, report, &|pushed| metrics(analysis, input, Some(pushed)));
            }
        });
    }

    /// Publishes the final metrics. `input` is that of the report.
    pub(crate) fn finish(&mut self, analysis: &Analysis, input: &ReportInput) {
        self.guarded(|telemetry| telemetry.answer(analysis, input, true));
    }

    /// Returns whether anything is pushed, in which case the end must wait for it.
    pub(crate) fn pushes(&self) -> bool {
        self.push.is_some()
    }

    /// Problems, for the report.
    pub(crate) fn trouble(&self) -> Vec<String> {
        let push = self.push.as_ref().and_then(Push::trouble);
        let refused = self.refused.as_ref().and_then(|refused| refused.trouble());
        push.into_iter().chain(refused).chain(self.failed.clone()).collect()
    }

    /// Message for the user since the last call.
    pub(crate) fn news(&self) -> Option<String> {
        self.push.as_ref().and_then(Push::news)
    }

    fn answer(&mut self, analysis: &Analysis, input: &ReportInput, last: bool) {
        let pushed = self.push.as_ref().map(Push::pushed);
        if let Some(answers) = &self.answers {
            answers.give(metrics(analysis, input, pushed), last);
        }
    }

    /// Runs `tell`. A panic ends the telemetry, but not the run.
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

/// Keeps serving the final metrics for the time in `args`, unless `asked_to_end`.
pub(crate) fn linger(args: &TelemetryArgs, asked_to_end: impl Fn() -> bool) {
    let began = Instant::now();
    while args.metrics_linger.is_some_and(|most| began.elapsed() < most) && !asked_to_end() {
        thread::sleep(Duration::from_millis(20));
    }
}
