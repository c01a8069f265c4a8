//! Tests that a warmed-up decoder, and reading requests, do not allocate.

mod common;

use std::alloc::System;
use std::path::Path;

use adapter::decode::Excerpt;
use engines::sglang::FORMAT;
use engines::sglang::wire::{Decoder, Limits};
use engines::vllm;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The recorded messages of vLLM whose names begin with this, each with its parts.
fn vllm_messages(case: &str) -> Vec<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    let releases = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/vllm")).unwrap();
    for release in releases.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        let parts = (0..).map_while(|index| std::fs::read(release.join(format!("{case}.{index}"))).ok());
        messages.push(parts.collect());
    }
    messages
}

#[test]
fn decoding_allocates_nothing_after_warm_up() {
    let messages: Vec<Vec<u8>> = common::messages().iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut decoder = Decoder::new(Limits::default()).with_ids();
    let vllm: Vec<_> =
        ["request_add", "request_add_3000", "request_abort"].into_iter().flat_map(vllm_messages).collect();
    let mut vllm_requests = 0;
    let (mut tokens, mut requests) = (0, Vec::with_capacity(16));
    let mut round = || {
        for message in &messages {
            let batch = decoder.decode(message).unwrap();
            tokens += batch.chunks().iter().map(|chunk| chunk.ids.len()).sum::<usize>();
            drop(batch);
            tokens += (FORMAT.read_requests)(&[Excerpt::whole(message)], &mut requests).map_or(0, |_| requests.len());
            requests.clear();
        }
        for parts in &vllm {
            let mut excerpts = [Excerpt::whole(&[]); 3];
            excerpts.iter_mut().zip(parts).for_each(|(excerpt, part)| *excerpt = Excerpt::whole(part));
            (vllm::FORMAT.read_requests)(&excerpts[..parts.len()], &mut requests).unwrap();
            vllm_requests += requests.len();
            requests.clear();
        }
    };
    round();
    let region = Region::new(ALLOCATOR);
    round();
    let change = region.change();
    assert_eq!(change.allocations + change.reallocations, 0, "over {} messages", messages.len());
    assert!(tokens > 10_000 && vllm_requests > 100, "{tokens} {vllm_requests}");
}
