//! The tap between real peers: deliveries and responses of an HTTP server, and reasons why traffic is not decoded.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use session::{About as _, Flow, LiveSource as _};
use sources::tap::{Tap, TapHop};
use trace::event::{AnswerEnd, What};
use zmq_tap::relay::RelayOptions;

use crate::support::{PATIENCE, client, eventually, handshake, noise, pair, read, read_all, server};

/// An event stream with two deliveries. The second has only the last of three tokens, so one token is lost.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
    49\r\ndata: {\"output_ids\":[7],\"meta_info\":{\"id\":\"r-1\",\"completion_tokens\":1}}\n\n\r\n\
    69\r\ndata: {\"output_ids\":[9],\"meta_info\":{\"id\":\"r-1\",\"finish_reason\":{\"type\":\"stop\"},\"completion_tokens\":3}}\n\n\r\n\
    0\r\n\r\n";
const REQUEST: &[u8] = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";

#[test]
fn a_missing_server_is_reported() {
    let (server, pair) = server("http");
    drop(server);
    let upstream = pair.upstream.to_string();
    let mut tap = Tap::start(vec![TapHop::new(pair)], RelayOptions::default()).expect("the tap starts");
    let _ = client(&tap.listening()[0]).read(&mut [0; 8]);
    eventually("the tap reports it", || {
        tap.poll(&mut |_| {});
        tap.degraded_lines().iter().any(|why| why.contains(&upstream))
    });
}

#[test]
fn a_refused_handshake_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let upstream = UnixListener::bind(folder.path().join("out.sock")).expect("the upstream's socket");
    let mut tap = Tap::start(vec![TapHop::new(pair(folder.path()))], RelayOptions::default()).expect("the tap starts");
    let mut sender = UnixStream::connect(folder.path().join("in.sock")).expect("the relay accepts");
    let (mut receiver, _) = upstream.accept().expect("the relay connects");
    sender.write_all(&handshake()).expect("written");
    // libzmq's answer to an address that its ZAP handler denies.
    let refusal = [&handshake()[..64], &b"\x04\x0a\x05ERROR\x03400"[..]].concat();
    receiver.write_all(&refusal).expect("written");
    drop(receiver);
    assert_eq!(read_all(sender), refusal);
    eventually("the refusal is named", || {
        tap.poll(&mut |_| {});
        let named = format!("the receiver at {} refused 1 ZMTP handshakes", pair(folder.path()).upstream);
        tap.degraded_lines().iter().any(|line| line.starts_with(&named))
    });
}

/// Events of the tap for one connection on which the server sends `response` and closes.
fn events(response: &[u8], close_early: bool) -> (Vec<String>, Vec<String>) {
    let (server, pair) = server("http");
    let mut tap = Tap::start(vec![TapHop::new(pair)], RelayOptions::default()).expect("the tap starts");
    let mut client = client(&tap.listening()[0]);
    let mut served = server.accept().expect("connected").0;
    client.write_all(REQUEST).expect("written");
    served.write_all(response).expect("written");
    let mut received = read(&mut client, response.len());
    assert_eq!(received, response);
    if close_early {
        client.shutdown(Shutdown::Write).expect("half closed");
        while served.read(&mut [0; 64]).expect("the end is relayed") > 0 {}
    }
    drop(served);
    client.read_to_end(&mut received).expect("an orderly end");
    drop(client);
    let mut reported = Vec::new();
    eventually("the connection is closed", || tap.stats().connections_open == 0);
    tap.stop();
    let until = Instant::now() + PATIENCE;
    let mut flow = Flow::Busy;
    while flow != Flow::Ended && Instant::now() < until {
        flow = tap.poll(&mut |event| match &event.what {
            What::Delivered(d) => reported.push(format!("{} {} of {:?}", d.rid, d.tokens, d.completion_tokens)),
            What::Answered(a) => reported.push(format!("{} {:?} {:?}", a.rid, a.tokens, a.end)),
            What::Hop(hop) => panic!("clients are not a hop: {hop:?}"),
            other => reported.push(format!("{other:?}")),
        });
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    (reported, tap.degraded_lines())
}

#[test]
fn the_tap_reports_deliveries_and_responses() {
    let (reported, degraded) = events(ANSWER, false);
    assert_eq!(
        reported,
        ["r-1 1 of Some(1)".to_owned(), "r-1 1 of Some(3)".to_owned(), format!("r-1 Some(2) {:?}", AnswerEnd::Whole),]
    );
    assert!(degraded.is_empty(), "{degraded:?}");
    let cut = ANSWER.len() - 5;
    let left = events(&ANSWER[..cut], true).0;
    assert_eq!(left.last(), Some(&format!("r-1 Some(2) {:?}", AnswerEnd::ClientLeft)));
    let left = events(&ANSWER[..cut], false).0;
    assert_eq!(left.last(), Some(&format!("r-1 Some(2) {:?}", AnswerEnd::ServerLeft)));
}

#[test]
fn undecodable_connections_are_relayed_and_reported() {
    let websocket = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n\x81\x05hello";
    let tls = [&[0x16, 3, 3, 0, 122, 2, 0, 0, 118][..], &noise(5, 300)].concat();
    for (response, name) in [(&websocket[..], "upgraded"), (&tls, "TLS")] {
        let (reported, degraded) = events(response, false);
        assert!(reported.is_empty(), "{reported:?}");
        assert!(degraded.len() == 1 && degraded[0].contains(name), "{name}: {degraded:?}");
    }
}
