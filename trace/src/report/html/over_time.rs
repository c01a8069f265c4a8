//! Traffic and waits over time, with the start of each finding marked.

use maud::{Markup, html};

use super::super::hostile::plain;
use super::super::{Clock, Report, Series, SpreadSeries};
use super::plot::{Axis, Plot};
use crate::words::{bytes, count, duration, percent};

/// Maximum number of intervals with a tooltip.
const HOVERS: usize = 120;
/// Maximum number of marked findings.
const MARKS: usize = 12;
/// Maximum number of threads and hops drawn; the tables list all.
const LIMIT: usize = 6;
const HEIGHT: f64 = 190.0;

/// All charts, or the reason why there are none.
pub(super) fn drawings(report: &Report, clock: &Clock) -> Markup {
    let Some(series) = report.series.as_ref().filter(|s| s.len() > 1) else {
        return html! { p { "No time series: the capture is too short or the report too old." } };
    };
    let time_series = TimeSeries { report, series, clock };
    html! {
        (time_series.tokens())
        @if let Some(gaps) = time_series.gaps() { (gaps) }
        @if let Some(backlog) = time_series.backlog() { (backlog) }
        @for thread in time_series.threads() { (thread) }
        @if let Some(fates) = time_series.fates() { (fates) }
    }
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

    fn points(&self, value: impl Fn(usize) -> Option<f64>) -> Vec<Option<(f64, f64)>> {
        (0..self.series.len()).map(|slot| value(slot).map(|v| (self.middle(slot), v))).collect()
    }

    fn plot(&self, y: Axis) -> Plot {
        let end = self.report.window_ns[1] as f64 / 1e9;
        Plot::new(Axis::linear(0.0, end), y, HEIGHT)
    }

    fn x_ticks(&self, plot: &mut Plot) {
        plot.x_ticks(|s| (seconds(s), self.clock.time_of_day((s * 1e9) as u64)));
    }

    fn marks(&self, plot: &mut Plot) {
        for (n, finding) in self.report.findings.iter().take(MARKS).enumerate() {
            let tooltip = format!("{} since {}: {}", finding.kind, duration(finding.at_ns), finding.summary);
            plot.finding(n + 1, finding.severity.as_str(), finding.at_ns as f64 / 1e9, &tooltip);
        }
    }

    /// Numbers of an interval; for several slots, of the first.
    fn hovers(&self, plot: &mut Plot, tooltip: impl Fn(usize) -> String) {
        let step = self.series.len().div_ceil(HOVERS);
        for slot in (0..self.series.len()).step_by(step) {
            let from = self.series.begin_ns(slot);
            let to = (self.series.begin_ns(slot + step)).min(self.series.to_ns);
            let text = format!("{}: {}", self.clock.both(from), tooltip(slot));
            plot.hover((from as f64 / 1e9, to as f64 / 1e9), &text);
        }
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
        let mut plot = self.plot(Axis::counting(max));
        plot.y_ticks(short);
        self.x_ticks(&mut plot);
        for (class, name, column) in &columns {
            plot.line(class, name, &self.points(|slot| rate(column, slot)));
        }
        self.hovers(&mut plot, |slot| {
            let each = |(_, name, column): &(&str, &str, &[u64])| {
                rate(column, slot).map(|r| format!("{} tokens/s {name}", count(r as u64)))
            };
            let mut parts: Vec<String> = columns.iter().filter_map(each).collect();
            parts.push(format!("{} requests live", count(self.series.requests.live[slot])));
            parts.join(", ")
        });
        self.marks(&mut plot);
        let description = format!("Tokens per second; the maximum of a slot is {}.", count(max as u64));
        plot.finish("tokens", "Tokens per second", &description)
    }

    fn gaps(&self) -> Option<Markup> {
        let gap = self.series.gap_ns.as_ref()?;
        let all = || gap.p50.iter().chain(&gap.max).flatten().map(|&ns| ns as f64);
        let (min, max) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
        if max == 0.0 {
            return None;
        }
        let mut plot = self.plot(Axis::decades(min.max(1e3), max));
        plot.y_ticks(nanoseconds);
        self.x_ticks(&mut plot);
        self.spread(&mut plot, gap);
        self.marks(&mut plot);
        let description =
            format!("First-token gap by slot on a logarithmic scale; the maximum is {}.", duration(max as u64));
        Some(plot.finish("gap-series", "Gap of the first tokens received in each slot", &description))
    }

    fn spread(&self, plot: &mut Plot, of: &SpreadSeries) {
        for (class, name, column) in
            [("c0", "median", &of.p50), ("c1 dashed", "p99", &of.p99), ("c3 dotted", "largest", &of.max)]
        {
            plot.line(class, name, &self.points(|slot| column[slot].map(|ns| ns as f64)));
        }
        self.hovers(plot, |slot| {
            let d = |ns: Option<u64>| ns.map_or_else(|| String::from("none"), duration);
            let (p50, p99, max) = (of.p50[slot], of.p99[slot], of.max[slot]);
            format!("{} first tokens, median {}, p99 {}, largest {}", count(of.count[slot]), d(p50), d(p99), d(max))
        });
    }

    fn backlog(&self) -> Option<Markup> {
        let hops: Vec<_> =
            self.series.hops.iter().filter_map(|h| Some((h, h.backlog_max_frames.as_ref()?))).take(LIMIT).collect();
        let max = hops.iter().flat_map(|h| h.1).copied().max()?;
        let mut plot = self.plot(Axis::counting(max as f64));
        plot.y_ticks(short);
        self.x_ticks(&mut plot);
        for (n, (hop, backlog)) in hops.iter().enumerate() {
            plot.line(style(n), &hop.name, &self.points(|slot| Some(backlog[slot] as f64)));
        }
        self.hovers(&mut plot, |slot| {
            let each = hops.iter().map(|(hop, backlog)| {
                let kernel = hop.kernel_bytes_max.as_ref().and_then(|k| k[slot]);
                let kernel = kernel.map_or_else(String::new, |b| format!(", {} of it in the kernel", bytes(b)));
                format!("up to {} frames wait on {}{kernel}", count(backlog[slot]), plain(&hop.name))
            });
            each.collect::<Vec<_>>().join("; ")
        });
        self.marks(&mut plot);
        let description = format!("Frames sent but not received, by hop; the maximum is {}.", count(max));
        Some(plot.finish("backlog", "Backlog: frames sent but not yet received, maximum of each slot", &description))
    }

    /// One chart for each receiving thread, or for main threads if no receiving thread is known.
    fn threads(&self) -> Vec<Markup> {
        let receives = self.series.threads.iter().any(|t| t.receives);
        let mut drawings = Vec::new();
        for (n, thread) in self.series.threads.iter().filter(|t| t.receives == receives).take(LIMIT).enumerate() {
            let mut plot = self.plot(Axis::linear(0.0, 1.0));
            plot.y_ticks(percent);
            self.x_ticks(&mut plot);
            let of = |column: &Option<Vec<Option<f64>>>, slot: usize| column.as_ref().and_then(|c| c[slot]);
            let parts = |slot: usize| {
                let on = thread.on_cpu[slot]?;
                Some([on, of(&thread.run_wait, slot).unwrap_or(0.0), of(&thread.throttled, slot).unwrap_or(0.0)])
            };
            let mut below = vec![0.0; self.series.len()];
            for (part, (class, name)) in
                [("c0", "on a CPU"), ("c4", "waiting for one"), ("c3", "throttled")].into_iter().enumerate()
            {
                let known = [true, thread.run_wait.is_some(), thread.throttled.is_some()][part];
                if !known {
                    continue;
                }
                let mut points = Vec::new();
                for (slot, below) in below.iter_mut().enumerate() {
                    if let Some(parts) = parts(slot) {
                        let above = *below + parts[part];
                        points.push((self.middle(slot), *below, above));
                        *below = above;
                    }
                }
                plot.area(class, &points);
                plot.name(class, name, points.last().map_or(0.0, |p| f64::midpoint(p.1, p.2)));
            }
            self.hovers(&mut plot, |slot| {
                let share = |s: Option<f64>| s.map_or_else(|| String::from("not observed"), percent);
                format!(
                    "{} on CPU, {} waiting for a CPU, {} throttled",
                    share(thread.on_cpu[slot]),
                    share(of(&thread.run_wait, slot)),
                    share(of(&thread.throttled, slot))
                )
            });
            self.marks(&mut plot);
            let name = format!("{} {}/{} {}", thread.role, thread.pid, thread.tid, plain(&thread.name));
            let heading = format!("CPU of {name}, share of one core");
            let description =
                format!("How the thread {name} spent its time: on a CPU, waiting for one, throttled by its quota.");
            drawings.push(plot.finish(&format!("cpu-{n}"), &heading, &description));
        }
        drawings
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
        let mut plot = self.plot(Axis::counting(max as f64));
        plot.y_ticks(short);
        self.x_ticks(&mut plot);
        for (class, name, column) in &columns {
            plot.line(class, name, &self.points(|slot| Some(column[slot] as f64)));
        }
        self.hovers(&mut plot, |slot| {
            let each = columns.iter().map(|(_, name, column)| format!("{} chunks {name}", count(column[slot])));
            each.collect::<Vec<_>>().join(", ")
        });
        self.marks(&mut plot);
        let description = format!("Chunks dropped or merged in each slot; the maximum is {}.", count(max));
        Some(plot.finish("fates", "Chunks dropped and merged, in each slot", &description))
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

pub(super) fn nanoseconds(ns: f64) -> String {
    let (n, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", n.round())
}

pub(super) fn seconds(s: f64) -> String {
    match s {
        s if s >= 7200.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 300.0 => format!("{:.1} min", s / 60.0),
        s => format!("{} s", (s * 100.0).round() / 100.0),
    }
}
