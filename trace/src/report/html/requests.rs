//! Requests with the longest waits, each drawn on the time axis of the run.

use std::fmt::Write as _;

use super::super::hostile::Html;
use super::super::{Clock, Report, SlowLine, Spread};
use crate::words::{count, duration};

/// Size of the drawing beside each row.
const WIDTH: f64 = 220.0;

pub(super) fn table(report: &Report, clock: &Clock) -> String {
    if report.slowest.is_empty() {
        return String::new();
    }
    let window = report.window_ns[1].max(1);
    let mut out = format!(
        concat!(
            "<div class=\"scroll\"><table><thead><tr><th>Request</th><th class=\"n\">Gap</th><th>From first send to first receive, of {}</th>",
            "<th class=\"n\">First sent</th><th class=\"n\">Tokens sent</th><th class=\"n\">Received</th><th class=\"n\">Lost</th>",
            "<th class=\"n\">Inter-token p50, p90, p99: client</th><th class=\"n\">Engine</th><th>Finish</th>",
            "</tr></thead><tbody>\n"
        ),
        duration(window)
    );
    for line in &report.slowest {
        let number = |n: Option<u64>| n.map_or_else(|| String::from("-"), count);
        let sent = line.first_sent_ns.map_or_else(
            || String::from("-"),
            |ns| {
                clock
                    .time_of_day(ns)
                    .map_or_else(|| duration(ns), |time| format!("{time} ({})", duration(ns)))
            },
        );
        let _ = writeln!(
            out,
            concat!(
                "<tr><td class=\"rid\">{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
                "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>"
            ),
            Html(&line.rid),
            line.gap_ns.map_or_else(|| waits(line, window), duration),
            drawing(line, window),
            Html(&sent),
            count(line.tokens_sent),
            number(line.tokens_received),
            number(line.tokens_lost),
            itl(line.itl_ns.delivered),
            itl(line.itl_ns.sent),
            Html(line.finish.as_deref().unwrap_or("-"))
        );
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn itl(itl: Option<Spread>) -> String {
    let quantiles = |s: Spread| [s.p50, s.p90, s.p99].map(duration).join(", ");
    itl.map_or_else(|| String::from("-"), quantiles)
}

/// For a request whose first token has not been received.
fn waits(line: &SlowLine, window: u64) -> String {
    match (line.first_sent_ns, line.first_received_ns) {
        (Some(sent), None) => format!("over {}", duration(window.saturating_sub(sent))),
        _ => String::from("-"),
    }
}

fn drawing(line: &SlowLine, window: u64) -> String {
    let at = |ns: u64| 3.0 + (ns.min(window) as f64 / window as f64) * (WIDTH - 6.0);
    let label = match (line.first_sent_ns, line.first_received_ns) {
        (Some(sent), Some(received)) => format!(
            "first sent at {}, first received at {}",
            duration(sent),
            duration(received)
        ),
        (Some(sent), None) => format!("first sent at {}, receive not observed", duration(sent)),
        (None, Some(received)) => format!("first received at {}, send not observed", duration(received)),
        (None, None) => return String::from("not observed"),
    };
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} 18" style="width:{WIDTH}px" role="img" aria-label="{label}"><title>{label}</title><path class="grid" d="M0 9H{WIDTH}"/>"#
    );
    if let Some(sent) = line.first_sent_ns {
        let (from, to) = (at(sent), at(line.first_received_ns.unwrap_or(window)));
        let width = (to - from).max(1.5);
        let _ = write!(
            out,
            r#"<rect class="wait" x="{from:.1}" y="4" width="{width:.1}" height="10" rx="2"/><path class="axis" d="M{from:.1} 1v16"/>"#
        );
    }
    if let Some(received) = line.first_received_ns {
        let _ = write!(
            out,
            r#"<circle class="event" cx="{:.1}" cy="9" r="2.6"/>"#,
            at(received)
        );
    }
    out.push_str("</svg>");
    out
}
