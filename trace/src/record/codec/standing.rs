//! Standing data: engine and hops, which a source announces once. Every block begins with it, so that a reader can start at any block.

use serde::{Deserialize, Serialize};

use crate::event::What;
use crate::id::HopId;

/// Maximum number of hops kept; equal to the ledger's default limit.
const HOPS: usize = 1_024;

/// Last announcement of the engine and of each hop, as msgpack.
#[derive(Debug, Default)]
pub(super) struct Standing {
    engine: Option<Vec<u8>>,
    hops: Vec<(HopId, Vec<u8>)>,
}

impl Standing {
    pub(super) fn update(&mut self, what: &What<'_>) {
        match what {
            What::Engine(engine) => self.engine = Some(own(engine)),
            What::Hop(hop) => {
                if let Some(known) = self.hops.iter_mut().find(|known| known.0 == hop.id) {
                    known.1 = own(hop);
                } else if self.hops.len() < HOPS {
                    self.hops.push((hop.id, own(hop)));
                }
            }
            _ => {}
        }
    }

    /// All standing data. The engine is first, because the meaning of frames depends on it.
    pub(super) fn events(&self) -> impl Iterator<Item = What<'_>> {
        let engine = self.engine.iter().map(|engine| What::Engine(borrowed(engine)));
        engine.chain(self.hops.iter().map(|(_, hop)| What::Hop(borrowed(hop))))
    }
}

fn own(event: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(event).expect("memory takes every event")
}

fn borrowed<'a, T: Deserialize<'a>>(own: &'a [u8]) -> T {
    rmp_serde::from_slice(own).expect("an event of this process")
}
