//! Taking the place of a socket file that an engine listens on, and giving it back (docs/internals/SPLICE.md).
//!
//! The engine's socket goes aside by an exchange of names, so that at every instant somebody listens where its peers
//! connect. A note beside it says what was moved: whoever comes after a crash can put it back ([`restore`]).

mod error;
mod folder;
mod note;
mod place;
mod restore;

pub use error::SpliceError;
pub use folder::Folder;
pub use place::{Place, is_ours};
pub use restore::{Restored, restore};
