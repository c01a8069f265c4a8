//! Paths of the endpoint.

/// Maximum number of concurrent connections that do not stream.
pub(super) const MAX_CONNECTIONS: usize = 32;

/// A path, with its limit of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedPath {
    /// Metrics for Prometheus.
    Metrics,
    /// The report as of now.
    Report,
    /// Whether the run is alive.
    Health,
    /// The recording of the run, as a stream.
    Recording,
    /// The events of the run, as a stream.
    Events,
}

impl ServedPath {
    pub(super) const ALL: [Self; 5] = [Self::Metrics, Self::Report, Self::Health, Self::Recording, Self::Events];

    /// The path of a URL.
    pub(super) fn parse(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|served| served.name() == path)
    }

    /// Path in a request.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::Report => "/report",
            Self::Health => "/healthz",
            Self::Recording => "/recording",
            Self::Events => "/events",
        }
    }

    /// Description of the path's content, for the page of links.
    pub(super) fn content(self) -> &'static str {
        match self {
            Self::Metrics => "metrics for Prometheus",
            Self::Report => "report as of now, JSON",
            Self::Health => "whether the run is alive",
            Self::Recording => "recording of the run, as a stream until it ends",
            Self::Events => "events of the run, as a stream of JSON lines",
        }
    }

    /// Maximum number of concurrent clients.
    pub(super) fn max_clients(self) -> usize {
        match self {
            Self::Metrics | Self::Health | Self::Recording => 16,
            Self::Report => 8,
            // Each has an analysis of its own, and a thread.
            Self::Events => 4,
        }
    }

    /// Whether clients need the token. A probe of Kubernetes cannot read one.
    pub(super) fn needs_token(self) -> bool {
        self != Self::Health
    }
}
