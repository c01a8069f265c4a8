//! Charts: traffic and waits over time, with the start of each finding marked, and distributions of waits.

use maud::{Markup, html};
use trace::words::{bytes, count, duration, percent};

use super::super::brief::span_of;
use super::super::hostile::plain;
use super::super::{Clock, FaultKind, FrontendCounts, Report, Series, ThreadSeries};
use super::plot::{Axis, Plot};

/// Maximum number of marked findings.
const MARKS: usize = 12;
/// Maximum number of threads and hops drawn; the tables list all.
const LIMIT: usize = 6;
const HEIGHT: f64 = 190.0;

/// All charts, or the reason why there are none.
pub(super) fn over_time(report: &Report, clock: &Clock) -> Markup {
    let Some(series) = report.series.as_ref().filter(|s| s.len() > 1) else {
        return html! { p { "No time series: the capture is too short." } };
    };
    let time_series = TimeSeries { report, series, clock };
    html! {
        (time_series.tokens())
        @if let Some(gaps) = time_series.gaps() { (gaps) }
        @if let Some(backlog) = time_series.backlog() { (backlog) }
        @for thread in time_series.threads() { (thread) }
        @if let Some(fates) = time_series.fates() { (fates) }
        @for (name, is_observed, fault) in [
            ("Gap", series.gap_ns.is_some(), FaultKind::FirstTokenGap),
            ("Backlog", series.hops.iter().any(|hop| hop.backlog_max_frames.is_some()), FaultKind::Queues),
            ("Chunks dropped (confirmed) and merged", series.chunks.merged.is_some(), FaultKind::Delivery),
        ] {
            @if !is_observed { p.dim { (name) ": not observed" (reason(report, fault)) } }
        }
    }
}

/// Reason why faults of this kind were not judged, after a colon.
fn reason(report: &Report, fault: FaultKind) -> String {
    let judgement = report.judged.iter().find(|judgement| judgement.fault == fault);
    let reason = judgement.and_then(|judgement| judgement.reason.as_deref());
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

struct TimeSeries<'a> {
    report: &'a Report,
    series: &'a Series,
    clock: &'a Clock,
}

impl TimeSeries<'_> {
    /// Middle of a slot, in seconds.
    fn middle(&self, slot: usize) -> f64 {
        self.series.begin_ns(slot) as f64 / 1e9 + self.series.seconds(slot) / 2.0
    }

    fn line(&self, plot: &mut Plot, class: &'static str, name: &str, value: impl Fn(usize) -> Option<f64>) {
        let points = (0..self.series.len()).map(|slot| value(slot).map(|v| (self.middle(slot), v)));
        plot.line(class, name, &points.collect::<Vec<_>>());
    }

    /// A chart with a tooltip for each slot and marked findings.
    fn chart(
        &self,
        [id, heading, description]: [&str; 3],
        (y, label): (Axis, fn(f64) -> String),
        draw: impl FnOnce(&mut Plot),
        tooltip: impl Fn(usize) -> String,
    ) -> Markup {
        let mut plot = Plot::new(Axis::linear(0.0, self.report.window_ns[1] as f64 / 1e9), y, HEIGHT);
        plot.y_ticks(label);
        plot.x_ticks(|s| (seconds(s), self.clock.time_of_day((s * 1e9) as u64)));
        draw(&mut plot);
        for slot in 0..self.series.len() {
            let from = self.series.begin_ns(slot);
            let to = (self.series.begin_ns(slot + 1)).min(self.series.to_ns);
            let text = format!("{}: {}", self.clock.moment(from), tooltip(slot));
            plot.hover((from as f64 / 1e9, to as f64 / 1e9), &text);
        }
        for (n, finding) in self.report.findings.iter().take(MARKS).enumerate() {
            let tooltip = format!("{} {}: {}", finding.kind, span_of(finding, self.clock), finding.summary);
            plot.finding(n + 1, finding.severity.as_str(), finding.at_ns as f64 / 1e9, &tooltip);
        }
        plot.finish(id, heading, description)
    }

    fn tokens(&self) -> Markup {
        let tokens = &self.series.tokens;
        let rate = |column: &[u64], slot: usize| {
            let seconds = self.series.seconds(slot);
            // A short last slot gives no reliable rate.
            (seconds * 4e9 >= self.series.slot_ns as f64).then(|| column[slot] as f64 / seconds)
        };
        let columns: Vec<(&str, &str, &[u64])> = [
            ("c0", "sent", Some(&tokens.sent)),
            ("c1 dashed", "received", tokens.received.as_ref()),
            ("c2 dotted", "delivered", tokens.delivered.as_ref()),
        ]
        .into_iter()
        .filter_map(|(class, name, column)| Some((class, name, column?.as_slice())))
        .collect();
        let slots = 0..self.series.len();
        let max = columns.iter().flat_map(|c| slots.clone().filter_map(|s| rate(c.2, s))).fold(0.0, f64::max);
        let description = format!("Tokens per second; the maximum of a slot is {}.", count(max as u64));
        let draw = |plot: &mut Plot| {
            for (class, name, column) in &columns {
                self.line(plot, class, name, |slot| rate(column, slot));
            }
        };
        self.chart(["tokens", "Tokens per second", &description], (Axis::counting(max), short), draw, |slot| {
            let each = |(_, name, column): &(&str, &str, &[u64])| {
                rate(column, slot).map(|r| format!("{} tokens/s {name}", count(r as u64)))
            };
            let mut parts: Vec<String> = columns.iter().filter_map(each).collect();
            parts.push(format!("{} requests live", count(self.series.requests.live[slot])));
            parts.join(", ")
        })
    }

    fn gaps(&self) -> Option<Markup> {
        let gap = self.series.gap_ns.as_ref()?;
        let all = || gap.p50.iter().chain(&gap.max).flatten().map(|&ns| ns as f64);
        let (min, max) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
        if max == 0.0 {
            return None;
        }
        let description =
            format!("First-token gap by slot on a logarithmic scale; the maximum is {}.", duration(max as u64));
        let words = ["gap-series", "Gap of the first tokens received in each slot", &description];
        let draw = |plot: &mut Plot| {
            for (class, name, column) in
                [("c0", "median", &gap.p50), ("c1 dashed", "p99", &gap.p99), ("c3 dotted", "largest", &gap.max)]
            {
                self.line(plot, class, name, |slot| column[slot].map(|ns| ns as f64));
            }
        };
        Some(self.chart(words, (Axis::decades(min.max(1e3), max), nanoseconds), draw, |slot| {
            let d = |ns: Option<u64>| ns.map_or_else(|| String::from("none"), duration);
            let (p50, p99, max) = (gap.p50[slot], gap.p99[slot], gap.max[slot]);
            format!("{} first tokens, median {}, p99 {}, largest {}", count(gap.count[slot]), d(p50), d(p99), d(max))
        }))
    }

    fn backlog(&self) -> Option<Markup> {
        let hops: Vec<_> =
            self.series.hops.iter().filter_map(|h| Some((h, h.backlog_max_frames.as_ref()?))).take(LIMIT).collect();
        let max = hops.iter().flat_map(|h| h.1).copied().max()?;
        let description = format!("Frames sent but not received, by hop; the maximum is {}.", count(max));
        let words = ["backlog", "Backlog: frames sent but not yet received, maximum of each slot", &description];
        let draw = |plot: &mut Plot| {
            for (n, (hop, backlog)) in hops.iter().enumerate() {
                self.line(plot, style(n), &hop.name, |slot| Some(backlog[slot] as f64));
            }
        };
        Some(self.chart(words, (Axis::counting(max as f64), short), draw, |slot| {
            let each = hops.iter().map(|(hop, backlog)| {
                let kernel = hop.kernel_bytes_max.as_ref().and_then(|k| k[slot]);
                let kernel = kernel.map_or_else(String::new, |b| format!(", {} of it in the kernel", bytes(b)));
                format!("up to {} frames wait on {}{kernel}", count(backlog[slot]), plain(&hop.name))
            });
            each.collect::<Vec<_>>().join("; ")
        }))
    }

    /// One chart for each receiving thread, or for main threads if no receiving thread is known.
    fn threads(&self) -> Vec<Markup> {
        let receives = self.series.threads.iter().any(|t| t.receives);
        let threads = self.series.threads.iter().filter(|t| t.receives == receives).take(LIMIT);
        threads.enumerate().map(|(n, thread)| self.thread(n, thread)).collect()
    }

    fn thread(&self, n: usize, thread: &ThreadSeries) -> Markup {
        let of = |column: &Option<Vec<Option<f64>>>, slot: usize| column.as_ref().and_then(|c| c[slot]);
        let parts = [
            ("c0", "on a CPU", Some(&thread.on_cpu)),
            ("c4", "waiting for one", thread.run_wait.as_ref()),
            ("c3", "throttled", thread.throttled.as_ref()),
        ];
        let draw = |plot: &mut Plot| {
            let mut below = vec![0.0; self.series.len()];
            for (class, name, column) in parts {
                let Some(column) = column else { continue };
                let mut points = Vec::new();
                for (slot, below) in below.iter_mut().enumerate().filter(|(slot, _)| thread.on_cpu[*slot].is_some()) {
                    let above = *below + column[slot].unwrap_or(0.0);
                    points.push((self.middle(slot), *below, above));
                    *below = above;
                }
                plot.area(class, &points);
                plot.name(class, name, points.last().map_or(0.0, |p| f64::midpoint(p.1, p.2)));
            }
        };
        let name = format!("{} {}/{} {}", thread.role, thread.pid, thread.tid, plain(&thread.name));
        let heading = format!("CPU of {name}, share of one core");
        let description =
            format!("How the thread {name} spent its time: on a CPU, waiting for one, throttled by its quota.");
        let words = [&*format!("cpu-{n}"), &heading, &description];
        self.chart(words, (Axis::linear(0.0, 1.0), percent), draw, |slot| {
            let share = |s: Option<f64>| s.map_or_else(|| String::from("not observed"), percent);
            format!(
                "{} on CPU, {} waiting for a CPU, {} throttled",
                share(thread.on_cpu[slot]),
                share(of(&thread.run_wait, slot)),
                share(of(&thread.throttled, slot))
            )
        })
    }

    /// Chunks dropped or merged.
    fn fates(&self) -> Option<Markup> {
        let chunks = &self.series.chunks;
        let columns: Vec<(&str, &str, &Vec<u64>)> = [
            ("c3", "dropped (confirmed)", &chunks.dropped_confirmed),
            ("c4 dashed", "dropped (predicted)", &chunks.dropped_predicted),
            ("c1 dotted", "merged", &chunks.merged),
        ]
        .into_iter()
        .filter_map(|(class, name, column)| Some((class, name, column.as_ref()?)))
        .filter(|c| c.2.iter().any(|&n| n > 0))
        .collect();
        let max = columns.iter().flat_map(|c| c.2).copied().max()?;
        let description = format!("Chunks dropped or merged in each slot; the maximum is {}.", count(max));
        let words = ["fates", "Chunks dropped and merged, in each slot", &description];
        let draw = |plot: &mut Plot| {
            for (class, name, column) in &columns {
                self.line(plot, class, name, |slot| Some(column[slot] as f64));
            }
        };
        Some(self.chart(words, (Axis::counting(max as f64), short), draw, |slot| {
            let each = columns.iter().map(|(_, name, column)| format!("{} chunks {name}", count(column[slot])));
            each.collect::<Vec<_>>().join(", ")
        }))
    }
}

fn style(n: usize) -> &'static str {
    ["c0", "c1 dashed", "c2 dotted", "c3", "c4 dashed", "c5 dotted"][n % LIMIT]
}

fn short(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{} M", n / 1e6),
        n if n >= 1e4 => format!("{} k", n / 1e3),
        n => count(n as u64),
    }
}

fn nanoseconds(ns: f64) -> String {
    let (n, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", n.round())
}

fn seconds(s: f64) -> String {
    match s {
        s if s >= 7200.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 300.0 => format!("{:.1} min", s / 60.0),
        s => format!("{} s", (s * 100.0).round() / 100.0),
    }
}

/// Distributions of the gap and of each hop's queue wait.
pub(super) fn waits(report: &Report) -> Markup {
    let hops = report.hops.iter().filter(|h| !h.queue_wait_classes.is_empty());
    html! {
        @if let Some(gap) = &report.gap_ns {
            @let heading = "Gap: from the first send to the first receive, by request";
            (distribution("gap", heading, "requests", &gap.classes, [gap.p50, gap.p90, gap.p99, gap.max]))
        }
        @for line in report.frontend.iter().flat_map(FrontendCounts::lines) {
            p { "In the frontend, " (line) "." }
        }
        @for (n, hop) in hops.take(LIMIT).enumerate() {
            @let heading = format!("Queue wait on {}: from sent to received, by frame", hop.name);
            @let wait = hop.queue_wait_ns;
            @let marks = [wait.map(|s| s.p50), wait.map(|s| s.p90), wait.map(|s| s.p99), wait.map(|s| s.max)];
            (distribution(&format!("queue_wait-{n}"), &heading, "frames", &hop.queue_wait_classes, marks))
        }
    }
}

/// A distribution with its quantiles: median, p90, p99 and maximum.
fn distribution(id: &str, heading: &str, unit: &str, classes: &[[u64; 3]], quantiles: [Option<u64>; 4]) -> Markup {
    let (Some(first), Some(last)) = (classes.first(), classes.last()) else {
        return Markup::default();
    };
    let marks = ["median", "p90", "p99", "max"].into_iter().zip(quantiles);
    let marks = marks.filter_map(|(name, ns)| Some((format!("{name} {}", duration(ns?)), ns?)));
    let marks: Vec<(String, u64)> = marks.collect();
    let max = classes.iter().map(|c| c[2]).max().unwrap_or(0);
    let mut plot = Plot::new(Axis::decades(first[0] as f64, last[1] as f64), Axis::counting(max as f64), 190.0);
    plot.y_ticks(|n| count(n as u64));
    plot.x_ticks(|ns| (nanoseconds(ns), None));
    for &[from, to, n] in classes {
        let tooltip = format!("{} to {}: {} {unit}", duration(from), duration(to), count(n));
        plot.bar("c0", (from.max(1) as f64, to as f64), n as f64, &tooltip);
    }
    for (row, (name, ns)) in marks.iter().enumerate() {
        plot.vertical_line(name, (*ns).max(1) as f64, row);
    }
    let quantiles: Vec<&str> = marks.iter().map(|(name, _)| name.as_str()).collect();
    let total = count(classes.iter().map(|c| c[2]).sum());
    let description = format!("{total} {unit} on a logarithmic scale of time: {}.", quantiles.join(", "));
    plot.finish(id, heading, &description)
}
