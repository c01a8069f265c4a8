//! Clients that the endpoint refused or dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use super::served_path::{MAX_CONNECTIONS, ServedPath};

/// Clients that got no response, or lost theirs.
#[derive(Debug, Default)]
pub(super) struct EndpointCounts {
    /// Displaced by newer connections.
    pub(super) displaced: AtomicU64,
    /// Over a size or time limit, or not HTTP.
    pub(super) failed: AtomicU64,
    /// Requests without the token.
    pub(super) unauthorized: AtomicU64,
    /// Requests beyond a path's limit of clients.
    pub(super) over_limit: AtomicU64,
    /// Clients of `/recording` that read too slowly.
    pub(super) slow_recording: AtomicU64,
    /// Clients of `/events` that read too slowly.
    pub(super) slow_events: AtomicU64,
}

impl EndpointCounts {
    /// Counts a slow client of a stream.
    pub(super) fn count_slow(&self, path: ServedPath) {
        let slow = if path == ServedPath::Events { &self.slow_events } else { &self.slow_recording };
        slow.fetch_add(1, Ordering::Relaxed);
    }

    /// Clients refused so far, by reason.
    pub(super) fn refused_clients_by_reason(&self) -> [(&'static str, u64); 4] {
        [
            ("displaced", load_count(&self.displaced)),
            ("failed", load_count(&self.failed)),
            ("unauthorized", load_count(&self.unauthorized)),
            ("over_limit", load_count(&self.over_limit)),
        ]
    }

    /// Clients dropped from the streams so far, by path.
    pub(super) fn dropped_clients_by_path(&self) -> [(&'static str, u64); 2] {
        [
            (ServedPath::Recording.name(), load_count(&self.slow_recording)),
            (ServedPath::Events.name(), load_count(&self.slow_events)),
        ]
    }

    /// One line for the report per kind of client that was refused or dropped, with the remedy.
    pub(super) fn problems(&self) -> Vec<String> {
        let displaced = load_count(&self.displaced);
        let failed = load_count(&self.failed);
        let unauthorized = load_count(&self.unauthorized);
        let over_limit = load_count(&self.over_limit);
        let slow = load_count(&self.slow_recording) + load_count(&self.slow_events);
        let mut lines = Vec::new();
        if displaced + failed > 0 {
            lines.push(format!(
                "metrics: connections closed without a response: {displaced} replaced by newer ones (limit {MAX_CONNECTIONS}), {failed} too slow, too long or not HTTP; check who can reach the address of --metrics"
            ));
        }
        if unauthorized > 0 {
            lines.push(format!(
                "metrics: {unauthorized} requests without the token of --token-file were refused; check the client's `authorization`, and who can reach the address of --metrics"
            ));
        }
        if over_limit > 0 {
            lines.push(format!(
                "metrics: {over_limit} requests were refused because the path had too many clients; check who can reach the address of --metrics"
            ));
        }
        if slow > 0 {
            lines.push(format!(
                "metrics: {slow} clients of /recording and /events were dropped because they read too slowly; they can connect again"
            ));
        }
        lines
    }
}

pub(super) fn load_count(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}
