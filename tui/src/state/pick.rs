//! Sources offered by `tokengap` without arguments, and the current selection.

use std::ops::ControlFlow;

use crate::state::action::Action;

labelled! {
    /// Kind of source, with the heading of its group.
    #[derive(PartialOrd, Ord)]
    pub Kind {
        /// An engine on this machine.
        Engine = "engines running on this machine",
        /// A run that another process serves.
        Served = "runs served by other tokengap processes here",
        /// A recording.
        Recording = "recordings in this folder",
        /// A demo scenario.
        Demo = "demos: a simulated engine with a known fault",
    }
}

/// A source the user can watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Kind, which selects the group.
    pub kind: Kind,
    /// Name.
    pub title: String,
    /// Description of what the command does.
    pub note: String,
    /// Equivalent arguments to `tokengap`.
    pub command: Vec<String>,
}

/// Offered sources and the current selection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pick {
    /// All sources, ordered by group.
    pub(crate) offers: Vec<Offer>,
    /// Index of the selected one.
    pub(crate) at: usize,
    /// Set once the user moves the cursor. From then on the selection survives changes of the list.
    moved: bool,
    /// Set once the first search for engines has finished.
    pub(crate) looked: bool,
    /// Places that could not be searched, each with the permission it needs.
    pub(crate) blind: Vec<String>,
    /// Set while the key help is shown.
    pub(crate) help: bool,
    /// Number of rows per page, updated by the view after every draw.
    pub(crate) page: usize,
}

impl Pick {
    /// Replaces the offers.
    pub(crate) fn offer(&mut self, mut offers: Vec<Offer>) {
        offers.sort_by_key(|o| o.kind);
        let selected = self.selected().filter(|_| self.moved);
        let found = selected.and_then(|selected| offers.iter().position(|o| o.command == selected.command));
        (self.offers, self.at) = (offers, found.unwrap_or(0));
    }

    pub(crate) fn selected(&self) -> Option<&Offer> {
        self.offers.get(self.at)
    }

    /// Applies `action`. Breaks with the chosen command, or without one if the user quits.
    pub(crate) fn apply(&mut self, action: Action) -> ControlFlow<Option<Vec<String>>> {
        let page = self.page.max(2) as isize;
        match action {
            Action::Quit => return ControlFlow::Break(None),
            Action::Help => self.help = !self.help,
            // Esc never quits, so that pressing it once too often is harmless.
            Action::Back => self.help = false,
            Action::Open => {
                let chosen = self.selected().map(|o| o.command.clone());
                return chosen.map_or(ControlFlow::Continue(()), |chosen| ControlFlow::Break(Some(chosen)));
            }
            // A second click on the same line opens it.
            Action::Pick(place) if place == self.at && self.moved => return self.apply(Action::Open),
            Action::Pick(place) => self.walk_to(place),
            Action::Move(by) => self.walk_to(self.at.saturating_add_signed(by)),
            Action::Page(by) => self.walk_to(self.at.saturating_add_signed(by * page)),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn walk_to(&mut self, place: usize) {
        self.moved = true;
        self.at = place.min(self.offers.len().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTINUE: ControlFlow<Option<Vec<String>>> = ControlFlow::Continue(());

    fn offer(kind: Kind, title: &str) -> Offer {
        Offer { kind, title: title.into(), note: String::new(), command: vec![title.into()] }
    }

    fn demos() -> Vec<Offer> {
        vec![offer(Kind::Demo, "race"), offer(Kind::Demo, "backlog")]
    }

    #[test]
    fn engines_are_listed_first_and_the_selection_is_kept() {
        let mut pick = Pick::default();
        assert_eq!(pick.apply(Action::Open), CONTINUE, "no offers");
        pick.offer(demos());
        assert_eq!(pick.selected().map(|o| &*o.title), Some("race"));
        pick.offer([demos(), vec![offer(Kind::Engine, "sglang")]].concat());
        assert_eq!(pick.selected().map(|o| &*o.title), Some("sglang"), "the first offer is selected by default");
        assert_eq!(pick.apply(Action::Move(isize::MAX)), CONTINUE);
        pick.offer(demos());
        assert_eq!(pick.selected().map(|o| &*o.title), Some("backlog"));
        assert_eq!(pick.apply(Action::Open), ControlFlow::Break(Some(vec!["backlog".into()])));
    }

    #[test]
    fn one_click_selects_and_the_next_opens() {
        let mut pick = Pick::default();
        pick.offer(demos());
        assert_eq!(pick.apply(Action::Pick(1)), CONTINUE);
        assert_eq!(pick.apply(Action::Pick(1)), ControlFlow::Break(Some(vec!["backlog".into()])));
        assert_eq!(pick.apply(Action::Back), CONTINUE, "Esc never leaves");
        assert_eq!(pick.apply(Action::Quit), ControlFlow::Break(None));
    }
}
