//! Tabs of the screen.

use super::Model;

labelled! {
    /// A tab. To add one, add it here with a title, and draw it in `view::draw_tab`.
    #[derive(Default)]
    pub(crate) Tab {
        #[default]
        Overview = "Overview",
        Requests = "Requests",
        Request = "Request",
        Hops = "Hops",
        Findings = "Findings",
        /// Exists only if the source observes threads.
        Cpu = "CPU",
        /// Exists only when watching runs of other tokengap processes.
        Pods = "Pods",
    }
}

impl Tab {
    /// Returns whether the tab has anything to show.
    pub(crate) fn exists(self, model: &Model) -> bool {
        match self {
            Self::Cpu => model.threads.is_some(),
            Self::Pods => !model.pods.is_empty(),
            _ => true,
        }
    }

    /// Number of items in its list.
    pub(super) fn items(self, model: &Model) -> usize {
        match self {
            Self::Overview => 0,
            Self::Requests => model.table.visible_count(),
            Self::Request => model.detail.as_ref().map_or(0, |detail| detail.chunks.len()),
            Self::Hops => model.hops.len(),
            Self::Findings => model.findings.len(),
            Self::Cpu => model.threads.as_ref().map_or(0, Vec::len),
            Self::Pods => model.pods.len(),
        }
    }

    pub(super) fn step(self, by: isize, model: &Model) -> Self {
        let all: Vec<Self> = Self::ALL.into_iter().filter(|t| t.exists(model)).collect();
        let at = all.iter().position(|t| *t == self).unwrap_or(0);
        all[(at as isize + by).rem_euclid(all.len() as isize) as usize]
    }
}
