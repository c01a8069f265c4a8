//! Connections that clients opened, and how long each waited until the server accepted it.

use super::Ledger;
use crate::event::{Arrival, ConnectionTimes};
use crate::stats::Distribution;

/// Connections opened since the attach, each known by its first request.
#[derive(Debug, Default)]
pub struct NewConnections {
    /// Number of them.
    pub opened: u64,
    /// Time from the end of the handshake until the server had accepted it, of those whose accept was observed.
    pub accept_waits: Distribution,
    last_connection: Option<ConnectionTimes>,
}

impl NewConnections {
    /// Counts the connection on which a request arrived, if the request is the first one on it.
    pub(super) fn count_first_request_on_connection(&mut self, arrival: &Arrival<'_>) {
        // Only the first request on a connection comes with the times of the connection.
        let Some(times) = arrival.times.ok().and_then(|times| times.connection) else { return };
        // Each choice of a response repeats the arrival of its request.
        if self.last_connection == Some(times) {
            return;
        }
        self.last_connection = Some(times);
        self.opened += 1;
        if let Some(ns) = times.accept_wait_ns() {
            self.accept_waits.record(ns);
        }
    }
}

impl Ledger {
    /// Connections that clients opened since the attach.
    pub fn new_connections(&self) -> &NewConnections {
        &self.new_connections
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MonoNs;
    use crate::event::ArrivalTimes;

    #[test]
    fn each_connection_counts_once_and_its_wait_if_the_accept_was_observed() {
        let mut connections = NewConnections::default();
        let accepted_after_70 = ConnectionTimes { opened: MonoNs(100), accepted: Some(MonoNs(170)) };
        let unknown = ConnectionTimes { opened: MonoNs(200), accepted: None };
        for (rid, connection) in
            [("a-0", Some(accepted_after_70)), ("a-1", Some(accepted_after_70)), ("b", Some(unknown)), ("c", None)]
        {
            let times = ArrivalTimes { arrived: MonoNs(300), read: MonoNs(310), connection };
            connections.count_first_request_on_connection(&Arrival { rid, times: Ok(times) });
        }
        assert_eq!((connections.opened, connections.accept_waits.count()), (2, 1));
        assert_eq!(connections.accept_waits.max(), Some(70));
    }
}
