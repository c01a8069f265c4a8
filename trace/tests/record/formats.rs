//! Every released format keeps opening, and its recording comes to the report that it came to.

use std::path::Path;

use trace::record::{Recording, analyse};

#[test]
fn the_demo_in_format_1_0_still_tells_what_its_peers_counted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/recordings");
    let recording = Recording::open(folder.join("1.0-demo-race.tgap")).expect("it opens");
    assert!(recording.is_indexed() && recording.missing().is_none());
    let (analysis, input) = analyse(&recording, &mut |_, _| {}).expect("it reads");
    let report = analysis.report(&input);
    let demo = report.demo.as_ref().expect("the demo's truth is in it");
    let truth = |name: &str| demo["truth"][name].as_u64().expect(name);
    assert_eq!(report.chunks.sent, truth("chunks"));
    assert_eq!(report.tokens.sent, truth("tokens"));
    assert_eq!(report.requests.seen, truth("requests"));
    assert_eq!(report.chunks.dropped_confirmed, Some(truth("chunks_dropped")));
    assert_eq!(report.chunks.tokens_lost, Some(truth("tokens_lost")));
    assert_eq!((report.source.kind.as_str(), report.own.events), ("demo", 7_367));
}
