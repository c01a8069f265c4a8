//! Key table, from which bindings, help and hints are generated.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use session::ScreenCommand::{self, Play};
use session::playback::Play as Playback;

use crate::state::Model;
use crate::state::action::{Action, ExportAs, Tab};
use crate::state::ui::{Dialog, Ui};

/// Context in which a binding applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyContext {
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
    pub(crate) context: KeyContext,
    keys: &'static [(KeyCode, KeyModifiers)],
    /// Keys as shown in the help.
    pub(crate) shown_keys: &'static str,
    action: Action,
    /// Description in the help.
    pub(crate) description: &'static str,
    /// Word in the hints at the bottom; empty for none.
    pub(crate) hint: &'static str,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;
const SHIFT: KeyModifiers = KeyModifiers::SHIFT;

const IN_LISTS: KeyContext =
    KeyContext::On(&[Tab::Requests, Tab::Request, Tab::Hops, Tab::Findings, Tab::Cpu, Tab::Pods], "in lists");
const IN_REQUESTS: KeyContext = KeyContext::On(&[Tab::Requests], "Requests");
const IN_TIMELINES: KeyContext = KeyContext::On(&[Tab::Overview, Tab::Hops, Tab::Cpu], "Overview, Hops, CPU");
const ON_SELECTION: KeyContext =
    KeyContext::On(&[Tab::Overview, Tab::Requests, Tab::Hops, Tab::Findings, Tab::Pods], "on the selection");
const WITH_CUT_LISTS: KeyContext = KeyContext::On(&[Tab::Hops, Tab::Request], "Hops, Request");
pub(crate) const IN_FINDINGS: KeyContext = KeyContext::On(&[Tab::Findings], "Findings");
pub(crate) const IN_REQUEST: KeyContext = KeyContext::On(&[Tab::Request], "Request");
const WITH_RID: KeyContext = KeyContext::On(&[Tab::Requests, Tab::Request], "Requests, Request");

/// Makes a row of the key table: in `context`, each of `keys` does `action`. The help shows `shown_keys` with `description`, and the last
/// row of the screen shows `hint`, unless that is empty.
const fn bind(
    context: KeyContext,
    keys: &'static [(KeyCode, KeyModifiers)],
    shown_keys: &'static str,
    action: Action,
    description: &'static str,
    hint: &'static str,
) -> Binding {
    Binding { context, keys, shown_keys, action, description, hint }
}

const fn chars<const C: char>() -> [(KeyCode, KeyModifiers); 1] {
    [(KeyCode::Char(C), NONE)]
}

/// Every binding, in the order of the help.
// Keep the columns of the table: one binding per line.
#[rustfmt::skip]
pub(crate) const BINDINGS: &[Binding] = &[
    bind(KeyContext::Everywhere, &chars::<'1'>(), "1", Action::OpenTab(Tab::Overview), "Overview: is it unhealthy, where, since when", ""),
    bind(KeyContext::Everywhere, &chars::<'2'>(), "2", Action::OpenTab(Tab::Requests), "Requests: all requests, worst first", ""),
    bind(KeyContext::Everywhere, &chars::<'3'>(), "3", Action::OpenTab(Tab::Request), "Request: the selected one, chunk by chunk", ""),
    bind(KeyContext::Everywhere, &chars::<'4'>(), "4", Action::OpenTab(Tab::Hops), "Hops: where frames wait", ""),
    bind(KeyContext::Everywhere, &chars::<'5'>(), "5", Action::OpenTab(Tab::Findings), "Findings: what, since when, what to do", ""),
    bind(KeyContext::Everywhere, &chars::<'6'>(), "6", Action::OpenTab(Tab::Cpu), "CPU: which threads run, wait or are throttled", ""),
    bind(KeyContext::Everywhere, &chars::<'7'>(), "7", Action::OpenTab(Tab::Pods), "Runs: the watched runs and their total", ""),
    bind(KeyContext::Everywhere, &[(KeyCode::Tab, NONE)], "Tab", Action::StepTab(1), "next tab", ""),
    bind(KeyContext::Everywhere, &[(KeyCode::BackTab, SHIFT), (KeyCode::BackTab, NONE)], "S-Tab", Action::StepTab(-1), "previous tab", ""),
    bind(ON_SELECTION, &[(KeyCode::Enter, NONE)], "Enter", Action::OpenSelection, "open the selection", "open"),
    bind(KeyContext::Everywhere, &[(KeyCode::Esc, NONE)], "Esc", Action::GoBack, "close, clear the filter or go back", ""),
    bind(IN_LISTS, &[(KeyCode::Up, NONE), (KeyCode::Char('k'), NONE)], "Up k", Action::MoveSelection(-1), "up", ""),
    bind(IN_LISTS, &[(KeyCode::Down, NONE), (KeyCode::Char('j'), NONE)], "Down j", Action::MoveSelection(1), "down", ""),
    bind(IN_LISTS, &[(KeyCode::PageUp, NONE), (KeyCode::Char('u'), CTRL)], "PgUp C-u", Action::MovePage(-1), "a page up", ""),
    bind(IN_LISTS, &[(KeyCode::PageDown, NONE), (KeyCode::Char('d'), CTRL)], "PgDn C-d", Action::MovePage(1), "a page down", ""),
    bind(IN_LISTS, &[(KeyCode::Home, NONE), (KeyCode::Char('g'), NONE)], "Home g", Action::MoveSelection(isize::MIN), "to the first", ""),
    bind(IN_LISTS, &[(KeyCode::End, NONE), (KeyCode::Char('G'), NONE)], "End G", Action::MoveSelection(isize::MAX), "to the last", ""),
    bind(KeyContext::Everywhere, &chars::<'/'>(), "/", Action::TypeFilter, "filter requests: gap>1s drop>0 rid:5b92 state:live", "filter"),
    bind(IN_REQUESTS, &chars::<'<'>(), "<", Action::StepSortColumn(-1), "sort by the column to the left", "sort"),
    bind(IN_REQUESTS, &chars::<'>'>(), ">", Action::StepSortColumn(1), "sort by the column to the right", "sort"),
    bind(IN_REQUESTS, &chars::<'s'>(), "s", Action::ReverseSort, "reverse the order", "reverse"),
    bind(IN_REQUESTS, &chars::<'S'>(), "S", Action::ResetSort, "default sort order: worst flag first", ""),
    bind(IN_REQUESTS, &chars::<'w'>(), "w", Action::FollowWorst, "keep the worst request selected", "worst"),
    bind(WITH_RID, &[(KeyCode::Char(' '), NONE)], "Space", Action::PinRequest, "pin the request to the top, or unpin it", "pin"),
    bind(WITH_RID, &chars::<'y'>(), "y", Action::CopyRid, "copy the rid to the terminal's clipboard", "copy rid"),
    bind(IN_FINDINGS, &chars::<'f'>(), "f", Action::ListRequestsOfFinding, "list the finding's requests", "requests"),
    bind(WITH_CUT_LISTS, &chars::<'m'>(), "m", Action::ToggleCutList, "the whole list where it says `more: m`, or the rest again", ""),
    bind(IN_TIMELINES, &[(KeyCode::Char('+'), NONE), (KeyCode::Char('='), NONE)], "+", Action::ZoomTime(-1), "zoom in in time", "zoom"),
    bind(IN_TIMELINES, &chars::<'-'>(), "-", Action::ZoomTime(1), "zoom out in time", "zoom"),
    bind(IN_TIMELINES, &[(KeyCode::Left, NONE), (KeyCode::Char('h'), NONE)], "Left h", Action::ScrollTime(-1), "earlier", "time"),
    bind(IN_TIMELINES, &[(KeyCode::Right, NONE), (KeyCode::Char('l'), NONE)], "Right l", Action::ScrollTime(1), "later", "time"),
    bind(IN_REQUEST, &chars::<'n'>(), "n", Action::SeekHarmedChunk(1), "to the next chunk that was lost or merged", "next lost"),
    bind(IN_REQUEST, &chars::<'N'>(), "N", Action::SeekHarmedChunk(-1), "to the previous one", "next lost"),
    bind(KeyContext::Everywhere, &chars::<'p'>(), "p", Action::Pause, "pause the view of a live run, or playback of a recording", "pause"),
    bind(KeyContext::Live, &chars::<'r'>(), "r", Action::Command(ScreenCommand::Record), "start or stop a recording in this folder", ""),
    bind(KeyContext::Live, &chars::<'d'>(), "d", Action::Command(ScreenCommand::Dump), "save the hindsight ring (--hindsight)", ""),
    bind(KeyContext::Watch, &chars::<'['>(), "[", Action::StepRun(-1), "to the previous run", "run"),
    bind(KeyContext::Watch, &chars::<']'>(), "]", Action::StepRun(1), "to the next run", "run"),
    bind(KeyContext::Replay, &chars::<'['>(), "[", Action::Command(Play(Playback::Speed(-1))), "play slower", "speed"),
    bind(KeyContext::Replay, &chars::<']'>(), "]", Action::Command(Play(Playback::Speed(1))), "play faster; the last step has no speed limit", "speed"),
    bind(KeyContext::Replay, &chars::<','>(), ",", Action::Command(Play(Playback::Skip(-10))), "ten seconds back", "10 s"),
    bind(KeyContext::Replay, &chars::<'.'>(), ".", Action::Command(Play(Playback::Skip(10))), "ten seconds forward", "10 s"),
    bind(KeyContext::Replay, &chars::<'}'>(), "}", Action::Command(Play(Playback::NextFinding)), "to where the next finding is first seen", "finding"),
    bind(KeyContext::Replay, &chars::<'{'>(), "{", Action::Command(Play(Playback::PreviousFinding)), "to where the previous finding is first seen", "finding"),
    bind(KeyContext::Replay, &chars::<'0'>(), "0", Action::Command(Play(Playback::To(0))), "to the start", ""),
    bind(KeyContext::Replay, &chars::<'$'>(), "$", Action::Command(Play(Playback::End)), "to the end", ""),
    bind(KeyContext::Replay, &chars::<'t'>(), "t", Action::TypeTime, "to a time: 14:59, 14:59:08, 1:23, 3.9s, +10s, -1m", "go to"),
    bind(KeyContext::Everywhere, &chars::<'e'>(), "e", Action::ShowExportFormats, "write the report as HTML or JSON, or a trace for Perfetto", "export"),
    bind(KeyContext::Everywhere, &chars::<':'>(), ":", Action::ShowPalette, "find an action by name", ""),
    bind(KeyContext::Everywhere, &chars::<'?'>(), "?", Action::ShowHelp, "this help", "help"),
    bind(KeyContext::Everywhere, &[(KeyCode::Char('q'), NONE), (KeyCode::Char('c'), CTRL)], "q C-c", Action::Quit, "quit and print the report", "quit"),
];

impl Binding {
    /// Returns whether the key has this action in the current state.
    pub(crate) fn is_active(&self, ui: &Ui) -> bool {
        match self.context {
            KeyContext::Everywhere => true,
            KeyContext::On(tabs, _) => tabs.contains(&ui.tab),
            KeyContext::Live => !ui.is_replay,
            KeyContext::Replay => ui.is_replay,
            KeyContext::Watch => ui.is_watching,
        }
    }

    /// Whether its action can do something in this run. A tab that does not exist cannot be opened.
    pub(crate) fn has_effect(&self, model: &Model) -> bool {
        !matches!(self.action, Action::OpenTab(tab) if !tab.has_content(model))
    }

    /// Where the binding applies, in the words of the help.
    pub(crate) fn context_name(&self) -> &'static str {
        match self.context {
            KeyContext::Everywhere => "everywhere",
            KeyContext::On(_, name) => name,
            KeyContext::Live => "live",
            KeyContext::Replay => "in a replay",
            KeyContext::Watch => "several runs",
        }
    }
}

/// Action of a key in the current state; `None` if the key has none.
pub(crate) fn action_of_key(key: &KeyEvent, ui: &Ui) -> Option<Action> {
    match ui.dialog {
        Dialog::Filter(_) | Dialog::Time(_) => action_while_typing(key),
        Dialog::Help(_) => action_in_help(key),
        Dialog::Palette { ref words, selected } => action_in_palette(key, words, selected, ui),
        Dialog::Export => Some(action_in_export_list(key)),
        Dialog::None => bound_action(key, |binding| binding.is_active(ui)),
    }
}

/// Action of the first binding of this key for which `is_active` is true; `None` without one.
fn bound_action(key: &KeyEvent, is_active: impl Fn(&Binding) -> bool) -> Option<Action> {
    // Terminals report `?` or `G` with or without SHIFT; the character already implies it.
    let modifiers = if matches!(key.code, KeyCode::Char(_)) { key.modifiers - SHIFT } else { key.modifiers };
    let found = BINDINGS.iter().find(|binding| is_active(binding) && binding.keys.contains(&(key.code, modifiers)));
    found.map(|binding| binding.action)
}

/// Action of a key in the help, where only keys that scroll or close it are active; `None` for any other key.
fn action_in_help(key: &KeyEvent) -> Option<Action> {
    // The help scrolls by the same keys as the list of sources.
    match action_in_picker(key)? {
        // `q` closes the help, as it does in pagers. Ctrl-C still ends the program.
        Action::Quit if key.code == KeyCode::Char('q') => Some(Action::GoBack),
        // Enter has nothing to open here, and a second `?` takes the help away: both close it.
        Action::OpenSelection | Action::ShowHelp => Some(Action::GoBack),
        action => Some(action),
    }
}

/// Action of a key in the picker of sources, which has no tabs; `None` if the key has none there.
pub(crate) fn action_in_picker(key: &KeyEvent) -> Option<Action> {
    use Action::{GoBack, MovePage, MoveSelection, OpenSelection, Quit, ShowHelp};
    bound_action(key, |binding| {
        matches!(binding.action, GoBack | ShowHelp | MoveSelection(_) | OpenSelection | MovePage(_) | Quit)
    })
}

/// An entry of the command palette.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PaletteEntry {
    /// Key that does the same.
    pub(crate) shown_keys: &'static str,
    pub(crate) description: String,
    /// Where the key applies.
    pub(crate) context: &'static str,
    pub(crate) action: Action,
}

impl PaletteEntry {
    /// Whether the keys or the description contain each of these words, which must be in lower case.
    fn contains_all(&self, lowercase_words: &str) -> bool {
        let text = format!("{} {}", self.shown_keys, self.description).to_lowercase();
        lowercase_words.split_whitespace().all(|word| text.contains(word))
    }

    /// Whether one of its keys is exactly this text.
    fn has_key(&self, typed: &str) -> bool {
        self.shown_keys.split(' ').any(|key| key == typed)
    }
}

/// Entries of the palette that contain all of the `typed_words`, whether in the keys or in the description.
pub(crate) fn palette_entries(typed_words: &str, ui: &Ui) -> Vec<PaletteEntry> {
    let mut entries = palette_entries_of_bindings(ui);
    entries.extend(palette_entries_of_saved_filters(ui));
    let lowercase_words = typed_words.to_lowercase();
    entries.retain(|entry| entry.contains_all(&lowercase_words));
    // The first entry is the one that Enter runs: after `:q`, it is that of the key `q`.
    let (mut sorted, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.has_key(typed_words));
    sorted.extend(others);
    sorted
}

/// Palette entries of the key table. If an action works only on other tabs, its entry first opens the first of these tabs. A binding for
/// another kind of run, such as a replay, has no entry.
fn palette_entries_of_bindings(ui: &Ui) -> Vec<PaletteEntry> {
    let mut entries = Vec::new();
    // The palette does not list itself.
    for binding in BINDINGS.iter().filter(|binding| binding.action != Action::ShowPalette) {
        let action = if binding.is_active(ui) {
            binding.action
        } else if let KeyContext::On(tabs, _) = binding.context {
            Action::OnTab(tabs[0], &binding.action)
        } else {
            // It needs another kind of run, to which no tab leads.
            continue;
        };
        entries.push(PaletteEntry {
            shown_keys: binding.shown_keys,
            description: binding.description.to_owned(),
            context: binding.context_name(),
            action,
        });
    }
    entries
}

/// Palette entries that apply the saved filters. They have no key, and apply everywhere.
fn palette_entries_of_saved_filters(ui: &Ui) -> Vec<PaletteEntry> {
    let filters = ui.options.filters.iter().enumerate();
    let entries = filters.map(|(index, saved)| PaletteEntry {
        shown_keys: "",
        description: format!("filter @{}: {}", saved.name, saved.filter.text),
        context: "",
        action: Action::ApplySavedFilter(index),
    });
    entries.collect()
}

/// Action of a key in the command palette. Enter runs the entry at `selected_index` among those that match `typed_words`. `None` if none
/// matches, or if the key has no action there.
fn action_in_palette(key: &KeyEvent, typed_words: &str, selected_index: usize, ui: &Ui) -> Option<Action> {
    match key.code {
        KeyCode::Up => Some(Action::MoveSelection(-1)),
        KeyCode::Down => Some(Action::MoveSelection(1)),
        KeyCode::Enter => {
            let mut entries = palette_entries(typed_words, ui);
            let last_index = entries.len().checked_sub(1)?;
            // The list may have become shorter since the selection moved.
            let entry = entries.swap_remove(selected_index.min(last_index));
            Some(entry.action)
        }
        _ => action_while_typing(key),
    }
}

/// Action of a key in the list of export formats. Any key without a format closes it.
fn action_in_export_list(key: &KeyEvent) -> Action {
    match key.code {
        KeyCode::Char('h') => Action::ExportAs(ExportAs::Html),
        KeyCode::Char('j') | KeyCode::Enter => Action::ExportAs(ExportAs::Json),
        KeyCode::Char('p') => Action::ExportAs(ExportAs::Perfetto),
        _ => Action::GoBack,
    }
}

/// Action of a key while a text is typed; `None` if the key has none there.
fn action_while_typing(key: &KeyEvent) -> Option<Action> {
    // The same keys as in a shell.
    if key.modifiers.contains(CTRL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::GoBack),
            KeyCode::Char('u') => Some(Action::EraseText),
            KeyCode::Char('h') => Some(Action::EraseCharacter),
            _ => None,
        };
    }
    match key.code {
        KeyCode::Char(c) => Some(Action::TypeCharacter(c)),
        KeyCode::Backspace => Some(Action::EraseCharacter),
        KeyCode::Enter => Some(Action::AcceptText),
        KeyCode::Esc => Some(Action::GoBack),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    mod journeys;

    use super::*;

    #[test]
    fn every_key_is_bound_once_per_place() {
        for (tab, replay) in Tab::ALL.into_iter().flat_map(|tab| [(tab, false), (tab, true)]) {
            let ui = Ui { tab, is_replay: replay, ..Ui::default() };
            let mut seen = Vec::new();
            for key in BINDINGS.iter().filter(|b| b.is_active(&ui)).flat_map(|b| b.keys) {
                assert!(!seen.contains(&key), "{key:?} twice on {tab:?}");
                seen.push(key);
            }
        }
    }

    #[test]
    fn number_keys_select_tabs() {
        for (index, tab) in Tab::ALL.into_iter().enumerate() {
            let digit = char::from_digit(index as u32 + 1, 10).expect("few tabs");
            let key = KeyEvent::new(KeyCode::Char(digit), NONE);
            assert_eq!(action_of_key(&key, &Ui::default()), Some(Action::OpenTab(tab)));
        }
    }

    #[test]
    fn capitals_and_signs_match_with_or_without_shift() {
        let ui = Ui { tab: Tab::Requests, ..Ui::default() };
        for modifiers in [NONE, SHIFT] {
            assert_eq!(
                action_of_key(&KeyEvent::new(KeyCode::Char('G'), modifiers), &ui),
                Some(Action::MoveSelection(isize::MAX))
            );
            assert_eq!(action_of_key(&KeyEvent::new(KeyCode::Char('?'), modifiers), &ui), Some(Action::ShowHelp));
        }
    }
}
