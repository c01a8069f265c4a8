//! Access to a run while it runs: metrics, report, recording and events on request, spans and metrics by push. A failure here, even a
//! panic, is reported but does not affect the run.

mod access_token;
mod endpoint;
mod endpoint_counts;
mod environment;
mod health;
mod prometheus_text;
mod push;
mod push_queue;
mod push_response;
mod secret_file;
mod served_path;
mod snapshot;
mod stream_publisher;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::HeaderName;

use outputs::metrics::{EndpointUse, Family, Input, Pushed, collect};
use outputs::report::{PairReport, Report};
use recording::RecordingHeader;
use trace::clock::Anchor;
use trace::engine::Engines;
use trace::{Analysis, Event, MonoNs, ReportInput};

pub use access_token::AccessToken;
pub use endpoint::encode_name;
use endpoint::{EndpointServer, RunEndpoint};
use health::{RunHealth, TokenFlow};
pub use push::PushOptions;
use push::{OtlpPush, PushTarget};
pub use push_queue::receiver_port;
pub use push_response::next_body_part;

use crate::about::EngineIdentity;

/// Response header with the name of the source's machine; in Kubernetes, that of the pod.
pub const HOST_HEADER: HeaderName = HeaderName::from_static("tokengap-host");

/// Version in metrics and spans.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Maximum age of the join of a pair, several of the intervals in which runs are joined.
const MAX_PAIR_AGE: Duration = Duration::from_mins(2);

/// Address and access of the endpoint.
#[derive(Clone, Debug)]
pub struct MetricsOptions {
    /// Address to listen on; port 0 selects a free one. The caller decides whether remote clients are allowed.
    pub address: SocketAddr,
    /// Token that every client must send; `None` serves all.
    pub token: Option<AccessToken>,
    /// Maximum size of the past of all runs together that new clients of streams get, in bytes.
    pub past_bytes: usize,
}

/// State of the endpoint, for the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
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
    endpoint: Option<RunEndpoint>,
    push: Option<OtlpPush>,
    flow: TokenFlow,
    pair: Option<JoinedPair>,
    /// Message about a crash.
    failure: Option<String>,
}

/// The pair whose decode server is the engine of the run.
struct JoinedPair {
    report: PairReport,
    at: Instant,
}

impl JoinedPair {
    /// Report of the pair; `None` if it is older than [`MAX_PAIR_AGE`].
    fn recent_report(&self) -> Option<&PairReport> {
        if self.at.elapsed() < MAX_PAIR_AGE { Some(&self.report) } else { None }
    }
}

impl Telemetry {
    /// Opens the endpoint, at which clients ask for the state of the run, and the push to an OTLP receiver, each if it has options. Called
    /// before the run, so that errors appear at once. `header` describes the run.
    pub fn open(
        metrics: Option<MetricsOptions>,
        push: Option<&PushOptions>,
        header: &RecordingHeader,
        engines: Engines,
    ) -> anyhow::Result<Self> {
        let push = match push {
            Some(options) => Some(PushTarget::open(options)?.add_run(&header.source)),
            None => None,
        };
        let endpoint = match metrics {
            Some(options) => Some(RunEndpoint::serve(options, header, engines, endpoint::ENDPOINT_LIMITS)?),
            None => None,
        };
        Ok(Self { endpoint, push, ..Self::default() })
    }

    /// Endpoint and push, for further runs of this process.
    pub fn shared(&self) -> SharedTelemetry {
        SharedTelemetry {
            server: self.endpoint.as_ref().map(|endpoint| Arc::clone(&endpoint.server)),
            push: self.push.as_ref().map(OtlpPush::target),
        }
    }

    /// Address of the endpoint, if there is one.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().map(|endpoint| endpoint.server.listen_address)
    }

    /// State of the endpoint, if there is one.
    pub(crate) fn endpoint_status(&self) -> Option<EndpointStatus> {
        self.endpoint.as_ref().map(RunEndpoint::status)
    }

    /// Whether anything is served or pushed.
    pub(crate) fn is_used(&self) -> bool {
        self.endpoint.is_some() || self.push.is_some()
    }

    /// Sets the pair whose decode server is the engine of the run; `None` if it is the decode server of no pair.
    pub(crate) fn set_pair(&mut self, report: Option<PairReport>) {
        self.pair = report.map(|report| JoinedPair { report, at: Instant::now() });
    }

    /// Report of the run's pair of prefill and decode servers; `None` if the run has none, or an old one only.
    fn recent_pair_report(&self) -> Option<&PairReport> {
        self.pair.as_ref()?.recent_report()
    }

    /// Report of the run. Includes the report of its pair of prefill and decode servers, if there is a recent one.
    fn report_with_pair(&self, analysis: &Analysis, input: &ReportInput) -> Report {
        let mut report = Report::of(analysis, input);
        if let Some(pair_report) = self.recent_pair_report() {
            report.add_pair_report(pair_report.clone());
        }
        report
    }

    /// Adds an event, which `analysis` has already processed, to the pushed spans and to the stream.
    pub fn process_event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        self.act_on_push(|push| push.add_event(event, analysis));
        if self.endpoint.is_some() {
            self.flow.record_time_if_tokens(event);
            self.act_on_endpoint(|endpoint| endpoint.stream.write_event(event));
        }
    }

    /// Pushes the spans and metrics that are due to the OTLP receiver, and writes a tick to the stream of the endpoint. `analysis` has
    /// already processed the tick. `input` makes the input of a report as of now, and `engine` returns the engine of the run.
    pub fn process_tick(
        &mut self,
        now: MonoNs,
        analysis: &Analysis,
        input: &dyn Fn() -> ReportInput,
        engine: &dyn Fn() -> Option<EngineIdentity>,
    ) {
        let endpoint_use = self.endpoint.as_ref().and_then(RunEndpoint::usage_if_first_run);
        self.act_on_push_with_pair_report(|push, pair_report| {
            push.set_engine(engine());
            // The metrics of the tokengap process are in the first run only, because a sum over the runs would count them several times.
            let includes_process = push.is_first;
            // Called only when metrics are due, with the numbers of what was pushed so far.
            let collect = |pushed| {
                let source =
                    MetricSource { analysis, pushed: Some(pushed), endpoint_use, includes_process, pair_report };
                source.collect_families(&input())
            };
            push.process_tick(now, analysis, &collect);
        });
        self.act_on_endpoint(|endpoint| {
            endpoint.set_engine(engine());
            endpoint.stream.write_tick(now, input);
        });
    }

    /// Publishes the health, the metrics and the report of this moment, each if a client of the endpoint waits for it. Called between two
    /// turns of the run loop. `input` makes the input of a report as of now.
    pub(crate) fn answer_requests(&mut self, analysis: &Analysis, input: &dyn Fn() -> ReportInput, is_attached: bool) {
        let Some(endpoint) = &self.endpoint else { return };
        if endpoint.health.take_request() {
            self.publish_running_health(is_attached);
        }
        // Both are read before the calls below, because these borrow the whole telemetry.
        let wants_metrics = endpoint.metrics.take_request();
        let wants_report = endpoint.report.take_request();
        let is_final = false;
        if wants_metrics {
            self.disable_telemetry_on_panic(|telemetry| telemetry.publish_metrics(analysis, &input(), is_final));
        }
        if wants_report {
            self.disable_telemetry_on_panic(|telemetry| telemetry.publish_report(analysis, &input(), is_final));
        }
    }

    /// Queues the last spans and metrics of a run that has ended. `report` is its final report.
    pub(crate) fn queue_last_pushes(&mut self, analysis: &Analysis, report: &Report, input: &ReportInput) {
        let endpoint_use = self.endpoint.as_ref().and_then(RunEndpoint::usage_if_first_run);
        self.act_on_push_with_pair_report(|push, pair_report| {
            // Only the first run has the metrics of the process.
            let includes_process = push.is_first;
            // Called with the numbers of what was pushed so far.
            let collect = |pushed| {
                let source =
                    MetricSource { analysis, pushed: Some(pushed), endpoint_use, includes_process, pair_report };
                source.collect_families(input)
            };
            push.queue_last_spans_and_metrics(analysis, report, &collect);
        });
    }

    /// Waits a limited time for the last pushes.
    pub(crate) fn close_push(&mut self) {
        self.act_on_push(|push| push.close_run());
    }

    /// Publishes the final state of the run: its metrics, health and report, and the end of its stream. `input` is the input of the report.
    pub(crate) fn serve_final_state(&mut self, analysis: &Analysis, input: &ReportInput) {
        let is_final = true;
        self.disable_telemetry_on_panic(|telemetry| telemetry.publish_metrics(analysis, input, is_final));
        self.publish_ended_health();
        self.disable_telemetry_on_panic(|telemetry| telemetry.publish_report(analysis, input, is_final));
        self.act_on_endpoint(|endpoint| endpoint.stream.send_end(input));
    }

    /// Waits a limited time until the clients of the stream have received its end.
    pub(crate) fn wait_until_clients_received_end(&mut self) {
        self.act_on_endpoint(|endpoint| endpoint.stream.wait_until_clients_received_end());
    }

    /// Returns whether requests are pushed as spans, for which the analysis must keep timelines.
    pub(crate) fn pushes_requests(&self) -> bool {
        self.push.as_ref().is_some_and(OtlpPush::has_requests)
    }

    /// Returns whether anything is pushed, in which case the end must wait for it.
    pub(crate) fn has_push(&self) -> bool {
        self.push.is_some()
    }

    /// Problems of the push and of the endpoint, and a crash, for the report.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(self.push.as_ref().and_then(OtlpPush::problem));
        if let Some(endpoint) = &self.endpoint {
            problems.extend(endpoint.problems());
        }
        problems.extend(self.failure.clone());
        problems
    }

    /// Message for the user since the last call.
    pub(crate) fn take_message(&self) -> Option<String> {
        self.push.as_ref()?.take_message()
    }

    /// Publishes the metrics of this moment to the clients of the endpoint. `is_final`: the run has ended, so the metrics stay valid.
    fn publish_metrics(&mut self, analysis: &Analysis, input: &ReportInput, is_final: bool) {
        let pushed = self.push.as_ref().map(OtlpPush::pushed);
        if let Some(endpoint) = &self.endpoint {
            // Only the first run has the metrics of the process.
            let includes_process = endpoint.is_first;
            let pair_report = self.recent_pair_report();
            let source = MetricSource {
                analysis,
                pushed,
                endpoint_use: endpoint.usage_if_first_run(),
                includes_process,
                pair_report,
            };
            endpoint.metrics.publish(source.collect_families(input), is_final);
        }
    }

    /// Publishes the report of this moment to the clients of the endpoint. `is_final`: the run has ended, so the report stays valid.
    fn publish_report(&self, analysis: &Analysis, input: &ReportInput, is_final: bool) {
        if let Some(endpoint) = &self.endpoint {
            endpoint.report.publish(self.report_with_pair(analysis, input), is_final);
        }
    }

    /// Publishes the state of the run to the clients of the endpoint, while it runs.
    fn publish_running_health(&self, is_attached: bool) {
        if let Some(endpoint) = &self.endpoint {
            let health = RunHealth { is_running: true, is_attached, flow: self.flow, now: Anchor::now() };
            let is_final = false;
            endpoint.health.publish(health, is_final);
        }
    }

    /// Publishes to the clients of the endpoint that the run has ended.
    fn publish_ended_health(&self) {
        if let Some(endpoint) = &self.endpoint {
            let health = RunHealth { is_running: false, is_attached: false, flow: self.flow, now: Anchor::now() };
            let is_final = true;
            endpoint.health.publish(health, is_final);
        }
    }

    /// Runs `act` with the endpoint, if there is one. A panic in it ends the telemetry.
    fn act_on_endpoint(&mut self, act: impl FnOnce(&mut RunEndpoint)) {
        if self.endpoint.is_some() {
            self.disable_telemetry_on_panic(|telemetry| {
                // Looked up again, because the closure gets the whole telemetry.
                if let Some(endpoint) = &mut telemetry.endpoint {
                    act(endpoint);
                }
            });
        }
    }

    /// Runs `act` with the push, if there is one. A panic in it ends the telemetry.
    fn act_on_push(&mut self, act: impl FnOnce(&mut OtlpPush)) {
        if self.has_push() {
            self.disable_telemetry_on_panic(|telemetry| {
                // Looked up again, because the closure gets the whole telemetry.
                if let Some(push) = &mut telemetry.push {
                    act(push);
                }
            });
        }
    }

    /// Runs `act` with the push, if there is one. Its second argument is the report of the run's pair of prefill and decode servers, if
    /// there is a recent one. A panic in `act` ends the telemetry.
    fn act_on_push_with_pair_report(&mut self, act: impl FnOnce(&mut OtlpPush, Option<&PairReport>)) {
        if self.has_push() {
            self.disable_telemetry_on_panic(|telemetry| {
                let pair_report = telemetry.pair.as_ref().and_then(JoinedPair::recent_report);
                // Looked up again, because the closure gets the whole telemetry.
                if let Some(push) = &mut telemetry.push {
                    act(push, pair_report);
                }
            });
        }
    }

    /// Runs `act`. A panic in it ends the telemetry, but not the run; the report then lists the crash.
    fn disable_telemetry_on_panic(&mut self, act: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| act(self))).is_err() {
            let failure = "metrics crashed and were disabled; the run continues. Please report this bug.";
            *self = Self { failure: Some(failure.into()), ..Self::default() };
        }
    }
}

/// Endpoint and push of the first of several runs, for the others.
#[derive(Clone, Default)]
pub struct SharedTelemetry {
    server: Option<Arc<EndpointServer>>,
    push: Option<PushTarget>,
}

impl SharedTelemetry {
    /// Telemetry of a further run, which `header` describes. If the run cannot be served, it goes on without, and its report says why.
    pub fn add_run(&self, header: &RecordingHeader) -> Telemetry {
        let push = self.push.as_ref().map(|push| push.add_run(&header.source));
        let endpoint = self.server.as_ref().map(|server| server.add_run(header)).transpose();
        match endpoint {
            Ok(endpoint) => Telemetry { endpoint, push, ..Telemetry::default() },
            Err(error) => Telemetry {
                push,
                failure: Some(format!("metrics: this engine is not served: {error:#}")),
                ..Telemetry::default()
            },
        }
    }
}

/// Where the metrics of a run come from.
struct MetricSource<'a> {
    analysis: &'a Analysis,
    pushed: Option<Pushed>,
    endpoint_use: Option<EndpointUse>,
    /// Whether the metrics of the process are among them.
    includes_process: bool,
    pair_report: Option<&'a PairReport>,
}

impl MetricSource<'_> {
    /// Values of all metrics. Those of the process are in the first run only, because a sum over the runs would count them several times.
    fn collect_families(&self, report: &ReportInput) -> Vec<Family> {
        let pair_findings = self.pair_report.map(PairReport::findings).unwrap_or_default();
        let input = Input { report, version: VERSION, pushed: self.pushed, endpoint: self.endpoint_use, pair_findings };
        let mut families = collect(self.analysis, &input);
        families.retain(|family| self.includes_process || !family.definition.is_of_process());
        families
    }
}
