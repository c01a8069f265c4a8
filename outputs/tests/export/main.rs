//! Reads back every format of one run and compares it with the report.

mod csv;
#[path = "../../../trace/tests/common/engine.rs"]
mod engine;
mod events;
mod hostile;
mod otlp;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod run;

use outputs::export::{Export, Format, Opening, Options};
use outputs::report::Report;
use serde_json::Value;
use trace::clock::Anchor;
use trace::{MonoNs, ReportInput};

/// Exports the run and returns the output and the report.
fn export(format: Format, options: Options) -> (String, Report) {
    let (out, report) = export_bytes(format, options);
    (String::from_utf8(out).expect("UTF-8"), report)
}

fn export_bytes(format: Format, options: Options) -> (Vec<u8>, Report) {
    let events = run::events();
    let mut opening = Opening::new("demo", "0.1.0", Anchor { mono: MonoNs(run::START), wall_ns: run::WALL });
    events.iter().take_while(|event| opening.read_if_in_opening(event)).count();
    let mut out = Vec::new();
    let mut export = Export::new(format, options, engine::config(), &opening, &mut out).expect("a vector");
    let mut tick = run::START;
    for event in &events {
        while tick < event.at.0 {
            export.tick(MonoNs(tick)).expect("a vector");
            tick += 100 * run::MS;
        }
        export.event(event).expect("a vector");
    }
    // Long enough for finished requests to be closed.
    for _ in 0..30 {
        export.tick(MonoNs(tick)).expect("a vector");
        tick += 100 * run::MS;
    }
    let report = export.finish(&ReportInput::for_source("demo")).expect("a vector");
    (out, report)
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Checks the content of the run; otherwise the other tests could pass on empty data.
#[test]
fn the_run_has_losses_and_open_requests() {
    let (_, report) = export(Format::Csv, Options::default());
    assert_eq!(report.requests.seen, 12);
    assert_eq!((report.requests.live, report.requests.aborted), (3, 1));
    assert!(report.chunks.dropped_confirmed > Some(50), "{:?}", report.chunks);
    assert!(report.findings.len() > 1);
    assert!(report.gap_ns.as_ref().is_some_and(|gap| gap.count == 12 && gap.max > Some(100_000_000)));
}
