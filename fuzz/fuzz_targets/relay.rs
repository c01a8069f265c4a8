//! The relay between two real sockets: bytes pass unchanged in both directions, however they are split and whichever end closes first. The
//! reported messages are those that a scanner finds in the same bytes.
#![no_main]

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use zmq_tap::relay::{Direction, Observed, Pair, Payload, Relay, RelayOptions};
use zmq_tap::zmtp::{Mark, Scanner};

struct Bench {
    relay: Relay,
    upstream: UnixListener,
    listen: SocketAddr,
}

static BENCH: LazyLock<Mutex<Bench>> = LazyLock::new(|| {
    let name = |end: &str| format!("tokengap-fuzz-{}-{end}", std::process::id());
    let address = |end: &str| SocketAddr::from_abstract_name(name(end)).expect("a name");
    let endpoint = |end: &str| format!("ipc://@{}", name(end)).parse().expect("an endpoint");
    let upstream = UnixListener::bind_addr(&address("out")).expect("bound");
    let pair = Pair { listen: endpoint("in"), upstream: endpoint("out") };
    // Small limits, so that inputs reach all of them.
    let options = RelayOptions {
        buffer_bytes: 4 << 10,
        block_bytes: 8 << 10,
        max_frame_bytes: 4 << 10,
        max_parts: 3,
        ..RelayOptions::default()
    };
    let relay = Relay::start(vec![pair], options).expect("the relay starts");
    Mutex::new(Bench { relay, upstream, listen: address("in") })
});

/// Writes `bytes` in pieces and shuts down the write side, while reading the other direction to its end.
fn exchange(mut stream: UnixStream, bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().expect("cloned");
        scope.spawn(move || {
            for part in bytes.chunks(piece) {
                writer.write_all(part).expect("written");
            }
            writer.shutdown(Shutdown::Write).expect("half closed");
        });
        stream.read_to_end(&mut received).expect("read");
    });
    received
}

/// The messages that a scanner finds; `None` if it loses the framing, because the relay may resynchronize elsewhere.
fn messages(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut scanner, mut messages, mut message) = (Scanner::from_greeting(), Vec::new(), Vec::new());
    let mut framed = true;
    scanner.feed(bytes, &mut |mark| match mark {
        Mark::Frame { span, more } => {
            message.extend_from_slice(&bytes[span.body as usize..span.end as usize]);
            if !more {
                messages.push(std::mem::take(&mut message));
            }
        }
        Mark::Garbage { .. } => framed = false,
        _ => {}
    });
    framed.then_some(messages)
}

/// Messages that the relay reports for one connection, in each direction.
fn reported(relay: &Relay) -> [Vec<(u64, Payload)>; 2] {
    let mut reported = [Vec::new(), Vec::new()];
    loop {
        match relay.poll().map(|observation| observation.what) {
            Some(Observed::Frame { direction, bytes, payload, .. }) => {
                reported[usize::from(direction == Direction::Backward)].push((bytes, payload));
            }
            Some(Observed::Closed { .. }) => return reported,
            Some(_) => {}
            None => std::thread::yield_now(),
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let [forward_piece, backward_piece, share, bytes @ ..] = input else { return };
    let (forth, back) = bytes.split_at(bytes.len() * usize::from(*share) / 255);
    // Limit the number of writes, which dominate the run time.
    let piece = |byte: &u8, bytes: &[u8]| usize::from(*byte) + 1 + bytes.len() / 32;
    let bench = BENCH.lock().expect("the lock is not poisoned");
    let sender = UnixStream::connect_addr(&bench.listen).expect("the relay accepts");
    let receiver = bench.upstream.accept().expect("the relay connects").0;
    let (received_back, received_forth) = std::thread::scope(|scope| {
        let backward = scope.spawn(|| exchange(receiver, back, piece(backward_piece, back)));
        (exchange(sender, forth, piece(forward_piece, forth)), backward.join().expect("no panic"))
    });
    assert!(received_forth == forth && received_back == back, "the received bytes equal the sent ones");
    for (reported, bytes) in reported(&bench.relay).into_iter().zip([forth, back]) {
        let Some(messages) = messages(bytes) else { continue };
        assert_eq!(reported.len(), messages.len());
        for ((length, payload), message) in reported.into_iter().zip(messages) {
            assert_eq!(length, message.len() as u64);
            match payload {
                Payload::Whole(body) => assert!(body == message),
                Payload::Multipart(parts) => assert!(parts.concat() == message),
                Payload::NotKept(_) => {}
            }
        }
    }
});
