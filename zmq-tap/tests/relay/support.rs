//! Shared test helpers: relays in temporary folders, ZMTP bytes, and waiting with a timeout.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zmq_tap::relay::{Observation, Options, Pair, Payload, Relay};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A temporary folder with a relay from `in.sock` to `out.sock`.
pub(crate) struct Bench {
    pub(crate) folder: TempDir,
    pub(crate) relay: Relay,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
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

    /// Polls until `is_done` returns true.
    pub(crate) fn watch(&self, mut is_done: impl FnMut(Observation) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            while let Some(observation) = self.relay.poll() {
                if is_done(observation) {
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
    let at = |name: &str| format!("ipc://{}", folder.join(name).display()).parse().expect("an endpoint");
    Pair { listen: at("in.sock"), upstream: at("out.sock") }
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn is_whole_message(observation: &Observation) -> bool {
    matches!(observation, Observation::Frame { payload: Payload::Whole(_), .. })
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
