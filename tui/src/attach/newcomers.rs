//! Processes that come up while attached.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use probe_user::Probe;
use probe_user::discover::{Engine, Process, Role};
use trace::MonoNs;

use super::egress::Egress;
use super::lanes::{Lanes, Sink};

/// How long a tokenizer that listens nowhere yet is looked at again: it opens its port when the model has been loaded.
const SERVES_WITHIN: Duration = Duration::from_mins(5);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Most pids that are named in a line of `degraded`.
const NAMED: usize = 8;

/// Those that have come, until everything that happened before they were watched has been read.
#[derive(Debug)]
pub(super) struct Newcomers {
    /// Connections have changed, and the hops do not know yet.
    rewired: bool,
    /// Watched from the end of this poll on.
    watched: BTreeSet<u32>,
    /// Their writes to clients are observed from the end of this poll on.
    served: BTreeSet<u32>,
    /// Tokenizers that answered no clients when they were looked at, and since when they are looked at.
    unserved: Vec<(Process, Instant)>,
    looked: Instant,
    /// All that are watched only since later than the attach.
    all: BTreeSet<u32>,
}

impl Newcomers {
    pub(super) fn new() -> Self {
        Self {
            rewired: false,
            watched: BTreeSet::new(),
            served: BTreeSet::new(),
            unserved: Vec::new(),
            looked: Instant::now(),
            all: BTreeSet::new(),
        }
    }

    /// The hops are to be looked at anew.
    pub(super) fn rewired(&mut self) {
        self.rewired = true;
    }

    /// The probe is on this process now.
    pub(super) fn watched(&mut self, pid: u32) {
        self.watched.insert(pid);
        self.all.insert(pid);
    }

    /// Observes what a process writes to its clients, if it answers any; one that does not yet is looked at again.
    pub(super) fn serve(
        &mut self,
        process: &Process,
        egress: &mut Egress,
        probe: &mut Probe,
        engine: &Engine,
    ) -> Result<(), String> {
        if egress.serve(probe, process, engine)? {
            self.served.insert(process.id.pid);
        } else if matches!(process.role, Role::Tokenizer | Role::TokenizerWorker) {
            self.unserved.push((process.clone(), Instant::now()));
        }
        Ok(())
    }

    /// Those whose writes have been observed from the first message on.
    pub(super) fn take_served(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.served)
    }

    /// Tokenizers that answered nobody may by now.
    pub(super) fn serve_again(&mut self, egress: &mut Egress, probe: &mut Probe, engine: &Engine) {
        if self.looked.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked = Instant::now();
        self.unserved.retain(|(_, since)| since.elapsed() < SERVES_WITHIN);
        let served = &mut self.served;
        self.unserved
            .retain(|(process, _)| match egress.serve(probe, process, engine) {
                Ok(true) => {
                    served.insert(process.id.pid);
                    false
                }
                Ok(false) => true,
                // It has ended, or its sockets cannot be read any more.
                Err(_) => false,
            });
    }

    /// What happened before they were watched has been read: what they receive and deliver counts from now on.
    pub(super) fn settle(&mut self, lanes: &mut Lanes, sink: Sink<'_>) {
        let changed = std::mem::take(&mut self.rewired) || !self.watched.is_empty() || !self.served.is_empty();
        if !changed {
            return;
        }
        let (paths, now) = (lanes.paths_mut(), MonoNs::now());
        for pid in std::mem::take(&mut self.watched) {
            paths.sight.watch(pid, now);
        }
        for pid in self.take_served() {
            paths.sight.serve(pid, now);
        }
        paths.reconsider(now, sink);
    }

    /// That they were not watched from the start.
    pub(super) fn degraded(&self) -> Option<String> {
        let pids: Vec<String> = self.all.iter().take(NAMED).map(u32::to_string).collect();
        (!pids.is_empty()).then(|| {
            format!(
                "{} processes came up while attached and are watched since then (pid {}{}): chunks that they were sent before are not judged",
                self.all.len(),
                pids.join(", "),
                if self.all.len() > NAMED { ", ..." } else { "" }
            )
        })
    }
}
