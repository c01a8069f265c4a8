//! The flags of what is told to other systems, the same on every live source.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::cli::duration;

/// What to tell to other systems while the run goes on.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub(crate) struct TelemetryArgs {
    /// Serve metrics for Prometheus at http://ADDR/metrics. ADDR is HOST:PORT, or a PORT of this machine's loopback. There is
    /// no authentication: numbers only, no request ids, no text.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Go on serving the final metrics for this long after the end, so that a last scrape holds what the report says.
    #[arg(long, value_name = "T", value_parser = duration, requires = "metrics")]
    pub(crate) metrics_linger: Option<Duration>,
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
