//! Imports of complete engine logs: real log lines of several releases, exact report numbers, and any split into files.

mod posted;
mod wrappers;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use logs::{Import, ImportError, ImportOptions, ImportStats};
use outputs::report::{Clock, Report};
use proptest::prelude::*;
use tempfile::TempDir;
use trace::clock::Anchor;
use trace::{Analysis, Config, ReportInput};

fn logs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name)
}

/// Events, statistics and report of an import.
struct Run {
    events: Vec<String>,
    stats: ImportStats,
    report: Report,
}

fn import(paths: &[PathBuf], options: ImportOptions) -> Result<Run, ImportError> {
    let mut import = Import::open(paths, engines::LOGS, options)?;
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let mut events = Vec::new();
    let mut more = true;
    while more {
        more = import.read_some_lines_and_pass_events(&mut |event| {
            analysis.apply(event);
            events.push(format!("{event:?}"));
        });
    }
    import.fail_if_nothing_recognised()?;
    Ok(Run {
        events,
        stats: import.stats().clone(),
        report: Report::of(
            &analysis,
            &ReportInput { wall: Some(Anchor::default()), ..ReportInput::for_source("import") },
        ),
    })
}

fn of(name: &str) -> Run {
    import(&[logs(name)], ImportOptions::default()).unwrap()
}

/// Imports a log with this text.
fn import_text(text: impl AsRef<[u8]>, options: ImportOptions) -> Result<Run, ImportError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.log");
    fs::write(&path, text).unwrap();
    import(&[path], options)
}

#[test]
fn a_complete_log_gives_the_expected_report() {
    let run = of("report");
    let gap = run.report.gap_ns.as_ref().unwrap();
    assert_eq!((gap.count, gap.max), (1, Some(23_838_678_000)));
    assert_eq!(run.report.severity, Some(trace::detect::Severity::Critical));
    let kinds: Vec<&str> = run.report.findings.iter().map(|f| &*f.kind).collect();
    assert_eq!(kinds, ["first-token-gap", "consumer-cpu-logged"]);
    assert_eq!(
        (run.stats.rids_completed, run.report.requests.seen),
        (2, 1),
        "truncated rids are matched to their request"
    );
    let text = run.report.to_text(&Clock::of(&run.report, None));
    assert!(text.contains("23.839 s from first send to first receive"), "{text}");
}

#[test]
fn log_lines_of_real_releases_are_recognised() {
    let run = of("sglang-0.5.23");
    let forms: Vec<(&str, u64)> = run.stats.forms.iter().map(|(form, n)| (*form, *n)).collect();
    assert_eq!(
        forms,
        [
            ("request-finished", 4),
            ("request-metrics", 2),
            ("request-received", 4),
            ("streaming-backlog", 1),
            ("time-stats", 2),
        ]
    );
    let stages = run.report.stages.unwrap();
    let merged = stages.merged.unwrap();
    assert_eq!((merged.times, merged.chunks, merged.max), (1, 27, 27));
    assert_eq!((run.report.requests.seen, run.report.requests.finished), (2, 2));
    // The release computed both from one clock: prefill finished 0.25 s and the first token came 11.7 s after the start. The first of the
    // two requests streams.
    for name in ["0.5.23.log", "0.5.23.requests.log", "sglang-request-metrics-20261121_07.log", ""] {
        let run = of(&format!("sglang-0.5.23/{name}"));
        let gap = run.report.gap_ns.as_ref().unwrap();
        assert_eq!(gap.count, 1, "{name}");
        assert!(gap.max.unwrap().abs_diff(11_450_000_000) < 2_000_000, "{name}: {gap:?}");
        let worst = run.report.findings.first().unwrap();
        assert_eq!((&*worst.kind, worst.severity), ("first-token-gap", trace::detect::Severity::Critical), "{name}");
    }
    let run = of("sglang-0.5.23/0.5.23.requests.log");
    assert_eq!(run.report.slowest.iter().filter(|line| line.gap_ns.is_some()).count(), 1);
    // Up to 0.5.9, the response is the first event with a time at the tokenizer.
    let gap = of("sglang-0.5.9").report.gap_ns.unwrap();
    assert_eq!(gap.count, 1);
    assert!(gap.max.unwrap().abs_diff(11_500_000_000) < 2_000_000, "{gap:?}");

    let run = of("sglang-0.5.9");
    assert_eq!((run.stats.unknown, run.stats.malformed, run.stats.undated), (0, 0, 0));
    assert_eq!((run.stats.forms["request-finished"], run.stats.forms["request-metrics"]), (4, 2));
    assert!(
        run.stats.whole_seconds >= 6 && run.stats.zone_assumed + run.stats.zone_derived >= 6,
        "SGLang's logger writes neither fractions nor a zone"
    );
    assert_eq!(of("sglang-0.4.6.post4").stats.forms["time-stats"], 2);
}

#[test]
fn prompts_and_outputs_are_never_copied() {
    for name in ["sglang-0.5.9", "sglang-0.5.23"] {
        let run = of(name);
        let all = run.events.concat() + &run.report.to_json() + &run.report.to_text(&Clock::of(&run.report, None));
        assert!(!all.contains("must not be copied") && !all.contains("a prompt"), "{name}");
    }
    let prompt = "2026-01-18 07:55:00 INFO rid=ab12 prompt: tell me a secret\n";
    let error = import_text(prompt, ImportOptions::default()).err().unwrap().to_string();
    assert!(error.contains("1 line in 1 file and none of a known form"), "{error}");
    assert!(error.contains("2026-01-18 07:55:00 INFO rid=ab12 …") && !error.contains("secret"), "{error}");
}

/// Log lines of consecutive requests; the first token of request `n` waits `n` ms. Timestamps are in order.
fn log_lines(requests: u64) -> Vec<(u64, String)> {
    let start = 1_768_694_400_000_u64;
    let mut lines = Vec::new();
    for n in 0..requests {
        let rid = format!("{:08x}-aaaa", n.wrapping_mul(2_654_435_761) as u32);
        let sent = start + n * 40;
        for (at, line) in [
            (sent, format!("[TRACE disagg] rid={rid} first_output_stream stage=x")),
            (
                sent + n,
                format!("[TOK recv] type=BatchTokenIDOutput rids=1 states={} recv_wait_ms=0.1 more=True", n + 1),
            ),
            (sent + n, format!("[TRACE output] rid={rid} tokenizer_first_token output_len=1 pending=2")),
        ] {
            let at_text = jiff::Timestamp::from_millisecond(at as i64).unwrap();
            lines.push((at, format!("{at_text:.3} {line}\n")));
        }
    }
    lines.sort_by_key(|l| l.0);
    lines
}

fn numbers(report: &Report) -> (u64, Option<u64>, Option<u64>, Option<f64>) {
    let gap = report.gap_ns.as_ref().unwrap();
    let stages = report.stages.as_ref().unwrap();
    (gap.count, gap.p50, gap.max, stages.gap_with_states.map(|c| c.spearman))
}

#[test]
fn gaps_are_correlated_with_logged_states() {
    let lines = log_lines(200).into_iter().map(|l| l.1).collect::<String>();
    let run = import_text(lines, ImportOptions::default()).unwrap();
    let (count, median, max, rho) = numbers(&run.report);
    assert_eq!((count, max, rho), (200, Some(199_000_000), Some(1.0)));
    assert!(median.unwrap().abs_diff(100_000_000) <= 1_100_000, "{median:?}");
}

/// Distributes the lines over files of several formats and swaps some neighbours.
fn split_into_files(lines: &[(u64, String)], files: usize, seed: u64) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut texts = vec![String::new(); files];
    let mut random = seed;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut order: Vec<usize> = (0..lines.len()).collect();
    for index in 1..order.len() {
        // Swaps only neighbours with different times: lines of the same millisecond keep their order.
        if lines[order[index - 1]].0 != lines[order[index]].0 && next(3) == 0 {
            order.swap(index - 1, index);
        }
    }
    for index in order {
        // All lines of one millisecond go into one file, for the same reason.
        let (at, line) = &lines[index];
        texts[(*at as usize / 7) % files].push_str(line);
    }
    for (n, text) in texts.iter().enumerate() {
        let path = folder.path().join(format!("part{n}.log"));
        match n % 3 {
            0 => fs::write(path, text).unwrap(),
            1 => {
                let file = fs::File::create(path.with_extension("log.1.gz")).unwrap();
                let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
                gz.write_all(text.as_bytes()).unwrap();
                gz.finish().unwrap();
            }
            _ => fs::write(path.with_extension("log.zst"), zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap(),
        }
    }
    folder
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn splitting_lines_over_files_does_not_change_the_report(files in 1_usize..6, seed: u64, open_files in 2_usize..8) {
        let lines = log_lines(60);
        let (one, many) = (split_into_files(&lines, 1, 1), split_into_files(&lines, files, seed));
        // States apply to the log that contains them: the only log, or the one known to be the tokenizer's.
        let unsplit = import(&[one.path().to_owned()], ImportOptions::default()).unwrap();
        let options = ImportOptions { max_open_files: open_files.max(files), ..ImportOptions::default() };
        let split = import(&[many.path().to_owned()], options).unwrap();
        let (a, b) = (numbers(&unsplit.report), numbers(&split.report));
        prop_assert_eq!((a.0, a.1, a.2), (b.0, b.1, b.2));
        prop_assert_eq!((split.stats.late, split.stats.events), (0, 180));
        prop_assert_eq!(split.stats.files, files as u64);
    }

    #[test]
    fn a_small_window_and_few_held_lines_lose_only_order(max_held_lines in 0_usize..20, window_ms in 0_u64..50, seed: u64) {
        let folder = split_into_files(&log_lines(60), 3, seed);
        let options = ImportOptions { max_held_lines, window_ns: window_ms * 1_000_000, ..ImportOptions::default() };
        let run = import(&[folder.path().to_owned()], options).unwrap();
        prop_assert_eq!((run.stats.events, run.report.gap_ns.map(|g| g.count)), (180, Some(60)));
    }

    #[test]
    fn damaged_files_are_read_without_a_panic(name in 0_usize..4, cuts in proptest::collection::vec((0_usize..20_000, any::<u8>()), 0..30), end in 0_usize..20_000) {
        let name = ["report/decode.log", "sglang-0.5.9/0.5.9.log", "sglang-0.5.23/0.5.23.log", "sglang-0.5.23/0.5.23.requests.log"][name];
        let mut text = fs::read(logs(name)).unwrap();
        for (at, byte) in cuts {
            let at = at % text.len();
            text[at] = byte;
        }
        text.truncate(end.max(1));
        if let Ok(run) = import_text(&text, ImportOptions::default()) {
            let stats = run.stats;
            prop_assert!(stats.known_records() + stats.malformed + stats.unknown == stats.lines + stats.joined);
        }
    }
}

#[test]
fn a_truncated_file_is_read_to_its_end_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let text: String = log_lines(3_000).into_iter().map(|l| l.1).collect();
    gz.write_all(text.as_bytes()).unwrap();
    let complete = gz.finish().unwrap();
    let path = folder.path().join("cut.log.gz");
    fs::write(&path, &complete[..complete.len() / 2]).unwrap();
    fs::write(folder.path().join("core"), b"\x7fELF\0\0\0").unwrap();
    let run = import(&[folder.path().to_owned()], ImportOptions::default()).unwrap();
    assert!(run.stats.events > 1_000 && run.stats.broken[0].contains("cut.log.gz"), "{:?}", run.stats);
    assert!(run.stats.skipped[0].contains("core: no text"));
}

#[test]
fn timestamps_without_year_and_zone_use_the_options() {
    let text = "Jan 18 07:55:00 node sglang[7]: [TRACE disagg] rid=a first_output_stream\n\
                Jan 18 07:55:09 node sglang[7]: [TRACE output] rid=a tokenizer_first_token\n";
    let options = ImportOptions {
        zone: jiff::tz::TimeZone::get("Europe/Berlin").ok(),
        year: Some(2026),
        ..ImportOptions::default()
    };
    let run = import_text(text, options).unwrap();
    assert_eq!(run.report.window_mono_ns[0], 1_768_719_300_000_000_000, "06:55 UTC");
    assert_eq!((run.stats.year_assumed, run.stats.zone_assumed, run.stats.whole_seconds), (2, 2, 2));
}

#[test]
fn log_collector_wrappers_are_removed() {
    let line = "[TRACE disagg] rid=a first_output_stream";
    let received = "[TRACE output] rid=a tokenizer_first_token";
    for text in [
        format!(
            "{{\"log\":\"{line}\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-18T07:55:00.5Z\"}}\n\
             {{\"log\":\"\\u001b[32m{received}\\u001b[0m\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-18T07:55:02.5Z\"}}\n"
        ),
        format!(
            "{{\"timestamp\":\"2026-01-18T07:55:00.5Z\",\"level\":\"DEBUG\",\"fields\":{{\"message\":\"{line}\"}}}}\n\
             {{\"ts\":1768722902.5,\"msg\":\"{received}\"}}\n"
        ),
        format!(
            "2026-01-18T07:55:00.500000000Z stdout F [2026-01-18 07:55:00 TP0] {line}\n\
             2026-01-18T07:55:02.500000000Z stdout F [2026-01-18 07:55:02 TP0] {received}\r\n"
        ),
        format!("\x1b[2m2026-01-18T07:55:00.5Z\x1b[0m DEBUG {line}\n1768722902500 {received}\n"),
    ] {
        let run = import_text(&text, ImportOptions::default()).unwrap();
        assert_eq!(run.report.gap_ns.and_then(|g| g.max), Some(2_000_000_000), "{text}");
    }
}
