//! HTTP pairs: bytes are relayed unchanged, responses are reported, and the side that ended first is known.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use trace::event::MissedCause;
use zmq_tap::relay::{Direction, Observed, Pair, Relay, RelayError, RelayOptions};

use crate::support::{PATIENCE, client, endpoint, eventually, noise, read, server, through};

/// An event stream with two deliveries. The second has only the last of three tokens, so one token is lost.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
    49\r\ndata: {\"output_ids\":[7],\"meta_info\":{\"id\":\"r-1\",\"completion_tokens\":1}}\n\n\r\n\
    69\r\ndata: {\"output_ids\":[9],\"meta_info\":{\"id\":\"r-1\",\"finish_reason\":{\"type\":\"stop\"},\"completion_tokens\":3}}\n\n\r\n\
    0\r\n\r\n";
const REQUEST: &[u8] = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";

/// Reported bytes and number of losses up to the end of the connection, and the side that ended first.
fn reported(relay: &Relay) -> (Vec<u8>, u64, Option<Direction>) {
    let (mut bytes, mut lost, until) = (Vec::new(), 0, Instant::now() + PATIENCE);
    while Instant::now() < until {
        match relay.poll().map(|observation| observation.what) {
            Some(Observed::Passed { bytes: more, .. }) => bytes.extend_from_slice(&more),
            Some(Observed::Lost { count, cause, .. }) => {
                assert_eq!(cause, MissedCause::QueueFull);
                lost += count;
            }
            Some(Observed::Closed { first, .. }) => return (bytes, lost, first),
            Some(Observed::Opened(_) | Observed::HeldUp) => {}
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
    panic!("the end was never reported; {:?}", relay.stats());
}

#[test]
fn responses_on_a_keep_alive_connection_are_relayed_unchanged_and_reported() {
    let (relay, mut client, mut server) = through("http", RelayOptions::default());
    let requests = REQUEST.repeat(3);
    // Pipelining: all requests precede the first response.
    client.write_all(&requests).expect("written");
    assert_eq!(read(&mut server, requests.len()), requests);
    let answers = [ANSWER, &noise(3, 700_000), ANSWER].concat();
    let (mut side, sent) = (server.try_clone().expect("cloned"), answers.clone());
    let writing = std::thread::spawn(move || side.write_all(&sent));
    // The client has finished sending; the responses must still arrive.
    client.shutdown(Shutdown::Write).expect("half closed");
    assert!(read(&mut client, answers.len()) == answers);
    writing.join().expect("no panic").expect("written");
    assert_eq!(server.read(&mut [0; 8]).expect("the half close is relayed"), 0);
    drop(server);
    assert_eq!(client.read(&mut [0; 8]).expect("an orderly end"), 0);
    let (bytes, lost, first) = reported(&relay);
    assert!(bytes == answers, "the reported bytes equal the relayed ones");
    assert_eq!((lost, first), (0, Some(Direction::Forward)));
}

#[test]
fn the_side_that_closed_first_is_reported_and_a_client_reset_reaches_the_server() {
    let (relay, client, mut server) = through("http", RelayOptions::default());
    server.write_all(ANSWER).expect("written");
    eventually("it was relayed", || relay.stats().bytes_backward == ANSWER.len() as u64);
    // Closing a socket with unread bytes sends a reset.
    drop(client);
    let error = server.read(&mut [0; 8]).expect_err("not an orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(reported(&relay).2, Some(Direction::Forward));

    let (relay, mut client, mut server) = through("http", RelayOptions::default());
    server.write_all(&ANSWER[..120]).expect("written");
    drop(server);
    let mut received = Vec::new();
    client.read_to_end(&mut received).expect("an orderly end");
    assert_eq!(received, &ANSWER[..120]);
    drop(client);
    assert_eq!(reported(&relay).2, Some(Direction::Backward));
}

#[test]
fn a_client_that_stops_reading_blocks_the_server_and_is_reported() {
    let options = RelayOptions::default();
    let (relay, mut client, server) = through("http", options.clone());
    let (mut side, all) = (server.try_clone().expect("cloned"), noise(1, 24 << 20));
    let sent = all.clone();
    let writing = std::thread::spawn(move || side.write_all(&sent));
    let (mut before, mut short_writes) = (0, false);
    eventually("the relay has stalled", || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        while let Some(observation) = relay.poll() {
            short_writes |= matches!(observation.what, Observed::HeldUp);
        }
        let now = relay.stats().bytes_backward;
        std::mem::replace(&mut before, now) == now && now > 0
    });
    assert!(!writing.is_finished(), "the server is blocked");
    let allocated = relay.stats().held_bytes;
    assert!(allocated <= 8 * options.block_bytes as u64, "{allocated} bytes are allocated for one connection");
    // The client resumes reading and must not miss any byte.
    let length = all.len();
    let reading = std::thread::spawn(move || (read(&mut client, length), client));
    let mut passed = 0;
    while !reading.is_finished() {
        match relay.poll().map(|observation| observation.what) {
            Some(Observed::Passed { bytes, .. }) => passed += bytes.len(),
            Some(Observed::HeldUp) => short_writes = true,
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
    assert!(short_writes && passed > 0);
    assert!(reading.join().expect("no panic").0 == all);
    writing.join().expect("no panic").expect("written");
}

#[test]
fn a_full_queue_reports_a_gap_and_relays_every_byte() {
    let (relay, mut client, mut server) = through("http", RelayOptions { queue_frames: 4, ..RelayOptions::default() });
    for _ in 0..40 {
        server.write_all(b"piece").expect("written");
        read(&mut client, 5);
    }
    // The client may have its bytes shortly before the relay counts them.
    eventually("all are relayed", || relay.stats().dropped == 37);
    drop((server, client));
    let (bytes, lost, _) = reported(&relay);
    assert_eq!(bytes, b"piecepiecepiece", "four slots, one of them used by the opening");
    assert_eq!(lost, 37);
}

#[test]
fn a_missing_server_is_refused_immediately() {
    let (server, pair) = server("http");
    drop(server);
    let relay = Relay::start(vec![pair], RelayOptions::default()).expect("the relay starts");
    let began = Instant::now();
    let error = client(&relay.listening()[0]).read(&mut [0; 8]).expect_err("no answer");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(began.elapsed().as_secs() < 4, "{:?}", began.elapsed());
    eventually("the refusal is reported", || {
        relay.poll().is_some_and(|o| matches!((o.pair, o.what), (0, Observed::Refused)))
    });
    assert_eq!(relay.stats().connections_unanswered, 1);
}

#[test]
fn http_and_zmq_endpoints_cannot_be_paired() {
    let pair = Pair { listen: endpoint("http://127.0.0.1:*"), upstream: endpoint("tcp://127.0.0.1:1") };
    let refusal = Relay::start(vec![pair], RelayOptions::default()).expect_err("refused");
    assert!(matches!(refusal, RelayError::Mixed(_)), "{refusal}");
}
