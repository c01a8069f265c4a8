//! Recorded frames of real releases are decoded and encoded again; every byte must match.

use adapter::decode::{EngineSeconds, Excerpt};
use engines::sglang::wire::{Decoder, Limits};
use trace::event::{DispatchKind, DispatchedRequest};

use super::DemoEngine;
use super::message::{BatchRow, Class, Finish, RequestRow, SglangRelease, encode_batch};
use super::vllm::{self, Stats};
use crate::demo::scenario::PROMPT;

const RELEASES: [SglangRelease; 3] = [SglangRelease::V0_5_9, SglangRelease::V0_5_10, SglangRelease::V0_5_13];

/// Recorded message of a folder of fixtures.
fn recorded(path: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).expect("a recorded message")
}

/// Decodes the recorded messages of `releases`, lets `change` add what chunks do not contain, and checks that they are encoded as the same
/// bytes.
fn check(releases: &[SglangRelease], case: &str, class: Class, change: impl Fn(usize, &mut BatchRow<'_>)) {
    for &release in releases {
        let message = recorded(&format!("zmq-tap/fixtures/messages/{}/{case}.pkl", release.version()));
        let mut decoder = Decoder::new(Limits::default()).with_ids();
        let decoded = decoder.decode(&message).expect("a recorded frame");
        let row = |i: usize| {
            let chunk = decoded.chunks()[i];
            let mut row = BatchRow {
                rid: chunk.rid,
                worker: chunk.worker,
                ids: chunk.ids,
                prompt_tokens: chunk.prompt_tokens.expect("a count"),
                completion_tokens: chunk.completion_tokens.expect("a count"),
                ..BatchRow::default()
            };
            change(i, &mut row);
            row
        };
        let rows: Vec<_> = (0..decoded.chunks().len()).map(row).collect();
        assert_eq!(encode_batch(release, class, &rows, false), message, "{case} of {release:?}");
    }
}

/// Tail of the test prompt, which a first chunk contains in `decode_ids`.
const PROMPT_TAIL: [i64; 5] = [102, 103, 104, 105, 106];

#[test]
fn batches_match_the_recorded_bytes() {
    check(&RELEASES, "skip_delta_15rid", Class::TokenIds, |_, _| {});
    check(&[SglangRelease::V0_5_9, SglangRelease::V0_5_13], "skip_delta_256rid", Class::TokenIds, |_, _| {});
    for first in ["skip_first_1rid", "skip_http_worker_ipcs_3rid"] {
        check(&RELEASES, first, Class::TokenIds, |_, row| row.prompt_tail = &PROMPT_TAIL);
    }
    let texts = [" t0 t255", " t65535 t65536", " t151643 t199999"];
    check(&RELEASES, "str_delta_3rid", Class::Text, |i, row| {
        row.text = texts[i];
        row.finish = (i == 0).then_some(Finish::Length(3));
    });
}

/// Size at which CPython starts a second pickle frame; this pickler supports only one.
const FRAME_TARGET: usize = 64 << 10;

#[test]
fn the_largest_batch_of_the_demo_fits_one_pickle_frame() {
    let rid = "d5a06630b7c75f3897de269456fef0c2";
    let row = BatchRow {
        rid,
        prompt_tail: &PROMPT_TAIL,
        ids: &[151_642; 4],
        prompt_tokens: 8000,
        completion_tokens: 70_000,
        times: EngineSeconds { queued: 1.5, batch_entered: 2.5, prefill_finished: 3.5 },
        ..BatchRow::default()
    };
    for release in RELEASES {
        let written = encode_batch(release, Class::TokenIds, &vec![row; 128], false);
        assert!(written.len() < FRAME_TARGET, "{release:?}: {} bytes", written.len());
    }
}

#[test]
fn times_match_the_recorded_bytes() {
    let seconds = |queued| EngineSeconds { queued, ..EngineSeconds::default() };
    let first = EngineSeconds {
        queued: 4_697.332_429_685,
        batch_entered: 4_697.432_429_685,
        prefill_finished: 4_697.622_429_685,
    };
    check(&[SglangRelease::V0_5_10, SglangRelease::V0_5_13], "skip_engine_times_2rid", Class::TokenIds, |i, row| {
        row.prompt_tail = &PROMPT_TAIL;
        row.times = [first, seconds(4_697.512)][i];
        row.wall_clock_lead = 1_795_224_040.024_825_3;
    });
}

#[test]
fn requests_match_the_recorded_bytes() {
    let prompt: Vec<i64> =
        [13, 0, 255, 256, 65_535, 65_536, 128_009, 151_643, 199_999, 1].into_iter().cycle().take(40).collect();
    for release in RELEASES {
        let message = recorded(&format!("zmq-tap/fixtures/messages/{}/req_text.pkl", release.version()));
        let mut requests = Vec::new();
        let parts = [Excerpt::whole(&message)];
        (engines::sglang::FORMAT.read_requests)(&parts, &mut requests).expect("a recorded request");
        let row = RequestRow {
            rid: requests[0].rid,
            text: "canary-of-a-prompt",
            prompt: &prompt,
            stop: &["rid", "input_ids"],
            extra_key: Some("bootstrap_room"),
            ..RequestRow::default()
        };
        assert_eq!(DemoEngine::Sglang(release).encode_request_parts(&row), [message], "{release:?}");
    }
}

#[test]
fn vllm_requests_are_read() {
    let row = RequestRow {
        rid: "chatcmpl-8135776a25397c1d",
        prompt: &[13, 70_000],
        arrived: 1_764_362_096.5,
        ..RequestRow::default()
    };
    let message = DemoEngine::Vllm.encode_request_parts(&row);
    let parts: Vec<_> = message.iter().map(|part| Excerpt::whole(part)).collect();
    let mut requests = Vec::new();
    let kind = (engines::vllm::FORMAT.read_requests)(&parts, &mut requests).expect("our own request");
    let expected = DispatchedRequest {
        prompt_tokens: Some(2),
        arrived_unix_ns: Some(1_764_362_096_500_000_000),
        ..DispatchedRequest::new(row.rid)
    };
    assert_eq!((kind, requests), (DispatchKind::Requests, vec![expected]));
}

#[test]
fn the_longest_prompt_of_the_demo_fits_one_pickle_frame() {
    let (text, prompt) = ("throughput ".repeat(256), vec![151_642; PROMPT.max as usize]);
    let row =
        RequestRow { rid: "d5a06630b7c75f3897de269456fef0c2", text: &text, prompt: &prompt, ..RequestRow::default() };
    for release in RELEASES {
        let [written] = &DemoEngine::Sglang(release).encode_request_parts(&row)[..] else { panic!("one part") };
        assert!(written.len() < FRAME_TARGET, "{release:?}: {} bytes", written.len());
    }
}

#[test]
fn finish_reasons_and_router_messages_decode() {
    let rid = "d5a06630b7c75f3897de269456fef0c2";
    let finishes = [Finish::Length(9), Finish::Stop(13), Finish::Abort];
    for release in RELEASES {
        for finish in finishes {
            let row = BatchRow {
                rid,
                worker: Some("ipc:///tmp/tmpaaaaaaaa"),
                finish: Some(finish),
                ids: &[13],
                text: " the",
                prompt_tokens: 7,
                completion_tokens: 9,
                ..BatchRow::default()
            };
            let alone = BatchRow { worker: None, ..row };
            for (class, row) in [(Class::TokenIds, row), (Class::Text, alone)] {
                let message = encode_batch(release, class, &[row], true);
                let mut decoder = Decoder::new(Limits::default());
                let decoded = decoder.decode(&message).unwrap_or_else(|why| panic!("{release:?}: {why}"));
                let kind = decoded.chunks()[0].finish.expect("finished");
                assert_eq!(format!("{kind:?}"), format!("{finish:?}").split('(').next().unwrap_or_default());
                assert_eq!(decoded.chunks()[0].completion_tokens, Some(9));
            }
        }
    }
}

#[test]
fn vllm_outputs_match_the_recorded_bytes() {
    for case in ["delta_1", "delta_15", "delta_64", "delta_256"] {
        let message = recorded(&format!("engines/fixtures/vllm/0.33.0/{case}.0"));
        let mut decoder = DemoEngine::Vllm.decoder();
        decoder.keep_ids();
        let parts = [message.as_slice()];
        let decoded = decoder.decode(&parts).expect("a recorded message");
        let rows: Vec<_> = decoded
            .chunks()
            .iter()
            .map(|chunk| BatchRow { rid: chunk.rid, ids: chunk.ids, ..BatchRow::default() })
            .collect();
        let stats = Stats { running: rows.len().max(64), waiting: 3, step: 17 };
        let written = vllm::encode_outputs(&rows, (case != "delta_15").then_some(stats), 12_345.678_901);
        assert_eq!(written, message, "{case}");
    }
}

#[test]
fn vllm_finish_reasons_and_first_outputs_decode() {
    let tail = [1; 5];
    for (finish, prompt_tail) in
        [(None, &tail[..]), (Some(Finish::Length(2)), &[]), (Some(Finish::Stop(13)), &[]), (Some(Finish::Abort), &[])]
    {
        let row = BatchRow {
            rid: "chatcmpl-8135776a25397c1d-924710c0",
            finish,
            prompt_tail,
            ids: &[13, 151_642],
            prompt_tokens: 400,
            completion_tokens: 2,
            ..BatchRow::default()
        };
        let message = vllm::encode_outputs(&[row], None, 0.0);
        let mut decoder = DemoEngine::Vllm.decoder();
        let parts = [message.as_slice()];
        let decoded = decoder.decode(&parts).expect("our own message");
        let [chunk] = decoded.chunks() else { panic!("{finish:?}: {decoded:?}") };
        assert_eq!((chunk.rid, chunk.listed), (row.rid, Some(2)));
        assert_eq!(chunk.prompt_tokens, (!prompt_tail.is_empty()).then_some(400));
        let kind = chunk.finish.map(|kind| format!("{kind:?}"));
        let expected = finish.map(|finish| format!("{finish:?}").split('(').next().unwrap_or_default().to_owned());
        assert_eq!(kind, expected);
    }
}
