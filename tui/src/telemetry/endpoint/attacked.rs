//! Slow, silent and malformed clients: other clients are still answered, and refused connections are counted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream as Client};
use std::time::Instant;

use trace::metrics::{Family, Point, Value};

use super::super::scrapes::{Answers, pair};
use super::*;

/// The default limits, with shorter times.
const QUICK: Bounds = Bounds {
    head: Duration::from_millis(400),
    whole: Duration::from_millis(1_200),
    ..BOUNDS
};
/// Longer than any of the times above, but much shorter than the sum over all clients.
const SOON: Duration = Duration::from_secs(10);

struct Endpoint {
    at: SocketAddr,
    answers: Answers,
    refused: Arc<Refused>,
}

fn endpoint(bounds: Bounds) -> Endpoint {
    let (answers, questions) = pair();
    answers.give(Vec::new(), true);
    let (at, refused) = serve(SocketAddr::from(([127, 0, 0, 1], 0)), questions, bounds).expect("a free port");
    Endpoint { at, answers, refused }
}

impl Endpoint {
    fn connect(&self) -> Client {
        let client = Client::connect(self.at).expect("it listens");
        client.set_read_timeout(Some(SOON)).expect("set");
        client
    }

    fn ask(&self, request: &str) -> String {
        let mut client = self.connect();
        client.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("it answers and closes");
        answer
    }

    /// Scrapes and checks that the response arrives within `head`, so that no other client delays it.
    fn answers_at_once(&self, bounds: Bounds) {
        let began = Instant::now();
        let answer = self.ask(SCRAPE);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(began.elapsed() < bounds.head, "{:?}", began.elapsed());
    }

    fn counted(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.refused.displaced), of(&self.refused.failed))
    }

    fn until(&self, what: &str, is: impl Fn((u64, u64)) -> bool) {
        let end = Instant::now() + SOON;
        while !is(self.counted()) {
            assert!(Instant::now() < end, "{what}: {:?}", self.counted());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";

/// Returns whether the other side has closed, so that nothing more can be read.
fn is_closed(client: &mut Client) -> bool {
    let mut rest = Vec::new();
    let ended = client.read_to_end(&mut rest);
    !ended.is_err_and(|error| {
        matches!(
            error.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        )
    })
}

#[test]
fn only_metrics_are_there_and_only_to_be_read() {
    let here = endpoint(BOUNDS);
    let metrics = here.ask(SCRAPE);
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    let elsewhere = here.ask("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(elsewhere.starts_with("HTTP/1.1 404 "), "{elsewhere}");
    let posted = here.ask("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    assert!(
        posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD"),
        "{posted}"
    );
    assert_eq!(here.refused.trouble(), None);
}

#[test]
fn a_head_that_is_too_long_or_no_http_is_refused_and_counted() {
    let here = endpoint(BOUNDS);
    let heads = [
        format!(
            "GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n",
            "y".repeat(2 * BOUNDS.request_bytes)
        ),
        format!("GET /{} HTTP/1.1\r\n\r\n", "y".repeat(8 * BOUNDS.request_bytes)),
        format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(2_000)),
        "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(),
    ];
    for head in &heads {
        let mut client = here.connect();
        // The server may hang up before reading everything.
        client.write_all(head.as_bytes()).ok();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).ok();
        assert!(
            !answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    here.until("counted", |(_, failed)| failed == heads.len() as u64);
    let said = here.refused.trouble().expect("it is told");
    assert!(
        said.contains("0 for newer ones") && said.contains("4 that were"),
        "{said}"
    );
}

#[test]
fn who_sends_a_byte_now_and_then_is_given_up_in_time() {
    let here = endpoint(QUICK);
    let began = Instant::now();
    let mut client = here.connect();
    let drips = SCRAPE.as_bytes().iter().take(30);
    for byte in drips {
        if client.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(60));
        if here.counted().1 > 0 {
            break;
        }
    }
    assert!(is_closed(&mut client));
    here.until("given up", |counted| counted == (0, 1));
    assert!(began.elapsed() < QUICK.whole + SOON, "{:?}", began.elapsed());
    // The server does not wait for an endless body.
    let posted = here.ask("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\nabc");
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
    let asked = here.ask("GET /metrics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\nabc");
    assert!(asked.starts_with("HTTP/1.1 200 "), "{asked}");
}

#[test]
fn who_says_nothing_keeps_nobody_out() {
    let bounds = Bounds { head: SOON, ..BOUNDS };
    let here = endpoint(bounds);
    let mut silent: Vec<Client> = (0..3 * bounds.connections).map(|_| here.connect()).collect();
    for _ in 0..5 {
        here.answers_at_once(bounds);
    }
    here.until("as many are left as there is room for", |(displaced, _)| {
        displaced >= 2 * bounds.connections as u64
    });
    assert!(is_closed(&mut silent[0]), "the oldest has made room");
    drop(silent);
    here.answers_at_once(bounds);
}

#[test]
fn who_never_reads_its_answer_is_given_up_in_time() {
    let here = endpoint(QUICK);
    // Exceeds the kernel's buffers for a client that does not read.
    let label = "x".repeat(1_000);
    let family = || Family {
        definition: trace::metrics::ALL
            .iter()
            .find(|one| one.name == "tokengap.hop.chunks")
            .expect("a metric with a label"),
        points: (0..20_000)
            .map(|n| Point {
                labels: vec![format!("{n}{label}")],
                value: Value::Int(n),
            })
            .collect(),
    };
    here.answers.give(vec![family()], true);
    let began = Instant::now();
    let deaf: Vec<Client> = (0..4)
        .map(|_| {
            let mut client = here.connect();
            client.write_all(SCRAPE.as_bytes()).expect("asked");
            client
        })
        .collect();
    here.until("given up", |(_, failed)| failed == 4);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(deaf);
    here.answers.give(Vec::new(), true);
    here.answers_at_once(BOUNDS);
}

#[test]
fn who_has_said_all_it_will_say_is_answered() {
    let here = endpoint(BOUNDS);
    let mut client = here.connect();
    client.write_all(SCRAPE.as_bytes()).expect("asked");
    client.shutdown(Shutdown::Write).expect("half closed");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // A client that disconnects early causes no report.
    for part in [0, 5, SCRAPE.len()] {
        let mut client = here.connect();
        client.write_all(&SCRAPE.as_bytes()[..part]).expect("begun");
        client.shutdown(Shutdown::Both).ok();
    }
    here.answers_at_once(BOUNDS);
    assert_eq!(here.refused.trouble(), None);
}
