//! Shared test helpers: relays in temporary folders, ZMTP bytes, and waiting with a timeout.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zmq_tap::relay::{Endpoint, Observed, Pair, Payload, Relay, RelayOptions};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A temporary folder with a relay from `in.sock` to `out.sock`.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) relay: Relay,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(RelayOptions::default())
    }

    pub(crate) fn with(options: RelayOptions) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pair = pair(folder.path());
        let relay = Relay::start(vec![pair], options).expect("the relay starts");
        Self { folder, relay }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Listens at the endpoint that the relay connects to.
    pub(crate) fn upstream(&self) -> UnixListener {
        UnixListener::bind(self.path("out.sock")).expect("the upstream's socket")
    }

    /// Connects to the relay.
    pub(crate) fn sender(&self) -> UnixStream {
        UnixStream::connect(self.path("in.sock")).expect("the relay accepts")
    }

    /// A pair of streams connected through the relay. The upstream accepts no other connection.
    pub(crate) fn connect(&self) -> (UnixStream, UnixStream) {
        self.through(&self.upstream())
    }

    /// A pair of connected streams: bytes written to the first arrive at the second.
    pub(crate) fn through(&self, upstream: &UnixListener) -> (UnixStream, UnixStream) {
        let sender = self.sender();
        (sender, upstream.accept().expect("the relay connects").0)
    }

    /// Polls until `is_done` returns true for a connection's number and its observation.
    pub(crate) fn watch(&self, mut is_done: impl FnMut(u32, Observed) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            while let Some(observation) = self.relay.poll() {
                if is_done(observation.lane, observation.what) {
                    return;
                }
            }
            assert!(
                Instant::now() < until,
                "the expected observations did not arrive; counters: {:?}",
                self.relay.stats()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) fn pair(folder: &Path) -> Pair {
    let at = |name: &str| endpoint(&format!("ipc://{}", folder.join(name).display()));
    Pair { listen: at("in.sock"), upstream: at("out.sock") }
}

pub(crate) fn endpoint(text: &str) -> Endpoint {
    text.parse().expect("an endpoint")
}

/// A server on a free port, and a pair for it with another free port. `scheme` is `tcp` or `http`.
pub(crate) fn server(scheme: &str) -> (TcpListener, Pair) {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = endpoint(&format!("{scheme}://{}", server.local_addr().expect("bound")));
    (server, Pair { listen: endpoint(&format!("{scheme}://127.0.0.1:*")), upstream })
}

/// Connects to a TCP endpoint of the relay.
pub(crate) fn client(listening: &Endpoint) -> TcpStream {
    let Endpoint::Tcp { port, .. } = listening else { panic!("{listening}") };
    let client = TcpStream::connect(("127.0.0.1", *port)).expect("accepted");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    client
}

/// A relay with one TCP client connected through to the server.
pub(crate) fn through(scheme: &str, options: RelayOptions) -> (Relay, TcpStream, TcpStream) {
    let (server, pair) = server(scheme);
    let relay = Relay::start(vec![pair], options).expect("the relay starts");
    let client = client(&relay.listening()[0]);
    (relay, client, server.accept().expect("connected").0)
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn is_whole_message(what: &Observed) -> bool {
    matches!(what, Observed::Frame { payload: Payload::Whole(_), .. })
}

/// A handshake and messages with these bodies.
pub(crate) fn stream(bodies: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    std::iter::once(handshake()).chain(bodies.into_iter().map(|body| message(&body))).flatten().collect()
}

/// The next `length` bytes of a stream.
pub(crate) fn read(stream: &mut impl Read, length: usize) -> Vec<u8> {
    let mut received = vec![0; length];
    stream.read_exact(&mut received).expect("relayed");
    received
}

/// Bytes that a ZMTP 3.1 PUSH socket sends before its first message.
pub(crate) fn handshake() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x04PUSH";
    bytes.extend_from_slice(&[4, ready.len() as u8]);
    bytes.extend_from_slice(ready);
    bytes
}

/// A message of one part.
pub(crate) fn message(body: &[u8]) -> Vec<u8> {
    part(body, false)
}

pub(crate) fn part(body: &[u8], more: bool) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(short) => vec![u8::from(more), short],
        Err(_) => [&[2 | u8::from(more)][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// Pseudorandom bytes, the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length).map(|_| (next() >> 32) as u8).collect()
}

pub(crate) fn read_all(mut stream: UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the stream ends in order");
    all
}

/// Writes from a separate thread, so that back-pressure does not block the test.
pub(crate) fn write_all(mut stream: UnixStream, bytes: Vec<u8>) -> std::thread::JoinHandle<UnixStream> {
    std::thread::spawn(move || {
        stream.write_all(&bytes).expect("the relay accepts the bytes");
        stream
    })
}

/// Writes until the socket has accepted nothing for a while. Returns the number of bytes written.
pub(crate) fn fill(stream: &mut UnixStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).expect("non-blocking");
    let (mut sent, mut quiet) = (0, 0);
    while quiet < 20 {
        if let Ok(count) = stream.write(&bytes[sent..]) {
            (sent, quiet) = (sent + count, 0);
        } else {
            std::thread::sleep(Duration::from_millis(5));
            quiet += 1;
        }
    }
    stream.set_nonblocking(false).expect("blocking");
    sent
}
