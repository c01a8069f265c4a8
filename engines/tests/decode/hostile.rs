//! Invalid and hostile bytes must not cause panics or unbounded work, and a part of a message must not pass for the whole.

use crate::common;
use std::sync::LazyLock;

use engines::sglang::FORMAT;
use engines::sglang::wire::{Decoder, Limits, Undecoded, Value};
use proptest::prelude::*;
use trace::MonoNs;
use trace::event::EngineTimes;

/// Small recorded messages of all releases and codecs.
static MESSAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let all = common::messages().into_iter().map(|path| std::fs::read(path).unwrap());
    all.filter(|message| message.len() < 4000).collect()
});

fn decode(message: &[u8]) -> Result<usize, Undecoded> {
    let mut decoder = Decoder::new(Limits::default()).with_ids();
    let batch = decoder.decode(message)?;
    for row in 0..batch.chunks().len() {
        let chunk = batch.chunks()[row];
        let _ = batch.engine_times(row);
        assert_eq!(chunk.ids.len(), chunk.listed.unwrap_or(0) as usize);
        if let Some(value) = batch.finish(row) {
            walk(&value, 8);
        }
    }
    Ok(batch.chunks().len())
}

fn walk(value: &Value<'_>, depth: u32) {
    match value.clone() {
        Value::List(items) if depth > 0 => items.take(8).for_each(|item| walk(&item, depth - 1)),
        Value::Map(entries) if depth > 0 => entries.take(8).for_each(|(_, value)| walk(&value, depth - 1)),
        _ => {}
    }
}

fn recorded() -> impl Strategy<Value = &'static [u8]> {
    (0..MESSAGES.len()).prop_map(|place| MESSAGES[place].as_slice())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn arbitrary_opcodes_never_panic(bytes in proptest::collection::vec(opcode(), 0..200)) {
        let _ = decode(&[&[0x80, 4], bytes.concat().as_slice(), b"."].concat());
    }

    #[test]
    fn a_truncated_message_never_decodes(message in recorded(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(message.len());
        prop_assert!(decode(&message[..cut]).is_err());
        // The last byte of a pickle marks its end. A part with that byte appended must still not yield any request.
        let closed = decode(&[&message[..cut], b"."].concat());
        prop_assert!(cut + 1 == message.len() || !matches!(closed, Ok(1..)));
    }

    #[test]
    fn a_message_with_trailing_bytes_is_rejected(message in recorded(), more in proptest::collection::vec(any::<u8>(), 1..9)) {
        prop_assert!(decode(&[message, more.as_slice()].concat()).is_err());
    }

    #[test]
    fn flipped_bits_never_panic(
        message in recorded(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..6),
    ) {
        let mut message = message.to_vec();
        for (place, bit) in flips {
            let index = place.index(message.len());
            message[index] ^= 1 << bit;
        }
        let _ = decode(&message);
    }
}

/// Valid opcodes, so that the machine gets past the first one.
fn opcode() -> impl Strategy<Value = Vec<u8>> {
    let bare = prop::sample::select(b"(.012NQR]abceoistu)}h\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94".to_vec());
    prop_oneof![
        4 => bare.prop_map(|op| vec![op]),
        1 => any::<u8>().prop_map(|slot| vec![b'h', slot % 16]),
        1 => any::<u8>().prop_map(|slot| vec![b'q', slot % 16]),
        1 => any::<u8>().prop_map(|value| vec![b'K', value]),
        1 => prop::sample::select(vec!["rids", "array", "_array_reconstructor", "q", "sglang.srt.managers.io_struct",
            "BatchTokenIDOutput", "AbortReq"]).prop_map(|text| [&[0x8c, text.len() as u8], text.as_bytes()].concat()),
        1 => Just(b"csglang.srt.managers.io_struct\nBatchTokenIDOutput\n".to_vec()),
        1 => Just(b"carray\narray\n".to_vec()),
    ]
}

/// A pickle of `BatchTokenIDOutput` whose state consists of the given dict opcodes.
fn batch(state: &[u8]) -> Vec<u8> {
    [b"\x80\x04csglang.srt.managers.io_struct\nBatchTokenIDOutput\n)\x81}(", state, b"ub."].concat()
}

fn key(name: &str) -> Vec<u8> {
    [&[0x8c, name.len() as u8], name.as_bytes()].concat()
}

#[test]
fn many_references_to_one_long_list_hit_a_limit_cheaply() {
    let count = 20_000;
    let ids = [b"](".as_slice(), &b"K\x01".repeat(100_000), b"e\x94"].concat();
    let repeated = |op: &[u8]| [b"](".as_slice(), &op.repeat(count), b"e"].concat();
    let state = [
        key("spare"),
        [b"]\x94".as_slice(), &ids[1..ids.len() - 1]].concat(),
        key("rids"),
        repeated(b"\x8c\x01r"),
        key("output_ids"),
        repeated(b"h\0"),
        key("completion_tokens"),
        repeated(b"K\x01"),
        key("finished_reasons"),
        repeated(b"N"),
    ]
    .concat();
    assert_eq!(decode(&batch(&state)), Err(Undecoded::Limit { limit: "items", value: Limits::default().items }));
}

#[test]
fn a_self_referential_list_is_rejected_as_a_rid_without_looping() {
    let state = [key("rids"), b"]\x94h\0a".to_vec()].concat();
    let why = decode(&batch(&state)).unwrap_err();
    assert_eq!((why.reason(), why.to_string().contains("rids[0]: not a string")), ("column", true), "{why}");
}

#[test]
fn an_invalid_rid_drops_only_its_own_chunk() {
    let long = [b"X".as_slice(), &4097_u32.to_le_bytes(), &[b'z'; 4097]].concat();
    let surrogate = b"\x8c\x04\xed\xa0\x80x".to_vec();
    for rid in [long, surrogate] {
        let rids = [b"](\x8c\x01a".as_slice(), &rid, b"\x8c\x01be"].concat();
        let counts = [key("completion_tokens"), b"](K\x01K\x02K\x03e".to_vec()].concat();
        let reasons = [key("finished_reasons"), b"](NNNe".to_vec()].concat();
        let message = batch(&[key("rids"), rids, counts, reasons].concat());
        let mut decoder = Decoder::new(Limits::default());
        let read = decoder.decode(&message).expect("a batch");
        let chunks: Vec<_> = read.chunks().iter().map(|c| (c.rid, c.completion_tokens)).collect();
        assert_eq!(chunks, [("a", Some(1)), ("", Some(2)), ("b", Some(3))]);
    }
}

/// A message of two requests with these columns of times: the first has its first token, the second has had others.
fn batch_with_times(entries: &[u8], waits: &[u8]) -> Vec<u8> {
    let rids = [key("rids"), b"](\x8c\x01a\x8c\x01be".to_vec()].concat();
    let counts = [key("completion_tokens"), b"](K\x01K\x02e".to_vec()].concat();
    let ids = [key("output_ids"), b"](](K\x07e](K\x07ee".to_vec()].concat();
    let reasons = [key("finished_reasons"), b"](NNe".to_vec()].concat();
    let times = [key("forward_entry_time"), entries.to_vec(), key("queue_time"), waits.to_vec()].concat();
    batch(&[rids, counts, ids, reasons, times].concat())
}

fn floats(seconds: &[f64]) -> Vec<u8> {
    let items = seconds.iter().flat_map(|seconds| [b"G".as_slice(), &seconds.to_be_bytes()].concat());
    [b"](".to_vec(), items.collect(), b"e".to_vec()].concat()
}

#[test]
fn odd_times_never_spoil_a_message() {
    let sent_at = MonoNs(9_000_000_000);
    let at = |seconds: f64| MonoNs::from_seconds(seconds);
    for (entries, waits, expected) in [
        (floats(&[3.0, 5.0]), floats(&[0.5, 1.0]), Some((at(2.5), at(3.0), 0))),
        (floats(&[0.0, 5.0]), floats(&[-2.5, 1.0]), Some((at(2.5), None, 0))),
        (floats(&[3.0, 5.0]), floats(&[3.0, 1.0]), Some((None, at(3.0), 0))),
        (floats(&[3.0, 5.0]), floats(&[-1.0, 1.0]), Some((None, at(3.0), 1))),
        (floats(&[f64::NAN, 5.0]), floats(&[0.5, 1.0]), Some((None, None, 2))),
        (floats(&[10.0, 5.0]), floats(&[8.0, 1.0]), Some((at(2.0), None, 1))),
        (floats(&[3.0, 5.0]), b"](NNe".to_vec(), Some((None, at(3.0), 0))),
        (b"](NNe".to_vec(), b"](NNe".to_vec(), None),
        (b"](K\x03K\x05e".to_vec(), floats(&[0.5, 1.0]), Some((None, None, 2))),
        (floats(&[3.0]), floats(&[0.5, 1.0]), None),
        (b"N".to_vec(), floats(&[0.5, 1.0]), None),
        (key("text"), b"}".to_vec(), None),
    ] {
        let message = batch_with_times(&entries, &waits);
        let mut decoder = (FORMAT.decoder)(1 << 20);
        let decoded = decoder.decode(&[&message]).expect("a batch");
        assert_eq!(decoded.chunks().len(), 2);
        let found: Vec<_> = decoded.request_times(sent_at).collect();
        let found = found.first().map(|found| {
            assert_eq!(found.rid, "a");
            (found.times.queued, found.times.batch_entered, found.impossible)
        });
        assert_eq!(found, expected, "{entries:02x?} {waits:02x?}");
        assert_eq!(decoded.engine_times(1), EngineTimes::default(), "not its first token");
    }
}

#[test]
fn references_outside_the_message_are_rejected() {
    for (pickle, what) in [
        (b"\x80\x04Pid\n.".as_slice(), "persistent id"),
        (b"\x80\x04NQ.", "persistent id"),
        (b"\x80\x04\x82\x01.", "extension registry"),
        (b"\x80\x05\x97.", "buffer"),
        (b"\x80\x05N\x98.", "buffer"),
        (b"\x80\x02I1\n.", "protocol 0 or 1"),
    ] {
        let why = decode(pickle).unwrap_err();
        assert_eq!(why.reason(), "refused", "{why}");
        assert!(why.to_string().contains(what), "{why}");
    }
}

#[test]
fn a_class_of_another_module_is_unknown_and_never_resolved() {
    let why = decode(b"\x80\x04cos\nsystem\n\x8c\x02ls\x85R.").unwrap_err();
    assert_eq!(why, Undecoded::UnknownClass { class: "os.system".into() });
}

#[test]
fn each_limit_is_reported_by_name() {
    let small = Limits { message: 4000, depth: 4, stack: 64, memo: 64, items: 200, text: 8 };
    let many = |op: &[u8], count| [b"\x80\x04".as_slice(), &op.repeat(count), b"."].concat();
    for (message, limit) in [
        (many(b"N", 5000), "message"),
        (many(b"(", 5), "depth"),
        (many(b"N", 65), "stack"),
        (many(b"N\x940", 65), "memo"),
        (many(b"]0", 201), "items"),
        (many(b"carray\narray\n0", 201), "items"),
        (many(b"N)\x810", 201), "items"),
        (many(b"N\x850", 201), "items"),
    ] {
        let mut decoder = Decoder::new(small);
        match decoder.decode(&message) {
            Err(Undecoded::Limit { limit: reached, .. }) => assert_eq!(reached, limit),
            other => panic!("{limit}: {other:?}"),
        }
    }
}

/// The fast paths for many values must observe limits like the paths for one value. This frame of 256 requests has columns that are runs of
/// strings, arrays and objects. It must decode exactly when the limit is large enough.
#[test]
fn limits_inside_a_run_are_reported_by_name() {
    let frame = concat!(env!("CARGO_MANIFEST_DIR"), "/../zmq-tap/fixtures/messages/0.5.23/skip_delta_256rid.pkl");
    let message = std::fs::read(frame).unwrap();
    let read = |limits, limit: &str| match Decoder::new(limits).decode(&message) {
        Ok(batch) => {
            assert_eq!(batch.chunks().len(), 256);
            true
        }
        Err(Undecoded::Limit { limit: reached, .. }) => {
            assert_eq!(reached, limit);
            false
        }
        Err(why) => panic!("{limit}: {why}"),
    };
    for limit in ["memo", "stack"] {
        let limits = |size| match limit {
            "memo" => Limits { memo: size, ..Limits::default() },
            _ => Limits { stack: size, ..Limits::default() },
        };
        let outcomes: Vec<bool> = (0..4000).map(|size| read(limits(size), limit)).collect();
        let needed = outcomes.iter().position(|read| *read).expect("4,000 are enough");
        assert!(needed > 256 && outcomes[needed..].iter().all(|read| *read), "{needed}");
    }
}

/// CPython reads a whole frame before it interprets any of it, and rejects a frame that extends beyond the message.
#[test]
fn a_frame_longer_than_the_message_is_truncated() {
    let framed = |length: u64| [b"\x80\x04\x95".as_slice(), &length.to_le_bytes(), b"N."].concat();
    assert_ne!(decode(&framed(2)).unwrap_err().reason(), "truncated", "the frame is complete");
    for length in [3, 1 << 20, u64::MAX] {
        assert_eq!(decode(&framed(length)), Err(Undecoded::Truncated { at: 2 }), "{length}");
    }
}
