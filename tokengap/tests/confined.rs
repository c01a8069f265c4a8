//! Commands must be confined before they read: one that waits for the first byte of its file has already dropped all privileges.

#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};
use std::time::Duration;

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
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap_or_default();
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
