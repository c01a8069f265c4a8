//! The metrics endpoint: HTTP/1.1 on a thread of its own. Connections, the size of requests and the time each may take are bounded;
//! a question costs the run some hundred microseconds at most four times a second, however often it is asked.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
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
use tokio::sync::Semaphore;

use super::exposition::encode;
use super::scrapes::Questions;

/// Connections at a time; others wait in the kernel's queue.
const CONNECTIONS: usize = 32;
/// Largest request, in bytes.
const REQUEST_BYTES: usize = 16 * 1024;
/// How long a request's head may take.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may last, answer included.
const WHOLE: Duration = Duration::from_secs(30);

/// Begins to serve at `address`; gives back where that is (a port of 0 is one that was free).
pub(super) fn serve(address: SocketAddr, questions: Questions) -> anyhow::Result<SocketAddr> {
    let refused = || format!("cannot serve metrics at {address}; choose another with --metrics HOST:PORT");
    let listener = StdListener::bind(address).with_context(refused)?;
    listener.set_nonblocking(true).with_context(refused)?;
    let bound = listener.local_addr().with_context(refused)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .with_context(refused)?;
    thread::Builder::new()
        .name("metrics".into())
        .spawn(move || {
            if let Err(error) = runtime.block_on(accept(listener, questions)) {
                tracing::warn!("metrics are not served any more: {error}");
            }
        })
        .with_context(refused)?;
    Ok(bound)
}

async fn accept(listener: StdListener, questions: Questions) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return Ok(());
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let questions = questions.clone();
                tokio::spawn(async move {
                    let _place = place;
                    // Who is too slow, or breaks off, has no answer: that is all there is to it.
                    let _ = tokio::time::timeout(WHOLE, converse(stream, questions)).await;
                });
            }
            // No descriptors left, for now.
            Err(error) => {
                tracing::info!("metrics: cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, questions: Questions) -> hyper::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(request, questions.clone())),
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
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;
    use std::time::Instant;

    use super::super::scrapes::{Answers, pair};
    use super::*;

    fn endpoint() -> (SocketAddr, Answers) {
        let (answers, questions) = pair();
        let bound = serve(SocketAddr::from(([127, 0, 0, 1], 0)), questions).expect("a free port");
        (bound, answers)
    }

    fn ask(at: SocketAddr, request: &str) -> String {
        let mut client = Client::connect(at).expect("it listens");
        client.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it answers and closes");
        answer
    }

    #[test]
    fn only_metrics_are_there_and_only_to_be_read() {
        let (at, answers) = endpoint();
        answers.give(Vec::new(), true);
        let metrics = ask(at, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
        assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
        assert!(ask(at, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let posted = ask(at, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        assert!(
            posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD"),
            "{posted}"
        );
    }

    #[test]
    fn a_request_that_never_ends_or_is_too_long_is_given_up() {
        let (at, answers) = endpoint();
        answers.give(Vec::new(), true);
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * REQUEST_BYTES));
        let answer = {
            let mut client = Client::connect(at).expect("it listens");
            // It may hang up before it has read all of it.
            let _ = client.write_all(long.as_bytes());
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        // Thirty-one that say nothing do not keep the next one out.
        let silent: Vec<Client> = (1..CONNECTIONS)
            .map(|_| Client::connect(at).expect("it listens"))
            .collect();
        let began = Instant::now();
        assert!(ask(at, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").starts_with("HTTP/1.1 200 "));
        assert!(began.elapsed() < HEAD, "{:?}", began.elapsed());
        drop(silent);
    }
}
