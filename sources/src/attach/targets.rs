//! The processes of an engine that are probed, and how much is copied of their messages.

use std::collections::BTreeSet;

use adapter::discover::RoleSource;
use probe_user::discover::{Engine, Process};
use probe_user::{Capture, Probe, Target};

/// Bytes copied of a message that is decoded at its sender, enough to identify it. Frames of two ranks differ only in rids, which follow a
/// dozen column names. Covers a small frame completely, and both ends of a large one.
const BYTES_TO_IDENTIFY: u32 = 4096;

/// Returns whether the process announced its role or has libzmq threads. A client that has unused libzmq loaded looks like a peer.
pub(super) fn speaks_zmq(process: &Process) -> bool {
    process.role_source < RoleSource::Sockets || !process.io_threads.is_empty()
}

/// Returns whether calls of libzmq by this process are probed. It must have loaded libzmq, and no server inside it may receive its output
/// instead.
pub(super) fn has_libzmq(process: &Process) -> bool {
    process.libzmq.is_some() && process.inner_server.is_none()
}

/// Observes the batches that these processes pass to a server inside them. Must run before the processes are added to the probe.
pub(super) fn observe_inner_servers<'e>(processes: impl IntoIterator<Item = &'e Process>, probe: &mut Probe) {
    for process in processes {
        if let Some(server) = process.inner_server.and_then(|engine| engine.inner_server()) {
            probe.observe_inner_server(process.id.pid, server);
        }
    }
}

/// Observed processes that receive without libzmq.
pub(super) fn without_libzmq<'e>(engine: &'e Engine, observed: &'e BTreeSet<u32>) -> impl Iterator<Item = &'e Process> {
    let observed_processes = engine.processes.iter().filter(|process| observed.contains(&process.id.pid));
    observed_processes.filter(|process| process.libzmq.is_none() && process.inner_server.is_none())
}

/// Chooses the processes to probe: those on the token path, and those that the user named. If no connection is visible, all processes,
/// unless the engine's settings avoid ZMQ.
pub(super) fn choose_targets(engine: &Engine, named_pids: &BTreeSet<u32>, max_captured_bytes: u32) -> Vec<Target> {
    let mut chosen: Vec<&Process> = engine.processes_on_token_path().collect();
    // Connections may not be visible yet, or not from here.
    if chosen.is_empty() && engine.settings.avoids_zmq.is_none() {
        chosen.extend(&engine.processes);
    }
    for process in engine.processes.iter().filter(|process| named_pids.contains(&process.id.pid)) {
        if !chosen.iter().any(|other| other.id == process.id) {
            chosen.push(process);
        }
    }
    chosen.into_iter().filter_map(|process| probe_target_for(process, engine, max_captured_bytes)).collect()
}

/// How a process is probed; `None` if nothing of it can be observed: neither calls of libzmq, nor writes to clients.
pub(super) fn probe_target_for(process: &Process, engine: &Engine, max_captured_bytes: u32) -> Option<Target> {
    if !has_libzmq(process) && !is_server_on_path(process, engine) {
        return None;
    }
    Some(Target { pid: process.id.pid, capture: choose_capture(process, engine, max_captured_bytes) })
}

/// Whether a process on the token path answers clients.
fn is_server_on_path(process: &Process, engine: &Engine) -> bool {
    process.answers_clients() && engine.processes_on_token_path().any(|on_path| on_path.id == process.id)
}

/// Chooses how much is copied of the messages of a process. A frame is decoded from one copy of its content: that of its sender, or that of
/// its receiver if no process that sends frames is watched. Of all other messages, only as much is copied as identifies them.
fn choose_capture(process: &Process, engine: &Engine, max_captured_bytes: u32) -> Capture {
    let sends_frames = process.role.sends_output();
    let is_any_sender_watched = engine.processes.iter().any(|other| other.role.sends_output());
    Capture {
        sent: if sends_frames { max_captured_bytes } else { BYTES_TO_IDENTIFY },
        received: if is_any_sender_watched { BYTES_TO_IDENTIFY } else { max_captured_bytes },
    }
}
