//! Health of what the screen shows.

use trace::detect::Severity;

labelled! {
    /// Health of a component, in ascending order of severity.
    #[derive(Default, PartialOrd, Ord)]
    pub(crate) Health {
        /// No statement is possible.
        #[default]
        Unknown = "unknown",
        /// No problem found.
        Good = "ok",
        /// Worth knowing.
        Info = "info",
        /// Worth investigating.
        Warning = "WARNING",
        /// Affects users.
        Critical = "CRITICAL",
    }
}

impl From<Severity> for Health {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

/// The most severe current finding.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) health: Health,
    pub(crate) text: String,
}
