//! Tests with engines that identify themselves by title or command.

use std::path::Path;
use std::process::Command;

use adapter::discover::{Carries, Codec, Confidence, HopSeen, Launcher, Origin, PackageRelease, RoleSource};
use engines::sglang::discover::role::{DETOKENIZER, ROUTER, SCHEDULER, TOKENIZER, WORKER};
use probe_user::discover::{Engine, Process};
use probe_user::library::analyse_libzmq;
use trace::engine::{Mode, Version, Waiter};
use trace::path::Ends;

use crate::peers::{Peer, SCRIPT, python, until, watcher};
use crate::{base, ports};

/// Waits until the peer's engine has this number of hops.
fn engine(peer: &Peer, hops: usize) -> Engine {
    let complete = |e: &&Engine| e.hops.len() == hops;
    until(&mut watcher(&[]), |t| t.engine_of(peer.pid()).filter(complete).cloned())
}

fn hops(engine: &Engine) -> Vec<(String, &str, Carries, Confidence)> {
    engine.hops.iter().map(|h| (h.ends().to_string(), h.endpoint.as_str(), h.carries, h.confidence)).collect()
}

/// Checks with the kernel that each descriptor refers to the socket with that inode.
fn assert_holds_its_sockets(hop: &HopSeen) {
    for end in [hop.from, hop.to].into_iter().flatten() {
        let link = std::fs::read_link(format!("/proc/{}/fd/{}", end.pid, end.fd)).unwrap();
        assert_eq!(link, Path::new(&format!("socket:[{}]", end.inode)));
    }
}

fn assert_has_the_wheels_libzmq(process: &Process) {
    let lib = process.libzmq.as_ref().expect("libzmq is mapped");
    assert_eq!(lib.release, Some(Version::new(4, 3, 5)));
    assert!(lib.path.to_string_lossy().contains("/pyzmq.libs/libzmq-"), "{}", lib.path.display());
    assert!(analyse_libzmq(process.id.pid, lib).is_ok());
    assert_eq!(process.io_threads.len(), 2, "Context(2)");
    let python = process.python.as_ref().unwrap().value;
    assert_eq!(python.major, 3);
    assert!(lib.path.to_string_lossy().contains(&format!("/python{python}/")));
}

fn ordinary_engine(peer: &Peer, tokenizer: &str, scheduler: &str, detokenizer: &str) {
    let engine = engine(peer, 4);
    let roles: Vec<_> = engine.processes.iter().map(|p| (p.id.pid, p.role, p.role_source)).collect();
    assert_eq!(
        roles,
        [
            (peer.child("scheduler"), SCHEDULER, RoleSource::Title),
            (peer.child("detokenizer"), DETOKENIZER, RoleSource::Title),
            (peer.pid(), TOKENIZER, RoleSource::Children),
        ]
    );
    assert_eq!(engine.processes[0].rank.to_string(), "DP0 TP0");
    assert_eq!(
        hops(&engine),
        [
            ("scheduler->detokenizer".into(), detokenizer, Carries::Output, Confidence::Certain),
            ("scheduler->tokenizer".into(), tokenizer, Carries::Output, Confidence::Certain),
            ("detokenizer->tokenizer".into(), tokenizer, Carries::Output, Confidence::Certain),
            ("tokenizer->scheduler".into(), scheduler, Carries::Requests, Confidence::Inferred),
        ]
    );
    engine.hops.iter().for_each(assert_holds_its_sockets);
    engine.processes.iter().for_each(assert_has_the_wheels_libzmq);
    assert!(engine.is_named());
    assert_eq!(engine.main_process().unwrap().id.pid, peer.pid());
    let skip = engine.settings.skip_tokenizer_init.unwrap();
    assert_eq!((skip.value, skip.origin), (false, Origin::Sockets));
    assert_eq!((engine.launcher, engine.settings.mode), (None, None), "a custom launcher leaves the mode open");
}

#[test]
fn a_custom_launcher_over_ipc() {
    let folder = tempfile::tempdir().unwrap();
    let base = base(folder.path());
    let Some(peer) = Peer::start(&["main", &base]) else { return };
    ordinary_engine(&peer, &format!("{base}tokenizer"), &format!("{base}scheduler"), &format!("{base}detokenizer"));
}

#[test]
fn a_custom_launcher_over_tcp() {
    let port = ports();
    let at = |number| format!("tcp://127.0.0.1:{}", port + number);
    let Some(peer) = Peer::start(&["main", &at(0)]) else { return };
    ordinary_engine(&peer, &at(0), &at(1), &at(2));
}

#[test]
fn two_engines_are_discovered_separately() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(first) = Peer::start(&["main", &base(one.path())]) else { return };
    let Some(second) = Peer::start(&["main", &base(two.path())]) else { return };
    for peer in [&first, &second] {
        let engine = engine(peer, 4);
        let mut pids: Vec<u32> = engine.processes.iter().map(|p| p.id.pid).collect();
        let mut expected = [peer.pid(), peer.child("scheduler"), peer.child("detokenizer")];
        pids.sort_unstable();
        expected.sort_unstable();
        assert_eq!(pids, expected);
    }
}

#[test]
fn tokenizer_workers_behind_a_router() {
    let folder = tempfile::tempdir().unwrap();
    let Some(peer) = Peer::start(&["main", &base(folder.path()), "--workers", "2"]) else { return };
    let engine = engine(&peer, 8);
    let router = engine.with_role(ROUTER).map(|p| p.id.pid).collect::<Vec<_>>();
    assert_eq!(router, [peer.pid()]);
    let workers: Vec<u32> = engine.with_role(WORKER).map(|p| p.id.pid).collect();
    let expected_workers: Vec<u32> =
        peer.reply["workers"].as_array().unwrap().iter().map(|w| w.as_u64().unwrap() as u32).collect();
    assert_eq!(workers, expected_workers);
    let mut names: Vec<String> = engine.hops.iter().map(|hop| hop.ends().to_string()).collect();
    names.sort();
    let expected = [
        "detokenizer->router",
        "detokenizer->worker",
        "detokenizer->worker",
        "router->scheduler",
        "scheduler->detokenizer",
        "scheduler->router",
        "worker->router",
        "worker->router",
    ];
    assert_eq!(names, expected);
}

/// Creates the metadata of an installed package, like pip.
fn install(package: &str, release: &str, folder: &Path) {
    let metadata = folder.join(format!("{package}-{release}.dist-info"));
    std::fs::create_dir_all(&metadata).unwrap();
    let text = format!("Metadata-Version: 2.4\nName: {package}\nVersion: {release}\n");
    std::fs::write(metadata.join("METADATA"), text).unwrap();
}

/// Runs `python -m MODULE` with `folder` first on the path, where the module starts the peers.
fn launch(module: &str, folder: &Path, variables: &[(&str, &str)], arguments: &[&str], peer: &[&str]) -> Option<Peer> {
    let peer: Vec<String> = std::iter::once(SCRIPT).chain(peer.iter().copied()).map(|a| format!("{a:?}")).collect();
    let list = peer.join(", ");
    let run = format!("import runpy, sys\nsys.argv = [{list}]\nrunpy.run_path(sys.argv[0], run_name='__main__')\n");
    let file = folder.join(module.replace('.', "/"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file.with_extension("py"), run).unwrap();
    let mut command = Command::new(python()?);
    command.args(["-m", module, "--api-key", "secret"]).args(arguments);
    command.env("PYTHONPATH", folder).envs(variables.iter().copied());
    Some(Peer::run(&mut command))
}

fn server(release: &str, folder: &Path, variables: &[(&str, &str)], arguments: &[&str], peer: &[&str]) -> Option<Peer> {
    install("sglang", release, folder);
    launch("sglang.launch_server", folder, variables, arguments, peer)
}

#[test]
fn a_server_that_loses_tokens_is_recognised_by_release_and_flags() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--skip-tokenizer-init", "--stream-output"];
    let peer = ["main", &base(folder.path()), "--skip"];
    let Some(server) = server("0.5.9", folder.path(), &[], &arguments, &peer) else { return };
    let engine = engine(&server, 4);
    let pid = server.pid();
    assert_eq!(engine.launcher.as_ref().map(Launcher::word), Some("sglang"));
    let release = engine.release().unwrap();
    assert_eq!(release.value, "0.5.9");
    assert_eq!(release.origin, Origin::File(folder.path().join("sglang-0.5.9.dist-info/METADATA")));
    let argument = |argument: &str| Origin::Argument { pid, argument: argument.into() };
    let mode = engine.settings.mode.as_ref().unwrap();
    assert_eq!((mode.value, &mode.origin), (Mode::Incremental, &argument("--stream-output")));
    let skip = engine.settings.skip_tokenizer_init.as_ref().unwrap();
    assert_eq!((skip.value, &skip.origin), (true, &argument("--skip-tokenizer-init")));
    assert_eq!(engine.settings.waiter.as_ref().unwrap().value, Waiter::KeepsLast);
    assert_eq!(engine.settings.codec.as_ref().unwrap().value, Codec::Pickle);
    let turns = if engine.main_process().unwrap().python.as_ref().unwrap().value.minor < 12 { 3 } else { 1 };
    let event = engine.to_event();
    assert_eq!((event.version, event.turnaround), (Some("0.5.9"), Some(turns)));
    let direct = engine.hops.iter().filter(|h| h.ends() == Ends::new("scheduler", "tokenizer")).count();
    assert_eq!(direct, 2, "one for control, one for output");
    assert!(!engine.to_string().contains("secret"), "{engine}");
}

#[test]
fn a_msgpack_server_is_recognised_by_its_environment() {
    let folder = tempfile::tempdir().unwrap();
    let switch = [("SGLANG_USE_PICKLE_IPC", "0")];
    let Some(server) = server("0.5.23", folder.path(), &switch, &[], &["main", &base(folder.path())]) else {
        return;
    };
    let engine = engine(&server, 4);
    let codec = engine.settings.codec.as_ref().unwrap();
    let variable = "SGLANG_USE_PICKLE_IPC=0".to_owned();
    assert_eq!((codec.value, &codec.origin), (Codec::Msgpack, &Origin::Environment { pid: server.pid(), variable }));
    assert_eq!(engine.settings.mode.as_ref().unwrap().value, Mode::Cumulative);
    assert_eq!(engine.settings.waiter.as_ref().unwrap().value, Waiter::Merges);
}

#[test]
fn a_dynamo_worker_has_the_settings_its_release_forces() {
    let folder = tempfile::tempdir().unwrap();
    install("sglang", "0.5.8", folder.path());
    install("ai_dynamo", "0.9.0", folder.path());
    let peer = ["main", &base(folder.path()), "--skip"];
    let Some(worker) = launch("dynamo.sglang", folder.path(), &[], &["--model-path", "x"], &peer) else {
        return;
    };
    let engine = engine(&worker, 4);
    assert_eq!(
        (engine.launcher.as_ref().map(Launcher::word), engine.main_process().unwrap().role),
        (Some("dynamo"), TOKENIZER)
    );
    let release = |known: &PackageRelease| (known.engine.name(), known.release.value.clone());
    let releases: Vec<_> = engine.releases.iter().map(release).collect();
    assert_eq!(releases, [("dynamo", "0.9.0".into()), ("sglang", "0.5.8".into())]);
    let mode = engine.settings.mode.as_ref().unwrap();
    assert_eq!((mode.value, &mode.origin), (Mode::Incremental, &Origin::Release("Dynamo 0.9.0".into())));
    assert!(engine.settings.skip_tokenizer_init.as_ref().unwrap().value);
    assert_eq!(engine.settings.waiter.as_ref().unwrap().value, Waiter::KeepsLast);
}
