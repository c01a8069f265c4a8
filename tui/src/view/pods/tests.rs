//! The list of runs at the widths at which columns appear.

use crate::state::action::Tab;
use crate::state::pods::{KeyFigures, PodLine, PodState, WorstLeg};
use crate::state::scene::MS;
use crate::view::tests::race;

#[test]
fn the_list_of_runs_shows_each_engine_and_totals() {
    let sick = KeyFigures::from_analysis(&race().scene.analysis);
    let line = |name: &str, role, port, model: &str, state| PodLine {
        name: name.to_owned(),
        role,
        port: Some(port),
        model: model.to_owned(),
        state,
        state_age_ns: 5_020 * MS,
        ..PodLine::default()
    };
    let idle = KeyFigures::default();
    let mut fixture = race();
    fixture.refresh();
    fixture.model.pods = vec![
        PodLine {
            figures: sick,
            ..line("sglang:30000", "prefill", 30_000, "Qwen3-235B-A22B-Instruct", PodState::Live)
        },
        PodLine {
            figures: KeyFigures {
                requests_seen: 123_456,
                ttft_p50_ns: Some(182 * MS),
                ttft_p99_ns: Some(12_345 * MS),
                worst_leg: Some(WorstLeg { name: "queue".to_owned(), share: 0.62 }),
                ..idle.clone()
            },
            ..line("sglang:30000-2", "decode", 30_000, "Qwen3-235B-A22B-Instruct", PodState::Live)
        },
        PodLine {
            reason: "engine: it has not been started again".to_owned(),
            figures: idle,
            ..line("vllm:8000", "", 8_000, "", PodState::Waiting)
        },
    ];
    fixture.model.run_list_note =
        Some("engine: limit of 3 reached (--max-engines), 1 not watched: vllm:8001".to_owned());
    fixture.ui.tab = Tab::Pods;
    for (width, height) in [(80, 24), (100, 24), (140, 24), (200, 24)] {
        insta::assert_snapshot!(format!("runs_{width}x{height}"), fixture.drawn((width, height), "C.UTF-8"));
    }
}
