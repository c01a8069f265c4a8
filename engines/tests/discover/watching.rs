//! Tests of changes while a watcher runs.

use std::time::{Duration, Instant};

use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
use probe_user::discover::{Change, Process, RoleSource, Watcher};

use crate::base;
use crate::peers::{Peer, until, watcher};

/// Polls until `select` selects a change. Ignores changes of other processes on this machine.
fn next<T>(watcher: &mut Watcher, mut select: impl FnMut(Change) -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let changes = watcher.poll().unwrap();
        if let Some(found) = changes.into_iter().find_map(&mut select) {
            return found;
        }
        assert!(Instant::now() < end, "it never changed:\n{}", watcher.topology());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn added(watcher: &mut Watcher, pid: u32) -> Process {
    next(watcher, |change| match change {
        Change::Added(process) if process.id.pid == pid => Some(*process),
        _ => None,
    })
}

#[test]
fn processes_join_leave_and_return() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(pull) = Peer::start(&["pull", &endpoint]) else {
        return;
    };
    let mut watcher = watcher(&[]);
    assert!(watcher.topology().engine_of(pull.pid()).is_none(), "a single process is not an engine");

    let Some(push) = Peer::start(&["push", &endpoint]) else {
        return;
    };
    let pid = push.pid();
    assert_eq!(added(&mut watcher, pid).role, SCHEDULER);

    push.kill();
    let left = next(&mut watcher, |change| match change {
        Change::Exited(process) if process.id.pid == pid => Some(*process),
        _ => None,
    });
    assert_eq!(left.role, SCHEDULER);
    let engine = watcher.topology().engine_of(pull.pid()).expect("its role outlives the exit of its neighbour");
    assert_eq!(engine.process(pull.pid()).unwrap().role, TOKENIZER);

    let Some(again) = Peer::start(&["push", &endpoint]) else {
        return;
    };
    let (old, new) = next(&mut watcher, |change| match change {
        Change::Replaced { old, new } if new.id.pid == again.pid() => Some((*old, *new)),
        _ => None,
    });
    assert_eq!((old.id.pid, new.role), (pid, SCHEDULER));
}

#[test]
fn a_worker_that_sets_its_title_late_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(_pull) = Peer::start(&["pull", &endpoint]) else {
        return;
    };
    let Some(mut late) = Peer::start(&["late", "sglang::scheduler_TP0", &endpoint]) else {
        return;
    };
    let mut watcher = watcher(&[]);
    assert!(watcher.topology().engine_of(late.pid()).is_none());
    late.send_go();
    late.read_reply();
    let process = added(&mut watcher, late.pid());
    assert_eq!((process.role, process.role_source), (SCHEDULER, RoleSource::Title));
    assert_eq!((process.rank.tp, process.title.as_str()), (Some(0), "sglang::scheduler_TP0"));
}

#[test]
fn a_reconnection_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(pull) = Peer::start(&["pull", &endpoint]) else {
        return;
    };
    let Some(push) = Peer::start(&["push", &endpoint]) else {
        return;
    };
    let mut watcher = watcher(&[]);
    let inode = |t: &probe_user::discover::Topology| t.engine_of(push.pid())?.hops.first()?.from.map(|end| end.inode);
    let first = until(&mut watcher, inode);
    pull.kill();
    let Some(_pull) = Peer::start(&["pull", &endpoint]) else {
        return;
    };
    let second = until(&mut watcher, |t| inode(t).filter(|inode| *inode != first));
    assert_ne!(first, second);
}
