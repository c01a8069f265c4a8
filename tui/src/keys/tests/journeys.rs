//! Key sequences of a user, and their results.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use session::ScreenCommand;
use session::playback::{FindingKey, Play, Position};
use trace::MonoNs;
use trace::detect::{Finding, Severity, Verdict};
use trace::ledger::RequestNumbers;

use crate::keys;
use crate::state::Model;
use crate::state::action::{Action, Effect, ExportAs, Tab};
use crate::state::curves::Curves;
use crate::state::filter::RequestFilter;
use crate::state::flags::{Flag, Health};
use crate::state::model::HopSummary;
use crate::state::request_row::{RequestColumn, RequestRow};
use crate::state::request_table::SortOrder;
use crate::state::saved_filter::SavedFilter;
use crate::state::ui::{Dialog, SECONDS_PER_COLUMN, Ui};

const END: Option<Effect> = Some(Effect::Command(ScreenCommand::End));

/// A model with three requests and two findings, and its user interface state.
struct Fixture {
    model: Model,
    ui: Ui,
}

fn row(rid: &str, gap: u64, flag: Flag) -> RequestRow {
    let mut row = RequestRow {
        rid: rid.into(),
        numbers: RequestNumbers { gap_ns: Some(gap), ..RequestNumbers::default() },
        ..RequestRow::default()
    };
    row.flags.set_if(flag, true);
    row
}

fn finding(rid: &str, began: u64) -> Finding {
    let verdict = Verdict { severity: Severity::Warning, rid: rid.into(), ..Verdict::default() };
    Finding { began: MonoNs(began), last_at: MonoNs(began), verdict, ..Finding::default() }
}

impl Fixture {
    fn new() -> Self {
        let mut model = Model::default();
        for (rid, gap, flag) in [("aaa", 1, Flag::Gap), ("bbb", 9, Flag::Dropped), ("ccc", 5, Flag::Gap)] {
            *model.table.add_row_with_old_values() = row(rid, gap, flag);
        }
        model.findings = vec![finding("ccc", 0), finding("", 20_000_000_000)];
        model.curves = Curves::from_token_counts(0..100);
        let mut fixture = Self { model, ui: Ui { page_rows: 2, ..Ui::default() } };
        fixture.update();
        fixture
    }

    fn update(&mut self) {
        self.model.table.arrange_shown_rows(&self.ui.filter, self.ui.sort, &self.ui.pins);
        self.ui.update_selections(&self.model);
    }

    fn apply(&mut self, action: Action) -> Option<Effect> {
        let effect = self.ui.apply_action(action, &self.model);
        self.update();
        effect
    }

    fn key(&mut self, code: KeyCode) -> Option<Effect> {
        let action = keys::action_of_key(&KeyEvent::new(code, KeyModifiers::NONE), &self.ui)?;
        self.apply(action)
    }

    /// Presses the keys of `text`, in which a newline is Enter, `\x1b` Esc and `\x08` Backspace. Returns the effect of the last one.
    fn press(&mut self, text: &str) -> Option<Effect> {
        let codes = text.chars().map(|c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        });
        codes.fold(None, |_, code| self.key(code))
    }

    fn selected(&self) -> &str {
        self.ui.selected_rid.as_deref().unwrap_or("")
    }

    /// Second at which the time series end.
    fn end(&self) -> u64 {
        self.ui.last_shown_second(&self.model)
    }
}

#[test]
fn the_worst_request_is_first_and_enter_opens_it() {
    let mut fixture = Fixture::new();
    fixture.press("2");
    assert_eq!((fixture.ui.tab, fixture.selected()), (Tab::Requests, "bbb"));
    fixture.press("j");
    assert_eq!(fixture.selected(), "ccc");
    fixture.press("\n");
    assert_eq!(fixture.ui.tab, Tab::Request);
    fixture.press("\x1b");
    assert_eq!((fixture.ui.tab, fixture.selected()), (Tab::Requests, "ccc"));
    fixture.key(KeyCode::End);
    assert_eq!(fixture.selected(), "aaa");
    fixture.key(KeyCode::PageUp);
    assert_eq!(fixture.selected(), "bbb");
}

#[test]
fn esc_returns_through_the_tabs_from_which_details_were_opened() {
    let mut fixture = Fixture::new();
    fixture.press("5f\n");
    assert_eq!(fixture.ui.tab, Tab::Request);
    fixture.press("\x1b\x1b");
    assert_eq!((fixture.ui.tab, &*fixture.ui.filter.text), (Tab::Requests, ""), "the filter goes first");
    fixture.press("\x1b");
    assert_eq!(fixture.ui.tab, Tab::Findings);
    fixture.press("\x1b");
    assert_eq!(fixture.ui.tab, Tab::Findings, "it was chosen by its key");
}

#[test]
fn the_hops_open_at_the_worst_one() {
    let mut fixture = Fixture::new();
    fixture.model.hops =
        [Health::Good, Health::Critical].map(|health| HopSummary { health, ..HopSummary::default() }).into();
    fixture.press("4");
    assert_eq!(fixture.ui.selected_index(Tab::Hops), 1);
}

#[test]
fn a_filter_is_typed_corrected_applied_and_cleared() {
    let mut fixture = Fixture::new();
    fixture.press("/drpo>0");
    assert_eq!(fixture.ui.dialog, Dialog::Filter("drpo>0".into()));
    assert_eq!(fixture.ui.parse_filter("drpo>0", &fixture.model).err().map(|error| error.position), Some(0));
    fixture.press("\n");
    assert!(matches!(fixture.ui.dialog, Dialog::Filter(_)), "a mistake is not applied");
    fixture.press(&"\x08".repeat("drpo>0".len()));
    fixture.press("gap>4ns q\x08\n");
    assert_eq!((fixture.ui.dialog == Dialog::None, &*fixture.ui.filter.text), (true, "gap>4ns"));
    assert_eq!((fixture.model.table.visible_count(), fixture.selected()), (2, "bbb"));
    fixture.press("\x1b");
    assert_eq!((fixture.model.table.visible_count(), &*fixture.ui.filter.text), (3, ""));
}

#[test]
fn a_pinned_request_stays_on_top_of_any_order() {
    let mut fixture = Fixture::new();
    fixture.press("2G ");
    assert_eq!((fixture.selected(), fixture.model.table.shown_position_of_rid("aaa")), ("aaa", Some(0)));
    fixture.press("<s>");
    assert_eq!(fixture.model.table.shown_position_of_rid("aaa"), Some(0));
    fixture.press(" ");
    assert!(fixture.ui.pins.is_empty());
}

#[test]
fn a_pinned_request_is_counted_only_if_it_matches_the_filter() {
    let mut fixture = Fixture::new();
    fixture.press("2G ");
    fixture.press("/gap>4ns\n");
    assert_eq!((fixture.model.table.visible_count(), fixture.model.table.matching_count), (3, 2));
}

#[test]
fn following_keeps_the_worst_selected_until_the_reader_moves() {
    let mut fixture = Fixture::new();
    fixture.press("2w");
    assert_eq!(fixture.selected(), "bbb");
    fixture.model.table.clear();
    *fixture.model.table.add_row_with_old_values() = row("zzz", 0, Flag::Loss);
    fixture.update();
    assert_eq!(fixture.selected(), "zzz");
    fixture.press("k");
    assert!(!fixture.ui.follows_worst);
}

#[test]
fn enter_on_a_finding_opens_its_request_or_its_time() {
    let mut fixture = Fixture::new();
    fixture.press("5\n");
    assert_eq!((fixture.ui.tab, fixture.selected()), (Tab::Request, "ccc"));
    fixture.press("5j\n");
    assert_eq!((fixture.ui.tab, fixture.end()), (Tab::Overview, 25));
}

#[test]
fn f_on_a_finding_lists_its_requests_or_those_in_flight_then() {
    let mut fixture = Fixture::new();
    fixture.model.findings[0].kind = "first-token-gap";
    fixture.press("5f");
    assert_eq!((fixture.ui.tab, fixture.ui.filter.text.as_str()), (Tab::Requests, "flag:GAP"));
    assert_eq!(fixture.model.table.visible_count(), 2);
    fixture.press("5jf");
    assert_eq!(fixture.ui.filter.text, "at:20.000s..20.000s");
    fixture.model.findings[1].kind = "backlog";
    fixture.model.findings[1].verdict.hop = "scheduler->worker 1".into();
    fixture.press("5f");
    assert_eq!(fixture.ui.filter.text, "waited:scheduler->worker_1@20.000s..20.000s");
    fixture.model.findings[0].kind = "rid-changed-worker";
    fixture.press("5kf");
    assert_eq!((fixture.ui.filter.text.as_str(), fixture.model.table.visible_count()), ("flag:MOVED", 0));
}

/// A filter with a mistake would list nothing, without a word.
#[test]
fn filters_of_findings_are_valid_and_their_kinds_exist() {
    for (kind, filter) in crate::state::finding_requests::FILTERS_OF_FINDINGS {
        assert!(trace::detect::ALL.iter().any(|detector| detector.kind == kind), "{kind}");
        assert!(RequestFilter::parse(filter).is_ok(), "{filter}");
    }
}

#[test]
fn a_paused_view_is_frozen_and_can_be_scrolled_in_time() {
    let mut fixture = Fixture::new();
    fixture.press("p");
    fixture.model.curves = Curves::from_token_counts(0..151);
    assert_eq!(fixture.end(), 99);
    fixture.press("-h");
    assert_eq!((SECONDS_PER_COLUMN[fixture.ui.zoom_level], fixture.end()), (2, 89));
    fixture.press("lp");
    assert_eq!((fixture.ui.paused_at_second, fixture.end()), (None, 150));
    fixture.press("++++++++");
    assert_eq!(SECONDS_PER_COLUMN[fixture.ui.zoom_level], 1);
}

#[test]
fn help_captures_keys_until_it_is_closed() {
    let mut fixture = Fixture::new();
    fixture.press("2?j");
    // Known once it is drawn.
    fixture.ui.help_end = 40;
    for (key, line) in [
        (KeyCode::Char('G'), 40),
        (KeyCode::Up, 39),
        (KeyCode::PageUp, 37),
        (KeyCode::Home, 0),
        (KeyCode::PageDown, 2),
        (KeyCode::End, 40),
        (KeyCode::Down, 40),
    ] {
        fixture.key(key);
        assert_eq!((&fixture.ui.dialog, fixture.selected()), (&Dialog::Help(line), "bbb"), "{key:?}");
    }
    assert_eq!(fixture.press("q"), None);
    assert_eq!(fixture.ui.dialog, Dialog::None);
    assert_eq!(fixture.press("q"), END);
}

#[test]
fn exports_copies_and_quitting_are_returned_as_effects() {
    let mut fixture = Fixture::new();
    fixture.press("e");
    assert_eq!(fixture.ui.dialog, Dialog::Export);
    assert_eq!(fixture.press("h"), Some(Effect::Export(ExportAs::Html)));
    assert_eq!(fixture.ui.dialog, Dialog::None);
    assert_eq!(fixture.press("2y"), Some(Effect::CopyToClipboard("bbb".into())));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(keys::action_of_key(&ctrl_c, &fixture.ui), Some(Action::Quit));
}

#[test]
fn playback_keys_work_only_in_a_replay() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.press("}"), None);
    assert_eq!(fixture.press("r"), Some(Effect::Command(ScreenCommand::Record)));
    assert_eq!(fixture.press("d"), Some(Effect::Command(ScreenCommand::Dump)));
    fixture.ui.is_replay = true;
    assert_eq!(fixture.press("r"), None, "a recording is not recorded");
    for (key, play) in [
        ("p", Play::Toggle),
        ("]", Play::Speed(1)),
        ("[", Play::Speed(-1)),
        (",", Play::Skip(-10)),
        (".", Play::Skip(10)),
        ("}", Play::NextFinding),
        ("{", Play::PreviousFinding),
        ("0", Play::To(0)),
        ("$", Play::End),
    ] {
        assert_eq!(fixture.press(key), Some(Effect::Command(ScreenCommand::Play(play))), "{key}");
    }
    assert_eq!(fixture.ui.paused_at_second, None, "the recording pauses, not the view");
}

#[test]
fn a_finding_that_a_seek_reaches_is_selected_once() {
    let mut fixture = Fixture::new();
    fixture.model.findings[1].verdict.hop = "a->b".into();
    let sought = Some(FindingKey { kind: "", hop: "a->b".into() });
    fixture.model.position = Some(Position { sought, ..Position::default() });
    fixture.update();
    assert_eq!(fixture.ui.selected_index(Tab::Findings), 1);
    assert!(fixture.ui.message.as_deref().is_some_and(|text| text.contains("is first seen here")));
    fixture.press("5k");
    assert_eq!(fixture.ui.selected_index(Tab::Findings), 0, "the user may select another");
    fixture.model.position = Some(Position::default());
    fixture.update();
    fixture.model.position = Some(Position { sought: fixture.ui.selected_sought.clone(), ..Position::default() });
    assert_eq!(fixture.ui.selected_sought, None, "another seek starts");
    fixture.model.findings[1].kind = "first-token-gap";
    let sought = Some(FindingKey { kind: "first-token-gap", hop: "b->c".into() });
    fixture.model.position = Some(Position { sought, ..Position::default() });
    fixture.update();
    assert_eq!(fixture.ui.selected_index(Tab::Findings), 1, "its worst hop is another one now");
}

#[test]
fn a_typed_time_is_sought() {
    let mut fixture = Fixture::new();
    fixture.ui.is_replay = true;
    let position = Position { at_ns: 5_000_000_000, whole_ns: 70_000_000_000, ..Position::default() };
    fixture.model.position = Some(position);
    assert_eq!(fixture.press("t1:2x\n"), None);
    assert_eq!(fixture.ui.dialog, Dialog::Time("1:2x".into()));
    assert_eq!(fixture.press("\x08\n"), Some(Effect::Command(ScreenCommand::Play(Play::To(62_000_000_000)))));
    assert_eq!(fixture.ui.dialog, Dialog::None);
    assert_eq!(fixture.press("t+10s\n"), Some(Effect::Command(ScreenCommand::Play(Play::To(15_000_000_000)))));
    assert_eq!(fixture.press("t71s\n"), None);
    assert_eq!(fixture.ui.dialog, Dialog::Time("71s".into()), "a time outside the run is refused");
    fixture.press("\x1bt\x1b");
    assert_eq!(fixture.ui.dialog, Dialog::None);
    for outside in ["gap>1s at:71s", "-since:2h", "at:71s..72s"] {
        fixture.press(&format!("/{outside}\n"));
        let filter_error = fixture.ui.parse_filter(outside, &fixture.model).expect_err(outside);
        assert!(
            filter_error.message.starts_with("outside the run, 0:00 to 1:10: type for example 0:35"),
            "{filter_error}"
        );
        assert_eq!(fixture.ui.dialog, Dialog::Filter(outside.into()), "a time outside the run is refused");
        fixture.press("\x1b");
    }
    fixture.press("/at:60s..90s\n");
    assert_eq!((fixture.ui.dialog == Dialog::None, &*fixture.ui.filter.text), (true, "at:60s..90s"));
}

#[test]
fn no_key_panics_on_an_empty_screen() {
    let mut fixture = Fixture { model: Model::default(), ui: Ui::default() };
    for tab in Tab::ALL {
        for &(code, modifiers) in keys::BINDINGS.iter().flat_map(|binding| binding.keys) {
            (fixture.ui.tab, fixture.ui.dialog) = (tab, Dialog::None);
            if let Some(action) = keys::action_of_key(&KeyEvent::new(code, modifiers), &fixture.ui) {
                fixture.apply(action);
            }
        }
    }
}

#[test]
fn the_palette_finds_an_action_by_its_words_and_executes_it() {
    let mut fixture = Fixture::new();
    fixture.press(":sort right");
    assert_eq!(keys::palette_entries("sort right", &fixture.ui).len(), 1);
    let before = fixture.ui.sort.column;
    fixture.press("\n");
    let state = (fixture.ui.tab, fixture.ui.sort.column, &fixture.ui.dialog);
    assert_eq!(state, (Tab::Requests, before.neighbour(1), &Dialog::None));
    fixture.press(":sort");
    fixture.key(KeyCode::Down);
    fixture.key(KeyCode::Down);
    fixture.key(KeyCode::Up);
    assert_eq!(fixture.ui.dialog, Dialog::Palette { words: "sort".into(), selected: 1 });
    fixture.press("\x1b:no such action");
    assert_eq!(fixture.press("\n"), None);
    assert!(matches!(fixture.ui.dialog, Dialog::Palette { .. }), "no match, no effect");
    fixture.press("\x1b");
    assert_eq!(fixture.ui.dialog, Dialog::None);
    assert_eq!(fixture.press(":q\n"), END, "the action of the key, not the first one with this letter");
}

#[test]
fn the_palette_lists_every_applicable_action() {
    let fixture = Fixture::new();
    let other_places = ["in a replay", "several runs"];
    let all = keys::BINDINGS.iter().filter(|b| !other_places.contains(&b.context_name())).count();
    assert_eq!(keys::palette_entries("", &fixture.ui).len(), all - 1, "all but the list itself");
}

#[test]
fn a_saved_filter_is_applied_by_name() {
    let mut fixture = Fixture::new();
    fixture.ui.options.filters = vec![SavedFilter::parse("slow=gap>4ns").expect("a filter")];
    fixture.press("/@slow\n");
    assert_eq!((&*fixture.ui.filter.text, fixture.model.table.visible_count()), ("gap>4ns", 2));
    fixture.press("\x1b:@slow\n");
    assert_eq!(fixture.model.table.visible_count(), 2);
}

#[test]
fn quitting_during_a_recording_asks_once() {
    let mut fixture = Fixture::new();
    fixture.model.run.stage = "live";
    fixture.model.writing.recording = Some(session::sink::WrittenFile::default());
    assert_eq!(fixture.press("q"), None);
    assert!(fixture.ui.message.as_deref().is_some_and(|text| text.contains("q again")));
    assert_eq!(fixture.press("1q"), None, "another key cancels quitting");
    assert_eq!(fixture.press("q"), END);
}

#[test]
fn a_click_on_a_header_sorts_a_second_reverses_and_s_resets() {
    let mut fixture = Fixture::new();
    let column = RequestColumn::with_heading("gap");
    for descending in [true, false] {
        fixture.apply(Action::SortBy(column));
        assert_eq!(fixture.ui.sort, SortOrder { column, is_descending: descending });
    }
    fixture.press("2S");
    assert_eq!(fixture.ui.sort, SortOrder::default());
}

#[test]
fn enter_on_a_hop_opens_its_finding_and_back() {
    let mut fixture = Fixture::new();
    for name in ["scheduler->router", "router->tokenizer"] {
        fixture.model.hops.push(HopSummary { name: name.into(), ..HopSummary::default() });
    }
    fixture.model.findings[1].verdict.hop = "router->tokenizer".into();
    fixture.press("4j\n");
    assert_eq!((fixture.ui.tab, fixture.ui.selected_index(Tab::Findings)), (Tab::Findings, 1));
    fixture.ui.selected_indices[Tab::Hops as usize] = 0;
    fixture.press("\n");
    assert_eq!((fixture.ui.tab, fixture.ui.selected_index(Tab::Hops)), (Tab::Hops, 1));
    fixture.press("k\n");
    assert_eq!(fixture.ui.tab, Tab::Requests, "no finding about this hop");
}

#[test]
fn a_click_on_a_plot_moves_the_end_of_the_time_axis() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.apply(Action::GoToSecond(40)), None);
    assert_eq!(fixture.end(), 40);
    fixture.ui.is_replay = true;
    assert_eq!(
        fixture.apply(Action::GoToSecond(40)),
        Some(Effect::Command(ScreenCommand::Play(Play::To(40_000_000_000))))
    );
}
