//! Requests to the helper process and its replies: messages of fixed size.

use probe_ebpf::Cookie;

use crate::programs::{Batch, Group, LoadedFacts, Points, Refusal, WITH_TLS};

/// Maximum number of probe points in a request. A library has at most 8 with the same program.
pub(crate) const MAX_POINTS: usize = 16;
/// Six numbers of 32 bits, then offsets and cookies.
pub(crate) const REQUEST_BYTES: usize = HEAD_BYTES + MAX_POINTS * POINT_BYTES;
const HEAD_BYTES: usize = 6 * 4;
const POINT_BYTES: usize = 16;

/// Maximum length of a reply's text.
const MAX_TEXT: usize = 512;
/// Status, facts, and a text up to the end of the message.
pub(crate) const REPLY_BYTES: usize = REPLY_HEAD + MAX_TEXT;
const REPLY_HEAD: usize = 8;

// Operations.
const MAPS: u32 = 1;
const ATTACH_GROUP: u32 = 2;
const ATTACH_UPROBES: u32 = 3;
const DETACH: u32 = 4;
const DETACH_TARGETS: u32 = 5;
const DIAG_SOCKET: u32 = 6;

// Statuses.
const DONE: u32 = 0;
const REFUSED: u32 = 1;
const NO_TYPES: u32 = 2;

/// A request. The reply has a descriptor or several to those marked so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The maps of the loaded programs (descriptors).
    Maps,
    /// Attaches a group of programs for all targets.
    AttachGroup(Group),
    /// Attaches a program to a process, at points in the file whose descriptor comes with the request.
    AttachUprobes {
        /// Index of the target.
        target: u32,
        pid: u32,
        batch: Batch,
    },
    /// Detaches the uprobes of a target.
    Detach { target: u32 },
    /// Detaches the uprobes of all targets.
    DetachTargets,
    /// A netlink socket for socket diagnostics in the network namespace of a process (descriptor).
    DiagSocket { pid: u32 },
}

impl Request {
    pub(crate) fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut head = [0_u32; HEAD_BYTES / 4];
        let mut points: &[(u64, Cookie)] = &[];
        match self {
            Self::Maps => head[0] = MAPS,
            Self::AttachGroup(group) => (head[0], head[1]) = (ATTACH_GROUP, *group as u32),
            Self::AttachUprobes { target, pid, batch } => {
                let program = WITH_TLS.iter().position(|name| *name == batch.program).unwrap_or(WITH_TLS.len());
                let count = batch.points.len() as u32;
                head = [ATTACH_UPROBES, *target, *pid, program as u32, u32::from(batch.returns), count];
                points = &batch.points;
            }
            Self::Detach { target } => (head[0], head[1]) = (DETACH, *target),
            Self::DetachTargets => head[0] = DETACH_TARGETS,
            Self::DiagSocket { pid } => (head[0], head[2]) = (DIAG_SOCKET, *pid),
        }
        let mut bytes = [0; REQUEST_BYTES];
        for (to, number) in bytes.chunks_exact_mut(4).zip(head) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        for (to, (offset, cookie)) in bytes[HEAD_BYTES..].chunks_exact_mut(POINT_BYTES).zip(points) {
            to[..8].copy_from_slice(&offset.to_le_bytes());
            to[8..].copy_from_slice(&cookie.0.to_le_bytes());
        }
        bytes
    }

    /// Parses a message; `None` if it is no request.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().ok()?;
        let mut head = [0_u32; HEAD_BYTES / 4];
        for (number, from) in head.iter_mut().zip(bytes.chunks_exact(4)) {
            *number = u32::from_le_bytes(from.try_into().ok()?);
        }
        let [operation, first, pid, program, returns, count] = head;
        Some(match operation {
            MAPS => Self::Maps,
            ATTACH_GROUP => Self::AttachGroup(*Group::ALL.iter().find(|group| **group as u32 == first)?),
            ATTACH_UPROBES => {
                let program = *WITH_TLS.get(program as usize)?;
                let count = usize::try_from(count).ok().filter(|count| (1..=MAX_POINTS).contains(count))?;
                let mut points = Points::with_capacity(count);
                for point in bytes[HEAD_BYTES..].chunks_exact(POINT_BYTES).take(count) {
                    let offset = u64::from_le_bytes(point[..8].try_into().ok()?);
                    points.push((offset, Cookie(u64::from_le_bytes(point[8..].try_into().ok()?))));
                }
                let returns = match returns {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Self::AttachUprobes { target: first, pid, batch: Batch { program, returns, points } }
            }
            DETACH => Self::Detach { target: first },
            DETACH_TARGETS => Self::DetachTargets,
            DIAG_SOCKET => Self::DiagSocket { pid },
            _ => return None,
        })
    }
}

/// The result of a request. Only that for the maps has facts.
pub(crate) type Reply = Result<LoadedFacts, Refusal>;

pub(crate) fn reply_to_bytes(reply: &Reply) -> Vec<u8> {
    let mut facts = &LoadedFacts::default();
    let mut text = "";
    let status = match reply {
        Ok(known) => {
            facts = known;
            DONE
        }
        Err(Refusal::Kernel(why)) => {
            text = why;
            REFUSED
        }
        Err(Refusal::Types(what)) => {
            text = what;
            NO_TYPES
        }
    };
    let facts = u32::from(facts.observes_sleep) | u32::from(facts.uses_perf_events) << 1;
    let mut bytes = Vec::with_capacity(REPLY_BYTES);
    bytes.extend_from_slice(&status.to_le_bytes());
    bytes.extend_from_slice(&facts.to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_TEXT)]);
    bytes
}

/// Parses a reply; `None` if it is none.
pub(crate) fn parse_reply(bytes: &[u8]) -> Option<Reply> {
    let (head, text) = bytes.split_at_checked(REPLY_HEAD)?;
    let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let text = String::from_utf8_lossy(text).into_owned();
    match number(0)? {
        DONE => {
            let facts = number(4)?;
            Some(Ok(LoadedFacts { observes_sleep: facts & 1 != 0, uses_perf_events: facts & 2 != 0 }))
        }
        REFUSED => Some(Err(Refusal::Kernel(text))),
        NO_TYPES => Some(Err(Refusal::Types(text))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_request() -> impl Strategy<Value = Request> {
        let points = prop::collection::vec((any::<u64>(), any::<u64>().prop_map(Cookie)), 1..=MAX_POINTS);
        prop_oneof![
            Just(Request::Maps),
            prop::sample::select(Group::ALL.to_vec()).prop_map(Request::AttachGroup),
            (any::<u32>(), any::<u32>(), 0..WITH_TLS.len(), any::<bool>(), points).prop_map(
                |(target, pid, program, returns, points)| {
                    let batch = Batch { program: WITH_TLS[program], returns, points };
                    Request::AttachUprobes { target, pid, batch }
                }
            ),
            any::<u32>().prop_map(|target| Request::Detach { target }),
            Just(Request::DetachTargets),
            any::<u32>().prop_map(|pid| Request::DiagSocket { pid }),
        ]
    }

    proptest! {
        #[test]
        fn requests_round_trip(request in any_request()) {
            prop_assert_eq!(Request::parse(&request.to_bytes()), Some(request));
        }

        #[test]
        fn any_message_is_a_bounded_request_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..600), operation in 0_u8..8) {
            if let Some(first) = bytes.first_mut() {
                *first = operation;
            }
            if let Some(Request::AttachUprobes { batch, .. }) = Request::parse(&bytes) {
                prop_assert!((1..=MAX_POINTS).contains(&batch.points.len()));
            }
            bytes.resize(REQUEST_BYTES, 0);
            bytes[1..4].fill(0);
            let _ = Request::parse(&bytes);
            let _ = parse_reply(&bytes);
        }

        #[test]
        fn replies_round_trip(text in "\\PC{0,100}", observes_sleep: bool, uses_perf_events: bool) {
            let facts = LoadedFacts { observes_sleep, uses_perf_events };
            for reply in [Ok(facts), Err(Refusal::Kernel(text.clone())), Err(Refusal::Types(text))] {
                prop_assert_eq!(parse_reply(&reply_to_bytes(&reply)), Some(reply));
            }
        }
    }

    #[test]
    fn messages_of_another_size_and_unknown_numbers_are_no_requests() {
        let valid = Request::Maps.to_bytes();
        assert!(Request::parse(&valid[1..]).is_none());
        assert!(Request::parse(&[]).is_none());
        let batch = Batch { program: WITH_TLS[0], returns: false, points: vec![(7, Cookie(1))] };
        let attach = Request::AttachUprobes { target: 0, pid: 1, batch }.to_bytes();
        for (at, wrong) in [(0, 99), (12, WITH_TLS.len() as u8), (16, 2), (20, 0), (20, 1 + MAX_POINTS as u8)] {
            let mut bytes = attach;
            bytes[at] = wrong;
            assert!(Request::parse(&bytes).is_none(), "{at}: {wrong}");
        }
    }
}
