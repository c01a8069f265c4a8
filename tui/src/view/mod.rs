//! Drawing. Views only read the model and the user interface state.

mod chart;
mod cpu;
mod findings;
mod help;
mod hops;
mod overview;
mod pad;
mod path;
pub(crate) mod pick;
mod pods;
mod position;
mod request;
mod requests;

use ratatui::Frame;
use ratatui::layout::Rect;
use session::units::{self, bytes, clock, count, duration, known};
use trace::stats::Spread;

use crate::keys::{BINDINGS, Place};
use crate::state::Model;
use crate::state::action::{Action, Tab};
use crate::state::flags::Health;
use crate::state::ui::{Dialog, Ui};
use crate::theme::{Ink, Theme};
pub(crate) use pad::Hits;
use pad::Pad;

/// Smallest supported screen, in columns and rows.
pub(crate) const SMALLEST: (u16, u16) = (80, 24);

pub(crate) fn draw(model: &Model, ui: &Ui, theme: Theme, frame: &mut Frame<'_>) -> Hits {
    let area = frame.area();
    let mut hits = Hits::default();
    let mut pad = Pad::new(frame, theme, &mut hits);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(&mut pad, model);
        return hits;
    }
    let [bar, verdict, body, own, bottom] = rows(area);
    tab_bar(&mut pad.part(bar), model, ui);
    verdict_line(&mut pad.part(verdict), model);
    let tab = &mut pad.part(body);
    match ui.tab {
        Tab::Overview => overview::draw(tab, model, ui),
        Tab::Requests => requests::draw(tab, model, ui),
        Tab::Request => request::draw(tab, model, ui),
        Tab::Hops => hops::draw(tab, model, ui),
        Tab::Findings => findings::draw(tab, model, ui),
        Tab::Cpu => cpu::draw(tab, model, ui),
        Tab::Pods => pods::draw(tab, model, ui),
    }
    match &model.position {
        Some(position) => position::draw(&mut pad.part(own), model, position),
        None => own_line(&mut pad.part(own), model),
    }
    hint_line(&mut pad.part(bottom), ui);
    match &ui.dialog {
        Dialog::Help(scrolled) => help::draw(&mut pad.part(body), *scrolled, ui),
        Dialog::Palette(words, at) => help::palette(&mut pad.part(body), words, *at, ui),
        _ => {}
    }
    hits
}

/// Splits the screen into tab bar, verdict, tab, status line and key hints.
fn rows(area: Rect) -> [Rect; 5] {
    let row = |y, height| Rect { y: area.y + y, height, ..area };
    let h = area.height;
    [row(0, 1), row(1, 1), row(2, h - 4), row(h - 2, 1), row(h - 1, 1)]
}

/// Replacement for the tabs on small screens: verdict, worst hop, and the size that is required.
fn too_small(pad: &mut Pad<'_>, model: &Model) {
    verdict_line(pad, model);
    if let Some(hop) = hops::worst(model) {
        let text = format!(
            "{} {}{}{} backlog {}, oldest {}",
            pad.theme.sign(hop.health),
            hop.ends.from,
            pad.theme.pick("→", ">"),
            hop.ends.to,
            known(hop.backlog, count),
            known(hop.oldest_ns, duration)
        );
        pad.text(1, 1, &text, Ink::Health(hop.health));
    }
    let text = format!(
        "needs {}x{}; this is {}x{}: enlarge it, or press q to quit",
        SMALLEST.0,
        SMALLEST.1,
        pad.width(),
        pad.height()
    );
    pad.text(1, 2, &text, Ink::Dim);
}

fn tab_bar(pad: &mut Pad<'_>, model: &Model, ui: &Ui) {
    let mut x = pad.text(1, 0, "tokengap", Ink::Head) + 1;
    for (place, tab) in Tab::ALL.into_iter().enumerate().filter(|t| t.1.exists(model)) {
        let label = format!(" {} {}", place + 1, tab.word());
        let ink = if tab == ui.tab { Ink::Selected } else { Ink::Dim };
        let end = pad.text(x, 0, &label, ink);
        pad.click((x, 0), (end - x, 1), Action::Go(tab));
        x = end;
    }
    let state = if ui.paused.is_some() { "PAUSED" } else { model.run.doing };
    let ink = if ui.paused.is_some() { Ink::Selected } else { Ink::Dim };
    let time = clock(model.running_ns);
    let state = if model.position.is_some() { "replay" } else { state };
    let watched = model.pods.get(model.pod);
    let (source, state) = match watched {
        Some(pod) if ui.paused.is_none() => (pod.name.as_str(), pod.link.word()),
        Some(pod) => (pod.name.as_str(), state),
        None => (model.run.source.as_str(), state),
    };
    let begun = watched.and_then(|pod| position::wall(pod.begun_wall_ns?));
    let since = begun.map_or_else(String::new, |begun| format!("since {begun} "));
    let longest_first = [format!(" {source} {state} {since}{time} "), format!(" {state} {since}{time} ")];
    let fits = |text: &&String| usize::from(x) + text.chars().count() <= usize::from(pad.width());
    let shortest = format!(" {state} {time} ");
    pad.right(0, longest_first.iter().find(fits).unwrap_or(&shortest), ink);
}

fn verdict_line(pad: &mut Pad<'_>, model: &Model) {
    let verdict = &model.verdict;
    let health = format!("{} {}", pad.theme.sign(verdict.health), verdict.health.word());
    let x = pad.text(1, 0, &health, Ink::Verdict(verdict.health));
    pad.text(x + 2, 0, &verdict.text, Ink::Strong);
}

/// Draws tokengap's resource use and missed observations; always visible.
fn own_line(pad: &mut Pad<'_>, model: &Model) {
    let own = &model.run;
    let cpu = known(own.cpu, |c| format!("{:.1}%", c * 100.0));
    let label = if model.run.source == "demo" { "self+demo" } else { "self" };
    let cost = format!("{label}: cpu {cpu}  rss {}  ", known(own.rss_bytes, bytes));
    let x = writing(pad, 1, model);
    let mut x = pad.text(x, 0, &cost, Ink::Dim);
    for (word, n) in [("missed", own.missed), ("undecoded", own.undecoded)] {
        let ink = if n > 0 { Ink::Health(Health::Warning) } else { Ink::Dim };
        x = pad.text(x, 0, &format!("{word} {}  ", count(n)), ink);
    }
    if let Some(first) = own.degraded.first() {
        let more =
            if own.degraded.len() > 1 { format!(" (and {} more: 5)", own.degraded.len() - 1) } else { String::new() };
        pad.text(x, 0, &format!("! degraded: {first}{more}"), Ink::Health(Health::Warning));
    } else if x + (model.engine.chars().count() as u16) < pad.width() {
        pad.right(0, &format!("{} ", model.engine), Ink::Dim);
    }
}

/// Draws the outputs being written, with their dropped records.
fn writing(pad: &mut Pad<'_>, mut x: u16, model: &Model) -> u16 {
    let writing = &model.writing;
    let recording =
        writing.recording.as_ref().map(|to| ("REC", format!("{} {}", to.name, bytes(to.bytes)), to.dropped, 0));
    let ring = writing.ring.as_ref().map(|to| ("ring", bytes(to.bytes), to.dropped, 0));
    let served = writing.endpoint.as_ref();
    let served = served.map(|to| ("http", format!("{} {} watching", to.address, to.clients), to.dropped, to.refused));
    for (sign, text, dropped, refused) in [recording, ring, served].into_iter().flatten() {
        x = pad.text(x, 0, sign, Ink::Health(Health::Info));
        x = pad.text(x + 1, 0, &text, Ink::Plain);
        for (n, what) in [(dropped, "dropped"), (refused, "refused")] {
            if n > 0 {
                x = pad.text(x + 1, 0, &format!("({} {what})", count(n)), Ink::Health(Health::Warning));
            }
        }
        x += 2;
    }
    x
}

/// Draws the inter-token latency at the client beside that of the engine, `x` cells behind the edge. Returns the next row.
fn itl(pad: &mut Pad<'_>, y: u16, x: u16, [client, engine]: [Option<Spread>; 2]) -> u16 {
    let quantiles = |itl: Option<Spread>| known(itl, |s| [s.p50, s.p90, s.p99].map(duration).join("/"));
    let x = pad.text(1, y, "itl", Ink::Head) + x - 1;
    let x = pad.text(x, y, &format!("client {}", quantiles(client)), Ink::Plain);
    let engine = format!("engine {}  (p50/p90/p99)", quantiles(engine));
    pad.text(x + 2, y, &engine, Ink::Dim);
    y + 1
}

fn hint_line(pad: &mut Pad<'_>, ui: &Ui) {
    let saved: Vec<String> = ui.options.filters.iter().map(|saved| format!("@{}", saved.name)).collect();
    // Title, typed text, and what to do.
    let dialog = match &ui.dialog {
        Dialog::Time(text) if units::moment(text).is_some() => {
            Some(("go to: ", text, "Enter: go   Esc: cancel".into()))
        }
        Dialog::Time(text) => Some(("go to: ", text, "a time from the start: 1:23, 90s, 2m".into())),
        Dialog::Palette(words, _) => Some((":", words, "Up Down: choose   Enter: run   Esc: cancel".into())),
        Dialog::Filter(text) => {
            let hint = match ui.typed_filter(text) {
                Err(wrong) => format!("! {wrong}"),
                Ok(_) if saved.is_empty() => "Enter: apply   Esc: cancel   (syntax: see the help, ?)".into(),
                Ok(_) => format!("Enter: apply   Esc: cancel   {}", saved.join(" ")),
            };
            Some(("filter: ", text, hint))
        }
        Dialog::Export => {
            let x = pad.text(1, 0, "write: ", Ink::Head);
            pad.text(x, 0, "h HTML report   j JSON report   p trace for Perfetto   Esc: cancel", Ink::Plain);
            return;
        }
        Dialog::None | Dialog::Help(_) => None,
    };
    if let Some((title, typed, hint)) = dialog {
        let x = pad.text(1, 0, title, Ink::Head);
        let x = pad.text(x, 0, &format!("{typed}{}", pad.theme.pick("▏", "_")), Ink::Strong);
        let ink = if hint.starts_with('!') { Ink::Health(Health::Warning) } else { Ink::Dim };
        pad.text(x + 1, 0, &hint, ink);
        return;
    }
    if let Some(message) = &ui.message {
        pad.text(1, 0, message, Ink::Head);
        return;
    }
    // Help and quit stay visible; the other hints are cut first.
    let (always_shown, rest): (Vec<_>, Vec<_>) =
        hints(ui).into_iter().partition(|(_, hint)| ["help", "quit"].contains(hint));
    let reserved = always_shown.iter().map(|(keys, hint)| keys.len() + hint.len() + 3).sum::<usize>() as u16;
    let mut left = pad.width().saturating_sub(1 + reserved);
    let fits = |(keys, hint): &(String, &str)| {
        let width = (keys.len() + hint.len()) as u16;
        let fits = width < left;
        left = left.saturating_sub(width + 3);
        fits
    };
    let mut x = 1;
    for (keys, hint) in rest.into_iter().take_while(fits).chain(always_shown) {
        x = pad.text(x, 0, &keys, Ink::Head);
        x = pad.text(x + 1, 0, hint, Ink::Dim) + 2;
    }
}

/// Key hints of a tab; keys with the same hint are joined.
fn hints(ui: &Ui) -> Vec<(String, &'static str)> {
    let mut hints: Vec<(String, &'static str)> = Vec::new();
    // During playback of a recording, its keys come first.
    let (first, rest): (Vec<_>, Vec<_>) =
        BINDINGS.iter().filter(|b| !b.hint.is_empty() && b.applies(ui)).partition(|b| b.place == Place::Replay);
    for binding in first.into_iter().chain(rest) {
        let key = binding.shown.split(' ').next().unwrap_or(binding.shown);
        match hints.iter_mut().find(|(_, hint)| *hint == binding.hint) {
            Some((keys, _)) => {
                keys.push_str(if key.len() > 1 { " " } else { "" });
                keys.push_str(key);
            }
            None => hints.push((key.to_owned(), binding.hint)),
        }
    }
    hints
}

#[cfg(test)]
mod tests;
