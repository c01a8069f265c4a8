//! The real binary records a run. The recording gives the same report as the run; after a failure of the disk or of a process, the run
//! continues, written data remains readable, and reports name the missing part.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const TOKENGAP: &str = env!("CARGO_BIN_EXE_tokengap");

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn tokengap(folder: &Path, args: &[&str]) -> Output {
    Command::new(TOKENGAP).current_dir(folder).args(args).output().expect("tokengap runs")
}

/// Runs a shell command in `folder`; `$T` is tokengap.
fn shell(folder: &Path, line: &str) -> Output {
    Command::new("sh").current_dir(folder).env("T", TOKENGAP).args(["-c", line]).output().expect("sh runs")
}

/// Report of a successful run.
fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}: {}", output.status, stderr(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

fn replayed(folder: &Path, file: &str) -> Value {
    report(&tokengap(folder, &["replay", file, "--json"]))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Degradations in the report.
fn degraded(report: &Value) -> Vec<&str> {
    let degraded = report["self"]["degraded"].as_array().expect("a list");
    degraded.iter().filter_map(Value::as_str).collect()
}

fn chunks(report: &Value) -> u64 {
    report["chunks"]["sent"].as_u64().expect("chunks")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A demo in a folder of its own, killed on drop.
struct Running {
    demo: Child,
    folder: TempDir,
}

impl Running {
    fn start(folder: TempDir, args: &str) -> Self {
        let mut demo = Command::new(TOKENGAP);
        demo.current_dir(folder.path()).args(["demo", "--json"]).args(args.split(' '));
        let demo = demo.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tokengap runs");
        Self { demo, folder }
    }

    /// Waits for a minute at most.
    fn wait<T>(&self, what: &str, found: impl Fn() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(Instant::now() < end, "{what}: {:?}", names(self.folder.path()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([name, &self.demo.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
    }

    /// Waits for a complete dump, and checks that it has chunks.
    fn check_dump(&self) {
        let is_dump = |name: &String| name.starts_with("tokengap-hindsight-");
        let dump = self.wait("no dump was written", || names(self.folder.path()).into_iter().find(is_dump));
        let report = replayed(self.folder.path(), &dump);
        assert!(chunks(&report) > 0, "{report}");
    }

    /// Its report, once it has ended.
    fn report(&mut self) -> Value {
        let mut out = Vec::new();
        self.demo.stdout.as_mut().expect("piped").read_to_end(&mut out).expect("it is read");
        assert!(self.demo.wait().expect("it ends").success());
        serde_json::from_slice(&out).expect("a report")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.demo.kill();
        let _ = self.demo.wait();
    }
}

#[test]
fn a_replay_gives_the_same_report_as_the_live_run() {
    let folder = folder();
    for scenario in ["race", "router"] {
        let file = format!("{scenario}.tgap");
        let live =
            tokengap(folder.path(), &["demo", "--scenario", scenario, "--json", "--duration", "2s", "--record", &file]);
        assert!(stderr(&live).contains(&format!("recorded to {file}")), "{}", stderr(&live));
        let mut reports = [report(&live), replayed(folder.path(), &file)];
        for report in &mut reports {
            let own = report["self"].as_object_mut().expect("its own part");
            assert!(own.remove("cpu_ns").is_some() && own.remove("rss_bytes").is_some());
        }
        let [live, replayed] = reports;
        assert!(chunks(&live) > 100, "{live}");
        for (part, value) in live.as_object().expect("parts") {
            assert_eq!(&replayed[part], value, "{scenario}: {part}");
        }
    }
}

#[test]
fn existing_files_are_replaced_only_with_force() {
    let folder = folder();
    std::fs::write(folder.path().join("run.tgap"), "mine").expect("written");
    let demo = ["demo", "--json", "--duration", "1s", "--record", "run.tgap"];
    let refused = tokengap(folder.path(), &demo);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--force"), "{}", stderr(&refused));
    let content = std::fs::read(folder.path().join("run.tgap")).expect("kept");
    assert_eq!(content, b"mine");
    let nowhere = tokengap(folder.path(), &["demo", "--json", "--record", "no/such/folder/run.tgap"]);
    assert_eq!(nowhere.status.code(), Some(2), "reported before the run: {}", stderr(&nowhere));
    let forced = tokengap(folder.path(), &[&demo[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", stderr(&forced));
    assert!(tokengap(folder.path(), &["replay", "run.tgap"]).status.success());
}

#[test]
fn hindsight_is_dumped_on_a_signal_and_the_ring_removed_at_the_end() {
    let mut run = Running::start(folder(), "--scenario healthy --duration 60s --hindsight 8MiB");
    std::thread::sleep(Duration::from_secs(3));
    run.signal("-USR1");
    run.check_dump();
    run.signal("-INT");
    run.report();
    let left: Vec<String> = names(run.folder.path());
    assert!(left.iter().all(|n| n.starts_with("tokengap-hindsight-")), "{left:?}");
}

#[test]
fn hindsight_is_dumped_automatically_when_tokens_are_lost() {
    Running::start(folder(), "--scenario race --duration 60s --hindsight 8MiB").check_dump();
}

#[test]
fn token_ids_are_recorded_and_exported_only_on_request() {
    let folder = folder();
    let demo = |file: &str, more: &[&str]| {
        let args = ["demo", "--json", "--duration", "1s", "--record", file];
        report(&tokengap(folder.path(), &[&args[..], more].concat()));
    };
    let events = |file: &str, payload: &str| {
        tokengap(folder.path(), &["export", file, "--format", "events", "--payload", payload])
    };
    let ids = |output: &Output| {
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        lines.matches("\"ids\":[").count()
    };
    demo("lengths.tgap", &[]);
    demo("tokens.tgap", &["--payload", "tokens"]);
    let refused = events("lengths.tgap", "tokens");
    assert!(!refused.status.success() && stderr(&refused).contains("--payload tokens"), "{}", stderr(&refused));
    assert_eq!(ids(&events("lengths.tgap", "lengths")), 0);
    assert_eq!(ids(&events("tokens.tgap", "lengths")), 0, "export needs its own --payload tokens");
    assert!(ids(&events("tokens.tgap", "tokens")) > 100);
}

/// Extracts the archive `file` there and returns its names, in order.
fn extract(folder: &Path, file: &str) -> Vec<String> {
    let packed = std::fs::File::open(folder.join(file)).expect("written");
    std::fs::write(folder.join("unpacked.tar"), zstd::decode_all(packed).expect("zstd")).expect("written");
    let extracted = shell(folder, "tar -xvf unpacked.tar");
    assert_eq!(stderr(&extracted), "", "tar has no complaints");
    String::from_utf8_lossy(&extracted.stdout).lines().map(String::from).collect()
}

#[test]
fn a_bundle_has_the_report_of_its_recording_and_no_token_ids() {
    let folder = folder();
    let run = |args: &str| tokengap(folder.path(), &args.split(' ').collect::<Vec<_>>());
    run("demo --scenario race --json --duration 2s --record run.tgap --payload tokens");
    let mut original = report(&run("report run.tgap --format json"));
    assert!(original["losses"].to_string().contains("\"ids\""), "{}", original["losses"]);

    let made = run("report run.tgap --bundle incident.tar.zst --fail-on critical");
    assert_eq!(made.status.code(), Some(1), "{}", stderr(&made));
    assert_eq!(names(folder.path()), ["incident.tar.zst", "run.tgap"], "no temporary file remains");
    let files = ["manifest.json", "report.json", "report.md", "recording.tgap", "doctor.txt"];
    assert_eq!(extract(folder.path(), "incident.tar.zst"), files.map(|name| format!("incident/{name}")));
    let content = |name: &str| std::fs::read(folder.path().join("incident").join(name)).expect("extracted");

    let manifest: Value = serde_json::from_slice(&content("manifest.json")).expect("JSON");
    assert_eq!(manifest["schema"], "tokengap.bundle/1");
    for part in ["tokengap", "recorded_by"] {
        assert_eq!(manifest[part], env!("CARGO_PKG_VERSION"), "{part}");
    }
    assert_eq!([&manifest["engine"], &manifest["engine_version"]], ["sglang", "0.5.9"]);
    for (entry, name) in manifest["files"].as_array().expect("a list").iter().zip(&files[1..]) {
        assert_eq!([&entry["name"], &entry["bytes"]], [&Value::from(*name), &Value::from(content(name).len())]);
    }
    assert!(String::from_utf8_lossy(&content("report.md")).contains("CRITICAL"));
    let doctor = String::from_utf8_lossy(&content("doctor.txt")).into_owned();
    assert!(doctor.contains("may be from another one") && doctor.contains("\nkernel"), "{doctor}");

    let bundled: Value = serde_json::from_slice(&content("report.json")).expect("JSON");
    assert_eq!(report(&run("report incident/recording.tgap --format json")), bundled);
    for evidence in ["confirmed", "predicted"] {
        for line in original["losses"][evidence]["lines"].as_array_mut().expect("a list") {
            for range in line["ranges"].as_array_mut().expect("a list") {
                range.as_object_mut().expect("a range").remove("ids");
            }
        }
    }
    for (part, value) in original.as_object().expect("parts") {
        assert_eq!(&bundled[part], value, "{part}");
    }
    let refused = run("export incident/recording.tgap --format events --payload tokens");
    assert!(stderr(&refused).contains("holds no token ids"), "{}", stderr(&refused));
}

#[test]
fn a_bundle_of_a_truncated_recording_lists_what_is_missing() {
    let folder = folder();
    let whole = include_bytes!("../../../recording/fixtures/2.0-attach-0.5.9.tgap");
    std::fs::write(folder.path().join("cut.tgap"), &whole[..whole.len() * 2 / 3]).expect("written");
    let original = report(&tokengap(folder.path(), &["report", "cut.tgap", "--format", "json"]));
    assert!(degraded(&original).iter().any(|line| line.contains("its last block is truncated")), "{original}");
    let made = tokengap(folder.path(), &["report", "cut.tgap", "--bundle", "incident.tar.zst"]);
    assert!(made.status.success(), "{}", stderr(&made));
    extract(folder.path(), "incident.tar.zst");
    assert_eq!(report(&tokengap(folder.path(), &["report", "incident/recording.tgap", "--format", "json"])), original);
}

#[test]
fn a_bundle_that_fails_leaves_no_file() {
    let folder = folder();
    std::fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../recording/fixtures/2.0-demo-race.tgap"),
        folder.path().join("run.tgap"),
    )
    .expect("copied");
    std::fs::write(folder.path().join("report.json"), "{}").expect("written");
    // A file size limit of one block of 512 bytes.
    let limited = shell(folder.path(), "ulimit -f 1; exec \"$T\" report run.tgap --bundle incident.tar.zst");
    assert_eq!(limited.status.code(), Some(2), "{}", stderr(&limited));
    assert!(stderr(&limited).contains("File too large"), "{}", stderr(&limited));
    for (args, said) in [
        ("report report.json --bundle incident.tar.zst", "report.json is not a tokengap recording"),
        ("report gone --bundle incident.tar.zst", "cannot read gone"),
        ("report run.tgap --bundle report.json", "report.json already exists"),
        ("report run.tgap --bundle -", "--bundle writes a file"),
        ("report run.tgap --bundle incident.tar.zst -o x", "cannot be used with"),
    ] {
        let refused = tokengap(folder.path(), &args.split(' ').collect::<Vec<_>>());
        assert_eq!(refused.status.code(), Some(2), "{args}");
        assert!(stderr(&refused).contains(said), "{args}: {}", stderr(&refused));
    }
    assert_eq!(names(folder.path()), ["report.json", "run.tgap"]);
}

#[test]
fn cpu_time_spent_before_exec_is_not_counted() {
    let folder = folder();
    let burn = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; cut -d' ' -f14,15 /proc/$$/stat >&2";
    let output = shell(folder.path(), &format!("{burn}; exec \"$T\" demo --duration 200ms --json"));
    let ticks = String::from_utf8_lossy(&output.stderr);
    let ticks = ticks.lines().next().expect("user and system time").split(' ');
    let burnt: u64 = ticks.map(|n| n.parse::<u64>().expect("clock ticks")).sum();
    let own = report(&output)["self"]["cpu_ns"].as_u64().expect("CPU time");
    assert!(own < burnt * 10_000_000, "{own} ns, and {burnt} ticks of 10 ms were used before");
}

/// Checks that the live run observed everything and reports why its recording ended, and that the recording contains the beginning and
/// reports the missing end.
fn ended_early(folder: &Path, live: &Output, why: &str) {
    let live = report(live);
    let truth = live["demo"]["truth"]["chunks"].as_u64();
    assert_eq!(Some(chunks(&live)), truth, "the run was disturbed");
    let lines = degraded(&live);
    let recording_ended =
        lines.iter().find(|line| line.starts_with("recording stopped: ") || line.starts_with("recording: "));
    assert!(recording_ended.is_some_and(|line| line.contains(why)), "{lines:?}");
    let replayed = replayed(folder, "run.tgap");
    assert!((1..chunks(&live)).contains(&chunks(&replayed)), "{} of {}", chunks(&replayed), chunks(&live));
    let lines = degraded(&replayed);
    assert!(lines.iter().any(|line| line.contains("it ended before the run")), "{lines:?}");
}

#[test]
fn a_file_size_limit_ends_only_the_recording() {
    let folder = folder();
    let demo = "ulimit -f 60; exec \"$T\" demo --scenario race --json --duration 6s --record run.tgap";
    ended_early(folder.path(), &shell(folder.path(), demo), "File too large");
}

#[test]
fn recording_and_ring_are_readable_after_sigkill() {
    let args = "--scenario race --duration 60s --record run.tgap --hindsight 8MiB --hindsight-file ring.tgap";
    let mut run = Running::start(folder(), args);
    let folder = run.folder.path().to_owned();
    let length = |name: &str| folder.join(name).metadata().map_or(0, |file| file.len());
    run.wait("the recording does not grow", || (length("run.tgap") >= 30_000).then_some(()));
    run.demo.kill().expect("killed");
    run.demo.wait().expect("it is gone");
    assert_eq!(length("ring.tgap"), 8 << 20);
    // Simulates a kill in the middle of the last write.
    let bytes = std::fs::read(folder.join("run.tgap")).expect("the recording");
    std::fs::write(folder.join("cut.tgap"), &bytes[..bytes.len() - 7]).expect("written");
    let mut seen = Vec::new();
    for (name, problem) in [
        ("run.tgap", Some("it was not closed")),
        ("cut.tgap", Some("its last block is truncated")),
        ("ring.tgap", None),
    ] {
        let replayed = replayed(&folder, name);
        let lines = degraded(&replayed);
        if let Some(problem) = problem {
            assert!(lines.iter().any(|line| line.contains(problem)), "{name}: {lines:?}");
        }
        seen.push(chunks(&replayed));
        let exported = tokengap(&folder, &["export", name, "--format", "csv"]);
        assert!(exported.status.success());
        let requests = String::from_utf8_lossy(&exported.stdout).lines().count() as u64;
        assert_eq!(requests, 1 + replayed["requests"]["seen"].as_u64().expect("requests"), "{name}");
    }
    assert!(seen[0] > seen[1] && seen[1] > 0 && seen[2] > 0, "{seen:?}");
}
