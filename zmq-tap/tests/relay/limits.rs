//! Limits: reaching one must be reported, and the relay must continue to copy.

use std::io::Write;
use std::os::unix::net::UnixStream;

use trace::event::MissedCause;
use zmq_tap::relay::{NotKept, Observed, Payload, RelayOptions};

use crate::support::{
    Bench, eventually, fill, handshake, is_whole_message, message, noise, part, read, read_all, stream, write_all,
};

#[test]
fn a_full_queue_loses_observations_and_no_bytes() {
    let bench = Bench::with(RelayOptions { queue_frames: 10, ..RelayOptions::default() });
    let (mut sender, mut receiver) = bench.connect();
    let burst = stream((0..200).map(|n| noise(n, 900)));
    sender.write_all(&burst).expect("written");
    assert!(read(&mut receiver, burst.len()) == burst);
    eventually("all are relayed", || bench.relay.stats().frames_forward == 200);
    let dropped = bench.relay.stats().dropped;
    assert_eq!(dropped, 200 - 9, "ten slots, one of them used by the opening");
    // Once there is room, the loss is reported before the next frame, and sequence numbers continue as if nothing were lost.
    while bench.relay.poll().is_some() {}
    sender.write_all(&message(b"after")).expect("written");
    let mut lost = 0;
    bench.watch(|_, what| match what {
        Observed::Lost { count, cause: MissedCause::QueueFull, .. } => {
            lost += count;
            false
        }
        Observed::Frame { seq, .. } => {
            assert_eq!((seq, lost), (200, dropped));
            true
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_connection_that_opens_and_closes_while_the_queue_is_full_is_reported() {
    let bench = Bench::with(RelayOptions { queue_frames: 1, ..RelayOptions::default() });
    let upstream = bench.upstream();
    for _ in 0..3 {
        let (mut sender, receiver) = bench.through(&upstream);
        sender.write_all(&stream([b"one".to_vec(), b"two".to_vec()])).expect("written");
        drop(sender);
        read_all(receiver);
    }
    eventually("all three have ended", || bench.relay.stats().connections_open == 0);
    let (mut opened, mut closed, mut frames, mut lost) = (0, 0, 0, 0);
    while let Some(observation) = bench.relay.poll() {
        match observation.what {
            Observed::Opened(_) => {
                assert_eq!(observation.lane, opened);
                opened += 1;
            }
            Observed::Closed { .. } => {
                assert_eq!(observation.lane, closed);
                closed += 1;
            }
            Observed::Frame { .. } => frames += 1,
            Observed::Lost { count, .. } => lost += count,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((opened, closed, frames + lost), (3, 3, 6));
    assert_eq!(bench.relay.stats().unreported, 0);
}

#[test]
fn a_message_above_the_limit_is_relayed_without_being_stored() {
    let bench = Bench::with(RelayOptions { max_frame_bytes: 100_000, max_parts: 2, ..RelayOptions::default() });
    let (sender, receiver) = bench.connect();
    let stream = [
        handshake(),
        message(&noise(1, 100_001)),
        message(&noise(2, 100_000)),
        [part(b"a", true), part(b"b", true), part(b"c", false)].concat(),
        [part(&noise(3, 60_000), true), part(&noise(4, 60_000), false)].concat(),
        [part(b"a", true), part(b"b", false)].concat(),
    ];
    let reading = std::thread::spawn(move || read_all(receiver));
    write_all(sender, stream.concat());
    let mut payloads = Vec::new();
    bench.watch(|_, what| {
        if let Observed::Frame { payload, .. } = what {
            payloads.push(payload);
        }
        payloads.len() == 5
    });
    assert_eq!(payloads[0], Payload::NotKept(NotKept::TooLarge));
    assert!(matches!(&payloads[1], Payload::Whole(body) if *body == noise(2, 100_000)));
    assert_eq!(payloads[2], Payload::NotKept(NotKept::TooManyParts));
    assert_eq!(payloads[3], Payload::NotKept(NotKept::TooLarge));
    assert!(matches!(&payloads[4], Payload::Multipart(parts) if parts[..] == ["a", "b"]));
    assert!(reading.join().expect("the reader ends") == stream.concat());
}

#[test]
fn unread_observations_stay_within_the_budget() {
    let budget = 2 << 20;
    let options = RelayOptions { budget_bytes: budget, block_bytes: 256 << 10, ..RelayOptions::default() };
    let bench = Bench::with(options);
    let upstream = bench.upstream();
    let (sender, receiver) = bench.through(&upstream);
    let sent = stream((0..200).map(|n| noise(n, 50_000)));
    let reading = std::thread::spawn(move || read_all(receiver));
    write_all(sender, sent.clone()).join().expect("written");
    assert!(reading.join().expect("the reader ends") == sent);
    let stats = bench.relay.stats();
    assert!(stats.held_bytes <= budget as u64, "{stats:?}");
    assert_eq!(stats.frames_forward, 200);
    let (mut kept, mut not_kept) = (0, 0);
    while let Some(observation) = bench.relay.poll() {
        match observation.what {
            Observed::Frame { seq, payload: Payload::Whole(body), .. } => {
                assert!(body == noise(seq, 50_000));
                kept += 1;
            }
            Observed::Frame { payload, .. } => {
                assert_eq!(payload, Payload::NotKept(NotKept::Budget));
                not_kept += 1;
            }
            _ => {}
        }
    }
    assert!(kept >= 20, "most of the budget holds messages: {kept}");
    assert_eq!(kept + not_kept, 200);
    // The budget is available again.
    let (sender, receiver) = bench.through(&upstream);
    std::thread::spawn(move || read_all(receiver));
    let _sender = write_all(sender, stream([noise(7, 50_000)]));
    bench.watch(|_, what| is_whole_message(&what));
}

#[test]
fn a_reader_that_keeps_up_needs_few_blocks() {
    let bench = Bench::new();
    let (sender, receiver) = bench.connect();
    let frames = 2_000;
    let sent = [handshake(), message(&noise(1, 60_000)).repeat(frames)].concat();
    let reading = std::thread::spawn(move || read_all(receiver).len());
    let length = sent.len();
    write_all(sender, sent);
    let mut seen = 0;
    bench.watch(|_, what| {
        seen += usize::from(is_whole_message(&what));
        seen == frames
    });
    assert_eq!(reading.join().expect("the reader ends"), length);
    let allocated = bench.relay.stats().held_bytes;
    assert!(allocated < length as u64 / 2, "{allocated} bytes for {length}");
}

#[test]
fn a_claimed_gibibyte_allocates_nothing() {
    let bench = Bench::new();
    let upstream = bench.upstream();
    let mut streams = Vec::new();
    // Two claims exceed the frame limit. The others together claim five times the budget.
    let claims = [&[1_u64 << 30, u64::MAX >> 1][..], &[15 << 20; 20]].concat();
    for claim in claims {
        let (mut sender, receiver) = bench.through(&upstream);
        sender
            .write_all(&[handshake(), [&[2][..], &claim.to_be_bytes(), b"and no more"].concat()].concat())
            .expect("written");
        streams.push((sender, receiver));
    }
    let expected = handshake().len() + 9 + 11;
    for (_, receiver) in &mut streams {
        read(receiver, expected);
    }
    let (sender, receiver) = bench.through(&upstream);
    std::thread::spawn(move || read_all(receiver));
    let _sender = write_all(sender, stream([noise(1, 300_000)]));
    bench.watch(|_, what| is_whole_message(&what));
    assert!(bench.relay.stats().held_bytes <= 22 << 20, "{:?}", bench.relay.stats());
}

#[test]
fn a_stalled_receiver_blocks_the_sender() {
    let buffer = 64 << 10;
    let bench = Bench::with(RelayOptions { buffer_bytes: buffer, ..RelayOptions::default() });
    let (mut sender, mut receiver) = bench.connect();
    let stream = noise(3, 8 << 20);
    let sent = fill(&mut sender, &stream);
    assert!(sent < stream.len(), "the sender was stopped");
    // Capacity of a connection without a relay, twice (one for each side of the relay), plus one buffer between them.
    let (mut direct, _unread) = UnixStream::pair().expect("a pair");
    let limit = 2 * fill(&mut direct, &stream) + buffer;
    assert!(sent <= limit, "the relay accepted {sent} bytes; the limit is {limit}");
    let (rest, mut writer) = (stream[sent..].to_vec(), sender.try_clone().expect("cloned"));
    let writing = std::thread::spawn(move || writer.write_all(&rest));
    assert!(read(&mut receiver, stream.len()) == stream, "the relay continues");
    writing.join().expect("the writer ends").expect("written");
}

#[test]
fn connections_above_the_limit_are_closed_immediately() {
    let bench = Bench::with(RelayOptions { max_connections: 2, ..RelayOptions::default() });
    let upstream = bench.upstream();
    let (first, second) = (bench.through(&upstream), bench.through(&upstream));
    let third = bench.sender();
    assert_eq!(read_all(third), b"");
    assert_eq!(bench.relay.stats().connections_refused, 1);
    drop((first, second));
    eventually("connections are closed", || bench.relay.stats().connections_open == 0);
    bench.through(&upstream);
}

#[test]
fn reads_become_shorter_when_the_memory_of_the_relay_is_used_up() {
    let options =
        RelayOptions { budget_bytes: 0, max_buffered_bytes: 64 << 10, max_connections: 4, ..RelayOptions::default() };
    let bench = Bench::with(options);
    let upstream = bench.upstream();
    let (mut stalled, _unread) = bench.through(&upstream);
    fill(&mut stalled, &noise(3, 8 << 20));
    let (sender, receiver) = bench.through(&upstream);
    let sent = noise(5, 2 << 20);
    let reading = std::thread::spawn(move || read_all(receiver));
    write_all(sender, sent.clone()).join().expect("written");
    assert!(reading.join().expect("the reader ends") == sent, "the other connection continues");
    let stats = bench.relay.stats();
    assert!(stats.reads_shortened > 0, "{stats:?}");
    assert_eq!(stats.held_bytes, 0, "{stats:?}");
}

#[test]
fn only_connections_that_fit_into_the_memory_of_the_relay_are_accepted() {
    let bench = Bench::with(RelayOptions { budget_bytes: 0, max_buffered_bytes: 16 << 10, ..RelayOptions::default() });
    let upstream = bench.upstream();
    let _connected = (bench.through(&upstream), bench.through(&upstream));
    assert_eq!(read_all(bench.sender()), b"");
    assert_eq!(bench.relay.stats().connections_refused, 1);
}
