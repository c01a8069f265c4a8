//! Hops by id, from their announcements.

use crate::event::{self, Sees};
use crate::id::HopId;

/// Data of a hop for exports.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) name: Box<str>,
    pub(super) worker: Option<u16>,
    pub(super) origin: bool,
    pub(super) last: bool,
    pub(super) sees: Sees,
}

impl Hop {
    /// Sending role; the whole name if it has no arrow.
    pub(super) fn from(&self) -> &str {
        self.name.split_once("->").map_or(&self.name, |(from, _)| from)
    }

    /// The receiving role.
    pub(super) fn to(&self) -> &str {
        self.name.split_once("->").map_or(&self.name, |(_, to)| to)
    }
}

/// All hops. A hop without an announcement is named `hop N`, as in the ledger. Bounded by the width of [`HopId`].
#[derive(Debug, Default)]
pub(super) struct Hops {
    list: Vec<Option<Hop>>,
    any_origin: bool,
}

impl Hops {
    pub(super) fn announce(&mut self, said: &event::Hop<'_>) {
        *self.slot(said.id) = Some(Hop {
            name: said.name.into(),
            worker: said.worker,
            origin: said.origin,
            last: said.last,
            sees: said.sees,
        });
        self.any_origin = self.list.iter().flatten().any(|h| h.origin);
    }

    /// Adds the hop with a default name if it is unknown.
    pub(super) fn meet(&mut self, id: HopId) {
        let slot = self.slot(id);
        if slot.is_none() {
            *slot = Some(Hop {
                name: format!("hop {}", id.0).into(),
                worker: None,
                origin: false,
                last: false,
                sees: Sees {
                    sent: true,
                    ..Sees::default()
                },
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
