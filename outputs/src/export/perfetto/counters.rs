//! Counter tracks: backlogs, kernel queues, CPU, requests, and values of the engine's log.

use trace::clock::MonoNs;
use trace::event::{CpuSample, LoggedState};
use trace::id::HopId;

use super::tracks::{HOPS, LOG, REQUESTS, Track};
use super::{Perfetto, head};
use crate::export::ExportContext;
use crate::export::json::Object;

/// Minimum interval between backlog values, in nanoseconds. Peaks are always drawn.
const EVERY_NS: u64 = 1_000_000;

/// State of a counter that changes faster than it is drawn.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    drawn: Option<(MonoNs, u64)>,
    last: (MonoNs, u64),
    peak: (MonoNs, u64),
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Backlogs, indexed as the ledger's groups.
    backlogs: Vec<Gauge>,
    requests: Option<(usize, usize)>,
}

impl Perfetto<'_> {
    /// Updates the backlog after a send or receive on the hop.
    pub(super) fn backlog(&mut self, at: MonoNs, hop: HopId, context: &ExportContext<'_>) {
        // The backlog is only known if sends and receives are both observed.
        if !context.ledger.hop(hop).is_some_and(|h| h.shows.sent && h.shows.received) {
            return;
        }
        let Some(hop) = context.ledger.hops().iter().find(|h| h.id == hop) else { return };
        let place = hop.group;
        if self.counters.backlogs.len() <= place {
            self.counters.backlogs.resize(place + 1, Gauge::default());
        }
        let gauge = &mut self.counters.backlogs[place];
        let now = (at, context.ledger.groups()[place].backlog);
        gauge.last = now;
        if now.1 >= gauge.peak.1 {
            gauge.peak = now;
        }
        if gauge.drawn.is_none_or(|drawn| at.since(drawn.0) >= EVERY_NS) {
            self.draw_backlog(place, context);
        }
    }

    /// Draws the current backlog of a group, and its peak since the last value if that was higher.
    fn draw_backlog(&mut self, place: usize, context: &ExportContext<'_>) {
        let gauge = &mut self.counters.backlogs[place];
        let (last, peak) = (gauge.last, gauge.peak);
        let before = gauge.drawn.replace(last).map(|drawn| drawn.1);
        gauge.peak = last;
        let name = format!("backlog {}", context.ledger.groups()[place].name);
        let peaked = peak.1 > last.1 && Some(peak.1) > before;
        let values = [peaked.then_some(peak), (before != Some(last.1)).then_some(last)];
        for (at, frames) in values.into_iter().flatten() {
            self.counter(HOPS, &name, context.clock.since_start_ns(at), |args| {
                args.put("frames", frames);
            });
        }
    }

    /// Draws the backlogs and numbers of requests that have changed.
    pub(super) fn count_requests(&mut self, now: MonoNs, context: &ExportContext<'_>) {
        for place in 0..self.counters.backlogs.len() {
            let gauge = self.counters.backlogs[place];
            if gauge.drawn.is_some_and(|drawn| drawn != gauge.last) {
                self.draw_backlog(place, context);
            }
        }
        let waiting = context.ledger.requests().filter(|r| r.waiting_since().is_some()).count();
        let requests = (context.ledger.timeline_count(), waiting);
        if self.counters.requests.replace(requests) == Some(requests) {
            return;
        }
        let observed = context.ledger.observes_gaps().then_some(("waiting for the first token", waiting));
        for (name, requests) in [("requests in flight", requests.0)].into_iter().chain(observed) {
            self.counter(REQUESTS, name, context.clock.since_start_ns(now), |args| {
                args.put("requests", requests as u64);
            });
        }
    }

    /// Draws a thread's time use in an interval, in percent.
    pub(super) fn cpu(&mut self, ts: u64, sample: &CpuSample<'_>) {
        let track = self.thread(sample.thread, sample.role, sample.name);
        let percent = |ns: u64, of: u64| 100.0 * ns as f64 / of.max(1) as f64;
        self.counter(track, &format!("CPU % {} {}", sample.name, track.tid), ts, |args| {
            args.put("on", percent(sample.on_ns, sample.interval_ns));
            for (name, ns) in [("waiting", sample.wait_ns), ("throttled", sample.throttled_ns)] {
                if let Some(ns) = ns {
                    args.put(name, percent(ns, sample.interval_ns));
                }
            }
            if let Some(poll) = sample.poll {
                let away = poll.interval_ns.saturating_sub(poll.polled_ns);
                args.put("away_from_poll", percent(away, poll.interval_ns));
            }
        });
    }

    /// Draws the state of an engine process from its own log.
    pub(super) fn logged_state(&mut self, ts: u64, state: &LoggedState<'_>) {
        self.counter(LOG, &format!("logged by {}", state.by), ts, |args| {
            args.known("states", state.states).known("rids", state.rids);
            args.known("recv_wait_ns", state.recv_wait_ns).known("more", state.more.map(u64::from));
            for (name, share) in [("cpu %", state.cpu), ("cpu_system %", state.cpu_system)] {
                if let Some(share) = share {
                    args.put(name, 100.0 * share);
                }
            }
        });
    }

    pub(super) fn counter(&mut self, track: Track, name: &str, ts: u64, args: impl FnOnce(&mut Object<'_>)) {
        self.out.object(|o| {
            head(o, "C", track, name, ts);
            o.object("args", args);
        });
    }
}
