//! CPU time of the ledger and of recordings, compared with alternatives in the same run.

mod ledger;
mod record;
#[path = "../traffic/mod.rs"]
mod traffic;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};

/// CPU time of `work` on all threads of this process, which other load on the machine does not change much.
fn cpu(work: impl FnOnce()) -> Duration {
    let now = || {
        let t = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    let start = now();
    work();
    now().saturating_sub(start)
}

criterion_group!(name = benches; config = Criterion::default().sample_size(10).without_plots(); targets = ledger::bench, record::bench);
criterion_main!(benches);
