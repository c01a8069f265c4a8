//! Values by id, of which the oldest are evicted.

use std::collections::{HashMap, VecDeque};

/// Values by id, in the order of their insertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recent<V> {
    /// Only the methods insert and remove.
    pub(super) values: HashMap<String, V>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Recent<V> {
    /// Inserts or replaces a value. Evicts and returns the oldest one if there are `limit`.
    pub(super) fn insert(&mut self, id: &str, value: V, limit: usize) -> Option<V> {
        let evicted = if self.order.len() >= limit { self.remove_oldest() } else { None };
        // A replaced value keeps its place in the order.
        if self.values.insert(id.to_owned(), value).is_none() {
            self.order.push_back(id.to_owned());
        }
        evicted
    }

    /// Removes and returns the value that was inserted first. `None` if there is no value.
    pub(super) fn remove_oldest(&mut self) -> Option<V> {
        let oldest = self.order.pop_front()?;
        self.values.remove(&oldest)
    }

    /// Removes and returns a value. `None` if there is none of this id. Most leave in about the order of their insertion, so the search is
    /// short.
    pub(super) fn remove(&mut self, id: &str) -> Option<V> {
        let value = self.values.remove(id)?;
        if let Some(index) = self.order.iter().position(|known| known == id) {
            self.order.remove(index);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_value_is_evicted_at_the_limit() {
        let mut recent = Recent::default();
        for n in 0..=100 {
            assert_eq!(recent.insert(&n.to_string(), n, 100), (n == 100).then_some(0));
        }
        assert_eq!((recent.values.len(), recent.order.len(), recent.remove("0")), (100, 100, None));
        assert_eq!((recent.remove("7"), recent.order.len(), recent.remove_oldest()), (Some(7), 99, Some(1)));
    }
}
