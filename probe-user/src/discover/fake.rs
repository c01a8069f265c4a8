//! Engines discovered from fake processes, for tests of engine recognition.

use std::path::Path;

use adapter::discover::{Engines, Flags, Origin, PackageRelease, Setting};

use super::assemble;
use super::candidate::{self, Candidate, StatedRole};
use super::libzmq::LibZmq;
use super::links::{Link, OpenSocket};
use super::package::InstalledReleases;
use super::topology::{Engine, ProcessId, Topology};

/// A fake process.
#[derive(Clone, Debug)]
pub struct FakeProcess {
    pid: u32,
    parent: u32,
    argv: Vec<String>,
    releases: Vec<(&'static str, &'static str)>,
    /// A mapped file, apart from libzmq.
    mapped: Option<&'static str>,
}

impl FakeProcess {
    /// A process with an uninformative title and command.
    pub fn unnamed(pid: u32) -> Self {
        Self { pid, parent: 1, argv: Vec::new(), releases: Vec::new(), mapped: None }
    }

    /// A process with this title.
    pub fn titled(pid: u32, title: &str) -> Self {
        Self { argv: vec![title.to_owned()], ..Self::unnamed(pid) }
    }

    /// A process with this command, whose arguments contain no blanks.
    pub fn launched(pid: u32, command: &str) -> Self {
        Self { argv: command.split(' ').map(str::to_owned).collect(), ..Self::unnamed(pid) }
    }

    /// The same process as a child of another.
    #[must_use]
    pub fn child_of(self, parent: u32) -> Self {
        Self { parent, ..self }
    }

    /// The same process with another mapped file.
    #[must_use]
    pub fn mapping(self, path: &'static str) -> Self {
        Self { mapped: Some(path), ..self }
    }

    /// The same process with a release of an engine's package on its import path.
    #[must_use]
    pub fn with(mut self, engine: &'static str, release: &'static str) -> Self {
        self.releases.push((engine, release));
        self
    }

    /// The candidate that an examination of this process would give.
    fn to_candidate(&self, engines: Engines) -> Candidate {
        let role_by_user = None;
        let StatedRole { role, titled, launcher } = StatedRole::from_argv(&self.argv, role_by_user, engines);
        let installed = self.releases.iter().filter_map(|(name, release)| {
            let engine = engines.iter().copied().find(|engine| engine.name() == *name)?;
            // The origin of the release does not matter here.
            let release = Setting::new((*release).to_owned(), Origin::Sockets);
            Some(PackageRelease { engine, release })
        });
        let libzmq = LibZmq {
            path: "/opt/venv/lib/python3.12/site-packages/pyzmq.libs/libzmq-7b073b3d.so.5.2.5".into(),
            release: "4.3.5".parse().ok(),
        };
        let title = if titled.is_some() { &self.argv[0] } else { "python engine.py" };
        Candidate {
            // Processes with smaller pids are older.
            id: ProcessId { pid: self.pid, start_time: u64::from(self.pid) },
            ns_pids: vec![self.pid],
            parent: self.parent,
            title: title.into(),
            stated: role,
            rank: titled.map(|(_, rank)| rank).unwrap_or_default(),
            launcher,
            flags: Flags::parse(&self.argv, engines.iter().flat_map(|engine| engine.flags())),
            libzmq: Some(libzmq),
            installed: InstalledReleases { releases: installed.collect() },
            inner_server: candidate::find_inner_server(engines, self.mapped.iter().map(Path::new)),
            ..Candidate::default()
        }
    }
}

/// Engines of these processes. Each connection has the indices of its connecting and its accepting process, and an endpoint.
pub fn discover_engines(
    engines: Engines,
    processes: &[FakeProcess],
    connected: &[(usize, usize, &str)],
) -> Vec<Engine> {
    discover_topology(engines, processes, connected).engines
}

/// Topology of these processes: their engines, and what the connections do not show. Each connection has the indices of its connecting and
/// its accepting process, and an endpoint.
pub fn discover_topology(engines: Engines, processes: &[FakeProcess], connected: &[(usize, usize, &str)]) -> Topology {
    let candidates: Vec<Candidate> = processes.iter().map(|process| process.to_candidate(engines)).collect();
    let mut links = Vec::new();
    for (index, &(connecting_process, accepting_process, endpoint)) in (0_u32..).zip(connected) {
        links.push(Link {
            acceptor: fake_socket(accepting_process, 2 * index),
            endpoint: endpoint.into(),
            connector: Some(fake_socket(connecting_process, 2 * index + 1)),
        });
    }
    let candidates: Vec<&Candidate> = candidates.iter().collect();
    let mut blind_spots = Vec::new();
    // The sockets of all fake processes are known.
    let pids_with_unread_sockets: [u32; 0] = [];
    let assembled =
        assemble::assemble_engines(engines, &candidates, &links, &pids_with_unread_sockets, &mut blind_spots);
    Topology { engines: assembled.engines, blind_spots, ..Topology::default() }
}

/// A socket of a process, whose descriptor and inode have the same `number`.
fn fake_socket(process: usize, number: u32) -> OpenSocket {
    OpenSocket { candidate: process, fd: number, inode: number.into() }
}
