//! vLLM's messages: a fresh decoder gives the same result as a used one, and the same request and token ids as `rmpv`.
#![no_main]

use engines::vllm::{Decoder, Undecoded};
use libfuzzer_sys::fuzz_target;
use rmpv::ValueRef;
use trace::event::EngineTimes;

/// A message of 0.8.3, whose layout the used decoder tries first.
const OTHER: &[u8] = b"\x97\x00\x91\x97\xa1a\x91\x01\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc2";

type Requests = Vec<(String, Vec<i64>, bool, EngineTimes)>;

fn decode(decoder: &mut Decoder, message: &[u8]) -> Result<Requests, Undecoded> {
    let decoded = decoder.decode(&[message])?;
    let chunks = decoded.chunks().iter().enumerate();
    Ok(chunks
        .map(|(row, chunk)| {
            (chunk.rid.to_owned(), chunk.ids.to_vec(), chunk.finish.is_some(), decoded.engine_times(row))
        })
        .collect())
}

fuzz_target!(|message: &[u8]| {
    let (mut fresh, mut used) = (Decoder::new(1 << 20), Decoder::new(1 << 20));
    fresh.keep_ids();
    used.keep_ids();
    assert_eq!(decode(&mut used, OTHER).map(|requests| requests.len()), Ok(1));
    let result = decode(&mut fresh, message);
    let again = decode(&mut used, message);
    assert_eq!(result.is_ok(), again.is_ok());
    let Ok(requests) = result else { return };
    assert_eq!(Ok(&requests), again.as_ref());
    if requests.is_empty() {
        return;
    }
    let mut rest = message;
    // rmpv limits nesting; the decoder does not.
    let Ok(value) = rmpv::decode::read_value_ref(&mut rest) else { return };
    assert!(rest.is_empty(), "{} bytes after the message", rest.len());
    let ValueRef::Array(fields) = &value else { panic!("not an array: {value:?}") };
    let is_outputs = |field: &ValueRef<'_>| {
        let ValueRef::Array(outputs) = field else { return false };
        outputs.len() == requests.len()
            && outputs.iter().zip(&requests).all(|(output, request)| is_request(output, request))
    };
    assert!(fields.iter().any(is_outputs), "no list of {requests:?} in it");
});

fn is_request(output: &ValueRef<'_>, (rid, ids, ..): &(String, Vec<i64>, bool, EngineTimes)) -> bool {
    let ValueRef::Array(fields) = output else { return false };
    let [ValueRef::String(text), ValueRef::Array(list), ..] = fields.as_slice() else { return false };
    // Ids are not kept for pooling results.
    text.into_str() == Some(rid) && (ids.is_empty() || list.iter().map(integer).eq(ids.iter().copied().map(Some)))
}

fn integer(value: &ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Integer(number) => number.as_i64(),
        _ => None,
    }
}
