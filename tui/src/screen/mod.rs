//! Live screen: an observer that reads keys, refreshes the model and draws; and the picker, which runs before any source.
//!
//! It never delays the source. Keys are read every 10 ms. The model is refreshed at most 5 times a second, and less often if that is
//! expensive or nothing is new. A separate thread writes to the terminal; a slow terminal skips frames.

mod changes;
mod export;
mod outlet;
mod terminal;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::crossterm::event::Event as Input;
use session::own;
use session::{Observer, Run, ScreenCommand, Stage};
use trace::stats::Distribution;
use trace::{Event, MonoNs};

use crate::keys;
use crate::log::LogHold;
use crate::state::Model;
use crate::state::action::{Action, Effect, Tab};
use crate::state::model::RunValues;
use crate::state::pick::{Offer, Pick};
use crate::state::pinned::PinnedHistories;
use crate::state::pods::PodLine;
use crate::state::ui::{Options, Ui};
use crate::theme::Theme;
use crate::view::{self, Hits};

use changes::ChangeTracker;
use export::Exports;
use terminal::Terminal;

/// Maximum wait of the picker for a key before it updates the sources.
const WAIT: Duration = Duration::from_millis(100);
/// Interval of key reads.
const KEYS: Duration = Duration::from_millis(10);
/// Refresh interval without key presses.
const REFRESH: Duration = Duration::from_millis(200);
/// Refreshing rows may take at most one part in this many of the time.
const ROWS_SHARE: u32 = 20;
/// Interval at which stories of important requests are copied out of the ring.
const KEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of inputs per iteration of the run loop, so that a held key does not delay the source.
const INPUTS_A_TURN: usize = 16;

/// The screen as an observer of one run, or of several.
pub struct Screen {
    // Drop order matters: the terminal must be restored before held log lines are written to it.
    terminal: Terminal,
    _log_hold: LogHold,
    theme: Theme,
    ui: Ui,
    hits: Hits,
    cost: Cost,
    next_keys: Instant,
    next_refresh: Instant,
    next_rows: Instant,
    next_keep: Instant,
    changes: ChangeTracker,
    /// Set if something changed since the last draw.
    stale: bool,
    /// Pending requests to the run, oldest first.
    commands: VecDeque<ScreenCommand>,
    /// Number of the last message shown.
    notice: u64,
    exports: Exports,
    /// Time to refresh and draw a frame.
    draws: Distribution,
    /// State of each run, and the index of the shown one.
    views: Vec<View>,
    shown: usize,
    /// Lines of the run list; empty for a single run.
    pods: Vec<PodLine>,
}

#[derive(Default)]
struct View {
    model: Model,
    pinned: PinnedHistories,
}

/// CPU use of this process over the last second.
struct Cost {
    since: Instant,
    cpu_ns: u64,
    share: Option<f64>,
}

impl Screen {
    /// Takes over the terminal.
    pub fn open(options: &Options) -> anyhow::Result<Self> {
        let now = Instant::now();
        let log_hold = LogHold::begin();
        let terminal = Terminal::open().context("cannot take over the terminal; --headless runs without one")?;
        Ok(Self {
            terminal,
            _log_hold: log_hold,
            theme: Theme::detect(),
            ui: Ui { options: options.clone(), ..Ui::default() },
            hits: Hits::default(),
            cost: Cost { since: now, cpu_ns: own::cpu_ns(), share: None },
            next_keys: now,
            next_refresh: now,
            next_rows: now,
            next_keep: now,
            changes: ChangeTracker::default(),
            stale: true,
            commands: VecDeque::new(),
            notice: 0,
            exports: Exports::default(),
            draws: Distribution::default(),
            views: vec![View::default()],
            shown: 0,
            pods: Vec::new(),
        })
    }

    /// Observer of a single run.
    pub fn observer(self) -> RunView {
        RunView(Rc::new(RefCell::new(self)), 0)
    }

    /// Prepares for `runs` watched runs and shows the first.
    pub fn watch(&mut self, runs: usize) {
        self.views.resize_with(runs, View::default);
        self.pods = vec![PodLine::default(); runs];
    }

    /// Sets a run's line in the run list.
    pub fn set_pod(&mut self, run: usize, line: PodLine) {
        if let Some(pod) = self.pods.get_mut(run) {
            *pod = line;
        }
    }

    fn switch_to(&mut self, run: usize) {
        if run == self.shown || run >= self.views.len() {
            return;
        }
        self.shown = run;
        self.ui.other_run();
        self.refresh_now();
        self.stale = true;
    }

    /// Forces a refresh in the next iteration.
    fn refresh_now(&mut self) {
        (self.next_refresh, self.next_rows) = (Instant::now(), Instant::now());
        self.changes.reset();
    }

    fn read_keys(&mut self, run: &Run<'_>) -> anyhow::Result<()> {
        for _ in 0..INPUTS_A_TURN {
            let Some(input) = terminal::read(Duration::ZERO)? else { break };
            self.stale |= matches!(input, Input::Resize(..));
            if let Some(action) = terminal::action(&input, &self.hits, 3, |key| keys::action(key, &self.ui)) {
                self.act(action, run);
            }
        }
        Ok(())
    }

    fn act(&mut self, action: Action, run: &Run<'_>) {
        self.stale = true;
        let before = (self.ui.tab, self.ui.paused.is_some());
        let effect = self.ui.apply(action, &self.views[self.shown].model);
        match (before.1, self.ui.paused.is_some()) {
            // Pausing freezes view and table at the same instant.
            (false, true) => self.read(run, true),
            (_, false) if before.0 != self.ui.tab || before.1 => self.refresh_now(),
            _ => {}
        }
        match effect {
            None => {}
            Some(Effect::Command(command)) => self.commands.push_back(command),
            Some(Effect::Run(run)) => self.switch_to(run),
            Some(Effect::Copy(rid)) => {
                self.terminal.write_sequence(&terminal::copy(&rid));
                self.ui.show_message(format!("copied to the terminal's clipboard: {rid}"));
            }
            Some(Effect::Export(format)) => {
                let message = self.exports.begin(format, run);
                self.ui.show_message(message);
            }
        }
    }

    /// Refreshes the parts of the model that are due and have changed.
    fn refresh(&mut self, run: &Run<'_>, now: Instant) {
        self.cost.update(now);
        self.stale = true;
        if now >= self.next_keep {
            self.next_keep = now + KEEP_INTERVAL;
            let view = &mut self.views[self.shown];
            let found = view.model.findings.iter().map(|f| f.verdict.rid.as_str()).filter(|rid| !rid.is_empty());
            let chosen = self.ui.selected.iter().chain(&self.ui.pins).map(String::as_str);
            view.pinned.keep(run.analysis.ledger(), &found.chain(chosen).collect::<Vec<_>>());
        }
        if self.ui.paused.is_some() {
            return;
        }
        let rows =
            matches!(self.ui.tab, Tab::Requests) || self.ui.follow || self.views[self.shown].model.table.used == 0;
        // The whole frame must show one instant: if a large table is not due, neither is the rest.
        if rows && now < self.next_rows {
            return;
        }
        self.read(run, rows);
        if rows {
            self.next_rows = now + now.elapsed() * ROWS_SHARE;
        }
    }

    fn read(&mut self, run: &Run<'_>, rows: bool) {
        let values = RunValues {
            source: run.about.kind().to_owned(),
            doing: match run.stage {
                Stage::Running | Stage::Ended if run.about.position().is_some() => "replay",
                Stage::Running => "live",
                Stage::Ending => "ending",
                Stage::Ended => "ended",
            },
            cpu: self.cost.share,
            rss_bytes: own::rss_bytes(),
            degraded: degraded(run),
            ..RunValues::default()
        };
        let model = &mut self.views[self.shown].model;
        model.refresh(run.analysis, values);
        let started = run.about.wall().zip(run.analysis.ledger().started());
        model.wall_start_ns = started.map(|(wall, start)| wall.wall_ns_at(start));
        if rows {
            // A filter searches all requests that the ledger holds.
            let max_rows = if self.ui.filter.is_empty() { self.ui.options.rows } else { usize::MAX };
            model.refresh_rows(run.analysis, max_rows, &self.ui.pins);
        }
    }

    /// Applies filter, sort order and selection, then draws. Skipped while the terminal still writes the last frame.
    fn show(&mut self, run: &Run<'_>, refreshed: bool) -> anyhow::Result<()> {
        if !self.terminal.is_ready() {
            return Ok(());
        }
        let begun = Instant::now();
        let View { model, pinned } = &mut self.views[self.shown];
        model.table.arrange(&self.ui.filter, self.ui.sort, &self.ui.pins);
        self.ui.settle(model);
        if self.ui.tab == Tab::Request {
            let shown = model.detail.as_ref().map(|d| d.rid.as_str());
            let fresh = refreshed && self.ui.paused.is_none();
            if let Some(rid) = self.ui.selected.clone().filter(|rid| fresh || shown != Some(rid)) {
                model.refresh_detail(run.analysis, pinned, &rid);
            }
        }
        if run.stage == Stage::Ending {
            let pending = run.about.pending();
            let pending = pending.as_deref().unwrap_or("waiting for frames in flight");
            self.ui.show_message(format!("stopping: {pending}; press q again to quit immediately"));
        }
        model.position = run.about.position();
        model.writing = (run.writing)();
        model.pods.clone_from(&self.pods);
        model.pod = self.shown;
        let (ui, theme) = (&self.ui, self.theme);
        let mut hits = Hits::default();
        self.terminal
            .draw(|frame| hits = view::draw(model, ui, theme, frame))
            .context("cannot draw on the terminal")?;
        self.draws.record(MonoNs::now(), begun.elapsed().as_nanos() as u64);
        self.ui.page = hits.page;
        self.hits = hits;
        self.stale = false;
        Ok(())
    }

    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        if let Some(command) = self.commands.pop_front() {
            return Ok(command);
        }
        let now = Instant::now();
        if now < self.next_keys {
            return Ok(ScreenCommand::Stay);
        }
        self.next_keys = now + KEYS;
        self.ui.replay = run.about.position().is_some();
        self.ui.watches = !self.pods.is_empty();
        if run.notice.0 != self.notice {
            self.notice = run.notice.0;
            self.ui.show_message(run.notice.1);
            self.stale = true;
        }
        if let Some(message) = self.exports.take_result() {
            self.ui.show_message(message);
            self.stale = true;
        }
        self.read_keys(run)?;
        // A key may have requested a refresh.
        let now = Instant::now();
        let due = now >= self.next_refresh;
        if due {
            self.next_refresh = now + REFRESH;
        }
        let refreshed = due && self.changes.needs_refresh(run, now);
        if refreshed {
            self.refresh(run, now);
        }
        if self.stale {
            self.show(run, refreshed)?;
        }
        Ok(self.commands.pop_front().unwrap_or(ScreenCommand::Stay))
    }

    fn sleep(&mut self, time: Duration) {
        // A frame skipped because the terminal was busy is drawn soon.
        let time = if self.stale { time.min(session::SHORT_SLEEP) } else { time };
        if self.commands.is_empty() && terminal::wait(time) {
            self.next_keys = Instant::now();
        }
    }
}

/// Observer of the run with this index on a screen, which several runs can share.
pub struct RunView(pub Rc<RefCell<Screen>>, pub usize);

impl Observer for RunView {
    fn event(&mut self, event: &Event<'_>) {
        let mut screen = self.0.borrow_mut();
        screen.changes.count(event);
    }

    fn restart(&mut self) {
        let mut screen = self.0.borrow_mut();
        screen.views[self.1] = View::default();
        if self.1 == screen.shown {
            screen.ui.back = 0;
            screen.refresh_now();
        }
    }

    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        let mut screen = self.0.borrow_mut();
        if screen.shown == self.1 { screen.turn(run) } else { Ok(ScreenCommand::Stay) }
    }

    fn sleep(&mut self, time: Duration) {
        self.0.borrow_mut().sleep(time);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let of = |q| self.draws.quantile(q).map_or(0, |ns| ns / 1_000);
        let (frames, longest) = (self.draws.count(), self.draws.max().unwrap_or(0) / 1_000);
        tracing::info!("screen: {frames} frames, draw time p50 {} us, p99 {} us, max {longest} us", of(0.5), of(0.99));
    }
}

impl Cost {
    fn update(&mut self, now: Instant) {
        let elapsed = now - self.since;
        if elapsed >= Duration::from_secs(1) {
            let cpu_ns = own::cpu_ns();
            self.share = Some((cpu_ns - self.cpu_ns) as f64 / elapsed.as_nanos() as f64);
            (self.since, self.cpu_ns) = (now, cpu_ns);
        }
    }
}

/// Degradations of the run, and the newest line of tokengap's log, which the screen hides.
fn degraded(run: &Run<'_>) -> Vec<String> {
    let mut all = (run.degraded)();
    all.extend(LogHold::newest().map(|(line, lines)| format!("log ({lines} lines, shown at the end): {line}")));
    all
}

/// Result of a search.
pub struct Found {
    /// All sources.
    pub offers: Vec<Offer>,
    /// Places that could not be searched.
    pub blind: Vec<String>,
}

/// Shows `offers`, then those that `found` sends, until the user chooses or quits. Returns the chosen command. Restores the terminal
/// afterwards.
pub fn pick(offers: Vec<Offer>, found: &Receiver<Found>) -> anyhow::Result<Option<Vec<String>>> {
    let mut pick = Pick::default();
    pick.offer(offers);
    let _log_hold = LogHold::begin();
    let mut terminal =
        Terminal::open().context("cannot take over the terminal; tokengap --help lists what can be run")?;
    let theme = Theme::detect();
    loop {
        if let Some(latest) = found.try_iter().last() {
            pick.looked = true;
            pick.blind = latest.blind;
            pick.offer(latest.offers);
        }
        let mut hits = Hits::default();
        if terminal.is_ready() {
            terminal
                .draw(|frame| hits = view::pick::draw(&pick, theme, frame))
                .context("cannot draw on the terminal")?;
            pick.page = hits.page;
        }
        let Some(input) = terminal::read(WAIT)? else { continue };
        let action = terminal::action(&input, &hits, 1, keys::picking);
        if let Some(ControlFlow::Break(chosen)) = action.map(|action| pick.apply(action)) {
            return Ok(chosen);
        }
    }
}
