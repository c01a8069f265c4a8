//! Attribution of first tokens' and chunks' time: a bar with its numbers.

use std::fmt::Write as _;

use super::super::hostile::Html;
use super::super::{Report, ThreadState, bar};
use crate::words::{duration, percent};

/// Colours of segments; further ones share the last.
const COLOURS: usize = 6;

pub(super) fn draw(report: &Report) -> String {
    let segments = bar::segments(&report.path);
    if segments.is_empty() {
        return String::new();
    }
    let mut out = String::from("<p class=\"shares\">");
    for (place, segment) in segments.iter().enumerate() {
        let _ = write!(
            out,
            "<span class=\"bar c{}\" style=\"flex:{:.4}\" title=\"{} {}\"></span>",
            place.min(COLOURS - 1),
            segment.share,
            percent(segment.share),
            Html(&segment.name)
        );
    }
    out.push_str("</p>\n<p>");
    for (place, segment) in segments.iter().enumerate() {
        let _ = write!(
            out,
            "<span class=\"key c{}\"></span> {} {} ",
            place.min(COLOURS - 1),
            percent(segment.share),
            Html(&segment.name)
        );
    }
    out.push_str(
        "</p>\n<div class=\"scroll\"><table><thead><tr><th>leg</th><th class=\"n\">first tokens</th><th class=\"n\">chunks</th>\
         <th class=\"n\">mean per chunk</th><th class=\"n\">receiver busy</th><th>its thread while frames wait</th></tr></thead><tbody>\n",
    );
    for leg in &report.path {
        let share = |share: Option<f64>| share.map_or_else(|| String::from("-"), percent);
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            Html(&leg.words()),
            share(leg.first_token_share),
            percent(leg.share),
            duration(leg.mean_ns),
            share(leg.busy),
            leg.thread.map_or("", ThreadState::as_str)
        );
    }
    out.push_str("</tbody></table></div>\n");
    out
}
