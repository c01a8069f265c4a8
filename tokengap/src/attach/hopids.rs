//! Hop ids that persist across engine restarts: a hop that reappears between the same ends keeps its id.
//!
//! After a restart, frame numbers start again on a new lane. The lane number counts the restarts.

use trace::HopId;
use trace::path::Ends;

/// Maximum number of distinct hops.
const MAX_HOPS: usize = 1024;

/// Hop ids assigned so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopIds {
    /// Number of times the engine has exited.
    pub(super) generation: u32,
    /// By id: the first known ends, and the last engine generation with this hop.
    assigned: Vec<(Ends<&'static str>, u32)>,
}

impl HopIds {
    /// Id of a hop that is new in this generation; `None` beyond the limit.
    pub(super) fn assign(&mut self, ends: Ends<&'static str>) -> Option<HopId> {
        let generation = self.generation;
        let known = self.assigned.iter().position(|(of, last)| *of == ends && *last < generation);
        let place = match known {
            Some(place) => place,
            None if self.assigned.len() == MAX_HOPS => return None,
            None => {
                self.assigned.push((ends, generation));
                self.assigned.len() - 1
            }
        };
        self.assigned[place].1 = generation;
        Some(HopId(place as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returning_hop_keeps_its_id_and_same_named_hops_get_distinct_ids() {
        let mut ids = HopIds::default();
        let first = ["a->b", "b->c", "b->c"].map(|name| ids.assign(name.into()));
        assert_eq!(first, [Some(HopId(0)), Some(HopId(1)), Some(HopId(2))]);
        ids.generation += 1;
        let second = ["b->c", "a->b", "b->c", "b->c"].map(|name| ids.assign(name.into()));
        assert_eq!(second, [Some(HopId(1)), Some(HopId(0)), Some(HopId(2)), Some(HopId(3))]);
    }

    #[test]
    fn no_ids_are_assigned_beyond_the_limit() {
        let mut ids = HopIds::default();
        let given = (0..=MAX_HOPS).filter_map(|_| ids.assign("a->b".into())).count();
        assert_eq!(given, MAX_HOPS);
    }
}
