//! Position of the user: tab, selection, filter, sort order, time. Changed only by actions.

use std::collections::BTreeSet;

use session::ScreenCommand;
use session::playback::Play;
use session::units;

use super::Model;
use super::action::{Action, Effect, Tab};
use super::query::{Query, SyntaxError};
use super::row::Column;
use super::table::Sort;

/// Dialog over the tab that receives the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialog {
    #[default]
    None,
    /// Key help, with the scroll offset in lines.
    Help(usize),
    Filter(String),
    Time(String),
    /// Search text of the command palette, and the index of the selected match.
    Palette(String, usize),
    Export,
}

/// A named filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    pub(crate) name: String,
    pub(crate) query: Query,
}

impl Saved {
    /// Parses `NAME=FILTER`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let split = text.split_once('=').filter(|(name, _)| {
            let letters = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            !name.is_empty() && name.chars().all(letters)
        });
        let Some((name, filter)) = split else {
            return Err("expected NAME=FILTER, for example slow=gap>1s; a name has letters, digits, - and _".into());
        };
        let query = Query::parse(filter).map_err(|wrong| format!("invalid filter {wrong}"))?;
        Ok(Self { name: name.into(), query })
    }
}

/// Zoom levels of the time series, in seconds per column.
pub(crate) const ZOOM: [u64; 6] = [1, 2, 5, 10, 30, 60];
/// Columns per scroll step.
const SCROLL: u64 = 5;
/// Maximum length of a filter, in characters.
const FILTER_CHARS: usize = 200;
/// Maximum number of pinned rows.
const PINS: usize = 16;

/// Limits of the state kept per run, and the saved filters.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Maximum number of moments of chunks kept for the view of one request.
    pub journal: usize,
    /// Maximum number of finished requests in the table.
    pub rows: usize,
    /// Saved filters.
    pub filters: Vec<Saved>,
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent setting of the user")]
pub(crate) struct Ui {
    pub(crate) tab: Tab,
    pub(crate) dialog: Dialog,
    /// Rid of the selected request. A rid keeps the selection stable while the table changes.
    pub(crate) selected: Option<String>,
    /// Set once the user selects a request; until then the first row of the table is selected.
    pub(crate) chosen: bool,
    pub(crate) sort: Sort,
    pub(crate) filter: Query,
    pub(crate) pins: BTreeSet<String>,
    pub(crate) follow: bool,
    /// Second at which the view is frozen.
    pub(crate) paused: Option<u64>,
    /// Set for the playback of a recording.
    pub(crate) replay: bool,
    /// Set when watching runs of other tokengap processes.
    pub(crate) watches: bool,
    /// Index into [`ZOOM`].
    pub(crate) zoom: usize,
    /// Seconds between the end of the shown time series and the newest sample.
    pub(crate) back: u64,
    /// Index of the selected item on each tab. On [`Tab::Request`] it is the first shown chunk; [`Tab::Requests`] selects by rid.
    pub(crate) places: [usize; Tab::ALL.len()],
    /// Set once the user has searched the chunk list for a lost or merged chunk.
    pub(crate) sought: bool,
    /// Number of rows per page, updated by the view after every draw.
    pub(crate) page: usize,
    pub(crate) options: Options,
    /// Set after the first quit key while a recording is being written. The next one quits.
    pub(crate) leaving: bool,
    /// Message about the last action, shown until the next key.
    pub(crate) message: Option<String>,
}

impl Ui {
    /// Applies `action` to the user interface and returns the remaining work for the run loop.
    pub(crate) fn apply(&mut self, action: Action, model: &Model) -> Option<Effect> {
        self.message = None;
        let asked_to_quit = std::mem::take(&mut self.leaving);
        if matches!(self.dialog, Dialog::Palette(..) | Dialog::Export)
            && !matches!(action, Action::Type(_) | Action::Erase | Action::EraseAll | Action::Move(_) | Action::Back)
        {
            self.dialog = Dialog::None;
        }
        match action {
            Action::Quit if !asked_to_quit && model.run.doing == "live" && model.writing.recording.is_some() => {
                self.leaving = true;
                self.show_message(
                    "a recording is in progress: press q again to stop and close it, any other key to continue",
                );
            }
            Action::Quit => return Some(Effect::Command(ScreenCommand::End)),
            Action::Go(tab) if !tab.exists(model) => self.show_message(match tab {
                Tab::Pods => "this screen shows one run; tokengap watch shows several",
                _ => "this source does not observe threads; attach does",
            }),
            Action::Go(tab) => {
                // Keeps the request under the cursor even if another one becomes the first row.
                self.chosen |= tab == Tab::Request && self.selected.is_some();
                self.go(tab);
            }
            Action::Turn(by) => self.go(self.tab.step(by, model)),
            Action::Move(by) => self.walk(by, model),
            Action::Page(by) => self.walk(by * self.page.max(2) as isize, model),
            Action::Open if self.tab == Tab::Pods => {
                self.go(Tab::Overview);
                return Some(Effect::Run(self.place(Tab::Pods)));
            }
            Action::Open => self.open(model),
            Action::Back => self.back(),
            Action::Help => self.dialog = Dialog::Help(0),
            Action::Filter => {
                self.go(Tab::Requests);
                self.dialog = Dialog::Filter(self.filter.text.clone());
            }
            Action::Sort(by) => self.sort.column = self.sort.column.step(by),
            Action::SortBy(column) if column == self.sort.column => self.sort.descending = !self.sort.descending,
            Action::SortBy(column) => (self.sort.column, self.sort.descending) = (column, true),
            Action::SortReset => self.sort = Sort::default(),
            Action::Reverse => self.sort.descending = !self.sort.descending,
            Action::Seek(by) => self.seek(by, model),
            Action::Follow => {
                self.follow = !self.follow;
                self.show_message(if self.follow { "following the worst request" } else { "stopped following" });
            }
            Action::Pin => self.pin(),
            Action::Pause if self.replay => return Some(Effect::Command(ScreenCommand::Play(Play::Toggle))),
            Action::Pause => self.pause(model),
            Action::Command(command) => return Some(Effect::Command(command)),
            Action::Time => self.dialog = Dialog::Time(String::new()),
            Action::Zoom(by) => self.zoom = self.zoom.saturating_add_signed(by).min(ZOOM.len() - 1),
            Action::Scroll(by) => self.scroll(by, model),
            Action::Export => self.dialog = Dialog::Export,
            Action::ExportAs(format) => return Some(Effect::Export(format)),
            Action::OpenAt(tab, place) => self.open_at(tab, place),
            Action::At(second) if self.replay => {
                return Some(Effect::Command(ScreenCommand::Play(Play::To(second * 1_000_000_000))));
            }
            Action::At(second) => {
                let end = *self.paused.get_or_insert(model.curves.newest());
                self.back = end.saturating_sub(second);
            }
            Action::Palette => self.dialog = Dialog::Palette(String::new(), 0),
            Action::In(tab, action) => {
                self.go(tab);
                return self.apply(*action, model);
            }
            Action::Saved(place) => {
                if let Some(saved) = self.options.filters.get(place).cloned() {
                    self.go(Tab::Requests);
                    self.filter_by(saved.query);
                }
            }
            Action::NextRun(by) => {
                let runs = model.pods.len().max(1) as isize;
                return Some(Effect::Run((model.pod as isize + by).rem_euclid(runs) as usize));
            }
            Action::CopyRid => match self.selected.clone() {
                Some(rid) => return Some(Effect::Copy(rid)),
                None => self.show_message("no request is selected: choose one in Requests (2)"),
            },
            Action::Pick(row) => self.pick(row, model),
            Action::Type(c) => self.edit(|text| {
                if text.chars().count() < FILTER_CHARS {
                    text.push(c);
                }
            }),
            Action::Erase => self.edit(|text| {
                text.pop();
            }),
            Action::EraseAll => self.edit(String::clear),
            Action::Accept => return self.accept(),
        }
        None
    }

    /// Keeps the selection valid: the worst request when following, else the first row if none was chosen.
    pub(crate) fn settle(&mut self, model: &Model) {
        if self.follow && self.paused.is_none() {
            self.selected = model.table.worst().map(|row| row.rid.clone());
        } else if !self.chosen || self.selected.is_none() {
            self.selected = model.table.visible(0).map(|row| row.rid.clone());
        }
        for tab in [Tab::Findings, Tab::Hops, Tab::Pods, Tab::Cpu] {
            self.select(tab, self.place(tab), model);
        }
    }

    /// Index of the selected item on a tab.
    pub(crate) fn place(&self, tab: Tab) -> usize {
        self.places[tab as usize]
    }

    /// Selects an item of a tab, at most the last.
    fn select(&mut self, tab: Tab, place: usize, model: &Model) {
        self.places[tab as usize] = place.min(tab.items(model).saturating_sub(1));
    }

    fn open_at(&mut self, tab: Tab, place: usize) {
        self.places[tab as usize] = place;
        self.go(tab);
    }

    /// Resets the selection when another run is shown.
    pub(crate) fn other_run(&mut self) {
        (self.selected, self.chosen, self.paused, self.back) = (None, false, None, 0);
        let pod = self.place(Tab::Pods);
        self.places = Default::default();
        self.places[Tab::Pods as usize] = pod;
        self.pins.clear();
    }

    /// Second at which the time series end.
    pub(crate) fn time_end(&self, model: &Model) -> u64 {
        self.paused.unwrap_or(model.curves.newest()).saturating_sub(self.back)
    }

    /// Shows `text` until the next key.
    pub(crate) fn show_message(&mut self, text: impl Into<String>) {
        self.message = Some(text.into());
    }

    fn go(&mut self, tab: Tab) {
        self.tab = tab;
        self.dialog = Dialog::None;
    }

    fn walk(&mut self, by: isize, model: &Model) {
        if let Dialog::Help(at) | Dialog::Palette(_, at) = &mut self.dialog {
            *at = at.saturating_add_signed(by);
        } else if self.tab == Tab::Requests {
            self.follow = false;
            let at = self.selected.as_ref().and_then(|rid| model.table.place(rid));
            let last = self.tab.items(model).saturating_sub(1);
            let to = at.map_or(0, |at| at.saturating_add_signed(by).min(last));
            self.choose(model.table.visible(to).map(|row| row.rid.clone()));
        } else {
            self.select(self.tab, self.place(self.tab).saturating_add_signed(by), model);
        }
    }

    fn seek(&mut self, by: isize, model: &Model) {
        let Some(detail) = &model.detail else { return };
        let mut harmed = detail.harmed();
        let from = self.place(Tab::Request);
        let found = if by > 0 {
            // The first search includes the current line.
            harmed.find(|&place| place > from || (place == from && !self.sought))
        } else {
            harmed.take_while(|&place| place < from).last()
        };
        self.sought = true;
        match found {
            Some(place) => self.places[Tab::Request as usize] = place,
            None => self.show_message("no known lost or merged chunk in that direction"),
        }
    }

    fn choose(&mut self, rid: Option<String>) {
        self.chosen = rid.is_some();
        self.selected = rid;
    }

    fn pick(&mut self, row: usize, model: &Model) {
        if self.tab != Tab::Requests {
            self.select(self.tab, row, model);
        } else if let Some(row) = model.table.visible(row) {
            self.follow = false;
            self.choose(Some(row.rid.clone()));
        }
    }

    fn open(&mut self, model: &Model) {
        match self.tab {
            Tab::Overview => self.go(Tab::Findings),
            Tab::Requests => self.open_request(self.selected.clone()),
            Tab::Findings => self.jump(model),
            Tab::Hops => self.open_hop(model),
            Tab::Request | Tab::Cpu | Tab::Pods => {}
        }
    }

    /// Shows the chunks of a request from the first one on.
    fn open_request(&mut self, rid: Option<String>) {
        self.sought = false;
        self.choose(rid);
        self.open_at(Tab::Request, 0);
    }

    /// Opens the finding about the hop, or the requests sorted by gap if there is none.
    fn open_hop(&mut self, model: &Model) {
        let Some(hop) = model.hops.get(self.place(Tab::Hops)) else { return };
        if let Some(place) = model.findings.iter().position(|finding| finding.verdict.hop == hop.name) {
            self.open_at(Tab::Findings, place);
        } else {
            self.sort = Sort { column: Column::headed("gap"), descending: true };
            self.go(Tab::Requests);
            self.show_message(format!("no finding about {}: showing its requests by gap", hop.name));
        }
    }

    /// Opens the finding's request, else its hop, else its time in the overview.
    fn jump(&mut self, model: &Model) {
        let Some(finding) = model.findings.get(self.place(Tab::Findings)) else { return };
        let (rid, hop) = (&finding.verdict.rid, &finding.verdict.hop);
        if !rid.is_empty() {
            self.follow = false;
            self.open_request(Some(rid.clone()));
        } else if let Some(place) = model.hops.iter().position(|line| line.name == *hop) {
            self.open_at(Tab::Hops, place);
        } else {
            let end = self.paused.unwrap_or(model.curves.newest());
            self.back = end.saturating_sub(model.at_ns(finding) / 1_000_000_000 + ZOOM[self.zoom] * SCROLL);
            self.back = self.back.min(model.curves.depth());
            self.go(Tab::Overview);
        }
    }

    fn back(&mut self) {
        match (&self.dialog, self.tab) {
            (Dialog::None, Tab::Request) => self.go(Tab::Requests),
            (Dialog::None, Tab::Requests) if !self.filter.is_empty() => {
                self.filter = Query::default();
                self.show_message("filter cleared");
            }
            (Dialog::None, _) => self.back = 0,
            _ => self.dialog = Dialog::None,
        }
    }

    fn pin(&mut self) {
        let Some(rid) = self.selected.clone() else { return };
        self.chosen = true;
        if self.pins.remove(&rid) {
            self.show_message("unpinned");
        } else if self.pins.len() < PINS {
            self.pins.insert(rid);
            self.show_message("pinned to the top");
        } else {
            self.show_message(format!("{PINS} rows are pinned: unpin one first"));
        }
    }

    fn pause(&mut self, model: &Model) {
        match self.paused.take() {
            Some(_) => self.back = 0,
            None => self.paused = Some(model.curves.newest()),
        }
    }

    fn scroll(&mut self, by: isize, model: &Model) {
        let step = by.unsigned_abs() as u64 * SCROLL * ZOOM[self.zoom];
        self.back = if by < 0 { self.back.saturating_add(step) } else { self.back.saturating_sub(step) };
        self.back = self.back.min(model.curves.depth());
    }

    fn edit(&mut self, change: impl FnOnce(&mut String)) {
        match &mut self.dialog {
            Dialog::Filter(text) | Dialog::Time(text) => change(text),
            Dialog::Palette(text, at) => {
                change(text);
                *at = 0;
            }
            Dialog::None | Dialog::Help(_) | Dialog::Export => {}
        }
    }

    /// Parses a typed filter, or finds the saved one that it names.
    pub(crate) fn typed_filter(&self, text: &str) -> Result<Query, SyntaxError> {
        let saved = self.options.filters.iter().find(|saved| text.trim().strip_prefix('@') == Some(&saved.name));
        saved.map_or_else(|| Query::parse(text), |saved| Ok(saved.query.clone()))
    }

    fn filter_by(&mut self, query: Query) {
        self.filter = query;
        self.choose(None);
        self.dialog = Dialog::None;
    }

    fn accept(&mut self) -> Option<Effect> {
        match &self.dialog {
            Dialog::Filter(text) => {
                let query = self.typed_filter(text).ok()?;
                self.filter_by(query);
            }
            Dialog::Time(text) => {
                let to = units::moment(text)?;
                self.dialog = Dialog::None;
                return Some(Effect::Command(ScreenCommand::Play(Play::To(to))));
            }
            Dialog::None | Dialog::Help(_) | Dialog::Palette(..) | Dialog::Export => {}
        }
        None
    }
}
