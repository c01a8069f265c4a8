//! Answers to requests.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use outputs::report::hostile::{self, EscapeForm};
use outputs::report::{Report, RunReport, RunsReport};
use serde_json::Value;
use tokio::sync::mpsc::channel;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use trace::engine::Engines;

use super::body::ReplyBody;
use super::follow::StreamClient;
use super::served_runs::{ServedRun, ServedRuns};
use crate::about::EngineIdentity;
use crate::telemetry::HOST_HEADER;
use crate::telemetry::access_token::AccessToken;
use crate::telemetry::endpoint_counts::EndpointCounts;
use crate::telemetry::health::{EngineHealth, combined_health_json};
use crate::telemetry::prometheus_text::{MetricsText, RunFamilies, encode_metrics};
use crate::telemetry::served_path::ServedPath;
use crate::telemetry::snapshot::SnapshotClient;

/// Maximum wait for the run, which normally answers within milliseconds.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for `/healthz`, which callers repeat.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Seconds after which a client refused by a limit may try again.
const RETRY_AFTER_SECONDS: &str = "5";
/// Parts of a stream that wait for the connection.
const WAITING_PARTS: usize = 1;

/// Data for the answers, shared by all connections.
pub(super) struct RequestHandler {
    pub(super) token: Option<AccessToken>,
    pub(super) counts: Arc<EndpointCounts>,
    pub(super) runs: ServedRuns,
    pub(super) engines: Engines,
    /// Free permits for clients of each path, in the order of [`ServedPath::ALL`].
    pub(super) client_permits: [Arc<Semaphore>; ServedPath::ALL.len()],
    pub(super) read_timeout: Duration,
}

/// A connection, as seen by the answers to its request.
#[derive(Default)]
pub(super) struct ConnectionState {
    pub(super) has_request: AtomicBool,
    /// The run that it streams, if it does.
    pub(super) streamed_run: OnceLock<Arc<ServedRun>>,
    /// Closes the connection.
    pub(super) close: Arc<Notify>,
}

impl ConnectionState {
    pub(super) fn is_stream(&self) -> bool {
        self.streamed_run.get().is_some()
    }
}

/// Maximum number of concurrent clients of a path that serves this number of runs. Only `/recording` has a limit per run.
fn max_clients(path: ServedPath, run_count: usize) -> usize {
    let limited_runs = if path == ServedPath::Recording { run_count.max(1) } else { 1 };
    path.max_clients() * limited_runs
}

/// Report of a run with its engine. An engine of this machine has no address, and no records of it can be missed on the way.
fn report_of_engine(engine: EngineIdentity, report: Report) -> RunReport {
    RunReport {
        name: engine.name,
        endpoint: None,
        side: engine.side,
        port: engine.port,
        model: engine.model,
        state: engine.state.to_owned(),
        records_before: None,
        records_missed: None,
        gaps: None,
        report,
    }
}

/// Reports as JSON. A single report is written as it is. Several have the form for several runs, with the names of the engines. A single
/// one also has that form if `unanswered_engine_names` names further runs, which have no report.
fn report_json(reports: &[RunReport], unanswered_engine_names: Vec<String>) -> serde_json::Result<String> {
    match reports {
        [only] if unanswered_engine_names.is_empty() => serde_json::to_string(&only.report),
        several => {
            let runs_report =
                RunsReport::of_runs(several).map(|report| report.with_unanswered(unanswered_engine_names));
            serde_json::to_string(&runs_report)
        }
    }
}

/// Counts the connection among those that stream the run. The count goes down when the connection closes.
fn count_streaming_connection(connection: &ConnectionState, run: &Arc<ServedRun>) {
    // `set` succeeds once for each connection.
    let is_newly_set = connection.streamed_run.set(Arc::clone(run)).is_ok();
    if is_newly_set {
        run.store.streaming_connections.fetch_add(1, Ordering::Relaxed);
    }
}

/// Answers a request for a path that serves no run: the index page, or an error that names the paths of runs.
fn answer_other_path(path: &str) -> Response<ReplyBody> {
    if path == "/" {
        return full_response(StatusCode::OK, "text/html; charset=utf-8", index_page());
    }
    let names = ServedPath::ALL.map(ServedPath::name).join(", ");
    text_response(StatusCode::NOT_FOUND, &format!("not found: tokengap serves {names}\n"))
}

/// Snapshots of all runs, each `None` if its run does not answer. Together they take no longer than `max_wait`.
async fn fetch_snapshots<T: Send + Sync + 'static>(
    clients: Vec<SnapshotClient<T>>,
    max_wait: Duration,
) -> Vec<Option<Arc<T>>> {
    // At the same time: behind a run that does not answer, the snapshots of the others would be too old.
    let mut fetches: Vec<JoinHandle<Option<Arc<T>>>> = Vec::new();
    for client in clients {
        fetches.push(tokio::spawn(async move { client.fetch(max_wait).await }));
    }
    let mut snapshots = Vec::new();
    for fetch in fetches {
        // A task that panicked has no snapshot.
        snapshots.push(fetch.await.ok().flatten());
    }
    snapshots
}

impl RequestHandler {
    /// Number of current clients of a path: its limit less the free permits.
    pub(super) fn client_count(
        permits: &[Arc<Semaphore>; ServedPath::ALL.len()],
        path: ServedPath,
        run_count: usize,
    ) -> u64 {
        max_clients(path, run_count).saturating_sub(permits[path as usize].available_permits()) as u64
    }

    /// Answers a request, or refuses it with the status and a line that says why. Never fails; hyper requires the `Result`.
    pub(super) async fn answer_request(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionState,
    ) -> Result<Response<ReplyBody>, Infallible> {
        let path = ServedPath::parse(request.uri().path());
        // First of all, so that a client without access does not learn which paths exist.
        if path.is_none_or(ServedPath::needs_token) && !self.is_authorized(&request) {
            return Ok(self.refuse_without_token());
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let why = "method not allowed: use GET\n";
            return Ok(with_header(text_response(StatusCode::METHOD_NOT_ALLOWED, why), ALLOW, "GET, HEAD"));
        }
        let Some(path) = path else {
            return Ok(answer_other_path(request.uri().path()));
        };
        let Ok(permit) = Arc::clone(&self.client_permits[path as usize]).try_acquire_owned() else {
            return Ok(self.refuse_further_client(path));
        };
        let response = match path {
            ServedPath::Metrics => self.answer_metrics(&request).await,
            ServedPath::Report => self.answer_report(&request).await,
            // Needs no token, but names engines only to a client that has it.
            ServedPath::Health => self.answer_health(self.is_authorized(&request)).await,
            ServedPath::Recording | ServedPath::Events => self.answer_stream(path, &request, connection),
        };
        // The client counts until its response is sent.
        Ok(response.map(|body| body.holding(permit)))
    }

    /// Whether the request has the token. Every request is authorized if no token is set.
    fn is_authorized(&self, request: &Request<Incoming>) -> bool {
        let sent = request.headers().get(AUTHORIZATION);
        self.token.as_ref().is_none_or(|token| token.is_sent_in(sent))
    }

    /// Refuses and counts a request without the token.
    fn refuse_without_token(&self) -> Response<ReplyBody> {
        self.counts.unauthorized.fetch_add(1, Ordering::Relaxed);
        let why = "unauthorized: send the token of --token-file as a bearer token\n";
        with_header(text_response(StatusCode::UNAUTHORIZED, why), WWW_AUTHENTICATE, "Bearer")
    }

    /// Refuses and counts a request to a path that has as many clients as it may have. The client may try again soon.
    fn refuse_further_client(&self, path: ServedPath) -> Response<ReplyBody> {
        self.counts.over_limit.fetch_add(1, Ordering::Relaxed);
        let max_clients = max_clients(path, self.runs.count());
        let why = format!("too many clients: {} has a limit of {max_clients}\n", path.name());
        with_header(text_response(StatusCode::SERVICE_UNAVAILABLE, &why), RETRY_AFTER, RETRY_AFTER_SECONDS)
    }

    /// The runs that the request asks for. An error names the known engines, and escapes the name that the client has sent.
    fn select_runs(&self, request: &Request<Incoming>) -> Result<Vec<Arc<ServedRun>>, String> {
        self.runs.select_runs(request.uri().query()).map_err(|unknown| {
            let addresses = self.runs.engine_addresses(request.uri().path());
            format!("no engine is named {}; there are:\n{addresses}", hostile::escape_and_cut_line(&unknown))
        })
    }

    /// Metrics of the selected runs, in the text format that the client accepts.
    async fn answer_metrics(&self, request: &Request<Incoming>) -> Response<ReplyBody> {
        let runs = match self.select_runs(request) {
            Ok(runs) => runs,
            Err(why) => return text_response(StatusCode::NOT_FOUND, &why),
        };
        let snapshots = fetch_snapshots(runs.iter().map(|run| run.metrics.clone()).collect(), SNAPSHOT_TIMEOUT).await;
        let mut answered: Vec<RunFamilies> = Vec::new();
        for (run, snapshot) in runs.iter().zip(&snapshots) {
            // A run that failed has no metrics; those of the others are served.
            let Some(families) = snapshot else { continue };
            answered.push(RunFamilies::of_run(run.engine(), families.to_vec()));
        }
        if answered.is_empty() {
            return no_answer_response(&runs);
        }
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        match encode_metrics(answered, accept.unwrap_or_default()) {
            Ok(MetricsText { content_type, body }) => full_response(StatusCode::OK, content_type, body),
            Err(error) => {
                text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot encode metrics: {error}\n"))
            }
        }
    }

    /// Report of the selected run, or of several with their names. A report of several also names the runs that did not answer, because it
    /// would otherwise look complete.
    async fn answer_report(&self, request: &Request<Incoming>) -> Response<ReplyBody> {
        let runs = match self.select_runs(request) {
            Ok(runs) => runs,
            Err(why) => return text_response(StatusCode::NOT_FOUND, &why),
        };
        let snapshots = fetch_snapshots(runs.iter().map(|run| run.report.clone()).collect(), SNAPSHOT_TIMEOUT).await;
        let mut reports = Vec::new();
        let mut no_answer = Vec::new();
        for (run, report) in runs.iter().zip(snapshots) {
            let engine = run.engine().unwrap_or_default();
            let Some(report) = report else {
                no_answer.push(engine.name);
                continue;
            };
            reports.push(report_of_engine(engine, (*report).clone()));
        }
        if reports.is_empty() {
            return no_answer_response(&runs);
        }
        match report_json(&reports, no_answer) {
            Ok(json) => {
                let escaped = hostile::escape_output(&json, EscapeForm::Json).into_owned();
                full_response(StatusCode::OK, "application/json", escaped + "\n")
            }
            Err(error) => {
                text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot encode the report: {error}\n"))
            }
        }
    }

    /// Answers with the state of all runs: whether they are alive and tokens flow. Names engines only to a client that `may_see_names`.
    async fn answer_health(&self, may_see_names: bool) -> Response<ReplyBody> {
        let runs = self.runs.list();
        let snapshots = fetch_snapshots(runs.iter().map(|run| run.health.clone()).collect(), HEALTH_TIMEOUT).await;
        let mut states = Vec::new();
        for (run, health) in runs.iter().zip(snapshots) {
            let engine = if may_see_names { run.engine() } else { None };
            states.push(EngineHealth { engine, health: health.as_deref().copied() });
        }
        let health = combined_health_json(&states);
        // For clients that look at the status only, such as a probe of Kubernetes.
        let is_alive = health["alive"] == Value::Bool(true);
        let status = if is_alive { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        with_header(full_response(status, "application/json", format!("{health}\n")), CACHE_CONTROL, "no-store")
    }

    /// Starts a stream of the run of the named engine, or of the only run. Refuses the request if there are several runs and none is named.
    fn answer_stream(
        &self,
        path: ServedPath,
        request: &Request<Incoming>,
        connection: &ConnectionState,
    ) -> Response<ReplyBody> {
        let runs = match self.select_runs(request) {
            Ok(runs) => runs,
            Err(why) => return text_response(StatusCode::NOT_FOUND, &why),
        };
        // The endpoint listens before the first run begins.
        if runs.is_empty() {
            return text_response(StatusCode::SERVICE_UNAVAILABLE, "no engine is watched yet\n");
        }
        let [run] = runs.as_slice() else {
            let addresses = self.runs.engine_addresses(path.name());
            let why = format!("several engines are watched; choose one:\n{addresses}");
            return text_response(StatusCode::BAD_REQUEST, &why);
        };
        if request.method() == Method::HEAD {
            return stream_response(path, ReplyBody::whole(Bytes::new()));
        }
        self.start_stream(path, run, connection)
    }

    /// Answers with a stream of the run, which a task of its own sends.
    fn start_stream(
        &self,
        path: ServedPath,
        run: &Arc<ServedRun>,
        connection: &ConnectionState,
    ) -> Response<ReplyBody> {
        count_streaming_connection(connection, run);
        let (parts, outgoing) = channel(WAITING_PARTS);
        let is_complete = Arc::<AtomicBool>::default();
        let client = StreamClient {
            path,
            cursor: run.store.cursor(),
            parts,
            is_complete: Arc::clone(&is_complete),
            close: Arc::clone(&connection.close),
            counts: Arc::clone(&self.counts),
            read_timeout: self.read_timeout,
        };
        if path == ServedPath::Events {
            client.send_events(self.engines);
        } else {
            tokio::spawn(client.send_recording());
        }
        stream_response(path, ReplyBody::stream(outgoing, is_complete))
    }
}

/// HTML page with links to all paths. The links are relative, for proxies that serve the endpoint below a path of their own.
fn index_page() -> String {
    let links = ServedPath::ALL.map(|path| {
        let name = path.name();
        format!("<li><a href=\"{}\">{name}</a>: {}\n", name.trim_start_matches('/'), path.content())
    });
    format!("<!doctype html>\n<title>tokengap</title>\n<ul>\n{}</ul>\n", links.concat())
}

/// Response for runs of which none has answered in time. Names their engines, escaped.
fn no_answer_response(runs: &[Arc<ServedRun>]) -> Response<ReplyBody> {
    let names: Vec<String> = runs.iter().map(|run| run.name()).filter(|name| !name.is_empty()).collect();
    let engine_names = if names.is_empty() {
        String::new()
    } else {
        format!(" of {}", hostile::escape_and_cut_line(&names.join(", ")))
    };
    let why = format!("no response from the run{engine_names}: it failed or is overloaded\n");
    text_response(StatusCode::SERVICE_UNAVAILABLE, &why)
}

/// Response that streams the run as sections of a recording, or as events. Its headers name this machine, if its name fits into one.
fn stream_response(path: ServedPath, body: ReplyBody) -> Response<ReplyBody> {
    let content_type =
        if path == ServedPath::Events { "application/jsonl; charset=utf-8" } else { "application/octet-stream" };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // On watchers' screens, the name of a pod says more than its address.
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    if let Ok(host) = HeaderValue::from_bytes(&host) {
        response.headers_mut().insert(HOST_HEADER, host);
    }
    response
}

fn text_response(status: StatusCode, text: &str) -> Response<ReplyBody> {
    full_response(status, "text/plain; charset=utf-8", text.to_owned())
}

/// Response with this body.
fn full_response(status: StatusCode, content_type: &'static str, body: String) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(body));
    *response.status_mut() = status;
    with_header(response, CONTENT_TYPE, content_type)
}

/// Adds a header to a response.
fn with_header(mut response: Response<ReplyBody>, name: HeaderName, value: &'static str) -> Response<ReplyBody> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
