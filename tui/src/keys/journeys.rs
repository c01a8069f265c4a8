//! Key sequences of a user, and their results.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use session::ScreenCommand;
use session::playback::Play;
use trace::ledger::Numbers;

use crate::keys;
use crate::state::Model;
use crate::state::action::{Action, Effect, ExportAs};
use crate::state::flags::Flag;
use crate::state::history::Sample;
use crate::state::model::{FindingLine, HopLine};
use crate::state::row::{Column, Row};
use crate::state::tab::Tab;
use crate::state::table::Sort;
use crate::state::ui::{Dialog, Saved, Ui, ZOOM};

/// A model with three requests and two findings, and its user interface state.
struct Fixture {
    model: Model,
    ui: Ui,
}

impl Fixture {
    fn new() -> Self {
        let mut model = Model::default();
        for (rid, gap, flag) in [("aaa", 1, Flag::Gap), ("bbb", 9, Flag::Dropped), ("ccc", 5, Flag::Gap)] {
            let mut row =
                Row { rid: rid.into(), numbers: Numbers { gap_ns: Some(gap), ..Numbers::default() }, ..Row::default() };
            row.flags.set(flag, true);
            *model.table.next() = row;
        }
        model.findings = vec![
            FindingLine { rid: "ccc".into(), ..FindingLine::default() },
            FindingLine { at_ns: 20_000_000_000, ..FindingLine::default() },
        ];
        for second in 0..100 {
            model.past.history.enter(second, Sample::default());
        }
        let mut fixture = Self { model, ui: Ui { page: 2, ..Ui::default() } };
        fixture.update();
        fixture
    }

    fn update(&mut self) {
        self.model.table.arrange(&self.ui.filter, self.ui.sort, &self.ui.pins);
        self.ui.settle(&self.model);
    }

    fn key(&mut self, code: KeyCode) -> Option<Effect> {
        let action = keys::action(&KeyEvent::new(code, KeyModifiers::NONE), &self.ui)?;
        let effect = self.ui.apply(action, &self.model);
        self.update();
        effect
    }

    fn type_in(&mut self, text: &str) {
        for c in text.chars() {
            self.key(KeyCode::Char(c));
        }
    }

    fn selected(&self) -> &str {
        self.ui.selected.as_deref().unwrap_or("")
    }
}

#[test]
fn the_worst_request_is_first_and_enter_opens_it() {
    let mut fixture = Fixture::new();
    fixture.type_in("2");
    assert_eq!((fixture.ui.tab, fixture.selected()), (Tab::Requests, "bbb"));
    fixture.type_in("j");
    assert_eq!(fixture.selected(), "ccc");
    fixture.key(KeyCode::Enter);
    assert_eq!(fixture.ui.tab, Tab::Request);
    fixture.key(KeyCode::Esc);
    assert_eq!((fixture.ui.tab, fixture.selected()), (Tab::Requests, "ccc"));
    fixture.key(KeyCode::End);
    assert_eq!(fixture.selected(), "aaa");
    fixture.key(KeyCode::PageUp);
    assert_eq!(fixture.selected(), "bbb");
}

#[test]
fn a_filter_is_typed_corrected_applied_and_cleared() {
    let mut fixture = Fixture::new();
    fixture.type_in("/drpo>0");
    assert!(matches!(&fixture.ui.dialog, Dialog::Filter(text, Some(wrong)) if text == "drpo>0" && wrong.at == 0));
    fixture.key(KeyCode::Enter);
    assert!(matches!(fixture.ui.dialog, Dialog::Filter(..)), "a mistake is not applied");
    for _ in 0.."drpo>0".len() {
        fixture.key(KeyCode::Backspace);
    }
    fixture.type_in("gap>4ns q");
    fixture.key(KeyCode::Backspace);
    fixture.key(KeyCode::Enter);
    assert_eq!((fixture.ui.dialog == Dialog::None, &*fixture.ui.filter.text), (true, "gap>4ns"));
    assert_eq!((fixture.model.table.visible_count(), fixture.selected()), (2, "bbb"));
    fixture.key(KeyCode::Esc);
    assert_eq!((fixture.model.table.visible_count(), &*fixture.ui.filter.text), (3, ""));
}

#[test]
fn a_pinned_request_stays_on_top_of_any_order() {
    let mut fixture = Fixture::new();
    fixture.type_in("2G ");
    assert_eq!((fixture.selected(), fixture.model.table.place("aaa")), ("aaa", Some(0)));
    fixture.type_in("<s>");
    assert_eq!(fixture.model.table.place("aaa"), Some(0));
    fixture.type_in(" ");
    assert!(fixture.ui.pins.is_empty());
}

#[test]
fn following_keeps_the_worst_selected_until_the_reader_moves() {
    let mut fixture = Fixture::new();
    fixture.type_in("2w");
    assert_eq!(fixture.selected(), "bbb");
    fixture.model.table.clear();
    let mut row = Row { rid: "zzz".into(), ..Row::default() };
    row.flags.set(Flag::Loss, true);
    *fixture.model.table.next() = row;
    fixture.update();
    assert_eq!(fixture.selected(), "zzz");
    fixture.type_in("k");
    assert!(!fixture.ui.follow);
}

#[test]
fn enter_on_a_finding_opens_its_request_or_its_time() {
    let mut fixture = Fixture::new();
    fixture.type_in("5");
    fixture.key(KeyCode::Enter);
    assert_eq!((fixture.ui.tab, fixture.selected()), (Tab::Request, "ccc"));
    fixture.type_in("5j");
    fixture.key(KeyCode::Enter);
    assert_eq!((fixture.ui.tab, fixture.ui.time_end(&fixture.model)), (Tab::Overview, 25));
}

#[test]
fn a_paused_view_is_frozen_and_can_be_scrolled_in_time() {
    let mut fixture = Fixture::new();
    fixture.type_in("p");
    fixture.model.past.history.enter(150, Sample::default());
    assert_eq!(fixture.ui.time_end(&fixture.model), 99);
    fixture.type_in("-h");
    assert_eq!((ZOOM[fixture.ui.zoom], fixture.ui.time_end(&fixture.model)), (2, 89));
    fixture.type_in("lp");
    assert_eq!((fixture.ui.paused, fixture.ui.time_end(&fixture.model)), (None, 150));
    fixture.type_in("++++++++");
    assert_eq!(ZOOM[fixture.ui.zoom], 1);
}

#[test]
fn help_captures_keys_until_it_is_closed() {
    let mut fixture = Fixture::new();
    fixture.type_in("2?j");
    assert_eq!((&fixture.ui.dialog, fixture.selected()), (&Dialog::Help(1), "bbb"));
    assert_eq!(fixture.key(KeyCode::Char('q')), None);
    assert_eq!(fixture.ui.dialog, Dialog::None);
    assert_eq!(fixture.key(KeyCode::Char('q')), Some(Effect::Quit));
}

#[test]
fn exports_copies_and_quitting_are_returned_as_effects() {
    let mut fixture = Fixture::new();
    fixture.type_in("e");
    assert_eq!(fixture.ui.dialog, Dialog::Export);
    assert_eq!(fixture.key(KeyCode::Char('h')), Some(Effect::Export(ExportAs::Html)));
    assert_eq!(fixture.ui.dialog, Dialog::None);
    fixture.type_in("2");
    assert_eq!(fixture.key(KeyCode::Char('y')), Some(Effect::Copy("bbb".into())));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(keys::action(&ctrl_c, &fixture.ui), Some(Action::Quit));
}

#[test]
fn playback_keys_work_only_in_a_replay() {
    let play = |play| Some(Effect::Command(ScreenCommand::Play(play)));
    let mut fixture = Fixture::new();
    assert_eq!(fixture.key(KeyCode::Char('f')), None);
    assert_eq!(fixture.key(KeyCode::Char('r')), Some(Effect::Command(ScreenCommand::Record)));
    assert_eq!(fixture.key(KeyCode::Char('d')), Some(Effect::Command(ScreenCommand::Dump)));
    fixture.ui.replay = true;
    assert_eq!(fixture.key(KeyCode::Char('r')), None, "a recording is not recorded");
    for (key, command) in [
        ('p', Play::Toggle),
        (']', Play::Speed(1)),
        ('[', Play::Speed(-1)),
        (',', Play::Skip(-10)),
        ('.', Play::Skip(10)),
        ('f', Play::Finding(true)),
        ('F', Play::Finding(false)),
        ('0', Play::To(0)),
        ('$', Play::End),
    ] {
        assert_eq!(fixture.key(KeyCode::Char(key)), play(command), "{key}");
    }
    assert_eq!(fixture.ui.paused, None, "the recording pauses, not the view");
}

#[test]
fn a_typed_time_is_sought() {
    let mut fixture = Fixture::new();
    fixture.ui.replay = true;
    fixture.type_in("t1:2x");
    assert_eq!(fixture.ui.dialog, Dialog::Time("1:2x".into(), false));
    assert_eq!(fixture.key(KeyCode::Enter), None);
    fixture.key(KeyCode::Backspace);
    assert_eq!(fixture.key(KeyCode::Enter), Some(Effect::Command(ScreenCommand::Play(Play::To(62_000_000_000)))));
    assert_eq!(fixture.ui.dialog, Dialog::None);
    fixture.type_in("t");
    fixture.key(KeyCode::Esc);
    assert_eq!(fixture.ui.dialog, Dialog::None);
}

#[test]
fn no_key_panics_on_an_empty_screen() {
    let model = Model::default();
    let mut ui = Ui::default();
    for tab in Tab::ALL {
        for binding in keys::BINDINGS {
            for &(code, modifiers) in binding.keys() {
                ui.tab = tab;
                ui.dialog = Dialog::None;
                if let Some(action) = keys::action(&KeyEvent::new(code, modifiers), &ui) {
                    ui.apply(action, &model);
                    ui.settle(&model);
                }
            }
        }
    }
}

#[test]
fn the_palette_finds_an_action_by_its_words_and_executes_it() {
    let mut fixture = Fixture::new();
    fixture.type_in(":sort right");
    assert_eq!(keys::found("sort right", &fixture.ui).len(), 1);
    let before = fixture.ui.sort.column;
    fixture.key(KeyCode::Enter);
    let state = (fixture.ui.tab, fixture.ui.sort.column, &fixture.ui.dialog);
    assert_eq!(state, (Tab::Requests, before.step(1), &Dialog::None));
    fixture.type_in(":no such action");
    assert_eq!(fixture.key(KeyCode::Enter), None);
    assert!(matches!(fixture.ui.dialog, Dialog::Palette(..)), "no match, no effect");
    fixture.key(KeyCode::Esc);
    assert_eq!(fixture.ui.dialog, Dialog::None);
}

#[test]
fn the_palette_lists_every_applicable_action() {
    let fixture = Fixture::new();
    let other_places = ["in a replay", "in watch"];
    let all = keys::BINDINGS.iter().filter(|b| !other_places.contains(&b.place())).count();
    assert_eq!(keys::found("", &fixture.ui).len(), all - 1, "all but the list itself");
}

#[test]
fn a_saved_filter_is_applied_by_name() {
    let mut fixture = Fixture::new();
    fixture.ui.saved = vec![Saved::parse("slow=gap>4ns").expect("a filter")];
    fixture.type_in("/@slow");
    assert_eq!(fixture.ui.dialog, Dialog::Filter("@slow".into(), None));
    fixture.key(KeyCode::Enter);
    assert_eq!((&*fixture.ui.filter.text, fixture.model.table.visible_count()), ("gap>4ns", 2));
    fixture.key(KeyCode::Esc);
    fixture.type_in(":@slow");
    fixture.key(KeyCode::Enter);
    assert_eq!(fixture.model.table.visible_count(), 2);
}

#[test]
fn quitting_during_a_recording_asks_once() {
    let mut fixture = Fixture::new();
    fixture.model.run.doing = "live";
    fixture.model.writing.recording = Some(session::sink::Written::default());
    assert_eq!(fixture.key(KeyCode::Char('q')), None);
    assert!(fixture.ui.message.as_deref().is_some_and(|text| text.contains("q again")));
    fixture.type_in("1");
    assert_eq!(fixture.key(KeyCode::Char('q')), None, "another key cancels quitting");
    assert_eq!(fixture.key(KeyCode::Char('q')), Some(Effect::Quit));
}

#[test]
fn a_click_on_a_header_sorts_a_second_reverses_and_s_resets() {
    let mut fixture = Fixture::new();
    let sort = |fixture: &mut Fixture| {
        fixture.ui.apply(Action::SortBy(Column::headed("gap")), &fixture.model);
        (fixture.ui.sort.column, fixture.ui.sort.descending)
    };
    assert_eq!(sort(&mut fixture), (Column::headed("gap"), true));
    assert_eq!(sort(&mut fixture), (Column::headed("gap"), false));
    fixture.type_in("2S");
    assert_eq!(fixture.ui.sort, Sort::default());
}

#[test]
fn enter_on_a_hop_opens_its_finding_and_back() {
    let mut fixture = Fixture::new();
    for name in ["scheduler->router", "router->tokenizer"] {
        fixture.model.hops.push(HopLine { name: name.into(), ..HopLine::default() });
    }
    fixture.model.findings[1].hop = "router->tokenizer".into();
    fixture.type_in("4j");
    fixture.key(KeyCode::Enter);
    assert_eq!((fixture.ui.tab, fixture.ui.place(Tab::Findings)), (Tab::Findings, 1));
    fixture.ui.places[Tab::Hops as usize] = 0;
    fixture.key(KeyCode::Enter);
    assert_eq!((fixture.ui.tab, fixture.ui.place(Tab::Hops)), (Tab::Hops, 1));
    fixture.type_in("k");
    fixture.key(KeyCode::Enter);
    assert_eq!(fixture.ui.tab, Tab::Requests, "no finding about this hop");
}

#[test]
fn a_click_on_a_plot_moves_the_end_of_the_time_axis() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.ui.apply(Action::At(40), &fixture.model), None);
    assert_eq!(fixture.ui.time_end(&fixture.model), 40);
    fixture.ui.replay = true;
    let to = fixture.ui.apply(Action::At(40), &fixture.model);
    assert_eq!(to, Some(Effect::Command(ScreenCommand::Play(Play::To(40_000_000_000)))));
}
