//! Tests of discovery as another user and in another container. They need root to switch, and print SKIPPED without it.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use engines::sglang::discover::role::TOKENIZER;
use probe_user::discover::{BlindSpot, Engine};
use probe_user::library::analyse_libzmq;

use crate::base;
use crate::peers::{Peer, SCRIPT, python, skipped, until, watcher};

/// Whether the test runs as root with the tool for switching the user. Prints a message if not.
fn root_with(tool: &str) -> bool {
    let has_tool = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let is_able =
        std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0) && has_tool;
    if !is_able {
        skipped(&format!("needs root and `{tool}`"));
    }
    is_able
}

/// Whether the text contains the line that grants these capabilities in the current environment.
fn names(text: &str, capabilities: &[&str]) -> bool {
    text.lines().map(str::to_ascii_uppercase).any(|line| capabilities.iter().all(|name| line.contains(name)))
}

/// The files of `/proc/PID` that are reported as unreadable. Processes that exist only briefly may appear on a separate line.
fn closed(text: &str) -> BTreeSet<&str> {
    let lists = text.lines().filter_map(|line| line.split_once("/proc/PID/{")?.1.split_once('}'));
    lists.flat_map(|(files, _)| files.split(',')).collect()
}

/// Prints the discovered topology; the tests below run this as another user.
#[test]
fn show_prints_the_topology() {
    let topology = watcher(&[]).topology().clone();
    println!("{topology}");
    assert!(topology.engines.iter().all(|e| !e.processes.is_empty()));
}

/// Output of `show_prints_the_topology` when started by `command`.
fn seen_by(command: &str, arguments: &[&str]) -> Option<String> {
    let exe = std::env::current_exe().unwrap();
    let filter = ["--exact", "views::show_prints_the_topology", "--nocapture"];
    let output = Command::new(command).args(arguments).arg(exe).args(filter).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        skipped(&format!("{command} could not run the test: {stderr}"));
        return None;
    }
    Some(text)
}

#[test]
fn another_user_sees_titles_and_the_missing_capabilities() {
    let folder = tempfile::tempdir().unwrap();
    if !root_with("setpriv") {
        return;
    }
    let Some(peer) = Peer::start(&["main", &base(folder.path())]) else { return };
    let Some(_unnamed) = Peer::start(&["pull", &format!("{}alone", base(folder.path()))]) else {
        return;
    };
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
    let Some(text) = seen_by("setpriv", &nobody) else { return };
    let line = |pid: u32| text.lines().find(|l| l.trim_start().starts_with(&pid.to_string())).unwrap_or_default();
    assert!(line(peer.child("scheduler")).contains("title (sglang::scheduler_DP0_TP0)"), "{text}");
    assert!(line(peer.pid()).contains("its children (python peer.py)"), "{text}");
    assert_eq!(closed(&text), BTreeSet::from(["maps", "root", "fd", "environ", "ns"]), "{text}");
    assert!(names(&text, &["SYS_PTRACE", "DAC_READ_SEARCH"]), "{text}");
    assert!(text.contains("Python processes of other users cannot be examined"), "{text}");
}

#[test]
fn two_capabilities_are_sufficient() {
    let folder = tempfile::tempdir().unwrap();
    if !root_with("setpriv") {
        return;
    }
    let Some(peer) = Peer::start(&["main", &base(folder.path())]) else { return };
    until(&mut watcher(&[]), |t| t.engine_of(peer.pid()).filter(|e| e.hops.len() == 4).map(drop));
    let hops_seen_with = |capabilities: &str| {
        let set = |which: &str| format!("--{which}=-all,{capabilities}");
        let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(set);
        let mut arguments = vec!["--reuid=65534", "--regid=65534", "--clear-groups"];
        arguments.extend(sets.iter().map(String::as_str));
        let text = seen_by("setpriv", &arguments)?;
        let hops = text.lines().filter(|l| l.contains(folder.path().to_str().unwrap())).count();
        Some((hops, text))
    };
    let Some((hops, text)) = hops_seen_with("+sys_ptrace,+dac_read_search") else { return };
    assert_eq!(hops, 4, "{text}");
    let Some((hops, text)) = hops_seen_with("+sys_ptrace") else { return };
    assert_eq!(hops, 0, "{text}");
    assert_eq!(closed(&text), BTreeSet::from(["fd", "environ"]), "{text}");
    assert!(names(&text, &["DAC_READ_SEARCH"]), "{text}");
}

#[test]
fn a_separate_container_sees_nothing_and_explains_how_to_join() {
    if !root_with("unshare") {
        return;
    }
    let Some(text) = seen_by("unshare", &["--pid", "--fork", "--mount-proc"]) else { return };
    assert!(text.contains("no engine found"), "{text}");
    assert!(text.contains(probe_user::RunEnvironment::current().pid_namespace_remedy()), "{text}");
}

#[test]
fn an_engine_in_a_container_is_seen_from_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let (true, Some(python)) = (root_with("unshare"), python()) else { return };
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--net", "--fork", "--kill-child", "--mount-proc"]).arg(python);
    unshare.args([SCRIPT, "main", &base(folder.path())]);
    let peer = Peer::run(&mut unshare);
    assert_eq!(peer.reply["pid"], 1, "its pid inside the container is 1");

    let own = |e: &&Engine| e.hops.len() == 4 && e.hops[0].endpoint.contains(folder.path().to_str().unwrap());
    let engine = until(&mut watcher(&[]), |t| t.engines.iter().find(own).cloned());
    let main = engine.with_role(TOKENIZER).next().unwrap();
    assert_eq!(main.ns_pids, [main.id.pid, 1]);
    assert!(analyse_libzmq(main.id.pid, main.libzmq.as_ref().unwrap()).is_ok());
}

#[test]
fn without_permission_to_enter_a_network_namespace_peers_are_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let (true, Some(python)) = (root_with("unshare") && root_with("setpriv"), python()) else {
        return;
    };
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--fork", "--kill-child"]).arg(python);
    unshare.args([SCRIPT, "main", &base(folder.path())]);
    let peer = Peer::run(&mut unshare);
    let Some(text) = seen_by("setpriv", &["--bounding-set=-sys_admin", "--inh-caps=-all"]) else {
        return;
    };
    let detokenizer = peer.child("detokenizer");
    assert!(text.contains("cannot enter its network namespace"), "{text}");
    assert!(names(&text, &["SYS_ADMIN"]), "{text}");
    let hop = text.lines().find(|l| l.contains("?->detokenizer") && l.contains(&format!("-> {detokenizer}:")));
    assert!(hop.is_some_and(|l| l.contains("detokenizer  tokens   inferred")), "{text}");
}

#[test]
fn no_feature_is_missing_with_all_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let Some(peer) = Peer::start(&["main", &base(folder.path())]) else { return };
    let mut watcher = watcher(&[]);
    until(&mut watcher, |t| t.engine_of(peer.pid()).filter(|e| e.hops.len() == 4).map(drop));
    let affects_peer = |pids: &[u32]| pids.contains(&peer.pid());
    let missing = watcher.topology().blind_spots.iter().find(|blind| match blind {
        BlindSpot::Unreadable { pids, .. } | BlindSpot::Peers { pids, .. } => affects_peer(pids),
        BlindSpot::LibZmq { pid, .. } => *pid == peer.pid(),
        _ => false,
    });
    assert_eq!(missing, None);
}
