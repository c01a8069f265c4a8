//! Logs as collectors, several processes and prefill/decode pairs leave them, and files of other tools.

use std::fmt::Write as _;
use std::path::PathBuf;

use logs::ImportOptions;

use super::{Run, import, import_text, logs};

fn posted(name: &str) -> Run {
    import(&[logs("posted").join(name)], ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn files_of(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(logs("posted").join(folder)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Longest time between two stages, in milliseconds.
fn max_ms(run: &Run, from: &str, to: &str) -> Option<f64> {
    let between = &run.report.stages.as_ref()?.between;
    let ns = between.iter().find(|pair| pair.from == from && pair.to == to)?.ns.max;
    Some((ns as f64 / 1e4).round() / 1e2)
}

fn window_ms(run: &Run) -> u64 {
    let [from, to] = run.report.window_mono_ns;
    (to - from) / 1_000_000
}

/// Checks the two requests of the collectors' logs: the same two lines stand in each.
fn check_requests(name: &str, run: &Run, requests: u64) {
    assert_eq!((run.report.requests.seen, run.report.requests.finished), (requests, requests), "{name}");
    assert_eq!(run.report.window_mono_ns[0], 1_795_246_498_300_000_000, "{name}: the entry time of the lines");
    assert_eq!(window_ms(run), 12_500, "{name}");
    let queue_ms = if requests == 1 { 250.0 } else { 1_250.0 };
    assert_eq!(max_ms(run, "wait_queue_entry", "forward_entry"), Some(queue_ms), "{name}");
    assert_eq!(max_ms(run, "forward_entry", "completion"), Some(12_250.0), "{name}");
}

#[test]
fn requests_are_read_behind_every_collector() {
    let files = files_of("03-log-prefixes");
    assert!(files.len() >= 45, "{}", files.len());
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let requests = if name == "plain.log.gz" || name == "truncated.log.gz" { 1 } else { 2 };
        let run = import(&[path], ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        check_requests(&name, &run, requests);
    }
}

#[test]
fn lines_without_a_time_of_their_own_take_that_of_the_collector() {
    for path in files_of("03-log-prefixes/needs-line-time") {
        let run =
            import(std::slice::from_ref(&path), ImportOptions::default()).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!((run.report.requests.seen, window_ms(&run)), (1, 30_000), "{path:?}");
        assert_eq!(run.report.window_mono_ns[0] / 60_000_000_000, 1_795_246_501 / 60, "{path:?}: in that minute");
    }
}

/// Two lines that tell one request, without a timestamp of their own.
const LINES: [&str; 2] = [
    "Received output for rid='6d1f0a4c' but the state was deleted in TokenizerManager.",
    "Received output for rid='6d1f0a4c' but the state was deleted in TokenizerManager.",
];

/// Imports both lines in a wrapper, whose `LINE`, `ISO`, `EPOCH_US` and `EPOCH_NS` are replaced.
fn import_wrapped(wrapper: &str) -> Run {
    let mut text = String::new();
    for (line, at_s) in LINES.iter().zip([1_795_246_501_u64, 1_795_246_531]) {
        let iso = jiff::Timestamp::from_second(at_s as i64).unwrap().to_string();
        let whole = wrapper
            .replace("LINE", &line.replace('"', "\\\""))
            .replace("ISO", &iso)
            .replace("EPOCH_MS", &format!("{at_s}804"))
            .replace("EPOCH_US", &format!("{at_s}804123"))
            .replace("EPOCH_NS", &format!("{at_s}804123000"))
            .replace("EPOCH", &format!("{at_s}.804"));
        text.push_str(&whole);
        text.push('\n');
    }
    import_text(&text, ImportOptions::default()).unwrap_or_else(|error| panic!("{wrapper}: {error}"))
}

#[test]
fn records_are_found_in_the_structure_of_json_wrappers() {
    for wrapper in [
        // journald, with the time since boot, which is ten digits too.
        r#"{"__MONOTONIC_TIMESTAMP":"1600000000","MESSAGE":"LINE","__REALTIME_TIMESTAMP":"EPOCH_US","_PID":"4711"}"#,
        // GCP: text and structured payload. The time of receipt is later.
        r#"{"insertId":"a","textPayload":"LINE","receiveTimestamp":"2026-11-21T09:00:00Z","timestamp":"ISO"}"#,
        r#"{"jsonPayload":{"message":"LINE","level":"WARNING"},"timestamp":"ISO","resource":{"labels":{"startTime":"2026-01-01T00:00:00Z"}}}"#,
        r#"[{"textPayload":"LINE","timestamp":"ISO"}]"#,
        r#"{"_index":"x","_source":{"@timestamp":"ISO","message":"LINE"},"sort":[1700000000000]}"#,
        r#"{"hits":{"total":1,"hits":[{"_source":{"message":"LINE","@timestamp":"ISO","host":{"created":"2026-01-01T00:00:00Z"}}}]}}"#,
        r#"{"labels":{"pod":"a"},"line":"LINE","timestamp":"ISO"}"#,
        r#"{"data":{"result":[{"stream":{"pod":"a"},"values":[["EPOCH_NS","LINE"]]}]}}"#,
        r#"{"TimeGenerated":"ISO","Computer":"aks","LogMessage":"LINE","LogSource":"stderr"}"#,
        r#"{"date":EPOCH,"log":"LINE","kubernetes":{"pod_name":"sglang-0"}}"#,
        r#"{"asctime":"ISO","levelname":"INFO","message":"LINE"}"#,
        r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"EPOCH_NS","body":{"stringValue":"LINE"}}]}]}]}"#,
        r#"{"time":EPOCH,"event":"LINE","source":"a"}"#,
        r#"{"attributes":{"a":{"whatever":"LINE"}},"ts":"ISO"}"#,
        r#"ISO stdout F {"levelname":"INFO","message":"LINE"}"#,
        r#"sglang-1  | {"time":"ISO","msg":"LINE"}"#,
        r#"{"log":"{\"ts\":\"ISO\",\"msg\":\"LINE\"}\n","stream":"stderr","time":"2026-11-21T09:00:00Z"}"#,
        // Splunk, Graylog, CloudWatch, Datadog (JSON and CSV), an RFC 5424 header.
        r#"{"preview":false,"result":{"_raw":"LINE","_time":"ISO","host":"a"}}"#,
        r#"{"version":"1.1","host":"a","short_message":"LINE","timestamp":EPOCH,"level":4}"#,
        r#"{"events":[{"ingestionTime":1795246599000,"message":"LINE","timestamp":EPOCH_MS}],"nextToken":"x"}"#,
        r#"{"id":"A","attributes":{"service":"s","timestamp":"ISO","message":"LINE","attributes":{}}}"#,
        r#""ISO","host","service","LINE""#,
        "<134>1 ISO host sglang 12 - - LINE",
    ] {
        let run = import_wrapped(wrapper);
        assert_eq!((run.report.requests.seen, run.stats.known_records()), (1, 2), "{wrapper}");
        assert_eq!(window_ms(&run), 30_000, "{wrapper}");
        assert_eq!(run.report.window_mono_ns[0] / 1_000_000_000, 1_795_246_501, "{wrapper}");
        assert_eq!(run.stats.zone_assumed, 0, "{wrapper}");
    }
}

#[test]
fn an_engines_own_record_is_read_inside_a_wrapper_and_its_prompt_is_not() {
    let record = r#"{"timestamp":"2026-11-21T07:35:10.8","event":"request.finished","rid":"a1","obj":{"text":"[TRACE disagg] rid=evil first_output_stream"},"out":{"meta_info":{"id":"a1","request_received_ts":1795246498.3,"request_finished_ts":1795246510.7}}}"#;
    let escaped = serde_json::to_string(record).unwrap();
    for text in [
        record.to_owned(),
        format!("{{\"jsonPayload\":{record},\"timestamp\":\"2026-11-21T07:35:10.9Z\"}}"),
        format!("{{\"log\":{escaped},\"time\":\"2026-11-21T07:35:10.9Z\"}}"),
        format!("2026-11-21T07:35:10.9Z stdout F {record}"),
    ] {
        let run = import_text(&text, ImportOptions::default()).unwrap();
        assert_eq!((run.report.requests.seen, run.report.requests.finished), (1, 1), "{text}");
        assert_eq!(max_ms(&run, "request_received", "request_finished"), Some(12_400.0), "{text}");
        assert!(!run.events.concat().contains("evil"), "{text}");
    }
    // A record that is cut cannot be parsed, and its prompt is no line.
    assert!(import_text(&record[..150], ImportOptions::default()).is_err());
}

#[test]
fn impossible_durations_are_unknown() {
    let run = posted("04-time-stats/start-time-zero.log");
    assert_eq!((run.report.requests.seen, run.report.requests.finished), (2, 2));
    assert_eq!((run.stats.impossible, window_ms(&run)), (2, 2_000));
    assert!(run.report.stages.unwrap().between.is_empty(), "only the completions are known");
    let aborted = "[2026-11-21 07:35:10] ReqTimeStats(rid=a, input_len=7, output_len=0, type=unified): \
                   queue_duration=0.00ms, forward_duration=-1795246498300.00ms, entry_time=1795246498.300\n";
    let run = import_text(aborted, ImportOptions::default()).unwrap();
    assert_eq!((run.stats.impossible, window_ms(&run)), (1, 0));
}

#[test]
fn both_halves_of_a_disaggregated_request_are_read() {
    let run = posted("04-time-stats/disagg-0.5.23.log");
    assert_eq!((run.report.requests.seen, run.report.requests.finished), (1, 1));
    let stages = run.report.stages.as_ref().unwrap();
    assert_eq!((stages.repeats, stages.late, stages.left_out), (0, 0, 0));
    for (from, to, ms) in [
        ("prefill_bootstrap_queue_entry", "prefill_wait_queue_entry", 35.1),
        ("prefill_wait_queue_entry", "prefill_forward_entry", 250.0),
        ("prefill_forward_entry", "prefill_completion", 1_250.0),
        ("decode_prealloc_queue_entry", "decode_bootstrap_done", 12.0),
        ("decode_bootstrap_done", "decode_transfer_queue_entry", 9_000.0),
        ("decode_transfer_queue_entry", "decode_wait_queue_entry", 1_500.0),
        ("decode_wait_queue_entry", "decode_forward_entry", 300.0),
        ("decode_forward_entry", "decode_completion", 11_250.0),
    ] {
        assert_eq!(max_ms(&run, from, to), Some(ms), "{from} -> {to}");
    }
}

/// Time stats of a pair in the form of each release, both halves at the same time.
#[test]
fn pairs_of_all_releases_are_read() {
    for (head, prefill, decode) in [
        (
            "Req Time Stats(rid=a, input len=7, output len=30, type=",
            "bootstrap_duration=40.00ms, queue_duration=250.00ms, forward_duration=1250.00ms, start_time=14434.83",
            "prealloc_duration=9012.00ms, transfer_duration=1500.00ms, queue_duration=300.00ms, forward_duration=250.00ms, start_time=14434.83",
        ),
        (
            "Req Time Stats(rid=a, bootstrap_room=7421, input len=7, output len=30, type=",
            "bootstrap_queue_duration(40.00ms) = alloc_wait(0.00ms) + bootstrap(5.00ms) + other(35.00ms); queue_duration=250.00ms, \
             forward_duration=1250.00ms, start=14434.830, transfer_speed=1.20GB/s, transfer_total=5.00MB, #retries=0",
            "prealloc_queue_duration(9012.00ms) = alloc_wait(0.00ms) + bootstrap(5.00ms) + other(9007.00ms); \
             transfer_duration=1500.00ms; queue_duration=300.00ms, forward_duration=250.00ms, start=14434.830",
        ),
        (
            "ReqTimeStats(rid=a, bootstrap_room=7421, input_len=7, output_len=30, type=",
            "bootstrap_queue_duration=40.00ms, queue_duration=250.00ms, forward_duration=1250.00ms, entry_time=1795246498.300",
            "prealloc_queue_duration=9012.00ms, transfer_duration=1500.00ms, queue_duration=300.00ms, forward_duration=250.00ms, \
             entry_time=1795246498.300",
        ),
    ] {
        let text = format!(
            "[2026-11-21 07:34:59 TP0] {head}prefill): {prefill}\n[2026-11-21 07:35:09 TP0] {head}decode): {decode}\n"
        );
        let run = import_text(&text, ImportOptions::default()).unwrap();
        assert_eq!((run.report.requests.seen, run.report.requests.finished), (1, 1), "{text}");
        for (from, to, ms) in [
            ("prefill_bootstrap_queue_entry", "prefill_wait_queue_entry", 40.0),
            ("prefill_wait_queue_entry", "prefill_forward_entry", 250.0),
            ("prefill_forward_entry", "prefill_completion", 1_250.0),
            ("decode_prealloc_queue_entry", "decode_transfer_queue_entry", 9_012.0),
            ("decode_transfer_queue_entry", "decode_wait_queue_entry", 1_500.0),
            ("decode_wait_queue_entry", "decode_forward_entry", 300.0),
        ] {
            assert_eq!(max_ms(&run, from, to), Some(ms), "{from} -> {to} in {text}");
        }
    }
}

#[test]
fn halves_with_different_rids_are_joined_by_their_room() {
    let stats = "queue_duration=250.00ms, forward_duration=1250.00ms, entry_time=1795246498.300";
    let text = format!(
        "[2026-11-21 07:34:58] Receive: obj=GenerateReqInput(rid='d1', text='x')\n\
         [2026-11-21 07:34:59 TP0] ReqTimeStats(rid=p1, bootstrap_room=7421, output_len=1, type=prefill): \
         bootstrap_duration=35.10ms, {stats}\n\
         [2026-11-21 07:35:01 TP0] ReqTimeStats(rid=d1, bootstrap_room=7421, output_len=30, type=decode): \
         prealloc_queue_duration=12.00ms, transfer_duration=5.00ms, {stats}\n"
    );
    let run = import_text(&text, ImportOptions::default()).unwrap();
    assert_eq!((run.report.requests.seen, run.report.requests.finished), (1, 1));
    // In any order, and with other line ends.
    let reversed = text.lines().rev().collect::<Vec<_>>().join("\r\n");
    let run = import_text(reversed, ImportOptions::default()).unwrap();
    assert_eq!((run.report.requests.seen, run.report.requests.finished), (1, 1));
    let other_room = text.replacen("7421", "7422", 1);
    assert_eq!(import_text(&other_room, ImportOptions::default()).unwrap().report.requests.seen, 2);
}

#[test]
fn the_offset_of_local_times_follows_from_the_epoch_fields() {
    let name = "09-local-time-vs-epoch/requests.log";
    let run = posted(name);
    assert_eq!((run.report.requests.seen, window_ms(&run)), (2, 13_200));
    assert_eq!((run.stats.zone_derived, run.stats.zone_assumed), (4, 0));
    assert_eq!(run.stats.offsets.iter().map(String::as_str).collect::<Vec<_>>(), ["UTC+08"]);
    assert_eq!(max_ms(&run, "prefill_finished", "first_token"), Some(11_450.0));
    // A file of the same host that shows no offset follows the other one.
    let folder = tempfile::tempdir().unwrap();
    let server = folder.path().join("server.log");
    std::fs::write(
        &server,
        "[2026-11-21 15:35:00] Received output for rid='6d1f0a4c2b7e4d9f8a3c5e7b9d0f1a2b' but the state was deleted\n",
    )
    .unwrap();
    let both = import(&[server.clone(), logs("posted").join(name)], ImportOptions::default()).unwrap();
    assert_eq!((both.report.requests.seen, window_ms(&both)), (2, 13_200));
    let alone = import(&[server], ImportOptions::default()).unwrap();
    assert_eq!((alone.stats.zone_assumed, alone.stats.zone_derived), (1, 0));
}

/// Every offset that a host may have, with line ends of either kind.
#[test]
fn local_times_of_any_zone_are_read_at_the_offset_of_the_file() {
    let recorded = std::fs::read_to_string(logs("posted/09-local-time-vs-epoch/requests.log")).unwrap();
    let local_offset_s = 8 * 3_600;
    for offset_s in [-25_200, -12_600, 20_700, 34_200, 45_900, 50_400] {
        for line_end in ["\n", "\r\n"] {
            let mut text = String::new();
            for line in recorded.lines() {
                let (_, rest) = line.split_once("\"timestamp\": \"").unwrap();
                let (local, rest) = rest.split_once('"').unwrap();
                let local: jiff::civil::DateTime = local.parse().unwrap();
                let local = local.saturating_add(jiff::Span::new().seconds(offset_s - local_offset_s));
                let _ = write!(text, "{{\"timestamp\": \"{local}\"{rest}{line_end}");
            }
            let run = import_text(&text, ImportOptions::default()).unwrap();
            assert_eq!((run.report.requests.seen, window_ms(&run)), (2, 13_200), "{text}");
            assert_eq!((run.stats.zone_derived, run.stats.zone_assumed), (4, 0), "{text}");
        }
    }
}

#[test]
fn records_that_share_a_line_are_all_read() {
    for name in ["joined-decode-first", "progress-bar", "repeated-by-each-rank"] {
        check_requests(name, &posted(&format!("10-torn-and-interleaved/{name}.log")), 1);
    }
    let plain = std::fs::read_to_string(logs("posted/03-log-prefixes/plain.log")).unwrap();
    let run = import_text(plain.replace('\n', ""), ImportOptions::default()).unwrap();
    check_requests("joined", &run, 2);
    assert_eq!((run.stats.lines, run.stats.joined, run.stats.known_records()), (1, 1, 2));
    // What follows the start of a request log's line may be a prompt.
    let prompt =
        format!("[2026-11-21 07:35:10] Receive: obj=GenerateReqInput(rid='a', text='{}')", plain.replace('\n', ""));
    let run = import_text(prompt, ImportOptions::default()).unwrap();
    assert_eq!((run.report.requests.seen, run.stats.known_records()), (1, 1));
    let torn = import(&[logs("posted/10-torn-and-interleaved/torn.log")], ImportOptions::default());
    assert!(torn.err().unwrap().to_string().contains("none of a known form"));
}

#[test]
fn files_of_other_tools_are_named() {
    for (name, words) in [
        (
            "vllm.log",
            "5 lines of vLLM's log: vLLM logs averages over 10 seconds and no time of a request; `tokengap attach`",
        ),
        ("bench-serving.log", "of a benchmark's summary: it has no time of a single request"),
        ("capture.sse", "4 lines of a saved response (server-sent events): it has no times; `tokengap tap"),
        ("otel.jsonl", "1 line of OpenTelemetry spans: tokengap writes spans (`tokengap export --format otlp`)"),
        ("prom.txt", "2 lines of Prometheus metrics: they have sums over all requests"),
        ("rtrace.log", "3 lines of [RTRACE] lines"),
    ] {
        let error =
            import(&[logs("posted/06-other-engines").join(name)], ImportOptions::default()).err().unwrap().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    let results = "{\"backend\": \"sglang\", \"mean_ttft_ms\": 120.1, \"ttfts\": [0.1], \"itls\": [[0.01]]}\n";
    let error = import_text(results, ImportOptions::default()).err().unwrap().to_string();
    assert!(error.starts_with("1 line of a benchmark's results: they have the client's latencies"), "{error}");
    let utf_16: Vec<u8> = "\u{feff}[2026-11-21".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let error = import_text(utf_16, ImportOptions::default()).err().unwrap().to_string();
    assert!(error.contains("UTF-16 text: convert it with `iconv"), "{error}");
    let recording = logs("../../../recording/fixtures/2.0-demo-race.tgap");
    let error = import(&[recording], ImportOptions::default()).err().unwrap().to_string();
    assert!(error.contains("a recording: `tokengap report` reads it"), "{error}");
    let run = posted("06-other-engines/dynamo.log");
    assert_eq!((run.report.requests.seen, run.stats.known_records()), (1, 1), "the engine's line is read");
}

#[test]
fn failed_health_checks_are_a_finding() {
    let text = "sglang-1  | [2026-05-16 14:45:45] Health check failed. Server couldn't get a response from detokenizer for last 20 \
                seconds. tic start time: 14:45:24. last_heartbeat time: 14:42:03\n\
                sglang-1  | [2026-05-16 14:46:45] Health check failed. Server couldn't get a response from detokenizer for last 20 \
                seconds. tic start time: 14:46:24. last_heartbeat time: 14:42:03\n";
    let run = import_text(text, ImportOptions::default()).unwrap();
    let finding = &run.report.findings[0];
    assert_eq!((&*finding.kind, finding.severity), ("health-check-failed", trace::detect::Severity::Critical));
    assert_eq!(
        finding.summary,
        "tokenizer received nothing from the detokenizer for at least 1m21s, although 2 health checks asked for a response; its last \
         message came 3m21s before"
    );
}
