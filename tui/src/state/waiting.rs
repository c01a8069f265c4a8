//! Requests that wait for their first token.

/// Requests that wait, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WaitingRequests {
    pub(crate) requests: u64,
    pub(crate) longest_wait_ns: u64,
}
