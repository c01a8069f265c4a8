//! A recording's report equals the live run's report.

use outputs::report::Report;
use recording::{Recorder, analyse};
use trace::{Analysis, ReportInput};

use super::{Folder, header, open, options, traffic};

#[test]
fn a_replay_gives_the_report_of_the_live_run() {
    let (_folder, file) = Folder::with_run();
    let mut header = header();
    header.config.limits.live_rids = 30;
    let mut analysis = Analysis::new(header.config);
    let mut recorder = Recorder::create(&file, &header, options(3_000)).expect("a new file");
    let inputs = traffic(500, 40, 23);
    super::feed(&mut recorder, &inputs);
    for input in &inputs {
        super::live::apply(&mut analysis, input);
    }
    let input = ReportInput {
        slowest: 3,
        cpu_ns: Some(12),
        rss_bytes: Some(13),
        degraded: vec!["an example".into()],
        wire: Some(serde_json::json!({"forms": []})),
        wall: Some(header.anchor),
        ..ReportInput::for_source("model")
    };
    recorder.finish(&input).expect("finished");
    let recording = open(&file);
    let mut steps = Vec::new();
    let (replayed, replayed_input) = analyse(&recording, crate::engine::ENGINES, &mut |done, total| {
        steps.push((done, total));
    })
    .expect("readable");
    let live = Report::of(&analysis, &input);
    assert!(!live.findings.is_empty() && live.requests.finished > 800);
    assert_eq!(Report::of(&replayed, &replayed_input).to_json(), live.to_json());
    assert!(steps.is_sorted() && steps.len() == recording.blocks().len());
    assert_eq!(steps.last(), Some(&(recording.bytes(), recording.bytes())));
}

#[test]
fn a_damaged_block_is_skipped_and_reported() {
    let (_folder, file) = Folder::with_run();
    super::record(&file, &traffic(500, 40, 23), options(3_000));
    let block = open(&file).blocks()[2];
    let mut bytes = std::fs::read(&file).expect("a file");
    bytes[(block.offset + block.bytes - 5) as usize] ^= 4;
    std::fs::write(&file, bytes).expect("a changed file");
    let recording = open(&file);
    let (analysis, input) = analyse(&recording, crate::engine::ENGINES, &mut |_, _| {}).expect("readable");
    let report = Report::of(&analysis, &input);
    assert_eq!(report.own.events_missed, u64::from(block.records));
    assert!(!report.findings.iter().any(|f| f.kind == "wire-loss"), "missed observations are not reported as losses");
    let reported = report
        .own
        .degraded
        .iter()
        .any(|d| d.as_str().is_some_and(|d| d.contains("block 2") && d.contains("is damaged")));
    assert!(reported, "{:?}", report.own.degraded);
}
