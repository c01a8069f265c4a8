//! A connection scanned from the middle: the marks do not depend on how the bytes are split, and frames follow only after a resync point.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zmq_tap::zmtp::{Mark, Scanner};

fn scan(bytes: &[u8], piece: usize) -> Vec<Mark> {
    let (mut scanner, mut marks) = (Scanner::mid_stream(engines::FORMATS), Vec::new());
    for part in bytes.chunks(piece) {
        scanner.feed(part, &mut |mark| marks.push(mark));
    }
    marks
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    let whole = scan(bytes, bytes.len().max(1));
    assert_eq!(whole, scan(bytes, usize::from(*piece) * 16 + 1));
    let mut synced = false;
    for mark in whole {
        match mark {
            Mark::Synced { .. } => synced = true,
            Mark::Garbage { .. } => synced = false,
            Mark::Frame { span, .. } => assert!(synced && span.end <= bytes.len() as u64),
            _ => {}
        }
    }
});
