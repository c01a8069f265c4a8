//! Test that a warmed-up decoder does not allocate.
#![expect(unsafe_code, reason = "counting allocations takes a GlobalAlloc, which is an unsafe trait")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engines::sglang::wire::{Decoder, Limits};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decoding_allocates_nothing_after_warm_up() {
    let messages: Vec<Vec<u8>> = common::messages().iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut decoder = Decoder::new(Limits::default()).with_ids();
    let mut tokens = 0;
    let mut round = |messages: &[Vec<u8>]| {
        for message in messages {
            let batch = decoder.decode(message).unwrap();
            tokens += batch.chunks().iter().map(|chunk| chunk.ids.len()).sum::<usize>();
        }
    };
    round(&messages);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    round(&messages);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "over {} messages", messages.len());
    assert!(tokens > 10_000, "{tokens}");
}
