//! Arbitrary events in arbitrary order: no panic, valid invariants, and a report.

use crate::any_event;
use outputs::report::{Clock, Report};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use trace::event::Event;
use trace::ledger::Limits;
use trace::{Analysis, Config, MonoNs, ReportInput};

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_events_keep_the_ledger_consistent(
        steps in vec((weighted(0.9, any_event::what()), 0_u64..3_000_000_000), 0..200), small in any::<bool>(),
    ) {
        let limits = Limits {
            live_rids: 2,
            finished_kept: 1,
            hops: 3,
            lanes_per_hop: 2,
            pending_frames: 3,
            pending_chunks: 4,
            early_receives: 2,
            in_flight_per_rid: 2,
            in_flight: 3,
            settle_ns: 4_000_000_000,
            orphan_after_ns: 9_000_000_000,
            ..Limits::default()
        };
        let limits = if small { limits } else { Limits::default() };
        let mut analysis = Analysis::new(Config { limits, ..Config::default() });
        let mut now = 0;
        for (what, elapsed) in &steps {
            now += elapsed;
            // Times may step back slightly between lanes.
            let at = MonoNs(now.saturating_sub(elapsed * 2));
            match what {
                Some(what) => analysis.apply(&Event { at, what: *what }),
                None => analysis.tick(at),
            }
        }
        let ledger = analysis.ledger();
        prop_assert_eq!(ledger.check_balance(), Ok(()));
        prop_assert!(ledger.record_count() <= limits.live_rids && ledger.hops().len() <= limits.hops);
        let report = Report::of(&analysis, &ReportInput::for_source("model"));
        prop_assert!(report.to_json().len() > 100 && report.to_text(&Clock::of(&report, None)).lines().count() > 3);
    }
}
