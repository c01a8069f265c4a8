//! Sender thread: sends one body after another to an OTLP/HTTP receiver, with exponential backoff up to a time limit.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use ureq::http::StatusCode;
use ureq::http::header::RETRY_AFTER;

use super::environment::Environment;
use super::queue::{Body, Queue, Signal};

/// Default timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// First pause after a failure, doubled after each further one up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// Age at which an unaccepted body is dropped.
const PATIENCE: Duration = Duration::from_mins(5);
/// Maximum number of bytes read of a response.
const ANSWER: u64 = 64 * 1024;

/// Receiver of the bodies.
pub(super) struct Sender {
    agent: ureq::Agent,
    url: String,
    headers: Vec<(String, String)>,
}

impl Sender {
    /// Creates a sender to the receiver at `url`, given without `/v1/traces`.
    pub(super) fn new(url: &str, environment: &Environment) -> anyhow::Result<Self> {
        let uri: ureq::http::Uri = url.parse().with_context(|| format!("--otlp {url}: not a URL; {HINT}"))?;
        if uri.scheme_str() == Some("https") {
            bail!("--otlp {url}: https is not supported; push to a local collector that forwards over https");
        }
        if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
            bail!("--otlp {url}: not an http URL; {HINT}");
        }
        if uri.port_u16() == Some(4317) {
            bail!("--otlp {url}: port 4317 is for OTLP over gRPC; tokengap uses OTLP over HTTP, usually on port 4318");
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(environment.timeout.unwrap_or(TIMEOUT)))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("tokengap/", env!("CARGO_PKG_VERSION")));
        Ok(Self {
            agent: config.build().new_agent(),
            url: url.trim_end_matches('/').to_owned(),
            headers: environment.headers.clone(),
        })
    }

    /// Sends bodies until the queue is closed and empty.
    pub(super) fn run(&self, queue: &Queue) {
        while let Some(body) = queue.next() {
            self.deliver(&body, queue);
        }
    }

    fn deliver(&self, body: &Body, queue: &Queue) {
        let mut pause = FIRST;
        loop {
            match self.try_once(body) {
                Ok((rejected, why)) => return queue.sent(body, rejected, &why),
                Err((named, why)) => {
                    let wait = named.unwrap_or(pause).min(PATIENCE);
                    if queue.is_closed() || body.since.elapsed() + wait > PATIENCE {
                        return queue.sent(body, body.items, &why);
                    }
                    queue.failed(&why);
                    queue.pause(wait);
                    pause = LONGEST.min(2 * pause);
                }
            }
        }
    }

    /// Number of items that the receiver rejected, and the reason. An attempt that failed is repeated after a pause, which the receiver may
    /// specify.
    fn try_once(&self, body: &Body) -> Result<(u64, String), (Option<Duration>, String)> {
        let path = match body.signal {
            Signal::Traces => "v1/traces",
            Signal::Metrics => "v1/metrics",
        };
        let to = format!("{}/{path}", self.url);
        let mut request = self.agent.post(&to).header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let sent = request.send(&body.json);
        let mut response = sent.map_err(|error| (None, format!("{to}: {error}")))?;
        let status = response.status();
        let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| retry_after(text, jiff::Timestamp::now()));
        let answer = response.body_mut().with_config().limit(ANSWER).read_to_string().unwrap_or_default();
        if status.is_success() {
            let (rejected, why) = partial_success(&answer);
            return Ok((rejected, format!("{to}: {why}")));
        }
        let first_line: String = answer.lines().next().unwrap_or_default().chars().take(200).collect();
        let why = format!("{to}: {status} {first_line}").trim_end().to_owned();
        // The OTLP specification lists these four as retryable.
        let retryable = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        if retryable.contains(&status) { Err((after, why)) } else { Ok((body.items, why)) }
    }
}

const HINT: &str = "expected a URL like http://localhost:4318";

/// Parses seconds or a date.
fn retry_after(text: &str, now: jiff::Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    Some(Duration::try_from(date.timestamp().duration_since(now)).unwrap_or_default())
}

/// Number of items the receiver rejected in a successful response, and the reason.
fn partial_success(answer: &str) -> (u64, String) {
    let Ok(answer) = serde_json::from_str::<Value>(answer) else {
        return (0, String::new());
    };
    let partial = &answer["partialSuccess"];
    let rejected = ["rejectedSpans", "rejectedDataPoints"].iter().find_map(|name| {
        let count = &partial[*name];
        count.as_u64().or_else(|| count.as_str()?.parse().ok())
    });
    (rejected.unwrap_or(0), partial["errorMessage"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn retry_after_parses_seconds_and_dates() {
        let now: jiff::Timestamp = "2015-10-21T07:28:00Z".parse().expect("a time");
        assert_eq!(retry_after("7", now), Some(Duration::from_secs(7)));
        let date = "Wed, 21 Oct 2015 07:28:30 GMT";
        assert_eq!(retry_after(date, now), Some(Duration::from_secs(30)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:00:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", now), None);
    }

    #[test]
    fn partial_success_counts_rejected_items() {
        let rejected_items = partial_success(r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}"#);
        assert_eq!(rejected_items, (3, "too old".into()));
        for no_rejection in ["", "{}", "ok", r#"{"partialSuccess":{}}"#] {
            assert_eq!(partial_success(no_rejection).0, 0, "{no_rejection}");
        }
    }

    #[test]
    fn unusable_urls_are_rejected() {
        for url in ["localhost:4318", "ftp://x", "http://", "http://localhost:4317", "https://x", "not a url"] {
            assert!(Sender::new(url, &Environment::default()).is_err(), "{url}");
        }
        assert!(Sender::new("http://collector.example/otlp/", &Environment::default()).is_ok());
    }

    #[test]
    fn an_unreachable_receiver_does_not_block_close() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
        let sender = Sender::new(&format!("http://{free}"), &Environment::default()).expect("a URL");
        let queue = Queue::new(1_000, u64::MAX);
        queue.push(Body { signal: Signal::Traces, json: b"{}".to_vec(), items: 2, since: Instant::now() });
        std::thread::scope(|scope| {
            let run = scope.spawn(|| sender.run(&queue));
            queue.close(Instant::now() + Duration::from_secs(5));
            run.join().expect("no panic");
        });
        assert_eq!(queue.pushed().spans, (0, 2));
        assert!(queue.trouble().is_some_and(|t| t.contains("v1/traces")));
    }
}
