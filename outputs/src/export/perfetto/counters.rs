//! Counter tracks: backlogs, kernel queues, CPU, requests, and values of the engine's log.

use trace::clock::MonoNs;
use trace::event::{CpuSample, LoggedState};
use trace::id::HopId;

use super::tracks::{HOPS, LOG, REQUESTS, Track};
use super::{COUNTER, Perfetto, write_event_head};
use crate::export::ExportContext;
use crate::export::json::Object;

/// Minimum interval between backlog values, in nanoseconds. Peaks are always drawn.
const EVERY_NS: u64 = 1_000_000;

/// Number of frames that wait, at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BacklogSample {
    at: MonoNs,
    frames: u64,
}

/// State of a counter that changes faster than it is drawn.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    last_drawn: Option<BacklogSample>,
    current: BacklogSample,
    /// Highest value since the last drawn one.
    peak: BacklogSample,
}

/// Numbers of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InFlightCounts {
    in_flight: usize,
    /// Waiting for the first token.
    waiting: usize,
}

/// Share of `part_ns` in `whole_ns`, in percent.
fn percent_of(part_ns: u64, whole_ns: u64) -> f64 {
    // At least 1, so that nothing is divided by zero.
    100.0 * part_ns as f64 / whole_ns.max(1) as f64
}

#[derive(Debug, Default)]
pub(super) struct CounterTracks {
    /// Backlogs, indexed as the ledger's groups.
    backlogs: Vec<Gauge>,
    /// The numbers that were drawn last.
    requests: Option<InFlightCounts>,
}

impl Perfetto<'_> {
    /// Updates the backlog after a send or receive on a hop: the number of frames that were sent and not yet received. All hops
    /// with the same name are one group and have one backlog. Draws the backlog if the last drawn value is at least [`EVERY_NS`] old.
    pub(super) fn update_and_draw_backlog(&mut self, at: MonoNs, hop: HopId, context: &ExportContext<'_>) {
        // The backlog is only known if sends and receives are both observed.
        let Some(hop) = context.ledger.hop(hop) else { return };
        let is_backlog_known = hop.shows.sent && hop.shows.received;
        if !is_backlog_known {
            return;
        }
        let group = hop.group;
        if self.counters.backlogs.len() <= group {
            self.counters.backlogs.resize(group + 1, Gauge::default());
        }
        // The gauge remembers the value that was drawn last, and the peak since then.
        let gauge = &mut self.counters.backlogs[group];
        let now = BacklogSample { at, frames: context.ledger.groups()[group].backlog };
        gauge.current = now;
        if now.frames >= gauge.peak.frames {
            gauge.peak = now;
        }
        if gauge.last_drawn.is_none_or(|drawn| at.since(drawn.at) >= EVERY_NS) {
            self.draw_backlog(group, context);
        }
    }

    /// Draws the current backlog of a group (all hops with one name), unless it is the value drawn last. First draws the peak since the
    /// last drawn value, if it was higher than both.
    fn draw_backlog(&mut self, group: usize, context: &ExportContext<'_>) {
        let gauge = &mut self.counters.backlogs[group];
        let Gauge { current, peak, .. } = *gauge;
        let previous_frames = gauge.last_drawn.replace(current).map(|drawn| drawn.frames);
        // The next peak counts from this value.
        gauge.peak = current;
        let name = format!("backlog {}", context.ledger.groups()[group].name);
        // A peak that does not exceed both neighbours is shown by one of them.
        let exceeds_previous = previous_frames.is_none_or(|previous| peak.frames > previous);
        let exceeds_current = peak.frames > current.frames;
        if exceeds_previous && exceeds_current {
            self.draw_backlog_sample(&name, peak, context);
        }
        if previous_frames != Some(current.frames) {
            self.draw_backlog_sample(&name, current, context);
        }
    }

    /// Draws one value of a backlog.
    fn draw_backlog_sample(&mut self, name: &str, sample: BacklogSample, context: &ExportContext<'_>) {
        self.draw_counter(HOPS, name, context.clock.since_start_ns(sample.at), |args| {
            args.put("frames", sample.frames);
        });
    }

    /// Draws the backlogs and numbers of requests that have changed since they were drawn.
    pub(super) fn draw_changed_counts(&mut self, now: MonoNs, context: &ExportContext<'_>) {
        self.draw_changed_backlogs(context);
        self.draw_changed_request_counts(now, context);
    }

    /// Draws the backlog of each group of hops whose current value was not drawn yet. A group without a drawn value has no known backlog.
    fn draw_changed_backlogs(&mut self, context: &ExportContext<'_>) {
        for group in 0..self.counters.backlogs.len() {
            let gauge = self.counters.backlogs[group];
            if gauge.last_drawn.is_some_and(|drawn| drawn != gauge.current) {
                self.draw_backlog(group, context);
            }
        }
    }

    /// Draws the numbers of requests in flight and of those that wait for their first token, if one of them has changed.
    fn draw_changed_request_counts(&mut self, now: MonoNs, context: &ExportContext<'_>) {
        let waiting = context.ledger.requests().filter(|request| request.first_token_waiting_since().is_some()).count();
        let counts = InFlightCounts { in_flight: context.ledger.timeline_count(), waiting };
        let previous_counts = self.counters.requests.replace(counts);
        if previous_counts == Some(counts) {
            return;
        }
        let ts_ns = context.clock.since_start_ns(now);
        self.draw_counter(REQUESTS, "requests in flight", ts_ns, |args| {
            args.put("requests", counts.in_flight as u64);
        });
        // Only a hop whose receives are observed shows which requests wait.
        if context.ledger.observes_gaps() {
            self.draw_counter(REQUESTS, "waiting for the first token", ts_ns, |args| {
                args.put("requests", counts.waiting as u64);
            });
        }
    }

    /// Draws a thread's time use in an interval, in percent.
    pub(super) fn draw_thread_cpu(&mut self, ts_ns: u64, sample: &CpuSample<'_>) {
        let track = self.name_and_get_track_of_thread(sample.thread, sample.role, sample.name);
        self.draw_counter(track, &format!("CPU % {} {}", sample.name, track.tid), ts_ns, |args| {
            // On a CPU, or waiting for one, or not allowed to use one.
            args.put("on", percent_of(sample.on_ns, sample.interval_ns));
            for (name, ns) in [("waiting", sample.wait_ns), ("throttled", sample.throttled_ns)] {
                if let Some(ns) = ns {
                    args.put(name, percent_of(ns, sample.interval_ns));
                }
            }
            if let Some(poll) = sample.poll {
                let away_ns = poll.interval_ns.saturating_sub(poll.polled_ns);
                args.put("away_from_poll", percent_of(away_ns, poll.interval_ns));
            }
        });
    }

    /// Draws the state of an engine process from its own log.
    pub(super) fn draw_logged_state(&mut self, ts_ns: u64, state: &LoggedState<'_>) {
        self.draw_counter(LOG, &format!("logged by {}", state.by), ts_ns, |args| {
            args.put_if_known("states", state.states).put_if_known("rids", state.rids);
            args.put_if_known("recv_wait_ns", state.recv_wait_ns);
            // Whether more messages were ready behind the received one. A counter shows only numbers.
            args.put_if_known("more", state.more.map(u64::from));
            for (name, share) in [("cpu %", state.cpu), ("cpu_system %", state.cpu_system)] {
                if let Some(share) = share {
                    args.put(name, 100.0 * share);
                }
            }
        });
    }

    /// Draws a value of a counter. `args` adds its numbers.
    pub(super) fn draw_counter(&mut self, track: Track, name: &str, ts_ns: u64, args: impl FnOnce(&mut Object<'_>)) {
        self.out.write_object(|object| {
            write_event_head(object, COUNTER, track, name, ts_ns);
            object.put_object("args", args);
        });
    }
}
