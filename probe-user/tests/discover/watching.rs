//! Tests of changes while a watcher runs.

use std::time::{Duration, Instant};

use probe_user::discover::{Change, Process, Role, RoleSource, Watcher};

use crate::base;
use crate::peers::{Peer, until, watcher};

/// Polls until `wanted` selects a change. Ignores changes of other processes on this machine.
fn next<T>(watcher: &mut Watcher, mut wanted: impl FnMut(Change) -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let changes = watcher.poll().unwrap();
        if let Some(found) = changes.into_iter().find_map(&mut wanted) {
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
fn joining_leaving_and_coming_back() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("{}tok", base(folder.path()));
    let Some(pull) = Peer::start(&["pull", &endpoint]) else {
        return;
    };
    let mut watcher = watcher(&[]);
    assert!(
        watcher.topology().engine_of(pull.pid()).is_none(),
        "alone it is no engine"
    );

    let Some(push) = Peer::start(&["push", &endpoint]) else {
        return;
    };
    let pid = push.pid();
    assert_eq!(added(&mut watcher, pid).role, Role::Scheduler);

    push.kill();
    let left = next(&mut watcher, |change| match change {
        Change::Exited(process) if process.id.pid == pid => Some(*process),
        _ => None,
    });
    assert_eq!(left.role, Role::Scheduler);
    let kept = watcher
        .topology()
        .engine_of(pull.pid())
        .expect("its role is not forgotten with its neighbour");
    assert_eq!(kept.process(pull.pid()).unwrap().role, Role::Tokenizer);

    let Some(again) = Peer::start(&["push", &endpoint]) else {
        return;
    };
    let (old, new) = next(&mut watcher, |change| match change {
        Change::Replaced { old, new } if new.id.pid == again.pid() => Some((*old, *new)),
        _ => None,
    });
    assert_eq!((old.id.pid, new.role), (pid, Role::Scheduler));
}

#[test]
fn a_worker_that_takes_its_title_after_it_was_seen() {
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
    late.tell();
    late.listen();
    let process = added(&mut watcher, late.pid());
    assert_eq!(
        (process.role, process.role_source),
        (Role::Scheduler, RoleSource::Title)
    );
    assert_eq!(
        (process.rank.tp, process.title.as_str()),
        (Some(0), "sglang::scheduler_TP0")
    );
}

#[test]
fn a_connection_that_is_made_anew() {
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
