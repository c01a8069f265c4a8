//! Tests of changes while a watcher runs.

use adapter::discover::{Role, RoleSource};
use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
use probe_user::discover::Topology;

use crate::base;
use crate::peers::{Peer, until, watcher};

/// Role of a process of an engine.
fn role(topology: &Topology, pid: u32) -> Option<Role> {
    topology.engine_of(pid)?.process_with_pid(pid).map(|process| process.role)
}

#[test]
fn processes_join_leave_and_return() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(pull) = Peer::start(&["pull", &endpoint]) else { return };
    let mut watcher = watcher(&[]);
    assert!(watcher.topology().engine_of(pull.pid()).is_none(), "a single process is not an engine");

    let Some(push) = Peer::start(&["push", &endpoint]) else { return };
    let pid = push.pid();
    assert_eq!(until(&mut watcher, |t| role(t, pid)), SCHEDULER);

    push.kill();
    until(&mut watcher, |t| role(t, pid).is_none().then_some(()));
    let engine = watcher.topology().engine_of(pull.pid()).expect("its role outlives the exit of its neighbour");
    assert_eq!(engine.process_with_pid(pull.pid()).unwrap().role, TOKENIZER);

    let Some(again) = Peer::start(&["push", &endpoint]) else { return };
    assert_eq!(until(&mut watcher, |t| role(t, again.pid())), SCHEDULER);
}

#[test]
fn a_worker_that_sets_its_title_late_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(_pull) = Peer::start(&["pull", &endpoint]) else { return };
    let Some(mut late) = Peer::start(&["late", "sglang::scheduler_TP0", &endpoint]) else { return };
    let mut watcher = watcher(&[]);
    assert!(watcher.topology().engine_of(late.pid()).is_none());
    late.send_go();
    late.read_reply();
    let process = until(&mut watcher, |t| t.engine_of(late.pid())?.process_with_pid(late.pid()).cloned());
    assert_eq!((process.role, process.role_source), (SCHEDULER, RoleSource::Title));
    assert_eq!((process.rank.tp, process.title.as_str()), (Some(0), "sglang::scheduler_TP0"));
}

#[test]
fn a_reconnection_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(pull) = Peer::start(&["pull", &endpoint]) else { return };
    let Some(push) = Peer::start(&["push", &endpoint]) else { return };
    let mut watcher = watcher(&[]);
    let inode = |t: &Topology| t.engine_of(push.pid())?.hops.first()?.from.map(|end| end.inode);
    let first = until(&mut watcher, inode);
    pull.kill();
    let Some(_pull) = Peer::start(&["pull", &endpoint]) else { return };
    let second = until(&mut watcher, |t| inode(t).filter(|inode| *inode != first));
    assert_ne!(first, second);
}
