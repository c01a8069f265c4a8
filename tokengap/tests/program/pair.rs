//! `tokengap report` of the recordings of a prefill and a decode server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::pair_recordings::events::{MS, Request};
use crate::pair_recordings::{RIDS, record, requests};
use serde_json::{Value, json};

fn report(args: &[&str], files: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tokengap")).arg("report").args(files).args(args).output().expect("report runs")
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_recordings_of_one_host_are_joined_in_any_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefill = record(folder.path(), "p.tgap", &requests(Request::of_prefill, false), 0, Some("prefill"));
    // Its messages show that it is the decode server.
    let decode = record(folder.path(), "d.tgap", &requests(Request::of_decode, true), 0, None);
    let report_of = |files: [&Path; 2]| json_of(&report(&["--json"], &files));
    let joined = report_of([&prefill, &decode]);
    assert_eq!(joined, report_of([&decode, &prefill]));
    let pair = &joined["pair"];
    assert_eq!(pair["requests"], 12);
    assert_eq!([&pair["decode_only"], &pair["prefill_only"]], [&json!(0), &json!(0)]);
    assert_eq!(
        pair["headline"],
        "most of TTFT: transfer of the cache, 91 % of it (mean 600.0 ms of 660.0 ms over 12 requests)"
    );
    assert_eq!(
        [&pair["decode_by"], &pair["prefill"][0]["side_by"]],
        ["its messages to the other scheduler", "--disaggregation-mode"]
    );
    assert_eq!([&pair["prefill"][0]["clock"], &pair["prefill"][0]["tokens_sent"]], [&json!("same"), &json!(12)]);
    assert_eq!(joined["tokens"]["sent"], 12, "the first token of each request is counted once");
    let slowest = pair["slowest"].as_array().expect("requests");
    assert_eq!(slowest.len(), 10);
    for request in slowest {
        let legs = request["legs"].as_array().expect("legs").iter();
        assert_eq!(Some(legs.filter_map(|leg| leg["ns"].as_u64()).sum()), request["ttft_ns"].as_u64());
        assert_eq!(request["absent"].get("decode_arrived"), Some(&json!("not observed, or not reached")));
        assert_eq!(request["moments"]["decode_arrived"], Value::Null);
    }
    assert_eq!(joined["findings"][0]["kind"], "transfer-slow");
    assert!(joined["verdict"].as_str().is_some_and(|verdict| verdict.contains("in the transfer of the cache")));
    let fails = report(&["--fail-on", "warning"], &[&prefill, &decode]);
    assert_eq!(fails.status.code(), Some(1));
    let text = String::from_utf8_lossy(&fails.stdout).into_owned();
    assert!(text.contains("WHERE TTFT GOES ON BOTH SERVERS"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100 || line.contains("tgap")), "{text}");
    for format in ["markdown", "html"] {
        let page = report(&["--format", format], &[&prefill, &decode]);
        assert!(String::from_utf8_lossy(&page.stdout).contains("Where TTFT goes on both servers"), "{format}");
    }
}

#[test]
fn two_hosts_are_joined_with_a_stated_uncertainty() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefill = record(folder.path(), "p.tgap", &requests(Request::of_prefill, false), 0, None);
    let decode = record(folder.path(), "d.tgap", &requests(Request::of_decode, true), 9_000_000, None);
    let joined = json_of(&report(&["--json"], &[&prefill, &decode]));
    let server = &joined["pair"]["prefill"][0];
    assert_eq!([&server["clock"], &server["clock_ahead_ns"]], [&json!("offset"), &json!(9_000_000 * MS)]);
    assert_eq!(server["clock_uncertainty_ns"], 23 * MS);
    assert_eq!(joined["pair"]["requests"], 12);
}

#[test]
fn what_cannot_be_joined_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name: &str, requests: &[Request<'static>], side| record(folder.path(), name, requests, 0, side);
    let silent = |request: Request<'static>| Request { message: None, ..request };
    let prefill = of("p.tgap", &requests(Request::of_prefill, false), Some("prefill"));
    let other = of("o.tgap", &[Request::of_decode("x", 99, 0)], Some("decode"));
    let unknown = of("u.tgap", &[silent(Request::of_decode("x", 99, 0))], None);
    let unknown_too = of("v.tgap", &[silent(Request::of_decode("x", 99, 0))], None);
    let json = folder.path().join("report.json");
    std::fs::write(&json, "{}").expect("a file");
    for (files, expected) in [
        ([&prefill, &prefill], "are both of a prefill server"),
        ([&prefill, &other], "neither a room nor an id is in both"),
        ([&unknown, &unknown_too], "shows whether it is of a prefill or a decode server"),
        ([&prefill, &json], "is no recording: two recordings are joined, not reports"),
    ] {
        let error = error_of(&report(&[], &files.map(PathBuf::as_path)));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_prefill_servers_own_findings_are_in_the_report_of_both() {
    let folder = tempfile::tempdir().expect("a folder");
    // Its token waits between its scheduler and its tokenizer.
    let mut late = requests(Request::of_prefill, false);
    for request in &mut late {
        request.token_received += 2_000;
        request.delivered += 2_000;
    }
    let prefill = record(folder.path(), "p.tgap", &late, 0, Some("prefill"));
    let decode = record(folder.path(), "d.tgap", &requests(Request::of_decode, true), 0, Some("decode"));
    let joined = json_of(&report(&["--json"], &[&prefill, &decode]));
    let findings = joined["findings"].as_array().expect("findings");
    let summary_of = |kind: &str| findings.iter().find(|found| found["kind"] == kind).map(|found| &found["summary"]);
    let own = summary_of("first-token-gap").and_then(Value::as_str).expect("found");
    assert!(own.starts_with("prefill server ") && own.contains("p.tgap: first tokens wait"), "{own}");
    assert!(summary_of("late-prefill-response").is_some());
    assert_eq!([&joined["severity"], &joined["findings"][0]["kind"]], ["warning", "transfer-slow"]);
}

#[test]
fn a_critical_prefill_server_makes_the_report_of_both_critical() {
    let folder = tempfile::tempdir().expect("a folder");
    let healthy = |of: fn(&'static str, u64, u64) -> Request<'static>| -> Vec<Request<'static>> {
        (1..).zip(RIDS).map(|(room, rid)| of(rid, room, 100 * room)).collect()
    };
    // Its tokens wait between its scheduler and its tokenizer, which the router waits for.
    let mut late = healthy(Request::of_prefill);
    for request in &mut late {
        request.token_received += 8_000;
        request.delivered += 8_000;
    }
    let prefill = record(folder.path(), "p.tgap", &late, 0, Some("prefill"));
    let decode = record(folder.path(), "d.tgap", &healthy(Request::of_decode), 0, Some("decode"));
    let alone = report(&["--json", "--fail-on", "critical"], &[&decode]);
    assert_eq!((alone.status.code(), json_of(&alone)["severity"].clone()), (Some(0), Value::Null));
    let joined = report(&["--json", "--fail-on", "critical"], &[&prefill, &decode]);
    let status = joined.status.code();
    let joined: Value = serde_json::from_slice(&joined.stdout).expect("JSON");
    assert_eq!((status, joined["severity"].as_str()), (Some(1), Some("critical")));
    let verdict = joined["verdict"].as_str().expect("a verdict");
    assert!(verdict.starts_with("CRITICAL: ") && verdict.contains("prefill server "), "{verdict}");
    let kinds: Vec<_> = joined["findings"].as_array().expect("findings").iter().map(|found| &found["kind"]).collect();
    assert_eq!(kinds[..2], ["first-token-gap", "late-prefill-response"]);
}
