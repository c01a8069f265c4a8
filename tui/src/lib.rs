//! The terminal screen of a run: its state, its drawing and its keys. An observer of a [`session`] that has no source and parses no flag.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod keys;
pub mod log;
mod screen;
mod state;
pub mod theme;
mod view;

pub use screen::{RunView, Screen};
pub use state::refresh::FINISHED_SHOWN;
pub use state::saved_filter::SavedFilter;
pub use state::ui::ScreenOptions;

/// The picker of a source.
pub mod pick {
    pub use crate::screen::{FoundSources, pick_source_command};
    pub use crate::state::picker::{SourceKind, SourceOffer};
}

/// Summary lines of watched runs and of the pairs among them.
pub mod pods {
    pub use crate::state::pods::{KeyFigures, PairLine, PairRequest, PodLine, PodState, ShownRequest};
}
