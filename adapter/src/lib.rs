//! What tokengap must know of an LLM engine: the traits that the crate `engines` implements for each.
//!
//! - [`decode`]: its messages
//! - [`discover`]: its processes
//! - [`requests`]: requests from frontends to its workers

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod decode;
pub mod discover;
pub mod requests;
