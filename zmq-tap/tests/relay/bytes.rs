//! Bytes must be the same on both sides, in both directions, wherever they are cut, and every message must be reported.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use proptest::prelude::*;
use trace::MonoNs;
use zmq_tap::relay::{Direction, Observed, Pair, Payload, Relay, RelayOptions};

use crate::support::{Bench, client, endpoint, handshake, noise, part, read, read_all, server, write_all};

/// Relays parts of messages with these sizes, of which the flag says that another part follows. Writes pieces with the lengths `cuts`, and
/// then the rest. The received bytes and the reported messages must be those that were sent.
fn relay_parts(parts: &[(usize, bool)], cuts: &[usize], options: RelayOptions) {
    let bench = Bench::with(options);
    let (mut sender, receiver) = bench.connect();
    let (mut stream, mut messages, mut message) = (handshake(), Vec::new(), Vec::new());
    for (index, (size, more)) in parts.iter().enumerate() {
        let (body, more) = (noise(index as u64, *size), *more && index + 1 < parts.len());
        stream.extend(part(&body, more));
        message.push(body);
        if !more {
            messages.push(std::mem::take(&mut message));
        }
    }
    let reading = std::thread::spawn(move || read_all(receiver));
    let mut rest = &stream[..];
    for cut in cuts {
        let (now, later) = rest.split_at(rest.len().min(*cut));
        sender.write_all(now).expect("written");
        rest = later;
    }
    sender.write_all(rest).expect("written");
    drop(sender);
    let (mut reported, mut last_written) = (Vec::new(), MonoNs(0));
    bench.watch(|_, what| {
        match what {
            Observed::Frame { direction, seq, read_at, written_at, bytes, payload } => {
                let parts = match payload {
                    Payload::Whole(body) => vec![body],
                    Payload::Multipart(parts) => parts,
                    Payload::NotKept(why) => panic!("{why:?}"),
                };
                let length = parts.iter().map(|part| part.len() as u64).sum();
                assert_eq!((direction, seq, bytes), (Direction::Forward, reported.len() as u64, length));
                assert!(read_at <= written_at && last_written <= written_at);
                last_written = written_at;
                reported.push(parts);
            }
            Observed::Closed { .. } => return true,
            Observed::Opened(_) => {}
            other => panic!("{other:?}"),
        }
        false
    });
    assert!(reported == messages, "the reported messages equal the sent ones");
    assert!(reading.join().expect("the reader ends") == stream, "the received bytes equal the sent ones");
}

#[test]
fn a_stream_is_relayed_unchanged_and_its_messages_are_reported_in_order() {
    let sizes = [0, 1, 255, 256, 8_192, 70_000, 1_500_000, 3, 131_072, 2_500_000, 17];
    relay_parts(&sizes.map(|size| (size, false)), &[], RelayOptions::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_stream_is_relayed_unchanged_for_any_write_boundaries(
        parts in prop::collection::vec((0_usize..90_000, any::<bool>()), 1..12),
        cuts in prop::collection::vec(1_usize..60_000, 1..40),
        buffer_bytes in 4096_usize..200_000,
    ) {
        relay_parts(&parts, &cuts, RelayOptions { buffer_bytes, block_bytes: 1, ..RelayOptions::default() });
    }
}

#[test]
fn each_direction_closes_independently() {
    let bench = Bench::new();
    let (mut sender, mut receiver) = bench.connect();
    sender.write_all(b"all of it").expect("written");
    sender.shutdown(Shutdown::Write).expect("half closed");
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).expect("the end is relayed");
    assert_eq!(received, b"all of it");
    // The other direction must still work.
    let reply = noise(5, 3_000_000);
    let replying = write_all(receiver, reply.clone());
    assert!(read(&mut sender, reply.len()) == reply);
    drop(replying.join().expect("the reply was written"));
    assert_eq!(read_all(sender), b"", "then this direction ends too");
}

#[test]
fn tcp_and_abstract_names_are_relayed_too() {
    let (receiver, tcp) = server("tcp");
    let name = format!("tokengap-test-{}", std::process::id());
    let address = |name: &str| SocketAddr::from_abstract_name(name).expect("a name");
    let hidden = UnixListener::bind_addr(&address(&name)).expect("bound");
    let listen = endpoint(&format!("ipc://@{name}-in"));
    let pairs = vec![
        Pair { listen: endpoint("tcp://*:*"), ..tcp },
        Pair { listen, upstream: endpoint(&format!("ipc://@{name}")) },
    ];
    let relay = Relay::start(pairs, RelayOptions::default()).expect("the relay starts");

    let mut sender = client(&relay.listening()[0]);
    sender.write_all(&noise(1, 40_000)).expect("written");
    sender.shutdown(Shutdown::Write).expect("half closed");
    let mut received = Vec::new();
    receiver.accept().expect("connected").0.read_to_end(&mut received).expect("read");
    assert!(received == noise(1, 40_000));

    let mut sender = UnixStream::connect_addr(&address(&format!("{name}-in"))).expect("accepted");
    sender.write_all(&noise(2, 40_000)).expect("written");
    drop(sender);
    assert!(read_all(hidden.accept().expect("connected").0) == noise(2, 40_000));
    relay.stop();
}
