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
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::exposition::encode;
use super::scrapes::Questions;

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

pub(super) const BOUNDS: Bounds = Bounds {
    connections: 32,
    request_bytes: 16 * 1024,
    head: Duration::from_secs(5),
    whole: Duration::from_secs(30),
};

/// Connections closed before they received a response.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Displaced by newer connections.
    displaced: AtomicU64,
    /// Over a size or time limit, or not HTTP.
    failed: AtomicU64,
}

impl Refused {
    /// Summary for the report.
    pub(super) fn trouble(&self) -> Option<String> {
        let displaced = self.displaced.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        (displaced + failed > 0).then(|| {
            format!(
                "metrics: connections were ended without an answer: {displaced} for newer ones ({} at a time), {failed} that were \
                 too slow, too long or no HTTP; see who reaches the address of --metrics",
                BOUNDS.connections
            )
        })
    }
}

/// Starts to serve at `address` and returns the bound address (port 0 selects a free one).
pub(super) fn serve(
    address: SocketAddr,
    questions: Questions,
    bounds: Bounds,
) -> anyhow::Result<(SocketAddr, Arc<Refused>)> {
    let refused = || format!("cannot serve metrics at {address}; choose another with --metrics HOST:PORT");
    let listener = StdListener::bind(address).with_context(refused)?;
    listener.set_nonblocking(true).with_context(refused)?;
    let bound = listener.local_addr().with_context(refused)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .with_context(refused)?;
    let counted = Arc::<Refused>::default();
    let theirs = Arc::clone(&counted);
    thread::Builder::new()
        .name("metrics".into())
        .spawn(move || {
            if let Err(error) = runtime.block_on(accept(listener, questions, bounds, &theirs)) {
                tracing::warn!("metrics are not served any more: {error}");
            }
        })
        .with_context(refused)?;
    Ok((bound, counted))
}

/// A connection in progress.
struct Served {
    asked: Arc<AtomicBool>,
    task: AbortHandle,
}

async fn accept(
    listener: StdListener,
    questions: Questions,
    bounds: Bounds,
    refused: &Arc<Refused>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut served: VecDeque<Served> = VecDeque::new();
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
        served.retain(|one| !one.task.is_finished());
        if served.len() >= bounds.connections {
            // An idle client must not block one that sends a request.
            let silent = served.iter().position(|one| !one.asked.load(Ordering::Relaxed));
            if let Some(oldest) = served.remove(silent.unwrap_or(0)) {
                oldest.task.abort();
                refused.displaced.fetch_add(1, Ordering::Relaxed);
            }
        }
        let asked = Arc::<AtomicBool>::default();
        let (questions, refused, asks) = (questions.clone(), Arc::clone(refused), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            let ended = timeout(bounds.whole, converse(stream, questions, bounds, &asks)).await;
            // A client that disconnects by itself is not counted.
            if ended.is_err() || ended.is_ok_and(|ended| ended.is_err_and(|e| e.is_timeout() || e.is_parse())) {
                refused.failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        served.push_back(Served {
            asked,
            task: task.abort_handle(),
        });
    }
}

async fn converse(stream: TcpStream, questions: Questions, bounds: Bounds, asked: &AtomicBool) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(bounds.request_bytes)
        .keep_alive(false)
        .half_close(true)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| {
                asked.store(true, Ordering::Relaxed);
                answer(request, questions.clone())
            }),
        )
        .await
}

async fn answer(request: Request<Incoming>, mut questions: Questions) -> Result<Response<String>, Infallible> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics are only read: GET /metrics\n");
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(refusal);
    }
    if request.uri().path() != "/metrics" {
        return Ok(plain(StatusCode::NOT_FOUND, "tokengap's metrics are at /metrics\n"));
    }
    let Some(families) = questions.ask().await else {
        return Ok(plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "the run does not answer: it has failed, or is very busy\n",
        ));
    };
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    Ok(match encode(families.to_vec(), accept.unwrap_or_default()) {
        Ok(told) => {
            let mut response = Response::new(told.body);
            let content_type = HeaderValue::from_static(told.content_type);
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
        Err(error) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            &format!("metrics cannot be written: {error}\n"),
        ),
    })
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod attacked;
