//! A statement held back until its turn, as owned data.

use super::item::{Rid, Said};

/// A statement with its time and source.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) at_ns: u64,
    /// Index of the source.
    pub(super) by: u16,
    pub(super) said: Kept,
}

#[derive(Debug)]
pub(super) enum Kept {
    Stage {
        rid: KeptRid,
        /// Index of the stage name.
        name: u16,
        tokens: Option<u32>,
        pending: Option<u32>,
    },
    Told {
        states: Option<u32>,
        rids: Option<u32>,
        recv_wait_ns: Option<u64>,
        more: Option<bool>,
        cpu: Option<f64>,
    },
    Merged {
        rid: KeptRid,
        chunks: u32,
    },
}

#[derive(Debug)]
pub(super) struct KeptRid {
    pub(super) text: Box<str>,
    pub(super) cut: bool,
}

impl From<Rid<'_>> for KeptRid {
    fn from(rid: Rid<'_>) -> Self {
        Self {
            text: rid.text.into(),
            cut: rid.cut,
        }
    }
}

impl Kept {
    /// Copies a statement; `name` returns the index of a stage.
    pub(super) fn of(said: &Said<'_>, name: impl FnOnce(&str) -> u16) -> Self {
        match *said {
            Said::Stage {
                rid,
                name: stage,
                tokens,
                pending,
            } => Self::Stage {
                rid: rid.into(),
                name: name(stage),
                tokens,
                pending,
            },
            Said::Told {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            } => Self::Told {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            },
            Said::Merged { rid, chunks } => Self::Merged {
                rid: rid.into(),
                chunks,
            },
        }
    }
}
