//! Restrictions of this process that apply despite its capabilities: seccomp filters, namespaces and kernel settings.

pub mod filter;
pub mod namespace;
pub mod setting;
