//! The real binary records a run, and the recording gives the same report as the run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn tokengap(folder: &Path, args: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_tokengap"))
        .current_dir(folder)
        .args(args)
        .output();
    run.expect("tokengap runs")
}

/// The report, without the resource use of the process.
fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    let mut report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let own = report["self"].as_object_mut().expect("its own part");
    assert!(own.remove("cpu_ns").is_some() && own.remove("rss_bytes").is_some());
    report
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

#[test]
fn a_replay_says_what_the_live_run_said() {
    let folder = tempfile::tempdir().expect("a folder");
    for scenario in ["race", "router"] {
        let file = format!("{scenario}.tgap");
        let live = tokengap(
            folder.path(),
            &[
                "demo",
                "--scenario",
                scenario,
                "--json",
                "--duration",
                "2s",
                "--record",
                &file,
            ],
        );
        assert!(said(&live).contains(&format!("recorded to {file}")), "{}", said(&live));
        let live = report(&live);
        assert!(live["chunks"]["sent"].as_u64() > Some(100), "{live}");
        let replayed = report(&tokengap(folder.path(), &["replay", &file, "--json"]));
        for (part, value) in live.as_object().expect("parts") {
            assert_eq!(&replayed[part], value, "{scenario}: {part}");
        }
    }
}

#[test]
fn a_file_that_exists_is_not_replaced_by_accident() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("run.tgap"), "mine").expect("written");
    let demo = ["demo", "--json", "--duration", "1s", "--record", "run.tgap"];
    let refused = tokengap(folder.path(), &demo);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("--force"), "{}", said(&refused));
    let kept = std::fs::read(folder.path().join("run.tgap")).expect("kept");
    assert_eq!(kept, b"mine");
    let nowhere = tokengap(
        folder.path(),
        &["demo", "--json", "--record", "no/such/folder/run.tgap"],
    );
    assert_eq!(
        nowhere.status.code(),
        Some(2),
        "it is told before the run: {}",
        said(&nowhere)
    );
    let forced = tokengap(folder.path(), &[&demo[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", said(&forced));
    assert!(tokengap(folder.path(), &["replay", "run.tgap"]).status.success());
}

#[test]
fn what_is_no_recording_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("notes.txt"), "not one").expect("written");
    for name in ["notes.txt", "absent.tgap"] {
        let output = tokengap(folder.path(), &["replay", name]);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(name), "{}", said(&output));
    }
}

/// A demo with a hindsight ring, killed on drop.
struct Ringed {
    demo: Child,
    folder: tempfile::TempDir,
}

impl Ringed {
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
            let dumps = names(self.folder.path())
                .into_iter()
                .find(|n| n.starts_with("tokengap-hindsight-"));
            if let Some(dump) = dumps {
                return self.folder.path().join(dump);
            }
            assert!(Instant::now() < end, "no dump comes: {:?}", names(self.folder.path()));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn sees_chunks(&self, file: &Path) {
        let output = tokengap(self.folder.path(), &["replay", &file.to_string_lossy(), "--json"]);
        let report = report(&output);
        assert!(report["chunks"]["sent"].as_u64() > Some(0), "{report}");
    }
}

impl Drop for Ringed {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.demo.kill();
        let _ = self.demo.wait();
    }
}

#[test]
fn hindsight_is_written_out_on_a_signal_and_cleared_away_at_the_end() {
    let mut run = Ringed::start(&["--scenario", "healthy"]);
    std::thread::sleep(Duration::from_secs(3));
    run.signal("-USR1");
    let dump = run.dump();
    run.sees_chunks(&dump);
    run.signal("-INT");
    assert!(run.demo.wait().expect("it ends").success());
    let left: Vec<String> = names(run.folder.path());
    assert!(left.iter().all(|n| n.starts_with("tokengap-hindsight-")), "{left:?}");
}

#[test]
fn hindsight_is_written_out_by_itself_when_tokens_are_lost() {
    let run = Ringed::start(&["--scenario", "race"]);
    let dump = run.dump();
    run.sees_chunks(&dump);
}

#[test]
fn a_ring_survives_what_nothing_survives() {
    let run = Ringed::start(&["--scenario", "healthy", "--hindsight-file", "ring.tgap"]);
    std::thread::sleep(Duration::from_secs(4));
    run.signal("-KILL");
    std::thread::sleep(Duration::from_millis(200));
    run.sees_chunks(&run.folder.path().join("ring.tgap"));
}

#[test]
fn token_ids_are_written_down_only_when_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = |file: &str, more: &[&str]| {
        let args = ["demo", "--json", "--duration", "1s", "--record", file];
        report(&tokengap(folder.path(), &[&args[..], more].concat()));
    };
    let events = |file: &str, payload: &str| {
        tokengap(
            folder.path(),
            &["export", file, "--format", "events", "--payload", payload],
        )
    };
    let ids = |output: &Output| {
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        lines.matches("\"ids\":[").count()
    };
    demo("lengths.tgap", &[]);
    demo("tokens.tgap", &["--payload", "tokens"]);
    let refused = events("lengths.tgap", "tokens");
    assert!(
        !refused.status.success() && said(&refused).contains("--payload tokens"),
        "{}",
        said(&refused)
    );
    assert_eq!(ids(&events("lengths.tgap", "lengths")), 0);
    assert_eq!(ids(&events("tokens.tgap", "lengths")), 0, "asked for at each door");
    assert!(ids(&events("tokens.tgap", "tokens")) > 100);
}
