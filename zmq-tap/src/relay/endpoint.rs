//! Endpoints in the notation of ZMQ, and HTTP servers as URLs.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// `sun_path` holds 108 bytes including a terminating zero.
const MAX_PATH_BYTES: usize = 107;

/// Address of a socket: `ipc://PATH`, `ipc://@NAME`, `tcp://HOST:PORT`; or of an HTTP server: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A socket file.
    Path(PathBuf),
    /// A name in Linux's abstract namespace, without its `@`.
    Abstract(String),
    /// TCP.
    Tcp {
        /// See [`Endpoint::is_opaque`].
        is_opaque: bool,
        /// Host name, IPv4 address, or IPv6 address without brackets; `None` is every IPv4 interface (`*`).
        host: Option<String>,
        /// Port; when listening, 0 lets the kernel choose (`*`).
        port: u16,
    },
}

impl Endpoint {
    /// Whether this endpoint carries another protocol than ZMTP, whose bytes are relayed as they are. People write it `http://`, since that
    /// is the one in use.
    pub fn is_opaque(&self) -> bool {
        matches!(self, Self::Tcp { is_opaque: true, .. })
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
#[error("{text:?}{why}")]
pub struct EndpointError {
    text: String,
    /// Continues a message that begins with the text.
    why: Cow<'static, str>,
}

const NO_PORT: &str =
    " has no port: write tcp://host:port or http://host:port, and an IPv6 address in brackets: tcp://[::1]:5555";

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        parse_endpoint(text).map_err(|why| EndpointError { text: text.into(), why })
    }
}

/// Parses an endpoint. The error continues a message that begins with the text.
fn parse_endpoint(endpoint_text: &str) -> Result<Endpoint, Cow<'static, str>> {
    const UNKNOWN_SCHEME: &str =
        " is not an endpoint: write ipc:///path, ipc://@name, tcp://host:port or http://host:port";
    let (scheme, address) = endpoint_text.split_once("://").ok_or(UNKNOWN_SCHEME)?;
    match scheme {
        "ipc" => parse_ipc_path(address),
        "tcp" => {
            let address = parse_tcp_address(address)?;
            Ok(Endpoint::Tcp { is_opaque: false, host: address.host, port: address.port })
        }
        "http" => {
            let server = address.strip_suffix('/').unwrap_or(address);
            if server.contains(['/', '?', '#', '@']) {
                return Err(" has a path, but the relay passes all paths: write http://host:port".into());
            }
            let address = parse_tcp_address(server)?;
            Ok(Endpoint::Tcp { is_opaque: true, host: address.host, port: address.port })
        }
        "https" => {
            Err(": encrypted traffic cannot be read; put the relay behind the proxy that terminates TLS, and write http://host:port".into())
        }
        _ => Err(UNKNOWN_SCHEME.into()),
    }
}

/// A host and port, as [`Endpoint::Tcp`] has them.
struct TcpAddress {
    host: Option<String>,
    port: u16,
}

/// Parses `HOST:PORT`, where both may be `*`. The error continues a message that begins with the endpoint.
fn parse_tcp_address(address: &str) -> Result<TcpAddress, Cow<'static, str>> {
    if address.contains(';') {
        return Err(": use an address, not an interface or a source address".into());
    }
    let (host, port) = address.rsplit_once(':').ok_or(NO_PORT)?;
    // Port 0 lets the kernel choose.
    let port = if port == "*" { 0 } else { port.parse().map_err(|_| NO_PORT)? };
    if host == "*" {
        return Ok(TcpAddress { host: None, port });
    }
    if let Some(bracketed) = host.strip_prefix('[') {
        let ipv6_address = bracketed.strip_suffix(']').ok_or(NO_PORT)?;
        return Ok(TcpAddress { host: Some(ipv6_address.to_owned()), port });
    }
    // Without brackets, the end of an IPv6 address is ambiguous.
    if host.is_empty() || host.contains(':') {
        return Err(NO_PORT.into());
    }
    Ok(TcpAddress { host: Some(host.to_owned()), port })
}

/// Parses the path of a socket file, or an abstract name after `@`.
fn parse_ipc_path(path: &str) -> Result<Endpoint, Cow<'static, str>> {
    let length = path.len();
    if matches!(path, "" | "*" | "@") {
        Err(" has no path: use the engine's socket path, for example ipc:///tmp/tmpab12cd".into())
    } else if length > MAX_PATH_BYTES {
        Err(format!(" is too long for a socket: {length} bytes exceed the limit of {MAX_PATH_BYTES}").into())
    } else if let Some(name) = path.strip_prefix('@') {
        Ok(Endpoint::Abstract(name.into()))
    } else {
        Ok(Endpoint::Path(path.into()))
    }
}

impl fmt::Display for Endpoint {
    /// Writes the endpoint in the notation in which it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "ipc://{}", path.display()),
            Self::Abstract(name) => write!(f, "ipc://@{name}"),
            Self::Tcp { is_opaque, host, port } => {
                f.write_str(if *is_opaque { "http://" } else { "tcp://" })?;
                let host = host.as_deref().unwrap_or("*");
                let is_ipv6 = host.contains(':');
                if is_ipv6 {
                    write!(f, "[{host}]:")?;
                } else {
                    write!(f, "{host}:")?;
                }
                if *port == 0 { f.write_str("*") } else { write!(f, "{port}") }
            }
        }
    }
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
