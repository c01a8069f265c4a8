//! Memory stays bounded in a run of any length, and the hot path does not allocate.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use trace::event::{Capabilities, Chunk, Event, Finish, Frame, Hop, Received, What};
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MS: u64 = 1_000_000;

struct Run {
    analysis: Analysis,
    seq: u64,
    ms: u64,
}

impl Run {
    fn new() -> Self {
        let mut analysis = Analysis::new(Config::default());
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        let name = "scheduler->tokenizer";
        let hop = Hop::only(HopId(0), name, capabilities);
        analysis.apply(&Event::new(MonoNs(0), What::Hop(hop)));
        Self { analysis, seq: 0, ms: 1 }
    }

    /// Sends a frame and receives it.
    fn send_and_receive(&mut self, chunks: &[Chunk<'_>]) {
        let id = FrameId::new(HopId(0), 0, self.seq);
        self.seq += 1;
        self.ms += 1;
        self.analysis.apply(&Event::new(MonoNs(self.ms * MS), What::Sent(Frame::token_ids(id, 25_000, chunks))));
        let what = What::Received(Received::in_wakeup(id, self.seq));
        self.analysis.apply(&Event::new(MonoNs(self.ms * MS + 1), what));
    }
}

fn chunk(rid: &str, completion: u32, finish: bool) -> Chunk<'_> {
    Chunk {
        prompt_tokens: Some(100),
        cached_tokens: Some(0),
        finish: finish.then_some(Finish::Stop),
        retractions: Some(0),
        ..Chunk::counted(rid, 1, completion)
    }
}

// One test, since the allocator's counters belong to the whole process.
#[test]
fn known_requests_do_not_allocate_and_a_full_table_is_bounded() {
    let mut run = Run::new();
    let rids: Vec<String> = (0..256).map(|n| format!("{n:032x}")).collect();
    let frame = |completion| rids.iter().map(|rid| chunk(rid, completion, false)).collect::<Vec<_>>();
    for completion in 1..=50 {
        run.send_and_receive(&frame(completion));
    }
    let frames: Vec<Vec<Chunk<'_>>> = (51..=250).map(frame).collect();
    let region = Region::new(ALLOCATOR);
    for frame in &frames {
        run.send_and_receive(frame);
    }
    assert_eq!(region.change().allocations, 0, "51,200 chunks of known requests");

    // 60,000 short requests, then more live requests than the limit allows.
    let region = Region::new(ALLOCATOR);
    for batch in 0..60_u64 {
        let rids: Vec<String> = (0..1_000).map(|n| format!("{:032x}", 1_000_000 + batch * 1_000 + n)).collect();
        run.send_and_receive(&rids.iter().map(|rid| chunk(rid, 1, true)).collect::<Vec<_>>());
        run.ms += 500;
        run.analysis.tick(MonoNs(run.ms * MS));
    }
    for batch in 0..110_u64 {
        let rids: Vec<String> = (0..1_000).map(|n| format!("{:032x}", 9_000_000 + batch * 1_000 + n)).collect();
        run.send_and_receive(&rids.iter().map(|rid| chunk(rid, 1, false)).collect::<Vec<_>>());
    }
    let change = region.change();
    let allocated = change.bytes_allocated - change.bytes_deallocated;
    let ledger = run.analysis.ledger();
    assert_eq!((ledger.record_count(), ledger.finished_count()), (100_000, 20_000));
    assert_eq!(ledger.totals().requests.evicted, 110_000 + 256 - 100_000);
    assert!(ledger.limits().iter().any(|l| l.name == "live_rids" && l.times > 0), "reaching a limit is visible");
    assert!(allocated < 128 << 20, "{allocated} bytes are allocated");
    println!("{} MiB for 100,000 live and 20,000 finished requests", allocated >> 20);
}
