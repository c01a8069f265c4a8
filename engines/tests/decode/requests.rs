//! Compares what is read of recorded messages to the scheduler with the requests that a real release sent (`cargo xtask fixtures`).

use crate::common;
use std::fs;

use adapter::decode::{Excerpt, Refused};
use engines::sglang;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use trace::event::{DispatchKind, DispatchedRequest};

/// Number of bytes that a probe captures from each end of a message.
const CAPTURED: usize = 2048;
/// Part of every prompt's text in the recorded messages.
const CANARY: &str = "canary-of-a-prompt";

fn read<'a>(message: Excerpt<'a>, requests: &mut Vec<DispatchedRequest<'a>>) -> Result<DispatchKind, Refused> {
    (sglang::FORMAT.read_requests)(&[message], requests)
}

/// What a probe captures of a message.
fn excerpt(message: &[u8], captured: usize) -> Excerpt<'_> {
    if message.len() <= 2 * captured {
        return Excerpt::whole(message);
    }
    let (head, tail) = (&message[..captured], &message[message.len() - captured..]);
    Excerpt { length: message.len() as u64, head, tail }
}

/// Kind and requests of a recorded message according to its sidecar.
fn expected_requests(sidecar: &Json) -> (DispatchKind, Json) {
    match (sidecar["class"].as_str(), sidecar.get("requests")) {
        (_, Some(requests)) => (DispatchKind::Requests, requests.clone()),
        (Some("AbortReq"), None) => {
            (DispatchKind::Aborts, json!([{ "rid": sidecar["rid"], "prompt_tokens": null, "room": null }]))
        }
        _ => (DispatchKind::Control, json!([])),
    }
}

fn to_json(requests: &[DispatchedRequest<'_>]) -> Json {
    let request = |request: &DispatchedRequest<'_>| {
        assert_eq!(request.arrived_unix_ns, None, "no field of SGLang has it");
        json!({ "rid": request.rid, "prompt_tokens": request.prompt_tokens, "room": request.room })
    };
    requests.iter().map(request).collect()
}

/// Calls `check` with the name, the message and its sidecar.
fn for_each_message(mut check: impl FnMut(&str, &[u8], &Json)) {
    for path in common::messages() {
        let sidecar = fs::read(path.with_extension("json")).expect("a sidecar");
        let message = fs::read(&path).expect("a message");
        check(&path.display().to_string(), &message, &serde_json::from_slice(&sidecar).expect("JSON"));
    }
}

#[test]
fn every_recorded_message_has_the_requests_of_its_sidecar() {
    let (mut requests_read, mut batches) = (0, 0);
    for_each_message(|name, message, sidecar| {
        let mut requests = Vec::new();
        let kind = read(Excerpt::whole(message), &mut requests).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!((kind, to_json(&requests)), expected_requests(sidecar), "{name}");
        requests_read += usize::from(kind == DispatchKind::Requests);
        batches += usize::from(requests.len() > 1);
    });
    assert!(requests_read > 50 && batches > 8, "{requests_read} messages with requests, {batches} batches");
}

#[test]
fn both_ends_of_a_long_message_show_its_request() {
    let mut long = 0;
    for_each_message(|name, message, sidecar| {
        let (kind, mut expected) = expected_requests(sidecar);
        if message.len() <= 2 * CAPTURED || kind != DispatchKind::Requests {
            return;
        }
        // Only the length of an array stands before its content.
        if name.ends_with("pkl") && message.len() < 20_000 {
            expected[0]["prompt_tokens"] = Json::Null;
        }
        let mut requests = Vec::new();
        let read = read(excerpt(message, CAPTURED), &mut requests).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!((read, to_json(&requests)), (kind, expected), "{name}");
        long += 1;
    });
    assert!(long > 8, "{long}");
}

/// A value that was not captured is absent, never another one.
#[test]
fn shorter_excerpts_show_fewer_values() {
    for_each_message(|name, message, sidecar| {
        let (_, expected) = expected_requests(sidecar);
        for captured in [64, 100, 128, 200, 256, 300, 400, 512, 700, 1000] {
            let mut requests = Vec::new();
            let Ok(kind) = read(excerpt(message, captured), &mut requests) else { continue };
            assert_eq!(kind, expected_requests(sidecar).0, "{name}");
            assert_eq!(requests.len(), expected.as_array().map_or(0, Vec::len), "{name}");
            for (request, expected) in
                to_json(&requests).as_array().expect("requests").iter().zip(expected.as_array().expect("requests"))
            {
                assert_eq!(request["rid"], expected["rid"], "{name} {captured}");
                for value in ["prompt_tokens", "room"] {
                    assert!(
                        request[value].is_null() || request[value] == expected[value],
                        "{name} {captured}: {request}"
                    );
                }
            }
        }
    });
}

/// The first requests of a batch that was cut are known, whatever its length.
#[test]
fn a_batch_that_was_not_captured_completely_shows_its_first_requests() {
    let mut some = 0;
    for_each_message(|name, message, sidecar| {
        if !sidecar["class"].as_str().is_some_and(|class| class.starts_with("BatchTokenized")) {
            return;
        }
        let expected = expected_requests(sidecar).1;
        let expected = expected.as_array().expect("requests");
        for captured in [100, 200, 300, 500, 800, 1_000, 1_200, 1_400] {
            let mut requests = Vec::new();
            let kind = read(excerpt(message, captured), &mut requests);
            if message.len() <= 2 * captured {
                assert_eq!(kind, Ok(DispatchKind::Requests), "{name}");
                continue;
            }
            // All heads of a message in msgpack may be captured.
            match kind {
                Ok(_) => assert_eq!(requests.len(), expected.len(), "{name} {captured}"),
                Err(why) => assert_eq!(why.reason, "cut-by-capture", "{name} {captured}"),
            }
            for (request, expected) in to_json(&requests).as_array().expect("requests").iter().zip(expected) {
                assert_eq!(request["rid"], expected["rid"], "{name} {captured}");
                assert!(
                    request["prompt_tokens"].is_null() || request["prompt_tokens"] == expected["prompt_tokens"],
                    "{name} {captured}"
                );
            }
            some += usize::from((1..3).contains(&requests.len()));
        }
    });
    assert!(some > 20, "{some}");
}

#[test]
fn nothing_of_a_prompt_is_reachable() {
    let mut with_text = 0;
    for_each_message(|name, message, sidecar| {
        let mut requests = Vec::new();
        let kind = read(Excerpt::whole(message), &mut requests).expect("requests");
        let text = message.windows(CANARY.len()).position(|window| window == CANARY.as_bytes());
        assert!(!format!("{requests:?}").contains(CANARY), "{name}");
        if kind != DispatchKind::Requests {
            return;
        }
        // The id is the only part of the message that the result borrows.
        for (request, expected) in requests.iter().zip(sidecar["requests"].as_array().expect("requests")) {
            assert_eq!(request.rid.len(), expected["rid"].as_str().expect("an id").len(), "{name}");
            assert!(message.as_ptr_range().contains(&request.rid.as_ptr()), "{name}");
        }
        with_text += usize::from(text.is_some());
    });
    assert!(with_text > 30, "{with_text} messages with the canary");
}

#[test]
fn an_abort_of_all_requests_names_none() {
    for message in [
        &b"\x96\xa8AbortReq\xa1a\xc0\xc3\xc0\xc0"[..],
        b"\x80\x04\x8c\x1dsglang.srt.managers.io_struct\x94\x8c\x08AbortReq\x94\x93\x94)\x81\x94}\x94(\x8c\x03rid\x94\x8c\x01a\x94\x8c\x09abort_all\x94\x88ub.",
        b"\x80\x04\x8c\x1dsglang.srt.managers.io_struct\x94\x8c\x08AbortReq\x94\x93\x94)\x81\x94}\x94\x8c\x03rid\x94\x8c\x00\x94sb.",
    ] {
        let mut requests = Vec::new();
        assert_eq!(read(Excerpt::whole(message), &mut requests), Ok(DispatchKind::Aborts));
        assert_eq!(requests, []);
    }
}

/// Names of fields that a client chooses as keys and values.
#[test]
fn keys_that_a_client_chooses_are_not_fields() {
    let key = |name: &str| [&[0x8c, name.len() as u8], name.as_bytes(), b"\x94"].concat();
    let chosen = [
        b"}\x94(".to_vec(),
        key("rid"),
        key("x"),
        key("input_ids"),
        b"]\x94K\x01a".to_vec(),
        key("bootstrap_room"),
        b"K\x07u".to_vec(),
    ];
    let one = [b"}\x94".to_vec(), key("bootstrap_room"), b"K\x07s".to_vec()];
    let object = |fields: &[Vec<u8>]| [b")\x81\x94}\x94(".as_slice(), &fields.concat(), b"ub"].concat();
    let request = |rid: &str| {
        object(&[
            key("rid"),
            key(rid),
            key("input_text"),
            key("input_ids"),
            key("input_ids"),
            b"]\x94(K\x01K\x02e".to_vec(),
            key("custom_params"),
            chosen.concat(),
            key("session_params"),
            one.concat(),
            key("bootstrap_room"),
            b"K\x05".to_vec(),
            key("extra_key"),
            key("bootstrap_room"),
        ])
    };
    let global = |name: &str| [key("sglang.srt.managers.io_struct"), key(name), b"\x93\x94".to_vec()].concat();
    let single = [b"\x80\x04".to_vec(), global("TokenizedGenerateReqInput"), request("a"), b".".to_vec()].concat();
    let batch = object(&[
        key("rids"),
        [b"]\x94(".to_vec(), key("rid"), key("b"), b"e".to_vec()].concat(),
        key("batch"),
        b"]\x94(".to_vec(),
        global("TokenizedGenerateReqInput"),
        request("a"),
        global("TokenizedGenerateReqInput"),
        request("b"),
        b"e".to_vec(),
    ]);
    let batch = [b"\x80\x04".to_vec(), global("BatchTokenizedGenerateReqInput"), batch, b".".to_vec()].concat();
    for (message, rids) in [(single, &["a"][..]), (batch, &["a", "b"])] {
        let mut requests = Vec::new();
        assert_eq!(read(Excerpt::whole(&message), &mut requests), Ok(DispatchKind::Requests));
        let expected = |rid| DispatchedRequest { prompt_tokens: Some(2), room: Some(5), ..DispatchedRequest::new(rid) };
        assert_eq!(requests, rids.iter().copied().map(expected).collect::<Vec<_>>());
    }
}

#[test]
fn refusals_name_their_reason() {
    let refused = |message: &[u8]| read(Excerpt::whole(message), &mut Vec::new()).expect_err("refused").reason;
    assert_eq!(refused(b"hello"), "codec");
    assert_eq!(refused(b"\x80\x04N"), "truncated");
    assert_eq!(refused(b"\x80\x04N."), "malformed");
    assert_eq!(refused(b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93."), "unknown-class");
    assert_eq!(refused(b"\x92\xa4What\xc0"), "unknown-class");
    assert_eq!((sglang::FORMAT.read_requests)(&[], &mut Vec::new()).expect_err("refused").reason, "multipart");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn damaged_messages_never_panic(
        index in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        captured in 1_usize..3000,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u32), 0..6),
    ) {
        let paths = common::messages();
        let paths: Vec<_> = paths.iter().filter(|path| path.display().to_string().contains("/req_")).collect();
        let mut message = fs::read(paths[index.index(paths.len())]).expect("a message");
        for (place, bit) in flips {
            let index = place.index(message.len());
            message[index] ^= 1 << bit;
        }
        let message = &message[..cut.index(message.len() + 1)];
        let _ = read(Excerpt::whole(message), &mut Vec::new());
        let _ = read(excerpt(message, captured), &mut Vec::new());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512), captured in 1_usize..256) {
        for start in [&[0x80, 4][..], b"\xdc\x00\x32\xb9TokenizedGenerateReqInput", b""] {
            let _ = read(excerpt(&[start, &bytes, b"."].concat(), captured), &mut Vec::new());
        }
    }
}
