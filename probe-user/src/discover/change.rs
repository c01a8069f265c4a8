//! Differences between two scans.

use std::collections::{BTreeMap, VecDeque};

use super::topology::{Engine, Process, ProcessId, Topology};

/// Maximum number of departed processes remembered, to distinguish a restart from an addition.
const REMEMBERED: usize = 64;

/// A difference from the previous scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A process joined an engine.
    Added(Box<Process>),
    /// A process exited, or is no longer part of an engine.
    Exited(Box<Process>),
    /// A new process replaced one that had left (possibly reported earlier), or a process turned out to have another role or rank.
    Replaced {
        /// Previous process.
        old: Box<Process>,
        /// Current process.
        new: Box<Process>,
    },
    /// The processes are the same, but their connections differ.
    Rewired,
}

/// Departed processes, each with the other processes of its engine.
#[derive(Debug, Default)]
pub(crate) struct Departed(VecDeque<(Process, Vec<ProcessId>)>);

impl Departed {
    /// Lists the changes from `old` to `latest`.
    pub(crate) fn changes(&mut self, old: &Topology, latest: &Topology) -> Vec<Change> {
        let (before, now) = (by_id(old), by_id(latest));
        let left: Vec<ProcessId> = before.keys().filter(|id| !now.contains_key(id)).copied().collect();
        self.0.extend(left.iter().map(|id| (before[id].clone(), companions(old, *id))));
        while self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
        let mut changes = Vec::new();
        let mut replaced = Vec::new();
        for (id, process) in now {
            let new = Box::new(process.clone());
            match before.get(&id) {
                Some(old) if (old.role, old.rank) == (process.role, process.rank) => {}
                Some(old) => changes.push(Change::Replaced { old: Box::new((*old).clone()), new }),
                None => changes.push(match self.replaced_by(process, &companions(latest, id)) {
                    Some(old) => {
                        replaced.push(old.id);
                        Change::Replaced { old: Box::new(old), new }
                    }
                    None => Change::Added(new),
                }),
            }
        }
        // A process that was replaced within the same scan is reported once.
        let exited = left.iter().filter(|id| !replaced.contains(id));
        changes.splice(0..0, exited.map(|id| Change::Exited(Box::new(before[id].clone()))));
        let hops = |t: &Topology| t.engines.iter().flat_map(|e| e.hops.clone()).collect::<Vec<_>>();
        if changes.is_empty() && hops(old) != hops(latest) {
            changes.push(Change::Rewired);
        }
        changes
    }

    /// Finds the most recently departed process that `new` resembles and that had an engine process in common with it.
    fn replaced_by(&mut self, new: &Process, companions: &[ProcessId]) -> Option<Process> {
        let same_kind = |p: &Process| p.role == new.role && p.rank == new.rank && p.title == new.title;
        let at = self.0.iter().rposition(|(p, with)| same_kind(p) && with.iter().any(|id| companions.contains(id)))?;
        self.0.remove(at).map(|(process, _)| process)
    }
}

/// The other processes of the same engine.
fn companions(topology: &Topology, id: ProcessId) -> Vec<ProcessId> {
    let ids = |e: &Engine| e.processes.iter().map(|p| p.id).collect::<Vec<_>>();
    let engine = topology.engines.iter().map(ids).find(|ids| ids.contains(&id)).unwrap_or_default();
    engine.into_iter().filter(|other| *other != id).collect()
}

fn by_id(topology: &Topology) -> BTreeMap<ProcessId, &Process> {
    topology.engines.iter().flat_map(|e| &e.processes).map(|p| (p.id, p)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::recognise::toy::{SERVER, SOURCE};
    use super::super::role::{Function, Rank, Role, RoleSource};
    use super::*;

    const MIDDLE: Role = Role::new(1, "middle", Function::Intermediate);

    fn process(pid: u32, role: Role) -> Process {
        Process {
            id: ProcessId { pid, start_time: u64::from(pid) },
            ns_pids: vec![pid],
            parent: 1,
            group: 1,
            role,
            role_source: RoleSource::Title,
            rank: Rank::default(),
            title: format!("toy::{role}"),
            libzmq: None,
            python: None,
            pyzmq: None,
            io_threads: Vec::new(),
            connects_to_clients: None,
            inner_server: None,
        }
    }

    fn topology(processes: &[Process]) -> Topology {
        let engine = Engine { processes: processes.to_vec(), ..Engine::default() };
        Topology { engines: vec![engine], ..Topology::default() }
    }

    #[test]
    fn a_restart_is_a_replacement_at_once_or_later() {
        let (scheduler, detokenizer) = (process(7, SOURCE), process(8, MIDDLE));
        let (both, one) =
            (topology(&[scheduler.clone(), detokenizer.clone()]), topology(std::slice::from_ref(&scheduler)));
        let restarted = process(9, MIDDLE);
        let after = topology(&[scheduler.clone(), restarted.clone()]);
        let replaced = Change::Replaced { old: Box::new(detokenizer.clone()), new: Box::new(restarted) };

        let mut departed = Departed::default();
        let at_once = departed.changes(&both, &after);
        assert_eq!(at_once, std::slice::from_ref(&replaced));

        let mut departed = Departed::default();
        assert_eq!(departed.changes(&both, &one), [Change::Exited(Box::new(detokenizer))]);
        assert_eq!(departed.changes(&one, &one), []);
        assert_eq!(departed.changes(&one, &after), [replaced]);
    }

    #[test]
    fn a_new_process_and_a_role_change_are_reported() {
        let (a, b) = (process(7, SOURCE), process(8, MIDDLE));
        let mut departed = Departed::default();
        assert_eq!(
            departed.changes(&Topology::default(), &topology(std::slice::from_ref(&a))),
            [Change::Added(Box::new(a.clone()))]
        );
        let as_tokenizer = Process { role: SERVER, ..b.clone() };
        let changes = departed.changes(&topology(&[a.clone(), b.clone()]), &topology(&[a, as_tokenizer.clone()]));
        assert_eq!(changes, [Change::Replaced { old: Box::new(b), new: Box::new(as_tokenizer) }]);
    }
}
