//! Distributions of waits, by requests or frames.

use super::super::Report;
use super::over_time::nanoseconds;
use super::plot::{Axis, Plot};
use crate::words::{count, duration};

/// Maximum number of hops drawn.
const HOPS: usize = 6;

/// Distributions of the gap and of each hop's queue wait.
pub(super) fn drawings(report: &Report) -> String {
    let mut out = String::new();
    if let Some(gap) = &report.gap_ns {
        let marks = [
            ("median", gap.p50),
            ("p90", gap.p90),
            ("p99", gap.p99),
            ("max", gap.max),
        ];
        let marks: Vec<(&str, u64)> = marks.into_iter().filter_map(|(name, ns)| Some((name, ns?))).collect();
        out.push_str(&drawing(
            "gap",
            "Gap: from the scheduler's first send to the tokenizer's first receive, by request",
            "requests",
            &gap.classes,
            &marks,
        ));
    }
    for (n, hop) in report
        .hops
        .iter()
        .filter(|h| !h.queue_wait_classes.is_empty())
        .take(HOPS)
        .enumerate()
    {
        let spread = hop
            .queue_wait_ns
            .map(|s| [("median", s.p50), ("p90", s.p90), ("p99", s.p99), ("max", s.max)]);
        let heading = format!("Queue wait on {}: from sent to received, by frame", hop.name);
        let marks = spread.as_ref().map_or(&[][..], |s| s.as_slice());
        out.push_str(&drawing(
            &format!("queue_wait-{n}"),
            &heading,
            "frames",
            &hop.queue_wait_classes,
            marks,
        ));
    }
    out
}

fn drawing(id: &str, heading: &str, unit: &str, classes: &[[u64; 3]], marks: &[(&str, u64)]) -> String {
    let (Some(first), Some(last)) = (classes.first(), classes.last()) else {
        return String::new();
    };
    let max = classes.iter().map(|c| c[2]).max().unwrap_or(0);
    let mut plot = Plot::new(
        Axis::decades(first[0] as f64, last[1] as f64),
        Axis::counting(max as f64),
        190.0,
    );
    plot.y_ticks(|n| count(n as u64));
    plot.x_ticks(|ns| (nanoseconds(ns), None));
    for &[from, to, n] in classes {
        let tooltip = format!("{} to {}: {} {unit}", duration(from), duration(to), count(n));
        plot.bar("c0", (from.max(1) as f64, to as f64), n as f64, &tooltip);
    }
    for (row, (name, ns)) in marks.iter().enumerate() {
        plot.vertical_line(&format!("{name} {}", duration(*ns)), (*ns).max(1) as f64, row);
    }
    let quantiles: Vec<String> = marks
        .iter()
        .map(|(name, ns)| format!("{name} {}", duration(*ns)))
        .collect();
    let total = classes.iter().map(|c| c[2]).sum();
    plot.finish(
        id,
        heading,
        format!(
            "{} {unit} on a logarithmic scale of time: {}.",
            count(total),
            quantiles.join(", ")
        ),
    )
}
