//! Tests on complete engines, discovered from fake processes.

use adapter::discover::{Carries, Confidence, Role, role_words};
use engines::DISCOVERED;
use engines::sglang::discover::role;
use probe_user::discover::fake::{self, FakeProcess};
use probe_user::discover::{BlindSpot, Engine, PickError, RoleSpec, Topology};
use trace::path::Ends;

const SERVER: &str = "python3 -m sglang.launch_server";
const WORKER: &str = "python3 -m dynamo.sglang";

fn discover(processes: &[FakeProcess], connected: &[(usize, usize, &str)]) -> Vec<Engine> {
    fake::discover_engines(DISCOVERED, processes, connected)
}

fn hops(engine: &Engine) -> Vec<(String, Carries, Confidence)> {
    let mut hops: Vec<_> = engine.hops.iter().map(|h| (h.ends().to_string(), h.carries, h.confidence)).collect();
    hops.dedup();
    hops
}

/// The Rust server runs in the schedulers that serve clients, and no output crosses ZMQ.
#[test]
fn schedulers_with_the_rust_server_answer_clients_themselves() {
    let extension =
        "/opt/venv/lib/python3.11/site-packages/sglang/srt/rust_extensions/_server.cpython-311-x86_64-linux-gnu.so";
    let processes = [
        FakeProcess::launched(10, SERVER),
        FakeProcess::titled(11, "sglang::scheduler_DP0_TP0").child_of(10).mapping(extension),
        FakeProcess::titled(12, "sglang::scheduler_DP0_TP1").child_of(10),
    ];
    let engines = discover(&processes, &[]);
    let [engine] = engines.as_slice() else { panic!("{engines:?}") };
    let on_path: Vec<u32> = engine.processes_on_token_path().map(|process| process.id.pid).collect();
    assert_eq!(on_path, [11]);
    let scheduler = engine.process_with_pid(11).unwrap();
    assert!(scheduler.answers_clients() && !engine.process_with_pid(12).unwrap().answers_clients());
    let inner = scheduler.inner_role().map(Role::word);
    assert_eq!((scheduler.role, inner), (role::SCHEDULER, Some("server")));
}

/// Two DP replicas with two ranks each, two detokenizers behind a router, and two tokenizer workers behind a router.
#[test]
fn replicas_detokenizers_and_workers_behind_routers_are_discovered() {
    let child_of = |pid, title, parent| FakeProcess::titled(pid, title).child_of(parent);
    let processes = [
        FakeProcess::launched(10, SERVER),
        child_of(11, "sglang::data_parallel_controller", 10),
        child_of(12, "sglang::scheduler_DP0_TP0", 11),
        child_of(13, "sglang::scheduler_DP0_TP1", 11),
        child_of(14, "sglang::scheduler_DP1_TP0", 11),
        child_of(15, "sglang::scheduler_DP1_TP1", 11),
        child_of(16, "sglang::detokenizer_router", 10),
        child_of(17, "sglang::detokenizer", 10),
        child_of(18, "sglang::detokenizer", 10),
        child_of(19, "sglang::tokenizer_worker:19", 10),
        child_of(20, "sglang::tokenizer_worker:20", 10),
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
    let Topology { engines, blind_spots, .. } = fake::discover_topology(DISCOVERED, &processes, &connected);
    let [engine] = engines.as_slice() else { panic!("{engines:?}") };
    assert_eq!(blind_spots, []);
    assert_eq!(engine.processes.len(), processes.len());
    assert_eq!(engine.main_process().unwrap().role, role::ROUTER);
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
    let probed: Vec<u32> = engine.processes_on_token_path().map(|p| p.id.pid).collect();
    assert_eq!(probed, [12, 14, 16, 17, 18, 10, 19, 20], "ranks other than the first send nothing");
    assert!(engine.hops.iter().all(|h| h.starts_at_source() == (h.ends().from == "scheduler")));
    assert!(engine.hops.iter().all(|h| h.ends_at_receiver() == (h.ends().to == "worker")));
}

/// A Dynamo worker with the processes that it starts.
fn launched_engine(first: u32) -> [FakeProcess; 3] {
    [
        FakeProcess::launched(first, WORKER),
        FakeProcess::titled(first + 1, "sglang::scheduler_TP0").child_of(first),
        FakeProcess::titled(first + 2, "sglang::detokenizer").child_of(first),
    ]
}

/// A prefill and a decode engine on one host. Their schedulers exchange state over ZMQ, and register at the prefill engine's bootstrap
/// server.
#[test]
fn prefill_and_decode_are_two_engines() {
    let processes: Vec<FakeProcess> = launched_engine(10).into_iter().chain(launched_engine(20)).collect();
    let connected = [
        (1, 2, "ipc:///p-detok"),
        (2, 0, "ipc:///p-tok"),
        (4, 5, "ipc:///d-detok"),
        (5, 3, "ipc:///d-tok"),
        (1, 4, "tcp://10.0.0.7:41000"),
        (1, 0, "tcp://10.0.0.7:8998"),
    ];
    let engines = discover(&processes, &connected);
    let names: Vec<Vec<String>> =
        engines.iter().map(|e| e.hops.iter().map(|hop| hop.ends().to_string()).collect()).collect();
    let expected = ["scheduler->detokenizer", "detokenizer->tokenizer"].map(String::from).to_vec();
    assert_eq!(names, [expected.clone(), expected]);
    assert!(engines.iter().all(|e| e.launcher.is_some_and(|l| l.word() == "dynamo") && e.processes.len() == 3));
}

/// The same with all sockets on TCP, so that the connection to the bootstrap server looks like one of the engine's own.
#[test]
fn a_scheduler_that_reached_another_main_process_belongs_to_the_one_that_started_it() {
    let processes: Vec<FakeProcess> = launched_engine(10).into_iter().chain(launched_engine(20)).collect();
    let connected = [
        (1, 2, "tcp://127.0.0.1:1001"),
        (1, 0, "tcp://127.0.0.1:1002"),
        (2, 0, "tcp://127.0.0.1:1002"),
        (1, 0, "tcp://127.0.0.1:1003"),
        (4, 5, "tcp://127.0.0.1:2001"),
        (4, 3, "tcp://127.0.0.1:2002"),
        (5, 3, "tcp://127.0.0.1:2002"),
        (4, 3, "tcp://127.0.0.1:2003"),
        (4, 0, "tcp://127.0.0.1:8998"),
    ];
    let topology = fake::discover_topology(DISCOVERED, &processes, &connected);
    let [prefill, decode] = topology.engines.as_slice() else { panic!("{topology}") };
    assert_eq!((prefill.processes.len(), decode.processes.len()), (3, 3));
    assert_eq!(hops(prefill), hops(decode), "the bootstrap connection changes no other hop");
    let requests = ("tokenizer->scheduler".to_owned(), Carries::Requests, Confidence::Inferred);
    assert!(hops(prefill).contains(&requests), "{:?}", hops(prefill));
    let foreign = BlindSpot::ForeignConnection { pid: 21, main: 20, other_main: 10 };
    assert_eq!(
        foreign.to_string(),
        "pid 21 of the engine with main pid 20 is also connected to the one with main pid 10: that connection is not read"
    );
    assert_eq!(topology.blind_spots, [foreign]);
}

#[test]
fn engines_that_share_a_process_are_reported_and_another_one_is_not_affected() {
    let third = launched_engine(30);
    let processes: Vec<FakeProcess> = launched_engine(10)
        .into_iter()
        .chain([FakeProcess::launched(20, SERVER), FakeProcess::titled(21, "sglang::scheduler_TP0").child_of(20)])
        .chain(third)
        .collect();
    let own = [(1, 2, "ipc:///detok"), (2, 0, "ipc:///tok"), (6, 7, "ipc:///detok3"), (7, 5, "ipc:///tok3")];
    let shared = [(4, 2, "ipc:///detok"), (2, 3, "ipc:///tok2"), (4, 3, "ipc:///tok2")];
    let topology = fake::discover_topology(DISCOVERED, &processes, &[&own[..], &shared].concat());
    let pids = |engine: &Engine| engine.processes.iter().map(|process| process.id.pid).collect::<Vec<u32>>();
    let [first, other] = topology.engines.as_slice() else { panic!("{topology}") };
    assert_eq!((pids(first), pids(other)), (vec![11, 21, 12, 10, 20], vec![31, 32, 30]));
    let [shared] = topology.blind_spots.as_slice() else { panic!("{topology}") };
    assert_eq!(
        shared.to_string(),
        "several engines (main pids 10, 20) are connected by pids 12, 21: they are watched as one, except those that were watched before"
    );
    assert!(shared.is_between_engines());
}

/// A notebook server that connects to several sockets of its kernel is not an engine.
#[test]
fn other_programs_that_use_zmq_are_not_engines() {
    let processes = [FakeProcess::unnamed(10), FakeProcess::unnamed(11)];
    let connected = [(0, 1, "tcp://127.0.0.1:50001"), (0, 1, "tcp://127.0.0.1:50002"), (0, 1, "tcp://127.0.0.1:50003")];
    assert_eq!(discover(&processes, &connected), []);
}

#[test]
fn a_named_engine_is_preferred_over_unnamed_ones() {
    let engines = |processes: &[FakeProcess], links: &[(usize, usize, &str)]| Topology {
        engines: discover(processes, links),
        ..Topology::default()
    };
    assert_eq!(engines(&[], &[]).pick_engine(&[]), Err(PickError::None(String::new())));

    let unnamed = [10, 11, 12, 13].map(FakeProcess::unnamed);
    let two_pairs = [(0, 1, "ipc:///a"), (2, 3, "ipc:///b")];
    let topology = engines(&unnamed, &two_pairs);
    assert_eq!(topology.pick_engine(&[]), Err(PickError::Several(2)));
    let spec = |pid| RoleSpec { pid, role: None };
    assert_eq!(topology.pick_engine(&[spec(12)]).unwrap().main_process().unwrap().id.pid, 13);
    assert_eq!(topology.pick_engine(&[spec(12), spec(10)]), Err(PickError::Several(2)));
    let picked_pids = |named: &[RoleSpec]| -> Vec<u32> {
        let engines = topology.pick_engines(named).unwrap();
        engines.iter().map(|engine| engine.main_process().unwrap().id.pid).collect()
    };
    assert_eq!(picked_pids(&[]), [11, 13], "all engines of the machine");
    assert_eq!(picked_pids(&[spec(12)]), [13]);
    assert_eq!(picked_pids(&[spec(12), spec(10)]), [11, 13], "one process stands for its engine");
    let elsewhere = PickError::Elsewhere { named: 99, engine: 11 };
    assert_eq!(topology.pick_engine(&[spec(99)]), Err(elsewhere));

    let mut named = unnamed.to_vec();
    named.extend([FakeProcess::titled(20, "sglang::scheduler_TP0"), FakeProcess::unnamed(21)]);
    let topology = engines(&named, &[two_pairs[0], two_pairs[1], (4, 5, "ipc:///c")]);
    assert_eq!(topology.engines.len(), 3);
    assert!(topology.pick_engine(&[]).unwrap().process_with_pid(20).is_some());
}

#[test]
fn a_title_without_a_connection_does_not_hide_an_engine() {
    let topology = |processes: &[FakeProcess], links: &[(usize, usize, &str)]| Topology {
        engines: discover(processes, links),
        ..Topology::default()
    };
    let processes = [
        FakeProcess::titled(5, "sglang::scheduler"),
        FakeProcess::launched(6, "python -m sglang.launch_server --model-path x"),
        FakeProcess::titled(20, "sglang::scheduler_TP0").child_of(21),
        FakeProcess::unnamed(21),
    ];
    let found = topology(&processes, &[(2, 3, "ipc:///a")]);
    assert_eq!(found.candidate_pids(), [5, 6]);
    assert_eq!(found.confirmed_engines().count(), 1);
    assert!(found.pick_engine(&[]).unwrap().process_with_pid(20).is_some());
    let by_hand = RoleSpec { pid: 5, role: None };
    assert!(found.pick_engine(&[by_hand]).unwrap().process_with_pid(5).is_some(), "the user may name a candidate");
    let shown = found.to_string();
    assert!(shown.contains("engine 1: ") && !shown.contains("engine 2: "), "{shown}");
    assert!(shown.contains("candidates without a connection"), "{shown}");

    // An unnamed engine with a hop is one, too.
    let unnamed = [FakeProcess::titled(5, "sglang::scheduler"), FakeProcess::unnamed(30), FakeProcess::unnamed(31)];
    let found = topology(&unnamed, &[(1, 2, "ipc:///b")]);
    assert!(found.pick_engine(&[]).unwrap().process_with_pid(30).is_some());

    let alone = topology(&processes[..1], &[]);
    assert!(
        alone.pick_engine(&[]).unwrap().process_with_pid(5).is_some(),
        "the only candidate may be an engine that is starting"
    );
    let several = topology(&processes[..2], &[]);
    assert_eq!(several.pick_engine(&[]), Err(PickError::Unconfirmed(vec![5, 6])));
    let both = [5, 6].map(|pid| RoleSpec { pid, role: None });
    assert_eq!(several.pick_engines(&both), Err(PickError::Unconnected(2)), "parts of an engine that is starting");
}

/// A process that is not connected yet, or whose connections are not visible, belongs to the engine that the user describes by roles.
#[test]
fn processes_named_with_their_roles_are_one_engine_unless_their_peers_differ() {
    let processes = [
        FakeProcess::titled(10, "sglang::scheduler"),
        FakeProcess::launched(11, SERVER),
        FakeProcess::launched(12, SERVER),
        FakeProcess::titled(20, "sglang::scheduler"),
        FakeProcess::launched(21, SERVER),
    ];
    let topology =
        |links: &[(usize, usize, &str)]| Topology { engines: discover(&processes, links), ..Topology::default() };
    let with_roles = |pids: &[u32]| -> Vec<RoleSpec> {
        let role_of = |pid: u32| if pid.is_multiple_of(10) { role::SCHEDULER } else { role::TOKENIZER };
        pids.iter().map(|&pid| RoleSpec { pid, role: Some(role_of(pid)) }).collect()
    };
    let first_connected = topology(&[(0, 1, "ipc:///a")]);
    assert_eq!(first_connected.pick_engines(&with_roles(&[10, 11, 12])), Err(PickError::Unconnected(2)));
    assert_eq!(topology(&[]).pick_engines(&with_roles(&[10, 11, 12])), Err(PickError::Unconnected(3)));
    let both_connected = topology(&[(0, 1, "ipc:///a"), (3, 4, "ipc:///b")]);
    let picked = both_connected.pick_engines(&with_roles(&[10, 11, 20, 21])).unwrap();
    assert_eq!(picked.len(), 2, "two engines: each scheduler has a tokenizer of its own");
}

#[test]
fn senders_into_one_socket_are_lanes_of_one_hop() {
    let processes = [
        FakeProcess::titled(10, "sglang::scheduler_DP0_TP0").child_of(14),
        FakeProcess::titled(11, "sglang::scheduler_DP1_TP0").child_of(14),
        FakeProcess::titled(12, "sglang::detokenizer").child_of(14),
        FakeProcess::titled(13, "sglang::tokenizer_worker:13").child_of(14),
        FakeProcess::unnamed(14),
        FakeProcess::titled(15, "sglang::tokenizer_worker:15").child_of(14),
    ];
    let connected = [
        (0, 2, "ipc:///detok"),
        (1, 2, "ipc:///detok"),
        (2, 3, "ipc:///w0"),
        (2, 5, "ipc:///w1"),
        (3, 4, "ipc:///workers"),
    ];
    let engines = discover(&processes, &connected);
    let routes = engines[0].routes();
    let seen: Vec<_> = routes.iter().map(|r| (r.ends, r.endpoint, r.worker, r.origin, r.last, r.lanes.len())).collect();
    assert_eq!(
        seen,
        [
            (Ends::new("scheduler", "detokenizer"), "ipc:///detok", None, true, false, 2),
            (Ends::new("detokenizer", "worker"), "ipc:///w0", Some(0), false, true, 1),
            (Ends::new("detokenizer", "worker"), "ipc:///w1", Some(1), false, true, 1),
        ]
    );
}

#[test]
fn the_table_shows_two_engines_and_an_unobserved_process() {
    let processes = [
        FakeProcess::titled(20, "sglang::scheduler_TP0").child_of(22),
        FakeProcess::titled(21, "sglang::scheduler_TP1").child_of(22),
        FakeProcess::unnamed(22),
        FakeProcess::unnamed(30),
        FakeProcess::unnamed(31),
        FakeProcess::unnamed(32),
    ];
    let connected =
        [(0, 2, "ipc:///tmp/tmpk3v_0qz7"), (3, 5, "tcp://127.0.0.1:30233"), (4, 5, "tcp://127.0.0.1:30233")];
    let topology = Topology {
        engines: discover(&processes, &connected),
        blind_spots: vec![BlindSpot::NoRole { pid: 40, roles: role_words(DISCOVERED) }],
        ..Topology::default()
    };
    let shown = topology.to_string();
    let expected = "\
engine 1: SGLang of unknown release
  pid  role       rank  libzmq  python  known by
  20   scheduler  TP0   4.3.5   -       title (sglang::scheduler_TP0)
  21   scheduler  TP1   4.3.5   -       title (sglang::scheduler_TP1)
  22   tokenizer        4.3.5   -       its children (python engine.py)
  hop                   pid:fd -> pid:fd  endpoint                carries
  scheduler->tokenizer  20:1 -> 22:0      ipc:///tmp/tmpk3v_0qz7  tokens   inferred

engine 2: SGLang of unknown release, from its sockets
  pid  role       rank  libzmq  python  known by
  30   scheduler        4.3.5   -       its sockets (python engine.py)
  31   scheduler        4.3.5   -       its sockets (python engine.py)
  32   tokenizer        4.3.5   -       its sockets (python engine.py)
  hop                   pid:fd -> pid:fd            endpoint               carries
  scheduler->tokenizer  30:3 -> 32:2, 31:5 -> 32:4  tcp://127.0.0.1:30233  tokens   inferred

not observed: pid 40: its role is not known from its title, command or sockets
          --pid 40=ROLE (one of scheduler, dp-controller, detokenizer-router, detokenizer, router, tokenizer, worker, engine-core, coordinator, launcher, api-server)
";
    assert_eq!(shown, expected, "{shown}");
}
