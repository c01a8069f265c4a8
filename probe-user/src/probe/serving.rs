//! Which of the watched processes serve clients, and which of their connections are of use.

use std::collections::HashMap;

use aya::maps::{Array, HashMap as KernelMap};
use probe_ebpf::egress::Stream;

use super::{Probe, ProbeError, Slot, wrong};
use crate::attach::{self, Link};
use crate::capability::Feature;
use crate::degraded::{Degraded, Missing};
use crate::plain::Plain;

/// Processes whose writes are observed.
pub(super) struct Serving {
    /// Most bytes copied of a write, by process.
    most: HashMap<u32, u32>,
    links: Vec<Link>,
    /// Why it cannot be.
    unplaced: Option<String>,
}

impl Serving {
    pub(super) fn new(placed: Result<(), String>) -> Self {
        Self {
            most: HashMap::new(),
            links: Vec::new(),
            unplaced: placed.err(),
        }
    }

    /// The process has ended: its id may become another's.
    pub(super) fn forget(&mut self, pid: u32) {
        self.most.remove(&pid);
    }
}

impl Probe {
    /// Observes what `pid` writes to TCP sockets from now on, at most `most` bytes of a write: before it is added, so that no
    /// frame is seen taken whose delivery is not. Whether that is possible; why not is in [`Probe::degraded`].
    pub fn serve(&mut self, pid: u32, most: u32) -> Result<bool, ProbeError> {
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
            match attach::egress(&mut self.ebpf) {
                Ok(links) => self.serving.links = links,
                Err(error) => {
                    self.lacking(Feature::Egress, None, &error);
                    return Ok(false);
                }
            }
        }
        self.serving.most.insert(pid, most);
        let known = |(_, slot): &(usize, &Slot)| slot.pid == pid && !slot.free;
        if let Some((index, _)) = self.targets.iter().enumerate().find(known) {
            self.tell_serving(pid, index as u32)?;
        }
        Ok(true)
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
        let most = self.serving.most.get(&pid).copied().unwrap_or(0);
        let Some(map) = self.ebpf.map_mut("SERVING") else {
            return Ok(());
        };
        let mut serving: Array<_, u32> = Array::try_from(map).map_err(wrong("SERVING"))?;
        serving.set(index, most, 0).map_err(wrong("SERVING"))
    }
}
