//! End-to-end comparison of two runs: demos, their reports as files, and the output of `tokengap diff`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Duration that gives eighteen slots, of which the first and the last are omitted: in fewer, a growing backlog may be noise.
const DURATION: &str = "18s";

/// Runs a demo with its report in `file`.
fn play(file: &Path, args: &[&str]) -> Child {
    let out = std::fs::File::create(file).expect("a file");
    Command::new(env!("CARGO_BIN_EXE_tokengap"))
        .args(["demo", "--json", "--duration", DURATION])
        .args(args)
        .stdout(out)
        .stderr(Stdio::null())
        .spawn()
        .expect("the demo runs")
}

fn diff(a: &Path, b: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tokengap"))
        .arg("diff")
        .args([a, b])
        .args(["--format", "json"])
        .output()
        .expect("diff runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn verdict_of<'a>(diff: &'a Value, measure: &str) -> &'a str {
    let measures = diff["measures"].as_array().expect("measures");
    let found = measures.iter().find(|m| m["name"] == measure);
    found.and_then(|m| m["verdict"].as_str()).unwrap_or_else(|| panic!("no {measure} in {diff:#}"))
}

#[test]
fn diff_finds_the_regression_and_calls_identical_runs_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    let regression = |phase| ["--scenario", "regression", "--phase", phase];
    let runs = [
        play(&file("before"), &regression("1")),
        play(&file("after"), &regression("2")),
        play(&file("once"), &["--scenario", "healthy"]),
        play(&file("again"), &["--scenario", "healthy"]),
    ];
    for mut run in runs {
        assert!(run.wait().expect("it ends").success());
    }
    let change = diff(&file("before"), &file("after"));
    for measure in ["gap, p99", "queue wait, median on scheduler->tokenizer", "backlog, frames on scheduler->tokenizer"]
    {
        assert_eq!(verdict_of(&change, measure), "worse", "{measure} of {change:#}");
    }
    // The significance of the throughput change depends on the load of the machine during these seconds.
    let delivered = change["measures"].as_array().into_iter().flatten().find(|m| m["name"] == "tokens delivered");
    let fell = delivered.and_then(|m| m["change"].as_f64());
    assert!(fell.is_some_and(|change| change < -0.2), "{change:#}");
    let patterns: Vec<&str> =
        change["patterns"].as_array().into_iter().flatten().filter_map(|p| p["title"].as_str()).collect();
    assert_eq!(patterns, ["incremental output was enabled", "token counts are no longer inflated"]);
    let same = diff(&file("once"), &file("again"));
    let measures = same["measures"].as_array().expect("measures");
    let changed: Vec<&str> = measures
        .iter()
        .filter(|measure| ["better", "worse"].map(Value::from).contains(&measure["verdict"]))
        .filter_map(|measure| measure["name"].as_str())
        .collect();
    // A machine that is busy with other tests delays first tokens of one run more than those of the other.
    assert!(changed.iter().all(|name| name.starts_with("TTFT of all requests")), "{same:#}");
}

/// Compares two recordings of the fixtures; the exit status is that of `--fail-on-worse`.
fn diff_fixtures(a: &str, b: &str) -> (Value, Option<i32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/fixtures");
    let output = Command::new(env!("CARGO_BIN_EXE_tokengap"))
        .arg("diff")
        .args([a, b].map(|name| folder.join(format!("2.0-{name}.tgap"))))
        .args(["--format", "json", "--fail-on-worse"])
        .output()
        .expect("diff runs");
    (serde_json::from_slice(&output.stdout).expect("JSON"), output.status.code())
}

/// State, kind and severities of each finding.
fn findings_of(diff: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let findings = diff["findings"].as_array().expect("findings");
    let line = |change: &Value| {
        let [state, kind] = ["state", "kind"].map(|name| text(&change[name]));
        let [a, b] = ["a", "b"].map(|side| text(&change[side]["severity"]));
        format!("{state} {kind} {a} {b}")
    };
    findings.iter().map(line).collect()
}

#[test]
fn a_new_critical_finding_is_the_headline_and_fails() {
    let (worse, status) = diff_fixtures("attach-0.5.9", "stopped-0.5.9");
    let verdict = worse["verdict"].as_str().expect("a verdict");
    assert!(verdict.starts_with("NEW CRITICAL: dropped-chunks: "), "{verdict}");
    assert_eq!(status, Some(1));
    let found = findings_of(&worse);
    assert_eq!(found[0], "new dropped-chunks - critical", "{found:?}");
    assert!(found.contains(&String::from("new consumer-stopped - warning")), "{found:?}");
    let (better, status) = diff_fixtures("stopped-0.5.9", "attach-0.5.9");
    assert_eq!(status, Some(0), "{better:#}");
    // The second run does not observe deliveries, so it cannot show that nothing is lost.
    assert!(findings_of(&better).contains(&String::from("not-comparable dropped-chunks critical -")), "{better:#}");
    assert!(findings_of(&better).contains(&String::from("gone first-token-gap warning -")), "{better:#}");
    let (same, status) = diff_fixtures("stopped-0.5.9", "stopped-0.5.9");
    assert_eq!(status, Some(0));
    assert!(findings_of(&same).iter().all(|line| line.starts_with("unchanged ")), "{same:#}");
}

#[test]
fn a_run_that_cannot_show_a_finding_does_not_make_it_gone() {
    let (diff, _) = diff_fixtures("stopped-0.5.9", "tap-0.5.9");
    let stopped = diff["findings"].as_array().into_iter().flatten().find(|change| change["kind"] == "consumer-stopped");
    let stopped = stopped.expect("the finding");
    assert_eq!(stopped["state"], "not-comparable");
    assert_eq!(stopped["note"], "second run: threads are not observed");
}
