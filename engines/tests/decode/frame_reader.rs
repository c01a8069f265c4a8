//! Tests of the reader of frames in a stream that is joined anywhere and has holes.

use crate::common;
use proptest::prelude::*;
use zmq_tap::zmtp::{Element, FrameReader, Framing, Opaque};

const PING: &[u8] = b"\x04\x07\x04PING\0\0";

/// Messages with tokens, of 200 bytes to 60 KiB.
fn messages() -> Vec<Vec<u8>> {
    let mut paths = common::messages();
    paths.retain(|path| {
        // Requests are never on the sockets that are read.
        let is_request = path.file_stem().is_some_and(|name| name.to_string_lossy().starts_with("req_"));
        path.starts_with(common::root().join("0.5.9"))
            && path.extension().is_some_and(|kind| kind == "pkl")
            && !is_request
    });
    let read = |path| std::fs::read(path).expect("readable");
    let mut messages: Vec<Vec<u8>> = paths.iter().map(read).collect();
    messages.retain(|message| {
        let opens = |format: &adapter::decode::Format| (format.opening)(message, message.len() as u64);
        let yes = |format| matches!(opens(format), adapter::decode::Opening::Yes(_));
        engines::FORMATS.iter().any(yes)
    });
    assert!(messages.len() >= 5, "{}", messages.len());
    messages
}

/// Messages and heartbeats as a stream, and the offset of each message's header.
fn stream(messages: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    for (n, message) in messages.iter().enumerate() {
        starts.push(bytes.len());
        if let Ok(length) = u8::try_from(message.len()) {
            bytes.extend([0, length]);
        } else {
            bytes.push(2);
            bytes.extend((message.len() as u64).to_be_bytes());
        }
        bytes.extend(message);
        if n % 3 == 1 {
            bytes.extend(PING);
        }
    }
    (bytes, starts)
}

/// Bytes that are kept of a message.
fn ends(message: &[u8]) -> Vec<u8> {
    if message.len() <= 4096 {
        return message.to_vec();
    }
    [&message[..2048], &message[message.len() - 2048..]].concat()
}

/// Elements of a stream, read in pieces.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    frames: Vec<(u64, Vec<u8>)>,
    lost: usize,
    found: usize,
}

fn read(reader: &mut FrameReader, seen: &mut Seen, bytes: &[u8], piece: usize, known: &[Vec<u8>]) {
    for piece in bytes.chunks(piece) {
        reader.feed(piece, &mut |element| enter(seen, element, known));
    }
}

fn enter(seen: &mut Seen, element: Element<'_>, known: &[Vec<u8>]) -> bool {
    match element {
        Element::Lost { .. } => seen.lost += 1,
        Element::Found => seen.found += 1,
        Element::Frame(frame) => {
            seen.frames.push((frame.bytes, frame.payload.to_vec()));
            let same = |message: &&Vec<u8>| message.len() as u64 == frame.bytes && ends(message) == frame.payload;
            return known.iter().any(|message| same(&message));
        }
    }
    false
}

fn expected(messages: &[Vec<u8>]) -> Vec<(u64, Vec<u8>)> {
    messages.iter().map(|message| (message.len() as u64, ends(message))).collect()
}

#[test]
fn a_stream_joined_between_frames_is_read_from_the_first_frame() {
    let messages = messages();
    let (bytes, _) = stream(&messages);
    for piece in [1, 2, 7, 128, 671, 4096, 16 << 10, bytes.len()] {
        let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
        assert_eq!(reader.framing(), Framing::Presumed);
        read(&mut reader, &mut seen, &bytes, piece, &messages);
        assert_eq!((seen.lost, seen.found, reader.framing()), (0, 0, Framing::Proven));
        assert!(seen.frames == expected(&messages), "pieces of {piece}");
    }
}

#[test]
fn a_stream_joined_anywhere_is_read_from_a_few_frames_later() {
    // A search needs one whole frame. If a long frame seems to begin at the cut, its search begins after that of the contradiction. Control
    // messages are so short that several pass meanwhile.
    const LATER: usize = 6;
    let messages = messages();
    let (bytes, starts) = stream(&[&messages[..], &messages[..]].concat());
    let last = starts[messages.len()];
    for cut in (1..last).step_by(97).filter(|cut| !starts.contains(cut)) {
        let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
        read(&mut reader, &mut seen, &bytes[cut..], 1000, &messages);
        assert_eq!(reader.framing(), Framing::Proven, "cut at {cut}");
        let whole = starts.iter().position(|start| *start >= cut).expect("one follows");
        let all = [expected(&messages), expected(&messages)].concat();
        assert!(seen.frames.ends_with(&all[whole + LATER..]), "cut at {cut}: {} frames", seen.frames.len());
        assert_eq!((seen.lost, seen.found), (1, 1), "cut at {cut}");
    }
}

#[test]
fn after_a_hole_frames_are_searched_again() {
    let messages = messages();
    let (bytes, starts) = stream(&messages);
    let all = expected(&messages);
    // The hole ends inside frame 2, or exactly before frame 3.
    for (from, to, next) in [(starts[1] + 5, starts[2] + 60, 4), (starts[1] + 5, starts[3], 3)] {
        let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
        read(&mut reader, &mut seen, &bytes[..from], 500, &messages);
        reader.record_hole(&mut |element| enter(&mut seen, element, &messages));
        assert_eq!(reader.framing(), Framing::Searched);
        read(&mut reader, &mut seen, &bytes[to..], 500, &messages);
        assert_eq!((seen.lost, seen.found, reader.framing()), (1, 1, Framing::Proven));
        assert!(seen.frames == [&all[..1], &all[next..]].concat(), "{}", seen.frames.len());
    }
}

#[test]
fn frames_that_no_sender_sent_prove_nothing() {
    let messages = messages();
    let (bytes, _) = stream(&messages);
    let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
    // Zeros are empty frames.
    read(&mut reader, &mut seen, &[0; 64], 16, &messages);
    assert_eq!((seen.lost, reader.framing()), (1, Framing::Searched));
    read(&mut reader, &mut seen, &bytes, 500, &messages);
    assert_eq!(reader.framing(), Framing::Proven);
}

#[test]
fn a_long_frame_at_the_presumed_position_is_not_waited_for() {
    let messages = messages();
    let mut bytes = vec![2];
    bytes.extend((1_u64 << 40).to_be_bytes());
    for _ in 0..2 {
        bytes.extend(stream(&messages).0);
    }
    let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
    read(&mut reader, &mut seen, &bytes, 100, &messages);
    assert_eq!((seen.lost, seen.found, reader.framing()), (1, 1, Framing::Proven));
    assert!(seen.frames.ends_with(&expected(&messages)));
}

#[test]
fn a_search_without_success_ends() {
    let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
    let noise = vec![0xff; 1 << 20];
    for _ in 0..66 {
        read(&mut reader, &mut seen, &noise, noise.len(), &[]);
    }
    assert_eq!(reader.framing(), Framing::Unreadable(Opaque::Unframed));
    reader.record_hole(&mut |element| enter(&mut seen, element, &[]));
    assert_eq!(reader.framing(), Framing::Unreadable(Opaque::Unframed));
    assert_eq!((seen.frames.len(), seen.lost), (0, 1));
}

proptest! {
    #[test]
    fn bad_input_never_panics(pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..600)), 0..20)) {
        let (mut reader, mut seen) = (FrameReader::new(engines::FORMATS), Seen::default());
        for (is_hole, bytes) in &pieces {
            if *is_hole {
                reader.record_hole(&mut |element| enter(&mut seen, element, &[]));
            }
            read(&mut reader, &mut seen, bytes, 100, &[]);
        }
    }

    #[test]
    fn pieces_of_any_size_give_the_same_frames(sizes in prop::collection::vec(1_usize..5000, 1..40)) {
        let messages = messages();
        let (bytes, _) = stream(&messages);
        let (mut reader, mut seen, mut rest) = (FrameReader::new(engines::FORMATS), Seen::default(), &bytes[..]);
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*size));
            read(&mut reader, &mut seen, piece, piece.len().max(1), &messages);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(seen.frames == expected(&messages));
    }
}
