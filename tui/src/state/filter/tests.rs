//! Terms of filters, what they match, and mistakes in them.

use proptest::prelude::*;
use trace::ledger::{RequestDispatch, RequestNumbers};

use super::*;

fn row() -> RequestRow {
    let mut row = RequestRow {
        rid: "5B92f0".into(),
        numbers: RequestNumbers {
            gap_ns: Some(1_500_000_000),
            dropped: Some(2),
            tokens_sent: 10_000,
            worker: Some(1),
            ..RequestNumbers::default()
        },
        ..RequestRow::default()
    };
    row.flags.set_if(Flag::Gap, true);
    row
}

fn passes(text: &str) -> bool {
    RequestFilter::parse(text).unwrap_or_else(|m| panic!("{text:?} {m}")).matches(&row(), RunClock::default())
}

#[test]
fn all_terms_must_match() {
    for text in [
        "",
        "  ",
        "gap>1s drop>0 rid:5b92 state:live",
        "GAP>=1500ms",
        "sent=10k",
        "5b92",
        "-flag:abort flag:gap",
        "gap<2m",
        "worker:1",
    ] {
        assert!(passes(text), "{text:?}");
    }
    for flag in Flag::ALL {
        assert_eq!(passes(&format!("flag:{}", flag.label().to_lowercase())), flag == Flag::Gap);
    }
    for text in ["gap>2s", "-5b92", "state:finished", "drop=0 5b92", "flag:wire-loss", "worker:0"] {
        assert!(!passes(text), "{text:?}");
    }
}

#[test]
fn times_of_day_select_the_requests_in_flight() {
    const SECOND: u64 = 1_000_000_000;
    // 2026-11-21 14:59:02.700 UTC, after a start of the machine's clock at 100 s.
    let clock = RunClock { started: MonoNs(100 * SECOND), wall_start_ns: Some(1_795_273_142_700_000_000) };
    let mut row = row();
    (row.numbers.first_at, row.numbers.last_at) = (MonoNs(105 * SECOND), MonoNs(108 * SECOND));
    let passes = |text: &str, clock| RequestFilter::parse(text).expect(text).matches(&row, clock);
    // In flight from 14:59:07.7 to 14:59:10.7.
    for (text, expected) in [
        ("at:14:59:07", false),
        ("at:14:59:08", true),
        ("at:14:59:07..14:59:07", true),
        ("at:14:59:10Z", true),
        ("at:14:59:06", false),
        ("at:14:59:11", false),
        ("at:14:59:00..14:59:03", false),
        ("at:14:59:03..14:59:07", true),
        ("at:14:58:00..14:59:07", true),
        ("at:14:58:00..14:59:06", false),
        ("at:14:59:03..02:00:00", true),
        ("at:5s", true),
        ("at:9s", false),
        ("at:4.9s", false),
        ("at:4.95s..4.99s", false),
        ("at:14:59:07.6", false),
        ("at:14:59:07.7", true),
        ("-at:9s", true),
        ("since:14:59:07", true),
        ("since:14:59:08", false),
        ("since:0:05", true),
        ("since:5.1s", false),
    ] {
        assert_eq!(passes(text, clock), expected, "{text}");
    }
    assert!(passes("at:0:00:06", RunClock { wall_start_ns: None, ..clock }));
}

#[test]
fn a_request_is_in_flight_from_its_dispatch_on() {
    let mut row = row();
    (row.numbers.first_at, row.numbers.last_at) = (MonoNs(9_000_000_000), MonoNs(12_000_000_000));
    let clock = RunClock::default();
    let passes = |row: &RequestRow, text: &str| RequestFilter::parse(text).expect(text).matches(row, clock);
    assert!(!passes(&row, "at:5s") && passes(&row, "since:8s"));
    row.numbers.dispatch = Some(RequestDispatch {
        sent: MonoNs(4_000_000_000),
        received: None,
        prompt_tokens: None,
        room: None,
        arrived_unix_ns: None,
    });
    assert!(passes(&row, "at:5s") && !passes(&row, "since:8s") && !passes(&row, "at:3.9s"));
}

#[test]
fn hours_and_minutes_are_a_time_of_day_unless_the_run_is_as_long_from_its_start() {
    const SECOND: u64 = 1_000_000_000;
    // As above, from 14:59:02.700 on.
    let clock = RunClock { started: MonoNs(100 * SECOND), wall_start_ns: Some(1_795_273_142_700_000_000) };
    let mut row = row();
    (row.numbers.first_at, row.numbers.last_at) = (MonoNs(105 * SECOND), MonoNs(108 * SECOND));
    for (text, length_s, expected) in [
        ("at:14:59", 60, true),
        ("at:14:58..14:59", 60, true),
        ("at:15:00", 60, false),
        ("at:14:58", 60, false),
        ("at:14:59", 1_000, false),
        ("at:14:59Z", 1_000, true),
        ("at:2:59pm", 1_000, true),
        ("since:14:59", 60, true),
        ("since:15:00", 70, false),
    ] {
        let mut filter = RequestFilter::parse(text).expect(text);
        filter.resolve_ambiguous_times(RunSpan { wall_start_ns: clock.wall_start_ns, length_ns: length_s * SECOND });
        assert_eq!(filter.matches(&row, clock), expected, "{text} in {length_s} s");
    }
}

#[test]
fn unobservable_values_satisfy_no_comparison() {
    assert!(!passes("deliv>0") && !passes("deliv<1") && !passes("deliv=0"));
}

#[test]
fn parse_errors_have_a_position_and_a_hint() {
    let at = |text: &str| RequestFilter::parse(text).map_err(|error| (error.position, error.message));
    for (text, place, hint) in [
        ("gap>1s drpo>0", 7, "unknown name \"drpo\"; did you mean drop?"),
        ("stat:live", 0, "did you mean state?"),
        ("@slow", 0, "stands alone"),
        ("gap>1s OR drop>0", 7, "all terms must match"),
        ("drop>0 or gap>1s", 7, "all terms must match"),
        ("5b92|4f1c", 0, "no alternatives"),
        ("at:13:43:34..13:43:33", 13, "before the start"),
        ("! gap>1s", 0, "`-` negates"),
        ("rdi:5b9", 0, "did you mean rid?"),
        ("finding:dropped", 8, "did you mean dropped-chunks?"),
        ("finding:merged@a->b", 8, "did you mean merged-chunks?"),
        ("(gap>1s", 0, "did you mean gap?"),
        ("gap!=1s", 0, "did you mean gap?"),
        ("slow@prod", 0, "stands alone"),
        ("5b9*", 0, "use rid:5b9"),
        ("-chatcmpl-?", 1, "use rid:chatcmpl-"),
        ("Live", 0, "did you mean state:live?"),
        ("dropped?", 0, "did you mean flag:DROPPED??"),
        ("gap", 0, "for example gap>1s"),
        ("Dropped", 0, "for example Dropped>0"),
        ("stall", 0, "did you mean flag:STALL?"),
        ("lost", 0, "lost>0"),
        ("at:soon", 3, "14:59:08"),
        ("at:14:59:00..x", 13, "14:59:08"),
        ("waited:a->b@soon", 12, "a span of time"),
        ("waited:a->b@1:20..1:10", 18, "before the start"),
        ("gap>", 4, "needs a value"),
        ("gap>fast", 4, "250ms"),
        ("gap>1parsec", 5, "250ms"),
        ("x -", 3, "after the minus"),
        ("state:dead", 6, "waiting live"),
        ("flag:bad", 5, "DROPPED"),
        ("state>live", 5, "state:live"),
        ("ä rid>5", 5, "cannot be compared"),
    ] {
        let (found, what) = at(text).expect_err(text);
        assert!(found == place && what.contains(hint), "{text:?}: {found} {what}");
    }
}

proptest! {
    #[test]
    fn parse_errors_are_positioned_inside_the_text(text in any::<String>()) {
        match RequestFilter::parse(&text) {
            Ok(query) => { query.matches(&row(), RunClock::default()); }
            Err(mistake) => prop_assert!(mistake.position <= text.chars().count(), "{text:?} {mistake}"),
        }
    }

    #[test]
    fn comparisons_match_the_reference(
        gap in proptest::option::of(0u64..10_000), bound in 0u64..10_000, negated in any::<bool>(), op in 0usize..5,
    ) {
        let sign = [">", ">=", "<", "<=", "="][op];
        let text = format!("{}gap{sign}{bound}ms", if negated { "-" } else { "" });
        let query = RequestFilter::parse(&text).map_err(|m| TestCaseError::fail(m.to_string()))?;
        let numbers = RequestNumbers { gap_ns: gap.map(|ms| ms * 1_000_000), ..RequestNumbers::default() };
        let row = RequestRow { numbers, ..RequestRow::default() };
        let holds = gap.is_some_and(|g| [g > bound, g >= bound, g < bound, g <= bound, g == bound][op]);
        prop_assert_eq!(query.matches(&row, RunClock::default()), holds != negated);
    }

    #[test]
    fn nearly_valid_queries_never_panic(
        text in "(-?(gap|drop|rid|state|flag|age|x)(:|>|>=|<|<=|=)?[0-9a-z.!? ]{0,6} ?){0,4}",
    ) {
        if let Err(mistake) = RequestFilter::parse(&text) {
            prop_assert!(mistake.position <= text.len());
        }
    }
}
