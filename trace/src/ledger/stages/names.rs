//! Words that come again and again, kept once.

use serde::{Deserialize, Serialize};

/// A list of words, each known by its place.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Names(Vec<Box<str>>);

impl Names {
    /// The place of `name`, new words being added while there are fewer than `most` (at most 256).
    pub(super) fn id(&mut self, name: &str, most: usize) -> Option<u8> {
        if let Some(known) = self.known(name) {
            return Some(known);
        }
        if self.0.len() >= most.min(256) {
            return None;
        }
        self.0.push(name.into());
        Some((self.0.len() - 1) as u8)
    }

    /// The place of a word that is known.
    pub(super) fn known(&self, name: &str) -> Option<u8> {
        Some(self.0.iter().position(|n| **n == *name)? as u8)
    }

    pub(super) fn get(&self, id: u8) -> &str {
        self.0.get(usize::from(id)).map_or("", |n| n)
    }
}
