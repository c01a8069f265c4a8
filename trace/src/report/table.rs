//! Columns of the tables in Markdown and HTML.

/// Content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// Aligned to the right.
    Number,
    /// A request id, or another long name without spaces.
    Rid,
    Hop,
}
