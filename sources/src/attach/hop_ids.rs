//! Ids of hops, which stay the same when the engine is started again.

use trace::HopId;
use trace::path::Ends;

/// Maximum number of hops that get an id.
const MAX_HOPS: usize = 1024;

/// Hop ids assigned so far, across engine restarts: a hop that reappears between the same ends keeps its id. After a restart, frame numbers
/// start again on a new lane; the lane number counts the restarts.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopIds {
    /// Number of times the engine has exited.
    pub(super) generation: u32,
    /// By id.
    assigned: Vec<AssignedHop>,
}

#[derive(Clone, Debug)]
struct AssignedHop {
    /// The first known ends.
    ends: Ends<&'static str>,
    last_generation: u32,
}

impl HopIds {
    /// Assigns an id to a hop between these ends that has appeared since the last start of the engine. If a hop between the same ends was
    /// there before that start, the id is the same. Each start begins a new generation. `None` beyond the limit of hops.
    pub(super) fn assign_id(&mut self, ends: Ends<&'static str>) -> Option<HopId> {
        let generation = self.generation;
        // For the reader of the report, a hop between the same ends is the same hop after a restart. One of the current generation is
        // another hop, because two hops can have the same ends at the same time.
        let reappearing = self.assigned.iter().position(|hop| hop.ends == ends && hop.last_generation < generation);
        if let Some(index) = reappearing {
            self.assigned[index].last_generation = generation;
            return Some(HopId(index as u16));
        }
        if self.assigned.len() == MAX_HOPS {
            return None;
        }
        self.assigned.push(AssignedHop { ends, last_generation: generation });
        Some(HopId((self.assigned.len() - 1) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returning_hop_keeps_its_id_and_same_named_hops_get_distinct_ids() {
        let mut ids = HopIds::default();
        let first = ["a->b", "b->c", "b->c"].map(|name| ids.assign_id(name.into()));
        assert_eq!(first, [Some(HopId(0)), Some(HopId(1)), Some(HopId(2))]);
        ids.generation += 1;
        let second = ["b->c", "a->b", "b->c", "b->c"].map(|name| ids.assign_id(name.into()));
        assert_eq!(second, [Some(HopId(1)), Some(HopId(0)), Some(HopId(2)), Some(HopId(3))]);
    }

    #[test]
    fn no_ids_are_assigned_beyond_the_limit() {
        let mut ids = HopIds::default();
        let given = (0..=MAX_HOPS).filter_map(|_| ids.assign_id("a->b".into())).count();
        assert_eq!(given, MAX_HOPS);
    }
}
