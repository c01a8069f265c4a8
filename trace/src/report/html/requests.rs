//! Requests with the longest waits, each drawn on the time axis of the run.

use maud::{Markup, Render, html};

use super::super::table::Kind::{Number, Rid, Text};
use super::super::{Clock, Report, SlowLine, Spread};
use super::plot::at;
use crate::words::{count, duration, known};

/// Size of the drawing beside each row.
const WIDTH: f64 = 220.0;

pub(super) fn table(report: &Report, clock: &Clock) -> Option<Markup> {
    let window = report.window_ns[1].max(1);
    let drawn = format!("From first send to first receive, of {}", duration(window));
    let columns = [
        ("Request", Rid),
        ("Gap", Number),
        (&drawn, Text),
        ("First sent", Number),
        ("Tokens sent", Number),
        ("Received", Number),
        ("Lost", Number),
        ("Inter-token p50, p90, p99: client", Number),
        ("Engine", Number),
        ("Finish", Text),
    ];
    let rows = report.slowest.iter().map(|line| {
        let sent = |ns: u64| match clock.time_of_day(ns) {
            Some(time) => format!("{time} ({})", duration(ns)),
            None => duration(ns),
        };
        [
            line.rid.render(),
            line.gap_ns.map_or_else(|| waits(line, window), duration).render(),
            drawing(line, window),
            known(line.first_sent_ns, sent).render(),
            count(line.tokens_sent).render(),
            known(line.tokens_received, count).render(),
            known(line.tokens_lost, count).render(),
            itl(line.itl_ns.delivered).render(),
            itl(line.itl_ns.sent).render(),
            line.finish.as_deref().unwrap_or("-").render(),
        ]
    });
    (!report.slowest.is_empty()).then(|| super::tables::table(columns, rows))
}

fn itl(itl: Option<Spread>) -> String {
    known(itl, |s| [s.p50, s.p90, s.p99].map(duration).join(", "))
}

/// For a request whose first token has not been received.
fn waits(line: &SlowLine, window: u64) -> String {
    match (line.first_sent_ns, line.first_received_ns) {
        (Some(sent), None) => format!("over {}", duration(window.saturating_sub(sent))),
        _ => String::from("-"),
    }
}

fn drawing(line: &SlowLine, window: u64) -> Markup {
    let x = |ns: u64| 3.0 + (ns.min(window) as f64 / window as f64) * (WIDTH - 6.0);
    let label = match (line.first_sent_ns.map(duration), line.first_received_ns.map(duration)) {
        (Some(sent), Some(received)) => format!("first sent at {sent}, first received at {received}"),
        (Some(sent), None) => format!("first sent at {sent}, receive not observed"),
        (None, Some(received)) => format!("first received at {received}, send not observed"),
        (None, None) => return "not observed".render(),
    };
    html! {
        svg viewBox={ "0 0 " (WIDTH) " 18" } style={ "width:" (WIDTH) "px" } role="img" aria-label=(label) {
            title { (label) }
            path.grid d={ "M0 9H" (WIDTH) } {}
            @if let Some(sent) = line.first_sent_ns {
                @let (from, to) = (x(sent), x(line.first_received_ns.unwrap_or(window)));
                rect.wait x=(at(from)) y="4" width=(at((to - from).max(1.5))) height="10" rx="2" {}
                path.axis d={ "M" (at(from)) " 1v16" } {}
            }
            @if let Some(received) = line.first_received_ns {
                circle.event cx=(at(x(received))) cy="9" r="2.6" {}
            }
        }
    }
}
