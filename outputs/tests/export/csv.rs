use std::collections::HashMap;

use outputs::export::{Format, Options};

use super::export;

fn rows(options: Options) -> (Vec<HashMap<String, String>>, outputs::report::Report) {
    let (text, report) = export(Format::Csv, options);
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    (reader.deserialize().map(|row| row.expect("a row")).collect(), report)
}

fn sum(rows: &[HashMap<String, String>], column: &str) -> Option<u64> {
    rows.iter().map(|row| row[column].parse::<u64>().ok()).sum()
}

#[test]
fn rows_cover_every_request_and_add_up_to_the_report() {
    let (rows, report) = rows(Options::default());
    assert_eq!(rows.len() as u64, report.requests.seen);
    assert_eq!(sum(&rows, "tokens_sent"), Some(report.tokens.sent));
    assert_eq!(sum(&rows, "tokens_received"), report.tokens.received);
    assert_eq!(sum(&rows, "tokens_delivered"), report.tokens.delivered);
    assert_eq!(sum(&rows, "chunks_sent"), Some(report.chunks.sent));
    assert_eq!(sum(&rows, "chunks_dropped"), report.chunks.dropped_confirmed);
    assert_eq!(sum(&rows, "tokens_lost"), report.chunks.tokens_lost);
    let gaps = rows.iter().filter_map(|row| row["gap_ns"].parse::<u64>().ok());
    assert_eq!(gaps.max(), report.gap_ns.and_then(|gap| gap.max));
    let count_with = |column: &str, text: &str| rows.iter().filter(|row| row[column] == text).count() as u64;
    assert_eq!(rows.len() as u64 - count_with("finish", ""), report.requests.finished);
    assert_eq!(Some(count_with("state", "finished")), report.requests.completed);
    assert_eq!(count_with("state", "aborted"), report.requests.aborted);
    assert_eq!(count_with("state", "open") + count_with("state", "waiting"), report.requests.live);
    let special = rows.iter().find(|row| row["rid"].starts_with("special")).expect("its row");
    // A line break is escaped, so that a row is one line.
    assert_eq!(special["rid"], "special \"rid\", with\\all\u{fffd}of it");
    assert!(special["first_seen"].starts_with("2025-11-21T01:53:2"), "{}", special["first_seen"]);
    assert_eq!(special["slowest_hop"], "detokenizer->tokenizer");
    let wait = special["slowest_hop_wait_ns"].parse::<u64>();
    assert!(wait.is_ok_and(|wait| wait > 1_000_000), "{special:?}");
}

#[test]
fn filters_select_requests() {
    let (one, _) = rows(Options { rids: vec!["request-4".into()], ..Options::default() });
    assert_eq!(one.iter().map(|row| &*row["rid"]).collect::<Vec<_>>(), ["request-4"]);
    let (all, _) = rows(Options::default());
    let (slow, _) = rows(Options { slow_ns: Some(50_000_000), ..Options::default() });
    assert!(!slow.is_empty() && slow.len() < all.len());
    assert!(slow.iter().all(|row| row["gap_ns"].parse::<u64>().is_ok_and(|gap| gap >= 50_000_000)));
    let ns = |row: &HashMap<String, String>, column: &str| row[column].parse::<u64>().expect("a time");
    let start = all.iter().map(|row| ns(row, "first_seen_ns")).min().expect("rows");
    let (early, _) = rows(Options { range_ns: Some(0..=start), ..Options::default() });
    let expected = all.iter().filter(|row| ns(row, "first_seen_ns") == start).count();
    assert!(early.len() == expected && expected < all.len());
    let (none, _) = export(Format::Csv, Options { rids: vec!["unknown".into()], ..Options::default() });
    assert!(none.starts_with("rid,first_seen,") && none.lines().count() == 1, "{none}");
}
