//! Push to an OTLP receiver: spans when they are complete, metrics at an interval.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use outputs::export::{LiveSpans, Opening, Options, Resource, metrics_data};
use outputs::metrics::{Family, Pushed};
use outputs::report::Report;
use trace::clock::Anchor;
use trace::{Analysis, Event, MonoNs};

use super::VERSION;
use super::environment::Environment;
use super::push_queue::{PushBody, PushQueue, PushSender, PushSignal};

/// Maximum time that spans are gathered for one request.
const GATHER_TIME: Duration = Duration::from_secs(1);
/// Maximum bytes of spans per request.
const MAX_SPANS_BYTES: usize = 256 * 1024;
/// Maximum wait for in-flight requests at the end of a run.
const FLUSH: Duration = Duration::from_secs(5);

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

pub(super) struct OtlpPush {
    spans: LiveSpans,
    pub(super) queue: Arc<PushQueue>,
    interval: Duration,
    gathered: Instant,
    measured: Instant,
    anchor: Anchor,
}

impl OtlpPush {
    /// Starts the sender.
    pub(super) fn open(options: &PushOptions, source: &str) -> anyhow::Result<Self> {
        let environment = Environment::read(|name| std::env::var(name).ok())?;
        let sender = PushSender::new(&options.url, &environment)?;
        let queue_bytes = usize::try_from(options.queue_bytes).unwrap_or(usize::MAX);
        let queue = Arc::new(PushQueue::new(queue_bytes, options.bytes_per_minute));
        let for_thread = Arc::clone(&queue);
        thread::Builder::new()
            .name("otlp".into())
            .spawn(move || sender.run(&for_thread))
            .context("cannot start pushing to the OTLP receiver")?;
        let mut resource = Resource::of(source, VERSION);
        resource.service = environment.service;
        resource.more = environment.attributes;
        let anchor = Anchor::now();
        let opening = Opening::new(source, VERSION, anchor);
        Ok(Self {
            spans: LiveSpans::new(options.requests.clone(), opening, resource),
            queue,
            interval: options.interval,
            gathered: Instant::now(),
            measured: Instant::now(),
            anchor,
        })
    }

    pub(super) fn has_requests(&self) -> bool {
        self.spans.has_requests()
    }

    pub(super) fn event(&mut self, event: &Event<'_>, analysis: &Analysis) {
        self.spans.event(event, analysis);
        if self.spans.waiting() >= MAX_SPANS_BYTES {
            self.send_spans(analysis);
        }
    }

    /// Processes a tick; `metrics` collects the metrics.
    pub(super) fn tick(&mut self, now: MonoNs, analysis: &Analysis, metrics: &dyn Fn(Pushed) -> Vec<Family>) {
        self.spans.tick(now, analysis);
        if self.gathered.elapsed() >= GATHER_TIME {
            self.send_spans(analysis);
        }
        if self.measured.elapsed() >= self.interval {
            self.send_metrics(now, analysis, metrics);
        }
    }

    /// Sends the rest at the end of the run and waits a limited time for it.
    pub(super) fn finish(&mut self, analysis: &Analysis, report: &Report, metrics: &dyn Fn(Pushed) -> Vec<Family>) {
        self.spans.finish(analysis, report);
        self.send_spans(analysis);
        self.send_metrics(MonoNs::now(), analysis, metrics);
        self.queue.close(Instant::now() + FLUSH);
    }

    fn send_spans(&mut self, analysis: &Analysis) {
        self.gathered = Instant::now();
        if let Some((json, items)) = self.spans.take(analysis) {
            self.send(PushSignal::Traces, json, items);
        }
    }

    fn send_metrics(&mut self, now: MonoNs, analysis: &Analysis, metrics: &dyn Fn(Pushed) -> Vec<Family>) {
        self.measured = Instant::now();
        let times = [analysis.ledger().started().unwrap_or(now), now].map(|at| self.anchor.wall_ns_at(at));
        let families = metrics(self.queue.pushed());
        let (json, items) = metrics_data(&families, self.spans.learn(analysis), times);
        self.send(PushSignal::Metrics, json, items);
    }

    fn send(&self, signal: PushSignal, json: Vec<u8>, items: u64) {
        self.queue.push(PushBody { signal, json, items, since: Instant::now() });
    }
}
