//! Compares every recorded message of vLLM with the objects that the release encoded, and every layout with messages made of random values.

use std::fs;
use std::path::{Path, PathBuf};

use adapter::decode::{Decoders, Excerpt, LONGEST, Opening, SocketFormat};
use engines::vllm::{Decoder, FORMAT};
use proptest::prelude::*;
use rmpv::Value;
use serde_json::Value as Json;
use trace::MonoNs;
use trace::event::{DispatchKind, DispatchedRequest, EngineTimes, Finish, IdColumn, Kind};

/// Folders of the releases.
fn releases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vllm");
    let folders = fs::read_dir(root).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    let mut folders: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// Calls `check` with the release, the case, its parts and its expected content.
fn for_each_message(mut check: impl FnMut(&str, &str, &[&[u8]], &Json)) {
    for folder in releases() {
        let truth: Json = serde_json::from_slice(&fs::read(folder.join("truth.json")).expect("a truth")).expect("JSON");
        let release = folder.file_name().and_then(|name| name.to_str()).expect("a name");
        for (case, truth) in truth.as_object().expect("cases") {
            let part = |index| fs::read(folder.join(format!("{case}.{index}"))).expect("a part");
            let parts: Vec<Vec<u8>> = (0..truth["parts"].as_u64().expect("a number")).map(part).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            check(release, case, &parts, truth);
        }
    }
}

fn finish(name: &Json) -> Option<Finish> {
    match name.as_str()? {
        "STOP" => Some(Finish::Stop),
        "LENGTH" => Some(Finish::Length),
        "ABORT" | "ERROR" => Some(Finish::Abort),
        _ => Some(Finish::Other),
    }
}

#[test]
fn every_recorded_message_decodes_to_the_encoded_objects() {
    let mut decoder = Decoder::new(LONGEST);
    decoder.keep_ids();
    let mut messages = 0;
    for_each_message(|release, case, parts, truth| {
        let name = format!("{release} {case}");
        let decoded = decoder.decode(parts).unwrap_or_else(|why| panic!("{name}: {why}"));
        let shape = *decoded.shape();
        let requests = truth["requests"].as_array().expect("requests");
        let pooled = !requests.is_empty() && requests.iter().all(|request| request[5] == true);
        let kind = match requests.len() {
            0 if shape.class == "ENGINE_CORE_DEAD" => Kind::Failed,
            0 => Kind::Control,
            _ if pooled => Kind::Embedding,
            _ => Kind::TokenIds,
        };
        assert_eq!(shape.kind, kind, "{name}");
        assert_eq!(shape.ids == IdColumn::Uncounted, kind == Kind::TokenIds, "{name}");
        let range: trace::engine::VersionRange = shape.schema.parse().expect("a range of releases");
        let release = release.parse().expect("a release");
        assert!(range.first <= release && release <= range.last, "{name}: {}", shape.schema);
        assert_eq!(decoded.chunks().len(), requests.len(), "{name}");
        for (chunk, request) in decoded.chunks().iter().zip(requests) {
            let ids: Vec<i64> = serde_json::from_value(request[1].clone()).expect("ids");
            let count = |value: &Json| value.as_u64().map(|count| count as u32);
            assert_eq!(chunk.rid, request[0].as_str().expect("an id"), "{name}");
            assert_eq!(chunk.listed, (!pooled).then_some(ids.len() as u32), "{name}");
            assert_eq!(chunk.ids, ids, "{name}");
            assert_eq!(chunk.finish, finish(&request[2]), "{name}");
            assert_eq!(chunk.prompt_tokens, count(&request[3]), "{name}");
            assert_eq!(chunk.cached_tokens, count(&request[4]), "{name}");
        }
        messages += 1;
    });
    assert!(messages > 400, "{messages} messages");
}

#[test]
fn events_give_the_times_that_python_reads_in_them() {
    let mut decoder = Decoder::new(LONGEST);
    let mut with_times = 0;
    for_each_message(|release, case, parts, _| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vllm").join(release);
        let times = fs::read(folder.join("engine_times.json"))
            .map_or(Json::Null, |times| serde_json::from_slice(&times).expect("JSON"));
        let decoded = decoder.decode(parts).unwrap_or_else(|why| panic!("{release} {case}: {why}"));
        for row in 0..decoded.chunks().len() {
            let EngineTimes { queued, batch_entered, prefill_finished } = decoded.engine_times(row);
            let expected = &times[case][row];
            let numbers = [queued, batch_entered].map(|time| time.map(|time| time.0));
            assert_eq!(numbers, [expected[0].as_u64(), expected[1].as_u64()], "{release} {case} {row}");
            assert_eq!(prefill_finished, None);
            with_times += usize::from(queued.is_some());
        }
    });
    assert_eq!(with_times, 14, "one request of each release from 0.7.3 on");
}

/// A message of 0.8.3 with an output of one id, which has these events.
fn message_with_events(events: Value) -> Vec<u8> {
    let nil = Value::Nil;
    let ids = Value::Array(vec![Value::from(1)]);
    let output = Value::Array(vec![Value::from("a"), ids, nil.clone(), nil.clone(), nil.clone(), nil.clone(), events]);
    let envelope =
        [Value::from(0), Value::Array(vec![output]), nil.clone(), nil.clone(), nil.clone(), nil.clone(), nil];
    let mut message = Vec::new();
    rmpv::encode::write_value(&mut message, &Value::Array(envelope.to_vec())).expect("in memory");
    message
}

fn event(kind: u8, timestamp: f64) -> Value {
    Value::Map(vec![(Value::from("type"), Value::from(kind)), (Value::from("timestamp"), Value::from(timestamp))])
}

#[test]
fn times_that_cannot_be_true_are_counted_and_a_preemption_is_no_first_entry() {
    let sent_at = MonoNs(9_000_000_000);
    let at = |seconds: f64| MonoNs::from_seconds(seconds);
    let mut decoder = Decoder::new(LONGEST);
    for (events, expected) in [
        (vec![event(1, 2.5), event(2, 3.0), event(3, 4.0), event(2, 5.0)], Some((at(2.5), at(3.0), 0))),
        (vec![event(3, 4.0), event(2, 5.0)], None),
        (vec![event(1, 2.5)], Some((at(2.5), None, 0))),
        (vec![event(1, 9.5), event(2, 10.0)], Some((None, None, 2))),
        (vec![event(1, 3.5), event(2, 3.0)], Some((None, at(3.0), 1))),
        (vec![event(1, f64::NAN), event(2, -1.0)], Some((None, None, 2))),
        (vec![event(1, f64::INFINITY), event(2, 3.0)], Some((None, at(3.0), 1))),
        (vec![event(1, 0.0), event(2, 3.0)], None),
        (vec![Value::from(1), Value::Map(vec![]), event(7, 1.0)], None),
    ] {
        let message = message_with_events(Value::Array(events.clone()));
        let decoded = decoder.decode(&[&message]).expect("a message of 0.8.3");
        let found = decoded.request_times(sent_at).next();
        let found = found.map(|found| (found.times.queued, found.times.batch_entered, found.impossible));
        assert_eq!(found, expected, "{events:?}");
    }
}

#[test]
fn messages_with_outputs_are_recognised_in_the_middle_of_a_stream() {
    for_each_message(|release, case, parts, truth| {
        let first = parts[0];
        assert!((FORMAT.decoder)(LONGEST).recognises(parts), "{release} {case}");
        let expected = if truth["requests"].as_array().is_some_and(|requests| !requests.is_empty()) {
            Opening::Yes(None)
        } else {
            Opening::No
        };
        assert_eq!((FORMAT.opening)(first, first.len() as u64), expected, "{release} {case}");
    });
}

#[test]
fn a_message_cut_anywhere_is_refused() {
    let mut decoder = Decoder::new(LONGEST);
    for_each_message(|release, case, parts, _| {
        if parts[0].len() < 2000 {
            for length in 1..parts[0].len() {
                let cut = decoder.decode(&[&parts[0][..length]]).map(|decoded| decoded.chunks().len());
                assert!(cut.is_err(), "{release} {case} cut to {length} bytes");
            }
        }
    });
}

#[test]
fn refusals_name_their_reason() {
    let mut decoder = Decoder::new(64);
    let mut refused = |message: &[u8]| {
        let why = decoder.decode(&[message]).map(|_| ()).expect_err("refused");
        (why.reason(), why.to_string())
    };
    assert_eq!(refused(b"hello").0, "codec");
    assert_eq!(refused(b"\x82\xa6status\xa5HELLO").0, "codec");
    assert_eq!(
        refused(b"\x93\xc0\xc0\xc0"),
        (
            "layout",
            String::from(
                "EngineCoreOutputs with 3 fields matches no known release: no release has that many; update the table with `cargo xtask schemas`"
            )
        )
    );
    assert_eq!(
        refused(b"\x91\x91\x96\xa1a\x90\xc0\xc0\xc0\xc0").1,
        "EngineCoreOutput with 6 fields matches no known release: no release has that many; update the table with `cargo xtask schemas`"
    );
    assert_eq!(refused(b"\x91\x91\x95\x07\x90\xc2\xc0\xc0").1, "EngineCoreOutput.request_id[0]: not a string");
    assert_eq!(
        refused(b"\x91\x91\x95\xa1a\x91\xa1b\xc2\xc0\xc0").1,
        "EngineCoreOutput.new_token_ids[0]: not an integer"
    );
    assert_eq!(refused(b"\x91\x90\xc0").0, "malformed");
    assert_eq!(refused(b"\x91\xc0").0, "malformed");
    assert_eq!(refused(&[0x91; 65]).0, "limit");
}

#[test]
fn requests_handshakes_and_coordination_are_control_messages() {
    let mut decoders = Decoders::new(&[FORMAT], LONGEST);
    let mut carries = SocketFormat::default();
    for (class, parts) in [
        ("EngineCoreRequest", &[&b"\x00"[..], b"\x95\xa1a", b"raw"][..]),
        ("EngineCoreRequest", &[b"\x01", b"\x91\xa1a"]),
        ("handshake", &[b"\x81\xa6status\xa5READY"]),
        ("handshake", &[b"\xde\x00\x01\xadmax_model_len\xcd\x10\x00"]),
        ("empty", &[b""]),
        ("coordination", &[b"\x01"]),
        ("coordination", &[b"READY"]),
        ("coordination", &[b"\x93\x92\x93\x00\x02\xcb\x3f\x10\x00\x00\x00\x00\x00\x00\x92\x00\x00\x00\xc3"]),
        ("coordination", &[b"\x93\xc0\x05\xc2"]),
        ("coordination", &[b"\x92\xc4\x02\x01\x00\x00"]),
        ("coordination", &[b"\x92\xa9FIRST_REQ\x01"]),
    ] {
        let decoded = decoders.decode(&mut carries, parts).expect(class);
        let shape = decoded.shape();
        assert_eq!((shape.class, shape.kind), (class, Kind::Control));
        assert!(decoded.chunks().is_empty() && !shape.schema.is_empty(), "{class}");
    }
    let dead = decoders.decode(&mut carries, &[b"ENGINE_CORE_DEAD"]).expect("dead");
    assert_eq!(dead.shape().kind, Kind::Failed);
    drop(dead);
    assert_eq!(carries, SocketFormat::default(), "only a batch shows what a socket carries");
}

/// Fields of every class, by its releases, from the generated table.
fn table() -> Vec<(String, String, Vec<String>)> {
    let text = include_str!("../../src/vllm/layouts.txt");
    let line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let (class, _, releases) = (words.next()?, words.next()?, words.next()?);
        class.starts_with("EngineCore").then(|| (class, releases, words.collect()))
    };
    text.lines().filter_map(line).collect()
}

#[derive(Clone, Debug)]
struct Made {
    rid: String,
    ids: Vec<u32>,
    finish: Option<u8>,
    count: u32,
}

fn made() -> impl Strategy<Value = Made> {
    ("[ -~]{1,40}", prop::collection::vec(any::<u32>(), 0..4), prop::option::of(0u8..6), any::<u32>())
        .prop_map(|(rid, ids, finish, count)| Made { rid, ids, finish, count })
}

/// An output in a layout; fields that are not read have arbitrary values.
fn output(fields: &[String], made: &Made, noise: &Value) -> Value {
    let field = |name: &String| match name.as_str() {
        "request_id" => Value::from(made.rid.as_str()),
        "new_token_ids" => Value::Array(made.ids.iter().map(|id| Value::from(*id)).collect()),
        "finish_reason" => made.finish.map_or(Value::Nil, Value::from),
        "finished" => Value::from(made.finish.is_some()),
        "num_cached_tokens" => Value::from(made.count),
        "prefill_stats" => Value::Map(vec![
            (Value::from("num_prompt_tokens"), Value::from(made.count)),
            (Value::from("num_cached_tokens"), Value::from(made.count / 2)),
        ]),
        // The value that tells two layouts of one length apart is never an integer here.
        "pooling_output" | "trace_headers" | "kv_transfer_params" => Value::Nil,
        _ => noise.clone(),
    };
    Value::Array(fields.iter().map(field).collect())
}

proptest! {
    #[test]
    fn every_layout_is_read_whatever_its_other_fields_hold(
        requests in prop::collection::vec(made(), 1..5),
        noise in prop::sample::select(vec![
            Value::Nil,
            Value::from(-7),
            Value::from("text"),
            Value::Array(vec![Value::from(1), Value::Map(vec![(Value::from("k"), Value::Nil)])]),
            Value::Ext(3, vec![0; 300]),
        ]),
    ) {
        let table = table();
        let of = |class: &'static str| table.iter().filter(move |(name, ..)| name == class);
        let mut decoder = Decoder::new(LONGEST);
        let mut layouts = 0;
        for (_, envelope, names) in of("EngineCoreOutputs") {
            let envelope: trace::engine::VersionRange = envelope.parse().unwrap();
            for (_, releases, fields) in of("EngineCoreOutput") {
                let range: trace::engine::VersionRange = releases.parse().unwrap();
                if range.first > envelope.last || envelope.first > range.last {
                    continue;
                }
                layouts += 1;
                let outputs = Value::Array(requests.iter().map(|made| output(fields, made, &noise)).collect());
                let value = names.iter().map(|name| match name.as_str() {
                    "outputs" => outputs.clone(),
                    "engine_index" => Value::from(1),
                    _ => noise.clone(),
                });
                let mut message = Vec::new();
                rmpv::encode::write_value(&mut message, &Value::Array(value.collect())).unwrap();
                let decoded = decoder.decode(&[&message]).map_err(|why| TestCaseError::fail(format!("{releases}: {why}")))?;
                let shown: trace::engine::VersionRange = decoded.shape().schema.parse().unwrap();
                prop_assert!(range.first <= shown.first && shown.last <= range.last);
                for (chunk, made) in decoded.chunks().iter().zip(&requests) {
                    prop_assert_eq!(chunk.rid, &made.rid);
                    prop_assert_eq!(chunk.listed, Some(made.ids.len() as u32));
                    prop_assert_eq!(chunk.finish.is_some(), made.finish.is_some());
                    let cached = fields.iter().any(|name| name == "num_cached_tokens");
                    let prefill = fields.iter().any(|name| name == "prefill_stats");
                    prop_assert_eq!(chunk.prompt_tokens, prefill.then_some(made.count));
                    let expected = if cached { Some(made.count) } else { prefill.then_some(made.count / 2) };
                    prop_assert_eq!(chunk.cached_tokens, expected);
                }
            }
        }
        prop_assert_eq!(layouts, 18);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), head in prop::sample::select(vec![
        &b"\x98\x00\x91\x9d"[..], b"\x99\x00\x91\xdc\x00\x13", b"\x91\x91\x95", b"\x98\x00", b"",
    ])) {
        let message = [head, &bytes].concat();
        let mut decoder = Decoder::new(LONGEST);
        let fresh = decoder.decode(&[&message]).map(|decoded| decoded.chunks().len());
        let again = decoder.decode(&[&message]).map(|decoded| decoded.chunks().len());
        prop_assert_eq!(fresh, again);
    }
}

/// What a probe captures of a part: 2 KiB from each end.
fn excerpt(part: &[u8]) -> Excerpt<'_> {
    const CAPTURED: usize = 2048;
    match part.len() {
        len if len > 2 * CAPTURED => {
            Excerpt { length: len as u64, head: &part[..CAPTURED], tail: &part[len - CAPTURED..] }
        }
        _ => Excerpt::whole(part),
    }
}

/// Each recorded request has the fields of the object that was encoded, read from the whole message and from its captured ends. Only the id
/// borrows from the message.
#[test]
fn every_recorded_request_is_the_encoded_object() {
    let mut messages = 0;
    for folder in releases() {
        let truth: Json =
            serde_json::from_slice(&fs::read(folder.join("requests.json")).expect("a truth")).expect("JSON");
        for (case, truth) in truth.as_object().expect("cases") {
            let name = format!("{} {case}", folder.display());
            let part = |index| fs::read(folder.join(format!("{case}.{index}"))).expect("a part");
            let parts: Vec<Vec<u8>> = (0..truth["parts"].as_u64().expect("a number")).map(part).collect();
            let expected: Vec<(String, Option<u32>, Option<f64>)> =
                serde_json::from_value(truth["requests"].clone()).expect("requests");
            let kind: DispatchKind = serde_json::from_value(truth["kind"].clone()).expect("a kind");
            let whole: Vec<Excerpt<'_>> = parts.iter().map(|part| Excerpt::whole(part)).collect();
            let ends: Vec<Excerpt<'_>> = parts.iter().map(|part| excerpt(part)).collect();
            for parts in [whole, ends] {
                let mut requests = Vec::new();
                assert_eq!((FORMAT.read_requests)(&parts, &mut requests), Ok(kind), "{name}");
                assert_eq!(requests.len(), expected.len(), "{name}");
                for (request, (rid, prompt_tokens, arrival)) in requests.iter().zip(&expected) {
                    // The head of a pickled list does not have its length.
                    let is_cut = parts.iter().any(|part| !part.is_whole() && part.head[0] == 0x80);
                    let prompt_tokens = prompt_tokens.filter(|_| !is_cut);
                    let arrived_unix_ns = arrival.map(|seconds| (seconds * 1e9) as u64);
                    let expected = DispatchedRequest { prompt_tokens, arrived_unix_ns, ..DispatchedRequest::new(rid) };
                    assert_eq!(*request, expected, "{name}");
                }
            }
            messages += 1;
        }
    }
    assert!(messages > 60, "{messages}");
}

/// The text in each recorded `ADD` is in nothing that was read.
#[test]
fn nothing_of_a_prompt_is_reachable() {
    const CANARY: &[u8] = b"canary-of-a-prompt";
    let mut with_text = 0;
    for folder in releases() {
        for case in ["request_add", "request_add_3000"] {
            let parts = (0..).map_while(|index| fs::read(folder.join(format!("{case}.{index}"))).ok());
            let parts: Vec<Vec<u8>> = parts.collect();
            let whole: Vec<Excerpt<'_>> = parts.iter().map(|part| Excerpt::whole(part)).collect();
            let mut requests = Vec::new();
            assert_eq!((FORMAT.read_requests)(&whole, &mut requests), Ok(DispatchKind::Requests), "{folder:?} {case}");
            assert!(!format!("{requests:?}").contains("canary"), "{requests:?}");
            // The id is the only part of the message that the result borrows.
            for request in &requests {
                let id = parts.iter().find(|part| part.as_ptr_range().contains(&request.rid.as_ptr()));
                assert!(id.is_some() && request.rid.len() < 100, "{request:?}");
            }
            with_text += usize::from(parts.iter().any(|part| memchr::memmem::find(part, CANARY).is_some()));
        }
    }
    assert_eq!(with_text, 32, "messages with the canary");
}

#[test]
fn requests_that_cannot_be_read_are_refused_by_reason() {
    let refused = |parts: &[Excerpt<'_>]| (FORMAT.read_requests)(parts, &mut Vec::new()).expect_err("refused").reason;
    let whole = Excerpt::whole;
    assert_eq!(refused(&[]), "codec");
    assert_eq!(refused(&[whole(b"\x07"), whole(b"\x90")]), "codec");
    assert_eq!(refused(&[whole(b"\0"), whole(b"hello")]), "codec");
    assert_eq!(refused(&[whole(b"\0"), whole(b"\x9a\xc0")]), "column");
    assert_eq!(refused(&[whole(b"\0\0"), whole(b"\x01"), whole(b"\x92\xa1a")]), "column");
    let cut = Excerpt { length: 100, head: b"\x92\xa1a", tail: b"b" };
    assert_eq!(refused(&[whole(b"\x01"), cut]), "cut-by-capture");
}

proptest! {
    #[test]
    fn damaged_requests_never_panic(
        place in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 0..6),
        kind in 0..2u8,
    ) {
        let folders = releases();
        let folder = &folders[place.index(folders.len())];
        let part = |index| fs::read(folder.join(format!("request_add.{index}")));
        let mut payload = part(2).or_else(|_| part(1)).expect("a request");
        for (place, bit) in flips {
            let index = place.index(payload.len());
            payload[index] ^= 1 << bit;
        }
        let kind = [kind];
        let cut = cut.index(payload.len() + 1);
        let ends = Excerpt { length: 1 << 20, head: &payload[..cut], tail: &payload[cut..] };
        for payload in [Excerpt::whole(&payload[..cut]), ends] {
            let _ = (FORMAT.read_requests)(&[Excerpt::whole(&kind), payload], &mut Vec::new());
        }
    }
}
