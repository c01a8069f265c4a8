//! Tracks: real processes and threads where known, otherwise synthetic ones.

use std::io;

use hashbrown::HashMap;

use crate::export::json::Stream;
use crate::export::{Hops, Opening};
use crate::id::{HopId, ThreadId};

/// Process and thread id in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Track {
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// First synthetic process id; Linux has no pid above 4,194,304.
const SYNTHETIC: u32 = 10_000_000;

pub(super) const FINDINGS: Track = synthetic(0, 0);
pub(super) const MISSED: Track = synthetic(0, 1);
pub(super) const LOG: Track = synthetic(0, 2);
pub(super) const HOPS: Track = synthetic(10, 0);
pub(super) const REQUESTS: Track = synthetic(20, 0);

/// Sort indices of rows, from the top.
const ROLES_PLACE: u32 = 100;
const LAST_PLACE: u32 = 10_000;

/// Maximum number of separate rows for connections, inboxes and threads; further ones share a row per role.
const MAX_ROWS: usize = 8_192;

const fn synthetic(process: u32, thread: u32) -> Track {
    Track { pid: SYNTHETIC + process, tid: SYNTHETIC + process + thread }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Sends(HopId, u32),
    Relay(HopId, u32),
    Takes(HopId),
    Thread(ThreadId),
}

#[derive(Debug)]
pub(super) struct Tracks {
    opening: Opening,
    known: HashMap<Key, Track>,
    /// Named processes, real and synthetic, with their order of appearance.
    processes: HashMap<u32, u32>,
    roles: HashMap<Box<str>, u32>,
    next: u32,
}

impl Tracks {
    pub(super) fn new(out: &mut Stream<'_>, opening: &Opening) -> io::Result<Self> {
        let mut tracks = Self {
            opening: opening.clone(),
            known: HashMap::new(),
            processes: HashMap::new(),
            roles: HashMap::new(),
            next: SYNTHETIC + 100,
        };
        tracks.name_process(out, FINDINGS.pid, "tokengap", 0)?;
        for (track, name) in [(FINDINGS, "findings"), (MISSED, "missed observations"), (LOG, "engine's log")] {
            name_thread(out, track, name)?;
        }
        tracks.name_process(out, HOPS.pid, "hops", LAST_PLACE)?;
        tracks.name_process(out, REQUESTS.pid, "requests", LAST_PLACE + 1)?;
        Ok(tracks)
    }

    /// Track of a connection's sends: the main thread of the role's only process, if there is one.
    pub(super) fn sends(&mut self, out: &mut Stream<'_>, hop: HopId, lane: u32, hops: &Hops) -> io::Result<Track> {
        let key = Key::Sends(hop, lane);
        if let Some(&track) = self.known.get(&key) {
            return Ok(track);
        }
        let (role, name) = hops.get(hop).map_or(("", ""), |h| (&*h.ends.from, &*h.name));
        if let Some(thread) = self.opening.only(role) {
            let track = self.thread(out, thread, role, "")?;
            self.known.insert(key, track);
            return Ok(track);
        }
        self.add(out, key, role, || format!("sends on {name}, connection {lane}"))
    }

    /// Track of the relay's part of a connection.
    pub(super) fn relay(&mut self, out: &mut Stream<'_>, hop: HopId, lane: u32, hops: &Hops) -> io::Result<Track> {
        let name = hops.name(hop);
        self.find_or_add(out, Key::Relay(hop, lane), "relay", || format!("{name}, connection {lane}"))
    }

    /// Track of a hop's receives if the receiving thread is unknown.
    pub(super) fn receives(&mut self, out: &mut Stream<'_>, hop: HopId, hops: &Hops) -> io::Result<Track> {
        let key = Key::Takes(hop);
        if let Some(&track) = self.known.get(&key) {
            return Ok(track);
        }
        let Some(it) = hops.get(hop) else {
            return self.add(out, key, "", || format!("receives of hop {}", hop.0));
        };
        let role = it.worker.map_or_else(|| it.ends.to.to_string(), |n| format!("{} {n}", it.ends.to));
        self.add(out, key, &role, || format!("receives from {}", it.name))
    }

    /// Track of a real thread, with the role of its process and its name.
    pub(super) fn thread(
        &mut self,
        out: &mut Stream<'_>,
        thread: ThreadId,
        role: &str,
        name: &str,
    ) -> io::Result<Track> {
        let track = Track { pid: thread.pid, tid: thread.tid };
        let place = ROLES_PLACE + self.processes.len() as u32;
        if !role.is_empty() && self.processes.len() < MAX_ROWS && !self.processes.contains_key(&thread.pid) {
            self.name_process(out, thread.pid, role, place)?;
        }
        let key = Key::Thread(thread);
        if !name.is_empty() && self.known.len() < MAX_ROWS && !self.known.contains_key(&key) {
            self.known.insert(key, track);
            name_thread(out, track, name)?;
        }
        Ok(track)
    }

    fn find_or_add(
        &mut self,
        out: &mut Stream<'_>,
        key: Key,
        role: &str,
        name: impl FnOnce() -> String,
    ) -> io::Result<Track> {
        match self.known.get(&key) {
            Some(&track) => Ok(track),
            None => self.add(out, key, role, name),
        }
    }

    /// Adds a synthetic thread to a role's synthetic process.
    fn add(&mut self, out: &mut Stream<'_>, key: Key, role: &str, name: impl FnOnce() -> String) -> io::Result<Track> {
        let pid = if let Some(&pid) = self.roles.get(role) {
            pid
        } else {
            let pid = self.number();
            self.roles.insert(role.into(), pid);
            let place = ROLES_PLACE + self.processes.len() as u32;
            self.name_process(out, pid, role, place)?;
            pid
        };
        if self.known.len() >= MAX_ROWS {
            return Ok(Track { pid, tid: pid });
        }
        let track = Track { pid, tid: self.number() };
        self.known.insert(key, track);
        name_thread(out, track, &name())?;
        Ok(track)
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn name_process(&mut self, out: &mut Stream<'_>, pid: u32, name: &str, place: u32) -> io::Result<()> {
        self.processes.insert(pid, place);
        out.object(|o| {
            o.text("ph", "M").int("pid", pid).text("name", "process_name");
            o.object("args", |args| {
                args.text("name", name);
            });
        })?;
        out.object(|o| {
            o.text("ph", "M").int("pid", pid).text("name", "process_sort_index");
            o.object("args", |args| {
                args.int("sort_index", place);
            });
        })
    }
}

fn name_thread(out: &mut Stream<'_>, track: Track, name: &str) -> io::Result<()> {
    out.object(|o| {
        o.text("ph", "M").int("pid", track.pid).int("tid", track.tid).text("name", "thread_name");
        o.object("args", |args| {
            args.text("name", name);
        });
    })
}
