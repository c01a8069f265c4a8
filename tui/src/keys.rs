//! Key table, from which bindings, help and hints are generated.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use session::ScreenCommand::{self, Play};
use session::playback::Play as Playback;

use crate::state::action::{Action, ExportAs, Tab};
use crate::state::ui::{Dialog, Ui};

/// Context in which a binding applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Everywhere,
    /// On these tabs, with their name in the help.
    On(&'static [Tab], &'static str),
    Live,
    Replay,
    /// While watching runs of other tokengap processes.
    Watch,
}

#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) place: Place,
    keys: &'static [(KeyCode, KeyModifiers)],
    /// Keys as shown in the help.
    pub(crate) shown: &'static str,
    action: Action,
    /// Description in the help.
    pub(crate) what: &'static str,
    /// Word in the hints at the bottom; empty for none.
    pub(crate) hint: &'static str,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

const LISTS: Place =
    Place::On(&[Tab::Requests, Tab::Request, Tab::Hops, Tab::Findings, Tab::Cpu, Tab::Pods], "in lists");
const REQUESTS: Place = Place::On(&[Tab::Requests], "Requests");
const TIMELINES: Place = Place::On(&[Tab::Overview, Tab::Hops, Tab::Cpu], "Overview, Hops, CPU");
const OPENS: Place =
    Place::On(&[Tab::Overview, Tab::Requests, Tab::Hops, Tab::Findings, Tab::Pods], "on the selection");
const ONE: Place = Place::On(&[Tab::Request], "Request");
const ONE_RID: Place = Place::On(&[Tab::Requests, Tab::Request], "Requests, Request");

const fn on(
    place: Place,
    keys: &'static [(KeyCode, KeyModifiers)],
    shown: &'static str,
    action: Action,
    what: &'static str,
    hint: &'static str,
) -> Binding {
    Binding { place, keys, shown, action, what, hint }
}

const fn chars<const C: char>() -> [(KeyCode, KeyModifiers); 1] {
    [(KeyCode::Char(C), NONE)]
}

/// Every binding, in the order of the help.
// Keep the columns of the table: one binding per line.
#[rustfmt::skip]
pub(crate) const BINDINGS: &[Binding] = &[
    on(Place::Everywhere, &chars::<'1'>(), "1", Action::Go(Tab::Overview), "Overview: is it unhealthy, where, since when", ""),
    on(Place::Everywhere, &chars::<'2'>(), "2", Action::Go(Tab::Requests), "Requests: all requests, worst first", ""),
    on(Place::Everywhere, &chars::<'3'>(), "3", Action::Go(Tab::Request), "Request: the selected one, chunk by chunk", ""),
    on(Place::Everywhere, &chars::<'4'>(), "4", Action::Go(Tab::Hops), "Hops: where frames wait", ""),
    on(Place::Everywhere, &chars::<'5'>(), "5", Action::Go(Tab::Findings), "Findings: what, since when, what to do", ""),
    on(Place::Everywhere, &chars::<'6'>(), "6", Action::Go(Tab::Cpu), "CPU: which threads run, wait or are throttled", ""),
    on(Place::Everywhere, &chars::<'7'>(), "7", Action::Go(Tab::Pods), "Pods: the watched runs and their total", ""),
    on(Place::Everywhere, &[(KeyCode::Tab, NONE)], "Tab", Action::Turn(1), "next tab", ""),
    on(Place::Everywhere, &[(KeyCode::BackTab, SHIFT), (KeyCode::BackTab, NONE)], "S-Tab", Action::Turn(-1), "previous tab", ""),
    on(OPENS, &[(KeyCode::Enter, NONE)], "Enter", Action::Open, "open the selection", "open"),
    on(Place::Everywhere, &[(KeyCode::Esc, NONE)], "Esc", Action::Back, "close, clear the filter or go back", ""),
    on(LISTS, &[(KeyCode::Up, NONE), (KeyCode::Char('k'), NONE)], "Up k", Action::Move(-1), "up", ""),
    on(LISTS, &[(KeyCode::Down, NONE), (KeyCode::Char('j'), NONE)], "Down j", Action::Move(1), "down", ""),
    on(LISTS, &[(KeyCode::PageUp, NONE), (KeyCode::Char('u'), CTRL)], "PgUp C-u", Action::Page(-1), "a page up", ""),
    on(LISTS, &[(KeyCode::PageDown, NONE), (KeyCode::Char('d'), CTRL)], "PgDn C-d", Action::Page(1), "a page down", ""),
    on(LISTS, &[(KeyCode::Home, NONE), (KeyCode::Char('g'), NONE)], "Home g", Action::Move(isize::MIN), "to the first", ""),
    on(LISTS, &[(KeyCode::End, NONE), (KeyCode::Char('G'), NONE)], "End G", Action::Move(isize::MAX), "to the last", ""),
    on(Place::Everywhere, &chars::<'/'>(), "/", Action::Filter, "filter requests: gap>1s drop>0 rid:5b92 state:live", "filter"),
    on(REQUESTS, &chars::<'<'>(), "<", Action::Sort(-1), "sort by the column to the left", "sort"),
    on(REQUESTS, &chars::<'>'>(), ">", Action::Sort(1), "sort by the column to the right", "sort"),
    on(REQUESTS, &chars::<'s'>(), "s", Action::Reverse, "reverse the order", "reverse"),
    on(REQUESTS, &chars::<'S'>(), "S", Action::SortReset, "default sort order: worst flag first", ""),
    on(REQUESTS, &chars::<'w'>(), "w", Action::Follow, "keep the worst request selected", "worst"),
    on(ONE_RID, &[(KeyCode::Char(' '), NONE)], "Space", Action::Pin, "pin the request to the top, or unpin it", "pin"),
    on(ONE_RID, &chars::<'y'>(), "y", Action::CopyRid, "copy the rid to the terminal's clipboard", "copy rid"),
    on(TIMELINES, &[(KeyCode::Char('+'), NONE), (KeyCode::Char('='), NONE)], "+", Action::Zoom(-1), "zoom in in time", "zoom"),
    on(TIMELINES, &chars::<'-'>(), "-", Action::Zoom(1), "zoom out in time", "zoom"),
    on(TIMELINES, &[(KeyCode::Left, NONE), (KeyCode::Char('h'), NONE)], "Left h", Action::Scroll(-1), "earlier", "time"),
    on(TIMELINES, &[(KeyCode::Right, NONE), (KeyCode::Char('l'), NONE)], "Right l", Action::Scroll(1), "later", "time"),
    on(ONE, &chars::<'n'>(), "n", Action::Seek(1), "to the next chunk that was lost or merged", "next lost"),
    on(ONE, &chars::<'N'>(), "N", Action::Seek(-1), "to the previous one", "next lost"),
    on(Place::Everywhere, &chars::<'p'>(), "p", Action::Pause, "pause the view of a live run, or playback of a recording", "pause"),
    on(Place::Live, &chars::<'r'>(), "r", Action::Command(ScreenCommand::Record), "start or stop a recording in this folder", ""),
    on(Place::Live, &chars::<'d'>(), "d", Action::Command(ScreenCommand::Dump), "save the hindsight ring (--hindsight)", ""),
    on(Place::Watch, &chars::<'['>(), "[", Action::NextRun(-1), "to the previous pod", "pod"),
    on(Place::Watch, &chars::<']'>(), "]", Action::NextRun(1), "to the next pod", "pod"),
    on(Place::Replay, &chars::<'['>(), "[", Action::Command(Play(Playback::Speed(-1))), "play slower", "speed"),
    on(Place::Replay, &chars::<']'>(), "]", Action::Command(Play(Playback::Speed(1))), "play faster; the last step has no speed limit", "speed"),
    on(Place::Replay, &chars::<','>(), ",", Action::Command(Play(Playback::Skip(-10))), "ten seconds back", "10 s"),
    on(Place::Replay, &chars::<'.'>(), ".", Action::Command(Play(Playback::Skip(10))), "ten seconds forward", "10 s"),
    on(Place::Replay, &chars::<'f'>(), "f", Action::Command(Play(Playback::Finding(true))), "to the start of the next finding", "finding"),
    on(Place::Replay, &chars::<'F'>(), "F", Action::Command(Play(Playback::Finding(false))), "to the start of the previous finding", "finding"),
    on(Place::Replay, &chars::<'0'>(), "0", Action::Command(Play(Playback::To(0))), "to the start", ""),
    on(Place::Replay, &chars::<'$'>(), "$", Action::Command(Play(Playback::End)), "to the end", ""),
    on(Place::Replay, &chars::<'t'>(), "t", Action::Time, "to a time: 1:23, 90s, 2m", "go to"),
    on(Place::Everywhere, &chars::<'e'>(), "e", Action::Export, "write the report as HTML or JSON, or a trace for Perfetto", "export"),
    on(Place::Everywhere, &chars::<':'>(), ":", Action::Palette, "find an action by name", ""),
    on(Place::Everywhere, &chars::<'?'>(), "?", Action::Help, "this help", "help"),
    on(Place::Everywhere, &[(KeyCode::Char('q'), NONE), (KeyCode::Char('c'), CTRL)], "q C-c", Action::Quit, "quit and print the report", "quit"),
];

impl Binding {
    /// Returns whether it applies in the current state.
    pub(crate) fn applies(&self, ui: &Ui) -> bool {
        match self.place {
            Place::Everywhere => true,
            Place::On(tabs, _) => tabs.contains(&ui.tab),
            Place::Live => !ui.replay,
            Place::Replay => ui.replay,
            Place::Watch => ui.watches,
        }
    }

    /// Names the tabs on which it applies.
    pub(crate) fn place_name(&self) -> &'static str {
        match self.place {
            Place::Everywhere => "everywhere",
            Place::On(_, name) => name,
            Place::Live => "live",
            Place::Replay => "in a replay",
            Place::Watch => "in watch",
        }
    }
}

/// Action of a key in the current state.
pub(crate) fn action(key: &KeyEvent, ui: &Ui) -> Option<Action> {
    match ui.dialog {
        Dialog::Filter(_) | Dialog::Time(_) => typing(key),
        Dialog::Help(_) => reading(key),
        Dialog::Palette(ref words, at) => finding(key, words, at, ui),
        Dialog::Export => Some(exporting(key)),
        Dialog::None => bound(key, |binding| binding.applies(ui)),
    }
}

/// Action of the first binding for this key among the `active` ones.
fn bound(key: &KeyEvent, active: impl Fn(&Binding) -> bool) -> Option<Action> {
    // Terminals report `?` or `G` with or without SHIFT; the character already implies it.
    let modifiers = if matches!(key.code, KeyCode::Char(_)) { key.modifiers - SHIFT } else { key.modifiers };
    BINDINGS.iter().find(|b| active(b) && b.keys.contains(&(key.code, modifiers))).map(|b| b.action)
}

/// Action of a key in the help, where only keys that scroll or close it are active.
fn reading(key: &KeyEvent) -> Option<Action> {
    match picking(key)? {
        Action::Quit if key.code == KeyCode::Char('q') => Some(Action::Back),
        Action::Open | Action::Help => Some(Action::Back),
        Action::Move(isize::MIN | isize::MAX) => None,
        action => Some(action),
    }
}

/// Action of a key in the picker, which is a list of its own.
pub(crate) fn picking(key: &KeyEvent) -> Option<Action> {
    use Action::{Back, Help, Move, Open, Page, Quit};
    bound(key, |binding| matches!(binding.action, Back | Help | Move(_) | Open | Page(_) | Quit))
}

/// An entry of the command palette.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) shown: &'static str,
    pub(crate) what: String,
    /// Where the key applies.
    pub(crate) place: &'static str,
    pub(crate) action: Action,
}

/// Actions and saved filters that match all of `words`. An action that applies only on other tabs switches to the first of these.
pub(crate) fn found(words: &str, ui: &Ui) -> Vec<Entry> {
    let possible = |b: &&Binding| (b.applies(ui) || matches!(b.place, Place::On(..))) && b.action != Action::Palette;
    let actions = BINDINGS.iter().filter(possible).map(|b| Entry {
        shown: b.shown,
        what: b.what.to_owned(),
        place: b.place_name(),
        action: match b.place {
            Place::On(tabs, _) if !b.applies(ui) => Action::In(tabs[0], &b.action),
            _ => b.action,
        },
    });
    let filters = ui.options.filters.iter().enumerate().map(|(place, saved)| Entry {
        shown: "",
        what: format!("filter @{}: {}", saved.name, saved.query.text),
        place: "",
        action: Action::Saved(place),
    });
    let words = words.to_lowercase();
    let has_all = |entry: &Entry| {
        let text = format!("{} {}", entry.shown, entry.what).to_lowercase();
        words.split_whitespace().all(|word| text.contains(word))
    };
    actions.chain(filters).filter(has_all).collect()
}

fn finding(key: &KeyEvent, words: &str, at: usize, ui: &Ui) -> Option<Action> {
    match key.code {
        KeyCode::Up => Some(Action::Move(-1)),
        KeyCode::Down => Some(Action::Move(1)),
        KeyCode::Enter => {
            let mut found = found(words, ui);
            let at = at.min(found.len().checked_sub(1)?);
            Some(found.swap_remove(at).action)
        }
        _ => typing(key),
    }
}

fn exporting(key: &KeyEvent) -> Action {
    match key.code {
        KeyCode::Char('h') => Action::ExportAs(ExportAs::Html),
        KeyCode::Char('j') | KeyCode::Enter => Action::ExportAs(ExportAs::Json),
        KeyCode::Char('p') => Action::ExportAs(ExportAs::Perfetto),
        _ => Action::Back,
    }
}

fn typing(key: &KeyEvent) -> Option<Action> {
    if key.modifiers.contains(CTRL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Back),
            KeyCode::Char('u') => Some(Action::EraseAll),
            KeyCode::Char('h') => Some(Action::Erase),
            _ => None,
        };
    }
    match key.code {
        KeyCode::Char(c) => Some(Action::Type(c)),
        KeyCode::Backspace => Some(Action::Erase),
        KeyCode::Enter => Some(Action::Accept),
        KeyCode::Esc => Some(Action::Back),
        _ => None,
    }
}

#[cfg(test)]
mod journeys;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_bound_once_per_place() {
        for (tab, replay) in Tab::ALL.into_iter().flat_map(|tab| [(tab, false), (tab, true)]) {
            let ui = Ui { tab, replay, ..Ui::default() };
            let mut seen = Vec::new();
            for key in BINDINGS.iter().filter(|b| b.applies(&ui)).flat_map(|b| b.keys) {
                assert!(!seen.contains(&key), "{key:?} twice on {tab:?}");
                seen.push(key);
            }
        }
    }

    #[test]
    fn number_keys_select_tabs() {
        for (place, tab) in Tab::ALL.into_iter().enumerate() {
            let digit = char::from_digit(place as u32 + 1, 10).expect("few tabs");
            let key = KeyEvent::new(KeyCode::Char(digit), NONE);
            assert_eq!(action(&key, &Ui::default()), Some(Action::Go(tab)));
        }
    }

    #[test]
    fn capitals_and_signs_match_with_or_without_shift() {
        let ui = Ui { tab: Tab::Requests, ..Ui::default() };
        for modifiers in [NONE, SHIFT] {
            assert_eq!(action(&KeyEvent::new(KeyCode::Char('G'), modifiers), &ui), Some(Action::Move(isize::MAX)));
            assert_eq!(action(&KeyEvent::new(KeyCode::Char('?'), modifiers), &ui), Some(Action::Help));
        }
    }
}
