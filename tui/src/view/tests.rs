//! Every view and dialog at 80x24 and 200x50, drawn from a real analysis of synthetic events; every tab of recordings at more sizes. Tests of
//! one tab are in the file of its name.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use session::sink::{OutputStatus, WrittenFile};
use trace::engine::{Drops, Engines, Facts};
use trace::event::{Capabilities, Engine, Finish, Hop, What};
use trace::ledger::DEFAULT_CHUNK_HISTORY;
use trace::{Analysis, Config, HopId};

use super::*;
use crate::state::model::RunValues;
use crate::state::refresh::FINISHED_SHOWN;
use crate::state::tests::scene::{MS, Scene};

mod completeness;
mod cpu;
mod curves;
mod findings;
mod help;
mod hops;
mod numbers;
mod overview;
mod picker;
mod replay;
mod request;
mod requests;

const SIZES: [(u16, u16); 2] = [(80, 24), (200, 50)];

/// Model and user interface state, with the scene they are drawn from.
pub(super) struct Fixture {
    pub(super) scene: Scene,
    pub(super) model: Model,
    pub(super) ui: Ui,
}

impl Fixture {
    fn of(scene: Scene) -> Self {
        Self { scene, model: Model::default(), ui: Ui::default() }
    }

    pub(super) fn refresh(&mut self) {
        let (cpu, rss_bytes) = (Some(0.042), Some(24 << 20));
        let values =
            RunValues { source: "demo".into(), stage: "live", cpu_share: cpu, rss_bytes, ..RunValues::default() };
        self.model.refresh(&self.scene.analysis, values);
        self.model.refresh_rows(&self.scene.analysis, FINISHED_SHOWN, &self.ui.pins);
        self.update();
    }

    /// Updates the selection and the detail as the run loop does before drawing.
    fn update(&mut self) {
        self.ui.filter.refresh_found_waits(self.scene.analysis.ledger(), self.model.table.clock, true);
        self.ui.filter.refresh_named_findings(&self.model.findings);
        self.model.table.arrange_shown_rows(&self.ui.filter, self.ui.sort, &self.ui.pins);
        self.ui.update_selections(&self.model);
        if let (Tab::Request, Some(rid)) = (self.ui.tab, self.ui.selected_rid.clone()) {
            self.model.refresh_request_detail(&self.scene.analysis, &self.scene.pinned, &rid);
        }
    }

    fn press(&mut self, actions: &[Action]) {
        for &action in actions {
            self.ui.apply_action(action, &self.model);
            self.update();
        }
    }

    pub(super) fn drawn(&self, size: (u16, u16), locale: &str) -> String {
        on_terminal(size, |frame| drop(draw_screen(&self.model, &self.ui, theme(locale), frame)))
    }

    fn click_areas(&self) -> ClickAreas {
        let mut click_areas = ClickAreas::default();
        on_terminal((80, 24), |frame| click_areas = draw_screen(&self.model, &self.ui, theme("C"), frame));
        click_areas
    }

    fn snapshot(&self, name: &str) {
        for size in SIZES {
            assert_screen(&format!("{name}_{}x{}", size.0, size.1), &self.drawn(size, "C.UTF-8"));
        }
    }
}

fn type_filter(fixture: &mut Fixture, text: &str) {
    fixture.press(&[Action::TypeFilter, Action::EraseText]);
    fixture.press(&text.chars().map(Action::TypeCharacter).collect::<Vec<_>>());
}

/// Compares a screen with its snapshot. All snapshots are named by this module, whichever file their test is in.
fn assert_screen(name: &str, drawn: &str) {
    insta::assert_snapshot!(name.to_owned(), drawn);
}

fn theme(locale: &str) -> Theme {
    Theme::for_environment(
        None,
        |name| if ["NO_COLOR", "LANG"].contains(&name) { locale.to_owned() } else { String::new() },
    )
}

/// Text content of a terminal of this size.
fn on_terminal((width, height): (u16, u16), draw: impl FnOnce(&mut Frame<'_>)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(draw).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line =
        |y| (0..width).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

/// A 0.5.9 engine under load whose tokenizer falls behind for seconds, receives in bursts, and loses queued chunks.
pub(super) fn race() -> Fixture {
    let mut fixture = Fixture::of(Scene::delivering());
    let rids: Vec<String> =
        (0..24).map(|n| format!("{:032x}", 0x5b92_f00d_u128.wrapping_mul(0x9e37_79b9_7f4a_7c15 * (n + 1)))).collect();
    for frame in 0..300u64 {
        let at = 1_000 * MS + frame * 40 * MS;
        let started = (frame as usize / 4 + 1).min(rids.len());
        let of = |n: usize| (rids[n].as_str(), 1, frame as u32 + 1 - n as u32 * 4);
        let chunks: Vec<_> =
            (0..started).filter(|&n| frame >= n as u64 * 4 && !(n < 6 && frame > 200)).map(of).collect();
        fixture.scene.send(at, &chunks);
        if frame == 200 {
            let last: Vec<_> = (0..6).map(|n| (rids[n].as_str(), 1, 202 - n as u32 * 4)).collect();
            fixture.scene.finish(at + MS, &last, Finish::Stop);
        }
        // The tokenizer wakes at every fourth frame and receives two, so it falls behind.
        if frame % 4 == 3 {
            for take in 0..2 {
                let seq = frame / 4 * 2 + take;
                fixture.scene.receive(at + 5 * MS + take * MS, seq, frame);
            }
            let end = frame as u32 / 4 * 2 + 2;
            for (n, rid) in rids.iter().enumerate().take(4) {
                if let Some(to) = end.checked_sub(n as u32 * 4).filter(|&to| to > 1) {
                    fixture.scene.deliver(at + 9 * MS, rid, 1 + n as u32 % 2, to);
                }
            }
        }
        if frame % 5 == 0 {
            fixture.scene.tick(at + 10 * MS);
        }
    }
    fixture.refresh();
    fixture
}

/// A run observed by a tap alone.
fn tapped() -> Fixture {
    tapped_with_history(DEFAULT_CHUNK_HISTORY)
}

fn tapped_with_history(chunk_history: usize) -> Fixture {
    let mut fixture = Fixture::of(Scene::tapped_with_history(chunk_history));
    for frame in 0..100u64 {
        let at = 1_000 * MS + frame * 50 * MS;
        fixture.scene.send_on(0, at, &[("5b92f00d", 1, frame as u32 + 1)], None);
        fixture.scene.send_on(1, at + 2 * MS, &[("5b92f00d", 1, frame as u32 + 1)], None);
        fixture.scene.tick(at + 3 * MS);
    }
    fixture.refresh();
    fixture
}

#[test]
fn outputs_in_progress_are_shown() {
    let mut fixture = race();
    let written = |bytes, dropped| WrittenFile { name: "run.tgap".into(), bytes, dropped };
    fixture.model.writing =
        OutputStatus { recording: Some(written(5 << 20, 12)), ring: Some(written(64 << 20, 0)), endpoint: None };
    fixture.snapshot("recording");
}

#[test]
fn a_too_small_terminal_shows_the_required_size() {
    let small = race().drawn((60, 6), "C.UTF-8");
    for text in [
        "needs 60x20; this is 60x6",
        "CRITICAL  146 chunks never delivered",
        "scheduler→tokenizer backlog 151, oldest 5.97 s",
    ] {
        assert!(small.contains(text), "{text} in {small}");
    }
    assert!(race().drawn((59, 24), "C.UTF-8").contains("needs 60x20; this is 59x24"));
    for size in [(1, 1), (0, 0), (80, 1), (5, 60)] {
        race().drawn(size, "C");
    }
}

#[test]
fn a_too_small_terminal_puts_the_sign_of_a_problem_that_is_over_in_brackets() {
    let mut fixture = race();
    let hop_row = |fixture: &Fixture| fixture.drawn((60, 16), "C.UTF-8").lines().nth(1).unwrap_or_default().to_owned();
    assert!(hop_row(&fixture).starts_with(" ✗ scheduler→tokenizer backlog"), "{}", hop_row(&fixture));
    fixture.model.hops[0].has_recovered = true;
    assert!(hop_row(&fixture).starts_with("(✗) scheduler→tokenizer backlog"), "{}", hop_row(&fixture));
}

#[test]
fn without_utf8_only_ascii_is_drawn() {
    let mut fixture = race();
    for tab in Tab::ALL {
        fixture.press(&[Action::OpenTab(tab)]);
        let text = fixture.drawn((200, 50), "C");
        assert!(text.is_ascii(), "{tab:?}: {text}");
    }
}

#[test]
fn clicks_on_tabs_and_rows_map_to_actions() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    let click_areas = fixture.click_areas();
    assert_eq!(click_areas.action_at(12, 0), Some(Action::OpenTab(Tab::Overview)));
    assert_eq!(
        (click_areas.action_at(5, 4), click_areas.action_at(5, 5), click_areas.action_at(5, 1)),
        (Some(Action::SelectRow(0)), Some(Action::SelectRow(1)), None)
    );
}

#[test]
fn every_size_and_tab_can_be_drawn() {
    let mut fixture = race();
    for tab in Tab::ALL {
        fixture.press(&[Action::OpenTab(tab)]);
        for width in (58..260).step_by(13) {
            for height in (18..70).step_by(7) {
                fixture.drawn((width, height), "C.UTF-8");
            }
        }
    }
}

#[derive(Debug)]
struct Toy;

impl Facts for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn title(&self) -> &'static str {
        "Toy"
    }

    fn drops(&self) -> Option<Drops> {
        Some(Drops { fixed_in: "2.0", flag: "--toy-incremental" })
    }
}

#[test]
fn an_engine_defined_in_this_file_is_shown() {
    let mut scene = Scene::delivering();
    scene.analysis = Analysis::new(Config { engines: Engines(&[&Toy]), ..Config::default() });
    let capabilities = Capabilities::SENT | Capabilities::DELIVERED;
    let hop = Hop { origin: true, last: true, ..Hop::new(HopId(0), "model->web", capabilities) };
    scene.emit(0, What::Hop(hop));
    scene.emit(0, What::Engine(Engine { name: Some("toy"), version: Some("1.0"), ..Engine::default() }));
    for count in 1..=60 {
        scene.send(u64::from(count) * 100 * MS, &[("a", 1, count)]);
        if count != 30 {
            scene.deliver(u64::from(count) * 100 * MS + MS, "a", 1, count);
        }
    }
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    let overview = fixture.drawn((200, 50), "C");
    assert!(overview.contains("Toy 1.0") && overview.contains("> web"), "{overview}");
    fixture.press(&[Action::OpenTab(Tab::Findings)]);
    let findings = fixture.drawn((200, 50), "C");
    assert!(findings.contains("2.0") && findings.contains("--toy-incremental"), "{findings}");
}
