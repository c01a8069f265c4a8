//! Arbitrary messages: decoding does not panic, a fresh decoder and a used one give the same result, and the result is consistent.
#![no_main]

use std::cell::RefCell;

use engines::sglang::wire::{Decoder, Limits};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static USED: RefCell<Decoder> = RefCell::new(Decoder::new(Limits::default()).with_ids());
}

/// Decoded rows of a message as text.
fn decode(decoder: &mut Decoder, message: &[u8]) -> Result<Vec<String>, String> {
    let batch = decoder.decode(message).map_err(|error| error.to_string())?;
    Ok((0..batch.chunks().len())
        .map(|row| {
            let chunk = batch.chunks()[row];
            assert_eq!(chunk.ids.len(), chunk.listed.unwrap_or(0) as usize, "the number of ids equals `listed`");
            format!("{chunk:?} {:?} {:?}", batch.finish(row), batch.engine_times(row))
        })
        .collect())
}

fuzz_target!(|message: &[u8]| {
    let expected = decode(&mut Decoder::new(Limits::default()).with_ids(), message);
    let actual = USED.with_borrow_mut(|decoder| decode(decoder, message));
    assert_eq!(expected, actual, "earlier messages do not change the result");
});
