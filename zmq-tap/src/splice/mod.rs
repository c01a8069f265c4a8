//! Takeover of the path of a socket file that an engine listens on, and its restoration (docs/internals/SPLICE.md).
//!
//! An exchange of names moves the engine's socket aside, so that the path that peers connect to always has a listener. A note next to it
//! records the move, so that any later process can reverse it after a crash ([`restore`]).

mod error;
mod folder;
mod note;
mod place;
mod restore;
mod socket_type;

pub use error::SpliceError;
pub use folder::Folder;
pub use place::{Place, is_ours};
pub use restore::{Restored, restore};
pub use socket_type::socket_type;
