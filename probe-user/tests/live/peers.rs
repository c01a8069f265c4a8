//! Start of peers, collection of their records, and setup of the Python environments that they need.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A running peer, which ends when dropped.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) pid: u32,
}

impl Peer {
    pub(crate) fn start(python: &Path, args: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/peer.py");
        let mut child = Command::new(python)
            .arg(script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let commands = child.stdin.take().expect("stdin is piped");
        let answers = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let pid = child.id();
        let mut peer = Self { child, commands, answers, pid };
        assert_eq!(peer.answer()["pid"], pid);
        peer
    }

    pub(crate) fn order(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the peer reads its commands");
    }

    pub(crate) fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the peer answers");
        serde_json::from_str(&line).expect("the peer answers in JSON")
    }

    /// Makes it exit and waits for that. The peer must exit successfully.
    pub(crate) fn quit(mut self) {
        self.order("quit");
        assert!(self.child.wait().expect("a child process").success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of a Python with this pyzmq release, installed once.
pub(crate) fn python(pyzmq: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pyzmq-{pyzmq}"));
    let python = home.join("bin/python");
    once(&home, |home| {
        run(Command::new("python3").args(["-m", "venv"]).arg(home));
        let wanted = [format!("pyzmq=={pyzmq}"), "uvloop".to_owned()];
        run(Command::new(home.join("bin/python")).args(["-m", "pip", "install", "--quiet"]).args(wanted));
    });
    python
}

/// Path of the libzmq in a wheel that this Python cannot import; it is called through its C interface.
pub(crate) fn library(pyzmq: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wheel-{pyzmq}"));
    once(&home, |home| {
        run(Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"])
            .args(["--python-version", "3.8", "--platform", "manylinux1_x86_64", "--target"])
            .arg(home)
            .arg(format!("pyzmq=={pyzmq}")));
    });
    let files = std::fs::read_dir(home.join("pyzmq.libs")).expect("the wheel bundles its libraries");
    let mut files = files.map(|entry| entry.expect("a readable folder").path());
    files.find(|path| path.to_string_lossy().contains("libzmq-")).expect("the wheel bundles libzmq")
}

fn once(home: &Path, make: impl FnOnce(&Path)) {
    let done = home.join("complete");
    if !done.exists() {
        make(home);
        std::fs::write(done, "").expect("the target folder is writable");
    }
}

fn run(command: &mut Command) {
    assert!(command.status().expect("python3 is installed").success(), "{command:?}");
}
