//! Content and direction of each connection between SGLang's processes.

use std::collections::{BTreeMap, BTreeSet};

use adapter::discover::{Carries, Confidence, Reading, Role, RoleWithSource, Wire, role_among};

use super::role::{DETOKENIZER, DETOKENIZER_ROUTER, DP_CONTROLLER, ROLES, ROUTER, SCHEDULER, TOKENIZER, WORKER};

/// Interprets every wire.
pub(super) fn read_wires(wires: &[Wire<'_>], roles: &[Option<RoleWithSource>]) -> Vec<Option<Reading>> {
    let bound = BoundEndpoints::from_wires(wires, roles);
    wires.iter().map(|wire| interpret_wire(wire, roles, &bound)).collect()
}

/// Content and direction of a connection, by the roles of both processes. Forward is from the connecting process to the accepting one.
/// `None` if it carries neither output nor requests of the engine.
fn interpret_wire(
    wire: &Wire<'_>,
    roles: &[Option<RoleWithSource>],
    bound_endpoints: &BoundEndpoints<'_>,
) -> Option<Reading> {
    let (acceptor_role, acceptor_source) = role_among(ROLES, roles[wire.acceptor])?;
    // The connecting process may be invisible.
    let Some(connector) = wire.connector else { return interpret_one_sided_wire(acceptor_role) };
    let (connector_role, connector_source) = role_among(ROLES, roles[connector])?;
    let confidence = Confidence::of_sources([connector_source, acceptor_source]);
    match (connector_role, acceptor_role) {
        (SCHEDULER, DETOKENIZER | DETOKENIZER_ROUTER)
        | (DETOKENIZER_ROUTER, DETOKENIZER)
        | (DETOKENIZER, TOKENIZER | ROUTER | WORKER)
        | (ROUTER, WORKER) => Some(Reading::forward(Carries::Output, confidence)),
        // A scheduler connects to several sockets of the main process, so the roles alone do not decide.
        (SCHEDULER, TOKENIZER | ROUTER) => bound_endpoints.interpret_wire_from_scheduler_to_main(wire, confidence),
        // Sockets that receive requests also connect: to the main process, or to the controller in front of the schedulers.
        (DP_CONTROLLER, TOKENIZER | ROUTER) | (SCHEDULER, DP_CONTROLLER) => Some(Reading::requests_back(confidence)),
        (WORKER, ROUTER) => Some(Reading::forward(Carries::Requests, confidence)),
        _ => None,
    }
}

/// A process and one of its bound endpoints.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BoundEndpoint<'a> {
    acceptor: usize,
    endpoint: &'a str,
}

/// Roles that connect to each bound endpoint.
struct BoundEndpoints<'a> {
    connecting_roles: BTreeMap<BoundEndpoint<'a>, BTreeSet<Role>>,
}

impl<'a> BoundEndpoints<'a> {
    /// Collects the roles that connect to each endpoint that a process has bound. A process that is not visible or has no role is left out.
    fn from_wires(wires: &[Wire<'a>], roles: &[Option<RoleWithSource>]) -> Self {
        let mut connecting_roles: BTreeMap<BoundEndpoint<'a>, BTreeSet<Role>> = BTreeMap::new();
        for wire in wires {
            if let Some((role, _)) = wire.connector.and_then(|connector| roles[connector]) {
                let bound = BoundEndpoint { acceptor: wire.acceptor, endpoint: wire.endpoint };
                connecting_roles.entry(bound).or_default().insert(role);
            }
        }
        Self { connecting_roles }
    }

    /// Endpoints of the process `acceptor` to which processes with this role connect.
    fn endpoints_with_connecting_role(&self, acceptor: usize, role: Role) -> Vec<&'a str> {
        let mut endpoints = Vec::new();
        for (bound, connecting_roles) in &self.connecting_roles {
            if bound.acceptor == acceptor && connecting_roles.contains(&role) {
                endpoints.push(bound.endpoint);
            }
        }
        endpoints
    }

    /// Interprets a wire from a scheduler to the main process. Schedulers connect to several sockets of it: output, requests, RPC, metrics.
    /// `None` for a connection to the transfer server, which a prefill engine runs for decode engines.
    fn interpret_wire_from_scheduler_to_main(&self, wire: &Wire<'_>, confidence: Confidence) -> Option<Reading> {
        // Detokenizers connect only to the output socket. They are started even where they are idle.
        let output_endpoints = self.endpoints_with_connecting_role(wire.acceptor, DETOKENIZER);
        if output_endpoints.contains(&wire.endpoint) {
            return Some(Reading::forward(Carries::Output, confidence));
        }
        let Some(output_endpoint) = output_endpoints.first() else {
            return Some(self.interpret_wire_without_detokenizer(wire.acceptor));
        };
        // An engine binds all its sockets with one transport; the transfer server of a prefill engine is TCP.
        let is_transfer_server = transport_of(output_endpoint) != transport_of(wire.endpoint);
        if is_transfer_server {
            return None;
        }
        if self.schedulers_connect_only_for_requests(wire.acceptor, &output_endpoints) {
            return Some(Reading::requests_back(Confidence::Inferred));
        }
        Some(Reading::forward(Carries::Unknown, Confidence::Inferred))
    }

    /// Interprets a wire from a scheduler to a main process to which no detokenizer connects. One of the main process's sockets has the
    /// output; if schedulers connect to several, only the traffic shows which one.
    fn interpret_wire_without_detokenizer(&self, main_process: usize) -> Reading {
        let has_one_socket = self.endpoints_with_connecting_role(main_process, SCHEDULER).len() == 1;
        let carries = if has_one_socket { Carries::Output } else { Carries::Unknown };
        Reading::forward(carries, Confidence::Inferred)
    }

    /// Whether the schedulers connect to just one socket of the main process beside those for output. It is then the one with their
    /// requests, unless a controller passes the requests to them.
    fn schedulers_connect_only_for_requests(&self, main_process: usize, output_endpoints: &[&str]) -> bool {
        let has_controller = !self.endpoints_with_connecting_role(main_process, DP_CONTROLLER).is_empty();
        let mut other_endpoints = self.endpoints_with_connecting_role(main_process, SCHEDULER);
        other_endpoints.retain(|endpoint| {
            let is_output = output_endpoints.contains(endpoint);
            // The transfer server has another transport.
            let is_transfer_server =
                output_endpoints.first().is_some_and(|output| transport_of(output) != transport_of(endpoint));
            !is_output && !is_transfer_server
        });
        other_endpoints.len() == 1 && !has_controller
    }
}

/// Transport of an endpoint: `ipc` or `tcp`.
fn transport_of(endpoint: &str) -> Option<&str> {
    endpoint.split(':').next()
}

/// Interprets a wire of which only the accepting side is visible. `None` for a role that receives no output.
fn interpret_one_sided_wire(acceptor_role: Role) -> Option<Reading> {
    let carries = match acceptor_role {
        // Schedulers connect to several sockets of a main process.
        TOKENIZER | ROUTER => Carries::Unknown,
        _ if acceptor_role.receives_output() => Carries::Output,
        _ => return None,
    };
    Some(Reading::forward(carries, Confidence::Inferred))
}

#[cfg(test)]
mod tests {
    use adapter::discover::RoleSource;

    use super::*;

    fn link(connector: usize, acceptor: usize, endpoint: &str) -> Wire<'_> {
        Wire { connector: Some(connector), acceptor, endpoint }
    }

    fn titled<const N: usize>(roles: [Role; N]) -> [Option<RoleWithSource>; N] {
        roles.map(|role| Some((role, RoleSource::Title)))
    }

    #[test]
    fn the_detokenizer_identifies_the_output_socket() {
        let roles = titled([SCHEDULER, DETOKENIZER, TOKENIZER]);
        let links = [link(0, 1, "detok"), link(0, 2, "ipc:tok"), link(1, 2, "ipc:tok"), link(0, 2, "ipc:input")];
        let read: Vec<_> =
            read_wires(&links, &roles).into_iter().map(|r| r.map(|r| (r.reversed, r.carries, r.confidence))).collect();
        let confidence = Some((false, Carries::Output, Confidence::Certain));
        assert_eq!(read, [confidence, confidence, confidence, Some((true, Carries::Requests, Confidence::Inferred))]);
    }

    #[test]
    fn without_a_detokenizer_one_socket_is_output_and_several_are_ambiguous() {
        let roles = titled([SCHEDULER, TOKENIZER]);
        let reading = read_wires(&[link(0, 1, "tok")], &roles);
        assert_eq!(reading[0].unwrap().carries, Carries::Output);
        let two = read_wires(&[link(0, 1, "tok"), link(0, 1, "input")], &roles);
        assert_eq!(two.map_carries(), [Carries::Unknown, Carries::Unknown]);
    }

    #[test]
    fn several_sockets_besides_output_are_ambiguous() {
        let roles = titled([SCHEDULER, DETOKENIZER, TOKENIZER, DP_CONTROLLER]);
        let rpc = [link(1, 2, "ipc:tok"), link(0, 2, "ipc:input"), link(0, 2, "ipc:rpc")];
        assert_eq!(read_wires(&rpc, &roles).map_carries(), [Carries::Output, Carries::Unknown, Carries::Unknown]);
        let dp = [link(1, 2, "ipc:tok"), link(3, 2, "ipc:input"), link(0, 2, "ipc:rpc")];
        assert_eq!(read_wires(&dp, &roles).map_carries(), [Carries::Output, Carries::Requests, Carries::Unknown]);
        let without_controller = titled([SCHEDULER, DETOKENIZER, TOKENIZER]);
        let bootstrap = [link(1, 2, "ipc:tok"), link(0, 2, "ipc:input"), link(0, 2, "tcp:8998")];
        let read = read_wires(&bootstrap, &without_controller);
        assert_eq!((read.map_carries(), read[2]), (vec![Carries::Output, Carries::Requests], None));
    }

    #[test]
    fn scheduler_to_scheduler_links_are_not_hops() {
        let [a, b] = titled([SCHEDULER; 2]);
        let roles = [a, b, None];
        assert_eq!(read_wires(&[link(0, 1, "kv"), link(0, 2, "x")], &roles), [None, None]);
    }

    trait MapCarries {
        fn map_carries(&self) -> Vec<Carries>;
    }

    impl MapCarries for Vec<Option<Reading>> {
        fn map_carries(&self) -> Vec<Carries> {
            self.iter().flatten().map(|r| r.carries).collect()
        }
    }
}
