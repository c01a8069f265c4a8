//! A connection scanned from its first byte: the marks do not depend on how the bytes are split, are in order, and lie within the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zmq_tap::zmtp::{Mark, Scanner};

fn scan(mut scanner: Scanner, bytes: &[u8], piece: usize) -> (Vec<Mark>, String) {
    let mut marks = Vec::new();
    for part in bytes.chunks(piece) {
        scanner.feed(part, &mut |mark| marks.push(mark));
    }
    assert_eq!(scanner.position(), bytes.len() as u64);
    (marks, format!("{:?}", scanner.pending()))
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    let whole = scan(Scanner::from_greeting(), bytes, bytes.len().max(1));
    let cut = scan(Scanner::from_greeting(), bytes, usize::from(*piece) + 1);
    assert_eq!(whole, cut);
    let mut last = 0;
    for mark in &whole.0 {
        if let Mark::Frame { span, .. } = mark {
            assert!(last <= span.header && span.header < span.body && span.body <= span.end);
            assert!(span.end <= bytes.len() as u64);
            last = span.end;
        }
    }
});
