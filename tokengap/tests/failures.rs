//! Disk and process failures: the run continues, written data remains readable, and reports name the missing part.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const TOKENGAP: &str = env!("CARGO_BIN_EXE_tokengap");

/// Runs a shell command in `folder`; `$T` is tokengap.
fn shell(folder: &Path, line: &str) -> Output {
    let output = Command::new("sh").current_dir(folder).env("T", TOKENGAP).args(["-c", line]).output();
    output.expect("sh runs")
}

/// Report of a successful run.
fn report(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

/// Degradations in the report.
fn degraded(report: &Value) -> Vec<&str> {
    let degraded = report["self"]["degraded"].as_array().expect("a list");
    degraded.iter().filter_map(Value::as_str).collect()
}

#[test]
fn cpu_time_spent_before_exec_is_not_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let burn = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; cut -d' ' -f14,15 /proc/$$/stat >&2";
    let output = shell(folder.path(), &format!("{burn}; exec \"$T\" demo --duration 200ms --json"));
    let ticks = String::from_utf8_lossy(&output.stderr);
    let ticks = ticks.lines().next().expect("user and system time").split(' ');
    let burnt: u64 = ticks.map(|n| n.parse::<u64>().expect("clock ticks")).sum();
    let own = report(&output)["self"]["cpu_ns"].as_u64().expect("CPU time");
    assert!(own < burnt * 10_000_000, "{own} ns, and {burnt} ticks of 10 ms were used before");
}

fn chunks(report: &Value) -> u64 {
    report["chunks"]["sent"].as_u64().expect("chunks")
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
    let replayed = report(&shell(folder, "exec \"$T\" replay run.tgap --json"));
    assert!((1..chunks(&live)).contains(&chunks(&replayed)), "{} of {}", chunks(&replayed), chunks(&live));
    let lines = degraded(&replayed);
    assert!(lines.iter().any(|line| line.contains("it ended before the run")), "{lines:?}");
}

#[test]
fn a_file_size_limit_ends_only_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = "ulimit -f 40; exec \"$T\" demo --scenario race --json --duration 6s --record run.tgap";
    ended_early(folder.path(), &shell(folder.path(), demo), "File too large");
}

#[test]
fn a_full_disk_ends_only_the_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    // A small disk, unmounted when the shell exits. If mounting is not permitted, the test of the size limit covers the case.
    let small = "mkdir disk && mount -t tmpfs -o size=32k none disk";
    let unshare = |line: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", line]);
        command.current_dir(folder.path()).env("T", TOKENGAP).output()
    };
    if !unshare(&format!("{small} && rmdir disk || umount disk && rmdir disk"))
        .is_ok_and(|tried| tried.status.success())
    {
        eprintln!("not run: no small disk can be mounted here");
        return;
    }
    let demo = "\"$T\" demo --scenario race --json --duration 6s --record disk/run.tgap && cp disk/run.tgap .";
    let live = unshare(&format!("{small} && {demo}")).expect("unshare runs");
    ended_early(folder.path(), &live, "No space left on device");
}

/// A process that is killed on drop.
struct Running(Child);

impl Running {
    fn demo(folder: &Path, args: &[&str]) -> Self {
        let mut demo = Command::new(TOKENGAP);
        demo.current_dir(folder).args(["demo", "--json"]).args(args);
        Self(demo.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tokengap runs"))
    }

    /// Kills it with SIGKILL once `file` has grown to `bytes`.
    fn kill_when(&mut self, file: &Path, bytes: u64) {
        let end = Instant::now() + Duration::from_mins(1);
        while !file.metadata().is_ok_and(|there| there.len() >= bytes) {
            assert!(Instant::now() < end, "{} does not grow", file.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.kill().expect("killed");
        self.0.wait().expect("it is gone");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn recording_and_ring_are_readable_after_sigkill() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, ring) = (folder.path().join("run.tgap"), folder.path().join("ring.tgap"));
    let args = "--scenario race --duration 60s --record run.tgap --hindsight 8MiB --hindsight-file ring.tgap";
    let mut run = Running::demo(folder.path(), &args.split(' ').collect::<Vec<_>>());
    run.kill_when(&file, 30_000);
    assert_eq!(ring.metadata().expect("the ring").len(), 8 << 20);
    // Simulates a kill in the middle of the last write.
    let cut = folder.path().join("cut.tgap");
    let bytes = std::fs::read(&file).expect("the recording");
    std::fs::write(&cut, &bytes[..bytes.len() - 7]).expect("written");
    let mut seen = Vec::new();
    for (name, problem) in [
        ("run.tgap", Some("it was not closed")),
        ("cut.tgap", Some("its last block is truncated")),
        ("ring.tgap", None),
    ] {
        let replayed = report(&shell(folder.path(), &format!("exec \"$T\" replay {name} --json")));
        let lines = degraded(&replayed);
        if let Some(problem) = problem {
            assert!(lines.iter().any(|line| line.contains(problem)), "{name}: {lines:?}");
        }
        seen.push(chunks(&replayed));
        let exported = shell(folder.path(), &format!("exec \"$T\" export {name} --format csv"));
        assert!(exported.status.success());
        let requests = String::from_utf8_lossy(&exported.stdout).lines().count() as u64;
        assert_eq!(requests, 1 + replayed["requests"]["seen"].as_u64().expect("requests"), "{name}");
    }
    assert!(seen[0] > seen[1] && seen[1] > 0 && seen[2] > 0, "{seen:?}");
}

#[test]
fn a_run_continues_when_its_output_folder_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept");
    std::fs::create_dir(&kept).expect("a folder");
    let args = "--scenario race --duration 5s --record kept/run.tgap --hindsight 8MiB --hindsight-file kept/ring.tgap";
    let mut run = Running::demo(folder.path(), &args.split(' ').collect::<Vec<_>>());
    let end = Instant::now() + Duration::from_mins(1);
    while !kept.join("run.tgap").exists() {
        assert!(Instant::now() < end, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    std::fs::remove_dir_all(&kept).expect("removed");
    let mut out = Vec::new();
    let stdout = run.0.stdout.as_mut().expect("its report");
    std::io::Read::read_to_end(stdout, &mut out).expect("it is read");
    assert!(run.0.wait().expect("it ends").success());
    let live: Value = serde_json::from_slice(&out).expect("a report");
    assert_eq!(Some(chunks(&live)), live["demo"]["truth"]["chunks"].as_u64());
    let lines = degraded(&live);
    assert!(lines.iter().any(|line| line.contains("kept/run.tgap was removed")), "{lines:?}");
}
