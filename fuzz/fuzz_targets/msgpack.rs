//! The msgpack decoder compared with `rmpv`: an accepted message is a complete value for both, with the same requests.
#![no_main]

use engines::sglang::wire::{Codec, Decoder, Limits};
use libfuzzer_sys::fuzz_target;
use rmpv::{Utf8StringRef, ValueRef};
use trace::event::Kind;

fuzz_target!(|message: &[u8]| {
    let mut decoder = Decoder::new(Limits::default());
    let Ok(batch) = decoder.decode(message) else { return };
    if !matches!(batch.codec(), Codec::Msgpack) || batch.chunks().is_empty() || batch.shape().kind == Kind::Abort {
        return;
    }
    let mut rest = message;
    let value = rmpv::decode::read_value_ref(&mut rest).expect("rmpv reads an accepted message");
    assert!(rest.is_empty(), "{} bytes after the message", rest.len());
    let rids: Vec<&str> = batch.chunks().iter().map(|chunk| chunk.rid).collect();
    let lists = match &value {
        ValueRef::Array(items) => items.as_slice(),
        other => panic!("not an array: {other:?}"),
    };
    let is_rids = |item: &ValueRef<'_>| {
        matches!(item, ValueRef::Array(texts)
            if texts.len() == rids.len() && texts.iter().zip(&rids).all(|(text, rid)| matches!(text, ValueRef::String(text) if readable(text) == *rid)))
    };
    assert!(lists.iter().any(is_rids), "no list of {rids:?} in it");
});

/// The rid, or the empty string, as in the decoder, if the rid is too long or not UTF-8.
fn readable<'a>(rid: &Utf8StringRef<'a>) -> &'a str {
    rid.into_str().filter(|rid| rid.len() <= Limits::default().text).unwrap_or_default()
}
