//! The numbers of hops, kept over an engine's restarts: a line that comes back under its name is the same line.
//!
//! A restart's frames are numbered from the start on lanes of their own: the lane is the number of the engine's life.

use trace::HopId;

/// Most hops that are told apart.
const MOST_HOPS: usize = 1024;

/// Numbers given so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopIds {
    life: u32,
    /// By number: the name it was first met under, and the life it was last met in.
    met: Vec<(String, u32)>,
}

impl HopIds {
    /// How often the engine has ended.
    pub(super) fn life(&self) -> u32 {
        self.life
    }

    /// The engine has ended; the next one begins.
    pub(super) fn reborn(mut self) -> Self {
        self.life += 1;
        self
    }

    /// A number for a hop that is first met in this life; `None` beyond the limit.
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
