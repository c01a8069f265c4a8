//! The process that reads Python stacks: it is started again after a crash, a limited number of times, and ends with tokengap.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_mins(1);

/// `tokengap stacks`, and this side of its connection.
struct Stacks {
    supervisor: Child,
    from: BufReader<UnixStream>,
    to: UnixStream,
}

impl Stacks {
    fn start() -> Self {
        let (to, theirs) = UnixStream::pair().expect("a pair");
        to.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokengap"));
        command.arg("stacks").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let supervisor = command.spawn().expect("started");
        let from = BufReader::new(to.try_clone().expect("a socket"));
        Self { supervisor, from, to }
    }

    fn request(&mut self, pids: &[u32]) {
        writeln!(self.to, "{}", serde_json::json!({"hertz": 20, "pids": pids})).expect("sent");
    }

    /// The next message that has this field.
    fn receive(&mut self, field: &str) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.from.read_line(&mut line).expect("a message in time"), 0, "the connection is open");
            if let Ok(message) = serde_json::from_str::<serde_json::Value>(&line)
                && !message[field].is_null()
            {
                return message[field].clone();
            }
        }
    }

    /// The process that reads.
    fn reader(&self) -> u32 {
        let pid = self.supervisor.id();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let until = Instant::now() + PATIENCE;
        loop {
            let listed = std::fs::read_to_string(&children).expect("the supervisor runs");
            if let Some(reader) = listed.split_whitespace().next().and_then(|pid| pid.parse().ok()) {
                return reader;
            }
            assert!(Instant::now() < until, "no reading process");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_crashed_reader_is_started_again_and_ends_with_tokengap() {
    let mut stacks = Stacks::start();
    let own_pid = std::process::id();
    for crash in 1..=3 {
        stacks.request(&[own_pid]);
        let status = stacks.receive("status");
        assert_eq!(status["cost"]["hertz"], 20);
        let reader = stacks.reader();
        kill_process(Pid::from_raw(reader as i32).expect("a pid"), Signal::ABORT).expect("signalled");
        let ended = stacks.receive("ended");
        assert!(ended["reason"].as_str().is_some_and(|reason| reason == "SIGABRT"), "{ended}");
        assert_eq!(ended["is_restarted"], true, "crash {crash}");
    }
    stacks.request(&[own_pid]);
    // Not a Python process, which the reader finds out after some attempts.
    while stacks.receive("status")["refusals"].as_array().is_none_or(Vec::is_empty) {}
    let last_reader = stacks.reader();
    let Stacks { mut supervisor, from, to } = stacks;
    drop((from, to));
    wait_until("the reading process ends with the connection", || !Path::new(&format!("/proc/{last_reader}")).exists());
    assert!(supervisor.wait().expect("it ends").success());
}

#[test]
fn a_reader_that_goes_on_crashing_is_given_up() {
    let mut stacks = Stacks::start();
    for crash in 0..=3 {
        stacks.request(&[]);
        stacks.receive("status");
        let reader = stacks.reader();
        kill_process(Pid::from_raw(reader as i32).expect("a pid"), Signal::ABORT).expect("signalled");
        assert_eq!(stacks.receive("ended")["is_restarted"], crash < 3);
    }
    assert!(stacks.supervisor.wait().expect("it ends").success());
}
