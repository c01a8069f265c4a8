//! Key sequences of a user, and their results.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::action::{Action, Effect};
use crate::keys;
use crate::observer::Wish;
use crate::replay::Play;
use crate::state::Model;
use crate::state::flags::Flag;
use crate::state::history::Sample;
use crate::state::model::{FindingLine, HopLine};
use crate::state::row::{Column, Row};
use crate::state::ui::{Dialog, ExportAs, Saved, Sort, Tab, Ui, ZOOM};

/// A model with three requests and two findings, and its user interface state.
struct Seat {
    model: Model,
    ui: Ui,
}

impl Seat {
    fn new() -> Self {
        let mut model = Model::default();
        for (rid, gap, flag) in [("aaa", 1, Flag::Gap), ("bbb", 9, Flag::Dropped), ("ccc", 5, Flag::Gap)] {
            let mut row = Row {
                rid: rid.into(),
                gap_ns: Some(gap),
                ..Row::default()
            };
            row.flags.set(flag, true);
            *model.table.next() = row;
        }
        model.findings = vec![
            FindingLine {
                rid: "ccc".into(),
                ..FindingLine::default()
            },
            FindingLine {
                at_ns: 20_000_000_000,
                ..FindingLine::default()
            },
        ];
        for second in 0..100 {
            model.history.enter(second, Sample::default());
        }
        let mut seat = Self {
            model,
            ui: Ui {
                page: 2,
                ..Ui::default()
            },
        };
        seat.look();
        seat
    }

    fn look(&mut self) {
        self.model.arrange(&self.ui.filter.1, self.ui.sort, &self.ui.pins);
        self.ui.settle(&self.model);
    }

    fn key(&mut self, code: KeyCode) -> Option<Effect> {
        let action = keys::action(&KeyEvent::new(code, KeyModifiers::NONE), &self.ui)?;
        let effect = self.ui.apply(action, &self.model);
        self.look();
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
    let mut seat = Seat::new();
    seat.type_in("2");
    assert_eq!((seat.ui.tab, seat.selected()), (Tab::Requests, "bbb"));
    seat.type_in("j");
    assert_eq!(seat.selected(), "ccc");
    seat.key(KeyCode::Enter);
    assert_eq!(seat.ui.tab, Tab::Request);
    seat.key(KeyCode::Esc);
    assert_eq!((seat.ui.tab, seat.selected()), (Tab::Requests, "ccc"));
    seat.key(KeyCode::End);
    assert_eq!(seat.selected(), "aaa");
    seat.key(KeyCode::PageUp);
    assert_eq!(seat.selected(), "bbb");
}

#[test]
fn a_filter_is_typed_corrected_applied_and_cleared() {
    let mut seat = Seat::new();
    seat.type_in("/drpo>0");
    assert!(matches!(&seat.ui.dialog, Dialog::Filter(text, Some(wrong)) if text == "drpo>0" && wrong.at == 0));
    seat.key(KeyCode::Enter);
    assert!(matches!(seat.ui.dialog, Dialog::Filter(..)), "a mistake is not applied");
    for _ in 0.."drpo>0".len() {
        seat.key(KeyCode::Backspace);
    }
    seat.type_in("gap>4ns q");
    seat.key(KeyCode::Backspace);
    seat.key(KeyCode::Enter);
    assert_eq!(
        (seat.ui.dialog == Dialog::None, seat.ui.filter.0.as_str()),
        (true, "gap>4ns")
    );
    assert_eq!((seat.model.visible_count(), seat.selected()), (2, "bbb"));
    seat.key(KeyCode::Esc);
    assert_eq!((seat.model.visible_count(), seat.ui.filter.0.as_str()), (3, ""));
}

#[test]
fn a_pinned_request_stays_on_top_of_any_order() {
    let mut seat = Seat::new();
    seat.type_in("2G ");
    assert_eq!((seat.selected(), seat.model.place("aaa")), ("aaa", Some(0)));
    seat.type_in("<s>");
    assert_eq!(seat.model.place("aaa"), Some(0));
    seat.type_in(" ");
    assert!(seat.ui.pins.is_empty());
}

#[test]
fn following_keeps_the_worst_selected_until_the_reader_moves() {
    let mut seat = Seat::new();
    seat.type_in("2w");
    assert_eq!(seat.selected(), "bbb");
    seat.model.table.clear();
    let mut row = Row {
        rid: "zzz".into(),
        ..Row::default()
    };
    row.flags.set(Flag::Loss, true);
    *seat.model.table.next() = row;
    seat.look();
    assert_eq!(seat.selected(), "zzz");
    seat.type_in("k");
    assert!(!seat.ui.follow);
}

#[test]
fn a_finding_leads_to_its_request_or_to_its_moment() {
    let mut seat = Seat::new();
    seat.type_in("5");
    seat.key(KeyCode::Enter);
    assert_eq!((seat.ui.tab, seat.selected()), (Tab::Request, "ccc"));
    seat.type_in("5j");
    seat.key(KeyCode::Enter);
    assert_eq!((seat.ui.tab, seat.ui.time_end(&seat.model)), (Tab::Overview, 25));
}

#[test]
fn a_paused_view_stands_still_and_time_can_be_walked() {
    let mut seat = Seat::new();
    seat.type_in("p");
    seat.model.history.enter(150, Sample::default());
    assert_eq!(seat.ui.time_end(&seat.model), 99);
    seat.type_in("-h");
    assert_eq!((ZOOM[seat.ui.zoom], seat.ui.time_end(&seat.model)), (2, 89));
    seat.type_in("lp");
    assert_eq!((seat.ui.paused, seat.ui.time_end(&seat.model)), (None, 150));
    seat.type_in("++++++++");
    assert_eq!(ZOOM[seat.ui.zoom], 1);
}

#[test]
fn help_takes_the_keys_and_gives_them_back() {
    let mut seat = Seat::new();
    seat.type_in("2?j");
    assert_eq!((&seat.ui.dialog, seat.selected()), (&Dialog::Help(1), "bbb"));
    assert_eq!(seat.key(KeyCode::Char('q')), None);
    assert_eq!(seat.ui.dialog, Dialog::None);
    assert_eq!(seat.key(KeyCode::Char('q')), Some(Effect::Quit));
}

#[test]
fn what_only_the_loop_can_do_comes_back_as_an_effect() {
    let mut seat = Seat::new();
    seat.type_in("e");
    assert_eq!(seat.ui.dialog, Dialog::Export);
    assert_eq!(seat.key(KeyCode::Char('h')), Some(Effect::Export(ExportAs::Html)));
    assert_eq!(seat.ui.dialog, Dialog::None);
    seat.type_in("2");
    assert_eq!(seat.key(KeyCode::Char('y')), Some(Effect::Copy("bbb".into())));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(keys::action(&ctrl_c, &seat.ui), Some(Action::Quit));
}

#[test]
fn a_recording_is_played_by_keys_that_mean_nothing_live() {
    let play = |play| Some(Effect::Wish(Wish::Play(play)));
    let mut seat = Seat::new();
    assert_eq!(seat.key(KeyCode::Char('f')), None);
    assert_eq!(seat.key(KeyCode::Char('r')), Some(Effect::Wish(Wish::Record)));
    assert_eq!(seat.key(KeyCode::Char('d')), Some(Effect::Wish(Wish::Dump)));
    seat.ui.replay = true;
    assert_eq!(seat.key(KeyCode::Char('r')), None, "a recording is not recorded");
    for (key, wish) in [
        ('p', Play::Toggle),
        (']', Play::Pace(1)),
        ('[', Play::Pace(-1)),
        (',', Play::Skip(-10)),
        ('.', Play::Skip(10)),
        ('f', Play::Finding(true)),
        ('F', Play::Finding(false)),
        ('0', Play::To(0)),
        ('$', Play::End),
    ] {
        assert_eq!(seat.key(KeyCode::Char(key)), play(wish), "{key}");
    }
    assert_eq!(seat.ui.paused, None, "the recording pauses, not the view");
}

#[test]
fn a_time_is_typed_and_gone_to() {
    let mut seat = Seat::new();
    seat.ui.replay = true;
    seat.type_in("t1:2x");
    assert_eq!(seat.ui.dialog, Dialog::Time("1:2x".into(), false));
    assert_eq!(seat.key(KeyCode::Enter), None);
    seat.key(KeyCode::Backspace);
    assert_eq!(
        seat.key(KeyCode::Enter),
        Some(Effect::Wish(Wish::Play(Play::To(62_000_000_000))))
    );
    assert_eq!(seat.ui.dialog, Dialog::None);
    seat.type_in("t");
    seat.key(KeyCode::Esc);
    assert_eq!(seat.ui.dialog, Dialog::None);
}

#[test]
fn no_key_at_all_breaks_an_empty_screen() {
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
fn an_action_is_found_by_its_words_and_done() {
    let mut seat = Seat::new();
    seat.type_in(":sort right");
    assert_eq!(keys::found("sort right", &seat.ui).len(), 1);
    let before = seat.ui.sort.column;
    seat.key(KeyCode::Enter);
    let done = (seat.ui.tab, seat.ui.sort.column, &seat.ui.dialog);
    assert_eq!(done, (Tab::Requests, before.step(1), &Dialog::None));
    seat.type_in(":no such action");
    assert_eq!(seat.key(KeyCode::Enter), None);
    assert!(
        matches!(seat.ui.dialog, Dialog::Palette(..)),
        "nothing to do, nothing done"
    );
    seat.key(KeyCode::Esc);
    assert_eq!(seat.ui.dialog, Dialog::None);
}

#[test]
fn the_list_of_actions_has_every_key_that_holds() {
    let seat = Seat::new();
    let apart = ["in a replay", "in watch"];
    let all = keys::BINDINGS.iter().filter(|b| !apart.contains(&b.place())).count();
    assert_eq!(keys::found("", &seat.ui).len(), all - 1, "all but the list itself");
}

#[test]
fn a_saved_filter_is_put_in_force_by_its_name() {
    let mut seat = Seat::new();
    seat.ui.saved = vec![Saved {
        name: "slow".into(),
        text: "gap>4ns".into(),
        query: crate::state::query::Query::parse("gap>4ns").expect("a filter"),
    }];
    seat.type_in("/@slow");
    assert_eq!(seat.ui.dialog, Dialog::Filter("@slow".into(), None));
    seat.key(KeyCode::Enter);
    assert_eq!((seat.ui.filter.0.as_str(), seat.model.visible_count()), ("gap>4ns", 2));
    seat.key(KeyCode::Esc);
    seat.type_in(":@slow");
    seat.key(KeyCode::Enter);
    assert_eq!(seat.model.visible_count(), 2);
}

#[test]
fn who_ends_while_a_recording_is_written_is_asked_once() {
    let mut seat = Seat::new();
    seat.model.doing = "live";
    seat.model.writing.recording = Some(crate::sink::Written::default());
    assert_eq!(seat.key(KeyCode::Char('q')), None);
    assert!(seat.ui.message.as_deref().is_some_and(|said| said.contains("q again")));
    seat.type_in("1");
    assert_eq!(seat.key(KeyCode::Char('q')), None, "another key has answered no");
    assert_eq!(seat.key(KeyCode::Char('q')), Some(Effect::Quit));
}

#[test]
fn a_header_sorts_and_sorts_the_other_way_and_s_resets() {
    let mut seat = Seat::new();
    let sort = |seat: &mut Seat| {
        seat.ui.apply(Action::SortBy(Column::Gap), &seat.model);
        (seat.ui.sort.column, seat.ui.sort.descending)
    };
    assert_eq!(sort(&mut seat), (Column::Gap, true));
    assert_eq!(sort(&mut seat), (Column::Gap, false));
    seat.type_in("2S");
    assert_eq!(seat.ui.sort, Sort::default());
}

#[test]
fn enter_on_a_hop_leads_to_what_was_found_about_it_and_back() {
    let mut seat = Seat::new();
    for name in ["scheduler->router", "router->tokenizer"] {
        seat.model.hops.push(HopLine {
            name: name.into(),
            ..HopLine::default()
        });
    }
    seat.model.findings[1].hop = "router->tokenizer".into();
    seat.type_in("4j");
    seat.key(KeyCode::Enter);
    assert_eq!((seat.ui.tab, seat.ui.finding), (Tab::Findings, 1));
    seat.ui.hop = 0;
    seat.key(KeyCode::Enter);
    assert_eq!((seat.ui.tab, seat.ui.hop), (Tab::Hops, 1));
    seat.type_in("k");
    seat.key(KeyCode::Enter);
    assert_eq!(seat.ui.tab, Tab::Requests, "nothing was found about this one");
}

#[test]
fn a_click_on_a_plot_ends_the_lines_at_its_second() {
    let mut seat = Seat::new();
    assert_eq!(seat.ui.apply(Action::At(40), &seat.model), None);
    assert_eq!(seat.ui.time_end(&seat.model), 40);
    seat.ui.replay = true;
    let to = seat.ui.apply(Action::At(40), &seat.model);
    assert_eq!(to, Some(Effect::Wish(Wish::Play(Play::To(40_000_000_000)))));
}
