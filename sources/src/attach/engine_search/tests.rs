use adapter::discover::{Rank, RoleSource};
use engines::sglang::discover::role::SCHEDULER;
use probe_user::discover::Process;

use super::*;

pub(in crate::attach) fn titled(pid: u32, io_threads: Vec<u32>) -> Engine {
    let process = Process {
        id: ProcessId { pid, start_time: 1 },
        ns_pids: vec![pid],
        role: SCHEDULER,
        role_source: RoleSource::Title,
        rank: Rank::default(),
        title: "sglang::scheduler".to_owned(),
        libzmq: None,
        python: None,
        io_threads,
        connects_to_clients: None,
        inner_server: None,
    };
    Engine { processes: vec![process], ..Engine::default() }
}

fn confirmed(pid: u32) -> Engine {
    Engine { is_confirmed: true, ..titled(pid, Vec::new()) }
}

fn first_pid(engine: &Engine) -> u32 {
    engine.processes[0].id.pid
}

#[test]
fn a_title_is_never_followed_and_lone_zmq_sockets_only_after_a_while() {
    let mut search = EngineSearch::default();
    let mut picks_after_a_while = |engines: Vec<Engine>| {
        let topology = Topology { engines, ..Topology::default() };
        search.lone_candidate = None;
        assert!(search.pick_confirmed_or_lone_engines(&topology).is_err(), "not at once");
        if let Some(candidate) = &mut search.lone_candidate {
            candidate.first_seen_at =
                candidate.first_seen_at.checked_sub(LONE_CANDIDATE_WAIT).expect("the machine runs for longer");
        }
        search.pick_confirmed_or_lone_engines(&topology).map(|engines| first_pid(engines[0]))
    };
    assert!(picks_after_a_while(vec![titled(5, Vec::new())]).is_err());
    assert_eq!(picks_after_a_while(vec![titled(5, vec![6])]), Ok(5));
    assert!(picks_after_a_while(vec![titled(5, vec![6]), titled(7, vec![8])]).is_err());

    let topology = Topology { engines: vec![confirmed(9), titled(5, vec![6])], ..Topology::default() };
    assert_eq!(search.pick_confirmed_or_lone_engines(&topology).map(|engines| first_pid(engines[0])), Ok(9));
}

#[test]
fn each_engine_is_found_once_while_it_runs() {
    let mut search = EngineSearch::default();
    search.mark_as_found(&confirmed(1));
    let mut find = |engines: Vec<Engine>| {
        // It has no hop, so that its processes are not known to be complete.
        for seen in &mut search.settling {
            seen.first_seen_at = seen.first_seen_at.checked_sub(MAX_SETTLING * 2).expect("the machine runs for longer");
        }
        let topology = Topology { engines, ..Topology::default() };
        let found = search.find_new_engines(&topology).expect("engines");
        found.iter().map(first_pid).collect::<Vec<u32>>()
    };
    let both = || vec![confirmed(1), confirmed(2)];
    assert_eq!(find(both()), [0; 0], "it may still be starting");
    assert_eq!(find(both()), [2]);
    assert_eq!(find(both()), [0; 0]);
    assert_eq!(find(vec![confirmed(1)]), [0; 0]);
    assert_eq!(find(both()), [0; 0]);
    assert_eq!(find(both()), [2], "it has started again");
}
