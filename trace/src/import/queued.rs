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

/// A stage is named by its index.
pub(super) type OwnedStatement = Statement<OwnedRid, u16>;

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
