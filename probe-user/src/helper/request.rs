//! Requests to the helper process and its replies: messages of bounded size.

use serde::{Deserialize, Serialize};

use crate::message::{byte_string, encode_message};
use crate::programs::{Group, LoadedFacts, PointSet, Refusal, TableChange};

/// Maximum size of a request.
pub(crate) const REQUEST_BYTES: usize = 128;

/// Maximum length of a refusal's text.
const MAX_TEXT: usize = 512;
/// Maximum size of a reply without content.
pub(crate) const REPLY_BYTES: usize = MAX_TEXT + 128;

/// A request. The reply has a descriptor or content to those marked so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A message of the helper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HelperReply {
    /// The request was executed. Only the first one has facts.
    Done(LoadedFacts),
    Refused(Refusal),
    /// A part of the content that was asked for.
    Content {
        #[serde(with = "byte_string")]
        content: Vec<u8>,
        is_last: bool,
    },
}

impl HelperReply {
    /// The reply to a request. Cuts the reason of a refusal to [`MAX_TEXT`] bytes, so that the reply fits into [`REPLY_BYTES`].
    pub(crate) fn from_result(result: Result<LoadedFacts, Refusal>) -> Self {
        match result {
            Ok(facts) => Self::Done(facts),
            Err(mut refusal) => {
                let (Refusal::Kernel(text) | Refusal::Types(text)) = &mut refusal;
                text.truncate(text.floor_char_boundary(MAX_TEXT));
                Self::Refused(refusal)
            }
        }
    }
}

/// Maximum number of bytes of content in one message.
const MAX_PIECE: usize = 32 << 10;
/// Maximum size of a message with content.
pub(crate) const PIECE_BYTES: usize = MAX_PIECE + 64;

/// Splits content into encoded messages of bounded size. The last one says so.
pub(crate) fn encode_content_in_pieces(content: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = content;
    // Empty content becomes one empty piece.
    loop {
        let (piece, after) = rest.split_at(rest.len().min(MAX_PIECE));
        let is_last = after.is_empty();
        pieces.push(encode_message(&HelperReply::Content { content: piece.to_vec(), is_last }));
        if is_last {
            return pieces;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use probe_ebpf::Thread;
    use probe_ebpf::egress::Serves;

    use super::*;
    use crate::message::decode_message;
    use crate::programs::{MessagePoints, ThreadEntry};

    const MAX: u32 = u32::MAX;

    #[test]
    fn the_longest_requests_fit_and_are_read_as_they_were_sent() {
        let set = PointSet::Messages(MessagePoints { processed: true, buffers: false });
        for request in [
            HelperRequest::Start,
            HelperRequest::AttachGroup(Group::KernelPolls),
            HelperRequest::AttachUprobes { target: MAX, pid: MAX, set },
            HelperRequest::ChangeTable(TableChange::EnterZmtp { target: MAX, inode: u64::MAX }),
            HelperRequest::ChangeTable(TableChange::Serve {
                target: MAX,
                serves: Serves { written: MAX, read: MAX - 1, callers: MAX - 2 },
            }),
        ] {
            let bytes = encode_message(&request);
            assert!(bytes.len() <= REQUEST_BYTES, "{request:?}: {}", bytes.len());
            assert_eq!(decode_message(&bytes), Some(request));
            assert_eq!(decode_message::<HelperRequest>(&bytes[1..]), None);
            assert_eq!(decode_message::<HelperRequest>(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn a_long_refusal_is_cut_between_characters() {
        let why = format!("{}ä", "x".repeat(MAX_TEXT - 1));
        let reply = HelperReply::from_result(Err(Refusal::Types(why)));
        assert_eq!(reply, HelperReply::Refused(Refusal::Types("x".repeat(MAX_TEXT - 1))));
        assert!(encode_message(&reply).len() <= REPLY_BYTES);
    }

    #[test]
    fn content_is_sent_in_pieces_of_which_the_last_is_marked() {
        for length in [0, 1, MAX_PIECE, MAX_PIECE + 1, 3 * MAX_PIECE] {
            let sent: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut joined = Vec::new();
            let mut marks = Vec::new();
            for piece in encode_content_in_pieces(&sent) {
                assert!(piece.len() <= PIECE_BYTES);
                let Some(HelperReply::Content { content, is_last }) = decode_message(&piece) else {
                    panic!("{length}");
                };
                joined.extend(content);
                marks.push(is_last);
            }
            assert_eq!(joined, sent);
            assert!(marks.pop() == Some(true) && !marks.contains(&true));
        }
    }

    #[test]
    fn threads_are_read_as_they_were_sent() {
        let thread = Thread { target: 1, tid: 2, state: 3, since_ns: u64::MAX, poll_ns: 7, ..Thread::default() };
        let threads = vec![ThreadEntry { key: 5, thread }];
        assert_eq!(decode_message(&encode_message(&threads)), Some(threads));
    }
}
