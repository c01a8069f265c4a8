//! Telemetry flags, shared by all live sources.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use outputs::export::Options;
use session::telemetry::{AccessToken, MetricsOptions, PushOptions};

use crate::named_file;

use super::{parse_duration, parse_size, to_nanoseconds};

/// Flags for exporting metrics and spans during the run.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
#[expect(clippy::doc_markdown, reason = "doc comments are the text of --help")]
pub(crate) struct TelemetryArgs {
    /// Serve the run at http://ADDR: /metrics for Prometheus, /report, /healthz, /recording for `tokengap watch`, and /events.
    /// ADDR is HOST:PORT, or only PORT for the loopback address. Another address needs --token-file. Request ids, but no text.
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// File with a token that clients must send as `Authorization: Bearer TOKEN`, except for /healthz; `openssl rand -hex 32`
    /// prints one. Other users must not be able to read the file.
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub(crate) token_file: Option<PathBuf>,

    /// Serve the run without a token to everybody who can reach the address of --metrics.
    #[arg(long, requires = "metrics", conflicts_with = "token_file")]
    pub(crate) insecure: bool,

    /// Maximum size of the past of all engines together, compressed and in memory, that new clients of /recording and /events get
    /// before live data.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = parse_size, requires = "metrics")]
    pub(crate) metrics_past: u64,

    /// Keep serving the final metrics for this long after the run, so that the last scrape equals the report.
    #[arg(long, value_name = "T", value_parser = parse_duration, requires = "metrics")]
    pub(crate) metrics_linger: Option<Duration>,

    /// Push findings and requests as spans, and metrics, to an OpenTelemetry collector or any receiver of OTLP over HTTP, as
    /// JSON: http://HOST:4318. OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are honoured.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    /// Requests exported as spans. Findings are always exported.
    #[arg(long, value_enum, default_value_t = SpanRequests::Slow, requires = "otlp")]
    pub(crate) otlp_requests: SpanRequests,

    /// A request is slow if its first token waited at least this long between scheduler and tokenizer.
    #[arg(long, value_name = "T", value_parser = parse_duration, default_value = "1s", requires = "otlp")]
    pub(crate) otlp_slower_than: Duration,

    /// Interval between pushes of metrics.
    #[arg(long, value_name = "T", value_parser = parse_duration, default_value = "15s", requires = "otlp")]
    pub(crate) otlp_interval: Duration,

    /// Maximum bytes of spans sent per minute. Beyond it, spans are dropped and counted until the minute ends. Metrics are
    /// always sent.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64MiB", requires = "otlp")]
    pub(crate) otlp_rate: u64,

    /// Maximum bytes queued while the receiver does not accept them. Beyond it, spans are dropped and counted.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "8MiB", requires = "otlp")]
    pub(crate) otlp_queue: u64,
}

impl TelemetryArgs {
    /// Options of the endpoint; `None` without --metrics. Fails if other machines can reach its address without a token, unless --insecure
    /// permits that. Reads the token, so it must be called before the confinement, which may make the file unreadable.
    pub(crate) fn endpoint_options(&self) -> anyhow::Result<Option<MetricsOptions>> {
        let Some(address) = self.metrics else { return Ok(None) };
        let needs_token = !address.ip().is_loopback() && !self.insecure;
        ensure!(
            !needs_token || self.token_file.is_some(),
            "{address} is reachable from other machines: use --token-file FILE (`openssl rand -hex 32 > FILE; chmod 600 FILE`), or serve on 127.0.0.1; --insecure serves everybody"
        );
        let token = match &self.token_file {
            Some(path) => Some(AccessToken::read_opened_file(path, named_file::open(path))?),
            None => None,
        };
        Ok(Some(MetricsOptions { address, token, past_bytes: self.metrics_past as usize }))
    }

    /// Options of the OTLP push; `None` if nothing is pushed.
    pub(crate) fn push_options(&self) -> Option<PushOptions> {
        let url = self.otlp.clone()?;
        // Requests that lost tokens are always pushed.
        let mut exported = Options { losing: true, ..Options::default() };
        if self.otlp_requests == SpanRequests::Slow {
            exported.slow_ns = Some(to_nanoseconds(self.otlp_slower_than));
        }
        Some(PushOptions {
            url,
            requests: if self.otlp_requests == SpanRequests::None { None } else { Some(exported) },
            interval: self.otlp_interval,
            bytes_per_minute: self.otlp_rate,
            queue_bytes: self.otlp_queue,
        })
    }

    /// Waits for the time of `--metrics-linger`, while other threads serve the final metrics. Ends early once `asked_to_end` returns true.
    pub(crate) fn serve_until_linger_ends(&self, asked_to_end: impl Fn() -> bool) {
        /// Interval at which `asked_to_end` is asked.
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let Some(linger) = self.metrics_linger else { return };
        let began = Instant::now();
        while began.elapsed() < linger && !asked_to_end() {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Requests exported as spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SpanRequests {
    /// Slow requests (--otlp-slower-than), and those that lost tokens.
    Slow,
    /// All requests, some kilobytes each.
    All,
    /// No requests.
    None,
}

/// Parses the address to serve at. A port alone is one of 127.0.0.1.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    const HINT: &str = "expected an address like 9464, 127.0.0.1:9464, [::1]:9464 or 0.0.0.0:9464";
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    if text.starts_with(':') {
        return Err(format!("{text:?} has no listening address; {HINT}"));
    }
    // A name of this machine may have several addresses: the first is the one that its resolver prefers.
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{error}; {HINT}"))?;
    addresses.next().ok_or_else(|| format!("{text:?} has no address; {HINT}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        telemetry: TelemetryArgs,
    }

    #[test]
    fn metrics_beyond_loopback_need_a_token_or_consent() {
        let open = |line: &[&str]| {
            let args = Line::parse_from(["metrics"].iter().chain(line)).telemetry;
            args.endpoint_options()
                .map(|options| options.expect("--metrics").token.is_some())
                .map_err(|e| format!("{e:#}"))
        };
        let token = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(token.path(), "secret").expect("written");
        let token = token.path().to_str().expect("UTF-8");
        for address in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0"] {
            let refused = open(&["--metrics", address]).unwrap_err();
            assert!(refused.contains("--token-file FILE") && refused.contains("--insecure"), "{refused}");
            assert_eq!(open(&["--metrics", address, "--insecure"]), Ok(false));
            assert_eq!(open(&["--metrics", address, "--token-file", token]), Ok(true));
        }
        assert_eq!(open(&["--metrics", "0"]), Ok(false));
        assert_eq!(open(&["--metrics", "0", "--token-file", token]), Ok(true));
        assert!(open(&["--metrics", "0", "--token-file", "/nowhere"]).is_err_and(|why| why.contains("/nowhere")));
    }

    #[test]
    fn a_bare_port_binds_the_loopback_address() {
        assert_eq!(parse_address("9464"), Ok(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(parse_address("0.0.0.0:1"), Ok(SocketAddr::from(([0, 0, 0, 0], 1))));
        assert!(parse_address("[::1]:9464").is_ok_and(|a| a.ip().is_loopback()));
        for text in ["", ":9464", "99999", "somewhere", "127.0.0.1"] {
            assert!(parse_address(text).is_err_and(|why| why.contains("127.0.0.1:9464")), "{text}");
        }
    }
}
