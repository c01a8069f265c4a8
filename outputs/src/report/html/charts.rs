//! Charts: traffic and waits over time, with the start of each finding marked, and distributions of waits.

use maud::{Markup, html};
use trace::words::{bytes, count, duration, percent};

use super::super::brief::describe_finding_times;
use super::super::hostile::escape_and_cut_line as escape_line;
use super::super::{Clock, FaultKind, FrontendCounts, HopSeries, Report, Series, SpreadSeries, ThreadSeries};
use super::percent_or_unobserved;
use super::plot::{Axis, Band, CurvePoint, Plot, TickLabel};

/// Maximum number of marked findings.
const MAX_MARKED_FINDINGS: usize = 12;
/// Maximum number of threads and hops drawn; the tables list all.
const MAX_CURVES: usize = 6;
const HEIGHT: f64 = 190.0;
const SECOND_NS: u64 = 1_000_000_000;

/// All charts, or the reason why there are none.
pub(super) fn draw_time_series_charts(report: &Report, clock: &Clock) -> Markup {
    // A line through a single slot shows nothing.
    let Some(series) = report.series.as_ref().filter(|series| series.len() > 1) else {
        return html! { p { "No time series: the capture is too short." } };
    };
    let charts = TimeSeriesCharts { report, series, clock };
    html! {
        (charts.draw_token_rates())
        @if let Some(gaps) = charts.draw_gap_chart() { (gaps) }
        @if let Some(backlog) = charts.draw_backlog_chart() { (backlog) }
        @for thread in charts.draw_thread_cpu_charts() { (thread) }
        @if let Some(outcomes) = charts.draw_chunk_outcome_chart() { (outcomes) }
        // Charts that are missing are named, with the reason.
        @for (name, is_observed, fault) in [
            ("Gap", series.gap_ns.is_some(), FaultKind::FirstTokenGap),
            ("Backlog", series.hops.iter().any(|hop| hop.backlog_max_frames.is_some()), FaultKind::Queues),
            ("Chunks dropped (confirmed) and merged", series.chunks.merged.is_some(), FaultKind::Delivery),
        ] {
            @if !is_observed { p.dim { (name) ": not observed" (describe_unjudged_reason(report, fault)) } }
        }
    }
}

/// Reason why faults of this kind were not judged, after a colon; empty if none is known.
fn describe_unjudged_reason(report: &Report, fault: FaultKind) -> String {
    let judgement = report.judged.iter().find(|judgement| judgement.fault == fault);
    let reason = judgement.and_then(|judgement| judgement.reason.as_deref());
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

/// Text of a chart.
struct ChartText<'a> {
    id: &'a str,
    heading: &'a str,
    /// For screen readers.
    description: &'a str,
}

/// A named line of a chart, with a value for each slot.
struct Curve<'a> {
    /// Classes of the style sheet: colour and dashes.
    class: &'static str,
    name: &'a str,
    values: Vec<Option<f64>>,
}

impl<'a> Curve<'a> {
    /// The curve of a column of counts, or of durations in nanoseconds.
    fn of_column(class: &'static str, name: &'a str, column: &[Option<u64>]) -> Self {
        Self { class, name, values: column.iter().map(|value| value.map(|value| value as f64)).collect() }
    }

    /// Its largest value; 0 without any.
    fn max(&self) -> f64 {
        self.values.iter().copied().flatten().fold(0.0, f64::max)
    }
}

/// The time series of a report, to be drawn.
struct TimeSeriesCharts<'a> {
    report: &'a Report,
    series: &'a Series,
    clock: &'a Clock,
}

impl TimeSeriesCharts<'_> {
    /// Middle of a slot, in seconds.
    fn middle_of_slot_s(&self, slot: usize) -> f64 {
        self.series.begin_ns(slot) as f64 / 1e9 + self.series.seconds(slot) / 2.0
    }

    /// Names a slot: `second`, `2 s`.
    fn describe_slot_length(&self) -> String {
        match self.series.slot_ns {
            SECOND_NS => String::from("second"),
            ns => format!("{} s", ns as f64 / 1e9),
        }
    }

    /// A plot over the time of the run, without curves. `format_y_tick` formats the ticks of its axis `y`.
    fn empty_plot(&self, y: Axis, format_y_tick: fn(f64) -> String) -> Plot {
        let mut plot = Plot::new(Axis::linear(0.0, self.report.capture_length_ns() as f64 / 1e9), y, HEIGHT);
        plot.draw_y_ticks(format_y_tick);
        plot.draw_x_ticks(|seconds| TickLabel {
            value: format_seconds(seconds),
            second_line: self.clock.time_of_day((seconds * 1e9) as u64),
        });
        plot
    }

    /// Draws each curve through the middles of the slots.
    fn draw_curves(&self, plot: &mut Plot, curves: &[Curve<'_>]) {
        for curve in curves {
            let values = curve.values.iter().enumerate();
            let points: Vec<_> =
                values.map(|(slot, value)| Some(CurvePoint { x: self.middle_of_slot_s(slot), y: (*value)? })).collect();
            plot.draw_line(curve.class, curve.name, &points);
        }
    }

    /// Adds a tooltip for each slot, marks the findings, and returns the chart as a figure. `describe_slot` describes the slot with an
    /// index.
    fn finish_chart(&self, mut plot: Plot, text: &ChartText<'_>, describe_slot: impl Fn(usize) -> String) -> Markup {
        // SVG shows the tooltip of the topmost element under the pointer, so the slots come after the curves.
        for slot in 0..self.series.len() {
            let from = self.series.begin_ns(slot);
            // The last slot may be shorter than the others.
            let to = (self.series.begin_ns(slot + 1)).min(self.series.to_ns);
            let slot_text = format!("{}: {}", self.clock.describe_moment(from), describe_slot(slot));
            plot.add_tooltip(from as f64 / 1e9..to as f64 / 1e9, &slot_text);
        }
        self.mark_findings(&mut plot);
        plot.into_figure(text.id, text.heading, text.description)
    }

    /// Marks the start of each finding with its number in the list of findings.
    fn mark_findings(&self, plot: &mut Plot) {
        for (finding, number) in self.report.findings.iter().take(MAX_MARKED_FINDINGS).zip(1..) {
            let tooltip =
                format!("{} {}: {}", finding.kind, describe_finding_times(finding, self.clock), finding.summary);
            plot.draw_finding_marker(number, finding.severity.as_str(), finding.at_ns as f64 / 1e9, &tooltip);
        }
    }

    /// Tokens per second in a slot; `None` if it is too short for a reliable rate.
    fn tokens_per_second_in_slot(&self, slot: usize, tokens: u64) -> Option<f64> {
        let seconds = self.series.seconds(slot);
        // The last slot may be shorter than the others. If it is shorter than a quarter of them, a few tokens seem to be a high rate.
        let length_ns = seconds * 1e9;
        let is_reliable = 4.0 * length_ns >= self.series.slot_ns as f64;
        if is_reliable { Some(tokens as f64 / seconds) } else { None }
    }

    /// Tokens per second of a column, which has the number of tokens in each slot.
    fn tokens_per_second_curve<'n>(
        &self,
        class: &'static str,
        name: &'n str,
        column: impl IntoIterator<Item = Option<u64>>,
    ) -> Curve<'n> {
        let rates = column.into_iter().enumerate().map(|(slot, tokens)| self.tokens_per_second_in_slot(slot, tokens?));
        Curve { class, name, values: rates.collect() }
    }

    /// Chart of the tokens per second at each stage.
    fn draw_token_rates(&self) -> Markup {
        let tokens = &self.series.tokens;
        // `c0`, `c1 dashed` and so on are classes of the style sheet: a colour, and how the line is dashed.
        let mut curves = vec![self.tokens_per_second_curve("c0", "sent", tokens.sent.iter().copied())];
        let observed = [("c1 dashed", "received", &tokens.received), ("c2 dotted", "delivered", &tokens.delivered)];
        for (class, name, column) in observed {
            // A stage that is not observed has no column, so it gets no curve.
            if let Some(column) = column {
                curves.push(self.tokens_per_second_curve(class, name, column.iter().copied()));
            }
        }
        let max = curves.iter().map(Curve::max).fold(0.0, f64::max);
        let heading = match self.series.slot_ns {
            SECOND_NS => String::from("Tokens per second"),
            _ => format!("Tokens per second, mean of each {}", self.describe_slot_length()),
        };
        let description = format!("{heading}; the maximum is {}.", count(max as u64));
        let text = ChartText { id: "tokens", heading: &heading, description: &description };
        let mut plot = self.empty_plot(Axis::from_zero_to_at_least(max), format_count);
        self.draw_curves(&mut plot, &curves);
        self.finish_chart(plot, &text, |slot| self.describe_traffic_in_slot(&curves, slot))
    }

    /// Rates of tokens and the live requests in a slot: `900 tokens/s sent, 12 requests live`. Leaves out what was not observed.
    fn describe_traffic_in_slot(&self, token_rates: &[Curve<'_>], slot: usize) -> String {
        let mut parts = Vec::new();
        for curve in token_rates {
            parts.extend(curve.values[slot].map(|rate| format!("{} tokens/s {}", count(rate as u64), curve.name)));
        }
        parts.extend(self.series.requests.live[slot].map(|live| format!("{} requests live", count(live))));
        parts.join(", ")
    }

    /// Chart of the first-token gaps; `None` if no gap was observed.
    fn draw_gap_chart(&self) -> Option<Markup> {
        let gap = self.series.gap_ns.as_ref()?;
        let [min_ns, max_ns] = smallest_and_largest_gap_ns(gap)?;
        // A logarithmic axis cannot show a gap of 0 alone.
        if max_ns == 0 {
            return None;
        }
        let description = format!("First-token gap on a logarithmic scale; the maximum is {}.", duration(max_ns));
        let heading = format!("Gap of the first tokens received in each {}", self.describe_slot_length());
        let text = ChartText { id: "gap-series", heading: &heading, description: &description };
        // Classes of the style sheet: a colour, and how the line is dashed.
        let curves = [
            Curve::of_column("c0", "median", &gap.p50),
            Curve::of_column("c1 dashed", "p99", &gap.p99),
            Curve::of_column("c3 dotted", "largest", &gap.max),
        ];
        // Differences below a microsecond are not interesting.
        let mut plot =
            self.empty_plot(Axis::logarithmic_over((min_ns as f64).max(1e3), max_ns as f64), format_nanoseconds);
        self.draw_curves(&mut plot, &curves);
        Some(self.finish_chart(plot, &text, |slot| describe_gaps_in_slot(gap, slot)))
    }

    /// Chart of the backlogs of the first few hops, one curve each; `None` if none was observed.
    fn draw_backlog_chart(&self) -> Option<Markup> {
        let observed = self.series.hops.iter().filter_map(HopBacklog::of_hop);
        let backlogs: Vec<HopBacklog<'_>> = observed.take(MAX_CURVES).collect();
        let max = backlogs.iter().flat_map(|backlog| backlog.frames.iter().flatten()).copied().max()?;
        let description = format!("Frames sent but not received, by hop; the maximum is {}.", count(max));
        let heading =
            format!("Backlog: frames sent but not yet received, maximum of each {}", self.describe_slot_length());
        let text = ChartText { id: "backlog", heading: &heading, description: &description };
        let curves: Vec<Curve<'_>> = backlogs
            .iter()
            .enumerate()
            .map(|(n, backlog)| Curve::of_column(curve_class(n), &backlog.hop.name, backlog.frames))
            .collect();
        let mut plot = self.empty_plot(Axis::from_zero_to_at_least(max as f64), format_count);
        self.draw_curves(&mut plot, &curves);
        Some(self.finish_chart(plot, &text, |slot| {
            let each: Vec<String> = backlogs.iter().map(|backlog| backlog.describe_in_slot(slot)).collect();
            each.join("; ")
        }))
    }

    /// One chart for each receiving thread, or for main threads if no receiving thread is known.
    fn draw_thread_cpu_charts(&self) -> Vec<Markup> {
        let has_receiver = self.series.threads.iter().any(|thread| thread.receives);
        // Selects the receivers, or all threads if none of them receives.
        let threads = self.series.threads.iter().filter(|thread| thread.receives == has_receiver).take(MAX_CURVES);
        threads.enumerate().map(|(n, thread)| self.draw_thread_cpu_chart(n, thread)).collect()
    }

    /// Chart of the time use of a thread. `thread_index` makes its id unique.
    fn draw_thread_cpu_chart(&self, thread_index: usize, thread: &ThreadSeries) -> Markup {
        let name = format!("{} {}/{} {}", thread.role, thread.pid, thread.tid, escape_line(&thread.name));
        let heading = format!("CPU of {name}, share of one core");
        let description =
            format!("How the thread {name} spent its time: on a CPU, waiting for one, throttled by its quota.");
        let id = format!("cpu-{thread_index}");
        let text = ChartText { id: &id, heading: &heading, description: &description };
        let mut plot = self.empty_plot(Axis::linear(0.0, 1.0), percent);
        self.draw_stacked_shares(&mut plot, thread);
        self.finish_chart(plot, &text, |slot| {
            let run_wait = thread.run_wait.as_ref().and_then(|column| column[slot]);
            let throttled = thread.throttled.as_ref().and_then(|column| column[slot]);
            let [on_cpu, run_wait, throttled] = [thread.on_cpu[slot], run_wait, throttled].map(percent_or_unobserved);
            format!("{on_cpu} on CPU, {run_wait} waiting for a CPU, {throttled} throttled")
        })
    }

    /// Draws the parts of a thread's time on top of each other.
    fn draw_stacked_shares(&self, plot: &mut Plot, thread: &ThreadSeries) {
        // Colours of the style sheet, names, and shares in each slot.
        let parts = [
            ("c0", "on a CPU", Some(&thread.on_cpu)),
            ("c4", "waiting for a CPU", thread.run_wait.as_ref()),
            ("c3", "throttled", thread.throttled.as_ref()),
        ];
        // Sum of the shares drawn so far in each slot, on which the next part is drawn.
        let mut tops = vec![0.0; self.series.len()];
        for (class, name, column) in parts {
            let Some(column) = column else { continue };
            let bands = self.add_shares_to_tops(&mut tops, thread, column);
            plot.draw_area(class, &bands);
            plot.add_curve_name(class, name, bands.last().map_or(0.0, |band| f64::midpoint(band.below, band.above)));
        }
    }

    /// Adds the shares of a column to the sums of the parts below it (`tops`). Returns the bands between the old and the new sums, without
    /// slots in which the thread was not sampled: these are not drawn as idle.
    fn add_shares_to_tops(&self, tops: &mut [f64], thread: &ThreadSeries, column: &[Option<f64>]) -> Vec<Band> {
        let mut bands = Vec::new();
        for (slot, top) in tops.iter_mut().enumerate() {
            let is_sampled = thread.on_cpu[slot].is_some();
            if is_sampled {
                let below = *top;
                *top += column[slot].unwrap_or(0.0);
                bands.push(Band { x: self.middle_of_slot_s(slot), below, above: *top });
            }
        }
        bands
    }

    /// Curves of the chunks dropped and merged, without those that were not observed or are always 0.
    fn curves_of_outcomes(&self) -> Vec<Curve<'static>> {
        let chunks = &self.series.chunks;
        // For each curve: a class of the style sheet (its colour and dashes), its name, and its number in each slot.
        let columns = [
            ("c3", "dropped (confirmed)", &chunks.dropped_confirmed),
            ("c4 dashed", "dropped (predicted)", &chunks.dropped_predicted),
            ("c1 dotted", "merged", &chunks.merged),
        ];
        let observed = columns.into_iter().filter_map(|(class, name, column)| {
            let column = column.as_ref()?;
            Some(Curve::of_column(class, name, column))
        });
        observed.filter(|curve| curve.max() > 0.0).collect()
    }

    /// Chart of the chunks dropped or merged in each slot; `None` if there are none.
    fn draw_chunk_outcome_chart(&self) -> Option<Markup> {
        let curves = self.curves_of_outcomes();
        if curves.is_empty() {
            return None;
        }
        let max = curves.iter().map(Curve::max).fold(0.0, f64::max);
        let heading = format!("Chunks dropped and merged, in each {}", self.describe_slot_length());
        let description = format!("{heading}; the maximum is {}.", count(max as u64));
        let text = ChartText { id: "fates", heading: &heading, description: &description };
        let mut plot = self.empty_plot(Axis::from_zero_to_at_least(max), format_count);
        self.draw_curves(&mut plot, &curves);
        Some(self.finish_chart(plot, &text, |slot| {
            let each = curves.iter().map(|curve| match curve.values[slot] {
                Some(chunks) => format!("{} chunks {}", count(chunks as u64), curve.name),
                None => format!("{}: not observed any more", curve.name),
            });
            each.collect::<Vec<_>>().join(", ")
        }))
    }
}

/// The smallest and the largest gap to draw: of all medians and maxima. `None` if no gap was observed.
fn smallest_and_largest_gap_ns(gap: &SpreadSeries) -> Option<[u64; 2]> {
    let gaps_ns: Vec<u64> = gap.p50.iter().chain(&gap.max).copied().flatten().collect();
    let min_ns = gaps_ns.iter().copied().min()?;
    let max_ns = gaps_ns.iter().copied().max()?;
    Some([min_ns, max_ns])
}

/// Number and quantiles of the gaps of the first tokens received in a slot.
fn describe_gaps_in_slot(gap: &SpreadSeries, slot: usize) -> String {
    let Some(tokens) = gap.count[slot] else { return String::from("receives: not observed any more") };
    let [p50, p99, max] = [gap.p50[slot], gap.p99[slot], gap.max[slot]].map(duration_or_none);
    format!("{} first tokens, median {p50}, p99 {p99}, largest {max}", count(tokens))
}

/// Longest backlogs of a hop, one for each slot.
struct HopBacklog<'s> {
    hop: &'s HopSeries,
    frames: &'s [Option<u64>],
}

impl<'s> HopBacklog<'s> {
    /// The backlogs of a hop; `None` if they were not observed.
    fn of_hop(hop: &'s HopSeries) -> Option<Self> {
        Some(Self { hop, frames: hop.backlog_max_frames.as_deref()? })
    }

    /// The longest backlog in a slot, with the bytes of it in the kernel if those were observed.
    fn describe_in_slot(&self, slot: usize) -> String {
        let name = escape_line(&self.hop.name);
        let Some(frames) = self.frames[slot] else { return format!("{name}: not observed any more") };
        let kernel_bytes = self.hop.kernel_bytes_max.as_ref().and_then(|column| column[slot]);
        let kernel = kernel_bytes
            .map_or_else(String::new, |kernel_bytes| format!(", {} of it in the kernel", bytes(kernel_bytes)));
        format!("up to {} frames wait on {name}{kernel}", count(frames))
    }
}

/// `none` for a slot without a value.
fn duration_or_none(ns: Option<u64>) -> String {
    ns.map_or_else(|| String::from("none"), duration)
}

/// Colour and dashes of the curve with this index.
fn curve_class(index: usize) -> &'static str {
    ["c0", "c1 dashed", "c2 dotted", "c3", "c4 dashed", "c5 dotted"][index % MAX_CURVES]
}

/// Formats the round number of a tick: `5`, `20 k`, `1.5 M`.
fn format_count(number: f64) -> String {
    match number {
        1e6.. => format!("{} M", number / 1e6),
        1e4.. => format!("{} k", number / 1e3),
        _ => count(number as u64),
    }
}

/// Formats a duration in its largest unit, without decimals: `100 us`, `2 s`.
fn format_nanoseconds(ns: f64) -> String {
    match ns {
        1e9.. => format!("{} s", (ns / 1e9).round()),
        1e6.. => format!("{} ms", (ns / 1e6).round()),
        1e3.. => format!("{} us", (ns / 1e3).round()),
        _ => format!("{} ns", ns.round()),
    }
}

/// Formats a time in seconds, from five minutes on in minutes, and from two hours on in hours: `0.25 s`, `12.5 min`, `2.1 h`.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        7200.0.. => format!("{:.1} h", seconds / 3600.0),
        300.0.. => format!("{:.1} min", seconds / 60.0),
        _ => format!("{} s", (seconds * 100.0).round() / 100.0),
    }
}

/// Distributions of the gap and of each hop's queue wait.
pub(super) fn draw_wait_distributions(report: &Report) -> Markup {
    let hops = report.hops.iter().filter(|hop| !hop.queue_wait_classes.is_empty());
    html! {
        @if let Some(gap) = &report.gap_ns {
            @let heading = "Gap: from the first send to the first receive, by request";
            (draw_distribution("gap", heading, "requests", &gap.classes, [gap.p50, gap.p90, gap.p99, gap.max]))
        }
        @for line in report.frontend.iter().flat_map(FrontendCounts::describe_frontend_waits) {
            p { "In the frontend, " (line) "." }
        }
        @for (n, hop) in hops.take(MAX_CURVES).enumerate() {
            @let heading = format!("Queue wait on {}: from sent to received, by frame", hop.name);
            @let wait = hop.queue_wait_ns;
            @let quantiles = wait.map_or([None; 4], |wait| [wait.p50, wait.p90, wait.p99, wait.max].map(Some));
            (draw_distribution(&format!("queue_wait-{n}"), &heading, "frames", &hop.queue_wait_classes, quantiles))
        }
    }
}

/// Chart of a distribution, with a bar for each of its buckets and a line for each of its quantiles: median, p90, p99 and maximum.
/// `buckets`: start, end and number of each bucket. `unit` is what they count.
fn draw_distribution(id: &str, heading: &str, unit: &str, buckets: &[[u64; 3]], quantiles: [Option<u64>; 4]) -> Markup {
    // The axis goes from the start of the first bucket to the end of the last. Without buckets, nothing is drawn.
    let (Some([min_ns, ..]), Some([_, max_ns, _])) = (buckets.first(), buckets.last()) else {
        return Markup::default();
    };
    let counts = buckets.iter().map(|[_, _, n]| *n);
    let highest = counts.clone().max().unwrap_or(0);
    let time_axis = Axis::logarithmic_over(*min_ns as f64, *max_ns as f64);
    let mut plot = Plot::new(time_axis, Axis::from_zero_to_at_least(highest as f64), HEIGHT);
    plot.draw_y_ticks(|number| count(number as u64));
    plot.draw_x_ticks(|ns| TickLabel { value: format_nanoseconds(ns), second_line: None });
    for &[from_ns, to_ns, n] in buckets {
        let tooltip = format!("{} to {}: {} {unit}", duration(from_ns), duration(to_ns), count(n));
        // A logarithmic axis has no zero.
        plot.draw_bar("c0", from_ns.max(1) as f64..to_ns as f64, n as f64, &tooltip);
    }
    let labels = draw_quantiles_and_list_labels(&mut plot, quantiles);
    let total = count(counts.sum());
    let description = format!("{total} {unit} on a logarithmic scale of time: {}.", labels.join(", "));
    plot.into_figure(id, heading, &description)
}

/// Draws a line for each known quantile: median, p90, p99 and maximum. Returns their labels.
fn draw_quantiles_and_list_labels(plot: &mut Plot, quantiles: [Option<u64>; 4]) -> Vec<String> {
    let mut labels = Vec::new();
    for (name, ns) in ["median", "p90", "p99", "max"].into_iter().zip(quantiles) {
        let Some(ns) = ns else { continue };
        let label = format!("{name} {}", duration(ns));
        let own_row = labels.len();
        // A logarithmic axis has no zero.
        plot.draw_vertical_line(&label, ns.max(1) as f64, own_row);
        labels.push(label);
    }
    labels
}
