//! Export of metrics and spans during a run: metrics on scrape, spans and metrics by push. A failure here, even a panic, is reported but
//! does not affect the run.

mod access;
mod endpoint;
mod environment;
mod exposition;
mod push;
mod queue;
mod scrapes;
mod sender;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use trace::metrics::{Family, Input, Pushed};
use trace::report::{Report, ReportInput};
use trace::{Analysis, Event, MonoNs};

pub use access::AccessToken;
use endpoint::Endpoint;
use push::Push;
pub use push::PushOptions;

/// Version in metrics and spans.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Address and access of the metrics endpoint.
#[derive(Clone, Debug)]
pub struct MetricsOptions {
    /// Address to listen on; port 0 selects a free one. The caller decides whether remote clients are allowed.
    pub address: SocketAddr,
    /// Token that every client must send; `None` serves all.
    pub token: Option<AccessToken>,
}

/// All telemetry of a run.
#[derive(Default)]
pub struct Telemetry {
    endpoint: Option<Endpoint>,
    push: Option<Push>,
    failed: Option<String>,
}

impl Telemetry {
    /// Opens the endpoint and the push. Called before the run, so that errors appear at once. `source` is the name in the report.
    pub fn open(metrics: Option<MetricsOptions>, push: Option<&PushOptions>, source: &str) -> anyhow::Result<Self> {
        let push = push.map(|options| Push::open(options, source)).transpose()?;
        let endpoint = metrics.map(|options| Endpoint::serve(options, endpoint::BOUNDS)).transpose()?;
        Ok(Self { endpoint, push, failed: None })
    }

    /// Address of the metrics endpoint, if there is one.
    pub fn bound(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|endpoint| endpoint.bound)
    }

    /// Processes an event after `analysis`.
    pub fn event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        self.push(|push| push.event(event, analysis));
    }

    /// Processes a tick after `analysis`.
    pub fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        self.push(|push| push.tick(now, analysis, &|pushed| metrics(analysis, &input(), Some(pushed))));
    }

    /// Answers pending scrapes. Called between two turns of the run loop.
    pub fn turn(&mut self, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.publisher.is_requested()) {
            self.guarded(|telemetry| telemetry.answer(analysis, &input(), false));
        }
    }

    /// Pushes the rest at the end of a run with `report`.
    pub fn conclude(&mut self, analysis: &Analysis, report: &Report, input: &ReportInput) {
        self.push(|push| push.finish(analysis, report, &|pushed| metrics(analysis, input, Some(pushed))));
    }

    /// Publishes the final metrics. `input` is that of the report.
    pub fn finish(&mut self, analysis: &Analysis, input: &ReportInput) {
        self.guarded(|telemetry| telemetry.answer(analysis, input, true));
    }

    /// Returns whether anything is pushed, in which case the end must wait for it.
    pub fn pushes(&self) -> bool {
        self.push.is_some()
    }

    /// Problems, for the report.
    pub fn trouble(&self) -> Vec<String> {
        let push = self.push.as_ref().and_then(|push| push.queue.trouble());
        let refused = self.endpoint.iter().flat_map(|endpoint| endpoint.refused.trouble());
        push.into_iter().chain(refused).chain(self.failed.clone()).collect()
    }

    /// Message for the user since the last call.
    pub fn take_message(&self) -> Option<String> {
        self.push.as_ref()?.queue.take_message()
    }

    fn answer(&mut self, analysis: &Analysis, input: &ReportInput, last: bool) {
        let pushed = self.push.as_ref().map(|push| push.queue.pushed());
        if let Some(endpoint) = &self.endpoint {
            endpoint.publisher.publish(metrics(analysis, input, pushed), last);
        }
    }

    fn push(&mut self, export: impl FnOnce(&mut Push)) {
        if self.pushes() {
            self.guarded(|telemetry| {
                if let Some(push) = &mut telemetry.push {
                    export(push);
                }
            });
        }
    }

    /// Runs `export`. A panic ends the telemetry, but not the run.
    fn guarded(&mut self, export: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| export(self))).is_err() {
            let failed = "metrics crashed and were disabled; the run continues. Please report this bug.";
            *self = Self { failed: Some(failed.into()), ..Self::default() };
        }
    }
}

fn metrics(analysis: &Analysis, report: &ReportInput, pushed: Option<Pushed>) -> Vec<Family> {
    analysis.metrics(&Input { report, version: VERSION, pushed })
}
