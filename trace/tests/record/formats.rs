//! Recordings of every format version still open and produce the same reports.

use std::path::Path;

use trace::detect::Severity;
use trace::record::{Recording, analyse};
use trace::report::{Report, ThreadState};

/// Report of a complete recording in format 1.0.
fn report(name: &str) -> Report {
    report_of(&format!("1.0-{name}.tgap"))
}

fn report_of(file: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings");
    let recording = Recording::open(folder.join(file)).expect("it opens");
    assert!(recording.is_indexed() && recording.missing().is_none());
    let (analysis, input) = analyse(&recording, &mut |_, _| {}).expect("it reads");
    let report = analysis.report(&input);
    assert!(report.own.degraded.is_empty() && report.own.events_missed == 0);
    report
}

#[test]
fn the_demo_in_format_1_0_still_tells_what_its_peers_counted() {
    let report = report("demo-race");
    let demo = report.demo.as_ref().expect("the demo's truth is in it");
    let truth = |name: &str| demo["truth"][name].as_u64().expect(name);
    assert_eq!(report.chunks.sent, truth("chunks"));
    assert_eq!(report.tokens.sent, truth("tokens"));
    assert_eq!(report.requests.seen, truth("requests"));
    assert_eq!(report.chunks.dropped_confirmed, Some(truth("chunks_dropped")));
    assert_eq!(report.chunks.tokens_lost, Some(truth("tokens_lost")));
    assert_eq!((report.source.kind.as_str(), report.own.events), ("demo", 7_367));
}

/// Checks the two runs below against the engine's own counts: 198 frames, 12 of them without output, 2,646 chunks, 5,610 tokens
/// and 80 clients.
fn is_the_mixed_run(report: &Report) {
    assert_eq!(report.source.engine_version.as_deref(), Some("0.5.9"));
    assert_eq!(
        (report.requests.seen, report.requests.aborted, report.requests.live),
        (80, 14, 0)
    );
    assert_eq!((report.tokens.sent, report.chunks.sent), (5_610, 2_646));
    assert!(report.findings.is_empty());
}

#[test]
fn a_tap_of_the_real_engine_still_tells_what_was_sent_and_claims_no_more() {
    let report = report("tap-0.5.9");
    is_the_mixed_run(&report);
    assert_eq!((report.source.kind.as_str(), report.own.events), ("tap", 783));
    assert!(report.gap_ns.is_none() && report.tokens.taken.is_none() && report.chunks.dropped_confirmed.is_none());
}

#[test]
fn an_attach_to_the_real_engine_still_tells_when_frames_were_taken() {
    let report = report("attach-0.5.9");
    is_the_mixed_run(&report);
    assert_eq!((report.source.kind.as_str(), report.own.events), ("attach", 1_343));
    let gap = report.gap_ns.as_ref().expect("takes were seen");
    assert_eq!((gap.count, gap.max), (74, Some(1_203_173)));
    let taken: Vec<_> = report
        .hops
        .iter()
        .map(|hop| (hop.frames_sent, hop.frames_taken))
        .collect();
    assert_eq!(taken, [186, 186, 12].map(|frames| (Some(frames), Some(frames))));
    assert!(report.tokens.delivered.is_none() && report.chunks.dropped_confirmed.is_none());
}

#[test]
fn what_the_real_engine_lost_is_still_confirmed() {
    let report = report("egress-0.5.9");
    // Counted by its 64 HTTP clients: 6,656 of 12,800 tokens were delivered.
    assert_eq!((report.tokens.sent, report.tokens.delivered), (12_800, Some(6_656)));
    assert_eq!(
        (report.chunks.dropped_confirmed, report.chunks.tokens_lost),
        (Some(6_144), Some(6_144))
    );
    assert_eq!(report.hops[0].backlog_max_frames, Some(208));
    let worst = &report.findings[0];
    assert_eq!(
        (worst.kind.as_str(), worst.severity),
        ("dropped-chunks", Severity::Critical)
    );
}

#[test]
fn a_stopped_tokenizer_of_a_real_server_is_still_called_stopped() {
    let report = report_of("1.2-stopped-0.5.9.tgap");
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
