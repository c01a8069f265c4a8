//! Messages of the simulated engine: batches in the exact encoding of specific SGLang releases.

mod layout;
mod message;
mod pickle;

pub(super) use layout::Release;
pub(super) use message::{Finish, READ_OFFSET, Row, text_batch, token_batch};

#[cfg(test)]
mod tests;
