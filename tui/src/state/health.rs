//! Health of what the screen shows.

use trace::detect::Severity;

/// Health of a component, in ascending order of severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    /// No statement is possible.
    #[default]
    Unknown,
    /// No problem found.
    Good,
    /// Worth knowing.
    Info,
    /// Worth investigating.
    Warning,
    /// Affects users.
    Critical,
}

impl Health {
    /// Every state, from the least severe on, with `Unknown` last.
    pub(crate) const ALL: [Self; 5] = [Self::Good, Self::Info, Self::Warning, Self::Critical, Self::Unknown];

    /// Label shown beside the colour.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Good => "ok",
            Self::Info => "info",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
        }
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
