//! Tests on whole engines, made from candidates as they are after an examination.

use super::assemble;
use super::candidate::{Candidate, Played};
use super::launch::{Flags, Launcher};
use super::libzmq::LibZmq;
use super::links::{Held, Link};
use super::package::Installed;
use super::role::{self, Role, RoleSource};
use super::topology::{Carries, Confidence, Engine, ProcessId};

/// Description of a process that becomes a candidate.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pid: u32,
    parent: u32,
    title: &'static str,
    launcher: Option<Launcher>,
}

impl Made {
    pub(crate) fn nameless(pid: u32) -> Self {
        Self {
            pid,
            parent: 1,
            title: "",
            launcher: None,
        }
    }

    pub(crate) fn titled(pid: u32, title: &'static str) -> Self {
        Self {
            title,
            ..Self::nameless(pid)
        }
    }

    fn launched(pid: u32, launcher: Launcher) -> Self {
        Self {
            launcher: Some(launcher),
            ..Self::nameless(pid)
        }
    }

    pub(crate) fn below(self, parent: u32) -> Self {
        Self { parent, ..self }
    }

    fn candidate(&self) -> Candidate {
        let titled = role::from_title(self.title);
        let launched = self.launcher.map(|_| (Role::Tokenizer, RoleSource::CommandLine));
        let stated: Option<Played> = titled.map(|(role, _)| (role, RoleSource::Title)).or(launched);
        let libzmq = LibZmq {
            path: "/opt/venv/lib/python3.12/site-packages/pyzmq.libs/libzmq-7b073b3d.so.5.2.5".into(),
            open_at: None,
            dev: (0xfe, 0),
            inode: 1052,
            release: Some("4.3.5".parse().unwrap()),
            functions: None,
        };
        Candidate {
            id: ProcessId {
                pid: self.pid,
                start_time: u64::from(self.pid),
            },
            ns_pids: vec![self.pid],
            parent: self.parent,
            group: 1,
            title: if self.title.is_empty() {
                "python engine.py"
            } else {
                self.title
            }
            .into(),
            stated,
            rank: titled.map(|(_, rank)| rank).unwrap_or_default(),
            launcher: self.launcher,
            flags: Flags::default(),
            environment: None,
            libzmq: Some(libzmq),
            python: None,
            installed: Installed::default(),
            io_threads: Vec::new(),
            dynamo: false,
            net_ns: None,
            last_role: None,
            refused: Vec::new(),
            libzmq_error: None,
        }
    }
}

/// Engines of these processes. Each connection has the indices of its two ends and an endpoint.
pub(crate) fn scene(made: &[Made], connected: &[(usize, usize, &str)]) -> Vec<Engine> {
    let candidates: Vec<Candidate> = made.iter().map(Made::candidate).collect();
    let held = |candidate, n: usize| Held {
        candidate,
        fd: n as u32,
        inode: n as u64,
    };
    let links: Vec<Link> = connected
        .iter()
        .enumerate()
        .map(|(n, &(from, to, endpoint))| Link {
            acceptor: held(to, 2 * n),
            endpoint: endpoint.into(),
            connector: Some(held(from, 2 * n + 1)),
        })
        .collect();
    let candidates: Vec<&Candidate> = candidates.iter().collect();
    assemble::engines(&candidates, &links, &mut Vec::new()).0
}

fn hops(engine: &Engine) -> Vec<(String, Carries, Confidence)> {
    let mut hops: Vec<_> = engine
        .hops
        .iter()
        .map(|h| (h.name(), h.carries, h.confidence))
        .collect();
    hops.dedup();
    hops
}

/// Two DP replicas with two ranks each, two detokenizers behind a router, and two tokenizer workers behind a router.
#[test]
fn everything_at_once() {
    let below = |pid, title, parent| Made::titled(pid, title).below(parent);
    let made = [
        Made::launched(10, Launcher::Sglang),
        below(11, "sglang::data_parallel_controller", 10),
        below(12, "sglang::scheduler_DP0_TP0", 11),
        below(13, "sglang::scheduler_DP0_TP1", 11),
        below(14, "sglang::scheduler_DP1_TP0", 11),
        below(15, "sglang::scheduler_DP1_TP1", 11),
        below(16, "sglang::detokenizer_router", 10),
        below(17, "sglang::detokenizer", 10),
        below(18, "sglang::detokenizer", 10),
        below(19, "sglang::tokenizer_worker:19", 10),
        below(20, "sglang::tokenizer_worker:20", 10),
    ];
    let connected = [
        (1, 0, "ipc:///input"),
        (2, 1, "ipc:///dp0"),
        (4, 1, "ipc:///dp1"),
        (2, 0, "ipc:///tok"),
        (4, 0, "ipc:///tok"),
        (2, 6, "ipc:///detok"),
        (4, 6, "ipc:///detok"),
        (6, 7, "ipc:///detok0"),
        (6, 8, "ipc:///detok1"),
        (7, 0, "ipc:///tok"),
        (8, 0, "ipc:///tok"),
        (7, 9, "ipc:///worker0"),
        (7, 10, "ipc:///worker1"),
        (8, 9, "ipc:///worker0"),
        (8, 10, "ipc:///worker1"),
        (0, 9, "ipc:///worker0"),
        (9, 0, "ipc:///workers"),
        (10, 0, "ipc:///workers"),
    ];
    let engines = scene(&made, &connected);
    let [engine] = engines.as_slice() else {
        panic!("{engines:?}")
    };
    assert_eq!(engine.processes.len(), made.len());
    assert_eq!(engine.main().unwrap().role, Role::TokenizerRouter);
    let output = |name: &str| (name.to_owned(), Carries::Output, Confidence::Certain);
    let requests = |name: &str| (name.to_owned(), Carries::Requests, Confidence::Certain);
    assert_eq!(
        hops(engine),
        [
            output("scheduler->detokenizer-router"),
            output("scheduler->router"),
            output("detokenizer-router->detokenizer"),
            output("detokenizer->router"),
            output("detokenizer->worker"),
            output("router->worker"),
            requests("dp-controller->scheduler"),
            requests("router->dp-controller"),
            requests("worker->router"),
        ]
    );
    let probed: Vec<u32> = engine.on_token_path().map(|p| p.id.pid).collect();
    assert_eq!(
        probed,
        [12, 14, 16, 17, 18, 10, 19, 20],
        "ranks other than the first send nothing"
    );
    assert!(
        engine
            .hops
            .iter()
            .all(|h| h.starts_at_scheduler() == h.name().starts_with("scheduler->"))
    );
    assert!(
        engine
            .hops
            .iter()
            .all(|h| h.ends_at_tokenizer() == h.name().ends_with("->worker"))
    );
}

/// A prefill and a decode engine on one host. Their schedulers exchange state over ZMQ, and register at the prefill engine's bootstrap
/// server.
#[test]
fn prefill_and_decode_are_two_engines() {
    let engine = |first: u32| {
        [
            Made::launched(first, Launcher::Dynamo),
            Made::titled(first + 1, "sglang::scheduler_TP0").below(first),
            Made::titled(first + 2, "sglang::detokenizer").below(first),
        ]
    };
    let made: Vec<Made> = engine(10).into_iter().chain(engine(20)).collect();
    let connected = [
        (1, 2, "ipc:///p-detok"),
        (2, 0, "ipc:///p-tok"),
        (4, 5, "ipc:///d-detok"),
        (5, 3, "ipc:///d-tok"),
        (1, 4, "tcp://10.0.0.7:41000"),
        (1, 0, "tcp://10.0.0.7:8998"),
    ];
    let engines = scene(&made, &connected);
    let names: Vec<Vec<String>> = engines
        .iter()
        .map(|e| e.hops.iter().map(super::HopSeen::name).collect())
        .collect();
    let expected = ["scheduler->detokenizer", "detokenizer->tokenizer"]
        .map(String::from)
        .to_vec();
    assert_eq!(names, [expected.clone(), expected]);
    assert!(
        engines
            .iter()
            .all(|e| e.launcher == Some(Launcher::Dynamo) && e.processes.len() == 3)
    );
}

/// A notebook server that connects to several sockets of its kernel is not an engine.
#[test]
fn other_programs_that_speak_zmq_are_no_engine() {
    let made = [Made::nameless(10), Made::nameless(11)];
    let connected = [
        (0, 1, "tcp://127.0.0.1:50001"),
        (0, 1, "tcp://127.0.0.1:50002"),
        (0, 1, "tcp://127.0.0.1:50003"),
    ];
    assert_eq!(scene(&made, &connected), []);
}
