//! Behaviour of a release between the wire and the client.

use super::{Mode, Waiter};

/// How the output mode is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputModeRule {
    /// Always this mode.
    Always(Mode),
    /// Incremental with this server flag, cumulative without.
    ByFlag(&'static str),
}

/// Behaviour of a release, or common to all releases of a range. `None` if the range disagrees or it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// How a waiter processes several queued chunks.
    pub waiter: Option<Waiter>,
    /// Output mode where token frames reach the tokenizer.
    pub token_path: Option<OutputModeRule>,
    /// Output mode where text frames reach the tokenizer.
    pub text_path: Option<OutputModeRule>,
}

impl Behaviour {
    /// The mode, if the release has the same fixed mode on both paths.
    pub fn mode(&self) -> Option<Mode> {
        match (self.token_path?, self.text_path?) {
            (OutputModeRule::Always(a), OutputModeRule::Always(b)) if a == b => Some(a),
            _ => None,
        }
    }

    /// Flag that selects incremental output, if the release has one.
    pub fn flag(&self) -> Option<&'static str> {
        [self.token_path, self.text_path]
            .into_iter()
            .flatten()
            .find_map(|h| match h {
                OutputModeRule::ByFlag(flag) => Some(flag),
                OutputModeRule::Always(_) => None,
            })
    }
}
