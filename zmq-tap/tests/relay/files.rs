//! Socket files: created, replaced, left behind, and never those of another owner.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use zmq_tap::relay::{Relay, RelayError, RelayOptions};

use crate::support::{Bench, PATIENCE, endpoint, eventually, message, pair, read_all};

fn start(folder: &Path) -> Result<Relay, RelayError> {
    Relay::start(vec![pair(folder)], RelayOptions::default())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn stopping_removes_the_socket_and_its_note() {
    let folder = folder();
    let relay = start(folder.path()).expect("the relay starts");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 2);
    relay.stop();
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn stopping_does_not_remove_a_replacement_file() {
    let bench = Bench::new();
    let path = bench.path("in.sock");
    std::fs::remove_file(&path).expect("the engine removes the path");
    let engine = UnixListener::bind(&path).expect("the engine binds the path");
    bench.relay.stop();
    UnixStream::connect(&path).expect("the engine's socket is still there");
    drop(engine);
}

#[test]
fn a_live_socket_is_rejected() {
    let folder = folder();
    let path = folder.path().join("in.sock");
    let engine = UnixListener::bind(&path).expect("the engine listens");
    let error = start(folder.path()).expect_err("refused");
    assert!(matches!(error, RelayError::InUse(_)), "{error}");
    assert!(error.to_string().contains("use it as the upstream"), "{error}");
    UnixStream::connect(&path).expect("untouched");
    drop(engine);
    let error = start(folder.path()).expect_err("a dead socket of another owner is refused too");
    assert!(matches!(error, RelayError::Foreign(_)), "{error}");
    assert!(error.to_string().contains("rm '"), "{error}");
    assert!(path.exists());
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1, "no other file is left");
}

#[test]
fn another_relay_on_the_same_path_is_rejected() {
    let bench = Bench::new();
    let error = start(bench.folder.path()).expect_err("refused");
    assert!(matches!(error, RelayError::InUseByTokengap(_)), "{error}");
}

#[test]
fn links_folders_and_files_are_rejected_and_not_removed() {
    let folder = folder();
    let (path, target) = (folder.path().join("in.sock"), folder.path().join("target"));
    std::fs::write(&target, "precious").expect("written");
    std::os::unix::fs::symlink(&target, &path).expect("linked");
    let refused = |what: &str| {
        let error = start(folder.path()).expect_err("refused");
        assert!(error.to_string().contains(what), "{error}");
    };
    refused("a symbolic link");
    assert_eq!(std::fs::read(&target).expect("still there"), b"precious");
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, "an engine's temporary file").expect("written");
    refused("a file");
    std::fs::remove_file(&path).expect("removed");
    std::fs::create_dir(&path).expect("made");
    refused("a folder");
}

#[test]
fn a_note_that_is_a_link_is_not_followed() {
    let folder = folder();
    let target = folder.path().join("target");
    std::fs::write(&target, "precious").expect("written");
    std::os::unix::fs::symlink(&target, folder.path().join("in.sock.tokengap")).expect("linked");
    let error = start(folder.path()).expect_err("refused");
    assert!(matches!(error, RelayError::ForeignNote(_)), "{error}");
    assert_eq!(std::fs::read(&target).expect("still there"), b"precious");
}

#[test]
fn a_failed_second_pair_removes_the_first() {
    let folder = folder();
    let mut second = pair(folder.path());
    second.listen = endpoint("ipc:///nowhere/at/all");
    Relay::start(vec![pair(folder.path()), second], RelayOptions::default()).expect_err("refused");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0);
}

/// Environment variable that turns this test program into the relay that is killed.
const VICTIM: &str = "TOKENGAP_TEST_RELAY_IN";

#[test]
fn a_killed_relay_is_replaced() {
    if let Some(place) = std::env::var_os(VICTIM) {
        let _relay = start(Path::new(&place)).expect("the relay starts");
        std::thread::sleep(PATIENCE);
        return;
    }
    let folder = folder();
    let path = folder.path().join("in.sock");
    let mut victim = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "files::a_killed_relay_is_replaced"])
        .env(VICTIM, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    // The socket exists shortly before its note is written. A relay killed in between leaves a socket that is not recognised.
    let note = folder.path().join("in.sock.tokengap");
    let note_written = || std::fs::read(&note).is_ok_and(|note| !note.is_empty());
    eventually("it listens", || UnixStream::connect(&path).is_ok() && note_written());
    assert!(matches!(start(folder.path()), Err(RelayError::InUseByTokengap(_))));
    victim.kill().expect("killed");
    victim.wait().expect("exited");
    assert!(path.exists(), "a killed process leaves its socket");
    let relay = start(folder.path()).expect("its socket is replaced");
    let upstream = UnixListener::bind(folder.path().join("out.sock")).expect("the upstream listens");
    let mut sender = UnixStream::connect(&path).expect("accepted");
    sender.write_all(&message(b"after the restart")).expect("written");
    drop(sender);
    assert_eq!(read_all(upstream.accept().expect("connected").0), message(b"after the restart"));
    relay.stop();
    assert!(!path.exists());
}

#[test]
fn an_upstream_replaced_by_a_link_is_not_reached() {
    let bench = Bench::new();
    let engine = bench.upstream();
    drop(bench.through(&engine));
    let other = UnixListener::bind(bench.path("other")).expect("bound");
    std::fs::rename(bench.path("out.sock"), bench.path("moved")).expect("renamed");
    std::os::unix::fs::symlink("other", bench.path("out.sock")).expect("linked");
    assert_eq!(read_all(bench.sender()), b"", "the connection is closed");
    assert_eq!(bench.relay.stats().upstreams_distrusted, 1);
    other.set_nonblocking(true).expect("set");
    assert!(other.accept().is_err(), "the link is not followed");
    std::fs::rename(bench.path("moved"), bench.path("out.sock")).expect("renamed back");
    drop(bench.through(&engine));
}
