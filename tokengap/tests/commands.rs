//! Commands of the real binary: the documented ones, user errors with files, addresses and processes, and privileges.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../recording/fixtures/2.0-demo-race.tgap");
/// Advice for a name that does not exist.
const NOT_FOUND: &str = "check the name";

/// Creates unusable files in `folder`.
fn prepare(folder: &Path) {
    let recording = fs::read(RECORDING).expect("a recording");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("written");
    write("whole.tgap", &recording);
    write("cut.tgap", &recording[..60]);
    write("closed.tgap", &recording);
    write("empty", b"");
    write("text", b"hello world\n");
    write("cut.json", b"{\"schema\": \"tokengap.report/2\", \"source\": {");
    fs::create_dir(folder.join("dir")).expect("a folder");
    fs::set_permissions(folder.join("closed.tgap"), Permissions::from_mode(0o000)).expect("closed");
}

/// Each message names the operation, the object and the next step.
#[test]
fn user_errors_name_the_object_and_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    prepare(folder.path());
    let (live, here) = ("--headless --duration 1s", folder.path().display().to_string());
    let mut cases: Vec<(String, Vec<&str>)> = Vec::new();
    for command in ["replay --headless", "report", "export --format csv", "import", "diff whole.tgap"] {
        cases.push((format!("{command} gone"), vec!["cannot read gone: ", NOT_FOUND]));
    }
    for command in ["replay --headless", "report", "export --format csv"] {
        cases.push((format!("{command} text"), vec!["text is n", "use a file written by --record"]));
        cases.push((format!("{command} cut.tgap"), vec!["cut.tgap is truncated or damaged", "copy it again"]));
    }
    // Root can read the file regardless of its permissions.
    if fs::read(folder.path().join("closed.tgap")).is_err() {
        for command in ["replay --headless", "report", "export --format csv", "import"] {
            cases.push((
                format!("{command} closed.tgap"),
                vec!["cannot read closed.tgap: ", "run as the user that `ls -l` shows"],
            ));
        }
    }
    cases.extend(
        [
            ("report empty", vec!["empty is empty: the run", "may have failed"]),
            ("report dir", vec!["cannot read dir: ", "choose a file"]),
            ("report cut.json", vec!["cut.json is not a tokengap report", "it is truncated; print or copy it again"]),
            ("replay --headless dir", vec!["dir is not a tokengap recording", "use a file written by --record"]),
            ("replay --headless empty", vec!["empty is not a tokengap recording", "use a file written by --record"]),
            ("import dir", vec!["no log file in dir", "are skipped"]),
            ("import text", vec!["none of a known form", "request logs"]),
            ("decode gone", vec!["gone: it cannot be read: ", NOT_FOUND]),
            ("decode dir", vec!["dir: it cannot be read: ", "choose a file"]),
            ("decode empty", vec!["empty: it is empty", "expected a message"]),
            ("decode text", vec!["text: not in a known format", "expected one message"]),
            ("report whole.tgap -o gone/x", vec!["cannot write gone/x: ", NOT_FOUND]),
            ("report whole.tgap -o dir", vec!["cannot write dir: ", "choose a file"]),
            ("report whole.tgap -o text", vec!["text already exists", "--force"]),
            ("import text --record whole.tgap", vec!["whole.tgap already exists", "--force"]),
            ("demo --config gone LIVE", vec!["--config gone: cannot read the file: ", NOT_FOUND]),
            ("demo --record gone/x LIVE", vec!["cannot create gone/x: ", NOT_FOUND]),
            ("demo --record dir LIVE", vec!["dir is not a regular file", "choose another"]),
            (
                "demo --metrics 0.0.0.0:9464 LIVE",
                vec!["0.0.0.0:9464 is reachable from other machines", "--token-file FILE", "--insecure"],
            ),
            (
                "demo --metrics 0.0.0.0:9464 --token-file nowhere LIVE",
                vec!["cannot read the token in nowhere", NOT_FOUND],
            ),
            (
                "demo --metrics 192.0.2.1:9464 --insecure LIVE",
                vec!["cannot serve metrics at 192.0.2.1:9464", "choose another"],
            ),
            (
                "watch gone LIVE",
                vec!["\"gone\" is not an address to connect to", "expected an address like 127.0.0.1:9464"],
            ),
            (
                "tap --listen tcp://192.0.2.1:5999 --upstream tcp://127.0.0.1:1 LIVE",
                vec!["cannot listen at tcp://192.0.2.1:5999: ", "choose one that it has"],
            ),
            (
                "tap --listen ipc://HERE/text --upstream ipc://HERE/x LIVE",
                vec!["text is a file, not a socket", "listen elsewhere"],
            ),
            ("attach --pid 4194305 LIVE", vec!["--pid 4194305: there is no such process", "as shown by ps"]),
            ("splice --pid 4194305 LIVE", vec!["--pid 4194305: there is no such process", "as shown by ps"]),
            ("doctor --pid 4194305", vec!["--pid 4194305: there is no such process", "as shown by ps"]),
            ("run --report text LIVE -- gone/engine", vec!["text already exists", "--force"]),
            ("run LIVE -- gone/engine", vec!["cannot start gone/engine: ", NOT_FOUND]),
        ]
        .map(|(line, phrases)| (line.replace("LIVE", live).replace("HERE", &here), phrases)),
    );
    let mut wrong = Vec::new();
    for (line, phrases) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_tokengap"))
            .current_dir(folder.path())
            .args(line.split(' '))
            .output()
            .expect("tokengap runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let missing: Vec<&str> = phrases.into_iter().filter(|phrase| !stderr.contains(phrase)).collect();
        if output.status.code() != Some(2) || !missing.is_empty() || stderr.contains("panicked") {
            wrong.push(format!("tokengap {line}: {}, does not say {missing:?}: {stderr}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn file_names_and_reports_cannot_inject_escape_sequences() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = "\u{1b}]0;x\u{7}\u{202e}.json";
    let file = folder.path().join(name);
    fs::write(&file, b"{\"schema\": \"tokengap.report/2\", \"\x1b[2J\x07\": {").expect("written");
    for command in ["report", "diff", "decode", "replay --headless", "export --format csv"] {
        let mut words = command.split(' ');
        let mut program = Command::new(env!("CARGO_BIN_EXE_tokengap"));
        program.args(words.by_ref()).arg(&file);
        if command == "diff" {
            program.arg(&file);
        }
        let output = program.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("]0;x") && !text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{command}: {text:?}");
    }
}

/// Compares the output of the command lines of the README and of `tests/cmd`.
#[test]
fn documented_commands_print_the_documented_output() {
    // Paths in the documents are relative to the repository root.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("the workspace's root");
    trycmd::TestCases::new().case("README.md").case("tokengap/tests/cmd/*.md");
}

/// CPython must accept every recorded pickle that tokengap accepts, and read the same requests from it.
#[test]
fn cpython_reads_the_recorded_messages_as_we_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = Command::new("python3")
        .arg(root.join("fuzz/agree.py"))
        .arg(env!("CARGO_BIN_EXE_tokengap"))
        .arg(root.join("zmq-tap/fixtures/messages"))
        .output();
    let Ok(out) = out else {
        eprintln!("SKIPPED: there is no python3 to compare with");
        return;
    };
    let stdout = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{stdout}{}", String::from_utf8_lossy(&out.stderr));
    assert!(stdout.contains("0 of them with invalid strings and 0 with rejected calls"), "{stdout}");
}

#[test]
fn the_exit_status_is_that_of_the_headline() {
    let folder = Path::new(RECORDING).parent().expect("a folder");
    let severities = ["info", "warning", "critical"];
    for entry in fs::read_dir(folder).expect("the recordings") {
        let file = entry.expect("an entry").path();
        for (rank, severity) in severities.iter().enumerate().filter(|_| file.extension().is_some_and(|e| e == "tgap"))
        {
            let output = Command::new(env!("CARGO_BIN_EXE_tokengap"))
                .args(["report", "--format", "json", "--fail-on", severity])
                .arg(&file)
                .output()
                .expect("it runs");
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let worst = report["severity"].as_str();
            let is_worse = worst.is_some_and(|worst| severities[rank..].contains(&worst));
            assert_eq!(output.status.code(), Some(i32::from(is_worse)), "{severity} {}", report["verdict"]);
            let headline = report["verdict"].as_str().expect("a headline").to_lowercase();
            let in_headline = severities[1..].iter().find(|severity| headline.starts_with(&format!("{severity}: ")));
            assert_eq!(in_headline.copied(), worst.filter(|worst| *worst != "info"), "{headline}");
        }
    }
}

/// A command that waits for the first byte of its file has already dropped all privileges.
#[test]
fn privileges_are_dropped_before_the_first_byte_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("started").success());
    for command in ["decode", "report", "replay"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tokengap"))
            .args([command.as_ref(), pipe.as_os_str()])
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        // It blocks in `open` until a writer opens the pipe.
        let confined = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap_or_default();
            let cores = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
            let cores = cores.is_some_and(|limits| limits.split_whitespace().take(2).all(|limit| limit == "0"));
            status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2") && cores
        });
        let waits = child.try_wait().expect("asked").is_none();
        child.kill().expect("ended");
        child.wait().expect("reaped");
        assert!(confined && waits, "{command}");
    }
}

/// A process that cannot be observed is an error, not an empty report.
#[test]
fn an_attach_that_observes_no_process_fails() {
    let mut idle = Command::new("sleep").arg("60").spawn().expect("started");
    let out = Command::new(env!("CARGO_BIN_EXE_tokengap"))
        .args(["attach", "--headless", "--duration", "1s", "--pid", &format!("{}=scheduler", idle.id())])
        .output()
        .expect("started");
    idle.kill().expect("ended");
    idle.wait().expect("reaped");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{stderr}");
    // Without privileges, no probe can be loaded at all.
    let refused =
        ["cannot attach the probe", "no process of the engine is observed: none of its processes has loaded libzmq"];
    assert!(refused.iter().any(|refused| stderr.contains(refused)), "{stderr}");
}
