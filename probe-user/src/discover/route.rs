//! Grouping of an engine's connections into the hops of the analysis.

use adapter::discover::{Carries, HopSeen, Role};
use trace::event;
use trace::path::Ends;

use super::topology::Engine;

/// A hop of the token path: all connections from senders with one role into one socket. Each connection is a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// Roles at its ends.
    pub ends: Ends<&'static str>,
    /// Endpoint in ZMQ's notation.
    pub endpoint: &'a str,
    /// Index of the receiver among processes with the same role, in the order of pids; `None` if there is only one.
    pub worker: Option<u16>,
    /// Whether the sender generates the tokens.
    pub origin: bool,
    /// Whether the receiver responds to clients.
    pub last: bool,
    /// Connections of the hop.
    pub lanes: Vec<&'a HopSeen>,
}

impl Route<'_> {
    /// Whether a connection belongs to this route: it has the same roles at its ends, the same endpoint, and the same receiver.
    fn is_route_of_hop(&self, hop: &HopSeen) -> bool {
        // A lane is one connection of the route. There is at least one, and all lead to the same receiver.
        let receiver_pid = self.lanes[0].to.map(|end| end.pid);
        self.ends == hop.ends() && self.endpoint == hop.endpoint && receiver_pid == hop.to.map(|end| end.pid)
    }
}

impl Engine {
    /// The routes that output takes between processes, in the order of the token path. Connections with the same ends are lanes of one
    /// route. A connection of which it is unknown whether it carries output counts, too.
    pub fn routes(&self) -> Vec<Route<'_>> {
        let mut routes: Vec<Route<'_>> = Vec::new();
        for hop in self.hops.iter().filter(|hop| hop.carries != Carries::Requests) {
            match routes.iter_mut().find(|route| route.is_route_of_hop(hop)) {
                Some(route) => route.lanes.push(hop),
                None => routes.push(Route {
                    ends: hop.ends(),
                    endpoint: &hop.endpoint,
                    // The index tells several receivers with this role apart.
                    worker: hop.to.and_then(|end| self.index_among_role(end.role, end.pid)),
                    // A source generates tokens, and a receiver responds to clients.
                    origin: hop.starts_at_source(),
                    last: hop.ends_at_receiver(),
                    lanes: vec![hop],
                }),
            }
        }
        routes
    }

    /// Index of a process among those of its role, in the order of their pids. `None` if the role has only one process.
    fn index_among_role(&self, role: Role, pid: u32) -> Option<u16> {
        let mut pids: Vec<u32> = self.with_role(role).map(|process| process.id.pid).collect();
        if pids.len() <= 1 {
            return None;
        }
        pids.sort_unstable();
        let index = pids.iter().position(|&other| other == pid)?;
        u16::try_from(index).ok()
    }

    /// Properties of the engine as an event for the analysis. A waiter is the task of the engine that waits for the output of a request,
    /// and its turnaround is the number of event-loop turns until it runs.
    pub fn to_event(&self) -> event::Engine<'_> {
        event::Engine {
            name: self.kind.map(|kind| kind.name()),
            version: self.release().map(|release| release.value.as_str()),
            mode: self.settings.mode.as_ref().map(|mode| mode.value),
            waiter: self.settings.waiter.as_ref().map(|waiter| waiter.value),
            turnaround: self.settings.turnaround.as_ref().map(|turns| turns.value),
        }
    }
}
