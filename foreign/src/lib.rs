//! Files that other users can rename, link or replace.
//!
//! A name that somebody else controls is resolved once. The result is checked by its descriptor (kind, file system, inode, owner), and only
//! this descriptor is used from then on: for reading, and as path for the kernel ([`RegularFile::path`]). Resolving the name again could
//! reach another file.
//!
//! - [`ForeignRoot`]: paths in the root of another process. Links cannot lead out of it.
//! - [`RegularFile`]: an open file of a disk. FIFOs, devices, terminals and files of the kernel (`/proc/kmsg`) are never opened, since
//!   opening or reading one may block or have effects.
//! - [`kernel`]: the opposite, files that only the kernel makes, in `/proc` and `/sys`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cached_identity;
mod descriptor_info;
mod error;
mod foreign_root;
pub mod kernel;
mod regular_file;

pub use cached_identity::CachedIdentity;
pub use error::ReadError;
pub use foreign_root::ForeignRoot;
pub use regular_file::{ExpectedFile, RegularFile, locate_only, read_to_limit};
