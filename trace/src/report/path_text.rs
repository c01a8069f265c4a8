//! Legs of the path and workers of a line, as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::hostile::plain;
use super::wrap::wrap;
use super::{HopLine, LegKind, Report, ThreadState, bar};
use crate::words::{count, duration, known, percent};

/// Maximum number of workers and connections per line; the JSON lists more.
const LIMIT: usize = 16;
const NAME: usize = 38;
/// Width of the bar in cells.
const BAR: usize = 40;

/// Renders the legs with their shares of a chunk's time.
pub(super) fn render(out: &mut String, report: &Report) {
    if report.path.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "{:NAME$}  {:>9} {:>9} {:>9} {:>8} {:>8}  THREAD",
        "WHERE A CHUNK'S TIME GOES", "MEAN", "P50", "P99", "SHARE", "BUSY"
    );
    for leg in &report.path {
        let name = match leg.kind {
            LegKind::Wait => plain(&leg.name),
            LegKind::Inside => format!("  inside the {}", plain(&leg.name)),
            LegKind::WaitAndInside => format!("  before and inside the {}", plain(&leg.name)),
        };
        let name: String = name.chars().take(NAME).collect();
        let _ = writeln!(
            out,
            "{name:NAME$}  {:>9} {:>9} {:>9} {:>8} {:>8}  {}",
            duration(leg.mean_ns),
            known(leg.ns, |ns| duration(ns.p50)),
            known(leg.ns, |ns| duration(ns.p99)),
            percent(leg.share),
            known(leg.busy, percent),
            leg.thread.map_or("", ThreadState::as_str),
        );
    }
    if let Some(bar) = bar::line(&report.path, BAR) {
        wrap(out, &bar, "first tokens  ", "              ");
    }
    let _ = writeln!(out);
}

/// Number of receivers of a line with several hops; hops to the same endpoint count once.
pub(super) fn behind(hop: &HopLine) -> Option<String> {
    let hops = hop.workers.as_ref()?;
    let unknown = hops.iter().filter(|h| h.worker.is_none() && h.endpoint.is_empty());
    let places: BTreeSet<_> = hops.iter().map(|h| (h.worker, h.endpoint.as_str())).collect();
    let known = places.iter().filter(|place| **place != (None, ""));
    Some(match unknown.count() + known.count() {
        1 => format!("{} sockets send into one", hops.len()),
        workers => format!("{workers} workers"),
    })
}

/// Renders the load of each worker of a line and of each connection into it.
pub(super) fn members(out: &mut String, hop: &HopLine) {
    for worker in hop.workers.iter().flatten().take(LIMIT) {
        let name = worker.worker.map_or_else(|| plain(&worker.endpoint), |n| format!("worker {n}"));
        let mut parts = vec![load(worker.chunks, worker.tokens, worker.share)];
        if let Some(max) = worker.backlog_max_frames {
            parts.push(format!("backlog up to {}", count(max)));
        }
        if let Some(queue_wait) = &worker.queue_wait_ns {
            parts.push(format!("queue wait {} (p99 {})", duration(queue_wait.p50), duration(queue_wait.p99)));
        }
        if let Some(busy) = worker.busy {
            parts.push(format!("busy for {}", percent(busy)));
        }
        wrap(out, &format!("{name}: {}", parts.join(", ")), "  ", "    ");
    }
    for lane in hop.lanes.iter().flatten().take(LIMIT) {
        let into = lane.worker.map_or_else(String::new, |n| format!(" into worker {n}"));
        let load = load(lane.chunks, Some(lane.tokens), lane.share);
        wrap(out, &format!("connection {}{into}: {load}", lane.lane), "  ", "    ");
    }
}

fn load(chunks: u64, tokens: Option<u64>, share: Option<f64>) -> String {
    let share = share.map_or_else(String::new, |share| format!("{} of chunks: ", percent(share)));
    let tokens = tokens.map_or_else(String::new, |tokens| format!(" with {} tokens", count(tokens)));
    format!("{share}{}{tokens}", count(chunks))
}
