//! Recorded frames of the real releases, written again from what they say: every byte must come out the same.

use super::message::{Finish, Row, text_batch, token_batch};
use super::pickle::FRAME_TARGET;
use super::layout::Release;

/// The four recordings of one release: first chunk, 15 requests, three workers, and the detokenizer's output.
struct Recorded {
    release: Release,
    first: &'static [u8],
    many: &'static [u8],
    workers: &'static [u8],
    text: &'static [u8],
}

macro_rules! recorded {
    ($release:expr, $version:literal) => {
        Recorded {
            release: $release,
            first: include_bytes!(concat!("../recorded/", $version, "-skip_first_1rid.pkl")),
            many: include_bytes!(concat!("../recorded/", $version, "-skip_delta_15rid.pkl")),
            workers: include_bytes!(concat!("../recorded/", $version, "-skip_http_worker_ipcs_3rid.pkl")),
            text: include_bytes!(concat!("../recorded/", $version, "-str_delta_3rid.pkl")),
        }
    };
}

const RECORDED: [Recorded; 3] = [
    recorded!(Release::V0_5_9, "0.5.9"),
    recorded!(Release::V0_5_10, "0.5.10"),
    recorded!(Release::V0_5_13, "0.5.13"),
];

const PROMPT_TAIL: [u32; 5] = [102, 103, 104, 105, 106];

/// The rids of a recorded frame: its strings of 32 hex digits.
fn rids(message: &[u8]) -> Vec<&str> {
    let is_rid = |w: &&[u8]| w[..2] == [0x8c, 32] && w[2..].iter().all(u8::is_ascii_hexdigit);
    message.windows(34).filter(is_rid).filter_map(|w| std::str::from_utf8(&w[2..]).ok()).collect()
}

fn row<'a>(rid: &'a str, ids: &'a [u32], completion_tokens: u32) -> Row<'a> {
    Row { rid, worker: None, finish: None, prompt_tail: &[], ids, text: "", prompt_tokens: 7, completion_tokens }
}

#[test]
fn a_first_chunk_is_written_as_the_release_writes_it() {
    for recorded in &RECORDED {
        let first = Row { prompt_tail: &PROMPT_TAIL, ..row(rids(recorded.first)[0], &[13], 1) };
        assert_eq!(token_batch(recorded.release, &[first], false), recorded.first, "{:?}", recorded.release);
    }
}

#[test]
fn a_batch_of_fifteen_is_written_as_the_release_writes_it() {
    let ids: [&[u32]; 15] = [
        &[0],
        &[65536, 128_009],
        &[1],
        &[13, 0],
        &[65535],
        &[199_999, 1],
        &[1],
        &[256, 65535],
        &[151_643],
        &[199_999, 1],
        &[255],
        &[128_009, 151_643],
        &[151_643],
        &[0, 255],
        &[65536],
    ];
    let completion = [2, 4, 4, 3, 3, 5, 2, 4, 4, 3, 3, 5, 2, 4, 4];
    for recorded in &RECORDED {
        let rids = rids(recorded.many);
        let rows: Vec<_> = (0..15).map(|i| row(rids[i], ids[i], completion[i])).collect();
        assert_eq!(token_batch(recorded.release, &rows, false), recorded.many, "{:?}", recorded.release);
    }
}

#[test]
fn a_batch_for_several_workers_is_written_as_the_release_writes_it() {
    let workers = ["ipc:///tmp/tmpaaaaaaaa", "ipc:///tmp/tmpbbbbbbbb", "ipc:///tmp/tmpcccccccc"];
    let ids: [&[u32]; 3] = [&[13], &[256], &[128_009]];
    for recorded in &RECORDED {
        let rids = rids(recorded.workers);
        let rows: Vec<_> = (0..3)
            .map(|i| Row { worker: Some(workers[i]), prompt_tail: &PROMPT_TAIL, ..row(rids[i], ids[i], 1) })
            .collect();
        assert_eq!(token_batch(recorded.release, &rows, false), recorded.workers, "{:?}", recorded.release);
    }
}

#[test]
fn a_batch_of_text_is_written_as_the_release_writes_it() {
    let ids: [&[u32]; 3] = [&[0, 255], &[65535, 65536], &[151_643, 199_999]];
    let text = [" t0 t255", " t65535 t65536", " t151643 t199999"];
    for recorded in &RECORDED {
        let rids = rids(recorded.text);
        let mut rows: Vec<_> = (0..3).map(|i| Row { text: text[i], ..row(rids[i], ids[i], 3) }).collect();
        rows[0].finish = Some(Finish::Length(3));
        assert_eq!(text_batch(recorded.release, &rows, false), recorded.text, "{:?}", recorded.release);
    }
}

#[test]
fn the_largest_batch_of_the_demo_fits_one_pickle_frame() {
    let rid = "d5a06630b7c75f3897de269456fef0c2";
    let ids = [151_643; 8];
    for recorded in &RECORDED {
        let rows = vec![row(rid, &ids, 70_000); 160];
        let written = token_batch(recorded.release, &rows, false);
        assert!(written.len() < FRAME_TARGET, "{:?}: {} bytes", recorded.release, written.len());
    }
}
