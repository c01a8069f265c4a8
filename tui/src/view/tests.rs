//! Every view and dialog at 80x24 and 200x50, drawn from a real analysis of synthetic events.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use trace::event::{CpuSample, Finish, HotSample, Sees, Taken, ThreadPart, What};
use trace::{FrameId, HopId, ThreadId};

use super::*;
use crate::replay::{Doing, Play, Position, Speed};
use crate::sink::{Writing, Written};
use crate::state::journal::Journal;
use crate::state::refresh::{FINISHED_SHOWN, Outside};
use crate::state::scene::{MS, Scene};
use crate::state::ui::Sort;
use crate::theme::Surroundings;

const SIZES: [(u16, u16); 2] = [(80, 24), (200, 50)];

/// Model and user interface state, with the scene they are drawn from.
struct Stand {
    scene: Scene,
    model: Model,
    ui: Ui,
}

impl Stand {
    fn of(scene: Scene) -> Self {
        Self {
            scene,
            model: Model::default(),
            ui: Ui::default(),
        }
    }

    fn refresh(&mut self) {
        let degraded = Vec::new();
        let outside = Outside {
            source: "demo".into(),
            doing: "live",
            cpu: Some(0.042),
            rss_bytes: Some(24 << 20),
            degraded,
        };
        self.model.refresh(&self.scene.analysis, &outside);
        self.model
            .refresh_rows(&self.scene.analysis, FINISHED_SHOWN, &self.ui.pins);
        self.look();
    }

    /// Updates the selection and the detail as the run loop does before drawing.
    fn look(&mut self) {
        self.model.arrange(&self.ui.filter.1, self.ui.sort, &self.ui.pins);
        self.ui.settle(&self.model);
        if let (Tab::Request, Some(rid)) = (self.ui.tab, self.ui.selected.clone()) {
            self.model
                .refresh_detail(&self.scene.analysis, &self.scene.journal, &rid);
        }
    }

    fn press(&mut self, actions: &[Action]) {
        for &action in actions {
            self.ui.apply(action, &self.model);
            self.look();
        }
    }

    fn drawn(&self, (width, height): (u16, u16), locale: &str) -> String {
        let around = Surroundings {
            no_color: true,
            locale: locale.into(),
            ..Surroundings::default()
        };
        let theme = Theme::of(&around);
        on_terminal((width, height), |frame| drop(draw(&self.model, &self.ui, theme, frame)))
    }

    fn snapshot(&self, name: &str) {
        for size in SIZES {
            insta::assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), self.drawn(size, "C.UTF-8"));
        }
    }
}

/// Text content of a terminal of this size.
fn on_terminal((width, height): (u16, u16), draw: impl FnOnce(&mut Frame<'_>)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(draw).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..width)
            .filter_map(|x| buffer.cell((x, y)))
            .map(ratatui::buffer::Cell::symbol)
            .collect::<String>()
    };
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

/// A 0.5.9 engine under load whose tokenizer falls behind for seconds, receives in bursts, and loses queued chunks.
fn race() -> Stand {
    let mut stand = Stand::of(Scene::delivering());
    let rids: Vec<String> = (0..24)
        .map(|n| {
            format!(
                "{:032x}",
                0x5b92_f00d_u128.wrapping_mul(0x9e37_79b9_7f4a_7c15 * (n + 1))
            )
        })
        .collect();
    for frame in 0..300u64 {
        let at = 1_000 * MS + frame * 40 * MS;
        let born = (frame as usize / 4 + 1).min(rids.len());
        let of = |n: usize| (rids[n].as_str(), 1, frame as u32 + 1 - n as u32 * 4);
        let chunks: Vec<_> = (0..born)
            .filter(|&n| frame >= n as u64 * 4 && !(n < 6 && frame > 200))
            .map(of)
            .collect();
        stand.scene.send(at, &chunks);
        if frame == 200 {
            let last: Vec<_> = (0..6).map(|n| (rids[n].as_str(), 1, 202 - n as u32 * 4)).collect();
            stand.scene.finish(at + MS, &last, Finish::Stop);
        }
        // The tokenizer wakes at every fourth frame and receives two, so it falls behind.
        if frame % 4 == 3 {
            for take in 0..2 {
                let seq = frame / 4 * 2 + take;
                stand.scene.take(at + 5 * MS + take * MS, seq, frame);
            }
            let end = frame as u32 / 4 * 2 + 2;
            for (n, rid) in rids.iter().enumerate().take(4) {
                if let Some(to) = end.checked_sub(n as u32 * 4).filter(|&to| to > 1) {
                    stand.scene.deliver(at + 9 * MS, rid, 1 + n as u32 % 2, to);
                }
            }
        }
        if frame % 5 == 0 {
            stand.scene.tick(at + 10 * MS);
            stand.model.remember(&stand.scene.analysis);
        }
    }
    stand.refresh();
    stand
}

/// A run observed by a tap alone.
fn tapped() -> Stand {
    let mut stand = Stand::of(Scene::tapped());
    for frame in 0..100u64 {
        let at = 1_000 * MS + frame * 50 * MS;
        stand.scene.send_on(0, at, &[("5b92f00d", 1, frame as u32 + 1)], None);
        stand
            .scene
            .send_on(1, at + 2 * MS, &[("5b92f00d", 1, frame as u32 + 1)], None);
        stand.scene.tick(at + 3 * MS);
        stand.model.remember(&stand.scene.analysis);
    }
    stand.refresh();
    stand
}

#[test]
fn overview() {
    race().snapshot("overview");
    tapped().snapshot("overview_tapped");
    let mut empty = Stand::of(Scene::new(&[]));
    empty.refresh();
    empty.snapshot("overview_empty");
}

#[test]
fn a_long_path_is_a_list_where_it_does_not_fit() {
    let sees = Sees {
        sent: true,
        taken: true,
        ..Sees::default()
    };
    let hops = [
        "scheduler->router",
        "router->detokenizer",
        "detokenizer->router2",
        "router2->tokenizer",
    ];
    let mut stand = Stand::of(Scene::new(&hops.map(|name| (name, sees))));
    stand.scene.send(MS, &[("5b92f00d", 1, 1)]);
    stand.refresh();
    stand.snapshot("overview_routers");
}

#[test]
fn hops_with_long_names() {
    let sees = Sees {
        sent: true,
        taken: true,
        ..Sees::default()
    };
    let hops = [
        "scheduler->detokenizer-router",
        "detokenizer-router->detokenizer",
        "detokenizer->worker",
    ];
    let mut stand = Stand::of(Scene::new(&hops.map(|name| (name, sees))));
    stand.scene.send(MS, &[("5b92f00d", 1, 1)]);
    stand.refresh();
    stand.press(&[Action::Go(Tab::Hops)]);
    stand.snapshot("hops_routers");
}

#[test]
fn requests() {
    let mut stand = race();
    stand.press(&[Action::Go(Tab::Requests)]);
    stand.snapshot("requests");
    stand.press(&[Action::Move(2), Action::Pin, Action::Filter]);
    for c in "gap>1s drpo>0".chars() {
        stand.press(&[Action::Type(c)]);
    }
    stand.snapshot("requests_filter_mistake");
    stand.press(&[
        Action::EraseAll,
        Action::Type('0'),
        Action::Accept,
        Action::Sort(1),
        Action::Reverse,
    ]);
    stand.snapshot("requests_filtered");
}

#[test]
fn one_request() {
    let mut stand = race();
    stand.press(&[Action::Go(Tab::Requests), Action::Open]);
    stand.snapshot("request");
    stand.press(&[Action::Seek(1), Action::Seek(1), Action::Seek(1)]);
    assert_eq!(stand.ui.chunk, 4, "chunks 1, 3 and 5 were dropped");
    stand.press(&[Action::Seek(-1)]);
    assert_eq!(stand.ui.chunk, 2);
    let mut tapped = tapped();
    tapped.press(&[Action::Go(Tab::Request)]);
    tapped.snapshot("request_tapped");
    tapped.scene.journal = Journal::new(0);
    tapped.look();
    tapped.snapshot("request_forgotten");
}

#[test]
fn hops() {
    let mut stand = race();
    stand.press(&[Action::Go(Tab::Hops)]);
    stand.snapshot("hops");
    let mut stand = tapped();
    stand.press(&[Action::Go(Tab::Hops)]);
    stand.snapshot("hops_tapped");
}

#[test]
fn findings() {
    let mut stand = race();
    stand.press(&[Action::Go(Tab::Findings)]);
    stand.model.own.degraded =
        vec!["probe: eBPF is not permitted here; add CAP_BPF and CAP_PERFMON to the container".into()];
    stand.snapshot("findings");
}

#[test]
fn cpu_where_threads_are_watched() {
    let mut stand = race();
    stand.press(&[Action::Go(Tab::Cpu)]);
    assert_eq!(
        stand.ui.tab,
        Tab::Overview,
        "there is no such tab before there is something on it"
    );
    let threads = [
        ("scheduler", 4_000, 99, Some(0), None),
        ("tokenizer", 4_321, 61, Some(33), Some(2)),
        ("tokenizer", 4_329, 4, None, None),
        ("detokenizer", 4_330, 40, Some(45), Some(38)),
    ];
    for tenth in 130..230 {
        for &(role, tid, on_ms, wait_ms, throttled_ms) in &threads {
            let sample = CpuSample {
                thread: ThreadId { pid: 4_000, tid },
                role,
                name: "python3",
                part: ThreadPart::Main,
                interval_ns: 100 * MS,
                on_ns: on_ms * MS,
                wait_ns: wait_ms.map(|ms: u64| ms * MS),
                throttled_ns: throttled_ms.map(|ms: u64| ms * MS),
                poll: None,
                away: None,
            };
            stand.scene.say(tenth * 100 * MS, What::Cpu(sample));
        }
        stand.model.remember(&stand.scene.analysis);
    }
    let (id, by) = (
        FrameId {
            hop: HopId(0),
            lane: 0,
            seq: 150,
        },
        Some(ThreadId { pid: 4_000, tid: 4_321 }),
    );
    let taken = Taken {
        id,
        by,
        wakeup: None,
        frame: None,
    };
    stand.scene.say(23_000 * MS, What::Taken(taken));
    stand.refresh();
    stand.snapshot("overview_cpu");
    stand.press(&[Action::Go(Tab::Cpu)]);
    stand.snapshot("cpu");
    for (function, own, total) in [
        ("_handle_batch_output", 61, 80),
        ("recv_pyobj", 20, 22),
        ("generate", 4, 4),
    ] {
        let sample = HotSample {
            thread: ThreadId { pid: 4_000, tid: 4_321 },
            role: "tokenizer",
            function,
            file: "managers/tokenizer_manager.py",
            interval_ns: 1_000 * MS,
            taken: 100,
            total,
            own,
            gil: Some(own),
        };
        stand.scene.say(23_500 * MS, What::Hot(sample));
    }
    stand.refresh();
    stand.snapshot("cpu_functions");
}

#[test]
fn help() {
    let mut stand = race();
    stand.press(&[Action::Help]);
    stand.snapshot("help");
    stand.press(&[Action::Page(1), Action::Page(1)]);
    stand.snapshot("help_end");
}

#[test]
fn picking() {
    use crate::state::pick::{Kind, Offer, Pick};
    let offer = |kind, title: &str, note: &str, command: &[&str]| Offer {
        kind,
        title: title.into(),
        note: note.into(),
        command: command.iter().map(ToString::to_string).collect(),
    };
    let mut pick = Pick::default();
    pick.offer(
        Kind::Demo,
        vec![
            offer(Kind::Demo, "race", "tokens are lost", &["demo", "--scenario", "race"]),
            offer(Kind::Demo, "backlog", "tokens wait", &["demo", "--scenario", "backlog"]),
        ],
    );
    let show = |pick: &Pick, (width, height): (u16, u16)| {
        let around = Surroundings {
            no_color: true,
            locale: "C.UTF-8".into(),
            ..Surroundings::default()
        };
        on_terminal((width, height), |frame| {
            drop(pick::draw(pick, Theme::of(&around), frame));
        })
    };
    insta::assert_snapshot!("pick_80x24", show(&pick, (80, 24)));
    let engine = ["attach", "--pid", "4711"];
    pick.offer(
        Kind::Engine,
        vec![offer(
            Kind::Engine,
            "SGLang 0.5.9",
            "attach to its 3 processes",
            &engine,
        )],
    );
    pick.looked = true;
    pick.blind = vec!["processes of other users: CAP_SYS_PTRACE is missing".into()];
    insta::assert_snapshot!("pick_200x50", show(&pick, (200, 50)));
    for size in [(1, 1), (0, 0), (80, 5), (20, 6)] {
        show(&pick, size);
    }
}

/// Playback of the race as a recording of one minute.
fn replay() -> Stand {
    let mut stand = race();
    stand.ui.replay = true;
    stand.model.position = Some(Position {
        at_ns: 12_000 * MS,
        whole_ns: 60_000 * MS,
        wall_ns: Some(1_768_722_900_330_146_000),
        speed: Speed::default(),
        doing: Doing::Playing,
        since_ns: None,
    });
    stand
}

#[test]
fn playing_a_recording() {
    let mut stand = replay();
    stand.snapshot("replay");
    stand.press(&[Action::Time]);
    for c in "1:2x".chars() {
        stand.press(&[Action::Type(c)]);
    }
    let position = stand.model.position.as_mut().expect("a replay");
    (position.doing, position.since_ns) = (Doing::Paused, Some(5_000 * MS));
    stand.snapshot("replay_time");
    stand.press(&[Action::Back, Action::Help, Action::Page(1)]);
    stand.snapshot("replay_help");
}

#[test]
fn a_click_on_the_bar_goes_there() {
    let stand = replay();
    let mut hits = Hits::default();
    let theme = Theme::of(&Surroundings::default());
    on_terminal((80, 24), |frame| hits = draw(&stand.model, &stand.ui, theme, frame));
    let places: Vec<u64> = (0..80)
        .filter_map(|x| match hits.at(x, 22) {
            Some(Action::Play(Play::To(ns))) => Some(ns),
            _ => None,
        })
        .collect();
    assert!(places.len() >= 20 && places.is_sorted(), "{places:?}");
    assert_eq!((places.first(), places.last()), (Some(&0), Some(&(60_000 * MS))));
}

#[test]
fn what_is_written_is_on_the_screen() {
    let mut stand = race();
    let written = |bytes, dropped| Written {
        name: "run.tgap".into(),
        bytes,
        dropped,
    };
    stand.model.writing = Writing {
        recording: Some(written(5 << 20, 12)),
        ring: Some(written(64 << 20, 0)),
        feed: None,
    };
    stand.snapshot("recording");
}

#[test]
fn below_the_smallest_size_it_says_so() {
    let small = race().drawn((60, 6), "C.UTF-8");
    for text in [
        "needs 80x24; this is 60x6",
        "CRITICAL  146 chunks never delivered",
        "scheduler→tokenizer backlog 151, oldest 5.97 s",
    ] {
        assert!(small.contains(text), "{text} in {small}");
    }
    assert!(race().drawn((79, 24), "C.UTF-8").contains("needs 80x24; this is 79x24"));
    for size in [(1, 1), (0, 0), (80, 1), (5, 60)] {
        race().drawn(size, "C");
    }
}

#[test]
fn without_utf8_nothing_but_ascii_is_drawn() {
    let mut stand = race();
    for tab in Tab::ALL {
        stand.press(&[Action::Go(tab)]);
        let text = stand.drawn((200, 50), "C");
        assert!(text.is_ascii(), "{tab:?}: {text}");
    }
}

#[test]
fn a_click_on_a_tab_or_a_row_is_its_action() {
    let mut stand = race();
    stand.press(&[Action::Go(Tab::Requests)]);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal in memory");
    let mut hits = Hits::default();
    let theme = Theme::of(&Surroundings::default());
    terminal
        .draw(|frame| hits = draw(&stand.model, &stand.ui, theme, frame))
        .expect("drawn");
    assert_eq!(hits.at(12, 0), Some(Action::Go(Tab::Overview)));
    assert_eq!(
        (hits.at(5, 4), hits.at(5, 5), hits.at(5, 1)),
        (Some(Action::Pick(0)), Some(Action::Pick(1)), None)
    );
}

#[test]
fn every_size_and_tab_can_be_drawn() {
    let mut stand = race();
    for tab in Tab::ALL {
        stand.press(&[Action::Go(tab)]);
        for width in (78..260).step_by(13) {
            for height in (22..70).step_by(7) {
                stand.drawn((width, height), "C.UTF-8");
            }
        }
    }
}

#[test]
fn ten_thousand_requests_are_sorted_filtered_and_drawn() {
    let mut scene = Scene::delivering();
    for n in 0..10_000u64 {
        scene.send(MS * n, &[(format!("{n:032x}").as_str(), 1, 1)]);
    }
    let mut stand = Stand::of(scene);
    stand.refresh();
    stand.press(&[Action::Go(Tab::Requests)]);
    stand.ui.sort = Sort {
        column: crate::state::row::Column::Gap,
        descending: true,
    };
    stand.look();
    assert_eq!(
        (stand.model.visible_count(), stand.model.visible(0).map(|r| r.gap_ns)),
        (10_000, Some(Some(9_999 * MS)))
    );
    assert!(stand.drawn((80, 24), "C.UTF-8").contains("00000000000000…"));
}
