//! The live screen: an observer that reads keys, refreshes the model and draws.
//!
//! It never holds up the source: keys are looked for every 10 ms, the model is read at most 5 times a second, less often
//! when that is dear or nothing is new, and bytes go to the terminal on a thread of their own. A terminal that does not keep up misses frames.

mod clipboard;
mod export;
mod news;
mod outlet;
pub(crate) mod pick;
mod terminal;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind, MouseButton, MouseEvent, MouseEventKind};
use trace::stats::Distribution;
use trace::{Analysis, Event, MonoNs};

use crate::action::{Action, Effect};
use crate::cli::ScreenArgs;
use crate::keys;
use crate::log::Hold;
use crate::observer::{Observer, Run, Stage, Wish};
use crate::own;
use crate::rest;
use crate::state::Model;
use crate::state::journal::Journal;
use crate::state::pods::PodLine;
use crate::state::refresh::Outside;
use crate::state::ui::{Tab, Ui};
use crate::theme::{Surroundings, Theme};
use crate::view::{self, Hits};

use export::Exports;
use news::News;
use terminal::Terminal;

/// How often keys are looked for.
const KEYS: Duration = Duration::from_millis(10);
/// How often the model is read and drawn when no key is pressed.
const REFRESH: Duration = Duration::from_millis(200);
/// The share of time that reading rows may take: one part in this many.
const ROWS_SHARE: u32 = 20;
/// How often the stories of requests that matter are kept.
const KEEP: Duration = Duration::from_secs(2);
/// Keys handled in one turn; a held key must not keep the source waiting.
const INPUTS_A_TURN: usize = 16;

/// The screen.
pub(crate) struct Screen {
    // Dropped in this order: the terminal is itself again before held log lines are written to it.
    terminal: Terminal,
    _hold: Hold,
    theme: Theme,
    model: Model,
    ui: Ui,
    journal: Journal,
    hits: Hits,
    cost: Cost,
    next_keys: Instant,
    next_refresh: Instant,
    next_rows: Instant,
    next_keep: Instant,
    news: News,
    /// Something changed since the last draw.
    stale: bool,
    /// What the reader wishes of the run, oldest first.
    wishes: VecDeque<Wish>,
    /// The number of the last word that was shown.
    notice: u64,
    exports: Exports,
    /// How long it took to bring a frame up to date and draw it.
    draws: Distribution,
    /// Where several runs are watched: what is kept of each. The place of the one that is shown is empty.
    aside: Vec<Option<Face>>,
    shown: usize,
    /// The runs as the list of them shows them.
    pods: Vec<PodLine>,
}

/// What a screen keeps of one run.
struct Face {
    model: Model,
    journal: Journal,
}

/// This process's CPU over the last second.
struct Cost {
    since: Instant,
    cpu_ns: u64,
    share: Option<f64>,
}

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn open(keep: &ScreenArgs) -> anyhow::Result<Self> {
        let now = Instant::now();
        let hold = Hold::begin();
        let terminal = Terminal::open().context("cannot take over the terminal; --headless runs without one")?;
        Ok(Self {
            terminal,
            _hold: hold,
            theme: Theme::of(&Surroundings::read()),
            model: Model::default(),
            ui: Ui {
                rows: keep.rows,
                journal: keep.journal,
                saved: keep.filters.clone(),
                ..Ui::default()
            },
            journal: Journal::new(keep.journal),
            hits: Hits::default(),
            cost: Cost {
                since: now,
                cpu_ns: own::cpu_ns(),
                share: None,
            },
            next_keys: now,
            next_refresh: now,
            next_rows: now,
            next_keep: now,
            news: News::default(),
            stale: true,
            wishes: VecDeque::new(),
            notice: 0,
            exports: Exports::default(),
            draws: Distribution::default(),
            aside: Vec::new(),
            shown: 0,
            pods: Vec::new(),
        })
    }

    /// Makes room for so many runs; the first is shown.
    pub(crate) fn watch(&mut self, runs: usize) {
        let face = |place| {
            (place > 0).then(|| Face {
                model: Model::default(),
                journal: Journal::new(self.ui.journal),
            })
        };
        self.aside = (0..runs).map(face).collect();
    }

    /// The run that is shown.
    pub(crate) fn shown(&self) -> usize {
        self.shown
    }

    /// What is shown of all runs, beside the one.
    pub(crate) fn set_pods(&mut self, pods: Vec<PodLine>) {
        self.pods = pods;
    }

    /// What is kept of a run.
    pub(crate) fn model(&mut self, run: usize) -> &mut Model {
        match self.aside.get_mut(run) {
            Some(Some(face)) => &mut face.model,
            _ => &mut self.model,
        }
    }

    /// An event of a run, whether it is shown or not.
    pub(crate) fn observe(&mut self, run: usize, event: &Event<'_>) {
        self.news.note(event);
        match self.aside.get_mut(run) {
            Some(Some(face)) => face.journal.observe(event),
            _ => self.journal.observe(event),
        }
    }

    /// A run begins anew.
    pub(crate) fn forget(&mut self, run: usize) {
        match self.aside.get_mut(run) {
            Some(Some(face)) => {
                face.model = Model::default();
                face.journal = Journal::new(self.ui.journal);
            }
            _ => self.anew(),
        }
    }

    /// Shows another run.
    fn turn_to(&mut self, run: usize) {
        let Some(Face { model, journal }) = self.aside.get_mut(run).and_then(Option::take) else {
            return;
        };
        let face = Face {
            model: std::mem::replace(&mut self.model, model),
            journal: std::mem::replace(&mut self.journal, journal),
        };
        self.aside[self.shown] = Some(face);
        self.shown = run;
        self.ui.other_run();
        self.hurry();
        self.stale = true;
    }

    /// The run is to be read at once, whether it has news or not.
    fn hurry(&mut self) {
        (self.next_refresh, self.next_rows) = (Instant::now(), Instant::now());
        self.news.forget();
    }

    fn read_keys(&mut self, run: &Run<'_>) -> anyhow::Result<()> {
        for _ in 0..INPUTS_A_TURN {
            ensure!(!terminal::is_gone(), "the terminal is gone");
            if !event::poll(Duration::ZERO).context("cannot read the terminal")? {
                break;
            }
            match event::read().context("cannot read the terminal")? {
                Input::Key(key) if key.kind != KeyEventKind::Release => {
                    if let Some(action) = keys::action(&key, &self.ui) {
                        self.act(action, run);
                    }
                }
                Input::Mouse(mouse) => self.click(mouse, run),
                Input::Resize(..) => self.stale = true,
                _ => {}
            }
        }
        Ok(())
    }

    fn click(&mut self, mouse: MouseEvent, run: &Run<'_>) {
        match mouse.kind {
            MouseEventKind::ScrollUp => self.act(Action::Move(-3), run),
            MouseEventKind::ScrollDown => self.act(Action::Move(3), run),
            MouseEventKind::Down(MouseButton::Left) => {
                if let Some(action) = self.hits.at(mouse.column, mouse.row) {
                    self.act(action, run);
                }
            }
            _ => {}
        }
    }

    fn act(&mut self, action: Action, run: &Run<'_>) {
        self.stale = true;
        let before = (self.ui.tab, self.ui.paused.is_some());
        let effect = self.ui.apply(action, &self.model);
        match (before.1, self.ui.paused.is_some()) {
            // View and table pause at the same instant.
            (false, true) => self.read(run, true),
            (_, false) if before.0 != self.ui.tab || before.1 => self.hurry(),
            _ => {}
        }
        match effect {
            None => {}
            Some(Effect::Quit) => self.wishes.push_back(Wish::End),
            Some(Effect::Wish(wish)) => self.wishes.push_back(wish),
            Some(Effect::Run(run)) => self.turn_to(run),
            Some(Effect::NextRun(by)) => {
                let runs = self.aside.len().max(1) as isize;
                self.turn_to((self.shown as isize + by).rem_euclid(runs) as usize);
            }
            Some(Effect::Copy(rid)) => {
                self.terminal.say(&clipboard::copy(&rid));
                self.ui.say(format!("sent to the terminal's clipboard: {rid}"));
            }
            Some(Effect::Export(format)) => {
                let said = self.exports.begin(format, run);
                self.ui.say(said);
            }
        }
    }

    /// Reads the analysis as far as it is due and wanted.
    fn refresh(&mut self, run: &Run<'_>, now: Instant) {
        self.cost.update(now);
        self.stale = true;
        if now >= self.next_keep {
            self.next_keep = now + KEEP;
            let found = self
                .model
                .findings
                .iter()
                .map(|f| f.rid.as_str())
                .filter(|rid| !rid.is_empty());
            let chosen = self.ui.selected.iter().chain(&self.ui.pins).map(String::as_str);
            self.journal.keep(&found.chain(chosen).collect::<Vec<_>>());
        }
        if self.ui.paused.is_some() {
            return;
        }
        let wanted = matches!(self.ui.tab, Tab::Requests) || self.ui.follow || self.model.table.count() == 0;
        // Banner and rows are of one instant: while a large table is not due, neither is the rest of its frame.
        if wanted && now < self.next_rows {
            return;
        }
        self.read(run, wanted);
        if wanted {
            self.next_rows = now + now.elapsed() * ROWS_SHARE;
        }
    }

    /// Reads the analysis as of now.
    fn read(&mut self, run: &Run<'_>, rows: bool) {
        let outside = Outside {
            source: run.source.to_owned(),
            doing: match run.stage {
                Stage::Running | Stage::Ended if run.position.is_some() => "replay",
                Stage::Running => "live",
                Stage::Ending => "ending",
                Stage::Ended => "ended",
            },
            cpu: self.cost.share,
            rss_bytes: own::rss_bytes(),
            degraded: degraded(run),
        };
        self.model.refresh(run.analysis, &outside);
        let started = run.wall.zip(run.analysis.ledger().started());
        self.model.wall_start_ns = started
            .map(|((mono, wall), start)| wall.saturating_add(start.since(mono)).saturating_sub(mono.since(start)));
        if rows {
            // A filter reaches all that the ledger keeps.
            let most = if self.ui.filter.1.is_empty() {
                self.ui.rows
            } else {
                usize::MAX
            };
            self.model.refresh_rows(run.analysis, most, &self.ui.pins);
        }
    }

    /// Brings order and detail up to what the reader chose, then draws, unless the terminal still has the last frame to show.
    fn show(&mut self, run: &Run<'_>, refreshed: bool) -> anyhow::Result<()> {
        if !self.terminal.is_ready() {
            return Ok(());
        }
        let begun = Instant::now();
        self.model.arrange(&self.ui.filter.1, self.ui.sort, &self.ui.pins);
        self.ui.settle(&self.model);
        if self.ui.tab == Tab::Request {
            let shown = self.model.detail.as_ref().map(|d| d.rid.as_str());
            let fresh = refreshed && self.ui.paused.is_none();
            if let Some(rid) = self.ui.selected.clone().filter(|rid| fresh || shown != Some(rid)) {
                self.model.refresh_detail(run.analysis, &self.journal, &rid);
            }
        }
        if run.stage == Stage::Ending {
            let under_way = (run.under_way)();
            let under_way = under_way.as_deref().unwrap_or("what is under way is waited for");
            self.ui.say(format!("ending: {under_way}; q again leaves at once"));
        }
        self.model.position = run.position.cloned();
        self.model.writing = (run.writing)();
        self.model.pods.clone_from(&self.pods);
        self.model.pod = self.shown;
        let (model, ui, theme) = (&self.model, &self.ui, self.theme);
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
}

impl Observer for Screen {
    fn event(&mut self, event: &Event<'_>) {
        self.news.note(event);
        self.journal.observe(event);
    }

    fn tick(&mut self, analysis: &Analysis) {
        self.model.remember(analysis);
    }

    fn anew(&mut self) {
        self.model = Model::default();
        self.journal = Journal::new(self.ui.journal);
        self.ui.back = 0;
        self.hurry();
    }

    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish> {
        if let Some(wish) = self.wishes.pop_front() {
            return Ok(wish);
        }
        let now = Instant::now();
        if now < self.next_keys {
            return Ok(Wish::Stay);
        }
        self.next_keys = now + KEYS;
        self.ui.replay = run.position.is_some();
        self.ui.watches = !self.aside.is_empty();
        if run.notice.0 != self.notice {
            self.notice = run.notice.0;
            self.ui.say(run.notice.1);
            self.stale = true;
        }
        if let Some(said) = self.exports.news() {
            self.ui.say(said);
            self.stale = true;
        }
        self.read_keys(run)?;
        // A key may have asked for a refresh.
        let now = Instant::now();
        let due = now >= self.next_refresh;
        if due {
            self.next_refresh = now + REFRESH;
        }
        let refreshed = due && self.news.come(run, now);
        if refreshed {
            self.refresh(run, now);
        }
        if self.stale {
            self.show(run, refreshed)?;
        }
        Ok(self.wishes.pop_front().unwrap_or(Wish::Stay))
    }

    fn rest(&mut self, time: Duration) {
        // A frame that the terminal was not ready for is drawn soon.
        let time = if self.stale { time.min(rest::SHORT) } else { time };
        if self.wishes.is_empty() && terminal::wait(time) {
            self.next_keys = Instant::now();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let of = |q| self.draws.quantile(q).map_or(0, |ns| ns / 1_000);
        let (frames, most) = (self.draws.count(), self.draws.max().unwrap_or(0) / 1_000);
        tracing::info!(
            "screen: {frames} frames, drawn in {} us, p99 {} us, {most} us at most",
            of(0.5),
            of(0.99)
        );
    }
}

impl Cost {
    fn update(&mut self, now: Instant) {
        let passed = now - self.since;
        if passed >= Duration::from_secs(1) {
            let cpu_ns = own::cpu_ns();
            self.share = Some((cpu_ns - self.cpu_ns) as f64 / passed.as_nanos() as f64);
            (self.since, self.cpu_ns) = (now, cpu_ns);
        }
    }
}

/// What the run says is degraded, and the newest warning of our own log, which the screen hides.
fn degraded(run: &Run<'_>) -> Vec<String> {
    let mut all = (run.degraded)();
    all.extend(Hold::newest().map(|(line, lines)| format!("log ({lines} lines, shown at the end): {line}")));
    all
}
