//! Inference of unknown roles from parents and connections.
//!
//! On the path to the client the receiver binds and the sender connects (PUSH connects, PULL binds). An unnamed process is therefore
//! recognised by its neighbours, and a group of unnamed processes by its order.

use adapter::discover::{Edge, Node, Role, RoleSource, RoleWithSource, connected_groups};

use super::role::{DETOKENIZER, DETOKENIZER_ROUTER, ROLES, ROUTER, SCHEDULER, TOKENIZER, WORKER};

/// Infers a role for each node where possible, and enters it in `roles`.
pub(super) fn infer_roles(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    // The order matters: known roles are used before any role is guessed.
    infer_main_roles_from_children(nodes, roles);
    infer_roles_from_neighbours(nodes, edges, roles);
    guess_groups_without_role(nodes, edges, roles);
    // Needs the roles of all other processes.
    mark_routers(nodes, edges, roles);
}

type Roles = [Option<RoleWithSource>];

/// Role of a node, stated or inferred. `None` if it is not known yet.
fn known_role(roles: &Roles, node: usize) -> Option<Role> {
    roles[node].map(|(role, _)| role)
}

fn is_worker(roles: &Roles, node: usize) -> bool {
    known_role(roles, node) == Some(WORKER)
}

/// Gives the unnamed parents of schedulers and detokenizers the role of the engine's main process, whatever their command. A parent that
/// does not use ZMQ gets no role.
fn infer_main_roles_from_children(nodes: &[Node], roles: &mut Roles) {
    for child in nodes {
        // Only a title counts, because the engine itself sets it.
        let Some((role, RoleSource::Title)) = child.stated else { continue };
        // The main process starts all other processes of the engine.
        let is_started_by_main = ROLES.contains(&role) && !role.is_main();
        if is_started_by_main
            && let Some(parent) = child.parent
            && nodes[parent].zmq
            && roles[parent].is_none()
        {
            roles[parent] = Some((TOKENIZER, RoleSource::Children));
        }
    }
}

/// Infers the roles of unnamed processes from named neighbours, until no role changes. An edge is a connection from a sending to a
/// receiving process, by their indices among `nodes`. A process that does not use ZMQ gets no role.
fn infer_roles_from_neighbours(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    // A role that was found may show the role of the next process.
    loop {
        let mut has_changed = false;
        for &(sender, receiver) in edges {
            if let Some(NeighbourRole { node, role }) = role_by_neighbour(sender, receiver, edges, roles)
                && nodes[node].zmq
            {
                roles[node] = Some((role, RoleSource::Sockets));
                has_changed = true;
            }
        }
        if !has_changed {
            return;
        }
    }
}

/// The role of a node that a neighbour shows.
struct NeighbourRole {
    node: usize,
    role: Role,
}

/// Infers the role of one end of a connection by the role of the other. The sender connects, and the receiver accepts. `None` if both have
/// a role, if neither has one, or if the role of the one does not show that of the other.
fn role_by_neighbour(sender_node: usize, receiver_node: usize, edges: &[Edge], roles: &Roles) -> Option<NeighbourRole> {
    match (known_role(roles, sender_node), known_role(roles, receiver_node)) {
        (None, Some(receiver_role)) => {
            let also_receives = has_incoming_edge(edges, sender_node);
            let role = role_of_sender_to(receiver_role, also_receives)?;
            Some(NeighbourRole { node: sender_node, role })
        }
        (Some(DETOKENIZER), None) => {
            // A detokenizer connects to every worker and also to the main process.
            let role = if sends_to_main(sender_node, edges, roles) { WORKER } else { TOKENIZER };
            Some(NeighbourRole { node: receiver_node, role })
        }
        (Some(sender_role), None) => {
            let also_sends = has_outgoing_edge(edges, receiver_node);
            let role = role_of_receiver_from(sender_role, also_sends)?;
            Some(NeighbourRole { node: receiver_node, role })
        }
        _ => None,
    }
}

/// Role of a process that sends to one with the role `receiver_role`. Among them, only a detokenizer also receives. `None` if the receiver
/// does not show the role.
fn role_of_sender_to(receiver_role: Role, also_receives: bool) -> Option<Role> {
    match receiver_role {
        TOKENIZER | ROUTER if also_receives => Some(DETOKENIZER),
        TOKENIZER | ROUTER | DETOKENIZER | DETOKENIZER_ROUTER => Some(SCHEDULER),
        _ => None,
    }
}

/// Role of a process that receives from a scheduler or a router. Behind a scheduler, only a detokenizer also sends. `None` for a sender
/// with another role.
fn role_of_receiver_from(sender_role: Role, also_sends: bool) -> Option<Role> {
    match sender_role {
        SCHEDULER if also_sends => Some(DETOKENIZER),
        SCHEDULER => Some(TOKENIZER),
        DETOKENIZER_ROUTER => Some(DETOKENIZER),
        _ => None,
    }
}

/// Whether the process connects to a known main process.
fn sends_to_main(sender: usize, edges: &[Edge], roles: &Roles) -> bool {
    edges.iter().any(|&(from, to)| from == sender && matches!(known_role(roles, to), Some(TOKENIZER | ROUTER)))
}

/// Infers the roles of each group of connected processes of which none is named. A process that only connects is a scheduler. One that only
/// accepts is a tokenizer, and one that does both is a detokenizer. A group gets no roles if it cannot be an engine: if a connection leads
/// another way than from scheduler to detokenizer to tokenizer, or if one of its processes does not use ZMQ.
fn guess_groups_without_role(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    // `None` for a process that has a role or does not use ZMQ. Its whole group then gets no roles.
    let mut guesses: Vec<Option<Role>> = Vec::with_capacity(nodes.len());
    for node in 0..nodes.len() {
        let may_be_guessed = roles[node].is_none() && nodes[node].zmq;
        guesses.push(if may_be_guessed { role_by_edge_directions(edges, node) } else { None });
    }
    for group in connected_groups(nodes.len(), edges.iter().copied()) {
        let mut edges_of_group = edges.iter().filter(|(sender, _)| group.contains(sender));
        let is_engine =
            edges_of_group.all(|&(sender, receiver)| leads_towards_client(guesses[sender], guesses[receiver]));
        if !is_engine {
            continue;
        }
        for &node in &group {
            // A process without any connection has no guess.
            if let Some(role) = guesses[node] {
                roles[node] = Some((role, RoleSource::Sockets));
            }
        }
    }
}

/// Whether a connection between processes with these guessed roles leads from scheduler to detokenizer to tokenizer.
fn leads_towards_client(sender_role: Option<Role>, receiver_role: Option<Role>) -> bool {
    matches!(
        (sender_role, receiver_role),
        (Some(SCHEDULER), Some(DETOKENIZER | TOKENIZER)) | (Some(DETOKENIZER), Some(TOKENIZER))
    )
}

/// Role of a process by whether it connects, accepts or both. `None` without any connection.
fn role_by_edge_directions(edges: &[Edge], node: usize) -> Option<Role> {
    match (has_incoming_edge(edges, node), has_outgoing_edge(edges, node)) {
        (false, true) => Some(SCHEDULER),
        (true, true) => Some(DETOKENIZER),
        (true, false) => Some(TOKENIZER),
        (false, false) => None,
    }
}

fn has_incoming_edge(edges: &[Edge], node: usize) -> bool {
    edges.iter().any(|&(_, to)| to == node)
}

fn has_outgoing_edge(edges: &[Edge], node: usize) -> bool {
    edges.iter().any(|&(from, _)| from == node)
}

/// Gives the main process of an engine with tokenizer workers the role of a router, through which the workers' requests and output pass.
/// Leaves a role alone that the user has set.
fn mark_routers(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    for node in 0..nodes.len() {
        let Some((TOKENIZER, source)) = roles[node] else { continue };
        let is_set_by_hand = matches!(source, RoleSource::Hand);
        if !is_set_by_hand && has_workers(node, nodes, edges, roles) {
            roles[node] = Some((ROUTER, source));
        }
    }
}

/// Whether tokenizer workers belong to the engine of this main process: it starts one, is connected to one, or receives from the same
/// detokenizer as one. An edge is a connection from a sending to a receiving process.
fn has_workers(main_process: usize, nodes: &[Node], edges: &[Edge], roles: &Roles) -> bool {
    let starts_worker =
        (0..nodes.len()).any(|other| is_worker(roles, other) && nodes[other].parent == Some(main_process));
    let is_connected_to_worker = edges.iter().any(|&(sender, receiver)| {
        let sends_to_worker = sender == main_process && is_worker(roles, receiver);
        let receives_from_worker = receiver == main_process && is_worker(roles, sender);
        sends_to_worker || receives_from_worker
    });
    // A detokenizer that connects to both a worker and this process serves one engine.
    let shares_detokenizer = edges
        .iter()
        .any(|&(detokenizer, receiver)| is_worker(roles, receiver) && edges.contains(&(detokenizer, main_process)));
    starts_worker || is_connected_to_worker || shares_detokenizer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNNAMED: Node = Node { stated: None, parent: None, zmq: true };

    fn titled(role: Role, parent: Option<usize>) -> Node {
        Node { stated: Some((role, RoleSource::Title)), parent, zmq: true }
    }

    fn roles(nodes: &[Node], edges: &[Edge]) -> Vec<Option<RoleWithSource>> {
        let mut roles: Vec<_> = nodes.iter().map(|n| n.stated).collect();
        infer_roles(nodes, edges, &mut roles);
        roles
    }

    fn inferred(nodes: &[Node], edges: &[Edge]) -> Vec<Option<Role>> {
        roles(nodes, edges).into_iter().map(|r| r.map(|(role, _)| role)).collect()
    }

    #[test]
    fn a_custom_launcher_is_recognised_by_its_children() {
        let nodes = [UNNAMED, titled(SCHEDULER, Some(0)), titled(DETOKENIZER, Some(0))];
        let found = roles(&nodes, &[(1, 2), (2, 0), (1, 0)]);
        assert_eq!(found[0], Some((TOKENIZER, RoleSource::Children)));
    }

    #[test]
    fn unnamed_processes_get_roles_by_their_order() {
        let two = inferred(&[UNNAMED; 2], &[(0, 1)]);
        assert_eq!(two, [Some(SCHEDULER), Some(TOKENIZER)]);
        let three = inferred(&[UNNAMED; 4], &[(0, 2), (1, 2), (2, 3), (0, 3)]);
        assert_eq!(three, [Some(SCHEDULER), Some(SCHEDULER), Some(DETOKENIZER), Some(TOKENIZER)]);
    }

    #[test]
    fn processes_connected_both_ways_are_not_an_engine() {
        assert_eq!(inferred(&[UNNAMED; 2], &[(0, 1), (1, 0)]), [None, None]);
        assert_eq!(inferred(&[UNNAMED; 1], &[]), [None]);
        let chain = inferred(&[UNNAMED; 4], &[(0, 1), (1, 2), (2, 3)]);
        assert_eq!(chain, [None; 4], "two detokenizers in a row");
    }

    #[test]
    fn a_role_set_by_hand_determines_its_neighbours() {
        let tokenizer = Node { stated: Some((TOKENIZER, RoleSource::Hand)), ..UNNAMED };
        assert_eq!(inferred(&[UNNAMED, tokenizer], &[(0, 1)]), [Some(SCHEDULER), Some(TOKENIZER)]);
        let scheduler = Node { stated: Some((SCHEDULER, RoleSource::Hand)), ..UNNAMED };
        assert_eq!(inferred(&[UNNAMED, scheduler], &[(1, 0)]), [Some(TOKENIZER), Some(SCHEDULER)]);
    }

    #[test]
    fn workers_make_the_main_process_a_router() {
        let main = Node { stated: Some((TOKENIZER, RoleSource::CommandLine)), ..UNNAMED };
        let nodes = [main, titled(WORKER, Some(0)), titled(DETOKENIZER, Some(0))];
        assert_eq!(inferred(&nodes, &[(2, 1), (2, 0)])[0], Some(ROUTER));
        // The children of a Dynamo leader have no title; the detokenizer connects to them and to the leader.
        let nodes = [main, UNNAMED, titled(DETOKENIZER, Some(0))];
        let found = inferred(&nodes, &[(2, 1), (2, 0)]);
        assert_eq!((found[0], found[1]), (Some(ROUTER), Some(WORKER)));
    }

    proptest! {
        #[test]
        fn inference_terminates_and_keeps_stated_roles(
            stated in proptest::collection::vec((0usize..10, any::<bool>(), 0usize..8), 1..8),
            wires in proptest::collection::vec((0usize..8, 0usize..8), 0..20),
        ) {
            let count = stated.len();
            let source = |role| (role, RoleSource::Title);
            let nodes: Vec<Node> = stated
                .iter()
                .map(|&(role, zmq, parent)| Node {
                    stated: ROLES.get(role).copied().map(source),
                    parent: (parent < count).then_some(parent),
                    zmq,
                })
                .collect();
            let edges: Vec<Edge> = wires.into_iter().filter(|&(f, t)| f != t && f < count && t < count).collect();
            for (node, found) in nodes.iter().zip(roles(&nodes, &edges)) {
                match (node.stated, found) {
                    (Some((TOKENIZER, _)), Some((found, _))) => {
                        prop_assert!(matches!(found, TOKENIZER | ROUTER));
                    }
                    (Some(stated), found) => prop_assert_eq!(Some(stated), found),
                    (None, Some(_)) => prop_assert!(node.zmq, "a role without libzmq"),
                    (None, None) => {}
                }
            }
        }
    }

    #[test]
    fn an_acceptor_without_libzmq_gets_no_role() {
        let unrelated = Node { zmq: false, ..UNNAMED };
        assert_eq!(inferred(&[titled(SCHEDULER, None), unrelated], &[(0, 1)])[1], None);
    }
}
