//! User errors with files, addresses and processes: each message names the operation, the object and the next step.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../trace/fixtures/recordings/1.0-demo-race.tgap"
);
/// Advice for a name that does not exist.
const GONE: &str = "check the name";

/// Creates unusable files in `folder`.
fn prepare(folder: &Path) {
    let recording = fs::read(RECORDING).expect("a recording");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("written");
    write("whole.tgap", &recording);
    write("cut.tgap", &recording[..60]);
    write("closed.tgap", &recording);
    write("empty", b"");
    write("text", b"hello world\n");
    write("cut.json", b"{\"schema\": \"tokengap.report/1\", \"source\": {");
    fs::create_dir(folder.join("dir")).expect("a folder");
    fs::set_permissions(folder.join("closed.tgap"), Permissions::from_mode(0o000)).expect("closed");
}

#[test]
fn every_mistake_is_told_with_what_to_do_next() {
    let folder = tempfile::tempdir().expect("a folder");
    prepare(folder.path());
    let (live, here) = ("--headless --duration 1s", folder.path().display().to_string());
    let mut cases: Vec<(String, Vec<&str>)> = Vec::new();
    for command in [
        "replay --headless",
        "report",
        "export --format csv",
        "import",
        "diff whole.tgap",
    ] {
        cases.push((format!("{command} gone"), vec!["cannot read gone: ", GONE]));
    }
    for command in ["replay --headless", "report", "export --format csv"] {
        cases.push((format!("{command} text"), vec!["text is n", "give what --record"]));
        cases.push((
            format!("{command} cut.tgap"),
            vec!["cut.tgap was cut or damaged", "copy it again"],
        ));
    }
    // Root can read the file regardless of its permissions.
    if fs::read(folder.path().join("closed.tgap")).is_err() {
        for command in ["replay --headless", "report", "export --format csv", "import"] {
            cases.push((
                format!("{command} closed.tgap"),
                vec!["cannot read closed.tgap: ", "ls -l says who may"],
            ));
        }
    }
    cases.extend(
        [
            ("report empty", vec!["empty is empty: the run", "may have failed"]),
            ("report dir", vec!["cannot read dir: ", "name a file"]),
            (
                "report cut.json",
                vec!["cut.json is no report", "it breaks off; print it again"],
            ),
            (
                "replay --headless dir",
                vec!["dir is no recording", "give what --record"],
            ),
            (
                "replay --headless empty",
                vec!["empty is no recording", "give what --record"],
            ),
            ("import dir", vec!["no log file in dir", "passed over"]),
            ("import text", vec!["none of a known form", "request logs"]),
            ("decode gone", vec!["gone: it cannot be read: ", GONE]),
            ("decode dir", vec!["dir: it cannot be read: ", "name a file"]),
            ("decode empty", vec!["empty: it is empty", "give a message"]),
            ("decode text", vec!["text: neither a pickle", "give one message"]),
            ("report whole.tgap -o gone/x", vec!["cannot write gone/x: ", GONE]),
            ("report whole.tgap -o dir", vec!["cannot write dir: ", "name a file"]),
            ("report whole.tgap -o text", vec!["text exists", "--force"]),
            (
                "import text --record whole.tgap",
                vec!["whole.tgap exists already", "--force"],
            ),
            (
                "demo --config gone LIVE",
                vec!["--config gone: it cannot be read: ", GONE],
            ),
            ("demo --record gone/x LIVE", vec!["cannot create gone/x: ", GONE]),
            (
                "demo --record dir LIVE",
                vec!["dir is not a plain file", "name another"],
            ),
            (
                "demo --metrics 192.0.2.1:9464 LIVE",
                vec!["cannot serve metrics at 192.0.2.1:9464", "choose another"],
            ),
            (
                "watch gone LIVE",
                vec!["\"gone\" is no place to connect to", "write it like tcp://"],
            ),
            (
                "tap --listen tcp://192.0.2.1:5999 --upstream tcp://127.0.0.1:1 LIVE",
                vec!["cannot listen at tcp://192.0.2.1:5999: ", "choose one that it has"],
            ),
            (
                "tap --listen ipc://HERE/text --upstream ipc://HERE/x LIVE",
                vec!["text is a file, not a socket", "listen elsewhere"],
            ),
            (
                "attach --pid 4194305 LIVE",
                vec!["--pid 4194305: there is no such process", "as ps shows it"],
            ),
            (
                "splice --pid 4194305 LIVE",
                vec!["--pid 4194305: there is no such process", "as ps shows it"],
            ),
            (
                "doctor --pid 4194305",
                vec!["--pid 4194305: there is no such process", "as ps shows it"],
            ),
            ("run LIVE -- gone/engine", vec!["cannot start gone/engine: ", GONE]),
        ]
        .map(|(line, told)| (line.replace("LIVE", live).replace("HERE", &here), told)),
    );
    let mut wrong = Vec::new();
    for (line, told) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_tokengap"))
            .current_dir(folder.path())
            .args(line.split(' '))
            .output()
            .expect("tokengap runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let missing: Vec<&str> = told.into_iter().filter(|phrase| !said.contains(phrase)).collect();
        if output.status.code() != Some(2) || !missing.is_empty() || said.contains("panicked") {
            wrong.push(format!(
                "tokengap {line}: {}, does not say {missing:?}: {said}",
                output.status
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn file_names_and_reports_do_not_write_to_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = "\u{1b}]0;x\u{7}\u{202e}.json";
    let file = folder.path().join(name);
    fs::write(&file, b"{\"schema\": \"tokengap.report/1\", \"\x1b[2J\x07\": {").expect("written");
    for command in ["report", "diff", "decode", "replay --headless", "export --format csv"] {
        let mut words = command.split(' ');
        let mut program = Command::new(env!("CARGO_BIN_EXE_tokengap"));
        program.args(words.by_ref()).arg(&file);
        if command == "diff" {
            program.arg(&file);
        }
        let said = program.output().expect("it runs");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            text.contains("]0;x") && !text.contains(['\u{1b}', '\u{7}', '\u{202e}']),
            "{command}: {text:?}"
        );
    }
}
