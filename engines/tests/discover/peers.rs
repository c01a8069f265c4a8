//! Start of the processes in `peer.py`, and setup of the Python environment that they need.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use engines::DISCOVERED;
use probe_user::discover::{DiscoverOptions, RoleSpec, Topology, Watcher};

const PYZMQ: &str = "27.1.0";
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/discover/peer.py");

/// Path of a Python with pyzmq, installed once. Returns `None`, with a message, if that is not possible.
pub(crate) fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let python = PYTHON.get_or_init(make_python).as_deref();
    if python.is_none() {
        skipped(&format!("python3 with venv and pip is needed to make an environment with pyzmq {PYZMQ}"));
    }
    python
}

fn make_python() -> Option<PathBuf> {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("discover-pyzmq-{PYZMQ}"));
    let python = home.join("bin/python");
    let run = |command: &mut Command| command.stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    let works = || run(Command::new(&python).args(["-c", "import zmq"]).stderr(Stdio::null()));
    if works() {
        return Some(python);
    }
    // Another run of these tests may be installing it.
    let lock = std::fs::File::create(home.with_extension("lock")).ok()?;
    lock.lock().ok()?;
    if works() {
        return Some(python);
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20"]).arg(format!("pyzmq=={PYZMQ}"));
    let installed = run(Command::new("python3").args(["-m", "venv"]).arg(&home)) && run(&mut pip);
    installed.then_some(python)
}

/// Reports that a test did not run. Writes to stderr directly, since the test harness captures normal output.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// A running peer with its children. All end when it is dropped.
pub(crate) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// The line that it printed once its sockets were created.
    pub(crate) reply: serde_json::Value,
}

impl Peer {
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new(python()?);
        command.arg(SCRIPT).args(arguments);
        Some(Self::run(&mut command))
    }

    /// Runs a command that ends in `peer.py`.
    pub(crate) fn run(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut peer = Self { child, stdin, stdout, reply: serde_json::Value::Null };
        peer.read_reply();
        peer
    }

    /// Reads its next line.
    pub(crate) fn read_reply(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the peer answers");
        self.reply = serde_json::from_str(&line).expect("the peer answers in JSON");
    }

    pub(crate) fn send_go(&mut self) {
        writeln!(self.stdin.as_ref().expect("it is running"), "go").expect("the peer reads");
    }

    /// Pid from the test's point of view.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A pid from the peer's output.
    pub(crate) fn child(&self, name: &str) -> u32 {
        self.reply[name].as_u64().expect("a pid") as u32
    }

    /// Kills it, to simulate a crash.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child process");
        self.child.wait().expect("a child process");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its children end with it, since it closes their standard input.
        drop(self.stdin.take());
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A watcher that scans the sockets at every poll.
pub(crate) fn watcher(named: &[String]) -> Watcher {
    let named = named.iter().map(|spec| RoleSpec::parse(spec, DISCOVERED).expect("a spec")).collect();
    Watcher::new(DiscoverOptions { named, socket_interval: Duration::ZERO, ..DiscoverOptions::new(DISCOVERED) })
        .expect("procfs is mounted")
}

/// Scans repeatedly until `done` returns a result, since libzmq connects in the background.
pub(crate) fn until<T>(watcher: &mut Watcher, mut done: impl FnMut(&Topology) -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = done(watcher.topology()) {
            return found;
        }
        assert!(Instant::now() < end, "not found:\n{}", watcher.topology());
        std::thread::sleep(Duration::from_millis(20));
        let before = watcher.topology().engines.clone();
        let changed = watcher.poll().expect("procfs is mounted");
        assert!(changed || before == watcher.topology().engines, "every change is reported");
    }
}
