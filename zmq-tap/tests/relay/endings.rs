//! Ends of senders, of receivers and of the relay, in the middle of a message or stream.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use trace::event::MissedCause;
use zmq_tap::relay::{Direction, Ending, Observed, Payload, RelayOptions, Unread};
use zmq_tap::zmtp::{Garbage, Opaque};

use crate::support::{Bench, eventually, fill, handshake, message, noise, read, read_all, stream, through, write_all};

#[test]
fn a_sender_that_dies_mid_frame_truncates_only_its_own_lane() {
    let bench = Bench::new();
    let upstream = bench.upstream();
    let (mut dying, dying_peer) = bench.through(&upstream);
    let (mut healthy, mut other) = bench.through(&upstream);
    let complete = stream([noise(1, 5_000)]);
    dying.write_all(&[&complete[..], &message(&noise(2, 90_000))[..40_000]].concat()).expect("written");
    drop(dying);
    assert_eq!(read_all(dying_peer).len(), complete.len() + 40_000, "all received bytes are relayed");
    healthy.write_all(&complete).expect("written");
    read(&mut other, complete.len());
    let (mut frames, mut cut) = ([0, 0], 0);
    bench.watch(|lane, what| {
        match (lane, what) {
            (_, Observed::Frame { .. }) => frames[lane as usize] += 1,
            (0, Observed::Lost { count, cause: MissedCause::CutShort, .. }) => cut += count,
            (0, Observed::Closed { .. }) => assert_eq!(cut, 1),
            (_, Observed::Opened(_)) => {}
            other => panic!("{other:?}"),
        }
        frames == [1, 1] && bench.relay.stats().connections_open == 1 && bench.relay.observations().is_empty()
    });
    assert_eq!(cut, 1);
}

#[test]
fn garbage_is_relayed_and_affects_no_other_connection() {
    let bench = Bench::new();
    let upstream = bench.upstream();
    let (mut healthy, mut healthy_peer) = bench.through(&upstream);
    let (mut garbage, other) = bench.through(&upstream);
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
    drop(garbage);
    assert_eq!(read_all(other), b"GET / HTTP/1.1\r\n\r\n");
    // Garbage after valid frames makes the following frames of this lane unreadable until framing is found again.
    healthy.write_all(&[&handshake()[..], &message(b"one"), &[0xf3; 300], &message(b"two")].concat()).expect("written");
    read(&mut healthy_peer, handshake().len() + 5 + 300 + 5);
    let mut unread = Vec::new();
    let mut lost = Vec::new();
    bench.watch(|lane, what| {
        match what {
            Observed::Unread(_, why) => unread.push((lane, why)),
            Observed::Lost { count, cause, .. } => lost.push((lane, count, cause)),
            Observed::Frame { payload, .. } => assert!(matches!(payload, Payload::Whole(body) if body == "one")),
            _ => {}
        }
        unread.len() == 2 && !lost.is_empty()
    });
    unread.sort_by_key(|(lane, _)| *lane);
    assert_eq!(unread, [(0, Unread::Garbage(Garbage::Flags(0xf3))), (1, Unread::Opaque(Opaque::NotZmtp))]);
    assert_eq!(lost, [(0, 1, MissedCause::Unframed)]);
}

#[test]
fn an_encrypted_stream_is_relayed_and_reported() {
    let bench = Bench::new();
    let (mut sender, mut receiver) = bench.connect();
    let mut stream = handshake();
    stream[12..17].copy_from_slice(b"CURVE");
    stream.extend_from_slice(&noise(1, 5_000));
    sender.write_all(&stream).expect("written");
    assert!(read(&mut receiver, stream.len()) == stream);
    drop(sender);
    drop(receiver);
    let mut unread = Vec::new();
    bench.watch(|_, what| {
        if let Observed::Unread(direction, why) = &what {
            unread.push((*direction, why.to_string()));
        }
        matches!(what, Observed::Closed { .. })
    });
    assert_eq!(unread, [(Direction::Forward, "encrypted by CURVE".to_owned())]);
}

#[test]
fn a_sender_that_finishes_before_the_upstream_starts_loses_nothing() {
    let bench = Bench::new();
    let mut sender = bench.sender();
    let sent = stream([b"early".to_vec()]);
    sender.write_all(&sent).expect("written");
    sender.shutdown(Shutdown::Write).expect("half closed");
    std::thread::sleep(Duration::from_millis(300));
    let upstream = bench.upstream();
    let receiver = upstream.accept().expect("the relay has not given up").0;
    assert_eq!(read_all(receiver), sent);
}

#[test]
fn waiting_for_a_missing_upstream_times_out() {
    let bench = Bench::with(RelayOptions { connect_patience: Duration::from_millis(100), ..RelayOptions::default() });
    assert_eq!(read_all(bench.sender()), b"");
    assert_eq!(bench.relay.stats().connections_unanswered, 1);
    // The relay must not wait for a sender that has gone away.
    let bench = Bench::new();
    drop(bench.sender());
    eventually("the connection is closed", || {
        let stats = bench.relay.stats();
        stats.connections_total == 1 && stats.connections_open == 0
    });
}

#[test]
fn an_upstream_may_restart() {
    let bench = Bench::new();
    let upstream = bench.upstream();
    let (mut sender, receiver) = bench.through(&upstream);
    drop((upstream, receiver));
    let mut end = [0];
    assert!(!matches!(sender.read(&mut end), Ok(1..)), "the sender is disconnected");
    std::fs::remove_file(bench.path("out.sock")).expect("removed by the new receiver");
    let upstream = bench.upstream();
    let (sender, receiver) = bench.through(&upstream);
    drop(write_all(sender, message(b"again")).join().expect("written"));
    assert_eq!(read_all(receiver), message(b"again"));
    bench.watch(|lane, what| lane == 1 && matches!(what, Observed::Closed { .. }));
}

#[test]
fn a_reset_is_forwarded_over_tcp() {
    let (relay, mut sender, receiver) = through("tcp", RelayOptions::default());
    sender.write_all(&handshake()).expect("written");
    eventually("the bytes are at the receiver", || relay.stats().bytes_forward == handshake().len() as u64);
    // Closing a socket with unread bytes sends a reset.
    drop(receiver);
    let error = sender.read(&mut [0; 8]).expect_err("not an orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    eventually("the reset is reported", || {
        std::iter::from_fn(|| relay.poll()).any(|observation| {
            let reset = std::io::ErrorKind::ConnectionReset;
            matches!(observation.what, Observed::Closed { why: Ending::Upstream(why), .. } if why == reset)
        })
    });
}

#[test]
fn messages_before_a_reset_of_the_sender_are_delivered() {
    let (relay, mut sender, mut receiver) = through("tcp", RelayOptions::default());
    receiver.write_all(b"unread by the sender").expect("written");
    let stream = stream([noise(1, 200_000)]);
    sender.write_all(&stream).expect("written");
    eventually("the relay has them", || relay.stats().frames_forward == 1);
    eventually("the answer arrived", || relay.stats().bytes_backward == 20);
    drop(sender);
    let mut received = Vec::new();
    receiver.read_to_end(&mut received).expect("an orderly end");
    assert!(received == stream);
}

#[test]
fn stopping_drains_accepted_bytes() {
    let bench = Bench::new();
    let (mut sender, receiver) = bench.connect();
    // As much as the kernel and the relay buffer while the receiver does not read.
    let stream = stream([noise(1, 4 << 20)]);
    let sent = fill(&mut sender, &stream);
    let reading = std::thread::spawn(move || read_all(receiver));
    let observations = bench.relay.observations();
    let stats = bench.relay.stop();
    let received = reading.join().expect("the reader ends");
    assert!(received == stream[..sent], "sent {sent}, received {}", received.len());
    assert_eq!((stats.connections_open, stats.bytes_forward), (0, sent as u64));
    assert!(sender.write(b"x").is_err(), "the sender is disconnected");
    let observed: Vec<_> = std::iter::from_fn(|| observations.poll()).map(|observation| observation.what).collect();
    let is_cut = |what: &Observed| matches!(what, Observed::Lost { cause: MissedCause::CutShort, .. });
    assert_eq!(observed.iter().filter(|what| is_cut(what)).count(), 1, "{observed:?}");
    assert!(matches!(observed.last(), Some(Observed::Closed { why: Ending::Stopped, .. })), "{observed:?}");
}

#[test]
fn stopping_does_not_wait_for_a_receiver_that_hangs() {
    let bench = Bench::with(RelayOptions { drain: Duration::from_millis(100), ..RelayOptions::default() });
    let (sender, _receiver) = bench.connect();
    let mut writer = sender.try_clone().expect("cloned");
    let writing = std::thread::spawn(move || writer.write_all(&noise(1, 16 << 20)));
    eventually("bytes are in flight", || bench.relay.stats().bytes_forward > 1_000);
    let begun = std::time::Instant::now();
    bench.relay.stop();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(writing.join().expect("the writer ends").is_err());
}

#[test]
fn the_relay_accepts_no_extra_bytes_for_a_stalled_receiver() {
    let bench = Bench::new();
    let (mut sender, receiver) = bench.connect();
    sender.set_nonblocking(true).expect("set");
    let mut direct = UnixStream::pair().expect("a pair");
    direct.0.set_nonblocking(true).expect("set");
    let accepted = |stream: &mut UnixStream| {
        let mut accepted = 0;
        for _ in 0..400 {
            match stream.write(&[0; 16 << 10]) {
                Ok(count) => accepted += count,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        accepted
    };
    let (with_relay, direct) = (accepted(&mut sender), accepted(&mut direct.0));
    // The relay and its kernel buffers hold less than one of these messages. The last message's buffer is freed only when all of it has
    // been read.
    assert_eq!(with_relay, direct, "bytes with a relay and without");
    drop(receiver);
}

#[test]
fn two_hundred_connections_leak_no_file_descriptor() {
    let bench = Bench::new();
    let upstream = bench.upstream();
    // Counts over all threads, since the relay's thread may have its own file table. Other tests open files and end threads at the same
    // time, so only an increase in the order of 200 counts.
    let count = || {
        let threads = std::fs::read_dir("/proc/self/task").expect("readable");
        let open = |thread: std::fs::DirEntry| std::fs::read_dir(thread.path().join("fd")).map_or(0, Iterator::count);
        threads.flatten().map(open).max().unwrap_or(0)
    };
    let before = count();
    let accepting = std::thread::spawn(move || {
        for n in 0..200 {
            let stream = upstream.accept().expect("connected").0;
            if n % 2 == 0 {
                drop(stream);
            } else {
                drop(read_all(stream));
            }
        }
        upstream
    });
    for n in 0..200 {
        let mut sender = bench.sender();
        let _ = sender.write_all(&handshake()[..n % 90]);
        if n % 3 == 0 {
            let _ = sender.shutdown(Shutdown::Both);
        }
    }
    let _upstream: UnixListener = accepting.join().expect("all were relayed");
    eventually("all are closed", || bench.relay.stats().connections_open == 0);
    assert_eq!(bench.relay.stats().connections_total, 200);
    assert!(count() < before + 100, "{} files are open, {before} before", count());
}
