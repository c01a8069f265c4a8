//! Push to an OTLP receiver: spans when they are complete, metrics at an interval.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use outputs::export::{EncodedItems, LiveSpans, MetricsWindow, Opening, Options, Resource, encode_metrics};
use outputs::metrics::{Family, Pushed};
use outputs::report::Report;
use trace::clock::Anchor;
use trace::{Analysis, Event, MonoNs};

use super::VERSION;
use super::environment::Environment;
use super::push_queue::{PushBody, PushQueue, PushRunId, PushSender, PushSignal};
use crate::about::EngineIdentity;

/// Maximum time that spans are gathered for one request.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Maximum bytes of spans per request.
const MAX_SPANS_BYTES: usize = 256 * 1024;
/// Maximum wait for in-flight requests at the end of the runs.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Receiver and limits of a push.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Base URL of the OTLP receiver.
    pub url: String,
    /// Requests that become spans; `None` for none.
    pub requests: Option<Options>,
    /// Interval of metrics.
    pub interval: Duration,
    /// Maximum bytes of spans sent in a minute.
    pub bytes_per_minute: u64,
    /// Maximum bytes that wait to be sent.
    pub queue_bytes: u64,
}

/// Receiver of a push, with the queue that all runs of this process share.
#[derive(Clone)]
pub(super) struct PushTarget {
    options: PushOptions,
    queue: Arc<PushQueue>,
    environment: Environment,
}

/// The push of a run.
pub(super) struct OtlpPush {
    spans: LiveSpans,
    target: PushTarget,
    run: PushRunId,
    /// Whether it pushes the metrics of the process.
    pub(super) is_first: bool,
    spans_sent_at: Instant,
    metrics_sent_at: Instant,
    anchor: Anchor,
}

impl PushTarget {
    /// Reads the environment variables of OpenTelemetry, and starts the thread that sends.
    pub(super) fn open(options: &PushOptions) -> anyhow::Result<Self> {
        let environment = Environment::read(|name| std::env::var(name).ok())?;
        let sender = PushSender::new(&options.url, &environment)?;
        let queue_bytes = usize::try_from(options.queue_bytes).unwrap_or(usize::MAX);
        let queue = Arc::new(PushQueue::new(queue_bytes, options.bytes_per_minute));
        let thread_queue = Arc::clone(&queue);
        thread::Builder::new()
            .name("otlp".into())
            .spawn(move || sender.send_bodies(&thread_queue))
            .context("cannot start pushing to the OTLP receiver")?;
        Ok(Self { options: options.clone(), queue, environment })
    }

    /// Creates the push of a further run. `source_name` is the name of its source.
    pub(super) fn add_run(&self, source_name: &str) -> OtlpPush {
        let mut resource = Resource::for_source(source_name, VERSION);
        resource.service.clone_from(&self.environment.service);
        resource.more.clone_from(&self.environment.attributes);
        let anchor = Anchor::now();
        let run = self.queue.add_run();
        OtlpPush {
            spans: LiveSpans::new(self.options.requests.clone(), Opening::new(source_name, VERSION, anchor), resource),
            target: self.clone(),
            run,
            // The runs are numbered from 0.
            is_first: run == PushRunId::default(),
            spans_sent_at: Instant::now(),
            metrics_sent_at: Instant::now(),
            anchor,
        }
    }
}

impl OtlpPush {
    /// The receiver, for further runs.
    pub(super) fn target(&self) -> PushTarget {
        self.target.clone()
    }

    /// Sets the engine of the run.
    pub(super) fn set_engine(&mut self, engine: Option<EngineIdentity>) {
        // The name is empty until an engine was found.
        if let Some(EngineIdentity { name, port, .. }) = engine.filter(|engine| !engine.name.is_empty()) {
            self.spans.set_run_engine(name, port);
        }
    }

    /// Numbers of the run's items sent so far.
    pub(super) fn pushed(&self) -> Pushed {
        self.target.queue.pushed(self.run)
    }

    /// Problems of the run, for the report.
    pub(super) fn problem(&self) -> Option<String> {
        self.target.queue.problem(self.run)
    }

    /// Message for the user since the last call.
    pub(super) fn take_message(&self) -> Option<String> {
        self.target.queue.take_message(self.run)
    }

    pub(super) fn has_requests(&self) -> bool {
        self.spans.has_requests()
    }

    /// Adds an event to the spans, and queues the spans once they have many bytes.
    pub(super) fn add_event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        self.spans.add_spans_closed_by_event(event, analysis);
        if self.spans.waiting_bytes() >= MAX_SPANS_BYTES {
            self.queue_gathered_spans(analysis);
        }
    }

    /// Processes a tick, and queues the spans and metrics that are due. `collect` returns the metrics, given the numbers of what was pushed
    /// so far.
    pub(super) fn process_tick(&mut self, now: MonoNs, analysis: &Analysis, collect: &dyn Fn(Pushed) -> Vec<Family>) {
        self.spans.add_spans_closed_by_tick(now, analysis);
        if self.spans_sent_at.elapsed() >= GATHER_TIME {
            self.queue_gathered_spans(analysis);
        }
        if self.metrics_sent_at.elapsed() >= self.target.options.interval {
            self.queue_metrics(now, analysis, collect);
        }
    }

    /// Queues the last spans and metrics at the end of the run. `collect` returns the metrics, given the numbers of what was pushed so far.
    pub(super) fn queue_last_spans_and_metrics(
        &mut self,
        analysis: &Analysis,
        report: &Report,
        collect: &dyn Fn(Pushed) -> Vec<Family>,
    ) {
        self.spans.add_final_spans(analysis, report);
        self.queue_gathered_spans(analysis);
        self.queue_metrics(MonoNs::now(), analysis, collect);
    }

    /// Waits a limited time until the rest is sent.
    pub(super) fn close_run(&self) {
        self.target.queue.close_run(self.run, Instant::now() + FLUSH_TIMEOUT);
    }

    /// Queues the spans gathered so far, if any.
    fn queue_gathered_spans(&mut self, analysis: &Analysis) {
        self.spans_sent_at = Instant::now();
        if let Some(spans) = self.spans.take_spans(analysis) {
            self.queue_body(PushSignal::Traces, spans);
        }
    }

    /// Queues the metrics of this moment, as sums since the start. `collect` returns them, given the numbers of what was pushed so far.
    fn queue_metrics(&mut self, now: MonoNs, analysis: &Analysis, collect: &dyn Fn(Pushed) -> Vec<Family>) {
        self.metrics_sent_at = Instant::now();
        let start = analysis.ledger().started().unwrap_or(now);
        let window =
            MetricsWindow { start_unix_ns: self.anchor.wall_ns_at(start), end_unix_ns: self.anchor.wall_ns_at(now) };
        let families = collect(self.pushed());
        let points = encode_metrics(&families, self.spans.update_resource(analysis), window);
        self.queue_body(PushSignal::Metrics, points);
    }

    /// Queues a body with the encoded spans or points.
    fn queue_body(&self, signal: PushSignal, encoded: EncodedItems) {
        let EncodedItems { json, items } = encoded;
        self.target.queue.push_body(PushBody { run: self.run, signal, json, items, created_at: Instant::now() });
    }
}
