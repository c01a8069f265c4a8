//! The path from left to right, each hop with its rate, backlog and queue wait; a list if the screen is too narrow. The breakdown of time
//! on it in one line.

use outputs::report::bar::{self, Segment};
use session::units::{count, duration, known, rate};
use trace::path::Ends;
use trace::words::percent;

use super::pad::Pad;
use crate::state::Model;
use crate::state::action::{Action, Tab};
use crate::state::flags::Health;
use crate::state::model::HopLine;
use crate::theme::Ink;

/// Minimum width of an arrow with its numbers.
const ARROW: u16 = 15;
/// Rows of the drawing. The list needs one per hop and one for the client.
const ROWS: u16 = 4;

/// Cells of the bar of a breakdown.
const SHARES: usize = 20;

/// An arrow: a hop, or the deliveries to the client.
struct Arrow {
    /// Index of the hop; `None` for the deliveries to the client.
    place: Option<usize>,
    ends: Ends<Box<str>>,
    health: Health,
    lines: [String; 3],
}

impl Arrow {
    /// Action of a click: opens the hop, or the findings for deliveries.
    fn opens(&self) -> Action {
        self.place.map_or(Action::Go(Tab::Findings), |place| Action::OpenAt(Tab::Hops, place))
    }
}

/// Draws the path from row `y` on. Returns the next free row.
pub(super) fn draw(pad: &mut Pad<'_>, y: u16, model: &Model) -> u16 {
    let mut arrows: Vec<Arrow> = in_line(&model.hops).into_iter().map(|(place, one)| hop(place, one)).collect();
    let Some(last) = arrows.last() else {
        pad.text(1, y, "no hop observed yet", Ink::Dim);
        return y + 1;
    };
    arrows.push(client(model, &last.ends.to));
    let names: u16 = arrows.iter().map(|a| width(&a.ends.from)).sum::<u16>() + width("client");
    let spare = pad.width().saturating_sub(2 + names);
    let arrow = spare / arrows.len() as u16;
    if arrow < ARROW { list(pad, y, &arrows) } else { row(pad, y, &arrows, arrow.min(2 * ARROW)) }
}

fn row(pad: &mut Pad<'_>, y: u16, arrows: &[Arrow], length: u16) -> u16 {
    let mut x = 1;
    for arrow in arrows {
        let begin = x;
        x = pad.text(x, y, &arrow.ends.from, Ink::Strong);
        let ink = Ink::Health(arrow.health);
        let line = pad.theme.pick("─", "-").repeat(usize::from(length) - 3);
        let sign = pad.theme.sign(arrow.health);
        pad.text(x + 1, y, &format!("{line}{}", pad.theme.pick("▶", ">")), ink);
        for (row, text) in arrow.lines.iter().enumerate() {
            let lead = if row == 0 { format!("{sign} ") } else { "  ".into() };
            let ink = if row == 0 { ink } else { Ink::Plain };
            pad.fit(x + 1, y + 1 + row as u16, length - 1, &format!("{lead}{text}"), ink);
        }
        x += length;
        pad.click((begin, y), (x - begin, ROWS), arrow.opens());
    }
    pad.text(x, y, "client", Ink::Strong);
    y + ROWS
}

fn list(pad: &mut Pad<'_>, y: u16, arrows: &[Arrow]) -> u16 {
    let widest = arrows.iter().map(|a| width(&a.ends.from) + width(&a.ends.to) + 4).max().unwrap_or(0);
    let column = (pad.width().saturating_sub(widest + 6)) / 3;
    for (row, arrow) in arrows.iter().enumerate() {
        let y = y + row as u16;
        pad.click((0, y), (pad.width(), 1), arrow.opens());
        let ink = Ink::Health(arrow.health);
        pad.text(1, y, pad.theme.sign(arrow.health), ink);
        pad.text(3, y, &format!("{} {} {}", arrow.ends.from, pad.theme.pick("─▶", "->"), arrow.ends.to), Ink::Strong);
        for (place, text) in arrow.lines.iter().enumerate() {
            let ink = if place == 0 { ink } else { Ink::Plain };
            pad.fit(widest + 5 + place as u16 * column, y, column.saturating_sub(1), text, ink);
        }
    }
    y + arrows.len() as u16
}

/// Hops that form a chain from the first one on. The Hops tab shows all hops.
fn in_line(hops: &[HopLine]) -> Vec<(usize, &HopLine)> {
    let mut left: Vec<(usize, &HopLine)> = hops.iter().enumerate().collect();
    let mut line = Vec::new();
    let mut at = hops.first().map(|h| &*h.ends.from);
    while let Some(next) = left.iter().position(|(_, hop)| Some(&*hop.ends.from) == at) {
        let (place, hop) = left.remove(next);
        at = Some(&hop.ends.to);
        line.push((place, hop));
    }
    line
}

fn hop(place: usize, hop: &HopLine) -> Arrow {
    let workers = if hop.members.len() > 1 { format!(" x{}", hop.members.len()) } else { String::new() };
    let wait = match (hop.queue_wait, hop.relay) {
        (Some(spread), _) => format!("wait p99 {} (run)", duration(spread.p99)),
        (None, Some(relay)) => format!("relay {} p99", duration(relay.p99)),
        (None, None) => "wait not observed".into(),
    };
    let backlog = match hop.backlog {
        Some(frames) => format!("backlog {}", count(frames)),
        None => "backlog unknown".into(),
    };
    // An unhealthy hop shows its problem first.
    let mut lines = [format!("{} frames/s{workers}", rate(hop.rates.frames)), backlog, wait];
    if hop.health >= Health::Warning {
        lines.swap(0, 1);
        lines[0].push_str(&hop.oldest_ns.map(|ns| format!(" {}", duration(ns))).unwrap_or_default());
    }
    Arrow { place: Some(place), ends: hop.ends.clone(), health: hop.health, lines }
}

fn client(model: &Model, from: &str) -> Arrow {
    let chunks = &model.chunks;
    let health = match (chunks.dropped_confirmed, chunks.dropped_predicted) {
        (Some(dropped), _) if dropped > 0 => Health::Critical,
        (None, Some(predicted)) if predicted > 0 => Health::Warning,
        (Some(_), _) if chunks.delivered.is_some_and(|d| d > 0) => Health::Good,
        _ => Health::Unknown,
    };
    let drops = match (chunks.dropped_confirmed, chunks.dropped_predicted) {
        (Some(dropped), _) => format!("dropped {}", count(dropped)),
        (None, Some(predicted)) => format!("dropped? {}", count(predicted)),
        (None, None) => "drops unknown".into(),
    };
    let lost = known(chunks.tokens_lost, |n| format!("lost {} tok", count(n)));
    let lost = if chunks.tokens_lost.is_none() { "delivery unknown".into() } else { lost };
    let merged = match (chunks.merged, model.merged_predicted) {
        (Some(merged), _) => format!("merged {}", count(merged)),
        (None, Some(predicted)) => format!("merged? {}", count(predicted)),
        (None, None) => String::new(),
    };
    Arrow { place: None, ends: Ends::new(from, "client").to_owned(), health, lines: [drops, lost, merged] }
}

fn width(text: &str) -> u16 {
    text.chars().count() as u16
}

/// Draws the breakdown and returns the next free row. Draws nothing without parts.
pub(super) fn shares(pad: &mut Pad<'_>, y: u16, title: &str, parts: &[Segment]) -> u16 {
    if parts.is_empty() {
        return y;
    }
    let signs = pad.theme.pick(["█", "▒", "░"], ["#", "=", "-"]);
    let sign_and_ink = |place: usize| (signs[place % 3], [Ink::Series, Ink::Head, Ink::Dim][place % 3]);
    let mut x = pad.text(1, y, title, Ink::Head) + 1;
    for (place, cells) in bar::cells(parts, SHARES).into_iter().enumerate() {
        let (sign, ink) = sign_and_ink(place);
        x = pad.text(x, y, &sign.repeat(cells), ink);
    }
    let mut parts: Vec<(usize, &Segment)> = parts.iter().enumerate().collect();
    parts.sort_by(|a, b| b.1.share.total_cmp(&a.1.share));
    for (place, part) in parts {
        let (sign, ink) = sign_and_ink(place);
        x = pad.text(x + 1, y, sign, ink);
        x = pad.text(x + 1, y, &format!("{} {}", percent(part.share), part.name), Ink::Plain);
    }
    y + 1
}
