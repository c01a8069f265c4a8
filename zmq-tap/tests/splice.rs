//! Takeover and restoration of a socket's path, while the engine lives, when engine or tokengap dies, and with files of others.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zeromq::{PullSocket, RouterSocket, Socket};
use zmq_tap::relay::{Endpoint, Observed, Pair, Relay, RelayOptions, Signal};
use zmq_tap::splice::{Folder, HeldFile, HeldPath, Restored, SpliceError, read_socket_type, restore_sockets};

const NAME: &str = "tmpk3v_0qz7";
const PATIENCE: Duration = Duration::from_secs(10);

/// An engine's listener in a temporary folder.
fn engine() -> (TempDir, Folder, UnixListener) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let listener = UnixListener::bind(folder.path().join(NAME)).expect("the engine listens");
    let opened = Folder::open(folder.path(), folder.path()).expect("opened");
    (folder, opened, listener)
}

fn find(folder: &Folder, name: &str) -> HeldFile {
    HeldPath::find_socket(folder, name).expect("a socket")
}

fn take(folder: &Folder) -> (UnixListener, HeldPath) {
    HeldPath::take_over(folder, NAME, find(folder, NAME)).expect("spliced")
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).expect("readable");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("read").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// Whether a connection to the socket's original name reaches `listener`.
fn reaches(folder: &TempDir, listener: &UnixListener) -> bool {
    listener.set_nonblocking(true).expect("set");
    while listener.accept().is_ok() {}
    UnixStream::connect(folder.path().join(NAME)).is_ok() && listener.accept().is_ok()
}

/// Waits until a closed listener is gone. A process that another test starts at the same time holds copies of all descriptors until it
/// executes its own program.
fn wait_until_closed(path: &Path) {
    let until = Instant::now() + PATIENCE;
    while UnixStream::connect(path).is_ok() {
        assert!(Instant::now() < until, "somebody listens at {}", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_socket_type_of_a_listener_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let opened = Folder::open(folder.path(), folder.path()).expect("opened");
    let endpoint = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut pull, mut router) = (PullSocket::new(), RouterSocket::new());
    runtime.block_on(async {
        pull.bind(&endpoint("pull")).await.expect("bound");
        router.bind(&endpoint("router")).await.expect("bound");
    });
    for name in ["pull", "router"] {
        let kind = read_socket_type(&find(&opened, name)).expect("a ZMQ socket");
        assert_eq!(kind, name.to_uppercase());
    }
    let _silent = UnixListener::bind(folder.path().join("silent")).expect("bound");
    let error = read_socket_type(&find(&opened, "silent")).expect_err("no handshake");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_socket_path_is_replaced_and_restored() {
    let (folder, opened, engine) = engine();
    fs::set_permissions(folder.path().join(NAME), PermissionsExt::from_mode(0o640)).expect("set");
    let (ours, place) = take(&opened);
    assert!(reaches(&folder, &ours) && !reaches(&folder, &engine));
    assert_eq!(names(&folder), [NAME, &format!("{NAME}.engine-1"), &format!("{NAME}.tokengap")]);
    let mode = fs::metadata(folder.path().join(NAME)).expect("it exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o640, "the same users may connect");
    UnixStream::connect(place.aside()).expect("the engine still listens");
    place.give_back().expect("restored");
    assert!(reaches(&folder, &engine));
    assert_eq!(names(&folder), [NAME]);
}

#[test]
fn a_dropped_place_is_restored_even_after_close() {
    let (folder, opened, engine) = engine();
    let (_ours, place) = take(&opened);
    place.stop_accepting();
    UnixStream::connect(folder.path().join(NAME)).expect_err("the path is closed");
    drop(place);
    assert!(reaches(&folder, &engine));
    assert_eq!(names(&folder), [NAME]);
}

#[test]
fn an_engine_that_listens_again_keeps_its_new_socket() {
    let (folder, opened, engine) = engine();
    let (_ours, place) = take(&opened);
    assert!(place.is_held());
    drop(engine);
    wait_until_closed(&place.aside());
    fs::remove_file(folder.path().join(NAME)).expect("removed, as libzmq does before it binds");
    let rebound = UnixListener::bind(folder.path().join(NAME)).expect("the engine listens again");
    assert!(!place.is_held());
    let error = place.give_back().expect_err("the path is taken");
    assert!(matches!(error, SpliceError::Gone(..)), "{error}");
    assert!(reaches(&folder, &rebound));
    assert_eq!(names(&folder), [NAME]);
}

#[test]
fn files_that_are_not_sockets_are_not_touched() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let opened = Folder::open(folder.path(), folder.path()).expect("opened");
    let target = folder.path().join("target");
    fs::write(&target, "precious").expect("written");
    symlink(&target, folder.path().join("link")).expect("linked");
    for name in ["target", "link"] {
        let error = HeldPath::find_socket(&opened, name).expect_err("refused");
        assert!(matches!(error, SpliceError::NotASocket(_)), "{error}");
    }
    for name in ["", "../x", "a\nb"] {
        assert!(matches!(HeldPath::find_socket(&opened, name), Err(SpliceError::Name(_))));
    }
    assert!(matches!(HeldPath::find_socket(&opened, "absent"), Err(SpliceError::File(..))));
    assert_eq!(names(&folder), ["link", "target"]);
    let error = Folder::open(&target, &target).expect_err("no folder");
    assert_eq!(error.kind(), std::io::ErrorKind::NotADirectory);
}

/// Environment variable that turns this test program into the tokengap that is killed.
const VICTIM: &str = "TOKENGAP_TEST_SPLICE_IN";

/// Takes over the path in a separate process, which is then killed.
fn splice_and_kill(folder: &Path) {
    let mut victim = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_splice_of_a_killed_tokengap_is_undone", "--nocapture"])
        .env(VICTIM, folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut output = String::new();
    let mut stdout = victim.stdout.take().expect("piped");
    while !output.contains("TAKEN") {
        let mut some = [0; 256];
        let count = stdout.read(&mut some).expect("readable");
        assert!(count > 0, "it ended early: {output}");
        output.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    victim.kill().expect("killed");
    victim.wait().expect("exited");
}

#[test]
fn the_splice_of_a_killed_tokengap_is_undone() {
    if let Some(place) = std::env::var_os(VICTIM) {
        let opened = Folder::open(Path::new(&place), Path::new(&place)).expect("opened");
        let _received = take(&opened);
        println!("TAKEN");
        std::thread::sleep(PATIENCE);
        return;
    }
    let (folder, opened, engine) = engine();
    splice_and_kill(folder.path());
    assert!(!reaches(&folder, &engine), "the path leads to a dead socket");
    let restored = restore_sockets(&opened).expect("restored");
    assert!(matches!(restored.as_slice(), [Restored::Back(at)] if at.ends_with(NAME)), "{restored:?}");
    assert!(reaches(&folder, &engine));
    assert_eq!(names(&folder), [NAME]);
    assert!(restore_sockets(&opened).expect("again").is_empty(), "nothing is left to restore");

    splice_and_kill(folder.path());
    drop(engine);
    wait_until_closed(&folder.path().join(format!("{NAME}.engine-1")));
    fs::remove_file(folder.path().join(NAME)).expect("removed");
    let rebound = UnixListener::bind(folder.path().join(NAME)).expect("the engine listens again");
    let restored = restore_sockets(&opened).expect("restored");
    assert!(matches!(restored.as_slice(), [Restored::Superseded(_)]), "{restored:?}");
    assert!(reaches(&folder, &rebound));
    assert_eq!(names(&folder), [NAME]);
}

#[test]
fn sockets_of_a_running_tokengap_and_files_of_others_are_not_touched() {
    let (folder, opened, _engine) = engine();
    let (_ours, place) = take(&opened);
    let restored = restore_sockets(&opened).expect("examined");
    assert!(matches!(restored.as_slice(), [Restored::Held(_)]), "{restored:?}");
    assert!(place.is_held());
    let note = fs::read_to_string(folder.path().join(format!("{NAME}.tokengap"))).expect("a note");
    drop(place);

    // A note that names sockets other than those present, and a link to a file that is a valid note.
    fs::write(folder.path().join("other.tokengap"), note.replace(NAME, "other")).expect("written");
    let other = UnixListener::bind(folder.path().join("other")).expect("bound");
    let aside = UnixListener::bind(folder.path().join("other.engine-1")).expect("bound");
    let restored = restore_sockets(&opened).expect("examined");
    assert!(matches!(restored.as_slice(), [Restored::Superseded(_)]), "{restored:?}");
    assert_eq!(names(&folder), ["other", "other.engine-1", NAME]);
    fs::write(folder.path().join("text"), note).expect("written");
    symlink(folder.path().join("text"), folder.path().join(format!("{NAME}.tokengap"))).expect("linked");
    let restored = restore_sockets(&opened).expect("examined");
    assert!(matches!(restored.as_slice(), [Restored::Refused(..)]), "{restored:?}");
    drop((other, aside));
}

/// A relay in the engine's place, with the option `ask_to_leave`.
fn spliced_relay(opened: &Folder, gate: &Signal) -> (Relay, HeldPath) {
    let (listener, place) = take(opened);
    let options = RelayOptions { ask_to_leave: true, ..RelayOptions::default() };
    let mut relay = Relay::start(Vec::new(), options).expect("started");
    let pair = Pair { listen: Endpoint::Path(place.shown()), upstream: Endpoint::Path(place.aside()) };
    let sockets = place.pair_sockets(listener).expect("open");
    relay.add_bound_pair(pair, sockets, gate.clone()).expect("added");
    (relay, place)
}

#[test]
fn connections_wait_at_a_closed_gate() {
    let (folder, opened, engine) = engine();
    let gate = Signal::default();
    let (relay, place) = spliced_relay(&opened, &gate);
    let mut sender = UnixStream::connect(folder.path().join(NAME)).expect("accepted");
    sender.write_all(b"early").expect("written");
    engine.set_nonblocking(true).expect("set");
    std::thread::sleep(Duration::from_millis(50));
    assert!(engine.accept().is_err(), "not connected to the engine yet");
    gate.send();
    engine.set_nonblocking(false).expect("set");
    let (mut received, _) = engine.accept().expect("connected");
    let mut bytes = [0; 5];
    received.read_exact(&mut bytes).expect("relayed");
    assert_eq!(&bytes, b"early");
    drop(sender);
    relay.stop();
    place.give_back().expect("restored");
}

#[test]
fn a_sender_that_disconnects_on_request_loses_nothing() {
    let (folder, opened, engine) = engine();
    let (relay, place) = spliced_relay(&opened, &Signal::sent());
    let mut sender = UnixStream::connect(folder.path().join(NAME)).expect("accepted");
    let (mut received, _) = engine.accept().expect("connected");
    let began = Instant::now();
    // Until the relay is connected to the engine, no bytes are relayed, and a ZMQ peer has not received a greeting.
    while !relay.poll().is_some_and(|observation| matches!(observation.what, Observed::Opened(_))) {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let stopping = std::thread::spawn(move || relay.stop());
    // Like libzmq: write pending data, then handle the end of the stream.
    let mut end = [0; 1];
    assert_eq!(sender.read(&mut end).expect("an orderly end"), 0);
    sender.write_all(&vec![7; 100_000]).expect("still read");
    drop(sender);
    let mut all = Vec::new();
    received.read_to_end(&mut all).expect("an orderly end");
    assert_eq!(all.len(), 100_000);
    stopping.join().expect("stopped");
    place.give_back().expect("restored");
}

#[test]
fn a_sender_that_does_not_disconnect_is_cut_off() {
    let (folder, opened, engine) = engine();
    let (relay, place) = spliced_relay(&opened, &Signal::sent());
    let _connected = UnixStream::connect(folder.path().join(NAME)).expect("accepted");
    let (_received, _) = engine.accept().expect("connected");
    let began = Instant::now();
    relay.stop();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    place.give_back().expect("restored");
    assert!(reaches(&folder, &engine));
}

#[test]
fn a_socket_replaced_after_it_was_examined_is_not_moved() {
    let (folder, opened, _engine) = engine();
    let examined = find(&opened, NAME);
    let path = folder.path().join(NAME);
    fs::rename(&path, folder.path().join("moved")).expect("renamed");
    let other = UnixListener::bind(&path).expect("bound");
    let error = HeldPath::take_over(&opened, NAME, examined).expect_err("replaced");
    assert!(matches!(error, SpliceError::Replaced(_)), "{error}");
    assert!(reaches(&folder, &other));
    assert_eq!(names(&folder), ["moved", NAME]);
}

#[test]
fn the_relay_reaches_the_engine_after_its_moved_socket_became_a_link() {
    let (folder, opened, engine) = engine();
    let other = UnixListener::bind(folder.path().join("other")).expect("bound");
    let (relay, place) = spliced_relay(&opened, &Signal::sent());
    let aside = folder.path().join(format!("{NAME}.engine-1"));
    fs::rename(&aside, folder.path().join("moved")).expect("renamed");
    symlink("other", &aside).expect("linked");
    let mut sender = UnixStream::connect(folder.path().join(NAME)).expect("accepted");
    sender.write_all(b"bytes").expect("written");
    let (mut received, _) = engine.accept().expect("connected");
    let mut bytes = [0; 5];
    received.read_exact(&mut bytes).expect("relayed");
    other.set_nonblocking(true).expect("set");
    assert!(other.accept().is_err(), "the link is not followed");
    fs::remove_file(&aside).expect("removed");
    fs::rename(folder.path().join("moved"), &aside).expect("renamed");
    drop(sender);
    relay.stop();
    place.give_back().expect("restored");
    assert!(reaches(&folder, &engine));
}
