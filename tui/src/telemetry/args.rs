//! Telemetry flags, shared by all live sources.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::cli::duration;
use crate::sink::size;

/// What to tell to other systems while the run goes on.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
#[expect(
    clippy::doc_markdown,
    reason = "variables of the environment are help for a terminal"
)]
pub(crate) struct TelemetryArgs {
    /// Serve metrics for Prometheus at http://ADDR/metrics. ADDR is HOST:PORT, or a PORT of this machine's loopback. There is
    /// no authentication: numbers only, no request ids, no text.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Go on serving the final metrics for this long after the end, so that a last scrape holds what the report says.
    #[arg(long, value_name = "T", value_parser = duration, requires = "metrics")]
    pub(crate) metrics_linger: Option<Duration>,

    /// Push findings and requests as spans, and metrics, to an OpenTelemetry collector or any receiver of OTLP over HTTP, as
    /// JSON: http://HOST:4318. OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are honoured.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,

    /// Which requests become spans. Findings always do.
    #[arg(long, value_enum, default_value_t = Requests::Slow, requires = "otlp")]
    pub(crate) otlp_requests: Requests,

    /// What slow means: the first token waited at least this long between scheduler and tokenizer.
    #[arg(long, value_name = "T", value_parser = duration, default_value = "1s", requires = "otlp")]
    pub(crate) otlp_slower_than: Duration,

    /// How often metrics are pushed.
    #[arg(long, value_name = "T", value_parser = duration, default_value = "15s", requires = "otlp")]
    pub(crate) otlp_interval: Duration,

    /// Bytes of spans sent in a minute, at most: when many requests are slow at once, further spans are given up until the minute
    /// is over, and counted. Metrics always go.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64MiB", requires = "otlp")]
    pub(crate) otlp_pace: u64,

    /// What may wait to be pushed while the receiver does not take it; further spans are given up, and counted.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "8MiB", requires = "otlp")]
    pub(crate) otlp_queue: u64,
}

/// Which requests are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Requests {
    /// Slow ones (--otlp-slower-than), and those that lost tokens.
    Slow,
    /// Every one: some kilobytes each.
    All,
    /// None.
    None,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    const HINT: &str = "write it like 9464, 127.0.0.1:9464, [::1]:9464 or 0.0.0.0:9464";
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    if text.starts_with(':') {
        return Err(format!("{text:?} does not say which addresses are meant; {HINT}"));
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("{error}; {HINT}"))?;
    found.next().ok_or_else(|| format!("{text:?} has no address; {HINT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_the_loopbacks() {
        assert_eq!(address("9464"), Ok(SocketAddr::from(([127, 0, 0, 1], 9464))));
        assert_eq!(address("0.0.0.0:1"), Ok(SocketAddr::from(([0, 0, 0, 0], 1))));
        assert!(address("[::1]:9464").is_ok_and(|a| a.ip().is_loopback()));
        for text in ["", ":9464", "99999", "somewhere", "127.0.0.1"] {
            assert!(address(text).is_err_and(|why| why.contains("127.0.0.1:9464")), "{text}");
        }
    }
}
