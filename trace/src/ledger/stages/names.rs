//! Interned names.

use serde::{Deserialize, Serialize};

/// Names, identified by their index.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Names(Vec<Box<str>>);

impl Names {
    /// Index of `name`, which is added if unknown. `None` at `limit` names (at most 256).
    pub(super) fn id(&mut self, name: &str, limit: usize) -> Option<u8> {
        if let Some(known) = self.known(name) {
            return Some(known);
        }
        if self.0.len() >= limit.min(256) {
            return None;
        }
        self.0.push(name.into());
        Some((self.0.len() - 1) as u8)
    }

    /// Index of a known name.
    pub(super) fn known(&self, name: &str) -> Option<u8> {
        Some(self.0.iter().position(|n| **n == *name)? as u8)
    }

    pub(super) fn get(&self, id: u8) -> &str {
        self.0.get(usize::from(id)).map_or("", |n| n)
    }
}
