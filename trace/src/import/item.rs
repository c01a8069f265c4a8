//! Content of one line, borrowed from it.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item<'l> {
    /// Time of the event since the epoch, if the line describes an earlier event.
    pub(super) wall_ns: Option<u64>,
    /// Role of the writer, inferred from the form of the line, or empty.
    pub(super) role: &'l str,
    pub(super) statement: Statement<Rid<'l>, &'l str>,
}

/// Statement of a log line. `R` is the type of a request id, `N` that of a stage's name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Statement<R, N> {
    Stage {
        rid: R,
        name: N,
        tokens: Option<u32>,
        pending: Option<u32>,
    },
    LoggedState {
        states: Option<u32>,
        rids: Option<u32>,
        recv_wait_ns: Option<u64>,
        more: Option<bool>,
        cpu: Option<f64>,
    },
    Merged {
        rid: R,
        chunks: u32,
    },
}

impl<R, N> Statement<R, N> {
    /// Converts the request id and the name of the stage.
    pub(super) fn map<S, M>(self, rid_of: impl FnOnce(R) -> S, name_of: impl FnOnce(N) -> M) -> Statement<S, M> {
        match self {
            Self::Stage {
                rid,
                name,
                tokens,
                pending,
            } => Statement::Stage {
                rid: rid_of(rid),
                name: name_of(name),
                tokens,
                pending,
            },
            Self::LoggedState {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            } => Statement::LoggedState {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            },
            Self::Merged { rid, chunks } => Statement::Merged {
                rid: rid_of(rid),
                chunks,
            },
        }
    }
}

/// A request id, and whether the line truncates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rid<'l> {
    /// The id, as far as the line contains it.
    pub(super) text: &'l str,
    pub(super) cut: bool,
}

/// Maximum length of a rid; a longer word is not a rid.
const LONGEST_RID: usize = 256;

impl<'l> Rid<'l> {
    /// Parses a rid: bare, quoted, or truncated with `...`.
    pub(super) fn read(word: &'l str) -> Option<Self> {
        let word = word.trim_matches(|c| matches!(c, '\'' | '"' | ',' | ';' | ')' | ']' | '['));
        let text = word.trim_end_matches(['.', '…']);
        let cut = word[text.len()..].contains('…') || word[text.len()..].len() >= 2;
        let valid = !text.is_empty() && text.len() <= LONGEST_RID && !text.contains(char::is_whitespace);
        (valid && text != "None").then_some(Self { text, cut })
    }
}
