//! Tabs of the screen.

use super::Model;

/// A tab. To add one, add it here with a title, and draw it in `view::draw_tab`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    #[default]
    Overview,
    Requests,
    Request,
    Hops,
    Findings,
    /// Exists only if the source observes threads.
    Cpu,
    /// Exists only when watching runs of other tokengap processes.
    Pods,
}

impl Tab {
    /// Every tab from left to right; the number keys follow this order.
    pub(crate) const ALL: [Self; 7] = [
        Self::Overview,
        Self::Requests,
        Self::Request,
        Self::Hops,
        Self::Findings,
        Self::Cpu,
        Self::Pods,
    ];

    /// Returns whether the tab has anything to show.
    pub(crate) fn exists(self, model: &Model) -> bool {
        match self {
            Self::Cpu => model.threads.is_some(),
            Self::Pods => !model.pods.is_empty(),
            _ => true,
        }
    }

    /// Label in the tab bar.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Requests => "Requests",
            Self::Request => "Request",
            Self::Hops => "Hops",
            Self::Findings => "Findings",
            Self::Cpu => "CPU",
            Self::Pods => "Pods",
        }
    }

    pub(super) fn step(self, by: isize, model: &Model) -> Self {
        let all: Vec<Self> = Self::ALL.into_iter().filter(|t| t.exists(model)).collect();
        let at = all.iter().position(|t| *t == self).unwrap_or(0);
        all[(at as isize + by).rem_euclid(all.len() as isize) as usize]
    }
}
