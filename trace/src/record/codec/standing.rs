//! Standing data: engine and hops, which a source announces once. Every block begins with it, so that a reader can start at any block.

use crate::engine::{Mode, Waiter};
use crate::event::{Capabilities, Engine, Hop, What};
use crate::id::HopId;
use crate::path::Ends;

/// Maximum number of hops kept; equal to the ledger's default limit.
const HOPS: usize = 1_024;

/// Last announcement of the engine and of each hop.
#[derive(Debug, Default)]
pub(super) struct Standing {
    engine: Option<OwnEngine>,
    hops: Vec<OwnHop>,
}

#[derive(Debug)]
struct OwnEngine {
    name: Option<Box<str>>,
    version: Option<Box<str>>,
    mode: Option<Mode>,
    waiter: Option<Waiter>,
    turnaround: Option<u8>,
}

#[derive(Debug)]
struct OwnHop {
    id: HopId,
    ends: Ends<Box<str>>,
    endpoint: Box<str>,
    worker: Option<u16>,
    origin: bool,
    last: bool,
    capabilities: Capabilities,
}

impl Standing {
    pub(super) fn update(&mut self, what: &What<'_>) {
        match what {
            What::Engine(engine) => {
                self.engine = Some(OwnEngine {
                    name: engine.name.map(Into::into),
                    version: engine.version.map(Into::into),
                    mode: engine.mode,
                    waiter: engine.waiter,
                    turnaround: engine.turnaround,
                });
            }
            What::Hop(hop) => {
                let own = OwnHop {
                    id: hop.id,
                    ends: hop.ends.to_owned(),
                    endpoint: hop.endpoint.into(),
                    worker: hop.worker,
                    origin: hop.origin,
                    last: hop.last,
                    capabilities: hop.capabilities,
                };
                if let Some(known) = self.hops.iter_mut().find(|known| known.id == hop.id) {
                    *known = own;
                } else if self.hops.len() < HOPS {
                    self.hops.push(own);
                }
            }
            _ => {}
        }
    }

    /// All standing data. The engine is first, because the meaning of frames depends on it.
    pub(super) fn events(&self) -> impl Iterator<Item = What<'_>> {
        let engine = self.engine.iter().map(|own| {
            What::Engine(Engine {
                name: own.name.as_deref(),
                version: own.version.as_deref(),
                mode: own.mode,
                waiter: own.waiter,
                turnaround: own.turnaround,
            })
        });
        let hops = self.hops.iter().map(|own| {
            What::Hop(Hop {
                id: own.id,
                ends: own.ends.as_str(),
                endpoint: &own.endpoint,
                worker: own.worker,
                origin: own.origin,
                last: own.last,
                capabilities: own.capabilities,
            })
        });
        engine.chain(hops)
    }
}
