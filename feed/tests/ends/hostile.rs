//! Invalid or hostile peers are bounded in number, time and message size. Valid watchers continue, and refused peers are counted.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use feed::{Key, PublishOptions};

use crate::fixture::{Source, Watched, options};

/// Read timeout, longer than any `patience` below.
const SOON: Duration = Duration::from_secs(10);

/// Greeting and READY of a ZMTP 3 SUB socket.
fn opening() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    bytes
}

/// Subscription to all topics.
const SUBSCRIPTION: &[u8] = b"\0\x01\x01";

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("the listener accepts");
    stream.set_read_timeout(Some(SOON)).expect("set");
    stream
}

/// Whether the other end closes the connection within [`SOON`].
fn is_ended(peer: &mut TcpStream) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    let read = peer.read_to_end(&mut Vec::new());
    !read.is_err_and(|error| matches!(error.kind(), WouldBlock | TimedOut))
}

/// A peer that sends a greeting and READY as a SUB socket, then `request`.
fn subscriber(source: &Source, request: &[u8]) -> TcpStream {
    let mut peer = connect(source.publisher.status().address);
    peer.write_all(&[&opening(), request].concat()).expect("written");
    peer
}

/// A source with one watcher.
fn watched(options: PublishOptions) -> (Source, Watched) {
    let mut source = Source::new(options);
    let watched = source.joined(None);
    (source, watched)
}

/// Checks that new records reach the watcher without loss.
fn assert_records_arrive(source: &mut Source, watched: &mut Watched) {
    let before = watched.records;
    watched.wait_until("new records", Some(source), |w| w.records > before);
    assert_eq!((watched.reader.lost(), watched.down.len()), (0, 0));
}

#[test]
fn invalid_peers_are_rejected_and_use_no_slot() {
    let mut source = Source::new(options(None));
    let address = source.publisher.status().address;
    let opening = opening();
    let greeting = &opening[..64];
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 4_096],
        &[0; 4_096],
        // A greeting, then a frame of 2^63 bytes.
        &[greeting, &[2, 0x80, 0, 0, 0, 0, 0, 0, 0]].concat(),
        b"",
    ];
    for bytes in garbage {
        let mut peer = connect(address);
        peer.write_all(bytes).ok();
        if bytes.is_empty() {
            peer.shutdown(Shutdown::Write).expect("half closed");
        }
        let begun = Instant::now();
        let mut received = Vec::new();
        // The source closes the connection at once, or after `patience`.
        peer.read_to_end(&mut received).ok();
        assert!(begun.elapsed() < Duration::from_secs(5), "{bytes:?}");
        assert!(received.len() < 200, "only a greeting is sent");
    }
    assert_eq!(source.publisher.status().watchers, 0);
    // A peer that closed the connection itself does not count as refused.
    assert_eq!(source.publisher.status().refused, 4);
    let _watched = source.joined(None);
    assert_eq!(source.publisher.status().watchers, 1);
}

#[test]
fn connections_are_limited() {
    let mut source = Source::new(options(None));
    let mut all: Vec<Watched> = (0..3).map(|_| source.joined(None)).collect();
    let mut fourth = source.watch(None);
    fourth.wait_until("the refusal", Some(&mut source), |w| !w.down.is_empty());
    assert!(fourth.analysis.is_none() && fourth.down[0].contains("--feed-watchers"), "{:?}", fourth.down);
    assert!(source.publisher.status().refused > 0);
    all.clear();
    fourth.wait_until("a free slot", Some(&mut source), |w| w.analysis.is_some());
}

fn idle_clients_do_not_block_others(key: Option<Key>) {
    let mut source = Source::new(PublishOptions { patience: SOON, ..options(key.clone()) });
    let mut idle: Vec<TcpStream> = (0..20).map(|_| connect(source.publisher.status().address)).collect();
    let begun = Instant::now();
    let watched = source.joined(key);
    assert!(begun.elapsed() < SOON && watched.down.is_empty(), "{:?}", watched.down);
    assert!(source.publisher.status().refused >= 17, "{:?}", source.publisher.status());
    assert!(is_ended(&mut idle[0]), "the oldest idle connection is closed");
}

#[test]
fn a_flood_from_one_address_does_not_displace_the_handshake_of_another() {
    let options = PublishOptions { address: SocketAddr::from(([0_u16; 8], 0)), patience: SOON, ..options(None) };
    if std::net::TcpListener::bind(options.address).is_err() || std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("SKIPPED: no IPv6, so there is no second address");
        return;
    }
    let source = Source::new(options);
    let port = source.publisher.status().address.port();
    let mut slow = connect(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)));
    // Each connection is accepted before the next one, so that the order of their age is known.
    let mut flood = Vec::new();
    for _ in 0..20 {
        let mut peer = connect(SocketAddr::from(([127, 0, 0, 1], port)));
        peer.read_exact(&mut [0; 10]).expect("the source's greeting");
        flood.push(peer);
    }
    assert!(is_ended(&mut flood[0]), "the flood displaces itself");
    slow.write_all(&opening()).expect("written");
    let mut greeting_and_ready = [0; 64 + 5];
    slow.read_exact(&mut greeting_and_ready).expect("the slow peer's handshake goes on");
}

#[test]
fn an_idle_client_does_not_block_others() {
    idle_clients_do_not_block_others(None);
}

#[cfg(feature = "encryption")]
#[test]
fn an_idle_client_without_the_key_does_not_block_others() {
    idle_clients_do_not_block_others(Some(Key::new([9; 32])));
}

#[test]
fn a_client_that_sends_slowly_is_closed_in_time() {
    let (mut source, mut watched) = watched(options(None));
    let mut peer = connect(source.publisher.status().address);
    let begun = Instant::now();
    for byte in opening() {
        if peer.write_all(&[byte]).is_err() || source.publisher.status().refused > 0 {
            break;
        }
        source.step(1);
        thread::sleep(Duration::from_millis(40));
    }
    assert!(is_ended(&mut peer) && begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(source.publisher.status().refused, 1);
    assert_records_arrive(&mut source, &mut watched);
}

#[test]
fn excessive_requests_are_rejected() {
    let (mut source, mut watched) = watched(options(None));
    let topics = SUBSCRIPTION.repeat(17);
    let long = [SUBSCRIPTION, b"\x02\0\0\0\0\0\0\x01\x02"].concat();
    let invalid: [&[u8]; 5] = [
        &topics,
        // Frames of 258 and of 2^40 bytes, a message of many frames, a command where none is allowed.
        &long,
        b"\x02\0\0\x01\0\0\0\0\0",
        &b"\x01\x01\x05".repeat(3),
        b"\x05\x01\x05",
    ];
    for (done, request) in (1..).zip(invalid) {
        let mut peer = subscriber(&source, request);
        assert!(is_ended(&mut peer), "{request:?}");
        let end = Instant::now() + SOON;
        while source.publisher.status().refused < done {
            assert!(Instant::now() < end, "{request:?} is not counted: {:?}", source.publisher.status());
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_records_arrive(&mut source, &mut watched);
}

/// Constant resubscription costs at most one state a second; replies to pings wait in the same bounded queue.
#[test]
fn a_busy_client_does_not_block_others() {
    let (mut source, mut watched) = watched(options(None));
    let mut peer = subscriber(&source, SUBSCRIPTION);
    peer.set_write_timeout(Some(Duration::from_millis(50))).expect("set");
    let request = [b"\0\x07\x01stream\0\x07\0stream".as_slice(), b"\x04\x09\x04PING\0\x0aab"].concat().repeat(500);
    let (begun, mut ended) = (Instant::now(), false);
    while !ended {
        assert!(begun.elapsed() < SOON, "{:?}", source.publisher.status());
        source.step(1);
        ended = peer.write_all(&request).is_err_and(|error| {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            matches!(error.kind(), BrokenPipe | ConnectionReset)
        });
        watched.receive();
        // A watcher's queue is sized for an engine's output, not for a tight loop.
        thread::sleep(Duration::from_millis(1));
    }
    assert_records_arrive(&mut source, &mut watched);
    assert_eq!(source.publisher.status().refused, 1);
}

#[test]
fn a_watcher_that_never_reads_is_disconnected_after_its_queue_is_full() {
    let stall = Duration::from_millis(700);
    let (mut source, mut watched) = watched(PublishOptions { stall, queue_bytes: 4 << 20, ..options(None) });
    let _stalled = [(); 2].map(|()| subscriber(&source, SUBSCRIPTION));
    let begun = Instant::now();
    while source.publisher.status().refused < 2 {
        assert!(begun.elapsed() < 2 * SOON, "{:?}", source.publisher.status());
        source.send_incompressible();
        source.step(1);
        watched.receive();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(begun.elapsed() > stall);
    watched.wait_until("one watcher remains", Some(&mut source), |_| true);
    assert_eq!(source.publisher.status().watchers, 1);
    assert_records_arrive(&mut source, &mut watched);
}

#[test]
fn a_half_closed_peer_is_disconnected() {
    let (mut source, mut watched) = watched(options(None));
    let mut peer = subscriber(&source, SUBSCRIPTION);
    peer.shutdown(Shutdown::Write).expect("half closed");
    assert!(is_ended(&mut peer));
    assert_records_arrive(&mut source, &mut watched);
    assert_eq!(source.publisher.status().refused, 0);
}
