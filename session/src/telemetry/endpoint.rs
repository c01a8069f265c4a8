//! Metrics endpoint: HTTP/1.1 on its own thread, with limits on connections, request size and time. The run collects metrics at most four
//! times a second, at some hundred microseconds each, regardless of the number of requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::MetricsOptions;
use super::access::AccessToken;
use super::exposition::encode;
use super::scrapes::{self, MetricsClient, MetricsPublisher};

/// Limits of the endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Concurrent connections. A new one displaces the oldest that has not sent a request, else the oldest.
    connections: usize,
    /// Maximum size of a request head, in bytes.
    request_bytes: usize,
    /// Maximum time to receive a request head.
    head: Duration,
    /// Maximum lifetime of a connection, including the response.
    whole: Duration,
}

pub(super) const BOUNDS: Bounds =
    Bounds { connections: 32, request_bytes: 16 * 1024, head: Duration::from_secs(5), whole: Duration::from_secs(30) };

/// Connections closed before they received a response, and requests without the token.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Displaced by newer connections.
    displaced: AtomicU64,
    /// Over a size or time limit, or not HTTP.
    failed: AtomicU64,
    /// Requests without the token.
    unauthorized: AtomicU64,
}

impl Refused {
    /// Summary for the report.
    pub(super) fn trouble(&self) -> impl Iterator<Item = String> {
        let displaced = self.displaced.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        let unauthorized = self.unauthorized.load(Ordering::Relaxed);
        let closed = (displaced + failed > 0).then(|| {
            format!(
                "metrics: connections closed without a response: {displaced} replaced by newer ones (limit {}), {failed} too slow, too long or not HTTP; check who can reach the address of --metrics",
                BOUNDS.connections
            )
        });
        let unauthorized = (unauthorized > 0).then(|| {
            format!(
                "metrics: {unauthorized} requests without the token of --token-file were refused; check the scraper's `authorization`, and who can reach the address of --metrics"
            )
        });
        closed.into_iter().chain(unauthorized)
    }
}

/// A metrics endpoint that is served.
pub(super) struct Endpoint {
    pub(super) publisher: MetricsPublisher,
    pub(super) bound: SocketAddr,
    pub(super) refused: Arc<Refused>,
}

impl Endpoint {
    /// Starts to serve.
    pub(super) fn serve(options: MetricsOptions, bounds: Bounds) -> anyhow::Result<Self> {
        let MetricsOptions { address, token } = options;
        let failed = || format!("cannot serve metrics at {address}; choose another with --metrics HOST:PORT");
        let listener = StdListener::bind(address).with_context(failed)?;
        listener.set_nonblocking(true).with_context(failed)?;
        let bound = listener.local_addr().with_context(failed)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().with_context(failed)?;
        let (publisher, client) = scrapes::pair();
        let refused = Arc::<Refused>::default();
        let access = Arc::new(Access { token, refused: Arc::clone(&refused) });
        thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                if let Err(error) = runtime.block_on(accept(listener, client, bounds, &access)) {
                    tracing::warn!("metrics are no longer served: {error}");
                }
            })
            .with_context(failed)?;
        Ok(Self { publisher, bound, refused })
    }
}

/// Decides which requests are answered, and counts the others.
struct Access {
    token: Option<AccessToken>,
    refused: Arc<Refused>,
}

async fn accept(
    listener: StdListener,
    client: MetricsClient,
    bounds: Bounds,
    access: &Arc<Access>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    // Connections in progress: whether each has sent a request, and its task.
    let mut served: VecDeque<(Arc<AtomicBool>, AbortHandle)> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of file descriptors, for now.
            Err(error) => {
                tracing::info!("metrics: cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        served.retain(|(_, task)| !task.is_finished());
        if served.len() >= bounds.connections {
            // An idle client must not block one that sends a request.
            let silent = served.iter().position(|(got_request, _)| !got_request.load(Ordering::Relaxed));
            if let Some((_, oldest)) = served.remove(silent.unwrap_or(0)) {
                oldest.abort();
                access.refused.displaced.fetch_add(1, Ordering::Relaxed);
            }
        }
        let got_request = Arc::<AtomicBool>::default();
        let (client, access, request_flag) = (client.clone(), Arc::clone(access), Arc::clone(&got_request));
        let task = tokio::spawn(async move {
            let ended = timeout(bounds.whole, serve_connection(stream, client, bounds, &request_flag, &access)).await;
            // A client that disconnects by itself is not counted.
            if ended.is_err() || ended.is_ok_and(|ended| ended.is_err_and(|e| e.is_timeout() || e.is_parse())) {
                access.refused.failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        served.push_back((got_request, task.abort_handle()));
    }
}

async fn serve_connection(
    stream: TcpStream,
    client: MetricsClient,
    bounds: Bounds,
    got_request: &AtomicBool,
    access: &Access,
) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(bounds.request_bytes)
        .keep_alive(false)
        .half_close(true)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| {
                got_request.store(true, Ordering::Relaxed);
                answer(request, client.clone(), access)
            }),
        )
        .await
}

async fn answer(
    request: Request<Incoming>,
    mut client: MetricsClient,
    access: &Access,
) -> Result<Response<String>, Infallible> {
    let is_authorized = |token: &AccessToken| token.is_sent_in(request.headers().get(AUTHORIZATION));
    if !access.token.as_ref().is_none_or(is_authorized) {
        access.refused.unauthorized.fetch_add(1, Ordering::Relaxed);
        let mut refusal =
            plain(StatusCode::UNAUTHORIZED, "unauthorized: send the token of --token-file as a bearer token\n");
        refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(refusal);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET /metrics\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(refusal);
    }
    if request.uri().path() != "/metrics" {
        return Ok(plain(StatusCode::NOT_FOUND, "tokengap's metrics are at /metrics\n"));
    }
    let Some(families) = client.fetch().await else {
        return Ok(plain(StatusCode::SERVICE_UNAVAILABLE, "no response from the run: it failed or is overloaded\n"));
    };
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    Ok(match encode(families.to_vec(), accept.unwrap_or_default()) {
        Ok((content_type, body)) => response(StatusCode::OK, content_type, body),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot encode metrics: {error}\n")),
    })
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    response(status, "text/plain; charset=utf-8", text.to_owned())
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod hostile_clients;
