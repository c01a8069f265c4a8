//! What this process is permitted, found out by trying where that harms nobody: for `tokengap doctor`, and for the words
//! with which a refusal is explained.

pub mod filter;
pub mod library;
pub mod namespace;
mod own;
pub mod setting;

pub use own::{OwnError, own_uprobe};
