//! Tests of the scanner: real messages cut at any position, streams entered anywhere, and bytes that are no ZMTP stream.

use crate::common;
use proptest::prelude::*;

use zmq_tap::zmtp::{Garbage, Mark, Opaque, PendingMessage, Scanner, Span, ZmtpCommand};

const PING: &[u8] = b"\x04\x07\x04PING\0\0";

/// Messages of every release among the fixtures, in both codecs.
fn real_messages() -> Vec<Vec<u8>> {
    let files = common::messages();
    assert!(files.len() > 100, "too few fixtures: {}", files.len());
    files.iter().map(|path| std::fs::read(path).expect("readable")).collect()
}

fn greeting(mechanism: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(mechanism.as_bytes());
    bytes.resize(64, 0);
    bytes
}

/// A stream under construction, with the marks that the scanner must emit for it.
#[derive(Default)]
struct Built {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
}

impl Built {
    fn greeted() -> Self {
        let mut built = Self { bytes: greeting("NULL"), marks: Vec::new() };
        built.command(ZmtpCommand::Ready, b"\x05READY\x0bSocket-Type\0\0\0\x04PUSH");
        built
    }

    fn frame(&mut self, body: &[u8], more: bool) {
        let span = self.span(u8::from(more), body);
        self.marks.push(Mark::Frame { span, more });
    }

    fn command(&mut self, command: ZmtpCommand, body: &[u8]) {
        let span = self.span(4, body);
        self.marks.push(Mark::Command(command, span));
    }

    fn span(&mut self, flags: u8, body: &[u8]) -> Span {
        let header = self.bytes.len() as u64;
        if let Ok(length) = u8::try_from(body.len()) {
            self.bytes.extend_from_slice(&[flags, length]);
        } else {
            self.bytes.push(flags | 2);
            self.bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
        let start = self.bytes.len() as u64;
        self.bytes.extend_from_slice(body);
        Span { header, body: start, end: self.bytes.len() as u64 }
    }
}

fn scan(scanner: &mut Scanner, bytes: &[u8], piece: usize) -> Vec<Mark> {
    let mut marks = Vec::new();
    bytes.chunks(piece).for_each(|piece| scanner.feed(piece, &mut |mark| marks.push(mark)));
    marks
}

#[test]
fn real_messages_are_framed_in_one_read_and_byte_by_byte() {
    let mut built = Built::greeted();
    for (n, message) in real_messages().iter().enumerate() {
        built.frame(message, n % 7 == 0);
        if n % 5 == 0 {
            built.command(ZmtpCommand::Heartbeat, &PING[2..]);
        }
    }
    built.frame(b"", false);
    for piece in [usize::MAX, 1] {
        let mut scanner = Scanner::from_greeting();
        assert_eq!(scan(&mut scanner, &built.bytes, piece), built.marks);
        assert_eq!((scanner.position(), scanner.pending()), (built.bytes.len() as u64, None));
    }
}

#[test]
fn an_incomplete_message_is_reported_from_its_first_byte() {
    let mut built = Built::greeted();
    let start = built.bytes.len() as u64;
    built.frame(b"first", true);
    built.frame(&[7; 300], false);
    let end = built.bytes.len() as u64;
    let mut scanner = Scanner::from_greeting();
    for (at, byte) in (1..).zip(&built.bytes) {
        scanner.feed(&[*byte], &mut |_| {});
        let expected = match at {
            at if at <= start || at == end => None,
            at if at < start + 2 => Some((start, None)),
            at if at < start + 7 => Some((start, Some(start + 7))),
            at if at < start + 7 + 9 => Some((start, None)),
            _ => Some((start, Some(end))),
        };
        assert_eq!(scanner.pending().map(|p| (p.start, p.frame_end)), expected, "after {at} bytes");
    }
}

#[test]
fn version_2_and_encrypted_streams_are_recognised() {
    let first = |bytes: &[u8]| scan(&mut Scanner::from_greeting(), bytes, 1);
    let identity = |at: u64| Mark::Command(ZmtpCommand::Other, Span { header: at, body: at + 2, end: at + 2 });
    let message = |at: u64| Mark::Frame { span: Span { header: at, body: at + 2, end: at + 5 }, more: false };
    // A 2.0 peer, and a 3.x peer in 2.0 mode: socket type in place of a minor version, then the identity.
    for revision in [1, 3] {
        let bytes = [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, revision, 8, 0, 0][..], b"\0\x03abc\0\x03def"].concat();
        assert_eq!(first(&bytes), [identity(12), message(14), message(19)]);
    }
    let version1 = [Mark::Opaque(Opaque::Version1)];
    assert_eq!(first(b"\x01\0\x04\0abc"), version1);
    assert_eq!(first(&[0xff, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 2, 3]), version1);
    assert_eq!(first(b"GET / HTTP/1.1\r\n"), [Mark::Opaque(Opaque::NotZmtp)]);
    let hidden = first(&[greeting("CURVE"), vec![4, 200]].concat());
    assert!(matches!(hidden[..], [Mark::Opaque(Opaque::Encrypted(by))] if by.to_string() == "CURVE"), "{hidden:?}");
    let plain = first(&[&greeting("PLAIN")[..], b"\x04\x06\x05HELLO\0\x03abc"].concat());
    assert!(matches!(plain[..], [Mark::Command(ZmtpCommand::Other, _), Mark::Frame { .. }]));
    let unknown = first(&greeting("SCRAM"));
    assert!(matches!(unknown[..], [Mark::Opaque(why)] if why.to_string() == "encrypted by SCRAM"), "{unknown:?}");
}

#[test]
fn a_huge_claimed_length_allocates_nothing() {
    let mut scanner = Scanner::from_greeting();
    let claim = u64::MAX >> 1;
    let bytes = [&greeting("NULL")[..], &[2], &claim.to_be_bytes(), &[0x80; 100]].concat();
    assert_eq!(scan(&mut scanner, &bytes, 7), []);
    assert_eq!(scanner.pending(), Some(PendingMessage { start: 64, frame_end: Some(64 + 9 + claim) }));
    let mut scanner = Scanner::from_greeting();
    let bytes = [&greeting("NULL")[..], &[2], &u64::MAX.to_be_bytes()].concat();
    assert_eq!(scan(&mut scanner, &bytes, 7), [Mark::Garbage { at: 64, why: Garbage::Length(u64::MAX) }]);
}

#[test]
fn a_stream_joined_anywhere_syncs_at_a_frame_boundary() {
    let messages = real_messages();
    let mut built = Built::default();
    for (n, message) in messages.iter().filter(|message| message.len() < 3_000).step_by(11).enumerate() {
        built.frame(message, false);
        if n % 4 == 0 {
            built.command(ZmtpCommand::Heartbeat, &PING[2..]);
        }
    }
    let headers: Vec<u64> = built.marks.iter().filter_map(|mark| frame_header(*mark)).collect();
    let near = headers.iter().flat_map(|&header| header.saturating_sub(12)..header + 24);
    let last = headers[headers.len() - 4];
    for cut in near.chain((0..last).step_by(61)).filter(|cut| *cut <= last) {
        let mut scanner = Scanner::mid_stream(engines::FORMATS);
        let marks = scan(&mut scanner, &built.bytes[cut as usize..], 1_000);
        let [Mark::Synced { at }, rest @ ..] = &marks[..] else { panic!("cut at {cut}: {:?}", marks.first()) };
        let whole: Vec<u64> = headers.iter().copied().filter(|header| *header >= cut).collect();
        assert!(
            whole[..2].contains(&(at + cut)),
            "cut at {cut}, synced at {at}: after one whole frame, true headers {whole:?}"
        );
        let expected = built.marks.iter().filter(|mark| start(**mark) >= at + cut);
        assert!(rest.iter().map(|mark| start(*mark) + cut).eq(expected.map(|mark| start(*mark))), "cut at {cut}");
    }
}

fn start(mark: Mark) -> u64 {
    match mark {
        Mark::Frame { span, .. } | Mark::Command(_, span) => span.header,
        other => panic!("{other:?}"),
    }
}

fn frame_header(mark: Mark) -> Option<u64> {
    if let Mark::Frame { span, .. } = mark { Some(span.header) } else { None }
}

#[test]
fn messages_without_headers_do_not_sync() {
    // The payloads alone contain every signature, but no ZMTP header precedes any of them.
    let payloads: Vec<u8> = real_messages().concat();
    assert_eq!(scan(&mut Scanner::mid_stream(engines::FORMATS), &payloads, 4_096), []);
    // Columns of small numbers in the layout of `array('q')`: flag bytes and short lengths everywhere.
    let column: Vec<u8> = (0..200_000_i64).flat_map(|n| ((n * 7919) % 1_000).to_le_bytes()).collect();
    assert_eq!(scan(&mut Scanner::mid_stream(engines::FORMATS), &column, 4_096), []);
    let tokens: Vec<u8> =
        (0..200_000_i64).flat_map(|n| (n.wrapping_mul(0x9e37_79b9) & 0x3_ffff).to_be_bytes()).collect();
    assert_eq!(scan(&mut Scanner::mid_stream(engines::FORMATS), &tokens, 4_096), []);
}

#[test]
fn an_unsuccessful_search_gives_up() {
    let mut scanner = Scanner::from_greeting().recovering(engines::FORMATS, 10_000);
    let broken = [&greeting("NULL")[..], &[0xf5]].concat();
    assert_eq!(scan(&mut scanner, &broken, 100), [Mark::Garbage { at: 64, why: Garbage::Flags(0xf5) }]);
    assert_eq!(scan(&mut scanner, &vec![0; 39_000], 1_000), []);
    assert_eq!(scan(&mut scanner, &vec![0; 9_000], 1_000), [Mark::Opaque(Opaque::Unframed)]);
    assert_eq!(scanner.position(), 65 + 48_000);
}

#[test]
fn framing_is_recovered_after_garbage() {
    let messages = real_messages();
    // After a single wrong byte, the scanner must not skip the very next header.
    for garbage in [700, 1] {
        let mut built = Built::greeted();
        built.frame(&messages[0], false);
        let broken = built.bytes.len() as u64;
        built.bytes.resize(built.bytes.len() + garbage, 0xf5);
        built.marks.clear();
        messages.iter().take(4).for_each(|message| built.frame(message, false));
        let second = start(built.marks[1]);
        for piece in [1, 5, 64, 100_000] {
            let mut scanner = Scanner::from_greeting().recovering(engines::FORMATS, Scanner::SEEK_LONGEST);
            let marks = scan(&mut scanner, &built.bytes, piece);
            assert_eq!(
                marks[2..4],
                [Mark::Garbage { at: broken, why: Garbage::Flags(0xf5) }, Mark::Synced { at: second }]
            );
            assert_eq!(marks[4..], built.marks[1..]);
        }
    }
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![0_usize..20, 250_usize..260, 1_000_usize..5_000];
    size.prop_flat_map(|size| prop::collection::vec(any::<u8>(), size..=size))
}

proptest! {
    #[test]
    fn framing_is_independent_of_read_boundaries(
        frames in prop::collection::vec((any_body(), any::<bool>()), 0..12),
        pieces in prop::collection::vec(1_usize..3_000, 1..60),
    ) {
        let mut built = Built::greeted();
        for (body, more) in &frames {
            built.frame(body, *more);
        }
        let mut scanner = Scanner::from_greeting();
        let (mut marks, mut rest) = (Vec::new(), &built.bytes[..]);
        for piece in pieces {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            scanner.feed(now, &mut |mark| marks.push(mark));
            rest = later;
        }
        scanner.feed(rest, &mut |mark| marks.push(mark));
        prop_assert_eq!(marks, built.marks);
    }

    #[test]
    fn arbitrary_bytes_give_the_same_marks_for_any_read_boundaries(
        head in prop_oneof![Just(Vec::new()), Just(greeting("NULL"))],
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0_u8..8], 0..600),
        piece in 1_usize..40,
    ) {
        let bytes = [head, bytes].concat();
        let (mut whole, mut cut) = (Scanner::from_greeting(), Scanner::from_greeting());
        prop_assert_eq!(scan(&mut whole, &bytes, usize::MAX), scan(&mut cut, &bytes, piece));
        prop_assert_eq!(whole.position(), bytes.len() as u64);
        prop_assert_eq!(cut.pending(), whole.pending());
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_bytes_do_not_sync(bytes in prop::collection::vec(any::<u8>(), 20_000..60_000), low in any::<bool>()) {
        // Half of the cases use mostly flag bytes, lengths and the first bytes of a pickle.
        let bytes: Vec<u8> = if low { bytes.iter().map(|b| [0, 2, 0x80, 4, 0x95, 0x2e, 12, *b][usize::from(b % 8)]).collect() } else { bytes };
        prop_assert_eq!(scan(&mut Scanner::mid_stream(engines::FORMATS), &bytes, 4_096), []);
    }
}
