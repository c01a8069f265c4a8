//! Attribution of first tokens' and chunks' time: a bar with its numbers.

use maud::{Markup, html};

use super::super::table::Kind::{Number, Text};
use super::super::{LegLine, Report, bar};
use super::table::table;
use crate::words::percent;

/// Colours of segments; further ones share the last.
const COLOURS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

pub(super) fn draw(report: &Report) -> Option<Markup> {
    let segments = bar::segments(&report.path);
    let colour = |place: usize| COLOURS[place.min(COLOURS.len() - 1)];
    let columns = [
        ("leg", Text),
        ("first tokens", Number),
        ("chunks", Number),
        ("mean per chunk", Number),
        ("receiver busy", Number),
        ("its thread while frames wait", Text),
    ];
    let rows = report.path.iter().map(LegLine::cells);
    (!segments.is_empty()).then(|| {
        html! {
            p.shares {
                @for (place, part) in segments.iter().enumerate() {
                    span.bar.(colour(place)) style={ "flex:" (format!("{:.4}", part.share)) }
                        title={ (percent(part.share)) " " (part.name) } {}
                }
            }
            p {
                @for (place, part) in segments.iter().enumerate() {
                    span.key.(colour(place)) {} " " (percent(part.share)) " " (part.name) " "
                }
            }
            (table(columns, rows))
        }
    })
}
