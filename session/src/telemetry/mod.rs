//! Access to a run while it runs: metrics, report, recording and events on request, spans and metrics by push. A failure here, even a panic,
//! is reported but does not affect the run.

mod access;
mod counts;
mod endpoint;
mod environment;
mod exposition;
mod health;
mod path;
mod push;
mod push_queue;
mod secret_file;
mod snapshot;
mod stream;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hyper::header::HeaderName;

use outputs::metrics::{EndpointUse, Family, Input, Pushed, collect};
use outputs::report::Report;
use recording::Header;
use trace::clock::Anchor;
use trace::engine::Engines;
use trace::{Analysis, Event, MonoNs, ReportInput};

pub use access::AccessToken;
use endpoint::Endpoint;
use health::{Health, TokenFlow};
use push::Push;
pub use push::PushOptions;
pub(crate) use push_queue::next_part;
pub use push_queue::receiver_port;

/// Response header with the name of the source's machine; in Kubernetes, that of the pod.
pub(crate) const HOST_HEADER: HeaderName = HeaderName::from_static("tokengap-host");

/// Version in metrics and spans.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Address and access of the endpoint.
#[derive(Clone, Debug)]
pub struct MetricsOptions {
    /// Address to listen on; port 0 selects a free one. The caller decides whether remote clients are allowed.
    pub address: SocketAddr,
    /// Token that every client must send; `None` serves all.
    pub token: Option<AccessToken>,
    /// Maximum size of the run's past that a new client of a stream gets, in bytes.
    pub past_bytes: usize,
}

/// State of the endpoint, for the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Address it listens on.
    pub address: SocketAddr,
    /// Current clients of its streams.
    pub clients: u64,
    /// Clients of streams dropped because they were too slow.
    pub dropped: u64,
    /// Refused requests and connections.
    pub refused: u64,
}

/// All telemetry of a run.
#[derive(Default)]
pub struct Telemetry {
    endpoint: Option<Endpoint>,
    push: Option<Push>,
    flow: TokenFlow,
    failed: Option<String>,
}

impl Telemetry {
    /// Opens the endpoint and the push. Called before the run, so that errors appear at once. `header` describes the run.
    pub fn open(
        metrics: Option<MetricsOptions>,
        push: Option<&PushOptions>,
        header: &Header,
        engines: Engines,
    ) -> anyhow::Result<Self> {
        let push = push.map(|options| Push::open(options, &header.source)).transpose()?;
        let serve = |options| Endpoint::serve(options, header, engines, endpoint::BOUNDS);
        let endpoint = metrics.map(serve).transpose()?;
        Ok(Self { endpoint, push, flow: TokenFlow::default(), failed: None })
    }

    /// Address of the endpoint, if there is one.
    pub fn bound(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|endpoint| endpoint.bound)
    }

    /// State of the endpoint, if there is one.
    pub fn served(&self) -> Option<Served> {
        self.endpoint.as_ref().map(Endpoint::served)
    }

    /// Processes an event after `analysis`.
    pub fn event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        self.push(|push| push.event(event, analysis));
        if self.endpoint.is_some() {
            self.flow.event(event);
            self.serve(|endpoint| endpoint.stream.event(event));
        }
    }

    /// Processes a tick after `analysis`.
    pub fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        let usage = self.usage();
        self.push(|push| push.tick(now, analysis, &|pushed| metrics(analysis, &input(), Some(pushed), usage)));
        self.serve(|endpoint| endpoint.stream.tick(now, input));
    }

    /// Answers pending requests. Called between two turns of the run loop.
    pub fn turn(&mut self, analysis: &Analysis, input: &dyn Fn() -> ReportInput, is_attached: bool) {
        let Some(endpoint) = &self.endpoint else {
            return;
        };
        if endpoint.health.take_request() {
            self.publish_health(true, is_attached);
        }
        let wants_metrics = endpoint.metrics.take_request();
        let wants_report = endpoint.report.take_request();
        if wants_metrics {
            self.guarded(|telemetry| telemetry.publish_metrics(analysis, &input(), false));
        }
        if wants_report {
            self.serve(|endpoint| endpoint.report.publish(Report::of(analysis, &input()), false));
        }
    }

    /// Pushes the rest at the end of a run with `report`.
    pub fn conclude(&mut self, analysis: &Analysis, report: &Report, input: &ReportInput) {
        let usage = self.usage();
        self.push(|push| push.finish(analysis, report, &|pushed| metrics(analysis, input, Some(pushed), usage)));
    }

    /// Publishes the final state of the run. `input` is that of the report.
    pub fn finish(&mut self, analysis: &Analysis, input: &ReportInput) {
        self.guarded(|telemetry| telemetry.publish_metrics(analysis, input, true));
        self.publish_health(false, false);
        self.serve(|endpoint| {
            endpoint.report.publish(Report::of(analysis, input), true);
            endpoint.stream.finish(input);
        });
    }

    /// Returns whether requests are pushed as spans, for which the analysis must keep timelines.
    pub(crate) fn pushes_requests(&self) -> bool {
        self.push.as_ref().is_some_and(Push::has_requests)
    }

    /// Returns whether anything is pushed, in which case the end must wait for it.
    pub fn pushes(&self) -> bool {
        self.push.is_some()
    }

    /// Problems, for the report.
    pub fn trouble(&self) -> Vec<String> {
        let push = self.push.as_ref().and_then(|push| push.queue.trouble());
        let refused = self.endpoint.iter().flat_map(|endpoint| endpoint.counts.trouble());
        push.into_iter().chain(refused).chain(self.failed.clone()).collect()
    }

    /// Message for the user since the last call.
    pub fn take_message(&self) -> Option<String> {
        self.push.as_ref()?.queue.take_message()
    }

    fn publish_metrics(&mut self, analysis: &Analysis, input: &ReportInput, last: bool) {
        let pushed = self.push.as_ref().map(|push| push.queue.pushed());
        if let Some(endpoint) = &self.endpoint {
            endpoint.metrics.publish(metrics(analysis, input, pushed, self.usage()), last);
        }
    }

    fn publish_health(&self, is_running: bool, is_attached: bool) {
        if let Some(endpoint) = &self.endpoint {
            let health = Health { is_running, is_attached, flow: self.flow, now: Anchor::now() };
            endpoint.health.publish(health, !is_running);
        }
    }

    fn usage(&self) -> Option<EndpointUse> {
        self.endpoint.as_ref().map(Endpoint::usage)
    }

    fn serve(&mut self, act: impl FnOnce(&mut Endpoint)) {
        if self.endpoint.is_some() {
            self.guarded(|telemetry| {
                if let Some(endpoint) = &mut telemetry.endpoint {
                    act(endpoint);
                }
            });
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

fn metrics(
    analysis: &Analysis,
    report: &ReportInput,
    pushed: Option<Pushed>,
    endpoint: Option<EndpointUse>,
) -> Vec<Family> {
    collect(analysis, &Input { report, version: VERSION, pushed, endpoint })
}
