//! Hop ids that persist across engine restarts: a hop that reappears under the same name keeps its id.
//!
//! After a restart, frame numbers start again on a new lane. The lane number counts the restarts.

use trace::HopId;

/// Maximum number of distinct hops.
const MOST_HOPS: usize = 1024;

/// Hop ids assigned so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopIds {
    life: u32,
    /// By id: the first known name, and the last engine life in which the hop existed.
    met: Vec<(String, u32)>,
}

impl HopIds {
    /// Number of times the engine has exited.
    pub(super) fn life(&self) -> u32 {
        self.life
    }

    /// Starts the next life of the engine.
    pub(super) fn reborn(mut self) -> Self {
        self.life += 1;
        self
    }

    /// Id of a hop that is new in this life; `None` beyond the limit.
    pub(super) fn meet(&mut self, name: &str) -> Option<HopId> {
        let life = self.life;
        let known = self.met.iter().position(|(of, last)| of == name && *last < life);
        let place = match known {
            Some(place) => place,
            None if self.met.len() == MOST_HOPS => return None,
            None => {
                self.met.push((name.to_owned(), life));
                self.met.len() - 1
            }
        };
        self.met[place].1 = life;
        Some(HopId(place as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_comes_back_is_the_same_and_two_of_one_name_are_two() {
        let mut ids = HopIds::default();
        let first = ["a->b", "b->c", "b->c"].map(|name| ids.meet(name));
        assert_eq!(first, [Some(HopId(0)), Some(HopId(1)), Some(HopId(2))]);
        let mut ids = ids.reborn();
        let second = ["b->c", "a->b", "b->c", "b->c"].map(|name| ids.meet(name));
        assert_eq!(second, [Some(HopId(1)), Some(HopId(0)), Some(HopId(2)), Some(HopId(3))]);
        assert_eq!(ids.life(), 1);
    }

    #[test]
    fn numbers_end_at_the_limit() {
        let mut ids = HopIds::default();
        let given = (0..=MOST_HOPS).filter_map(|_| ids.meet("a->b")).count();
        assert_eq!(given, MOST_HOPS);
    }
}
