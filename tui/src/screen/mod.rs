//! Live screen: an observer that reads keys, refreshes the model and draws; and the picker, which runs before any source.
//!
//! It never delays the source. Keys are read every 10 ms. The model is refreshed at most 5 times a second, and less often if that is
//! expensive or nothing is new. A separate thread writes to the terminal; a slow terminal skips frames.

mod changes;
mod export;
mod terminal;
mod terminal_writer;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::Event as Input;
use session::own;
use session::{Observer, Run, RunStage, ScreenCommand};
use trace::Event;
use trace::stats::Distribution;

use crate::keys;
use crate::log::LogHold;
use crate::state::Model;
use crate::state::action::{Action, Effect, Tab};
use crate::state::model::RunValues;
use crate::state::picker::{SourceOffer, SourcePicker};
use crate::state::pinned::PinnedHistories;
use crate::state::pods::{PairLine, PairRequest, PodLine, ShownRequest};
use crate::state::ui::{ScreenOptions, Ui};
use crate::theme::Theme;
use crate::view::{self, ClickAreas};

use changes::ChangeTracker;
use export::ScreenExporter;
use terminal::Terminal;

/// Maximum wait of the picker for a key before it updates the sources.
const PICKER_WAIT: Duration = Duration::from_millis(100);
/// Interval of key reads.
const KEY_INTERVAL: Duration = Duration::from_millis(10);
/// Refresh interval without key presses.
const REFRESH_INTERVAL: Duration = Duration::from_millis(200);
/// The next refresh of rows begins after this many times the duration of the last one, which so takes at most 5 % of the time.
const ROW_PAUSE_FACTOR: u32 = 20;
/// Interval at which histories of important requests are copied out of the ring.
const HISTORY_COPY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of inputs per iteration of the run loop, so that a held key does not delay the source.
const MAX_INPUTS_PER_TURN: usize = 16;
/// Lines by which a turn of the mouse wheel moves the selection, on the screen and in the picker.
const WHEEL_STEP: isize = 3;
const PICKER_WHEEL_STEP: isize = 1;

/// The screen as an observer of one run, or of several.
pub struct Screen {
    // Drop order matters: the terminal must be restored before held log lines are written to it.
    terminal: Terminal,
    _log_hold: LogHold,
    theme: Theme,
    ui: Ui,
    click_areas: ClickAreas,
    cpu_meter: CpuMeter,
    next_key_read: Instant,
    next_refresh: Instant,
    next_row_refresh: Instant,
    next_history_copy: Instant,
    changes: ChangeTracker,
    /// Set if something changed since the last draw.
    needs_draw: bool,
    /// Pending requests to the run, oldest first.
    commands: VecDeque<ScreenCommand>,
    /// Number of the last message shown.
    last_notice: u64,
    exporter: ScreenExporter,
    /// Time to refresh and draw a frame.
    draw_times: Distribution,
    /// State of each run, and the index of the shown one.
    runs: Vec<RunState>,
    shown_run: usize,
    /// Lines of the run list; empty for a single run.
    pods: Vec<PodLine>,
    pairs: Vec<PairLine>,
    pair_request: Option<PairRequest>,
    run_list_note: Option<String>,
}

#[derive(Default)]
struct RunState {
    model: Model,
    histories: PinnedHistories,
}

/// CPU use of this process over the last second.
struct CpuMeter {
    since: Instant,
    cpu_ns: u64,
    share: Option<f64>,
}

impl Screen {
    /// Takes over the terminal, and holds log lines back until the screen is dropped. Fails without a terminal.
    pub fn open(options: &ScreenOptions) -> anyhow::Result<Self> {
        let now = Instant::now();
        // First, so that no log line is written into the screen.
        let log_hold = LogHold::begin();
        let terminal = Terminal::open().context("cannot take over the terminal; --headless runs without one")?;
        Ok(Self {
            terminal,
            _log_hold: log_hold,
            theme: Theme::detect(),
            ui: Ui { options: options.clone(), ..Ui::default() },
            click_areas: ClickAreas::default(),
            cpu_meter: CpuMeter { since: now, cpu_ns: own::cpu_ns(), share: None },
            // The first turn does all of these at once.
            next_key_read: now,
            next_refresh: now,
            next_row_refresh: now,
            next_history_copy: now,
            changes: ChangeTracker::default(),
            needs_draw: true,
            commands: VecDeque::new(),
            last_notice: 0,
            exporter: ScreenExporter::default(),
            draw_times: Distribution::default(),
            // A single run. `pods` and `pairs` stay empty unless several runs are watched.
            runs: vec![RunState::default()],
            shown_run: 0,
            pods: Vec::new(),
            pairs: Vec::new(),
            pair_request: None,
            run_list_note: None,
        })
    }

    /// Observer of a single run.
    pub fn into_observer(self) -> RunView {
        RunView { screen: Rc::new(RefCell::new(self)), run_index: 0 }
    }

    /// Prepares for this number of watched runs and shows the first.
    pub fn watch_runs(&mut self, count: usize) {
        self.runs.resize_with(count, RunState::default);
        self.pods.resize_with(count, PodLine::default);
    }

    /// Adds a run to those shown.
    pub fn add_run(&mut self) {
        self.watch_runs(self.runs.len() + 1);
    }

    /// Whether several runs are shown, each with a line in a list.
    pub fn has_run_list(&self) -> bool {
        !self.pods.is_empty()
    }

    /// Opens the list of runs.
    pub fn open_run_list(&mut self) {
        self.ui.tab = Tab::Pods;
    }

    /// Replaces the line of a run, here called a pod, in the run list. Does nothing if the list has no run with this index.
    pub fn set_pod_line(&mut self, run_index: usize, line: PodLine) {
        if let Some(listed_line) = self.pods.get_mut(run_index) {
            *listed_line = line;
        }
    }

    /// Whether the screen shows pairs of runs: those in the list of runs, or the pair of the shown request.
    pub fn shows_pairs(&self) -> bool {
        self.ui.tab == Tab::Pods || self.shown_request().is_some()
    }

    /// The request on the screen, for the lookup of its pair: a prefill and a decode server that both process it. `None` unless the tab of
    /// a request is open and one is selected, or if only a single run is watched, because that has no pairs.
    pub fn shown_request(&self) -> Option<ShownRequest> {
        let has_several_runs = self.runs.len() > 1;
        if self.ui.tab != Tab::Request || !has_several_runs {
            return None;
        }
        Some(ShownRequest { run_index: self.shown_run, rid: self.ui.selected_rid.clone()? })
    }

    /// Sets the pairs among the runs.
    pub fn set_pairs(&mut self, pairs: Vec<PairLine>) {
        self.pairs = pairs;
    }

    /// Sets what is known of the shown request on both servers of its pair, prefill and decode; `None` if it belongs to no pair. Draws the
    /// screen again if that is new.
    pub fn set_pair_request(&mut self, request: Option<PairRequest>) {
        if self.pair_request != request {
            // The shown run may have no new event that would draw it again.
            self.needs_draw = true;
        }
        self.pair_request = request;
    }

    /// Sets the remark below the run list.
    pub fn set_run_list_note(&mut self, note: Option<String>) {
        self.run_list_note = note;
    }

    /// Shows another one of the watched runs. Does nothing if it is shown already or does not exist.
    fn show_run(&mut self, run_index: usize) {
        if run_index == self.shown_run || run_index >= self.runs.len() {
            return;
        }
        self.shown_run = run_index;
        // Requests and times of the run before mean nothing in this one.
        self.ui.reset_for_other_run();
        self.force_refresh();
        self.needs_draw = true;
    }

    /// Forces a refresh in the next iteration.
    fn force_refresh(&mut self) {
        self.next_refresh = Instant::now();
        self.next_row_refresh = self.next_refresh;
        self.changes.force_refresh();
    }

    /// Reads the keys and clicks that wait, at most [`MAX_INPUTS_PER_TURN`], and applies their actions. Fails if the terminal was closed.
    fn apply_pending_inputs(&mut self, run: &Run<'_>) -> anyhow::Result<()> {
        for _ in 0..MAX_INPUTS_PER_TURN {
            let Some(input) = terminal::read_pending_input()? else { break };
            self.needs_draw |= matches!(input, Input::Resize(..));
            let action = terminal::action_of_input(&input, &self.click_areas, WHEEL_STEP, |key| {
                keys::action_of_key(key, &self.ui)
            });
            if let Some(action) = action {
                self.apply_action(action, run);
            }
        }
        Ok(())
    }

    /// Applies an action of the user, and does the work that it requires.
    fn apply_action(&mut self, action: Action, run: &Run<'_>) {
        self.needs_draw = true;
        let tab_before = self.ui.tab;
        let was_paused = self.ui.paused_at_second.is_some();
        // The rest of the work, which the user interface cannot do itself.
        let effect = self.ui.apply_action(action, &self.runs[self.shown_run].model);
        let is_paused = self.ui.paused_at_second.is_some();
        if is_paused && !was_paused {
            // Pausing freezes view and table at the same instant.
            let needs_rows = true;
            self.refresh_model(run, needs_rows);
        } else if !is_paused && (was_paused || tab_before != self.ui.tab) {
            // The values for the view that now goes on, or for the new tab, may be old.
            self.force_refresh();
        }
        if let Some(effect) = effect {
            self.perform_effect(effect, run);
        }
    }

    /// Does the work that an action requires outside of the user interface, or queues it for the run loop.
    fn perform_effect(&mut self, effect: Effect, run: &Run<'_>) {
        match effect {
            Effect::Command(command) => self.commands.push_back(command),
            Effect::ShowRun(run_index) => self.show_run(run_index),
            Effect::CopyToClipboard(rid) => self.copy_rid_to_clipboard(&rid),
            Effect::Export(format) => {
                let message = self.exporter.export_and_describe_result(format, run);
                self.ui.show_message(message);
            }
        }
    }

    /// Sends the rid to the clipboard of the user's terminal, and says so. No terminal confirms it.
    fn copy_rid_to_clipboard(&mut self, rid: &str) {
        self.terminal.write_sequence(&terminal::clipboard_sequence(rid));
        // By default, tmux drops the sequence.
        let hint_on_tmux = if std::env::var_os("TMUX").is_some() { "; tmux needs set-clipboard on" } else { "" };
        self.ui.show_message(format!("rid sent to the terminal (OSC 52), unconfirmed{hint_on_tmux}"));
    }

    /// Copies the histories of requests of interest, those of the findings and of the user, because the ledger soon overwrites the chunks
    /// of a finished request.
    fn copy_histories_of_interest(&mut self, run: &Run<'_>) {
        let RunState { model, histories } = &mut self.runs[self.shown_run];
        let rids_of_findings = model.findings.iter().map(|finding| finding.verdict.rid.as_str());
        let rids_of_user = self.ui.selected_rid.iter().chain(&self.ui.pins).map(String::as_str);
        // The rid is empty for a finding that is about no single request.
        let rids: Vec<&str> = rids_of_findings.filter(|rid| !rid.is_empty()).chain(rids_of_user).collect();
        histories.copy_histories_and_drop_others(run.analysis.ledger(), &rids);
    }

    /// Refreshes the parts of the model that are due. While the view is paused, refreshes only the CPU use and the copied histories.
    fn refresh_due_parts(&mut self, run: &Run<'_>, now: Instant) {
        self.cpu_meter.update_share_if_due(now);
        self.needs_draw = true;
        // Also while paused, since the ledger goes on to overwrite chunks.
        if now >= self.next_history_copy {
            self.next_history_copy = now + HISTORY_COPY_INTERVAL;
            self.copy_histories_of_interest(run);
        }
        if self.ui.paused_at_second.is_some() {
            return;
        }
        let has_rows = self.runs[self.shown_run].model.table.row_count > 0;
        // Rows are read if they are shown, if the worst one is followed, and as long as there are none.
        let needs_rows = self.ui.tab == Tab::Requests || self.ui.follows_worst || !has_rows;
        // The whole frame must show one instant: if a large table is not due, neither is the rest.
        if needs_rows && now < self.next_row_refresh {
            return;
        }
        self.refresh_model(run, needs_rows);
        if needs_rows {
            // The pause grows with the refresh, so that large tables take no larger part of the time.
            let refresh_time = now.elapsed();
            self.next_row_refresh = now + refresh_time * ROW_PAUSE_FACTOR;
        }
    }

    /// Reads all values that the screen shows from the analysis, and the rows of the table if `needs_rows`.
    fn refresh_model(&mut self, run: &Run<'_>, needs_rows: bool) {
        let values = RunValues {
            source: run.about.kind().to_owned(),
            stage: run_stage_word(run),
            cpu_share: self.cpu_meter.share,
            rss_bytes: own::rss_bytes(),
            degraded: degradations_and_log_line(run),
            ..RunValues::default()
        };
        let model = &mut self.runs[self.shown_run].model;
        model.wall_start_ns = wall_ns_at_start(run);
        model.refresh(run.analysis, values);
        if needs_rows {
            // A filter searches all requests that the ledger holds.
            let max_rows = if self.ui.filter.is_empty() { self.ui.options.finished_rows } else { usize::MAX };
            model.refresh_rows(run.analysis, max_rows, &self.ui.pins);
            // More frames may have waited since the last search.
            let are_waits_outdated = true;
            self.ui.filter.refresh_found_waits(run.analysis.ledger(), model.table.clock, are_waits_outdated);
        }
    }

    /// Applies filter, sort order and selection, then draws. Skipped while the terminal still writes the last frame.
    fn draw_frame(&mut self, run: &Run<'_>, is_refreshed: bool) -> anyhow::Result<()> {
        if !self.terminal.is_ready() {
            return Ok(());
        }
        let begun = Instant::now();
        let RunState { model, histories } = &mut self.runs[self.shown_run];
        // Only searches for a filter that was typed just now, also one for a paused view.
        let are_waits_outdated = false;
        self.ui.filter.refresh_found_waits(run.analysis.ledger(), model.table.clock, are_waits_outdated);
        self.ui.filter.refresh_named_findings(&model.findings);
        model.table.arrange_shown_rows(&self.ui.filter, self.ui.sort, &self.ui.pins);
        model.position = run.about.position();
        self.ui.update_selections(model);
        if self.ui.tab == Tab::Request {
            let shown_rid = model.detail.as_ref().map(|detail| detail.rid.as_str());
            // A paused view keeps the detail of its instant.
            let is_outdated = is_refreshed && self.ui.paused_at_second.is_none();
            if let Some(rid) = &self.ui.selected_rid
                && (is_outdated || shown_rid != Some(rid))
            {
                model.refresh_request_detail(run.analysis, histories, rid);
            }
        }
        if self.ui.tab == Tab::Findings && self.ui.paused_at_second.is_none() {
            model.refresh_receiver_changes(run.analysis, histories, self.ui.selected_index(Tab::Findings));
        }
        if run.stage == RunStage::Ending {
            let pending = run.about.pending();
            let pending = pending.as_deref().unwrap_or("waiting for frames in flight");
            self.ui.show_message(format!("stopping: {pending}; press q again to quit immediately"));
        }
        model.writing = (run.writing)();
        model.set_runs_with_pair_findings(&self.pods, &self.pairs, self.shown_run);
        model.set_pair_request_if_shown(self.pair_request.as_ref(), self.shown_run);
        model.run_list_note.clone_from(&self.run_list_note);
        let ui = &self.ui;
        let theme = self.theme;
        let mut click_areas = ClickAreas::default();
        self.terminal
            .draw(|frame| click_areas = view::draw_screen(model, ui, theme, frame))
            .context("cannot draw on the terminal")?;
        self.draw_times.record(begun.elapsed().as_nanos() as u64);
        self.ui.page_rows = click_areas.page_rows;
        self.ui.help_end = click_areas.last_scroll;
        self.click_areas = click_areas;
        self.needs_draw = false;
        Ok(())
    }

    /// Shows the newest notice of the run and the result of an export, each once.
    fn show_new_messages(&mut self, run: &Run<'_>) {
        if run.notice.number != self.last_notice {
            self.last_notice = run.notice.number;
            self.ui.show_message(&*run.notice.text);
            self.needs_draw = true;
        }
        if let Some(message) = self.exporter.take_trace_result() {
            self.ui.show_message(message);
            self.needs_draw = true;
        }
    }

    /// Reads keys, refreshes and draws what is due, and returns the oldest command of the user; [`ScreenCommand::Stay`] without one.
    fn update_and_take_command(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        if let Some(command) = self.commands.pop_front() {
            return Ok(command);
        }
        let now = Instant::now();
        // A turn may be called thousands of times a second.
        if now < self.next_key_read {
            return Ok(ScreenCommand::Stay);
        }
        self.next_key_read = now + KEY_INTERVAL;
        self.ui.is_replay = run.about.position().is_some();
        self.ui.is_watching = !self.pods.is_empty();
        self.show_new_messages(run);
        self.apply_pending_inputs(run)?;
        let is_refreshed = self.refresh_if_due(run);
        if self.needs_draw {
            self.draw_frame(run, is_refreshed)?;
        }
        Ok(self.commands.pop_front().unwrap_or(ScreenCommand::Stay))
    }

    /// Refreshes the model if that is due and something new is to be shown. Returns whether it did.
    fn refresh_if_due(&mut self, run: &Run<'_>) -> bool {
        // Read here, because a key may have made a refresh due just now.
        let now = Instant::now();
        if now < self.next_refresh {
            return false;
        }
        self.next_refresh = now + REFRESH_INTERVAL;
        if !self.changes.note_refresh_if_due(run, now) {
            return false;
        }
        self.refresh_due_parts(run, now);
        true
    }

    /// Sleeps for at most `time`, until a key is pressed. Does not sleep if a command waits for the run loop.
    fn sleep_until_input(&mut self, time: Duration) {
        // A frame skipped because the terminal was busy is drawn soon.
        let time = if self.needs_draw { time.min(session::SHORT_SLEEP) } else { time };
        // A command that waits for its turn is not kept waiting.
        if !self.commands.is_empty() {
            return;
        }
        let has_input = terminal::wait_for_input(time);
        if has_input {
            // It is read in the next turn, without the usual interval.
            self.next_key_read = Instant::now();
        }
    }
}

/// Observer of one run on a screen, which several runs can share.
pub struct RunView {
    /// The screen.
    pub screen: Rc<RefCell<Screen>>,
    /// Index of the run in the screen's list.
    pub run_index: usize,
}

impl Observer for RunView {
    fn observe_event(&mut self, event: &Event<'_>) {
        let mut screen = self.screen.borrow_mut();
        screen.changes.count_event_unless_sample(event);
    }

    /// Forgets what the screen knows of the run, which begins again.
    fn observe_restart(&mut self) {
        let mut screen = self.screen.borrow_mut();
        screen.runs[self.run_index] = RunState::default();
        if self.run_index == screen.shown_run {
            // The curves begin again, so there is nothing to scroll back to.
            screen.ui.scrolled_back_s = None;
            screen.force_refresh();
        }
    }

    fn show_run(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        let mut screen = self.screen.borrow_mut();
        if screen.shown_run == self.run_index { screen.update_and_take_command(run) } else { Ok(ScreenCommand::Stay) }
    }

    fn sleep(&mut self, time: Duration) {
        self.screen.borrow_mut().sleep_until_input(time);
    }
}

impl Drop for Screen {
    /// Logs how long the frames of the screen took.
    fn drop(&mut self) {
        let frames = self.draw_times.count();
        let p50_us = self.draw_times.quantile(0.5).unwrap_or(0) / 1_000;
        let p99_us = self.draw_times.quantile(0.99).unwrap_or(0) / 1_000;
        let max_us = self.draw_times.max().unwrap_or(0) / 1_000;
        tracing::info!("screen: {frames} frames, draw time p50 {p50_us} us, p99 {p99_us} us, max {max_us} us");
    }
}

impl CpuMeter {
    /// Measures the CPU use since the last measurement, if that was at least a second ago.
    fn update_share_if_due(&mut self, now: Instant) {
        let elapsed = now - self.since;
        if elapsed >= Duration::from_secs(1) {
            let cpu_ns = own::cpu_ns();
            self.share = Some((cpu_ns - self.cpu_ns) as f64 / elapsed.as_nanos() as f64);
            self.since = now;
            self.cpu_ns = cpu_ns;
        }
    }
}

/// Word for the progress of the run. A recording can be played again after its end.
fn run_stage_word(run: &Run<'_>) -> &'static str {
    let is_replay = run.about.position().is_some();
    match run.stage {
        RunStage::Ending => "ending",
        RunStage::Running | RunStage::Ended if is_replay => "replay",
        RunStage::Running => "live",
        RunStage::Ended => "ended",
    }
}

/// Wall-clock time at which the run started; `None` before its first event, and without a wall clock.
fn wall_ns_at_start(run: &Run<'_>) -> Option<u64> {
    let started = run.analysis.ledger().started()?;
    Some(run.about.wall()?.wall_ns_at(started))
}

/// Degradations of the run, and the newest line of tokengap's log, which the screen hides.
fn degradations_and_log_line(run: &Run<'_>) -> Vec<String> {
    let mut all = (run.degraded)();
    all.extend(LogHold::describe_newest_line());
    all
}

/// Result of a search for sources.
pub struct FoundSources {
    /// All sources.
    pub offers: Vec<SourceOffer>,
    /// Places that could not be searched.
    pub blind: Vec<String>,
}

/// Shows `offers`, then those that arrive through `found_sources`, until the user chooses or quits. Returns the words of the chosen
/// command, or `None` if the user quits. Restores the terminal afterwards. Fails without a terminal.
pub fn pick_source_command(
    offers: Vec<SourceOffer>,
    found_sources: &Receiver<FoundSources>,
) -> anyhow::Result<Option<Vec<String>>> {
    let mut picker = SourcePicker::default();
    picker.replace_offers(offers);
    // Holds log lines back until this function returns.
    let _log_hold = LogHold::begin();
    let mut terminal =
        Terminal::open().context("cannot take over the terminal; tokengap --help lists what can be run")?;
    let theme = Theme::detect();
    loop {
        update_offers(&mut picker, found_sources);
        let mut click_areas = ClickAreas::default();
        if terminal.is_ready() {
            terminal
                .draw(|frame| click_areas = view::picker::draw_picker(&picker, theme, frame))
                .context("cannot draw on the terminal")?;
            picker.page_rows = click_areas.page_rows;
        }
        terminal::wait_for_input(PICKER_WAIT);
        let Some(input) = terminal::read_pending_input()? else { continue };
        let action = terminal::action_of_input(&input, &click_areas, PICKER_WHEEL_STEP, keys::action_in_picker);
        let Some(action) = action else { continue };
        if let ControlFlow::Break(chosen) = picker.apply_action(action) {
            return Ok(chosen);
        }
    }
}

/// Puts the sources that the searches have found since the last call into the picker. Does nothing if there are none.
fn update_offers(picker: &mut SourcePicker, found_sources: &Receiver<FoundSources>) {
    // Each search finds all sources, so only the latest one counts.
    let Some(latest) = found_sources.try_iter().last() else { return };
    picker.has_searched = true;
    // The places that could not be searched, which the screen names.
    picker.blind = latest.blind;
    picker.replace_offers(latest.offers);
}
