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
use ratatui::style::Modifier;
use session::units::{bytes, clock, count, duration, known};
use trace::stats::Spread;

use crate::keys::BINDINGS;
use crate::state::Model;
use crate::state::action::Action;
use crate::state::health::Health;
use crate::state::tab::Tab;
use crate::state::ui::{Dialog, Ui};
use crate::theme::{PLAIN, STRONG, Theme};
use pad::Pad;

/// Smallest supported screen, in columns and rows.
pub(crate) const SMALLEST: (u16, u16) = (80, 24);

/// Clickable areas of the screen, and the page size of the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hits {
    /// Areas, each with the action of a click in it.
    areas: Vec<(Rect, Action)>,
    /// Visible rows of the list.
    pub(crate) page: usize,
}

impl Hits {
    /// Action of a click at `(x, y)`.
    pub(crate) fn at(&self, x: u16, y: u16) -> Option<Action> {
        self.areas.iter().find(|(area, _)| area.contains((x, y).into())).map(|a| a.1)
    }

    fn add(&mut self, area: Rect, action: Action) {
        self.areas.push((area, action));
    }

    /// Draws the part of a list that includes the selected item, at most `rows` of its items. `draw` draws an item in a row and returns the
    /// next free row.
    fn list<T>(
        &mut self,
        (pad, mut y): (&mut Pad<'_>, u16),
        items: &[T],
        (selected, rows): (usize, u16),
        draw: impl Fn(&mut Pad<'_>, u16, usize, &T) -> u16,
    ) -> u16 {
        let top = selected.saturating_sub(usize::from(rows) - 1);
        self.page = rows.into();
        for (place, item) in items.iter().enumerate().skip(top).take(rows.into()) {
            let row = y;
            y = draw(pad, row, place, item);
            self.add_row(pad, row, place, place == selected);
        }
        y
    }

    /// Makes line `y` a row of a list: a click picks it, and the selected one is marked.
    fn add_row(&mut self, pad: &mut Pad<'_>, y: u16, place: usize, selected: bool) {
        if selected {
            pad.row_style(y, pad.theme().selected());
        }
        self.add(pad.row(y), Action::Pick(place));
    }
}

pub(crate) fn draw(model: &Model, ui: &Ui, theme: Theme, frame: &mut Frame<'_>) -> Hits {
    let area = frame.area();
    let mut hits = Hits::default();
    let mut pad = Pad::new(frame.buffer_mut(), area, theme);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(&mut pad, model);
        return hits;
    }
    let [bar, verdict, body, own, bottom] = rows(area);
    tab_bar(&mut pad.part(bar), model, ui, &mut hits);
    verdict_line(&mut pad.part(verdict), model, theme);
    draw_tab(&mut pad.part(body), model, ui, &mut hits);
    match &model.position {
        Some(position) => position::draw(&mut pad.part(own), model, position, &mut hits),
        None => own_line(&mut pad.part(own), model),
    }
    hint_line(&mut pad.part(bottom), ui);
    if let Dialog::Help(scrolled) = ui.dialog {
        hits = Hits { page: help::draw(&mut pad.part(body), scrolled, ui), ..Hits::default() };
    }
    if let Dialog::Palette(words, at) = &ui.dialog {
        hits = Hits::default();
        help::palette(&mut pad.part(body), words, *at, ui);
    }
    hits
}

fn draw_tab(pad: &mut Pad<'_>, model: &Model, ui: &Ui, hits: &mut Hits) {
    match ui.tab {
        Tab::Overview => overview::draw(pad, model, ui, hits),
        Tab::Requests => requests::draw(pad, model, ui, hits),
        Tab::Request => request::draw(pad, model, ui, hits),
        Tab::Hops => hops::draw(pad, model, ui, hits),
        Tab::Findings => findings::draw(pad, model, ui, hits),
        Tab::Cpu => cpu::draw(pad, model, ui, hits),
        Tab::Pods => pods::draw(pad, model, ui, hits),
    }
}

/// Splits the screen into tab bar, verdict, tab, status line and key hints.
fn rows(area: Rect) -> [Rect; 5] {
    let row = |y, height| Rect { y: area.y + y, height, ..area };
    let h = area.height;
    [row(0, 1), row(1, 1), row(2, h - 4), row(h - 2, 1), row(h - 1, 1)]
}

/// Replacement for the tabs on small screens: verdict, worst hop, and the size that is required.
fn too_small(pad: &mut Pad<'_>, model: &Model) {
    let (area, theme) = (pad.area(), pad.theme());
    verdict_line(pad, model, theme);
    if let Some(hop) = hops::worst(model) {
        let text = format!(
            "{} {}{}{} backlog {}, oldest {}",
            theme.sign(hop.health),
            hop.ends.from,
            theme.pick("→", ">"),
            hop.ends.to,
            known(hop.backlog, count),
            known(hop.oldest_ns, duration)
        );
        pad.fit(1, 1, area.width.saturating_sub(1), &text, theme.health(hop.health));
    }
    let text = format!(
        "needs {}x{}; this is {}x{}: enlarge it, or press q to quit",
        SMALLEST.0, SMALLEST.1, area.width, area.height
    );
    pad.fit(1, 2, area.width.saturating_sub(1), &text, theme.dim());
}

fn tab_bar(pad: &mut Pad<'_>, model: &Model, ui: &Ui, hits: &mut Hits) {
    let theme = pad.theme();
    let mut x = pad.text(1, 0, "tokengap", theme.head()) + 1;
    for (place, tab) in Tab::ALL.into_iter().enumerate().filter(|t| t.1.exists(model)) {
        let label = format!(" {} {}", place + 1, tab.word());
        let style = if tab == ui.tab { theme.selected() } else { theme.dim() };
        let end = pad.text(x, 0, &label, style);
        hits.add(Rect::new(pad.area().x + x, pad.area().y, end - x, 1), Action::Go(tab));
        x = end;
    }
    let state = if ui.paused.is_some() { "PAUSED" } else { model.run.doing };
    let style = if ui.paused.is_some() { theme.selected() } else { theme.dim() };
    let time = clock(model.running_ns);
    let state = if model.position.is_some() { "replay" } else { state };
    let watched = model.pods.get(model.pod);
    let (source, state) = match watched {
        Some(pod) if ui.paused.is_none() => (pod.name.as_str(), pod.link.word()),
        Some(pod) => (pod.name.as_str(), state),
        None => (model.run.source.as_str(), state),
    };
    let full = format!(" {source} {state} {time} ");
    let fits = usize::from(x) + full.len() <= usize::from(pad.width());
    let right = if fits { full } else { format!(" {state} {time} ") };
    pad.right(0, &right, style);
}

fn verdict_line(pad: &mut Pad<'_>, model: &Model, theme: Theme) {
    let verdict = &model.verdict;
    let style = theme.health(verdict.health);
    let x = pad.text(
        1,
        0,
        &format!("{} {}", theme.sign(verdict.health), verdict.health.word()),
        style.add_modifier(Modifier::BOLD),
    );
    pad.text(x + 2, 0, &verdict.text, STRONG);
}

/// Draws tokengap's resource use and missed observations; always visible.
fn own_line(pad: &mut Pad<'_>, model: &Model) {
    let (theme, own) = (pad.theme(), &model.run);
    let cpu = known(own.cpu, |c| format!("{:.1}%", c * 100.0));
    let label = if model.run.source == "demo" { "self+demo" } else { "self" };
    let cost = format!("{label}: cpu {cpu}  rss {}  ", known(own.rss_bytes, bytes));
    let x = writing(pad, 1, model);
    let mut x = pad.text(x, 0, &cost, theme.dim());
    for (word, n) in [("missed", own.missed), ("undecoded", own.undecoded)] {
        let style = if n > 0 { theme.health(Health::Warning) } else { theme.dim() };
        x = pad.text(x, 0, &format!("{word} {}  ", count(n)), style);
    }
    if let Some(first) = own.degraded.first() {
        let more =
            if own.degraded.len() > 1 { format!(" (and {} more: 5)", own.degraded.len() - 1) } else { String::new() };
        pad.text(x, 0, &format!("! degraded: {first}{more}"), theme.health(Health::Warning));
    } else if x + (model.engine.chars().count() as u16) < pad.width() {
        pad.right(0, &format!("{} ", model.engine), theme.dim());
    }
}

/// Draws the outputs being written, with their dropped records.
fn writing(pad: &mut Pad<'_>, x: u16, model: &Model) -> u16 {
    let (theme, writing) = (pad.theme(), &model.writing);
    let recording =
        writing.recording.as_ref().map(|to| ("REC", format!("{} {}", to.name, bytes(to.bytes)), to.dropped, 0));
    let ring = writing.ring.as_ref().map(|to| ("ring", bytes(to.bytes), to.dropped, 0));
    let feed = writing.feed.as_ref();
    let feed = feed.map(|to| ("feed", format!("{} {} watching", to.address, to.watchers), to.dropped, to.refused));
    let mut x = x;
    for (sign, text, dropped, refused) in [recording, ring, feed].into_iter().flatten() {
        x = pad.text(x, 0, sign, theme.health(Health::Info));
        x = pad.text(x + 1, 0, &text, PLAIN);
        for (n, what) in [(dropped, "dropped"), (refused, "refused")] {
            if n > 0 {
                x = pad.text(x + 1, 0, &format!("({} {what})", count(n)), theme.health(Health::Warning));
            }
        }
        x += 2;
    }
    x
}

/// Draws the inter-token latency at the client beside that of the engine, `x` cells behind the edge. Returns the next row.
fn itl(pad: &mut Pad<'_>, y: u16, x: u16, [client, engine]: [Option<Spread>; 2]) -> u16 {
    let theme = pad.theme();
    let quantiles = |itl: Option<Spread>| known(itl, |s| [s.p50, s.p90, s.p99].map(duration).join("/"));
    let x = pad.text(1, y, "itl", theme.head()) + x - 1;
    let x = pad.text(x, y, &format!("client {}", quantiles(client)), PLAIN);
    let engine = format!("engine {}  (p50/p90/p99)", quantiles(engine));
    pad.text(x + 2, y, &engine, theme.dim());
    y + 1
}

fn hint_line(pad: &mut Pad<'_>, ui: &Ui) {
    let theme = pad.theme();
    let saved: Vec<String> = ui.saved.iter().map(|saved| format!("@{}", saved.name)).collect();
    // Title, typed text, and what to do.
    let dialog = match &ui.dialog {
        Dialog::Time(text, true) => Some(("go to: ", text, "Enter: go   Esc: cancel".into())),
        Dialog::Time(text, false) => Some(("go to: ", text, "a time from the start: 1:23, 90s, 2m".into())),
        Dialog::Palette(words, _) => Some((":", words, "Up Down: choose   Enter: run   Esc: cancel".into())),
        Dialog::Filter(text, Some(wrong)) => Some(("filter: ", text, format!("! {wrong}"))),
        Dialog::Filter(text, None) if saved.is_empty() => {
            Some(("filter: ", text, "Enter: apply   Esc: cancel   (syntax: see the help, ?)".into()))
        }
        Dialog::Filter(text, None) => {
            Some(("filter: ", text, format!("Enter: apply   Esc: cancel   {}", saved.join(" "))))
        }
        Dialog::Export => {
            let x = pad.text(1, 0, "write: ", theme.head());
            pad.text(x, 0, "h HTML report   j JSON report   p trace for Perfetto   Esc: cancel", PLAIN);
            return;
        }
        Dialog::None | Dialog::Help(_) => None,
    };
    if let Some((title, typed, hint)) = dialog {
        let x = pad.text(1, 0, title, theme.head());
        let x = pad.text(x, 0, &format!("{typed}{}", theme.pick("▏", "_")), STRONG);
        let style = if hint.starts_with('!') { theme.health(Health::Warning) } else { theme.dim() };
        pad.text(x + 1, 0, &hint, style);
        return;
    }
    if let Some(message) = &ui.message {
        pad.text(1, 0, message, theme.head());
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
        x = pad.text(x, 0, &keys, theme.head());
        x = pad.text(x + 1, 0, hint, theme.dim()) + 2;
    }
}

/// Key hints of a tab; keys with the same hint are joined.
fn hints(ui: &Ui) -> Vec<(String, &'static str)> {
    let mut hints: Vec<(String, &'static str)> = Vec::new();
    // During playback of a recording, its keys come first.
    let (first, rest): (Vec<_>, Vec<_>) =
        BINDINGS.iter().filter(|b| !b.hint.is_empty() && b.applies(ui)).partition(|b| b.is_for_replay());
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
