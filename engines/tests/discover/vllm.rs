//! Layouts of vLLM in which several main processes work on one engine.

use engines::DISCOVERED;
use probe_user::discover::fake::{FakeProcess, discover_topology};

const SERVER: &str = "python3 /venv/bin/vllm serve org/model";

fn server(pid: u32) -> FakeProcess {
    FakeProcess::launched(pid, SERVER)
}

fn child(pid: u32, title: &str, parent: u32) -> FakeProcess {
    FakeProcess::titled(pid, title).child_of(parent)
}

/// Checks that all these processes are one engine, and that nothing is reported about their connections.
fn assert_one_engine(processes: &[FakeProcess], connected: &[(usize, usize, &str)]) {
    let topology = discover_topology(DISCOVERED, processes, connected);
    let [engine] = topology.engines.as_slice() else { panic!("{topology}") };
    assert_eq!((engine.processes.len(), topology.blind_spots.as_slice()), (processes.len(), [].as_slice()));
}

#[test]
fn several_api_servers_of_a_launcher() {
    let processes = [
        server(10),
        child(11, "VLLM::APIServer_0", 10),
        child(12, "VLLM::APIServer_1", 10),
        child(13, "VLLM::EngineCore_DP0", 10),
        child(14, "VLLM::EngineCore_DP1", 10),
    ];
    assert_one_engine(&processes, &[(3, 1, "ipc:///a"), (3, 2, "ipc:///b"), (4, 1, "ipc:///a"), (4, 2, "ipc:///b")]);
}

/// Each data-parallel rank has an API server of its own (`--data-parallel-external-lb`), and the first one's coordinator serves all.
#[test]
fn servers_with_a_common_coordinator() {
    let processes = [
        server(10),
        child(11, "VLLM::EngineCore_DP0", 10),
        child(12, "VLLM::DPCoordinator", 10),
        server(20),
        child(21, "VLLM::EngineCore_DP1", 20),
    ];
    let tcp = "tcp://127.0.0.1:1000";
    assert_one_engine(&processes, &[(1, 0, "ipc:///a"), (4, 3, "ipc:///b"), (1, 2, tcp), (4, 2, tcp)]);
}

/// The second server (`--headless`) only starts a rank, which the first one uses.
#[test]
fn a_server_without_clients_starts_a_rank_of_another() {
    let processes =
        [server(10), child(11, "VLLM::EngineCore_DP0", 10), server(20), child(21, "VLLM::EngineCore_DP1", 20)];
    let tcp = "tcp://127.0.0.1:1000";
    assert_one_engine(&processes, &[(1, 0, tcp), (3, 0, tcp)]);
}
