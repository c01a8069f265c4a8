//! Logs as operators posted them (`tests/logs/posted`), each with the right values.

use jiff::tz::TimeZone;
use outputs::report::{Clock, FindingLine};
use trace::detect::Severity;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn posted(name: &str) -> Run {
    of(&format!("posted/{name}"))
}

fn finding<'r>(run: &'r Run, kind: &str) -> &'r FindingLine {
    run.report.findings.iter().find(|finding| &*finding.kind == kind).unwrap()
}

/// Maximum time between two stages.
fn between(run: &Run, from: &str, to: &str) -> Option<u64> {
    let stages = run.report.stages.as_ref().unwrap();
    stages.between.iter().find(|pair| (&*pair.from, &*pair.to) == (from, to)).map(|pair| pair.ns.max)
}

#[test]
fn backlog_warnings_are_read_as_releases_write_them() {
    let run = posted("01-streaming-backlog-real-wording/server.log");
    let merged = run.report.stages.as_ref().unwrap().merged.clone().unwrap();
    assert_eq!((merged.times, merged.chunks, merged.max), (2, 68, 41));
    assert_eq!(merged.most_rid, "7e2a1b5d3c8f4ea09b4d6f8cae1a2b3c");
    let found = finding(&run, "merged-chunks");
    assert_eq!((found.severity, &found.rid), (Severity::Warning, &merged.most_rid));
    assert!(found.summary.contains("68 queued chunks in 2 deliveries, up to 41 at once"), "{}", found.summary);
    let run = posted("01-streaming-backlog-real-wording/older-nightly.log");
    assert_eq!(run.report.stages.unwrap().merged.unwrap().chunks, 2);
}

#[test]
fn requests_without_a_client_that_go_on_are_reported() {
    let run = posted("02-zombie-flood/server.log");
    let found = finding(&run, "abandoned-requests");
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.advice.as_ref().unwrap().contains("0.5.20"), "{:?}", found.advice);
    let abandoned = run.report.abandoned.clone().unwrap();
    assert_eq!((abandoned.requests, abandoned.outputs), (3, 487));
    let start = run.report.window_mono_ns[0];
    let rows: Vec<_> = abandoned
        .longest
        .iter()
        .map(|one| (start + one.since_ns, (one.length_ns + 30 * SECOND) / (60 * SECOND), one.outputs))
        .collect();
    let at = |time: &str| format!("2026-08-30T{time}Z").parse::<jiff::Timestamp>().unwrap().as_nanosecond() as u64;
    assert_eq!(rows, [(at("16:05:57"), 20, 197), (at("16:09:17"), 16, 175), (at("16:14:48"), 11, 115)]);
    assert_eq!(abandoned.longest[0].rid, "5a264fd90c1d4e2fb3a4958677889900");
    let text = run.report.to_text(&Clock::of(&run.report, None));
    assert!(text.contains("since 16:05:57.000"), "{text}");
}

#[test]
fn discarded_health_checks_and_aborts_are_harmless() {
    let run = posted("02-zombie-flood/health-checks.log");
    assert_eq!((run.report.findings.len(), run.report.requests.health_checks), (0, 40));
    assert_eq!(run.report.verdict, "NOTHING OBSERVED: no request is in the log, only 40 health checks");
    let line = |second| {
        format!(
            "[2026-08-30 16:05:{second:02}] Received output for rid='ab' but the state was deleted in TokenizerManager.\n"
        )
    };
    let run = import_text([10, 10, 11, 13, 14].map(line).concat(), ImportOptions::default()).unwrap();
    assert_eq!(run.report.findings.len(), 0, "an abort is on its way");
}

#[test]
fn floods_of_discarded_outputs_are_counted_in_bounded_memory() {
    let line = |n: u64| {
        let at = jiff::Timestamp::from_second(1_768_694_400 + n as i64 / 10).unwrap();
        format!("{at} Received output for rid='r{}' but the state was deleted in TokenizerManager.\n", n % 182)
    };
    let run = import_text((0..148_000).map(line).collect::<String>(), ImportOptions::default()).unwrap();
    let abandoned = run.report.abandoned.unwrap();
    assert_eq!((abandoned.requests, abandoned.outputs, abandoned.longest.len()), (182, 148_000, 16));
}

#[test]
fn request_logs_of_openai_endpoints_are_read() {
    let run = posted("05-request-logs/exceeded-ms.log");
    assert_eq!((run.report.requests.seen, run.stats.forms["request-finished"]), (1, 1));
    assert_eq!(run.report.window_mono_ns[0], 1_766_581_535 * SECOND, "`received_time` is not the line's time");
    let run = posted("05-request-logs/text-first-0.4.log");
    assert_eq!((run.report.requests.seen, run.report.requests.finished, run.stats.malformed), (1, 1, 0));
    let run = posted("05-request-logs/batch-rids.log");
    assert_eq!((run.report.requests.seen, run.report.requests.finished, run.stats.malformed), (2, 1, 0));
    let run = posted("05-request-logs/custom-rids.log");
    assert_eq!((run.report.requests.seen, run.stats.malformed), (4, 1));
}

#[test]
fn lines_that_a_container_runtime_split_are_joined() {
    for name in ["cri-partial.log", "long-plain.log"] {
        let run = posted(&format!("05-request-logs/{name}"));
        assert_eq!((run.stats.lines, run.stats.cut, run.stats.known_records()), (1, 0, 1), "{name}");
        assert_eq!(between(&run, "prefill_finished", "response_sent_to_client"), Some(11_500_000_000), "{name}");
        assert_eq!(run.report.gap_ns, None, "the line does not say whether the request streams");
    }
}

#[test]
fn a_gap_in_the_fields_of_request_logs_is_found() {
    let options = ImportOptions { zone: Some(TimeZone::fixed(jiff::tz::offset(8))), ..ImportOptions::default() };
    let run = import(&[logs("posted/09-local-time-vs-epoch")], options).unwrap();
    let gap = run.report.gap_ns.as_ref().unwrap();
    assert_eq!((gap.count, run.report.requests.seen, run.report.requests.finished), (2, 2, 2));
    assert!(gap.max.unwrap().abs_diff(11_450_000_000) < 2_000_000, "{gap:?}");
    let window_ns = run.report.window_mono_ns[1] - run.report.window_mono_ns[0];
    assert!(window_ns.abs_diff(13_200_000_000) < 10_000_000, "{window_ns}");
    let found = finding(&run, "first-token-gap");
    assert_eq!(found.severity, Severity::Critical);
    assert!(found.summary.contains("by times in the engine's log"), "{}", found.summary);
    assert_eq!(found.evidence["by"], "the engine's log");
}

#[test]
fn requests_that_do_not_stream_have_no_gap() {
    let line = fs::read_to_string(logs("posted/09-local-time-vs-epoch/requests.log")).unwrap();
    let unstreamed =
        import_text(line.replace("\"stream\": true", "\"stream\": false"), ImportOptions::default()).unwrap();
    assert_eq!((unstreamed.report.gap_ns, unstreamed.report.findings.len()), (None, 0));
    assert_eq!(unstreamed.report.requests.finished, 2);
}

/// A log of one engine, in which it refuses three requests.
const REFUSING: &str = "\
[2026-08-30 16:05:50] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)
[2026-08-30 16:05:57] INFO:     127.0.0.1:51022 - \"POST /generate HTTP/1.1\" 200 OK
[2026-08-30 16:05:57] INFO:     127.0.0.1:51023 - \"POST /generate HTTP/1.1\" 503 Service Unavailable
[2026-08-30 16:05:57] Received output for rid='ab' but the state was deleted in TokenizerManager.
{\"log\":\"[2026-08-30 16:05:58] INFO:     127.0.0.1:51024 - \\\"POST /v1/chat/completions HTTP/1.1\\\" 400 Bad Request\\n\"}
[2026-08-30 16:05:58] INFO:     127.0.0.1:51025 - \"GET /metrics HTTP/1.1\" 404 Not Found
[2026-08-30 16:05:59] INFO:     127.0.0.1:51026 - \"POST /generate HTTP/1.1\" 503 Service Unavailable
";

#[test]
fn requests_that_one_engine_rejects_are_counted() {
    let run = import_text(REFUSING, ImportOptions::default()).unwrap();
    let rejected: Vec<_> = run.report.rejected.clone().into_iter().collect();
    assert_eq!(rejected, [(400, 1), (503, 2)]);
    assert_eq!((run.stats.rejected, run.stats.rejected_uncounted, run.stats.malformed), (3, 0, 0));
    assert_eq!((run.stats.undated, run.stats.unknown), (0, 2), "what was answered, and another path");
    assert!(run.report.verdict.contains("; 3 responses with an error"), "{}", run.report.verdict);
    let text = run.report.to_text(&Clock::of(&run.report, None));
    assert!(text.contains("3 responses with an error status: 1 with 400, 2 with 503"), "{text}");
}

/// An access line names no engine, and a router writes the same as the server behind it.
#[test]
fn rejected_requests_of_several_servers_are_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["prefill.log", "decode.log"].map(|name| folder.path().join(name));
    for path in &paths {
        fs::write(path, REFUSING).unwrap();
    }
    let several_logs = import(&paths, ImportOptions::default()).unwrap();
    let router = "[2026-08-30 16:05:50] INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n";
    let one_pipe = import_text(format!("{router}{REFUSING}"), ImportOptions::default()).unwrap();
    let few = ImportOptions { max_held_lines: 2, ..ImportOptions::default() };
    let too_many = import_text(REFUSING, few).unwrap();
    for (run, lines, why) in [
        (several_logs, 6, "several logs were read"),
        (one_pipe, 3, "servers at several addresses wrote this log"),
        (too_many, 3, "they are more than are held (--max-held)"),
    ] {
        assert!(run.report.rejected.is_empty(), "{why}");
        assert_eq!((run.stats.rejected, run.stats.rejected_uncounted), (0, lines), "{why}");
        assert_eq!(run.stats.rejected_uncounted_why, Some(why));
    }
    // Without another line, nothing shows that an engine wrote the log.
    let access_lines = REFUSING.lines().filter(|line| !line.contains("state was deleted"));
    let alone = import_text(access_lines.collect::<Vec<_>>().join("\n"), ImportOptions::default());
    assert!(matches!(alone, Err(ImportError::NothingRecognised(_))));
}
