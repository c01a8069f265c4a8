//! Permissions of this process, determined by harmless attempts: for `tokengap doctor`, and for explaining refusals.

pub mod filter;
pub mod library;
pub mod namespace;
mod own;
pub mod setting;

pub use own::{OwnError, own_uprobe};
