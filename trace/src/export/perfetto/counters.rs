//! Counter tracks: backlogs, kernel queues, CPU, requests, and values of the engine's log.

use std::io;

use hashbrown::HashMap;

use super::head;
use super::tracks::{HOPS, LOG, REQUESTS, Track};
use crate::clock::MonoNs;
use crate::event::{CpuSample, LoggedState, QueueSample};
use crate::export::ExportContext;
use crate::export::json::{Object, Stream};
use crate::id::HopId;

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
    /// Index of a hop's group in the ledger.
    groups: HashMap<HopId, usize>,
    gauges: Vec<Gauge>,
    requests: Option<(usize, usize)>,
}

impl Counters {
    /// Clears the cached groups, because a hop may have a new name.
    pub(super) fn forget_groups(&mut self) {
        self.groups.clear();
    }

    /// Updates the backlog after a send or receive on the hop.
    pub(super) fn backlog(
        &mut self,
        out: &mut Stream<'_>,
        at: MonoNs,
        hop: HopId,
        context: &ExportContext<'_>,
    ) -> io::Result<()> {
        // The backlog is only known if sends and receives are both observed.
        if !context.hops.get(hop).is_some_and(|h| h.capabilities.sent && h.capabilities.received) {
            return Ok(());
        }
        let known = self.groups.get(&hop).copied();
        let Some(place) = known.or_else(|| context.ledger.hops().iter().find(|h| h.id == hop).map(|hop| hop.group))
        else {
            return Ok(());
        };
        self.groups.insert(hop, place);
        if self.gauges.len() <= place {
            self.gauges.resize(place + 1, Gauge::default());
        }
        let gauge = &mut self.gauges[place];
        let now = (at, context.ledger.groups()[place].backlog);
        gauge.last = now;
        if now.1 >= gauge.peak.1 {
            gauge.peak = now;
        }
        if gauge.drawn.is_none_or(|drawn| at.since(drawn.0) >= EVERY_NS) {
            self.draw(out, place, context)?;
        }
        Ok(())
    }

    /// Draws the current backlog of a group, and its peak since the last value if that was higher.
    fn draw(&mut self, out: &mut Stream<'_>, place: usize, context: &ExportContext<'_>) -> io::Result<()> {
        let gauge = &mut self.gauges[place];
        let (last, peak) = (gauge.last, gauge.peak);
        let before = gauge.drawn.replace(last).map(|drawn| drawn.1);
        gauge.peak = last;
        let name = format!("backlog {}", context.ledger.groups()[place].name);
        if peak.1 > last.1 && Some(peak.1) > before {
            counter(out, HOPS, &name, context.clock.at(peak.0), |args| {
                args.int("frames", peak.1);
            })?;
        }
        if before == Some(last.1) {
            return Ok(());
        }
        counter(out, HOPS, &name, context.clock.at(last.0), |args| {
            args.int("frames", last.1);
        })
    }

    pub(super) fn tick(&mut self, out: &mut Stream<'_>, now: MonoNs, context: &ExportContext<'_>) -> io::Result<()> {
        for place in 0..self.gauges.len() {
            if self.gauges[place].drawn.is_some_and(|drawn| drawn != self.gauges[place].last) {
                self.draw(out, place, context)?;
            }
        }
        let waiting = context.ledger.requests().filter(|r| r.waiting_since().is_some()).count();
        let requests = (context.lives.len(), waiting);
        if self.requests.replace(requests) == Some(requests) {
            return Ok(());
        }
        let ts = context.clock.at(now);
        counter(out, REQUESTS, "requests in flight", ts, |args| {
            args.int("requests", requests.0 as u64);
        })?;
        if context.ledger.observes_gaps() {
            counter(out, REQUESTS, "waiting for the first token", ts, |args| {
                args.int("requests", requests.1 as u64);
            })?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, out: &mut Stream<'_>, context: &ExportContext<'_>) -> io::Result<()> {
        self.tick(out, context.ledger.now(), context)
    }
}

/// Bytes in a hop's kernel queues.
pub(super) fn queue(
    out: &mut Stream<'_>,
    at: MonoNs,
    sample: &QueueSample<'_>,
    context: &ExportContext<'_>,
) -> io::Result<()> {
    let name = format!("kernel queue {}", sample.hop);
    counter(out, HOPS, &name, context.clock.at(at), |args| {
        for (name, bytes) in [("receive_bytes", sample.receive_bytes), ("send_bytes", sample.send_bytes)] {
            if let Some(bytes) = bytes {
                args.int(name, bytes);
            }
        }
    })
}

/// Draws a thread's time use in an interval, in percent.
pub(super) fn cpu(
    out: &mut Stream<'_>,
    track: Track,
    at: MonoNs,
    sample: &CpuSample<'_>,
    context: &ExportContext<'_>,
) -> io::Result<()> {
    let percent = |ns: u64, of: u64| 100.0 * ns as f64 / of.max(1) as f64;
    let name = format!("CPU % {} {}", sample.name, track.tid);
    counter(out, track, &name, context.clock.at(at), |args| {
        args.float("on", percent(sample.on_ns, sample.interval_ns));
        for (name, ns) in [("waiting", sample.wait_ns), ("throttled", sample.throttled_ns)] {
            if let Some(ns) = ns {
                args.float(name, percent(ns, sample.interval_ns));
            }
        }
        if let Some(poll) = sample.poll {
            let away = poll.interval_ns.saturating_sub(poll.polled_ns);
            args.float("away_from_poll", percent(away, poll.interval_ns));
        }
    })
}

/// State of an engine process from its own log.
pub(super) fn logged_state(
    out: &mut Stream<'_>,
    at: MonoNs,
    logged_state: &LoggedState<'_>,
    context: &ExportContext<'_>,
) -> io::Result<()> {
    let name = format!("logged by {}", logged_state.by);
    counter(out, LOG, &name, context.clock.at(at), |args| {
        for (name, count) in [("states", logged_state.states), ("rids", logged_state.rids)] {
            if let Some(count) = count {
                args.int(name, count);
            }
        }
        if let Some(ns) = logged_state.recv_wait_ns {
            args.int("recv_wait_ns", ns);
        }
        if let Some(more) = logged_state.more {
            args.int("more", u64::from(more));
        }
        for (name, share) in [("cpu %", logged_state.cpu), ("cpu_system %", logged_state.cpu_system)] {
            if let Some(share) = share {
                args.float(name, 100.0 * share);
            }
        }
    })
}

fn counter(
    out: &mut Stream<'_>,
    track: Track,
    name: &str,
    ts: u64,
    args: impl FnOnce(&mut Object<'_>),
) -> io::Result<()> {
    out.object(|o| {
        head(o, "C", track, name, ts);
        o.object("args", args);
    })
}
