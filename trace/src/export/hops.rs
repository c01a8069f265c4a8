//! Hops by id, from their announcements.

use crate::event::{self, Capabilities};
use crate::id::HopId;
use crate::path::Ends;

/// Data of a hop for exports.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) name: Box<str>,
    pub(super) ends: Ends<Box<str>>,
    pub(super) worker: Option<u16>,
    pub(super) origin: bool,
    pub(super) last: bool,
    pub(super) capabilities: Capabilities,
}

/// All hops. A hop without an announcement is named `hop N`, as in the ledger. Bounded by the width of [`HopId`].
#[derive(Debug, Default)]
pub(super) struct Hops {
    list: Vec<Option<Hop>>,
    any_origin: bool,
}

impl Hops {
    pub(super) fn announce(&mut self, announced: &event::Hop<'_>) {
        *self.slot(announced.id) = Some(Hop {
            name: announced.ends.to_string().into(),
            ends: announced.ends.to_owned(),
            worker: announced.worker,
            origin: announced.origin,
            last: announced.last,
            capabilities: announced.capabilities,
        });
        self.any_origin = self.list.iter().flatten().any(|h| h.origin);
    }

    /// Adds the hop with a default name if it is unknown.
    pub(super) fn ensure(&mut self, id: HopId) {
        let slot = self.slot(id);
        if slot.is_none() {
            let name = format!("hop {}", id.0);
            *slot = Some(Hop {
                ends: Ends::from(&*name).to_owned(),
                name: name.into(),
                worker: None,
                origin: false,
                last: false,
                capabilities: Capabilities { sent: true, ..Capabilities::default() },
            });
        }
    }

    pub(super) fn get(&self, id: HopId) -> Option<&Hop> {
        self.list.get(usize::from(id.0))?.as_ref()
    }

    pub(super) fn name(&self, id: HopId) -> &str {
        self.get(id).map_or("", |h| &h.name)
    }

    /// Whether its sends are the scheduler's.
    pub(super) fn is_origin(&self, id: HopId) -> bool {
        self.get(id).is_some_and(|h| h.origin || !self.any_origin)
    }

    fn slot(&mut self, id: HopId) -> &mut Option<Hop> {
        let place = usize::from(id.0);
        if self.list.len() <= place {
            self.list.resize(place + 1, None);
        }
        &mut self.list[place]
    }
}
