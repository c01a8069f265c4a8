//! Answers to requests.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use outputs::metrics::Family;
use outputs::report::Report;
use outputs::report::hostile::{self, EscapeForm};
use tokio::sync::mpsc::channel;
use tokio::sync::{Notify, Semaphore};
use trace::engine::Engines;

use super::body::ReplyBody;
use super::follow::StreamClient;
use super::store::SectionStore;
use crate::telemetry::HOST_HEADER;
use crate::telemetry::access_token::AccessToken;
use crate::telemetry::endpoint_counts::EndpointCounts;
use crate::telemetry::health::RunHealth;
use crate::telemetry::prometheus_text::{RunFamilies, encode_metrics};
use crate::telemetry::served_path::ServedPath;
use crate::telemetry::snapshot::{SnapshotClient, SnapshotPublisher, snapshot_pair};

/// Maximum wait for the run, which normally answers within milliseconds.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for `/healthz`, which callers repeat.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Parts of a stream that wait for the connection.
const WAITING_PARTS: usize = 1;

/// Data for the answers, shared by all connections.
pub(super) struct RequestHandler {
    pub(super) token: Option<AccessToken>,
    pub(super) counts: Arc<EndpointCounts>,
    /// Metrics of each run, with the name of its engine.
    pub(super) metrics: RunMetrics,
    pub(super) report: SnapshotClient<Report>,
    pub(super) health: SnapshotClient<RunHealth>,
    pub(super) store: Arc<SectionStore>,
    pub(super) engines: Engines,
    /// Free permits for clients of each path, in the order of [`ServedPath::ALL`].
    pub(super) client_permits: [Arc<Semaphore>; ServedPath::ALL.len()],
    pub(super) read_timeout: Duration,
}

/// Metrics of the runs that one endpoint serves, each with the name of its engine.
#[derive(Clone, Default)]
pub(in crate::telemetry) struct RunMetrics(Arc<Mutex<Vec<EngineMetrics>>>);

#[derive(Clone)]
struct EngineMetrics {
    engine: String,
    client: SnapshotClient<Vec<Family>>,
}

impl RunMetrics {
    /// Adds a run, which publishes its metrics through the returned value.
    pub(in crate::telemetry) fn add_run(&self, engine: &str) -> SnapshotPublisher<Vec<Family>> {
        let (publisher, client) = snapshot_pair();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(EngineMetrics { engine: engine.to_owned(), client });
        publisher
    }

    /// Names the engine of the first run, which may have been found only later.
    pub(in crate::telemetry) fn name_first_run(&self, engine: &str) {
        if let Some(first) = self.0.lock().unwrap_or_else(PoisonError::into_inner).first_mut() {
            engine.clone_into(&mut first.engine);
        }
    }
}

/// A connection, as seen by the answers to its request.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    pub(super) has_request: AtomicBool,
    pub(super) is_stream: AtomicBool,
    /// Closes the connection.
    pub(super) close: Arc<Notify>,
}

impl RequestHandler {
    /// Number of current clients of a path.
    pub(super) fn client_count(permits: &[Arc<Semaphore>; ServedPath::ALL.len()], path: ServedPath) -> u64 {
        (path.max_clients() - permits[path as usize].available_permits()) as u64
    }

    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &ConnectionState,
    ) -> Result<Response<ReplyBody>, Infallible> {
        let path = ServedPath::parse(request.uri().path());
        if path.is_none_or(ServedPath::needs_token) && !self.is_authorized(&request) {
            self.counts.unauthorized.fetch_add(1, Ordering::Relaxed);
            let why = "unauthorized: send the token of --token-file as a bearer token\n";
            return Ok(with_header(text_response(StatusCode::UNAUTHORIZED, why), WWW_AUTHENTICATE, "Bearer"));
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let why = "method not allowed: use GET\n";
            return Ok(with_header(text_response(StatusCode::METHOD_NOT_ALLOWED, why), ALLOW, "GET, HEAD"));
        }
        let Some(path) = path else {
            if request.uri().path() == "/" {
                return Ok(response(StatusCode::OK, "text/html; charset=utf-8", index_page()));
            }
            let names = ServedPath::ALL.map(ServedPath::name).join(", ");
            return Ok(text_response(StatusCode::NOT_FOUND, &format!("not found: tokengap serves {names}\n")));
        };
        let Ok(permit) = Arc::clone(&self.client_permits[path as usize]).try_acquire_owned() else {
            self.counts.over_limit.fetch_add(1, Ordering::Relaxed);
            let why = format!("too many clients: {} has a limit of {}\n", path.name(), path.max_clients());
            return Ok(with_header(text_response(StatusCode::SERVICE_UNAVAILABLE, &why), RETRY_AFTER, "5"));
        };
        let response = match path {
            ServedPath::Metrics => self.answer_metrics(&request).await,
            ServedPath::Report => self.answer_report().await,
            ServedPath::Health => self.answer_health().await,
            ServedPath::Recording | ServedPath::Events if request.method() == Method::HEAD => {
                stream_response(path, ReplyBody::whole(Bytes::new()))
            }
            ServedPath::Recording | ServedPath::Events => self.start_stream(path, connection),
        };
        Ok(response.map(|body| body.holding(permit)))
    }

    fn is_authorized(&self, request: &Request<Incoming>) -> bool {
        let sent = request.headers().get(AUTHORIZATION);
        self.token.as_ref().is_none_or(|token| token.is_sent_in(sent))
    }

    async fn answer_metrics(&self, request: &Request<Incoming>) -> Response<ReplyBody> {
        let clients = self.metrics.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let are_several = clients.len() > 1;
        let mut runs = Vec::new();
        for EngineMetrics { engine, client } in clients {
            let Some(families) = client.fetch(SNAPSHOT_TIMEOUT).await else {
                return no_answer_response();
            };
            runs.push(RunFamilies { engine: are_several.then_some(engine), families: families.to_vec() });
        }
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        match encode_metrics(runs, accept.unwrap_or_default()) {
            Ok((content_type, body)) => response(StatusCode::OK, content_type, body),
            Err(error) => {
                text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot encode metrics: {error}\n"))
            }
        }
    }

    async fn answer_report(&self) -> Response<ReplyBody> {
        let Some(report) = self.report.fetch(SNAPSHOT_TIMEOUT).await else {
            return no_answer_response();
        };
        match serde_json::to_string(&*report) {
            Ok(json) => response(
                StatusCode::OK,
                "application/json",
                hostile::output(&json, EscapeForm::Json).into_owned() + "\n",
            ),
            Err(error) => {
                text_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot encode the report: {error}\n"))
            }
        }
    }

    async fn answer_health(&self) -> Response<ReplyBody> {
        let (status, health) = match self.health.fetch(HEALTH_TIMEOUT).await {
            Some(health) if health.is_running => (StatusCode::OK, health.to_json()),
            Some(health) => (StatusCode::SERVICE_UNAVAILABLE, health.to_json()),
            None => (StatusCode::SERVICE_UNAVAILABLE, RunHealth::dead("the run failed or is overloaded")),
        };
        with_header(response(status, "application/json", format!("{health}\n")), CACHE_CONTROL, "no-store")
    }

    fn start_stream(&self, path: ServedPath, connection: &ConnectionState) -> Response<ReplyBody> {
        connection.is_stream.store(true, Ordering::Relaxed);
        self.counts.streaming.fetch_add(1, Ordering::Relaxed);
        let (parts, outgoing) = channel(WAITING_PARTS);
        let is_complete = Arc::<AtomicBool>::default();
        let client = StreamClient {
            path,
            cursor: self.store.cursor(),
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

/// Page with links to all paths. They are relative, for proxies that serve the endpoint below a path of their own.
fn index_page() -> String {
    let links = ServedPath::ALL.map(|path| {
        let name = path.name();
        format!("<li><a href=\"{}\">{name}</a>: {}\n", name.trim_start_matches('/'), path.content())
    });
    format!("<!doctype html>\n<title>tokengap</title>\n<ul>\n{}</ul>\n", links.concat())
}

fn no_answer_response() -> Response<ReplyBody> {
    text_response(StatusCode::SERVICE_UNAVAILABLE, "no response from the run: it failed or is overloaded\n")
}

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
    response(status, "text/plain; charset=utf-8", text.to_owned())
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(body));
    *response.status_mut() = status;
    with_header(response, CONTENT_TYPE, content_type)
}

fn with_header(mut response: Response<ReplyBody>, name: HeaderName, value: &'static str) -> Response<ReplyBody> {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}
