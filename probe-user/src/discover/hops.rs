//! Content and direction of each connection.

use std::collections::{BTreeMap, BTreeSet};

use super::links::Link;
use super::role::{Role, RoleSource};
use super::topology::{Carries, Confidence};

/// Interpretation of a link. `reversed`: the content flows from the side that bound to the side that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) reversed: bool,
    pub(crate) carries: Carries,
    pub(crate) confidence: Confidence,
}

impl Reading {
    fn forward(carries: Carries, confidence: Confidence) -> Self {
        Self {
            reversed: false,
            carries,
            confidence,
        }
    }

    fn requests_back(confidence: Confidence) -> Self {
        Self {
            reversed: true,
            carries: Carries::Requests,
            confidence,
        }
    }
}

/// Removes links of mere clients. An engine binds all its sockets with one transport. If processes with known roles reach it over socket
/// files, others that connect over TCP are clients. There may be thousands, and their ends may be invisible.
pub(crate) fn without_clients(links: &[Link], stated: &[Option<(Role, RoleSource)>]) -> Vec<Link> {
    let is_named = |link: &Link| {
        link.connector
            .is_some_and(|connector| stated[connector.candidate].is_some())
    };
    let way = |link: &Link| (link.acceptor.candidate, transport(&link.endpoint).map(str::to_owned));
    let named: BTreeSet<_> = links.iter().filter(|link| is_named(link)).map(way).collect();
    let is_client = |link: &Link| {
        let (acceptor, transport) = way(link);
        let reached = named.iter().any(|(candidate, _)| *candidate == acceptor);
        reached && !is_named(link) && !named.contains(&(acceptor, transport))
    };
    links.iter().filter(|link| !is_client(link)).cloned().collect()
}

/// Interprets every link. `None` for a connection that is not a hop of the output or request path.
pub(crate) fn read(links: &[Link], roles: &[Option<(Role, RoleSource)>]) -> Vec<Option<Reading>> {
    let bound = Bound::of(links, roles);
    links.iter().map(|link| one(link, roles, &bound)).collect()
}

fn one(link: &Link, roles: &[Option<(Role, RoleSource)>], bound: &Bound<'_>) -> Option<Reading> {
    use Role::{Detokenizer, DetokenizerRouter, DpController, Scheduler, Tokenizer, TokenizerRouter, TokenizerWorker};
    let (to, to_source) = roles[link.acceptor.candidate]?;
    let Some(connector) = link.connector else {
        return one_sided(to);
    };
    let (from, from_source) = roles[connector.candidate]?;
    let stated = from_source < RoleSource::Sockets && to_source < RoleSource::Sockets;
    let sure = if stated {
        Confidence::Certain
    } else {
        Confidence::Inferred
    };
    match (from, to) {
        (Scheduler, Detokenizer | DetokenizerRouter)
        | (DetokenizerRouter, Detokenizer)
        | (Detokenizer, Tokenizer | TokenizerRouter | TokenizerWorker)
        | (TokenizerRouter, TokenizerWorker) => Some(Reading::forward(Carries::Output, sure)),
        (Scheduler, Tokenizer | TokenizerRouter) => bound.scheduler_to_main(link, sure),
        // Sockets that receive requests also connect: to the main process, or to the controller in front of the schedulers.
        (DpController, Tokenizer | TokenizerRouter) | (Scheduler, DpController) => Some(Reading::requests_back(sure)),
        (TokenizerWorker, TokenizerRouter) => Some(Reading::forward(Carries::Requests, sure)),
        _ => None,
    }
}

/// A process and one of its bound endpoints.
type Endpoint<'a> = (usize, &'a str);

/// Roles that connect to each bound endpoint.
struct Bound<'a>(BTreeMap<Endpoint<'a>, BTreeSet<Role>>);

impl<'a> Bound<'a> {
    fn of(links: &'a [Link], roles: &[Option<(Role, RoleSource)>]) -> Self {
        let mut bound: BTreeMap<Endpoint<'a>, BTreeSet<Role>> = BTreeMap::new();
        for link in links {
            if let Some((role, _)) = link.connector.and_then(|c| roles[c.candidate]) {
                bound
                    .entry((link.acceptor.candidate, &link.endpoint))
                    .or_default()
                    .insert(role);
            }
        }
        Self(bound)
    }

    /// Schedulers connect to several sockets of the main process: output, requests, RPC, metrics. The output socket is the one that
    /// detokenizers connect to as well (they are started even where they stay idle).
    fn scheduler_to_main(&self, link: &Link, sure: Confidence) -> Option<Reading> {
        let own = (link.acceptor.candidate, link.endpoint.as_str());
        let with = |role: Role| {
            let of_acceptor = self.0.iter().filter(|((acceptor, _), _)| *acceptor == own.0);
            of_acceptor
                .filter(|(_, from)| from.contains(&role))
                .map(|(at, _)| *at)
                .collect::<Vec<Endpoint<'_>>>()
        };
        let output = with(Role::Detokenizer);
        if output.contains(&own) {
            return Some(Reading::forward(Carries::Output, sure));
        }
        let others = with(Role::Scheduler)
            .into_iter()
            .filter(|at| !output.contains(at))
            .count();
        let Some((_, output)) = output.first() else {
            let carries = if others == 1 { Carries::Output } else { Carries::Unknown };
            return Some(Reading::forward(carries, Confidence::Inferred));
        };
        // An engine binds all its sockets with one transport; the transfer server of a prefill engine is TCP.
        if transport(output) != transport(own.1) {
            return None;
        }
        if others == 1 && with(Role::DpController).is_empty() {
            return Some(Reading::requests_back(Confidence::Inferred));
        }
        Some(Reading::forward(Carries::Unknown, Confidence::Inferred))
    }
}

/// Transport of an endpoint: `ipc` or `tcp`.
fn transport(endpoint: &str) -> Option<&str> {
    endpoint.split(':').next()
}

/// Interprets a link of which only the accepting side is visible.
fn one_sided(acceptor: Role) -> Option<Reading> {
    let carries = match acceptor {
        Role::Detokenizer | Role::DetokenizerRouter | Role::TokenizerWorker => Carries::Output,
        Role::Tokenizer | Role::TokenizerRouter => Carries::Unknown,
        Role::Scheduler | Role::DpController => return None,
    };
    Some(Reading::forward(carries, Confidence::Inferred))
}

#[cfg(test)]
mod tests {
    use super::super::links::Held;
    use super::*;

    fn link(connector: usize, acceptor: usize, endpoint: &str) -> Link {
        let held = |candidate| Held {
            candidate,
            fd: 9,
            inode: 9,
        };
        Link {
            acceptor: held(acceptor),
            endpoint: endpoint.into(),
            connector: Some(held(connector)),
        }
    }

    fn titled<const N: usize>(roles: [Role; N]) -> [Option<(Role, RoleSource)>; N] {
        roles.map(|role| Some((role, RoleSource::Title)))
    }

    #[test]
    fn the_detokenizer_shows_which_socket_is_for_output() {
        let roles = titled([Role::Scheduler, Role::Detokenizer, Role::Tokenizer]);
        let links = [
            link(0, 1, "detok"),
            link(0, 2, "ipc:tok"),
            link(1, 2, "ipc:tok"),
            link(0, 2, "ipc:input"),
        ];
        let read: Vec<_> = read(&links, &roles)
            .into_iter()
            .map(|r| r.map(|r| (r.reversed, r.carries, r.confidence)))
            .collect();
        let sure = Some((false, Carries::Output, Confidence::Certain));
        assert_eq!(
            read,
            [sure, sure, sure, Some((true, Carries::Requests, Confidence::Inferred))]
        );
    }

    #[test]
    fn without_a_detokenizer_one_socket_is_output_and_several_are_open() {
        let roles = titled([Role::Scheduler, Role::Tokenizer]);
        let one = read(&[link(0, 1, "tok")], &roles);
        assert_eq!(one[0].unwrap().carries, Carries::Output);
        let two = read(&[link(0, 1, "tok"), link(0, 1, "input")], &roles);
        assert_eq!(two.map_carries(), [Carries::Unknown, Carries::Unknown]);
    }

    #[test]
    fn who_comes_over_tcp_to_an_engine_on_socket_files_is_a_client() {
        let stated = [Role::Scheduler, Role::Tokenizer].map(|role| Some((role, RoleSource::Title)));
        let stated = [&stated[..], &[None]].concat();
        let unseen = |endpoint: &str| Link {
            connector: None,
            ..link(0, 1, endpoint)
        };
        let output = link(0, 1, "ipc:tok");
        let clients = [unseen("tcp:30000"), link(2, 1, "tcp:30000")];
        let others = [unseen("ipc:tok"), link(2, 1, "ipc:tok")];
        let all = [&[output.clone()][..], &clients, &others].concat();
        assert_eq!(without_clients(&all, &stated), [&[output][..], &others].concat());
        // If no process has a known role, every peer may belong to the engine.
        assert_eq!(without_clients(&clients, &stated), clients);
    }

    #[test]
    fn several_sockets_besides_output_cannot_be_told_apart() {
        let roles = titled([Role::Scheduler, Role::Detokenizer, Role::Tokenizer, Role::DpController]);
        let rpc = [link(1, 2, "ipc:tok"), link(0, 2, "ipc:input"), link(0, 2, "ipc:rpc")];
        assert_eq!(
            read(&rpc, &roles).map_carries(),
            [Carries::Output, Carries::Unknown, Carries::Unknown]
        );
        let dp = [link(1, 2, "ipc:tok"), link(3, 2, "ipc:input"), link(0, 2, "ipc:rpc")];
        assert_eq!(
            read(&dp, &roles).map_carries(),
            [Carries::Output, Carries::Requests, Carries::Unknown]
        );
        let bootstrap = [link(1, 2, "ipc:tok"), link(0, 2, "tcp:8998")];
        assert_eq!(read(&bootstrap, &roles)[1], None);
    }

    #[test]
    fn schedulers_among_themselves_are_no_hop() {
        let [a, b] = titled([Role::Scheduler; 2]);
        let roles = [a, b, None];
        assert_eq!(read(&[link(0, 1, "kv"), link(0, 2, "x")], &roles), [None, None]);
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
