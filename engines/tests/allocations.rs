//! Test that a warmed-up decoder does not allocate.

mod common;

use std::alloc::System;

use adapter::decode::Excerpt;
use engines::sglang::FORMAT;
use engines::sglang::wire::{Decoder, Limits};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn decoding_allocates_nothing_after_warm_up() {
    let messages: Vec<Vec<u8>> = common::messages().iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut decoder = Decoder::new(Limits::default()).with_ids();
    let (mut tokens, mut requests) = (0, Vec::with_capacity(16));
    let mut round = || {
        for message in &messages {
            let batch = decoder.decode(message).unwrap();
            tokens += batch.chunks().iter().map(|chunk| chunk.ids.len()).sum::<usize>();
            drop(batch);
            tokens += (FORMAT.read_requests)(&[Excerpt::whole(message)], &mut requests).map_or(0, |_| requests.len());
            requests.clear();
        }
    };
    round();
    let region = Region::new(ALLOCATOR);
    round();
    let change = region.change();
    assert_eq!(change.allocations + change.reallocations, 0, "over {} messages", messages.len());
    assert!(tokens > 10_000, "{tokens}");
}
