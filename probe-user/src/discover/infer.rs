//! Inference of unknown roles from parents and connections.
//!
//! On the path to the client the receiver binds and the sender connects (PUSH connects, PULL binds). An unnamed process is therefore
//! recognised by its neighbours, and a group of unnamed processes by its order.

use super::role::{Role, RoleSource};

/// Properties of a process that inference uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) stated: Option<(Role, RoleSource)>,
    /// Index of the candidate that started it.
    pub(crate) parent: Option<usize>,
    /// Whether the process may use ZMQ.
    pub(crate) zmq: bool,
}

/// A connection: the candidate that connected, and the one that accepted.
pub(crate) type Edge = (usize, usize);

/// Infers a role for each node where possible.
pub(crate) fn roles(nodes: &[Node], edges: &[Edge]) -> Vec<Option<(Role, RoleSource)>> {
    let mut roles: Vec<_> = nodes.iter().map(|n| n.stated).collect();
    by_children(nodes, &mut roles);
    by_neighbours(nodes, edges, &mut roles);
    nameless(nodes, edges, &mut roles);
    routers(nodes, edges, &mut roles);
    roles
}

type Roles = [Option<(Role, RoleSource)>];

fn role(roles: &Roles, node: usize) -> Option<Role> {
    roles[node].map(|(role, _)| role)
}

/// The parent of a scheduler or detokenizer is the engine's main process, whatever its command.
fn by_children(nodes: &[Node], roles: &mut Roles) {
    for child in 0..nodes.len() {
        let started = matches!(nodes[child].stated, Some((r, RoleSource::Title)) if r.is_started_by_main());
        if let Some(parent) = nodes[child].parent
            && started
            && nodes[parent].zmq
            && roles[parent].is_none()
        {
            roles[parent] = Some((Role::Tokenizer, RoleSource::Children));
        }
    }
}

/// Infers unnamed processes next to named ones, until nothing changes.
fn by_neighbours(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    let receives = |node: usize| edges.iter().any(|&(_, to)| to == node);
    let sends = |node: usize| edges.iter().any(|&(from, _)| from == node);
    loop {
        let mut changed = false;
        for &(from, to) in edges {
            let (node, found) = match (role(roles, from), role(roles, to)) {
                (None, Some(Role::Detokenizer | Role::DetokenizerRouter)) => (from, Some(Role::Scheduler)),
                (None, Some(Role::Tokenizer | Role::TokenizerRouter)) => (
                    from,
                    Some(if receives(from) {
                        Role::Detokenizer
                    } else {
                        Role::Scheduler
                    }),
                ),
                (Some(Role::Scheduler), None) => {
                    (to, Some(if sends(to) { Role::Detokenizer } else { Role::Tokenizer }))
                }
                (Some(Role::DetokenizerRouter), None) => (to, Some(Role::Detokenizer)),
                (Some(Role::Detokenizer), None) => {
                    // A detokenizer connects to every worker and also to the main process.
                    let main = edges.iter().any(|&(f, t)| {
                        f == from && matches!(role(roles, t), Some(Role::Tokenizer | Role::TokenizerRouter))
                    });
                    (to, Some(if main { Role::TokenizerWorker } else { Role::Tokenizer }))
                }
                _ => continue,
            };
            if let Some(found) = found.filter(|_| nodes[node].zmq) {
                roles[node] = Some((found, RoleSource::Sockets));
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

/// Infers the roles of a group without any named process: a process that only connects is a scheduler, one that only accepts is a
/// tokenizer, and one that does both is a detokenizer. A group in any other order is not an engine.
fn nameless(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    let free: Vec<bool> = roles
        .iter()
        .enumerate()
        .map(|(i, r)| r.is_none() && nodes[i].zmq)
        .collect();
    let touches_named = |node: usize| {
        edges
            .iter()
            .any(|&(f, t)| (f == node && !free[t]) || (t == node && !free[f]))
    };
    let guess = |node: usize| {
        let receives = edges.iter().any(|&(_, to)| to == node);
        let sends = edges.iter().any(|&(from, _)| from == node);
        match (receives, sends) {
            _ if !free[node] => None,
            (false, true) => Some(Role::Scheduler),
            (true, true) => Some(Role::Detokenizer),
            (true, false) => Some(Role::Tokenizer),
            (false, false) => None,
        }
    };
    let guesses: Vec<Option<Role>> = (0..nodes.len()).map(guess).collect();
    for group in super::group::connected(nodes.len(), edges.iter().copied()) {
        let ordered = edges.iter().filter(|(f, _)| group.contains(f)).all(|&(f, t)| {
            matches!(
                (guesses[f], guesses[t]),
                (Some(Role::Scheduler), Some(Role::Detokenizer | Role::Tokenizer))
                    | (Some(Role::Detokenizer), Some(Role::Tokenizer))
            )
        });
        if ordered && !group.iter().any(|&n| touches_named(n)) {
            for &node in &group {
                roles[node] = roles[node].or(guesses[node].map(|r| (r, RoleSource::Sockets)));
            }
        }
    }
}

/// Turns the main process of an engine with tokenizer workers into a router.
fn routers(nodes: &[Node], edges: &[Edge], roles: &mut Roles) {
    for node in 0..nodes.len() {
        if role(roles, node) != Some(Role::Tokenizer) {
            continue;
        }
        let worker = |other: usize| role(roles, other) == Some(Role::TokenizerWorker);
        let started = (0..nodes.len()).any(|n| worker(n) && nodes[n].parent == Some(node));
        let linked = edges
            .iter()
            .any(|&(f, t)| (f == node && worker(t)) || (t == node && worker(f)));
        // A detokenizer that connects to both a worker and this process serves one engine.
        let beside = |n: usize| worker(n) && edges.iter().any(|&(f, t)| t == n && edges.contains(&(f, node)));
        let linked = linked || (0..nodes.len()).any(beside);
        let by_hand = matches!(roles[node], Some((_, RoleSource::Hand)));
        if (started || linked) && !by_hand {
            roles[node] = roles[node].map(|(_, source)| (Role::TokenizerRouter, source));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMELESS: Node = Node {
        stated: None,
        parent: None,
        zmq: true,
    };

    fn titled(role: Role, parent: Option<usize>) -> Node {
        Node {
            stated: Some((role, RoleSource::Title)),
            parent,
            zmq: true,
        }
    }

    fn inferred(nodes: &[Node], edges: &[Edge]) -> Vec<Option<Role>> {
        roles(nodes, edges)
            .into_iter()
            .map(|r| r.map(|(role, _)| role))
            .collect()
    }

    #[test]
    fn a_custom_launcher_is_known_by_its_children() {
        let nodes = [
            NAMELESS,
            titled(Role::Scheduler, Some(0)),
            titled(Role::Detokenizer, Some(0)),
        ];
        let found = roles(&nodes, &[(1, 2), (2, 0), (1, 0)]);
        assert_eq!(found[0], Some((Role::Tokenizer, RoleSource::Children)));
    }

    #[test]
    fn nameless_processes_are_known_by_their_order() {
        use Role::{Detokenizer, Scheduler, Tokenizer};
        let two = inferred(&[NAMELESS; 2], &[(0, 1)]);
        assert_eq!(two, [Some(Scheduler), Some(Tokenizer)]);
        let three = inferred(&[NAMELESS; 4], &[(0, 2), (1, 2), (2, 3), (0, 3)]);
        assert_eq!(
            three,
            [Some(Scheduler), Some(Scheduler), Some(Detokenizer), Some(Tokenizer)]
        );
    }

    #[test]
    fn processes_that_call_each_other_are_no_engine() {
        assert_eq!(inferred(&[NAMELESS; 2], &[(0, 1), (1, 0)]), [None, None]);
        assert_eq!(inferred(&[NAMELESS; 1], &[]), [None]);
        let chain = inferred(&[NAMELESS; 4], &[(0, 1), (1, 2), (2, 3)]);
        assert_eq!(chain, [None; 4], "two detokenizers in a row");
    }

    #[test]
    fn a_role_given_by_hand_names_the_neighbours() {
        let tokenizer = Node {
            stated: Some((Role::Tokenizer, RoleSource::Hand)),
            ..NAMELESS
        };
        assert_eq!(
            inferred(&[NAMELESS, tokenizer], &[(0, 1)]),
            [Some(Role::Scheduler), Some(Role::Tokenizer)]
        );
        let scheduler = Node {
            stated: Some((Role::Scheduler, RoleSource::Hand)),
            ..NAMELESS
        };
        assert_eq!(
            inferred(&[NAMELESS, scheduler], &[(1, 0)]),
            [Some(Role::Tokenizer), Some(Role::Scheduler)]
        );
    }

    #[test]
    fn workers_make_the_main_process_a_router() {
        let main = Node {
            stated: Some((Role::Tokenizer, RoleSource::CommandLine)),
            ..NAMELESS
        };
        let nodes = [
            main,
            titled(Role::TokenizerWorker, Some(0)),
            titled(Role::Detokenizer, Some(0)),
        ];
        assert_eq!(inferred(&nodes, &[(2, 1), (2, 0)])[0], Some(Role::TokenizerRouter));
        // The children of a Dynamo leader have no title; the detokenizer connects to them and to the leader.
        let nodes = [main, NAMELESS, titled(Role::Detokenizer, Some(0))];
        let found = inferred(&nodes, &[(2, 1), (2, 0)]);
        assert_eq!(
            (found[0], found[1]),
            (Some(Role::TokenizerRouter), Some(Role::TokenizerWorker))
        );
    }

    proptest! {
        #[test]
        fn any_wiring_ends_and_keeps_what_was_stated(
            stated in proptest::collection::vec((0usize..10, any::<bool>(), 0usize..8), 1..8),
            wires in proptest::collection::vec((0usize..8, 0usize..8), 0..20),
        ) {
            let count = stated.len();
            let source = |role| (role, RoleSource::Title);
            let nodes: Vec<Node> = stated
                .iter()
                .map(|&(role, zmq, parent)| Node {
                    stated: Role::ALL.get(role).copied().map(source),
                    parent: (parent < count).then_some(parent),
                    zmq,
                })
                .collect();
            let edges: Vec<Edge> = wires.into_iter().filter(|&(f, t)| f != t && f < count && t < count).collect();
            for (node, found) in nodes.iter().zip(roles(&nodes, &edges)) {
                match (node.stated, found) {
                    (Some((Role::Tokenizer, _)), Some((found, _))) => {
                        prop_assert!(matches!(found, Role::Tokenizer | Role::TokenizerRouter));
                    }
                    (Some(stated), found) => prop_assert_eq!(Some(stated), found),
                    (None, Some(_)) => prop_assert!(node.zmq, "a role without libzmq"),
                    (None, None) => {}
                }
            }
        }
    }

    #[test]
    fn a_stranger_that_accepts_from_an_engine_without_zmq_stays_a_stranger() {
        let stranger = Node { zmq: false, ..NAMELESS };
        assert_eq!(inferred(&[titled(Role::Scheduler, None), stranger], &[(0, 1)])[1], None);
    }
}
