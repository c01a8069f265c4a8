//! A complete recording is read as written.

use proptest::prelude::*;

use super::{Folder, compare, events, options, record};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_event_survives_a_round_trip(inputs in events::inputs(), block in prop::sample::select(vec![1, 200, 1 << 20])) {
        let folder = Folder::new();
        let file = folder.file("run.tgap");
        let summary = record(&file, &inputs, options(block));
        prop_assert_eq!((summary.records, summary.dropped), (inputs.len() as u64, 0));
        prop_assert_eq!(compare(&file, &inputs), inputs.len());
    }
}
