//! Recorded frames of real releases are decoded and encoded again; every byte must match.

use engines::sglang::wire::{Decoder, Limits};
use trace::event::Chunk;

use super::Engine;
use super::layout::Release;
use super::message::{Finish, Row, text_batch, token_batch};
use super::vllm::{self, Stats};

macro_rules! recorded {
    ($case:literal of $($release:ident $version:literal),+) => {
        [$((
            Release::$release,
            include_bytes!(concat!("../../../../zmq-tap/fixtures/messages/", $version, "/", $case, ".pkl")).as_slice(),
        )),+]
    };
    ($case:literal) => { recorded!($case of V0_5_9 "0.5.9", V0_5_10 "0.5.10", V0_5_13 "0.5.13") };
}

/// Decodes `message`, lets `change` add what chunks do not contain, and encodes it again.
fn again(message: &[u8], change: impl Fn(usize, &mut Row<'_>), write: impl Fn(&[Row<'_>]) -> Vec<u8>) -> Vec<u8> {
    let mut decoder = Decoder::new(Limits::default()).with_ids();
    let batch = decoder.decode(message).expect("a recorded frame");
    let of = |chunk: &Chunk<'_>| chunk.ids.iter().map(|id| *id as u32).collect();
    let ids: Vec<Vec<u32>> = batch.chunks().iter().map(of).collect();
    let row = |i: usize| {
        let chunk = batch.chunks()[i];
        let mut row = Row {
            rid: chunk.rid,
            worker: chunk.worker,
            ids: &ids[i],
            prompt_tokens: chunk.prompt_tokens.expect("a count"),
            completion_tokens: chunk.completion_tokens.expect("a count"),
            ..Row::default()
        };
        change(i, &mut row);
        row
    };
    write(&(0..batch.chunks().len()).map(row).collect::<Vec<_>>())
}

/// Tail of the test prompt, which a first chunk contains in `decode_ids`.
const PROMPT_TAIL: [u32; 5] = [102, 103, 104, 105, 106];

#[test]
fn delta_batches_match_the_recorded_bytes() {
    let few = recorded!("skip_delta_15rid");
    let many = recorded!("skip_delta_256rid" of V0_5_9 "0.5.9", V0_5_13 "0.5.13");
    for (release, message) in few.into_iter().chain(many) {
        assert_eq!(again(message, |_, _| {}, |rows| token_batch(release, rows, false)), message, "{release:?}");
    }
}

#[test]
fn first_chunks_match_the_recorded_bytes() {
    for (release, message) in recorded!("skip_first_1rid").into_iter().chain(recorded!("skip_http_worker_ipcs_3rid")) {
        let first = |_: usize, row: &mut Row<'_>| row.prompt_tail = &PROMPT_TAIL;
        assert_eq!(again(message, first, |rows| token_batch(release, rows, false)), message, "{release:?}");
    }
}

#[test]
fn text_batches_match_the_recorded_bytes() {
    let texts = [" t0 t255", " t65535 t65536", " t151643 t199999"];
    for (release, message) in recorded!("str_delta_3rid") {
        let with_text = |i: usize, row: &mut Row<'_>| {
            row.text = texts[i];
            row.finish = (i == 0).then_some(Finish::Length(3));
        };
        assert_eq!(again(message, with_text, |rows| text_batch(release, rows, false)), message, "{release:?}");
    }
}

/// Size at which CPython starts a second pickle frame; this pickler supports only one.
const FRAME_TARGET: usize = 64 << 10;

#[test]
fn the_largest_batch_of_the_demo_fits_one_pickle_frame() {
    let rid = "d5a06630b7c75f3897de269456fef0c2";
    let row = Row {
        rid,
        prompt_tail: &PROMPT_TAIL,
        ids: &[151_642; 4],
        prompt_tokens: 8000,
        completion_tokens: 70_000,
        ..Row::default()
    };
    for release in [Release::V0_5_9, Release::V0_5_10, Release::V0_5_13] {
        let written = token_batch(release, &[row; 128], false);
        assert!(written.len() < FRAME_TARGET, "{release:?}: {} bytes", written.len());
    }
}

#[test]
fn finish_reasons_and_router_messages_decode() {
    let rid = "d5a06630b7c75f3897de269456fef0c2";
    let finishes = [Finish::Length(9), Finish::Stop(13), Finish::Abort];
    for release in [Release::V0_5_9, Release::V0_5_10, Release::V0_5_13] {
        for finish in finishes {
            let row = Row {
                rid,
                worker: Some("ipc:///tmp/tmpaaaaaaaa"),
                finish: Some(finish),
                ids: &[13],
                text: " the",
                prompt_tokens: 7,
                completion_tokens: 9,
                ..Row::default()
            };
            let alone = Row { worker: None, ..row };
            for message in [token_batch(release, &[row], true), text_batch(release, &[alone], true)] {
                let mut decoder = Decoder::new(Limits::default());
                let batch = decoder.decode(&message).unwrap_or_else(|why| panic!("{release:?}: {why}"));
                let kind = batch.chunks()[0].finish.expect("finished");
                assert_eq!(format!("{kind:?}"), format!("{finish:?}").split('(').next().unwrap_or_default());
                assert_eq!(batch.chunks()[0].completion_tokens, Some(9));
            }
        }
    }
}

/// Rows with the ids of a recorded message of vLLM.
fn vllm_rows<'a>(chunks: &[Chunk<'a>], ids: &'a [Vec<u32>]) -> Vec<Row<'a>> {
    let rows = chunks.iter().zip(ids);
    rows.map(|(chunk, ids)| Row { rid: chunk.rid, ids, ..Row::default() }).collect()
}

#[test]
fn vllm_outputs_match_the_recorded_bytes() {
    macro_rules! recorded {
        ($($case:literal),+) => {
            [$(($case, include_bytes!(concat!("../../../../engines/fixtures/vllm/0.33.0/", $case, ".0")).as_slice())),+]
        };
    }
    for (case, message) in recorded!("delta_1", "delta_15", "delta_64", "delta_256") {
        let mut decoder = Engine::Vllm.decoder();
        decoder.keep_ids();
        let parts = [message];
        let decoded = decoder.decode(&parts).expect("a recorded message");
        let ids: Vec<Vec<u32>> =
            decoded.chunks().iter().map(|chunk| chunk.ids.iter().map(|&id| id as u32).collect()).collect();
        let rows = vllm_rows(decoded.chunks(), &ids);
        let stats = Stats { running: rows.len().max(64), waiting: 3, step: 17 };
        let written = vllm::outputs(&rows, (case != "delta_15").then_some(stats), 12_345.678_901);
        assert_eq!(written, message, "{case}");
    }
}

#[test]
fn vllm_finish_reasons_and_first_outputs_decode() {
    let tail = [1; 5];
    for (finish, prompt_tail) in
        [(None, &tail[..]), (Some(Finish::Length(2)), &[]), (Some(Finish::Stop(13)), &[]), (Some(Finish::Abort), &[])]
    {
        let row = Row {
            rid: "chatcmpl-8135776a25397c1d-924710c0",
            finish,
            prompt_tail,
            ids: &[13, 151_642],
            prompt_tokens: 400,
            completion_tokens: 2,
            ..Row::default()
        };
        let message = vllm::outputs(&[row], None, 0.0);
        let mut decoder = Engine::Vllm.decoder();
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
