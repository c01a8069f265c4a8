//! CPU lines of the relevant threads.

use super::CpuLine;
use crate::event::ThreadPart;
use crate::ledger::{Ledger, Thread};

/// Threads that need less than this share of a CPU are left out, except main threads and receivers.
const MIN_SHARE: f64 = 0.005;

/// Processes in the order first observed, main threads first; `None` without samples.
pub(super) fn lines(ledger: &Ledger) -> Option<Vec<CpuLine>> {
    let sampled: Vec<&Thread> = ledger.threads().iter().filter(|t| t.total().is_some()).collect();
    let first_seen = |pid: u32| sampled.iter().position(|t| t.id().pid == pid);
    let mut relevant: Vec<&Thread> = sampled.iter().copied().filter(|t| is_relevant(t)).collect();
    relevant.sort_by_key(|t| {
        (
            first_seen(t.id().pid),
            t.part() != Some(ThreadPart::Main),
            !t.is_receiver(),
            t.id().tid,
        )
    });
    (!sampled.is_empty()).then(|| relevant.into_iter().filter_map(line).collect())
}

fn is_relevant(thread: &Thread) -> bool {
    let busy = thread
        .total()
        .is_some_and(|spent| spent.share(spent.wanted_ns()) >= MIN_SHARE);
    busy || thread.is_receiver() || thread.part() == Some(ThreadPart::Main)
}

fn line(thread: &Thread) -> Option<CpuLine> {
    let (spent, id) = (thread.total()?, thread.id());
    let poll = thread.poll().filter(|poll| poll.interval_ns > 0);
    Some(CpuLine {
        role: thread.role().to_owned(),
        pid: id.pid,
        tid: id.tid,
        name: thread.name().to_owned(),
        receives: thread.is_receiver(),
        on_cpu: Some(spent.share(spent.on_ns)),
        run_wait: spent.starved_ns().map(|ns| spent.share(ns)),
        throttled: spent.throttled_ns().map(|ns| spent.share(ns)),
        away_from_poll: poll.map(|p| 1.0 - p.polled_ns as f64 / p.interval_ns as f64),
        wakeups_per_s: poll.map(|p| p.wakeups as f64 * 1e9 / p.interval_ns as f64),
    })
}
