//! Bytes must be the same on both sides, in both directions, wherever they are cut, and every message must be reported.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use proptest::prelude::*;
use zmq_tap::relay::{Direction, Endpoint, Observation, Options, Pair, Payload, Relay};

use crate::support::{Bench, handshake, message, noise, part, read_all, write_all};

#[test]
fn a_stream_is_relayed_unchanged_and_its_messages_are_reported_in_order() {
    let bench = Bench::new();
    let (sender, receiver) = bench.connect();
    let sizes = [0, 1, 255, 256, 8_192, 70_000, 1_500_000, 3, 131_072, 2_500_000, 17];
    let bodies: Vec<Vec<u8>> = (0_u64..).zip(sizes).map(|(seed, size)| noise(seed, size)).collect();
    let stream: Vec<u8> =
        std::iter::once(handshake()).chain(bodies.iter().map(|body| message(body))).flatten().collect();
    let writing = write_all(sender, stream.clone());
    let reading = std::thread::spawn(move || read_all(receiver));
    let mut reported = Vec::new();
    let mut last_written = 0;
    bench.watch(|observation| {
        if let Observation::Frame {
            seq, read_at, written_at, bytes, payload: Payload::Whole(body), direction, ..
        } = observation
        {
            assert_eq!((seq, bytes), (reported.len() as u64, body.len() as u64));
            assert_eq!(direction, Direction::Forward);
            assert!(read_at <= written_at && last_written <= written_at.0);
            last_written = written_at.0;
            reported.push(body);
        }
        reported.len() == bodies.len()
    });
    assert!(reported == bodies, "the reported messages equal the sent ones");
    drop(writing.join().expect("the writer ends"));
    assert!(reading.join().expect("the reader ends") == stream, "the received bytes equal the sent ones");
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
    let mut back = vec![0; reply.len()];
    sender.read_exact(&mut back).expect("replied after the end");
    assert!(back == reply);
    drop(replying.join().expect("the reply was written"));
    assert_eq!(read_all(sender), b"", "then this direction ends too");
}

#[test]
fn parts_of_a_message_are_reported_as_one() {
    let bench = Bench::new();
    let (mut sender, receiver) = bench.connect();
    std::thread::spawn(move || read_all(receiver));
    let parts = [noise(1, 5), noise(2, 0), noise(3, 70_000)];
    let stream = [handshake(), part(&parts[0], true), part(&parts[1], true), part(&parts[2], false)].concat();
    let (early, late) = stream.split_at(stream.len() - 30_000);
    sender.write_all(early).expect("written");
    let (mut rest, late) = (sender.try_clone().expect("cloned"), late.to_vec());
    std::thread::spawn(move || rest.write_all(&late));
    bench.watch(|observation| match observation {
        Observation::Frame { bytes, payload: Payload::Multipart(reported), .. } => {
            assert_eq!(bytes, 70_005);
            assert!(reported == parts);
            true
        }
        other => {
            assert!(matches!(other, Observation::Opened { .. }), "{other:?}");
            false
        }
    });
}

#[test]
fn tcp_and_abstract_names_are_relayed_too() {
    let receiver = TcpListener::bind("127.0.0.1:0").expect("a port");
    let name = format!("tokengap-test-{}", std::process::id());
    let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("bound");
    let tcp: Endpoint = format!("tcp://{}", receiver.local_addr().expect("bound")).parse().expect("an endpoint");
    let pairs = vec![
        Pair { listen: "tcp://*:*".parse().expect("an endpoint"), upstream: tcp },
        Pair {
            listen: format!("ipc://@{name}-in").parse().expect("an endpoint"),
            upstream: format!("ipc://@{name}").parse().expect("an endpoint"),
        },
    ];
    let relay = Relay::start(pairs, Options::default()).expect("the relay starts");
    let Endpoint::Tcp { port, .. } = relay.listening()[0] else { panic!("{:?}", relay.listening()) };

    let mut sender = TcpStream::connect(("127.0.0.1", port)).expect("accepted");
    sender.write_all(&noise(1, 40_000)).expect("written");
    sender.shutdown(Shutdown::Write).expect("half closed");
    let mut received = Vec::new();
    receiver.accept().expect("connected").0.read_to_end(&mut received).expect("read");
    assert!(received == noise(1, 40_000));

    let address = SocketAddr::from_abstract_name(format!("{name}-in")).expect("a name");
    let mut sender = UnixStream::connect_addr(&address).expect("accepted");
    sender.write_all(&noise(2, 40_000)).expect("written");
    drop(sender);
    assert!(read_all(hidden.accept().expect("connected").0) == noise(2, 40_000));
    relay.stop();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_stream_is_relayed_unchanged_for_any_write_boundaries(
        sizes in prop::collection::vec(0_usize..90_000, 1..12),
        cuts in prop::collection::vec(1_usize..60_000, 1..40),
        buffer in 4096_usize..200_000,
    ) {
        let options = Options { buffer_bytes: buffer, block_bytes: 1, ..Options::default() };
        let bench = Bench::with(options);
        let (mut sender, receiver) = bench.connect();
        let bodies: Vec<Vec<u8>> = (0_u64..).zip(&sizes).map(|(seed, size)| noise(seed, *size)).collect();
        let stream: Vec<u8> =
            std::iter::once(handshake()).chain(bodies.iter().map(|body| message(body))).flatten().collect();
        let reading = std::thread::spawn(move || read_all(receiver));
        let mut rest = &stream[..];
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            sender.write_all(now).expect("written");
            rest = later;
        }
        sender.write_all(rest).expect("written");
        drop(sender);
        let mut reported = Vec::new();
        bench.watch(|observation| {
            match observation {
                Observation::Frame { payload: Payload::Whole(body), .. } => reported.push(body),
                Observation::Closed { cut_short, .. } => { assert!(!cut_short); return true }
                Observation::Opened { .. } => {}
                other => panic!("{other:?}"),
            }
            false
        });
        prop_assert!(reported == bodies);
        prop_assert!(reading.join().expect("the reader ends") == stream);
    }
}
