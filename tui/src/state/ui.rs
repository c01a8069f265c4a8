//! Position of the user: tab, selection, filter, sort order, time. Changed only by actions.

mod findings;

use std::collections::BTreeSet;

use session::ScreenCommand;
use session::playback::{FindingKey, Play};

use super::Model;
use super::action::{Action, Effect, Tab};
use super::filter::{FilterSyntaxError, RequestFilter, nearest_name};
use super::flags::Health;
use super::request_row::RequestColumn;
use super::request_table::SortOrder;
use super::saved_filter::SavedFilter;

/// Dialog over the tab that receives the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialog {
    #[default]
    None,
    /// Key help, with the scroll offset in lines.
    Help(usize),
    Filter(String),
    Time(String),
    /// Command palette: search text, and the index of the selected match.
    Palette {
        words: String,
        selected: usize,
    },
    Export,
}

/// Zoom levels of the time series.
pub(crate) const SECONDS_PER_COLUMN: [u64; 6] = [1, 2, 5, 10, 30, 60];
/// Columns per scroll step.
const SCROLL_COLUMNS: u64 = 5;
/// Maximum length of a typed text.
const MAX_TEXT_CHARS: usize = 200;
/// Maximum number of pinned rows.
const MAX_PINS: usize = 16;

/// Limits of the state kept per run, and the saved filters.
#[derive(Clone, Debug, Default)]
pub struct ScreenOptions {
    /// Maximum number of moments of chunks kept for the view of one request.
    pub chunk_history: usize,
    /// Maximum number of finished requests in the table.
    pub finished_rows: usize,
    /// Saved filters.
    pub filters: Vec<SavedFilter>,
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent setting of the user")]
pub(crate) struct Ui {
    pub(crate) tab: Tab,
    /// Tabs from which details were opened, to which Esc returns; at most one of each.
    pub(crate) visited_tabs: Vec<Tab>,
    pub(crate) dialog: Dialog,
    /// Rid of the selected request. A rid keeps the selection stable while the table changes.
    pub(crate) selected_rid: Option<String>,
    /// Set once the user selects a request; until then the first row of the table is selected.
    pub(crate) has_chosen_request: bool,
    pub(crate) sort: SortOrder,
    pub(crate) filter: RequestFilter,
    pub(crate) pins: BTreeSet<String>,
    pub(crate) follows_worst: bool,
    /// Second at which the view is frozen.
    pub(crate) paused_at_second: Option<u64>,
    /// Set for the playback of a recording.
    pub(crate) is_replay: bool,
    /// Set when watching runs of other tokengap processes.
    pub(crate) is_watching: bool,
    /// Whether all workers of a hop, or all lanes of a request, take the place of the hop's details or the request's stages.
    pub(crate) shows_cut_list: bool,
    /// Index into [`SECONDS_PER_COLUMN`].
    pub(crate) zoom_level: usize,
    /// Seconds between the end of the shown time series and the newest sample; `None` if the user has not scrolled.
    pub(crate) scrolled_back_s: Option<u64>,
    /// Index of the selected item on each tab. On [`Tab::Request`] it is the first shown chunk; [`Tab::Requests`] selects by rid.
    pub(crate) selected_indices: [usize; Tab::ALL.len()],
    /// Set once the user has searched the chunk list for a lost or merged chunk.
    pub(crate) has_sought_chunk: bool,
    /// Number of rows per page, updated by the view after every draw.
    pub(crate) page_rows: usize,
    /// Largest scroll offset of the help, updated by the view after every draw.
    pub(crate) help_end: usize,
    /// Finding that a seek of the playback has reached, once it is selected.
    pub(crate) selected_sought: Option<FindingKey>,
    pub(crate) options: ScreenOptions,
    /// Set after the first quit key while a recording is being written. The next one quits.
    pub(crate) is_quit_requested: bool,
    /// Message about the last action, shown until the next key.
    pub(crate) message: Option<String>,
}

impl Ui {
    /// Applies `action` to the user interface and returns the remaining work for the run loop.
    pub(crate) fn apply_action(&mut self, action: Action, model: &Model) -> Option<Effect> {
        self.message = None;
        // Any other key cancels the question whether to quit.
        let is_second_quit = self.is_quit_requested;
        self.is_quit_requested = false;
        // Any action but typing and moving closes a list of actions.
        if matches!(self.dialog, Dialog::Palette { .. } | Dialog::Export)
            && !matches!(
                action,
                Action::TypeCharacter(_)
                    | Action::EraseCharacter
                    | Action::EraseText
                    | Action::MoveSelection(_)
                    | Action::GoBack
            )
        {
            self.dialog = Dialog::None;
        }
        match action {
            Action::Quit if !is_second_quit && model.run.stage == "live" && model.writing.recording.is_some() => {
                self.is_quit_requested = true;
                self.show_message(
                    "a recording is in progress: press q again to stop and close it, any other key to continue",
                );
            }
            Action::Quit => return Some(Effect::Command(ScreenCommand::End)),
            Action::OpenTab(tab) if !tab.has_content(model) => self.show_message(match tab {
                Tab::Pods => "this screen shows one run; attach shows several if several engines run, and watch",
                _ => "this source does not observe threads; attach does",
            }),
            Action::OpenTab(tab) => {
                // Keeps the request under the cursor even if another one becomes the first row.
                self.has_chosen_request |= tab == Tab::Request && self.selected_rid.is_some();
                self.open_tab_chosen_by_user(tab, model);
            }
            Action::StepTab(offset) => self.open_tab_chosen_by_user(self.tab.neighbour_tab(offset, model), model),
            Action::MoveSelection(offset) => self.move_selection(offset, model),
            Action::MovePage(pages) => self.move_selection(pages * self.page_rows.max(2) as isize, model),
            Action::OpenSelection if self.tab == Tab::Pods => {
                self.open_tab(Tab::Overview);
                return Some(Effect::ShowRun(self.selected_index(Tab::Pods)));
            }
            Action::OpenSelection => {
                let from = self.tab;
                self.open_selection(model);
                self.note_visited_tab(from);
            }
            Action::GoBack => self.go_back(),
            Action::ShowHelp => {
                self.dialog = Dialog::Help(0);
                // The length of the help is known after it is drawn.
                self.help_end = usize::MAX;
            }
            Action::TypeFilter => {
                self.open_tab(Tab::Requests);
                self.dialog = Dialog::Filter(self.filter.text.clone());
            }
            Action::ListRequestsOfFinding => {
                let from = self.tab;
                self.list_requests_of_finding(model);
                self.note_visited_tab(from);
            }
            Action::StepSortColumn(offset) => self.sort.column = self.sort.column.neighbour(offset),
            Action::SortBy(column) if column == self.sort.column => self.sort.is_descending = !self.sort.is_descending,
            Action::SortBy(column) => self.sort = SortOrder { column, is_descending: true },
            Action::ResetSort => self.sort = SortOrder::default(),
            Action::ReverseSort => self.sort.is_descending = !self.sort.is_descending,
            Action::ToggleCutList => self.shows_cut_list = !self.shows_cut_list,
            Action::SeekHarmedChunk(direction) => self.select_next_harmed_chunk(direction, model),
            Action::FollowWorst => {
                self.follows_worst = !self.follows_worst;
                self.show_message(if self.follows_worst { "following the worst request" } else { "stopped following" });
            }
            Action::PinRequest => self.toggle_pin(),
            Action::Pause if self.is_replay => return Some(Effect::Command(ScreenCommand::Play(Play::Toggle))),
            Action::Pause => self.toggle_pause(model),
            Action::Command(command) => {
                if command == ScreenCommand::Play(Play::NextFinding) && model.is_at_end() {
                    self.show_message("no further finding before the end");
                }
                return Some(Effect::Command(command));
            }
            Action::TypeTime => self.dialog = Dialog::Time(String::new()),
            Action::ZoomTime(levels) => {
                self.zoom_level = self.zoom_level.saturating_add_signed(levels).min(SECONDS_PER_COLUMN.len() - 1);
            }
            Action::ScrollTime(steps) => self.scroll_time(steps, model),
            Action::ShowExportFormats => self.dialog = Dialog::Export,
            Action::ExportAs(format) => return Some(Effect::Export(format)),
            Action::OpenItem(tab, index) => self.open_item(tab, index),
            Action::GoToSecond(second) if self.is_replay => {
                return Some(Effect::Command(ScreenCommand::Play(Play::To(second * 1_000_000_000))));
            }
            Action::GoToSecond(second) => {
                // A live view would move away from the second.
                let newest = *self.paused_at_second.get_or_insert(model.curves.newest_second());
                self.scrolled_back_s = Some(newest.saturating_sub(second));
            }
            Action::ShowPalette => self.dialog = Dialog::Palette { words: String::new(), selected: 0 },
            Action::OnTab(tab, action) => {
                self.open_tab(tab);
                return self.apply_action(*action, model);
            }
            Action::ApplySavedFilter(index) => {
                if let Some(saved) = self.options.filters.get(index).cloned() {
                    self.open_tab(Tab::Requests);
                    self.apply_filter(saved.filter);
                }
            }
            Action::StepRun(offset) => {
                let runs = model.pods.len().max(1) as isize;
                return Some(Effect::ShowRun((model.shown_pod as isize + offset).rem_euclid(runs) as usize));
            }
            Action::CopyRid => match self.selected_rid.clone() {
                Some(rid) => return Some(Effect::CopyToClipboard(rid)),
                None => self.show_message("no request is selected: choose one in Requests (2)"),
            },
            Action::SelectRow(row) => self.select_row(row, model),
            Action::TypeCharacter(c) => self.edit_dialog_text(|text| {
                if text.chars().count() < MAX_TEXT_CHARS {
                    text.push(c);
                }
            }),
            Action::EraseCharacter => self.edit_dialog_text(|text| {
                text.pop();
            }),
            Action::EraseText => self.edit_dialog_text(String::clear),
            Action::AcceptText => return self.accept_typed_text(model),
        }
        None
    }

    /// Keeps the selection valid: the worst request when following, else the first row if none was chosen.
    pub(crate) fn update_selections(&mut self, model: &Model) {
        if self.follows_worst && self.paused_at_second.is_none() {
            self.selected_rid = model.table.worst_row().map(|row| row.rid.clone());
        } else if !self.has_chosen_request || self.selected_rid.is_none() {
            self.selected_rid = model.table.visible_row(0).map(|row| row.rid.clone());
        }
        self.select_sought_finding(model);
        for tab in [Tab::Findings, Tab::Hops, Tab::Pods, Tab::Cpu] {
            // A list may have become shorter.
            self.select_item(tab, self.selected_index(tab), model);
        }
    }

    /// Index of the selected item on a tab.
    pub(crate) fn selected_index(&self, tab: Tab) -> usize {
        self.selected_indices[tab as usize]
    }

    /// Selects an item of a tab, at most the last.
    fn select_item(&mut self, tab: Tab, index: usize, model: &Model) {
        self.selected_indices[tab as usize] = index.min(tab.item_count(model).saturating_sub(1));
    }

    /// Opens a tab with this item selected.
    fn open_item(&mut self, tab: Tab, index: usize) {
        self.selected_indices[tab as usize] = index;
        self.open_tab(tab);
    }

    /// Resets what belongs to the run that was shown before: selections, pause, scrolled time and pins.
    pub(crate) fn reset_for_other_run(&mut self) {
        self.selected_rid = None;
        self.has_chosen_request = false;
        self.paused_at_second = None;
        self.scrolled_back_s = None;
        self.pins.clear();
        // The list of pods is the same for every run.
        for tab in Tab::ALL.into_iter().filter(|tab| *tab != Tab::Pods) {
            self.selected_indices[tab as usize] = 0;
        }
    }

    /// Second at which the time series end.
    pub(crate) fn last_shown_second(&self, model: &Model) -> u64 {
        self.paused_at_second.unwrap_or(model.curves.newest_second()).saturating_sub(self.seconds_back(model))
    }

    /// Seconds between the end of the shown time series and the newest sample.
    fn seconds_back(&self, model: &Model) -> u64 {
        self.scrolled_back_s.unwrap_or_else(|| self.idle_seconds_left_out(model))
    }

    /// Idle seconds at the end of a run that is over. The curves leave them out until the user scrolls there; 0 if they are shown.
    pub(crate) fn idle_seconds_left_out(&self, model: &Model) -> u64 {
        /// A shorter idle time is not left out: even the narrowest screen shows it behind the last traffic.
        const MIN_IDLE_S: u64 = 20;
        /// Shown after the last traffic, so that its end is visible.
        const IDLE_SHOWN_S: u64 = 2;
        let has_chosen_time = self.scrolled_back_s.is_some() || self.paused_at_second.is_some();
        if has_chosen_time || !model.is_at_end() {
            return 0;
        }
        let idle_s = model.curves.idle_seconds_at_end();
        if idle_s < MIN_IDLE_S { 0 } else { idle_s - IDLE_SHOWN_S }
    }

    /// Shows `text` until the next key.
    pub(crate) fn show_message(&mut self, text: impl Into<String>) {
        self.message = Some(text.into());
    }

    /// Shows a tab that the user chose. Esc does not return from it. On the hops, selects the worst one if the first is selected.
    fn open_tab_chosen_by_user(&mut self, tab: Tab, model: &Model) {
        self.visited_tabs.clear();
        // Another index means that the user has selected a hop before.
        let is_first_hop_selected = self.selected_index(Tab::Hops) == 0;
        if tab == Tab::Hops && self.tab != Tab::Hops && is_first_hop_selected {
            self.selected_indices[Tab::Hops as usize] = index_of_worst_hop(model).unwrap_or(0);
        }
        self.open_tab(tab);
    }

    /// Notes the tab from which another one was opened, for Esc.
    fn note_visited_tab(&mut self, previous_tab: Tab) {
        if self.tab != previous_tab {
            self.visited_tabs.retain(|visited| *visited != previous_tab);
            self.visited_tabs.push(previous_tab);
        }
    }

    /// Shows a tab, and closes the dialog.
    fn open_tab(&mut self, tab: Tab) {
        self.tab = tab;
        // The dialog was about the tab before.
        self.dialog = Dialog::None;
    }

    /// Moves the selection of the list that is shown, or scrolls the help. The selection in the palette is limited when it is drawn.
    fn move_selection(&mut self, offset: isize, model: &Model) {
        if let Dialog::Help(line) = &mut self.dialog {
            *line = line.saturating_add_signed(offset).min(self.help_end);
        } else if let Dialog::Palette { selected: line, .. } = &mut self.dialog {
            *line = line.saturating_add_signed(offset);
        } else if self.tab == Tab::Requests {
            self.select_request_by_offset(offset, model);
        } else {
            self.select_item(self.tab, self.selected_index(self.tab).saturating_add_signed(offset), model);
        }
    }

    /// Selects the request `offset` rows below the selected one; the first of the table if the selected one is not shown.
    fn select_request_by_offset(&mut self, offset: isize, model: &Model) {
        // Otherwise the next refresh would select the worst one again.
        self.follows_worst = false;
        let position = self.selected_rid.as_ref().and_then(|rid| model.table.shown_position_of_rid(rid));
        let last = model.table.visible_count().saturating_sub(1);
        let new_position = match position {
            Some(position) => position.saturating_add_signed(offset).min(last),
            None => 0,
        };
        self.choose_request(model.table.visible_row(new_position).map(|row| row.rid.clone()));
    }

    /// Selects the next (positive direction) or previous chunk that was or may have been lost or merged, which is then the first one shown.
    fn select_next_harmed_chunk(&mut self, direction: isize, model: &Model) {
        let Some(detail) = &model.detail else { return };
        let mut harmed = detail.harmed_chunk_indices();
        let current = self.selected_index(Tab::Request);
        let found = if direction > 0 {
            // The first search includes the current line.
            let first_index = if self.has_sought_chunk { current + 1 } else { current };
            harmed.find(|&index| index >= first_index)
        } else {
            harmed.take_while(|&index| index < current).last()
        };
        self.has_sought_chunk = true;
        match found {
            Some(index) => self.selected_indices[Tab::Request as usize] = index,
            None => self.show_message("no known lost or merged chunk in that direction"),
        }
    }

    fn choose_request(&mut self, rid: Option<String>) {
        self.has_chosen_request = rid.is_some();
        self.selected_rid = rid;
    }

    /// Selects the row of the tab's list that was clicked.
    fn select_row(&mut self, row: usize, model: &Model) {
        if self.tab != Tab::Requests {
            self.select_item(self.tab, row, model);
        } else if let Some(request) = model.table.visible_row(row) {
            self.follows_worst = false;
            self.choose_request(Some(request.rid.clone()));
        }
    }

    /// Opens the details of what is selected on the tab.
    fn open_selection(&mut self, model: &Model) {
        match self.tab {
            Tab::Overview => self.open_tab(Tab::Findings),
            Tab::Requests => self.open_request(self.selected_rid.clone()),
            Tab::Findings => self.open_finding(model),
            Tab::Hops => self.open_hop(model),
            Tab::Request | Tab::Cpu | Tab::Pods => {}
        }
    }

    /// Shows the chunks of a request from the first one on.
    fn open_request(&mut self, rid: Option<String>) {
        self.has_sought_chunk = false;
        self.choose_request(rid);
        self.open_item(Tab::Request, 0);
    }

    /// Opens the finding about the hop, or the requests sorted by gap if there is none.
    fn open_hop(&mut self, model: &Model) {
        let Some(hop) = model.hops.get(self.selected_index(Tab::Hops)) else { return };
        if let Some(index) = model.findings.iter().position(|finding| finding.verdict.hop == hop.name) {
            self.open_item(Tab::Findings, index);
        } else {
            self.sort = SortOrder { column: RequestColumn::with_heading("gap"), is_descending: true };
            self.open_tab(Tab::Requests);
            self.show_message(format!("no finding about {}: showing its requests by gap", hop.name));
        }
    }

    /// Does the first of these that applies: closes the dialog, clears the filter, returns to the tab from which details were opened, or
    /// scrolls to the newest second.
    fn go_back(&mut self) {
        if self.dialog != Dialog::None {
            self.dialog = Dialog::None;
        } else if self.tab == Tab::Requests && !self.filter.is_empty() {
            self.filter = RequestFilter::default();
            self.show_message("filter cleared");
        } else if let Some(tab) = self.visited_tabs.pop() {
            self.open_tab(tab);
        } else if self.tab == Tab::Request {
            self.open_tab(Tab::Requests);
        } else {
            self.scrolled_back_s = None;
        }
    }

    /// Pins the selected request to the top of the table, or unpins it. Does nothing if none is selected.
    fn toggle_pin(&mut self) {
        let Some(rid) = self.selected_rid.clone() else { return };
        // The row stays selected, although it moves to the top.
        self.has_chosen_request = true;
        if self.pins.remove(&rid) {
            self.show_message("unpinned");
        } else if self.pins.len() < MAX_PINS {
            self.pins.insert(rid);
            self.show_message("pinned to the top");
        } else {
            self.show_message(format!("{MAX_PINS} rows are pinned: unpin one first"));
        }
    }

    /// Freezes the view at the newest second, or lets it go on.
    fn toggle_pause(&mut self, model: &Model) {
        if self.paused_at_second.is_some() {
            self.paused_at_second = None;
            self.scrolled_back_s = None;
        } else {
            self.paused_at_second = Some(model.curves.newest_second());
        }
    }

    /// Scrolls to later (positive steps) or earlier times. `seconds_back` is the distance of the last shown second from the newest one.
    fn scroll_time(&mut self, steps: isize, model: &Model) {
        let distance_s = steps.unsigned_abs() as u64 * SCROLL_COLUMNS * SECONDS_PER_COLUMN[self.zoom_level];
        let old_seconds_back = self.seconds_back(model);
        let new_seconds_back = if steps < 0 {
            old_seconds_back.saturating_add(distance_s)
        } else {
            old_seconds_back.saturating_sub(distance_s)
        };
        // At the newest second, the view follows a run that goes on.
        let follows_run = new_seconds_back == 0 && !model.is_at_end();
        let oldest_seconds_back = model.curves.seconds_before_newest();
        self.scrolled_back_s = if follows_run { None } else { Some(new_seconds_back.min(oldest_seconds_back)) };
    }

    /// Changes the text of the dialog, if the dialog reads one.
    fn edit_dialog_text(&mut self, change: impl FnOnce(&mut String)) {
        match &mut self.dialog {
            Dialog::Filter(text) | Dialog::Time(text) => change(text),
            Dialog::Palette { words, selected } => {
                change(words);
                // Other words have another list.
                *selected = 0;
            }
            Dialog::None | Dialog::Help(_) | Dialog::Export => {}
        }
    }

    /// Parses a filter typed for this run, or finds the saved one that it names.
    pub(crate) fn parse_filter(&self, text: &str, model: &Model) -> Result<RequestFilter, FilterSyntaxError> {
        if let Some(name) = text.trim().strip_prefix('@') {
            return self.find_saved_filter(name);
        }
        let mut filter = RequestFilter::parse(text)?;
        filter.resolve_ambiguous_times(model.run_span());
        filter.refresh_named_findings(&model.findings);
        // A live run goes on, so a time that it does not cover yet may come.
        if let Some(recording) = &model.position {
            filter.check_times_are_covered(recording)?;
        }
        Ok(filter)
    }

    /// The saved filter with this name. The error names the most similar one.
    fn find_saved_filter(&self, name: &str) -> Result<RequestFilter, FilterSyntaxError> {
        if let Some(saved) = self.options.filters.iter().find(|saved| saved.name == name) {
            return Ok(saved.filter.clone());
        }
        let names: Vec<&str> = self.options.filters.iter().map(|saved| saved.name.as_str()).collect();
        let hint = match nearest_name(name, &names) {
            Some(nearest) => format!("did you mean @{nearest}?"),
            None => String::from("no filter is saved; --filter NAME=FILTER saves one"),
        };
        Err(FilterSyntaxError { position: 0, message: format!("no saved filter @{name}: {hint}") })
    }

    /// Uses a filter, and closes the dialog. The next refresh selects the first request that matches.
    fn apply_filter(&mut self, filter: RequestFilter) {
        self.filter = filter;
        // The selected request may not match.
        self.choose_request(None);
        self.dialog = Dialog::None;
    }

    /// Applies the typed filter or time, and returns the remaining work for the run loop, if any. An invalid text stays in its dialog,
    /// which shows the error.
    fn accept_typed_text(&mut self, model: &Model) -> Option<Effect> {
        match &self.dialog {
            Dialog::Filter(text) => {
                let filter = self.parse_filter(text, model).ok()?;
                self.apply_filter(filter);
            }
            Dialog::Time(text) => {
                let target_ns = model.position.as_ref()?.parse_target_ns(text).ok()?;
                self.dialog = Dialog::None;
                return Some(Effect::Command(ScreenCommand::Play(Play::To(target_ns))));
            }
            Dialog::None | Dialog::Help(_) | Dialog::Palette { .. } | Dialog::Export => {}
        }
        None
    }
}

/// Index of the first of the hops with the worst health; `None` if none needs attention.
fn index_of_worst_hop(model: &Model) -> Option<usize> {
    let worst = model.hops.iter().map(|hop| hop.health).max()?;
    if worst < Health::Warning {
        return None;
    }
    model.hops.iter().position(|hop| hop.health == worst)
}
