//! Screen of `tokengap` without arguments: sources to watch.

use ratatui::Frame;

use super::pad::{Hits, Pad};
use crate::state::flags::Health;
use crate::state::pick::{Kind, Offer, Pick};
use crate::theme::{Ink, Theme};

const KEYS: &str = "Up Down choose   Enter run   ? help   q quit   (tokengap --help has every command)";
const HELP: [(&str, &str); 9] = [
    ("Up Down j k", "choose; PgUp PgDn Home End move faster"),
    ("Enter", "run the selection; a second click does the same"),
    ("? Esc", "open or close this help"),
    ("q", "leave"),
    ("", ""),
    ("engines", "attach: passive, nothing in the engine changes"),
    ("published", "watch a run on the same screen"),
    ("recordings", "replay; tokengap report prints text, JSON or HTML"),
    ("demos", "need no engine, no root and no GPU"),
];

enum Line<'a> {
    Head(Kind),
    Offer(usize, &'a Offer),
    None(&'static str),
}

pub(crate) fn draw(pick: &Pick, theme: Theme, frame: &mut Frame<'_>) -> Hits {
    let mut hits = Hits::default();
    let mut pad = Pad::new(frame, theme, &mut hits);
    let height = pad.height();
    if height < 6 {
        pad.text(0, 0, "enlarge the terminal, or press q to quit", Ink::Plain);
        return hits;
    }
    let x = pad.text(1, 0, "tokengap", Ink::Head);
    pad.text(x + 2, 0, "where an LLM server's tokens wait, and which never arrive", Ink::Dim);
    if pick.help {
        for (row, (key, what)) in HELP.iter().enumerate() {
            pad.fit(3, 2 + row as u16, 13, key, Ink::Head);
            pad.text(17, 2 + row as u16, what, Ink::Plain);
        }
        pad.text(1, height - 1, KEYS, Ink::Dim);
        return hits;
    }
    let lines = lines(pick);
    let rows = height - 5;
    pad.hits.page = rows.into();
    let place = |line: &Line<'_>| matches!(line, Line::Offer(place, _) if *place == pick.at);
    let selected = lines.iter().position(place).unwrap_or(0);
    let top = (selected + 2).saturating_sub(rows.into());
    for (row, line) in lines.iter().skip(top).take(rows.into()).enumerate() {
        let y = 2 + row as u16;
        match line {
            Line::Head(kind) => pad.rule(y, kind.word()),
            Line::None(why) => {
                pad.text(3, y, why, Ink::Dim);
            }
            Line::Offer(place, offer) => {
                let width = title_width(pick, offer.kind).min(pad.width() / 2);
                pad.fit(3, y, width, &offer.title, Ink::Strong);
                pad.text(3 + width + 2, y, &offer.note, Ink::Plain);
                pad.list_row(y, *place, *place == pick.at);
            }
        }
    }
    if let Some(first) = pick.blind.first() {
        let more = pick.blind.len() - 1;
        let more = if more > 0 { format!(" (and {more} more: tokengap attach lists them)") } else { String::new() };
        pad.text(1, height - 3, &format!("! {first}{more}"), Ink::Health(Health::Warning));
    }
    if let Some(offer) = pick.selected() {
        let x = pad.text(1, height - 2, "runs: ", Ink::Head);
        pad.text(x, height - 2, &format!("tokengap {}", offer.command.join(" ")), Ink::Strong);
    }
    pad.text(1, height - 1, KEYS, Ink::Dim);
    hits
}

/// Width of the widest title in a group, for aligning the notes.
fn title_width(pick: &Pick, kind: Kind) -> u16 {
    let titles = pick.offers.iter().filter(|o| o.kind == kind);
    titles.map(|o| o.title.chars().count()).max().unwrap_or(0) as u16
}

fn lines(pick: &Pick) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for kind in Kind::ALL {
        if kind == Kind::Served && pick.offers.iter().all(|o| o.kind != kind) {
            continue;
        }
        lines.push(Line::Head(kind));
        let before = lines.len();
        let of_kind = pick.offers.iter().enumerate().filter(|(_, o)| o.kind == kind);
        lines.extend(of_kind.map(|(place, offer)| Line::Offer(place, offer)));
        if lines.len() == before {
            lines.push(Line::None(match kind {
                Kind::Engine if pick.looked => "none found; looking again every second",
                Kind::Engine => "looking ...",
                _ => "none",
            }));
        }
    }
    lines
}
