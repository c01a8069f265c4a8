//! Tracks: real processes and threads where known, otherwise synthetic ones.

use hashbrown::{HashMap, HashSet};
use trace::id::{HopId, ThreadId};
use trace::ledger::Ledger;

use super::{METADATA, Perfetto};
use crate::export::Opening;
use crate::export::json::Object;

/// Process and thread id in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// First synthetic process id; Linux has no pid above 4,194,304.
const SYNTHETIC: u32 = 10_000_000;
/// Number of synthetic ids that are reserved for the fixed tracks.
const FIXED_IDS: u32 = 100;

pub(super) const FINDINGS: Track = synthetic_track(0, 0);
pub(super) const MISSED: Track = synthetic_track(0, 1);
pub(super) const LOG: Track = synthetic_track(0, 2);
pub(super) const HOPS: Track = synthetic_track(10, 0);
pub(super) const REQUESTS: Track = synthetic_track(20, 0);

/// Role of a process or name of a thread that is not known.
pub(super) const UNKNOWN: &str = "";

/// Sort indices of processes, from the top.
const FIRST_PLACE: u32 = 0;
const ROLES_PLACE: u32 = 100;
const LAST_PLACE: u32 = 10_000;

/// Maximum number of separate rows for connections, inboxes and threads; further ones share a row per role.
const MAX_ROWS: usize = 8_192;

/// Track of a synthetic process and its thread, by their numbers.
const fn synthetic_track(process: u32, thread: u32) -> Track {
    Track { pid: SYNTHETIC + process, tid: SYNTHETIC + process + thread }
}

/// Meaning of a synthetic row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SyntheticRow {
    /// A connection's sends: on the main thread of the role's only process, if there is one.
    Sends(HopId, u32),
    /// The relay's part of a connection.
    Relay(HopId, u32),
    /// A hop's receives whose thread is unknown.
    Receives(HopId),
}

#[derive(Debug)]
pub(super) struct Tracks {
    opening: Opening,
    rows: HashMap<SyntheticRow, Track>,
    /// Real threads.
    named_threads: HashSet<ThreadId>,
    /// Real and synthetic processes.
    named_processes: HashSet<u32>,
    synthetic_process_by_role: HashMap<Box<str>, u32>,
    last_id: u32,
}

impl Tracks {
    /// Creates a set without any track.
    pub(super) fn new(opening: &Opening) -> Self {
        Self {
            opening: opening.clone(),
            rows: HashMap::new(),
            named_threads: HashSet::new(),
            named_processes: HashSet::new(),
            synthetic_process_by_role: HashMap::new(),
            // The ids up to this one are for the fixed tracks.
            last_id: SYNTHETIC + FIXED_IDS,
        }
    }

    /// An unused id of a synthetic process or thread.
    fn new_synthetic_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether there are as many rows as are drawn separately.
    fn is_full(&self) -> bool {
        self.rows.len() + self.named_threads.len() >= MAX_ROWS
    }
}

impl Perfetto<'_> {
    /// Names the tracks that do not stand for threads, and puts findings before the others, and hops and requests behind them.
    pub(super) fn name_fixed_tracks(&mut self) {
        self.name_process(FINDINGS.pid, "tokengap", FIRST_PLACE);
        for (track, name) in [(FINDINGS, "findings"), (MISSED, "missed observations"), (LOG, "engine's log")] {
            self.name_thread(track, name);
        }
        self.name_process(HOPS.pid, "hops", LAST_PLACE);
        self.name_process(REQUESTS.pid, "requests", LAST_PLACE + 1);
    }

    /// Track of a row. Adds and names the track at the row's first use.
    pub(super) fn get_or_add_track_of_row(&mut self, row: SyntheticRow, ledger: &Ledger) -> Track {
        if let Some(&track) = self.tracks.rows.get(&row) {
            return track;
        }
        match row {
            SyntheticRow::Sends(hop, connection) => self.add_track_of_sends(row, hop, connection, ledger),
            SyntheticRow::Relay(hop, connection) => {
                self.add_track(row, "relay", &format!("{}, connection {connection}", ledger.hop_name(hop)))
            }
            SyntheticRow::Receives(hop) => self.add_track_of_receives(row, hop, ledger),
        }
    }

    /// Adds the track of the receives on a hop to the process of the receiving role and worker.
    fn add_track_of_receives(&mut self, row: SyntheticRow, hop_id: HopId, ledger: &Ledger) -> Track {
        let Some(hop) = ledger.hop(hop_id) else {
            return self.add_track(row, UNKNOWN, &format!("receives of hop {}", hop_id.0));
        };
        let group = &ledger.groups()[hop.group];
        let worker = hop.worker.map_or_else(String::new, |index| format!(" {index}"));
        let role = format!("{}{worker}", group.ends.to);
        self.add_track(row, &role, &format!("receives from {}", group.name))
    }

    /// Adds the track of the sends on a connection, which is that of the sending thread if it is known.
    fn add_track_of_sends(&mut self, row: SyntheticRow, hop: HopId, connection: u32, ledger: &Ledger) -> Track {
        let role = ledger.hop(hop).map_or(UNKNOWN, |hop| &ledger.groups()[hop.group].ends.from);
        // If only one process has the role, its main thread is the sender.
        if let Some(thread) = self.tracks.opening.main_thread_of_only_process(role) {
            let track = self.name_and_get_track_of_thread(thread, role, UNKNOWN);
            self.tracks.rows.insert(row, track);
            return track;
        }
        self.add_track(row, role, &format!("sends on {}, connection {connection}", ledger.hop_name(hop)))
    }

    /// Track of a real thread. Names its process by `role` and the thread by `name` when they are first known, up to [`MAX_ROWS`] of each.
    pub(super) fn name_and_get_track_of_thread(&mut self, thread: ThreadId, role: &str, name: &str) -> Track {
        let track = Track { pid: thread.pid, tid: thread.tid };
        let named = &self.tracks.named_processes;
        if !role.is_empty() && named.len() < MAX_ROWS && !named.contains(&thread.pid) {
            self.name_process(thread.pid, role, ROLES_PLACE + named.len() as u32);
        }
        if !name.is_empty() && !self.tracks.is_full() {
            let is_first_name = self.tracks.named_threads.insert(thread);
            if is_first_name {
                self.name_thread(track, name);
            }
        }
        track
    }

    /// Id of the synthetic process of a role. Adds and names the process at its first use.
    fn get_or_add_synthetic_process(&mut self, role: &str) -> u32 {
        if let Some(&pid) = self.tracks.synthetic_process_by_role.get(role) {
            return pid;
        }
        let pid = self.tracks.new_synthetic_id();
        self.tracks.synthetic_process_by_role.insert(role.into(), pid);
        // Processes are placed in the order in which they were first named.
        self.name_process(pid, role, ROLES_PLACE + self.tracks.named_processes.len() as u32);
        pid
    }

    /// Adds a track for a row to the synthetic process of a role. Returns a track that further rows share if there are too many.
    fn add_track(&mut self, row: SyntheticRow, role: &str, name: &str) -> Track {
        let pid = self.get_or_add_synthetic_process(role);
        if self.tracks.is_full() {
            // Not remembered, so that the map stays bounded.
            return Track { pid, tid: pid };
        }
        let track = Track { pid, tid: self.tracks.new_synthetic_id() };
        self.tracks.rows.insert(row, track);
        self.name_thread(track, name);
        track
    }

    /// Names a process, and sets its place among the others.
    fn name_process(&mut self, pid: u32, name: &str, place: u32) {
        self.tracks.named_processes.insert(pid);
        // The metadata is about the process and none of its threads.
        let tid = None;
        self.write_metadata(pid, tid, "process_name", |args| {
            args.put("name", name);
        });
        self.write_metadata(pid, tid, "process_sort_index", |args| {
            args.put("sort_index", place);
        });
    }

    /// Names a track.
    fn name_thread(&mut self, track: Track, name: &str) {
        self.write_metadata(track.pid, Some(track.tid), "thread_name", |args| {
            args.put("name", name);
        });
    }

    /// Writes a metadata event about a process, or about one of its threads if `tid` is given.
    fn write_metadata(&mut self, pid: u32, tid: Option<u32>, name: &str, args: impl FnOnce(&mut Object<'_>)) {
        self.out.write_object(|object| {
            object
                .put("ph", METADATA)
                .put("pid", pid)
                .put_if_known("tid", tid)
                .put("name", name)
                .put_object("args", args);
        });
    }
}
