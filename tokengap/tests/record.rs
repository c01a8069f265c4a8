//! The real binary records a run, and the recording gives the same report as the run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn tokengap(folder: &Path, args: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_tokengap")).current_dir(folder).args(args).output();
    run.expect("tokengap runs")
}

/// The report, without the resource use of the process.
fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let own = report["self"].as_object_mut().expect("its own part");
    assert!(own.remove("cpu_ns").is_some() && own.remove("rss_bytes").is_some());
    report
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[test]
fn a_replay_gives_the_same_report_as_the_live_run() {
    let folder = tempfile::tempdir().expect("a folder");
    for scenario in ["race", "router"] {
        let file = format!("{scenario}.tgap");
        let live =
            tokengap(folder.path(), &["demo", "--scenario", scenario, "--json", "--duration", "2s", "--record", &file]);
        assert!(stderr(&live).contains(&format!("recorded to {file}")), "{}", stderr(&live));
        let live = report(&live);
        assert!(live["chunks"]["sent"].as_u64() > Some(100), "{live}");
        let replayed = report(&tokengap(folder.path(), &["replay", &file, "--json"]));
        for (part, value) in live.as_object().expect("parts") {
            assert_eq!(&replayed[part], value, "{scenario}: {part}");
        }
    }
}

#[test]
fn existing_files_are_replaced_only_with_force() {
    let folder = tempfile::tempdir().expect("a folder");
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

/// A demo with a hindsight ring, killed on drop.
struct DemoWithRing {
    demo: Child,
    folder: tempfile::TempDir,
}

impl DemoWithRing {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let demo = Command::new(env!("CARGO_BIN_EXE_tokengap"))
            .current_dir(folder.path())
            .args(["demo", "--json", "--duration", "60s", "--hindsight", "8MiB"])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tokengap runs");
        Self { demo, folder }
    }

    fn signal(&self, name: &str) {
        let kill = Command::new("kill").args([name, &self.demo.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
    }

    /// Waits for a complete dump.
    fn dump(&self) -> PathBuf {
        let end = Instant::now() + Duration::from_mins(1);
        loop {
            let dumps = names(self.folder.path()).into_iter().find(|n| n.starts_with("tokengap-hindsight-"));
            if let Some(dump) = dumps {
                return self.folder.path().join(dump);
            }
            assert!(Instant::now() < end, "no dump was written: {:?}", names(self.folder.path()));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn check_has_chunks(&self, file: &Path) {
        let output = tokengap(self.folder.path(), &["replay", &file.to_string_lossy(), "--json"]);
        let report = report(&output);
        assert!(report["chunks"]["sent"].as_u64() > Some(0), "{report}");
    }
}

impl Drop for DemoWithRing {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.demo.kill();
        let _ = self.demo.wait();
    }
}

#[test]
fn hindsight_is_dumped_on_a_signal_and_the_ring_removed_at_the_end() {
    let mut run = DemoWithRing::start(&["--scenario", "healthy"]);
    std::thread::sleep(Duration::from_secs(3));
    run.signal("-USR1");
    let dump = run.dump();
    run.check_has_chunks(&dump);
    run.signal("-INT");
    assert!(run.demo.wait().expect("it ends").success());
    let left: Vec<String> = names(run.folder.path());
    assert!(left.iter().all(|n| n.starts_with("tokengap-hindsight-")), "{left:?}");
}

#[test]
fn hindsight_is_dumped_automatically_when_tokens_are_lost() {
    let run = DemoWithRing::start(&["--scenario", "race"]);
    let dump = run.dump();
    run.check_has_chunks(&dump);
}

#[test]
fn token_ids_are_recorded_and_exported_only_on_request() {
    let folder = tempfile::tempdir().expect("a folder");
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
