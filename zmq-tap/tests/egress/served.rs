//! Recorded responses of SGLang's `/generate`, served by uvicorn.

use std::collections::BTreeMap;

use proptest::prelude::*;
use trace::engine::Mode;
use trace::event::AnswerEnd;

use super::{Connection, Told, recorded};

type Said = (String, Option<u32>, Option<u32>, bool);

/// The events that Python's parser found in the same bytes.
fn truth(name: &str) -> Vec<Said> {
    let path = format!("{}/fixtures/egress/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn deliveries(told: &[Told]) -> Vec<Said> {
    told.iter()
        .filter_map(|told| match told {
            Told::Delivered(rid, tokens, claimed, finished, _) => {
                Some((rid.clone(), Some(*tokens), *claimed, *finished))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn every_event_is_read_as_another_parser_reads_it() {
    for (name, bytes) in recorded("") {
        let mut connection = Connection::new(None);
        connection.feed(&bytes, true);
        assert_eq!(deliveries(&connection.told), truth(&name), "{name}");
        assert!(!connection.told.contains(&Told::Lost), "{name}");
    }
}

#[test]
fn the_sums_of_a_response_prove_what_its_engine_lost() {
    for (name, bytes) in recorded("") {
        let mode = if name.contains("cumulative") {
            Mode::Cumulative
        } else {
            Mode::Incremental
        };
        let mut connection = Connection::new(None);
        connection.feed(&bytes, true);
        let mut carried: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        for (rid, ids, claimed, _) in truth(&name) {
            let (sum, last) = carried.entry(rid).or_default();
            let ids = ids.unwrap();
            *sum = if mode == Mode::Cumulative { ids } else { *sum + ids };
            *last = claimed.unwrap();
        }
        let answers: BTreeMap<String, (u32, u32)> = connection
            .told
            .iter()
            .filter_map(|told| match told {
                Told::Answered(rid, tokens, claimed, AnswerEnd::Whole) => {
                    Some((rid.clone(), (tokens.unwrap(), claimed.unwrap())))
                }
                _ => None,
            })
            .collect();
        assert_eq!(answers, carried, "{name}");
        let lost: u32 = answers.values().map(|(tokens, claimed)| claimed - tokens).sum();
        // Only a release that keeps just the last chunk of a backlog, in incremental mode, loses tokens.
        assert_eq!(
            lost > 0,
            name.starts_with("0.5.9-incremental") || name == "0.5.9-text",
            "{name}: {lost}"
        );
    }
}

#[test]
fn a_mode_is_shown_by_the_first_event_that_can() {
    for (name, bytes) in recorded("") {
        let mode = if name.contains("cumulative") {
            Mode::Cumulative
        } else {
            Mode::Incremental
        };
        let mut connection = Connection::new(Some(mode));
        connection.feed(&bytes, true);
        for told in &connection.told {
            assert!(
                !matches!(told, Told::Delivered(.., other) if *other != mode),
                "{name}: {told:?}"
            );
        }
    }
}

#[test]
fn a_client_that_leaves_is_no_loss() {
    for (name, bytes) in recorded("") {
        let mut connection = Connection::new(None);
        let first_event = memchr::memmem::find(&bytes, b"}}\n\n").unwrap() + 4;
        connection.feed(&bytes[..first_event], true);
        connection.closed(true);
        let last = connection.told.last().unwrap();
        assert!(
            matches!(last, Told::Answered(.., AnswerEnd::ClientLeft)),
            "{name}: {last:?}"
        );
    }
}

fn any_recorded() -> impl Strategy<Value = (String, Vec<u8>)> {
    let all = recorded("");
    (0..all.len()).prop_map(move |place| all[place].clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn wherever_the_bytes_are_cut((name, bytes) in any_recorded(), lengths in prop::collection::vec(1_usize..400, 1..20)) {
        let mut whole = Connection::new(None);
        whole.feed(&bytes, true);
        let mut cut = Connection::new(None);
        cut.pieces(&bytes, &lengths);
        prop_assert_eq!(&cut.told, &whole.told, "{}", name);
    }

    #[test]
    fn a_hole_costs_events_and_makes_none((name, bytes) in any_recorded(), from: prop::sample::Index, length in 1_usize..900) {
        let from = from.index(bytes.len());
        let to = bytes.len().min(from + length);
        let mut connection = Connection::new(None);
        connection.feed(&bytes[..from], true);
        connection.missed();
        connection.feed(&bytes[to..], false);
        let all = truth(&name);
        let mut left = all.iter();
        for said in deliveries(&connection.told) {
            prop_assert!(left.any(|known| *known == said), "{name}: {said:?} out of nothing");
        }
        prop_assert!(connection.told.contains(&Told::Lost));
        for told in &connection.told {
            let Told::Answered(rid, Some(tokens), _, AnswerEnd::Whole) = told else { continue };
            // An answer reported as whole must match the one in the unbroken recording.
            let mut reference = Connection::new(None);
            reference.feed(&bytes, true);
            prop_assert!(reference.told.iter().any(|other| matches!(other, Told::Answered(r, Some(t), ..) if r == rid && t == tokens)), "{name}: {told:?}");
        }
    }

    #[test]
    fn joined_at_any_write((name, bytes) in any_recorded(), skip in 1_usize..12) {
        // uvicorn writes one event at a time, and each write begins with the chunk size.
        let mut starts = memchr::memmem::find_iter(&bytes, b"\r\ndata: {").map(|at| {
            let digits = bytes[..at].iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
            at - digits
        });
        let Some(start) = starts.nth(skip) else { return Ok(()) };
        let mut connection = Connection::new(None);
        connection.feed(&bytes[start..], true);
        let all = truth(&name);
        let seen = deliveries(&connection.told);
        prop_assert!(!seen.is_empty() && all.ends_with(&seen), "{name}: {seen:?}");
        prop_assert!(!connection.told.contains(&Told::Lost));
    }
}
