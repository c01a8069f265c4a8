//! Slow, silent and malformed clients: other clients are still answered, and refused connections are counted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream as Client};
use std::time::Instant;

use outputs::metrics::{Point, Value};
use trace::Config;

use super::*;
use crate::telemetry::access_token::AccessToken;

/// The default limits, with shorter times.
const SHORT_TIMES: EndpointLimits = EndpointLimits {
    head_timeout: Duration::from_millis(400),
    connection_timeout: Duration::from_millis(1_200),
    ..ENDPOINT_LIMITS
};
/// Longer than any of the times above, but much shorter than the sum over all clients.
const SOON: Duration = Duration::from_secs(10);

/// An endpoint without a token.
fn endpoint_without_token(limits: EndpointLimits) -> RunEndpoint {
    endpoint_with(None, limits)
}

/// An endpoint that keeps a MiB of the past.
pub(super) fn endpoint_with(token: Option<AccessToken>, limits: EndpointLimits) -> RunEndpoint {
    endpoint_keeping(1 << 20, token, limits)
}

/// An endpoint on a free port that keeps this many bytes of the past. Its metrics are final and empty, so no run has to answer.
pub(super) fn endpoint_keeping(past_bytes: usize, token: Option<AccessToken>, limits: EndpointLimits) -> RunEndpoint {
    let options = MetricsOptions { address: SocketAddr::from(([127, 0, 0, 1], 0)), token, past_bytes };
    let header = RecordingHeader::for_source("demo", Config::default());
    let endpoint = RunEndpoint::serve(options, &header, Engines::default(), limits).expect("a free port");
    let is_final = true;
    endpoint.metrics.publish(Vec::new(), is_final);
    endpoint
}

impl RunEndpoint {
    /// Connects a client, whose reads fail after [`SOON`].
    pub(super) fn connect(&self) -> Client {
        let client = Client::connect(self.server.listen_address).expect("it listens");
        client.set_read_timeout(Some(SOON)).expect("set");
        client
    }

    /// Sends a request on a new connection, and returns the whole response.
    pub(super) fn ask(&self, request: &str) -> String {
        let mut client = self.connect();
        client.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it answers and closes");
        answer
    }

    /// Requests the metrics, and checks that the response arrives within the time limit of a request's head. So no other client delays it.
    fn check_answer_at_once(&self, limits: EndpointLimits) {
        let began = Instant::now();
        let answer = self.ask(SCRAPE);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(began.elapsed() < limits.head_timeout, "{:?}", began.elapsed());
    }

    fn displaced_clients(&self) -> u64 {
        self.server.counts.displaced.load(Ordering::Relaxed)
    }

    fn failed_clients(&self) -> u64 {
        self.server.counts.failed.load(Ordering::Relaxed)
    }

    /// Waits until the condition is true.
    fn wait_until(&self, description: &str, condition: impl Fn(&Self) -> bool) {
        let end = Instant::now() + SOON;
        while !condition(self) {
            let displaced = self.displaced_clients();
            let failed = self.failed_clients();
            assert!(Instant::now() < end, "{description}: {displaced} displaced, {failed} failed");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

/// Returns whether the server closes the connection before the read times out. Discards what it sends until then.
fn is_closed(client: &mut Client) -> bool {
    let mut rest = Vec::new();
    let read_result = client.read_to_end(&mut rest);
    !read_result
        .is_err_and(|error| matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut))
}

#[test]
fn only_clients_with_the_token_get_a_response() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "secret").expect("written");
    let endpoint = endpoint_with(Some(AccessToken::read(file.path()).expect("a token")), ENDPOINT_LIMITS);
    let scrape = |header: &str| endpoint.ask(&format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{header}\r\n"));
    for wrong in ["", "authorization: Bearer guess\r\n", "authorization: Basic secret\r\n"] {
        let refused = scrape(wrong);
        assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("www-authenticate: Bearer"), "{refused}");
    }
    let served = scrape("authorization: Bearer secret\r\n");
    assert!(served.starts_with("HTTP/1.1 200 "), "{served}");
    for path in ["/report", "/recording", "/events", "/"] {
        let refused = endpoint.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n"));
        assert!(refused.starts_with("HTTP/1.1 401 "), "{path}: {refused}");
    }
    // A probe of Kubernetes cannot read a token.
    let health = endpoint.ask("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 503 ") && health.contains("\"alive\":false"), "{health}");
    let problems = endpoint.server.counts.problems();
    assert!(matches!(&*problems, [line] if line.starts_with("metrics: 7 requests without the token")), "{problems:?}");
}

#[test]
fn only_known_paths_and_methods_are_served() {
    let endpoint = endpoint_without_token(ENDPOINT_LIMITS);
    let metrics = endpoint.ask(SCRAPE);
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    let index = endpoint.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    for path in ServedPath::ALL {
        let name = path.name();
        assert!(index.contains(&format!("<a href=\"{}\">{name}</a>", &name[1..])), "{name}: {index}");
    }
    let other_path = endpoint.ask("GET /favicon.ico HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(other_path.starts_with("HTTP/1.1 404 "), "{other_path}");
    let posted = endpoint.ask("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD"), "{posted}");
    assert_eq!(endpoint.server.counts.problems(), Vec::<String>::new());
}

#[test]
fn oversized_and_malformed_heads_are_refused_and_counted() {
    let endpoint = endpoint_without_token(ENDPOINT_LIMITS);
    let heads = [
        format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * ENDPOINT_LIMITS.request_bytes)),
        format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(8 * ENDPOINT_LIMITS.request_bytes)),
        format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(2_000)),
        "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(),
    ];
    for head in &heads {
        let mut client = endpoint.connect();
        // The server may hang up before reading everything.
        client.write_all(head.as_bytes()).ok();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).ok();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    endpoint.wait_until("counted", |endpoint| endpoint.failed_clients() == heads.len() as u64);
    let problem = endpoint.server.counts.problems().pop().expect("a report line");
    assert!(problem.contains("0 replaced by newer ones") && problem.contains("4 too slow"), "{problem}");
}

#[test]
fn a_client_that_sends_slowly_is_closed_in_time() {
    let endpoint = endpoint_without_token(SHORT_TIMES);
    let began = Instant::now();
    let mut client = endpoint.connect();
    let incomplete_request = SCRAPE.as_bytes().iter().take(30);
    for byte in incomplete_request {
        if client.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(60));
        if endpoint.failed_clients() > 0 {
            break;
        }
    }
    assert!(is_closed(&mut client));
    endpoint.wait_until("given up", |endpoint| endpoint.failed_clients() == 1);
    assert_eq!(endpoint.displaced_clients(), 0);
    assert!(began.elapsed() < SHORT_TIMES.connection_timeout + SOON, "{:?}", began.elapsed());
    // The server does not wait for an endless body.
    let posted = endpoint.ask("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\nabc");
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    let chunked = endpoint.ask("GET /metrics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\nabc");
    assert!(chunked.starts_with("HTTP/1.1 200 "), "{chunked}");
}

#[test]
fn an_idle_client_does_not_block_others() {
    let limits = EndpointLimits { head_timeout: SOON, ..ENDPOINT_LIMITS };
    let endpoint = endpoint_without_token(limits);
    let mut silent: Vec<Client> = (0..3 * limits.connections).map(|_| endpoint.connect()).collect();
    for _ in 0..5 {
        endpoint.check_answer_at_once(limits);
    }
    endpoint.wait_until("excess connections are displaced", |endpoint| {
        endpoint.displaced_clients() >= 2 * limits.connections as u64
    });
    assert!(is_closed(&mut silent[0]), "the oldest is displaced");
    drop(silent);
    endpoint.check_answer_at_once(limits);
}

#[test]
fn a_client_that_never_reads_is_closed_in_time() {
    let endpoint = endpoint_without_token(SHORT_TIMES);
    // Exceeds the kernel's buffers for a client that does not read.
    let label = "x".repeat(1_000);
    let family = Family {
        definition: outputs::metrics::ALL
            .iter()
            .find(|definition| definition.name == "tokengap.hop.chunks")
            .expect("a metric with a label"),
        points: (0..20_000).map(|n| Point { labels: vec![format!("{n}{label}")], value: Value::Int(n) }).collect(),
    };
    let is_final = true;
    endpoint.metrics.publish(vec![family], is_final);
    let began = Instant::now();
    let not_reading: Vec<Client> = (0..4)
        .map(|_| {
            let mut client = endpoint.connect();
            client.write_all(SCRAPE.as_bytes()).expect("asked");
            client
        })
        .collect();
    endpoint.wait_until("given up", |endpoint| endpoint.failed_clients() == 4);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(not_reading);
    endpoint.metrics.publish(Vec::new(), is_final);
    endpoint.check_answer_at_once(ENDPOINT_LIMITS);
}

#[test]
fn a_half_closed_client_is_answered() {
    let endpoint = endpoint_without_token(ENDPOINT_LIMITS);
    let mut client = endpoint.connect();
    client.write_all(SCRAPE.as_bytes()).expect("asked");
    client.shutdown(Shutdown::Write).expect("half closed");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // A client that disconnects early causes no report.
    for part in [0, 5, SCRAPE.len()] {
        let mut client = endpoint.connect();
        client.write_all(&SCRAPE.as_bytes()[..part]).expect("begun");
        client.shutdown(Shutdown::Both).ok();
    }
    endpoint.check_answer_at_once(ENDPOINT_LIMITS);
    assert_eq!(endpoint.server.counts.problems(), Vec::<String>::new());
}
