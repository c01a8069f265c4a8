//! Histories of important requests, kept when the ledger has overwritten them.

use std::collections::HashMap;

use trace::ledger::{Ledger, RequestHistory};

/// Maximum number of histories.
const MAX_HISTORIES: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct PinnedHistories {
    by_rid: HashMap<String, RequestHistory>,
}

impl PinnedHistories {
    /// Copies the histories of the first [`MAX_HISTORIES`] of these requests, and drops those of all others. Called every few seconds, so
    /// that the request of a finding can be inspected later.
    pub(crate) fn copy_histories_and_drop_others(&mut self, ledger: &Ledger, rids: &[&str]) {
        let rids = &rids[..rids.len().min(MAX_HISTORIES)];
        self.by_rid.retain(|rid, _| rids.contains(&rid.as_str()));
        for &rid in rids {
            let history = self.longest_history(ledger, rid);
            self.by_rid.insert(rid.to_owned(), history);
        }
    }

    /// Returns the history in the ledger, or the kept copy if it has more chunks.
    pub(crate) fn longest_history(&self, ledger: &Ledger, rid: &str) -> RequestHistory {
        let history = ledger.history(rid);
        match self.by_rid.get(rid) {
            Some(kept) if kept.chunks.len() > history.chunks.len() => kept.clone(),
            _ => history,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::scene::{MS, Scene};

    #[test]
    fn a_kept_history_outlives_the_ring() {
        let mut scene = Scene::delivering_with_history(8);
        let mut pinned = PinnedHistories::default();
        scene.send(0, &[("a", 1, 1)]);
        scene.receive(MS, 0, 1);
        pinned.copy_histories_and_drop_others(scene.analysis.ledger(), &["a"]);
        for n in 0..20 {
            scene.send(n * MS, &[("b", 1, n as u32 + 1)]);
        }
        pinned.copy_histories_and_drop_others(scene.analysis.ledger(), &["a"]);
        assert_eq!(pinned.longest_history(scene.analysis.ledger(), "a").chunks.len(), 1);
        pinned.copy_histories_and_drop_others(scene.analysis.ledger(), &["b"]);
        assert_eq!(pinned.longest_history(scene.analysis.ledger(), "a").chunks.len(), 0);
    }
}
