//! Endpoints in the notation of ZMQ, and HTTP servers as URLs.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

/// `sun_path` holds 108 bytes including a terminating zero.
const LONGEST_PATH: usize = 107;

/// Address of a socket: `ipc://PATH`, `ipc://@NAME`, `tcp://HOST:PORT`; or of an HTTP server: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A socket file.
    Path(PathBuf),
    /// A name in Linux's abstract namespace, without its `@`.
    Abstract(String),
    /// TCP.
    Tcp {
        /// Host name, IPv4 address, or IPv6 address without brackets; `None` is every IPv4 interface (`*`).
        host: Option<String>,
        /// Port; when listening, 0 lets the kernel choose (`*`).
        port: u16,
    },
    /// TCP that carries HTTP instead of ZMTP; `host` and `port` as in `Tcp`.
    Http {
        /// As in `Tcp`.
        host: Option<String>,
        /// As in `Tcp`.
        port: u16,
    },
}

impl Endpoint {
    /// Whether this endpoint carries HTTP instead of ZMTP.
    pub fn speaks_http(&self) -> bool {
        matches!(self, Self::Http { .. })
    }
}

/// One hop to relay, or the client connections of an HTTP server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Address that senders, or clients, connect to. The relay listens here.
    pub listen: Endpoint,
    /// Address that the receiver, or the server, listens on. The relay connects here once for each accepted connection.
    pub upstream: Endpoint,
}

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No transport, or one that the relay does not support.
    #[error("{0:?} is not an endpoint: write ipc:///path, ipc://@name, tcp://host:port or http://host:port")]
    Transport(String),
    /// `ipc://` without a path, or with a wildcard.
    #[error("{0:?} has no path: use the engine's socket path, for example ipc:///tmp/tmpab12cd")]
    NoPath(String),
    /// Longer than a socket address allows.
    #[error("{0:?} is too long for a socket: {1} bytes exceed the limit of {LONGEST_PATH}")]
    TooLong(String, usize),
    /// The port is missing or not a number.
    #[error(
        "{0:?} has no port: write tcp://host:port or http://host:port, and an IPv6 address in brackets: tcp://[::1]:5555"
    )]
    Port(String),
    /// A source address or interface name, where only addresses are supported.
    #[error("{0:?}: use an address, not an interface or a source address")]
    Interface(String),
    /// An encrypted endpoint, which the relay cannot read.
    #[error(
        "{0:?}: encrypted traffic cannot be read; put the relay behind the proxy that terminates TLS, and write http://host:port"
    )]
    Tls(String),
    /// A URL with more than a host and a port.
    #[error("{0:?} has a path, but the relay passes all paths: write http://host:port")]
    Url(String),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            return ipc(text, path);
        }
        if text.starts_with("https://") {
            return Err(EndpointError::Tls(text.into()));
        }
        if let Some(server) = text.strip_prefix("http://") {
            let server = server.strip_suffix('/').unwrap_or(server);
            if server.contains(['/', '?', '#', '@']) {
                return Err(EndpointError::Url(text.into()));
            }
            let (host, port) = tcp(text, server)?;
            return Ok(Self::Http { host, port });
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(EndpointError::Transport(text.into()));
        };
        let (host, port) = tcp(text, address)?;
        Ok(Self::Tcp { host, port })
    }
}

fn tcp(text: &str, address: &str) -> Result<(Option<String>, u16), EndpointError> {
    let no_port = || EndpointError::Port(text.into());
    if address.contains(';') {
        return Err(EndpointError::Interface(text.into()));
    }
    let (host, port) = address.rsplit_once(':').ok_or_else(no_port)?;
    let port = match port {
        "*" => 0,
        digits => digits.parse().map_err(|_| no_port())?,
    };
    let host = match host.strip_prefix('[') {
        Some(v6) => Some(v6.strip_suffix(']').ok_or_else(no_port)?),
        None if host == "*" => None,
        // The end of a bare IPv6 address is ambiguous.
        None if host.is_empty() || host.contains(':') => return Err(no_port()),
        None => Some(host),
    };
    Ok((host.map(str::to_owned), port))
}

fn ipc(text: &str, path: &str) -> Result<Endpoint, EndpointError> {
    let length = path.len();
    if path.is_empty() || path == "*" || path == "@" {
        Err(EndpointError::NoPath(text.into()))
    } else if length > LONGEST_PATH {
        Err(EndpointError::TooLong(text.into(), length))
    } else if let Some(name) = path.strip_prefix('@') {
        Ok(Endpoint::Abstract(name.into()))
    } else {
        Ok(Endpoint::Path(path.into()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "ipc://{}", String::from_utf8_lossy(path.as_os_str().as_bytes())),
            Self::Abstract(name) => write!(f, "ipc://@{name}"),
            Self::Tcp { host, port } => address(f, "tcp", host.as_deref(), *port),
            Self::Http { host, port } => address(f, "http", host.as_deref(), *port),
        }
    }
}

fn address(f: &mut fmt::Formatter<'_>, scheme: &str, host: Option<&str>, port: u16) -> fmt::Result {
    let (open, close) = if host.is_some_and(|h| h.contains(':')) { ("[", "]") } else { ("", "") };
    write!(f, "{scheme}://{open}{}{close}:", host.unwrap_or("*"))?;
    if port == 0 { f.write_str("*") } else { write!(f, "{port}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn endpoints_round_trip_through_text() {
        for text in [
            "ipc:///tmp/tmpab12cd",
            "ipc://relative.sock",
            "ipc://@engine",
            "tcp://127.0.0.1:30233",
            "tcp://*:5555",
            "tcp://localhost:*",
            "tcp://[::1]:5555",
            "tcp://[fe80::1%eth0]:5555",
            "http://127.0.0.1:30000",
            "http://*:*",
            "http://[::1]:30000",
        ] {
            assert_eq!(text.parse::<Endpoint>().map(|endpoint| endpoint.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn an_invalid_endpoint_is_rejected_with_the_expected_form() {
        let refusal = |text: &str| text.parse::<Endpoint>().expect_err(text).to_string();
        assert!(refusal("/tmp/socket").contains("ipc:///path"));
        assert!(refusal("inproc://x").contains("tcp://host:port"));
        assert!(refusal("ipc://").contains("has no path"));
        assert!(refusal("ipc://*").contains("has no path"));
        assert!(refusal(&format!("ipc:///{}", "x".repeat(200))).contains("too long"));
        assert!(refusal("tcp://localhost").contains("no port"));
        assert!(refusal("tcp://localhost:70000").contains("no port"));
        assert!(refusal("tcp://::1:5555").contains("brackets"));
        assert!(refusal("tcp://eth0;10.0.0.1:5555").contains("interface"));
        assert!(refusal("https://localhost:443").contains("terminates TLS"));
        assert!(refusal("http://localhost:30000/generate").contains("http://host:port"));
        assert!(refusal("http://localhost").contains("no port"));
        assert_eq!("http://h:1/".parse(), "http://h:1".parse::<Endpoint>());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "(ipc://|tcp://|http://|)[ -~]{0,40}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
            }
        }
    }
}
