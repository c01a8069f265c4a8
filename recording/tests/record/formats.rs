//! Recordings of every format version open and produce the expected reports; other major versions are refused.

use std::path::Path;

use outputs::report::{HopLine, Report};
use recording::{Recording, analyse};
use trace::detect::Severity;
use trace::detect::attribution::ThreadState;

use super::{Folder, open};

/// Report of a complete recording in format 2.0.
fn report(name: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let recording = open(folder.join(format!("2.0-{name}.tgap")));
    assert!(recording.is_indexed() && recording.missing().is_none());
    let (analysis, input) = analyse(&recording, crate::engine::ENGINES, &mut |_, _| {}).expect("it reads");
    let report = Report::of(&analysis, &input);
    assert!(report.own.degraded.is_empty() && report.own.events_missed == 0);
    report
}

#[test]
fn the_demo_report_matches_its_ground_truth() {
    let report = report("demo-race");
    let demo = report.demo.as_ref().expect("the demo's ground truth");
    let truth = |name: &str| demo["truth"][name].as_u64().expect(name);
    assert_eq!(report.chunks.sent, truth("chunks"));
    assert_eq!(report.tokens.sent, truth("tokens"));
    assert_eq!(report.requests.seen, truth("requests"));
    assert_eq!(report.chunks.dropped_confirmed, Some(truth("chunks_dropped")));
    assert_eq!(report.chunks.tokens_lost, Some(truth("tokens_lost")));
    assert_eq!((report.source.kind.as_str(), report.own.events), ("demo", 7_166));
}

/// Checks the two runs below against the engine's own counts: 198 frames, 12 of them without output, 2,646 chunks, 5,610 tokens
/// and 80 clients.
fn check_mixed_run(report: &Report) {
    assert_eq!(report.source.engine_version.as_deref(), Some("0.5.9"));
    assert_eq!(report.requests.seen, 80);
    assert_eq!(report.requests.aborted, 14);
    assert_eq!(report.requests.live, 0);
    assert_eq!((report.tokens.sent, report.chunks.sent), (5_610, 2_646));
    assert!(report.findings.is_empty());
}

#[test]
fn the_tap_report_has_sent_tokens_and_no_unobserved_values() {
    let report = report("tap-0.5.9");
    check_mixed_run(&report);
    assert_eq!((report.source.kind.as_str(), report.own.events), ("tap", 399));
    assert!(report.gap_ns.is_none() && report.tokens.received.is_none() && report.chunks.dropped_confirmed.is_none());
    let is_without_relay = |hop: &HopLine| hop.frames_forwarded.is_none() && hop.relay_ns.is_none();
    assert!(report.hops.iter().all(is_without_relay), "forwards of format 2.0 are skipped");
}

#[test]
fn the_attach_report_has_receive_times() {
    let report = report("attach-0.5.9");
    check_mixed_run(&report);
    assert_eq!((report.source.kind.as_str(), report.own.events), ("attach", 1_343));
    let gap = report.gap_ns.as_ref().expect("receives were observed");
    assert_eq!((gap.count, gap.max), (74, Some(1_203_173)));
    let received: Vec<_> = report.hops.iter().map(|hop| (hop.frames_sent, hop.frames_received)).collect();
    assert_eq!(received, [186, 186, 12].map(|frames| (Some(frames), Some(frames))));
    assert!(report.tokens.delivered.is_none() && report.chunks.dropped_confirmed.is_none());
}

#[test]
fn tokens_lost_by_the_real_engine_are_confirmed() {
    let report = report("egress-0.5.9");
    // Counted by its 64 HTTP clients: 6,656 of 12,800 tokens were delivered.
    assert_eq!((report.tokens.sent, report.tokens.delivered), (12_800, Some(6_656)));
    assert_eq!(report.chunks.dropped_confirmed, Some(6_144));
    assert_eq!(report.chunks.tokens_lost, Some(6_144));
    assert_eq!(report.hops[0].backlog_max_frames, Some(208));
    let worst = &report.findings[0];
    assert_eq!(worst.kind.as_str(), "dropped-chunks");
    assert_eq!(worst.severity, Severity::Critical);
}

#[test]
fn a_stopped_tokenizer_of_a_real_server_is_reported_as_stopped() {
    let report = report("stopped-0.5.9");
    // Counted by the clients: 166 streams of 10,607 tokens, of which 1,196 never arrived.
    assert_eq!((report.requests.seen, report.tokens.sent), (166, 10_607));
    assert_eq!(report.chunks.tokens_lost, Some(1_196));
    let consumer: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.kind.starts_with("consumer-"))
        .map(|finding| (finding.kind.as_str(), &finding.evidence["stopped"]))
        .collect();
    assert_eq!(consumer, [("consumer-stopped", &serde_json::json!(0.966))]);
    let waits = report.path.iter().filter_map(|leg| leg.thread);
    assert!(waits.clone().any(|thread| thread == ThreadState::Stopped));
    assert!(!waits.clone().any(|thread| thread == ThreadState::Starved));
}

#[test]
fn another_major_version_is_refused_with_its_number() {
    let (_folder, file) = Folder::with_run();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/2.0-demo-race.tgap");
    let mut bytes = std::fs::read(fixture).expect("it is read");
    for (major, expected) in [(1, "format 1.0"), (3, "format 3.0")] {
        bytes[8] = major;
        std::fs::write(&file, &bytes).expect("it is written");
        let error = Recording::open(&file).map(drop).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}
