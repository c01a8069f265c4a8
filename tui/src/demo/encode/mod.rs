//! What the demo's engine writes to its sockets: batches in the byte shape of named SGLang releases.

mod layout;
mod message;
mod pickle;

pub(super) use layout::Release;
pub(super) use message::{Finish, READ_OFFSET, Row, text_batch, token_batch};

#[cfg(test)]
mod tests;
