//! Distributions of waits, by requests or frames.

use maud::{Markup, html};

use super::super::{FrontendCounts, Report, Spread};
use super::over_time::nanoseconds;
use super::plot::{Axis, Plot};
use crate::words::{count, duration};

/// Maximum number of hops drawn.
const HOPS: usize = 6;

/// Distributions of the gap and of each hop's queue wait.
pub(super) fn drawings(report: &Report) -> Markup {
    let hops = report.hops.iter().filter(|h| !h.queue_wait_classes.is_empty());
    html! {
        @if let Some(gap) = &report.gap_ns {
            @let marks = [("median", gap.p50), ("p90", gap.p90), ("p99", gap.p99), ("max", gap.max)];
            (drawing(
                "gap",
                "Gap: from the first send to the first receive, by request",
                "requests",
                &gap.classes,
                marks,
            ))
        }
        @for line in report.frontend.iter().flat_map(FrontendCounts::lines) {
            p { "In the frontend, " (line) "." }
        }
        @for (n, hop) in hops.take(HOPS).enumerate() {
            @let wait = |of: fn(&Spread) -> u64| hop.queue_wait_ns.as_ref().map(of);
            (drawing(
                &format!("queue_wait-{n}"),
                &format!("Queue wait on {}: from sent to received, by frame", hop.name),
                "frames",
                &hop.queue_wait_classes,
                [("median", wait(|s| s.p50)), ("p90", wait(|s| s.p90)), ("p99", wait(|s| s.p99)), ("max", wait(|s| s.max))],
            ))
        }
    }
}

fn drawing(id: &str, heading: &str, unit: &str, classes: &[[u64; 3]], marks: [(&str, Option<u64>); 4]) -> Markup {
    let (Some(first), Some(last)) = (classes.first(), classes.last()) else {
        return Markup::default();
    };
    let marks = marks.into_iter().filter_map(|(name, ns)| Some((format!("{name} {}", duration(ns?)), ns?)));
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
