//! Queue of the push, which all runs share, and the thread that empties it. A run never blocks: the queue is limited in bytes, and in bytes
//! of spans per minute. The thread sends one body after another to an OTLP/HTTP receiver, with exponential backoff up to a time limit.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::http::uri::Authority;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use outputs::metrics::{Pushed, PushedItems};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::environment::Environment;
use super::push_response::{ReceiverResponse, RejectedItems, next_body_part, parse_partial_success, parse_retry_after};
use crate::problem::problem_message;

const MINUTE: Duration = Duration::from_mins(1);

/// Content of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushSignal {
    Traces,
    Metrics,
}

/// Number of a run among those that push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PushRunId {
    index: usize,
}

/// Body of a request.
#[derive(Debug)]
pub(super) struct PushBody {
    pub(super) run: PushRunId,
    pub(super) signal: PushSignal,
    pub(super) json: Vec<u8>,
    /// Number of spans or points in it.
    pub(super) items: u64,
    pub(super) created_at: Instant,
}

/// A minute in which the bytes of spans are limited.
#[derive(Clone, Copy, Debug)]
struct SpanMinute {
    began: Instant,
    bytes: u64,
}

/// What became of the bodies of a run.
#[derive(Debug, Default)]
struct RunPush {
    pushed: Pushed,
    /// Reason of the last dropped body.
    drop_reason: Option<String>,
    /// Message not yet shown to the user.
    message: Option<String>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct PushState {
    waiting: VecDeque<PushBody>,
    minute: Option<SpanMinute>,
    /// Run whose body is being sent.
    sending: Option<PushRunId>,
    runs: Vec<RunPush>,
    /// When waiting bodies are dropped, set when the first run ends.
    deadline: Option<Instant>,
    /// The last attempt to send has failed.
    is_failing: bool,
}

#[derive(Debug)]
pub(super) struct PushQueue {
    max_bytes: usize,
    max_span_bytes_per_minute: u64,
    state: Mutex<PushState>,
    changed: Condvar,
}

impl PushQueue {
    pub(super) fn new(max_bytes: usize, max_span_bytes_per_minute: u64) -> Self {
        Self { max_bytes, max_span_bytes_per_minute, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a run. The queue ends when all of its runs have ended.
    pub(super) fn add_run(&self) -> PushRunId {
        let mut state = self.lock_state();
        state.runs.push(RunPush::default());
        PushRunId { index: state.runs.len() - 1 }
    }

    fn lock_state(&self) -> MutexGuard<'_, PushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body with spans (traces) or metric points of a run to the queue. Drops it and counts its items if the queue is full, or if
    /// the spans of this minute have already reached their limit.
    pub(super) fn push_body(&self, body: PushBody) {
        let mut state = self.lock_state();
        match body.signal {
            // There are spans for each request, so only they are limited per minute.
            PushSignal::Traces => {
                let is_admitted = state.admit_within_minute_limit(&body, self.max_span_bytes_per_minute);
                if !is_admitted {
                    state.count_dropped_items_and_notify_once(
                        &body,
                        body.items,
                        "the limit per minute is reached (--otlp-rate)",
                    );
                    return;
                }
            }
            // Metrics are cumulative, so the new body replaces those of the run that still wait.
            PushSignal::Metrics => state.remove_waiting_metrics(body.run),
        }
        if state.waiting_bytes() + body.json.len() > self.max_bytes {
            state.count_dropped_items_and_notify_once(&body, body.items, "the queue is full (--otlp-queue)");
            return;
        }
        state.waiting.push_back(body);
        self.changed.notify_all();
    }

    /// Next body, waiting for one if necessary; `None` once the queue is closed and empty.
    pub(super) fn wait_for_next_body(&self) -> Option<PushBody> {
        let mut state = self.lock_state();
        loop {
            if let Some(body) = state.waiting.pop_front() {
                // The end of the run waits for it: see `close_run`.
                state.sending = Some(body.run);
                return Some(body);
            }
            if state.is_over() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits between two attempts, but ends early when a run ends.
    pub(super) fn wait_for_retry_or_run_end(&self, max_wait: Duration) {
        let state = self.lock_state();
        // The wait ends early when a run ends, because that sets the deadline. In either case, the caller tries again.
        drop(self.changed.wait_timeout_while(state, max_wait, |state| state.deadline.is_none()));
    }

    /// Whether a run has ended, after which a body is sent only once.
    pub(super) fn is_closing(&self) -> bool {
        self.lock_state().deadline.is_some()
    }

    /// Records the outcome of a body that is not sent again. The receiver accepted its items, except `reported_rejections` of them. It
    /// rejected these for `rejection_reason`.
    pub(super) fn record_outcome_of_sent_body(
        &self,
        body: &PushBody,
        reported_rejections: u64,
        rejection_reason: &str,
    ) {
        let mut state = self.lock_state();
        // A receiver may claim to have rejected more than the body has.
        let rejected_items = reported_rejections.min(body.items);
        let accepted = body.items - rejected_items;
        state.pushed_items_of_body(body).accepted += accepted;
        // Accepted items show that the receiver works again. A body that the sender gives up counts as rejected whole, so it shows nothing.
        if accepted > 0 {
            state.is_failing = false;
        }
        if rejected_items > 0 {
            state.count_dropped_items_and_notify_once(body, rejected_items, rejection_reason);
        }
        state.sending = None;
        self.changed.notify_all();
    }

    /// Records a failed attempt that will be repeated.
    pub(super) fn record_failed_attempt(&self, why: &str) {
        let mut state = self.lock_state();
        // Only the first of several failures in a row is shown.
        if state.is_failing {
            return;
        }
        state.is_failing = true;
        // All runs share the receiver, so only one of them shows the failure.
        if let Some(run) = state.runs.iter_mut().find(|run| !run.is_closed) {
            run.message = Some(problem_message(format_args!("otlp: {why}; retrying")));
        }
    }

    /// Ends the pushes of a run. Waits until the deadline for its remaining bodies to be sent, then drops the rest. The `deadline` of the
    /// run that ends first holds for all runs.
    pub(super) fn close_run(&self, run: PushRunId, deadline: Instant) {
        let mut state = self.lock_state();
        // Shared by the runs, so that the end of several takes no longer than the end of one.
        let deadline = *state.deadline.get_or_insert(deadline);
        if let Some(run_push) = state.runs.get_mut(run.index) {
            run_push.is_closed = true;
        }
        // Wakes the sender if it waits for a retry.
        self.changed.notify_all();
        let time_left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, time_left, |state| state.has_body_of(run));
        // Whether the wait timed out does not matter: a body that is still in the queue is dropped.
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.drop_waiting_bodies(run);
    }

    /// Numbers of the run's items sent so far.
    pub(super) fn pushed(&self, run: PushRunId) -> Pushed {
        self.lock_state().runs.get(run.index).map(|run| run.pushed).unwrap_or_default()
    }

    /// Problem of a run, for the report; `None` if nothing was dropped.
    pub(super) fn problem(&self, run: PushRunId) -> Option<String> {
        let state = self.lock_state();
        let run = state.runs.get(run.index)?;
        let spans = run.pushed.spans.dropped;
        let points = run.pushed.points.dropped;
        let why = run.drop_reason.as_ref()?;
        Some(format!("otlp: dropped {spans} spans and {points} metric points; last reason: {why}"))
    }

    /// Message for the user since the last call.
    pub(super) fn take_message(&self, run: PushRunId) -> Option<String> {
        self.lock_state().runs.get_mut(run.index)?.message.take()
    }
}

impl PushState {
    /// Removes the metrics of a run that still wait. Metrics are cumulative, so new ones replace them.
    fn remove_waiting_metrics(&mut self, run: PushRunId) {
        self.waiting.retain(|waiting| waiting.signal != PushSignal::Metrics || waiting.run != run);
    }

    /// Length of all bodies that wait.
    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.json.len()).sum()
    }

    /// Whether all runs have ended. False before the first run is added.
    fn is_over(&self) -> bool {
        !self.runs.is_empty() && self.runs.iter().all(|run| run.is_closed)
    }

    /// Adds the bytes of a body with spans to those of the current minute, and returns `true`. If the minute already has
    /// `max_bytes_per_minute`, adds nothing and returns `false`. So the last admitted body may exceed the limit.
    fn admit_within_minute_limit(&mut self, body: &PushBody, max_bytes_per_minute: u64) -> bool {
        // A body that is created after the end of the minute begins another minute.
        let current_minute = self.minute.filter(|minute| body.created_at.duration_since(minute.began) < MINUTE);
        let mut minute = current_minute.unwrap_or(SpanMinute { began: body.created_at, bytes: 0 });
        if minute.bytes >= max_bytes_per_minute {
            return false;
        }
        minute.bytes += body.json.len() as u64;
        self.minute = Some(minute);
        true
    }

    /// Returns whether a body of the run is queued or being sent.
    fn has_body_of(&self, run: PushRunId) -> bool {
        self.sending == Some(run) || self.waiting.iter().any(|body| body.run == run)
    }

    /// Drops the waiting bodies of a run that has ended, and counts their items. The bodies of other runs stay in the queue.
    fn drop_waiting_bodies(&mut self, run: PushRunId) {
        for body in std::mem::take(&mut self.waiting) {
            if body.run == run {
                self.count_dropped_items_and_notify_once(&body, body.items, "the run ended before they were accepted");
            } else {
                self.waiting.push_back(body);
            }
        }
    }

    /// Counters of the body's run for its kind of items.
    fn pushed_items_of_body(&mut self, body: &PushBody) -> &mut PushedItems {
        let pushed = &mut self.runs[body.run.index].pushed;
        match body.signal {
            PushSignal::Traces => &mut pushed.spans,
            PushSignal::Metrics => &mut pushed.points,
        }
    }

    /// Counts dropped items of a body. The first drop of a run is also shown to the user.
    fn count_dropped_items_and_notify_once(&mut self, body: &PushBody, items: u64, why: &str) {
        self.pushed_items_of_body(body).dropped += items;
        let run = &mut self.runs[body.run.index];
        if run.drop_reason.is_none() {
            run.message = Some(problem_message(format_args!("otlp: spans or metric points dropped: {why}")));
        }
        run.drop_reason = Some(why.to_owned());
    }
}

/// Default timeout of a request.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// First pause after a failure, doubled after each further one up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Age at which an unaccepted body is dropped.
const MAX_BODY_AGE: Duration = Duration::from_mins(5);
/// Maximum number of bytes read of a response.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Maximum number of characters of a response in a message.
const MAX_SHOWN_CHARS: usize = 200;
/// Statuses after which another attempt may succeed, by the OTLP specification.
const RETRYABLE: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];
/// Port of OTLP over gRPC, which the push does not use.
const GRPC_PORT: u16 = 4317;

/// Port of the OTLP receiver at `url`.
pub fn receiver_port(url: &str) -> Option<u16> {
    let url: Uri = url.parse().ok()?;
    Some(url.port_u16().unwrap_or(DEFAULT_PORT))
}

/// Port of URLs without one.
const DEFAULT_PORT: u16 = 80;

/// Receiver of the bodies.
pub(super) struct PushSender {
    runtime: Runtime,
    /// Base URL, without a slash at the end.
    url: String,
    /// Host and port.
    address: String,
    base_path: String,
    headers: HeaderMap,
    timeout: Duration,
}

/// An attempt to send that is worth repeating.
struct FailedAttempt {
    /// Pause that the receiver asks for.
    retry_after: Option<Duration>,
    why: String,
}

impl PushSender {
    /// Creates a sender to the receiver at `url`, given without `/v1/traces`.
    pub(super) fn new(url: &str, environment: &Environment) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("--otlp {url}: not a URL; {URL_HINT}"))?;
        let authority = receiver_authority(&uri, url)?;
        let headers = request_headers(authority.as_str(), environment)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        Ok(Self {
            runtime: runtime.context("cannot start pushing to the OTLP receiver")?,
            url: url.trim_end_matches('/').to_owned(),
            address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(DEFAULT_PORT)),
            base_path: uri.path().trim_end_matches('/').to_owned(),
            headers,
            timeout: environment.timeout.unwrap_or(DEFAULT_TIMEOUT),
        })
    }

    /// Sends bodies until the queue is closed and empty.
    pub(super) fn send_bodies(&self, queue: &PushQueue) {
        while let Some(body) = queue.wait_for_next_body() {
            self.send_until_accepted_or_dropped(&body, queue);
        }
    }

    /// Sends a body, and tries again after each failed attempt, with pauses that double. Drops the body if it becomes too old, or if an
    /// attempt fails while the queue is being closed.
    fn send_until_accepted_or_dropped(&self, body: &PushBody, queue: &PushQueue) {
        let mut pause = FIRST_PAUSE;
        loop {
            let failure = match self.send_once(body) {
                Ok(RejectedItems { count, why }) => {
                    queue.record_outcome_of_sent_body(body, count, &why);
                    return;
                }
                Err(failure) => failure,
            };
            // The receiver may ask for a pause of any length.
            let wait = failure.retry_after.unwrap_or(pause).min(MAX_BODY_AGE);
            let would_be_too_old = body.created_at.elapsed() + wait > MAX_BODY_AGE;
            if queue.is_closing() || would_be_too_old {
                // All of its items are dropped.
                queue.record_outcome_of_sent_body(body, body.items, &failure.why);
                return;
            }
            queue.record_failed_attempt(&failure.why);
            queue.wait_for_retry_or_run_end(wait);
            pause = LONGEST_PAUSE.min(2 * pause);
        }
    }

    /// Sends a body once. Returns how many of its items the receiver has rejected for good, from none to all. `Err` if another attempt may
    /// succeed.
    fn send_once(&self, body: &PushBody) -> Result<RejectedItems, FailedAttempt> {
        let path = match body.signal {
            PushSignal::Traces => "v1/traces",
            PushSignal::Metrics => "v1/metrics",
        };
        let full_url = format!("{}/{path}", self.url);
        let response = self.runtime.block_on(async {
            match timeout(self.timeout, self.post_body(path, body)).await {
                Ok(response) => response,
                Err(_) => Err(anyhow!("no response within {} ms", self.timeout.as_millis())),
            }
        });
        let response =
            response.map_err(|error| FailedAttempt { retry_after: None, why: format!("{full_url}: {error:#}") })?;
        rejected_items_of_response(&response, &full_url, body.items)
    }

    /// Posts a body to `/v1/traces` or `/v1/metrics` on a new connection. Reads at most `MAX_RESPONSE_BYTES` of the response's text.
    async fn post_body(&self, path: &str, body: &PushBody) -> anyhow::Result<ReceiverResponse> {
        let stream = TcpStream::connect(&self.address).await?;
        let (mut sender, transfer) = http1::handshake(TokioIo::new(stream)).await?;
        // Transfers the bytes in a task, which is aborted at the end of this function.
        let mut connection = JoinSet::new();
        connection.spawn(transfer);
        let json = String::from_utf8_lossy(&body.json).into_owned();
        let mut request = Request::post(format!("{}/{path}", self.base_path)).body(json)?;
        *request.headers_mut() = self.headers.clone();
        let (head, mut response_body) = sender.send_request(request).await?.into_parts();
        let mut text = Vec::new();
        // The status counts even if the connection ends within the text.
        while text.len() < MAX_RESPONSE_BYTES
            && let Some(Ok(part)) = next_body_part(&mut response_body).await
        {
            text.extend_from_slice(&part);
        }
        text.truncate(MAX_RESPONSE_BYTES);
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        Ok(ReceiverResponse {
            status: head.status,
            retry_after: retry_after.and_then(|text| parse_retry_after(text, jiff::Timestamp::now())),
            text: String::from_utf8_lossy(&text).into_owned(),
        })
    }
}

/// Host and port of the receiver at `url`, of which `uri` is the parsed form. Fails if tokengap cannot push to such a URL.
fn receiver_authority<'u>(uri: &'u Uri, url: &str) -> anyhow::Result<&'u Authority> {
    if uri.scheme_str() == Some("https") {
        bail!("--otlp {url}: https is not supported; push to a local collector that forwards over https");
    }
    let is_http = uri.scheme_str() == Some("http");
    let authority = uri.authority().filter(|authority| is_http && !authority.host().is_empty());
    let Some(authority) = authority else {
        bail!("--otlp {url}: not an http URL; {URL_HINT}");
    };
    if authority.as_str().contains('@') {
        bail!("--otlp: a URL with credentials is not supported; set OTEL_EXPORTER_OTLP_HEADERS instead");
    }
    if uri.port_u16() == Some(GRPC_PORT) {
        bail!("--otlp {url}: port 4317 is for OTLP over gRPC; tokengap uses OTLP over HTTP, usually on port 4318");
    }
    Ok(authority)
}

/// Headers of each request to the receiver at `host`, with those that the environment adds. Fails if one of these is invalid.
fn request_headers(host: &str, environment: &Environment) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::from_iter([
        (HOST, HeaderValue::from_str(host)?),
        (USER_AGENT, HeaderValue::from_static(concat!("tokengap/", env!("CARGO_PKG_VERSION")))),
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        // Bodies are seconds apart, and the receiver may restart between them.
        (CONNECTION, HeaderValue::from_static("close")),
    ]);
    for (name, value) in &environment.headers {
        let invalid = || format!("OTEL_EXPORTER_OTLP_HEADERS: {name:?} and its value cannot be an HTTP header");
        let name = HeaderName::from_bytes(name.as_bytes()).with_context(invalid)?;
        headers.insert(name, HeaderValue::from_str(value).with_context(invalid)?);
    }
    Ok(headers)
}

/// Items of a body that the receiver at `full_url` has rejected for good, from its response. `body_items` is the number of all items. `Err`
/// if another attempt may succeed.
fn rejected_items_of_response(
    response: &ReceiverResponse,
    full_url: &str,
    body_items: u64,
) -> Result<RejectedItems, FailedAttempt> {
    let ReceiverResponse { status, retry_after, text } = response;
    if status.is_success() {
        let RejectedItems { count, why } = parse_partial_success(text);
        return Ok(RejectedItems { count, why: format!("{full_url}: {why}") });
    }
    let first_line: String = text.lines().next().unwrap_or_default().chars().take(MAX_SHOWN_CHARS).collect();
    let why = format!("{full_url}: {status} {first_line}").trim_end().to_owned();
    if RETRYABLE.contains(status) {
        Err(FailedAttempt { retry_after: *retry_after, why })
    } else {
        Ok(RejectedItems { count: body_items, why })
    }
}

const URL_HINT: &str = "expected a URL like http://localhost:4318";

#[cfg(test)]
mod tests;
