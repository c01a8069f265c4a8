//! Requests with the worst gaps and all their stages, kept after their records are closed.

use serde::{Deserialize, Serialize};

use super::marks::Marks;

/// Maximum number of requests kept.
const KEPT: usize = 16;

/// A request with a long gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// The engine's request id, as logged.
    pub rid: Box<str>,
    /// From its first send to its first receive, in nanoseconds.
    pub gap_ns: u64,
    /// All its logged stages.
    pub marks: Marks,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Slowest(pub(super) Vec<Slow>);

impl Slowest {
    /// Enters a request, or updates it with new data.
    pub(super) fn offer(&mut self, rid: &str, gap_ns: u64, marks: &Marks) {
        let full = self.0.len() >= KEPT;
        if full && self.0.last().is_some_and(|min| min.gap_ns > gap_ns) {
            return;
        }
        if let Some(known) = self.0.iter_mut().find(|s| *s.rid == *rid) {
            if known.gap_ns > gap_ns {
                return;
            }
            known.gap_ns = gap_ns;
            known.marks = marks.clone();
        } else {
            if full {
                self.0.pop();
            }
            self.0.push(Slow { rid: rid.into(), gap_ns, marks: marks.clone() });
        }
        self.0.sort_by(|a, b| b.gap_ns.cmp(&a.gap_ns).then_with(|| a.rid.cmp(&b.rid)));
    }
}
