//! What each connection carries, and which way.

use std::collections::BTreeSet;

use super::links::Link;
use super::role::{Role, RoleSource};
use super::topology::{Carries, Confidence};

/// How a link is read: `reversed` when what it carries flows from the side that bound to the side that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) reversed: bool,
    pub(crate) carries: Carries,
    pub(crate) confidence: Confidence,
}

/// Reads every link; `None` for a connection that is no hop of the token or request path.
pub(crate) fn read(links: &[Link], roles: &[Option<(Role, RoleSource)>]) -> Vec<Option<Reading>> {
    // The tokenizer binds several sockets that schedulers connect to; the one for output is the one that
    // detokenizers connect to as well (they are started even where they stay idle).
    let with_detokenizer: BTreeSet<(usize, &str)> = links
        .iter()
        .filter(|l| {
            l.connector
                .is_some_and(|c| matches!(roles[c.candidate], Some((Role::Detokenizer, _))))
        })
        .map(|l| (l.acceptor.candidate, l.endpoint.as_str()))
        .collect();
    let endpoints: BTreeSet<(usize, &str)> = links
        .iter()
        .map(|l| (l.acceptor.candidate, l.endpoint.as_str()))
        .collect();
    links
        .iter()
        .map(|link| {
            let (to, to_source) = roles[link.acceptor.candidate]?;
            let Some(connector) = link.connector else {
                return one_sided(to);
            };
            let (from, from_source) = roles[connector.candidate]?;
            let output = with_detokenizer.contains(&(link.acceptor.candidate, link.endpoint.as_str()));
            let elsewhere = with_detokenizer
                .iter()
                .any(|(acceptor, _)| *acceptor == link.acceptor.candidate);
            let sockets = endpoints
                .iter()
                .filter(|(acceptor, _)| *acceptor == link.acceptor.candidate)
                .count();
            let stated = from_source < RoleSource::Sockets && to_source < RoleSource::Sockets;
            let sure = if stated {
                Confidence::Certain
            } else {
                Confidence::Inferred
            };
            let forward = |carries, confidence| {
                Some(Reading {
                    reversed: false,
                    carries,
                    confidence,
                })
            };
            let requests = |confidence| {
                Some(Reading {
                    reversed: true,
                    carries: Carries::Requests,
                    confidence,
                })
            };
            match (from, to) {
                (Role::Scheduler, Role::Detokenizer | Role::DetokenizerRouter)
                | (Role::DetokenizerRouter, Role::Detokenizer)
                | (Role::Detokenizer, Role::Tokenizer | Role::TokenizerRouter | Role::TokenizerWorker)
                | (Role::TokenizerRouter, Role::TokenizerWorker) => forward(Carries::Output, sure),
                (Role::Scheduler, Role::Tokenizer | Role::TokenizerRouter) if output => forward(Carries::Output, sure),
                (Role::Scheduler, Role::Tokenizer | Role::TokenizerRouter) if elsewhere => {
                    requests(Confidence::Inferred)
                }
                (Role::Scheduler, Role::Tokenizer | Role::TokenizerRouter) if sockets == 1 => {
                    forward(Carries::Output, Confidence::Inferred)
                }
                (Role::Scheduler, Role::Tokenizer | Role::TokenizerRouter) => {
                    forward(Carries::Unknown, Confidence::Inferred)
                }
                // The scheduler's sockets for requests connect too, to the controller or straight to the main process.
                (Role::DpController, Role::Tokenizer | Role::TokenizerRouter)
                | (Role::Scheduler, Role::DpController) => requests(sure),
                (Role::TokenizerWorker, Role::TokenizerRouter) => forward(Carries::Requests, sure),
                _ => None,
            }
        })
        .collect()
}

/// Only the accepting side is seen.
fn one_sided(acceptor: Role) -> Option<Reading> {
    let carries = match acceptor {
        Role::Detokenizer | Role::DetokenizerRouter | Role::TokenizerWorker => Carries::Output,
        Role::Tokenizer | Role::TokenizerRouter => Carries::Unknown,
        Role::Scheduler | Role::DpController => return None,
    };
    Some(Reading {
        reversed: false,
        carries,
        confidence: Confidence::Inferred,
    })
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
            link(0, 2, "tok"),
            link(1, 2, "tok"),
            link(0, 2, "input"),
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
