//! Limit of the work in a comparison of tool calls, which runs on the thread that reads the probe's ring.

/// Maximum number of steps for a response: about 4 ms.
const MAX_STEPS: usize = 4_000_000;

/// Remaining work of a comparison, in steps of about a nanosecond.
#[derive(Debug)]
pub(super) struct Budget(Option<usize>);

impl Default for Budget {
    fn default() -> Self {
        Self(Some(MAX_STEPS))
    }
}

impl Budget {
    /// Takes the steps of the next part. Returns false, then and in all later calls, if they exceed the rest of the budget.
    pub(super) fn take(&mut self, steps: usize) -> bool {
        self.0 = self.0.and_then(|left| left.checked_sub(steps));
        self.0.is_some()
    }

    /// Whether a part was left out, so that nothing is known about the comparison.
    pub(super) fn is_exceeded(&self) -> bool {
        self.0.is_none()
    }
}
