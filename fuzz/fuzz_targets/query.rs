//! Arbitrary text as a filter of the request table: it parses, or the reported error lies within the text. A filter matches the rows that
//! all of its terms match, and a negated term matches the other rows.
#![no_main]
#![allow(dead_code, reason = "the target uses only a part of these files")]

use libfuzzer_sys::fuzz_target;

#[macro_use]
#[path = "../../tui/src/state/labelled.rs"]
mod labelled;
#[path = "../../tui/src/state/filter/mod.rs"]
mod filter;
#[path = "../../tui/src/state/flags.rs"]
mod flags;
#[path = "../../tui/src/state/request_row.rs"]
mod request_row;
#[path = "../../tui/src/state/run_time.rs"]
mod run_time;

use filter::RequestFilter;
use flags::{Flag, FlagSet};
use request_row::{RequestRow, RequestState};
use run_time::RunClock;
use trace::MonoNs;
use trace::ledger::RequestNumbers;

/// Rows with and without optional fields.
fn rows() -> [RequestRow; 2] {
    let mut flags = FlagSet::default();
    flags.set_if(Flag::Gap, true);
    let numbers = RequestNumbers {
        last_at: MonoNs(3_000_000_000),
        gap_ns: Some(1_500_000_000),
        silence_ns: Some(0),
        tokens_sent: 10_000,
        tokens_received: Some(9_000),
        tokens_delivered: Some(8_000),
        chunks_sent: 100,
        merged: Some(7),
        dropped: Some(2),
        tokens_lost: Some(u32::MAX),
        worker: Some(1),
        ..RequestNumbers::default()
    };
    let row = RequestRow { rid: "5B92ſ0-Ä".into(), state: RequestState::Finished, numbers, flags };
    [row, RequestRow::default()]
}

fn read(text: &str) -> Option<RequestFilter> {
    match RequestFilter::parse(text) {
        Ok(filter) => Some(filter),
        Err(mistake) => {
            assert!(mistake.position <= text.chars().count(), "{text:?}: {mistake}");
            None
        }
    }
}

fuzz_target!(|text: &str| {
    let terms: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
    let each: Option<Vec<RequestFilter>> = terms.iter().map(|term| read(term)).collect();
    let combined = read(text);
    assert_eq!(combined.is_some(), each.is_some(), "{text:?}");
    let (Some(combined), Some(each)) = (combined, each) else { return };
    let clock = RunClock { started: MonoNs(1_000_000_000), wall_start_ns: Some(1_795_887_554_000_000_000) };
    for row in &rows() {
        let matches: Vec<bool> = each.iter().map(|term| term.matches(row, clock)).collect();
        assert_eq!(combined.matches(row, clock), matches.iter().all(|matches| *matches), "{text:?}");
        for (term, matches) in terms.iter().zip(matches) {
            let negated = match term.strip_prefix('-') {
                Some(plain) if plain.starts_with('-') => continue,
                Some(plain) => plain.to_owned(),
                None => format!("-{term}"),
            };
            // A term for a request id may begin with one minus sign, but not with two.
            if let Some(negated) = read(&negated) {
                assert_ne!(negated.matches(row, clock), matches, "{term:?}");
            }
        }
    }
});
