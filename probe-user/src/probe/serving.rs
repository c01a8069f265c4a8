//! Which of the watched processes serve clients, and which of their connections are of use.

use std::collections::HashMap;

use aya::maps::{Array, HashMap as KernelMap};
use probe_ebpf::egress::{Serves, Stream};

use super::{Probe, ProbeError, Slot, wrong};
use crate::attach::{self, Link};
use crate::capability::Feature;
use crate::degraded::{Degraded, Missing};
use crate::plain::Plain;

/// Processes whose writes are observed.
pub(super) struct Serving {
    /// What is copied of their calls, by process.
    serves: HashMap<u32, Serves>,
    links: Vec<Link>,
    /// On reads, once some process's are wanted.
    reads: Vec<Link>,
    /// Why it cannot be.
    unplaced: Option<String>,
}

impl Serving {
    pub(super) fn new(placed: Result<(), String>) -> Self {
        Self {
            serves: HashMap::new(),
            links: Vec::new(),
            reads: Vec::new(),
            unplaced: placed.err(),
        }
    }

    /// The process has ended: its id may become another's.
    pub(super) fn forget(&mut self, pid: u32) {
        self.serves.remove(&pid);
    }
}

impl Probe {
    /// Observes what `pid` writes to TCP sockets from now on, and what it reads of them if `serves` says so: before it is added, so
    /// that no frame is seen taken whose delivery is not. Whether writes can be; why not is in [`Probe::degraded`].
    pub fn serve(&mut self, pid: u32, serves: Serves) -> Result<bool, ProbeError> {
        if self.serving.links.is_empty() {
            if let Some(why) = &self.serving.unplaced {
                let missing = Missing::KernelTypes(why.clone());
                let new = Degraded {
                    feature: Feature::Egress,
                    pid: None,
                    missing,
                };
                if !self.degraded.contains(&new) {
                    self.degraded.push(new);
                }
                return Ok(false);
            }
            match attach::egress(&mut self.ebpf, self.options.every_call) {
                Ok(links) => self.serving.links = links,
                Err(error) => {
                    self.lacking(Feature::Egress, None, &error);
                    return Ok(false);
                }
            }
        }
        if serves.read > 0 && self.serving.reads.is_empty() {
            match attach::egress_reads(&mut self.ebpf) {
                Ok(links) => self.serving.reads = links,
                Err(error) => tracing::debug!("what is read of clients is not observed: {error}"),
            }
        }
        self.serving.serves.insert(pid, serves);
        let known = |(_, slot): &(usize, &Slot)| slot.pid == pid && !slot.free;
        if let Some((index, _)) = self.targets.iter().enumerate().find(known) {
            self.tell_serving(pid, index as u32)?;
        }
        Ok(true)
    }

    /// Whether what processes read is observed, where that was wanted.
    pub fn sees_reads(&self) -> bool {
        !self.serving.reads.is_empty()
    }

    /// Observes this connection no more.
    pub fn ignore(&mut self, socket: u64) -> Result<(), ProbeError> {
        let Some(map) = self.ebpf.map_mut("STREAMS") else {
            return Ok(());
        };
        let mut streams: KernelMap<_, u64, Plain<Stream>> = KernelMap::try_from(map).map_err(wrong("STREAMS"))?;
        // Closed meanwhile: then there is nothing to ignore.
        if let Ok(Plain(stream)) = streams.get(&socket, 0) {
            let ignored = Stream { ignored: 1, ..stream };
            streams.insert(socket, Plain(ignored), 0).map_err(wrong("STREAMS"))?;
        }
        Ok(())
    }

    pub(super) fn tell_serving(&mut self, pid: u32, index: u32) -> Result<(), ProbeError> {
        let serves = self.serving.serves.get(&pid).copied().unwrap_or_default();
        let Some(map) = self.ebpf.map_mut("SERVING") else {
            return Ok(());
        };
        let mut serving: Array<_, Plain<Serves>> = Array::try_from(map).map_err(wrong("SERVING"))?;
        serving.set(index, Plain(serves), 0).map_err(wrong("SERVING"))
    }
}
