//! An owned statement, queued until it is due.

use super::item::{Rid, Statement};

/// A statement with its time and source.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) at_ns: u64,
    /// Index of the source.
    pub(super) by: u16,
    pub(super) statement: OwnedStatement,
}

#[derive(Debug)]
pub(super) enum OwnedStatement {
    Stage {
        rid: OwnedRid,
        /// Index of the stage name.
        name: u16,
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
        rid: OwnedRid,
        chunks: u32,
    },
}

#[derive(Debug)]
pub(super) struct OwnedRid {
    pub(super) text: Box<str>,
    pub(super) cut: bool,
}

impl From<Rid<'_>> for OwnedRid {
    fn from(rid: Rid<'_>) -> Self {
        Self {
            text: rid.text.into(),
            cut: rid.cut,
        }
    }
}

impl OwnedStatement {
    /// Copies a statement; `name` returns the index of a stage.
    pub(super) fn of(statement: &Statement<'_>, name: impl FnOnce(&str) -> u16) -> Self {
        match *statement {
            Statement::Stage {
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
            Statement::LoggedState {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            } => Self::LoggedState {
                states,
                rids,
                recv_wait_ns,
                more,
                cpu,
            },
            Statement::Merged { rid, chunks } => Self::Merged {
                rid: rid.into(),
                chunks,
            },
        }
    }
}
