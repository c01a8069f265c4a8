//! The list of runs at the widths at which columns appear.

use trace::detect::Severity;
use trace::detect::order::FindingRank;

use crate::state::action::Tab;
use crate::state::flags::{Health, RunVerdict};
use crate::state::pods::{KeyFigures, PairLine, PairProblem, PodLine, PodState, WorstLeg};
use crate::state::tests::scene::MS;
use crate::view::tests::race;

/// Finding of a pair of which most requests wait in the prefill server's queue.
fn prefill_queue() -> PairProblem {
    let text =
        "62 % of TTFT was spent in the prefill server's queue: up to 4.1 s, 1 s or more in 120 of 1,812 requests";
    PairProblem {
        kind: "prefill-queue".to_owned(),
        verdict: RunVerdict { health: Health::Warning, text: text.to_owned(), ..RunVerdict::default() },
        rank: FindingRank { severity: Severity::Warning, is_recent: true, explained_ns: 600_000 * MS },
    }
}

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
    let runs = [
        PodLine {
            figures: sick,
            ..line("sglang:30000", "prefill", 30_000, "Qwen3-235B-A22B-Instruct", PodState::Live)
        },
        PodLine {
            figures: KeyFigures {
                requests_seen: 123_456,
                ttft_p50_ns: Some(182 * MS),
                ttft_p99_ns: Some(12_345 * MS),
                worst_leg: Some(WorstLeg { name: "queue".to_owned(), share: 0.62, is_wait: false }),
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
    let pair = PairLine {
        decode: "sglang:30000-2".to_owned(),
        prefill: vec!["sglang:30000".to_owned()],
        requests: 1_812,
        newest_finished: Some(2_000),
        worst_leg: "most of TTFT: prefill's queue, 62 % of it (mean 112.3 ms of 181.0 ms over 1,812 requests)"
            .to_owned(),
        finding: Some(prefill_queue()),
    };
    fixture.model.set_runs_with_pair_findings(&runs, &[pair], 0);
    fixture.ui.tab = Tab::Pods;
    for (width, height) in [(80, 24), (100, 24), (140, 24), (200, 24)] {
        insta::assert_snapshot!(format!("runs_{width}x{height}"), fixture.drawn((width, height), "C.UTF-8"));
    }
}

#[test]
fn the_finding_of_a_pair_is_that_of_its_decode_server_unless_that_has_a_worse_one() {
    let run = |name: &str, health, severity, explained_ns| {
        let verdict = RunVerdict { health, text: "its own".to_owned(), ..RunVerdict::default() };
        let worst_rank = FindingRank { severity, is_recent: true, explained_ns };
        let figures = KeyFigures { verdict, worst_rank, ..KeyFigures::default() };
        PodLine { name: name.to_owned(), figures, ..PodLine::default() }
    };
    let pair = PairLine {
        decode: "decode".to_owned(),
        prefill: vec!["prefill".to_owned()],
        finding: Some(prefill_queue()),
        ..PairLine::default()
    };
    let of_pair = " ! WARNING  decode: 62 % of TTFT was spent in the prefill server's queue";
    let mut fixture = race();
    fixture.ui.tab = Tab::Pods;
    for (health, severity, explained_ns, expected) in [
        (Health::Unknown, Severity::Info, 0, of_pair),
        (Health::Warning, Severity::Warning, 600_000 * MS, of_pair),
        (Health::Warning, Severity::Warning, 600_001 * MS, " ! WARNING  decode: its own"),
        (Health::Critical, Severity::Critical, 0, " ✗ CRITICAL  decode: its own"),
    ] {
        // A smaller problem of another run, which is listed first.
        let other = run("prefill", Health::Warning, Severity::Warning, 1);
        fixture.model.set_runs_with_pair_findings(
            &[other, run("decode", health, severity, explained_ns)],
            std::slice::from_ref(&pair),
            0,
        );
        let drawn = fixture.drawn((140, 24), "C.UTF-8");
        assert!(drawn.lines().nth(1).is_some_and(|headline| headline.starts_with(expected)), "{drawn}");
        let line = drawn.lines().find(|line| line.starts_with(" ! decode ") || line.starts_with(" ✗ decode "));
        assert_eq!(line.is_some_and(|line| line.ends_with("  prefill-queue")), expected == of_pair, "{drawn}");
    }
    let mut information = prefill_queue();
    information.verdict.health = Health::Info;
    let pair = PairLine { finding: Some(information), ..pair };
    fixture.model.set_runs_with_pair_findings(&[run("decode", Health::Unknown, Severity::Info, 0)], &[pair], 0);
    assert!(fixture.drawn((140, 24), "C.UTF-8").contains("  decode: its own"));
}

#[test]
fn a_server_of_a_pair_is_not_advised_to_be_observed_with_the_other_one() {
    let advice = "`tokengap report` of the recordings of both servers, or one `tokengap attach` to both";
    let verdict = || RunVerdict { advice: Some(advice.to_owned()), ..RunVerdict::default() };
    let runs = ["prefill", "decode", "single"].map(|name| {
        let figures = KeyFigures { verdict: verdict(), ..KeyFigures::default() };
        PodLine { name: name.to_owned(), figures, ..PodLine::default() }
    });
    let pair = PairLine { decode: "decode".to_owned(), prefill: vec!["prefill".to_owned()], ..PairLine::default() };
    let mut fixture = race();
    for (pairs, are_advised) in [(vec![], [true; 3]), (vec![pair], [false, false, true])] {
        let shown = [0, 1, 2].map(|shown_run| {
            fixture.model.verdict = verdict();
            fixture.model.set_runs_with_pair_findings(&runs, &pairs, shown_run);
            fixture.model.verdict.advice.is_some()
        });
        assert_eq!(shown, are_advised);
        let listed: Vec<bool> = fixture.model.pods.iter().map(|run| run.figures.verdict.advice.is_some()).collect();
        assert_eq!(listed, are_advised);
    }
}

#[test]
fn more_pairs_than_fit_are_counted() {
    let mut fixture = race();
    fixture.model.pods = vec![PodLine::default(); 40];
    fixture.model.pairs = vec![PairLine { decode: "sglang:30001".to_owned(), ..PairLine::default() }; 5];
    fixture.ui.tab = Tab::Pods;
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert_eq!(drawn.matches("→ sglang:30001: 0 joined requests").count(), 3, "{drawn}");
    assert!(drawn.contains("2 more pairs") && drawn.contains("more: Up Down"), "{drawn}");
}

#[test]
fn sick_runs_have_a_row_for_their_finding_the_worst_first_while_rows_are_free() {
    let mut fixture = race();
    let run = |health, finding: &str, text: &str| {
        let verdict = RunVerdict { health, text: text.to_owned(), ..RunVerdict::default() };
        let figures = KeyFigures { verdict, finding: Some(finding.to_owned()), ..KeyFigures::default() };
        PodLine { name: format!("run of {finding}"), role: "decode", figures, ..PodLine::default() }
    };
    let warning =
        run(Health::Warning, "queued", "requests wait up to 1,234 ms in the scheduler's queue, and 56 requests wait");
    let critical = run(Health::Critical, "consumer-stopped", "the tokenizer is stopped");
    let healthy = run(Health::Good, "burst", "");
    fixture.model.pods = vec![warning.clone(), healthy.clone(), critical.clone()];
    fixture.ui.tab = Tab::Pods;
    for size in [(80, 24), (100, 24)] {
        let drawn = fixture.drawn(size, "C.UTF-8");
        let role = if size.0 < 96 { "decode " } else { "" };
        assert!(drawn.contains(&format!("     {role}WARNING queued: requests wait up to 1,234 ms in")), "{drawn}");
        assert!(drawn.contains(&format!("     {role}CRITICAL consumer-stopped: the tokenizer is stopped")), "{drawn}");
        assert!(!drawn.contains("ok burst"), "{drawn}");
    }
    assert!(!fixture.drawn((140, 24), "C.UTF-8").contains("WARNING queued:"));
    // Of 24 rows, 20 are of the tab, and 9 of them for other lines.
    fixture.model.pods = [vec![warning, critical], vec![healthy; 8]].concat();
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains("CRITICAL consumer-stopped:") && !drawn.contains("WARNING queued:"), "{drawn}");
}
