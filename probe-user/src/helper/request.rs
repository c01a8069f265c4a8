//! Requests to the helper process and its replies: messages of fixed size.

use super::content::{change_to_numbers, parse_change};
use crate::programs::{Group, LoadedFacts, MessagePoints, PointSet, Refusal, TableChange};

/// Five numbers of 32 bits.
pub(crate) const REQUEST_BYTES: usize = 5 * 4;

/// Maximum length of a reply's text.
const MAX_TEXT: usize = 512;
/// Status, facts, and a text up to the end of the message.
pub(crate) const REPLY_BYTES: usize = REPLY_HEAD + MAX_TEXT;
const REPLY_HEAD: usize = 8;

// Operations.
const START: u32 = 1;
const ATTACH_GROUP: u32 = 2;
const ATTACH_UPROBES: u32 = 3;
const DETACH: u32 = 4;
const DETACH_TARGETS: u32 = 5;
const DIAG_SOCKET: u32 = 6;
const ANALYSE: u32 = 7;
const LOSSES: u32 = 8;
const THREADS: u32 = 9;

// Sets of probe points.
const MESSAGES: u32 = 1;
const POLLS: u32 = 2;
const TLS: u32 = 3;
const METHOD: u32 = 4;
const ACCEPTS: u32 = 5;

// Statuses.
const DONE: u32 = 0;
const REFUSED: u32 = 1;
const NO_TYPES: u32 = 2;
const CONTENT: u32 = 3;

/// A request. The reply has a descriptor or content to those marked so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelperRequest {
    /// The first request, with the descriptor of a second connection. The reply has the ring of the loaded programs (descriptor).
    Start,
    /// Attaches a group of programs for all targets.
    AttachGroup(Group),
    /// Attaches a set of probe points to a process, in the library whose descriptor comes with the request.
    AttachUprobes {
        /// Index of the target.
        target: u32,
        pid: u32,
        set: PointSet,
    },
    /// Analyses the library whose descriptor comes with the request, so that a later [`Self::AttachUprobes`] for it takes a moment.
    Analyse { pid: u32, set: PointSet },
    /// Detaches the uprobes of a target.
    Detach { target: u32 },
    /// Detaches the uprobes of all targets.
    DetachTargets,
    /// Changes a table of the programs.
    ChangeTable(TableChange),
    /// Numbers of lost observations (content).
    Losses,
    /// Accounting of all threads (content).
    Threads,
    /// A netlink socket for socket diagnostics in the network namespace of a process (descriptor).
    DiagSocket { pid: u32 },
}

impl HelperRequest {
    /// Encodes the request for the helper.
    pub(crate) fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let numbers = match *self {
            Self::Start => [START, 0, 0, 0, 0],
            Self::AttachGroup(group) => [ATTACH_GROUP, group as u32, 0, 0, 0],
            Self::AttachUprobes { target, pid, set } => {
                let CodedPointSet { kind, flags } = CodedPointSet::encode(set);
                [ATTACH_UPROBES, target, pid, kind, flags]
            }
            Self::Analyse { pid, set } => {
                let CodedPointSet { kind, flags } = CodedPointSet::encode(set);
                [ANALYSE, 0, pid, kind, flags]
            }
            Self::Detach { target } => [DETACH, target, 0, 0, 0],
            Self::ChangeTable(change) => change_to_numbers(change),
            Self::Losses => [LOSSES, 0, 0, 0, 0],
            Self::Threads => [THREADS, 0, 0, 0, 0],
            Self::DetachTargets => [DETACH_TARGETS, 0, 0, 0, 0],
            Self::DiagSocket { pid } => [DIAG_SOCKET, 0, pid, 0, 0],
        };
        let mut bytes = [0; REQUEST_BYTES];
        for (to, number) in bytes.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Parses a message; `None` if it is no request.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST_BYTES] = bytes.try_into().ok()?;
        let mut numbers = [0_u32; REQUEST_BYTES / 4];
        for (number, from) in numbers.iter_mut().zip(bytes.chunks_exact(4)) {
            *number = u32::from_le_bytes(from.try_into().ok()?);
        }
        Some(match numbers {
            [START, 0, 0, 0, 0] => Self::Start,
            [ATTACH_GROUP, number, 0, 0, 0] => {
                Self::AttachGroup(*Group::ALL.iter().find(|group| **group as u32 == number)?)
            }
            [ATTACH_UPROBES, target, pid, kind, flags] => {
                Self::AttachUprobes { target, pid, set: CodedPointSet { kind, flags }.decode()? }
            }
            [ANALYSE, 0, pid, kind, flags] => Self::Analyse { pid, set: CodedPointSet { kind, flags }.decode()? },
            [DETACH, target, 0, 0, 0] => Self::Detach { target },
            [DETACH_TARGETS, 0, 0, 0, 0] => Self::DetachTargets,
            [DIAG_SOCKET, 0, pid, 0, 0] => Self::DiagSocket { pid },
            [LOSSES, 0, 0, 0, 0] => Self::Losses,
            [THREADS, 0, 0, 0, 0] => Self::Threads,
            // Operations of changes have numbers of their own.
            change => Self::ChangeTable(parse_change(change)?),
        })
    }
}

/// A set of probe points in a message.
struct CodedPointSet {
    kind: u32,
    flags: u32,
}

impl CodedPointSet {
    fn encode(set: PointSet) -> Self {
        match set {
            PointSet::Messages(MessagePoints { processed, buffers }) => {
                Self { kind: MESSAGES, flags: u32::from(processed) | u32::from(buffers) << 1 }
            }
            PointSet::Polls { with_returns } => Self { kind: POLLS, flags: with_returns.into() },
            PointSet::Tls => Self { kind: TLS, flags: 0 },
            PointSet::Method => Self { kind: METHOD, flags: 0 },
            PointSet::Accepts => Self { kind: ACCEPTS, flags: 0 },
        }
    }

    /// The set; `None` if the kind or a flag is unknown.
    fn decode(&self) -> Option<PointSet> {
        let Self { kind, flags } = *self;
        Some(match (kind, flags) {
            (MESSAGES, 0..=3) => {
                PointSet::Messages(MessagePoints { processed: flags & 1 != 0, buffers: flags & 2 != 0 })
            }
            (POLLS, 0..=1) => PointSet::Polls { with_returns: flags != 0 },
            (TLS, 0) => PointSet::Tls,
            (METHOD, 0) => PointSet::Method,
            (ACCEPTS, 0) => PointSet::Accepts,
            _ => return None,
        })
    }
}

/// Maximum number of bytes of content in one message.
const MAX_PIECE: usize = 32 << 10;
/// Maximum size of a message with content.
pub(crate) const PIECE_BYTES: usize = REPLY_HEAD + MAX_PIECE;

/// A part of the content that a reply has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContentPiece<'b> {
    pub(crate) content: &'b [u8],
    pub(crate) is_last: bool,
}

/// Messages with this content, of which the last is marked.
pub(crate) fn content_to_pieces(content: &[u8]) -> Vec<Vec<u8>> {
    // Empty content is one empty piece.
    let mut pieces = Vec::new();
    let mut rest = content;
    loop {
        let (part, behind) = rest.split_at(rest.len().min(MAX_PIECE));
        rest = behind;
        let is_last = rest.is_empty();
        pieces.push([&CONTENT.to_le_bytes()[..], &u32::from(is_last).to_le_bytes(), part].concat());
        if is_last {
            return pieces;
        }
    }
}

/// Parses a message with content; `None` if it has none.
pub(crate) fn parse_piece(bytes: &[u8]) -> Option<ContentPiece<'_>> {
    let (status, rest) = bytes.split_first_chunk()?;
    let (is_last, content) = rest.split_first_chunk()?;
    if u32::from_le_bytes(*status) != CONTENT {
        return None;
    }
    match u32::from_le_bytes(*is_last) {
        0 => Some(ContentPiece { content, is_last: false }),
        1 => Some(ContentPiece { content, is_last: true }),
        _ => None,
    }
}

/// The result of a request. Only that for the first has facts.
pub(crate) type HelperReply = Result<LoadedFacts, Refusal>;

/// Encodes a reply; the reason of a refusal may be cut.
pub(crate) fn reply_to_bytes(reply: &HelperReply) -> Vec<u8> {
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
    // A cut character is replaced when it is read.
    bytes.extend_from_slice(&text.as_bytes()[..text.len().min(MAX_TEXT)]);
    bytes
}

/// Parses a reply; `None` if it is none.
pub(crate) fn parse_reply(bytes: &[u8]) -> Option<HelperReply> {
    let (head, text) = bytes.split_at_checked(REPLY_HEAD)?;
    let (status, head) = head.split_first_chunk()?;
    let (facts, _) = head.split_first_chunk()?;
    let text = String::from_utf8_lossy(text).into_owned();
    match u32::from_le_bytes(*status) {
        DONE => {
            let facts = u32::from_le_bytes(*facts);
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

    use super::super::content::tests::any_change;
    use super::*;

    fn any_set() -> impl Strategy<Value = PointSet> {
        prop_oneof![
            (any::<bool>(), any::<bool>())
                .prop_map(|(processed, buffers)| PointSet::Messages(MessagePoints { processed, buffers })),
            any::<bool>().prop_map(|with_returns| PointSet::Polls { with_returns }),
            Just(PointSet::Tls),
            Just(PointSet::Method),
            Just(PointSet::Accepts),
        ]
    }

    fn any_request() -> impl Strategy<Value = HelperRequest> {
        prop_oneof![
            Just(HelperRequest::Start),
            Just(HelperRequest::Losses),
            Just(HelperRequest::Threads),
            any_change().prop_map(HelperRequest::ChangeTable),
            prop::sample::select(Group::ALL.to_vec()).prop_map(HelperRequest::AttachGroup),
            (any::<u32>(), any::<u32>(), any_set()).prop_map(|(target, pid, set)| HelperRequest::AttachUprobes {
                target,
                pid,
                set
            }),
            (any::<u32>(), any_set()).prop_map(|(pid, set)| HelperRequest::Analyse { pid, set }),
            any::<u32>().prop_map(|target| HelperRequest::Detach { target }),
            Just(HelperRequest::DetachTargets),
            any::<u32>().prop_map(|pid| HelperRequest::DiagSocket { pid }),
        ]
    }

    proptest! {
        #[test]
        fn requests_round_trip(request in any_request()) {
            prop_assert_eq!(HelperRequest::parse(&request.to_bytes()), Some(request));
        }

        #[test]
        fn a_message_is_a_request_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..600), operation in 0_u8..28) {
            if let Some(first) = bytes.first_mut() {
                *first = operation;
            }
            prop_assert!(bytes.len() == REQUEST_BYTES || HelperRequest::parse(&bytes).is_none());
            bytes.resize(REQUEST_BYTES, 0);
            bytes[1..4].fill(0);
            if let Some(request) = HelperRequest::parse(&bytes) {
                prop_assert_eq!(request.to_bytes().to_vec(), bytes.clone());
            }
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
    fn content_is_sent_in_pieces_of_which_the_last_is_marked() {
        for length in [0, 1, MAX_PIECE, MAX_PIECE + 1, 3 * MAX_PIECE] {
            let content: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let pieces = content_to_pieces(&content);
            let parsed: Vec<ContentPiece<'_>> = pieces.iter().map(|piece| parse_piece(piece).unwrap()).collect();
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES));
            assert!(parsed.iter().rev().skip(1).all(|piece| !piece.is_last) && parsed.last().unwrap().is_last);
            assert_eq!(parsed.iter().flat_map(|piece| piece.content).copied().collect::<Vec<u8>>(), content);
        }
        assert_eq!(parse_piece(&reply_to_bytes(&Ok(LoadedFacts::default()))), None);
    }

    #[test]
    fn messages_of_another_size_and_unknown_numbers_are_no_requests() {
        let valid = HelperRequest::Start.to_bytes();
        assert!(HelperRequest::parse(&valid[1..]).is_none());
        assert!(HelperRequest::parse(&[]).is_none());
        let set = PointSet::Polls { with_returns: false };
        let attach = HelperRequest::AttachUprobes { target: 0, pid: 1, set }.to_bytes();
        for (at, wrong) in [(0, 99), (12, 0), (12, 6), (16, 2)] {
            let mut bytes = attach;
            bytes[at] = wrong;
            assert!(HelperRequest::parse(&bytes).is_none(), "{at}: {wrong}");
        }
    }
}
