//! Sources offered by `tokengap` without arguments, and the current selection.

use std::ops::ControlFlow;

use crate::state::action::Action;

labelled! {
    /// Kind of source, with the heading of its group.
    #[derive(PartialOrd, Ord)]
    pub SourceKind {
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
pub struct SourceOffer {
    /// Kind, which selects the group.
    pub kind: SourceKind,
    /// Name.
    pub title: String,
    /// Description of what the command does.
    pub note: String,
    /// Equivalent arguments to `tokengap`.
    pub command: Vec<String>,
}

/// Offered sources and the current selection.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourcePicker {
    /// All sources, ordered by group.
    pub(crate) offers: Vec<SourceOffer>,
    /// Index of the selected one.
    pub(crate) selected_index: usize,
    /// Set once the user moves the cursor. From then on the selection survives changes of the list.
    has_moved: bool,
    /// Set once the first search for engines has finished.
    pub(crate) has_searched: bool,
    /// Places that could not be searched, each with the permission it needs.
    pub(crate) blind: Vec<String>,
    /// Command of the engine's offer that was chosen once: observing a live engine needs a second Enter.
    asked_command: Option<Vec<String>>,
    /// Set while the key help is shown.
    pub(crate) shows_help: bool,
    /// Number of rows per page, updated by the view after every draw.
    pub(crate) page_rows: usize,
}

impl SourcePicker {
    /// Replaces the offers by newly found ones, and keeps the selection if the user has made one.
    pub(crate) fn replace_offers(&mut self, mut offers: Vec<SourceOffer>) {
        offers.sort_by_key(|offer| offer.kind);
        // Until the user has moved the cursor, the first offer is selected, even if it is new.
        let mut new_index = 0;
        if self.has_moved
            && let Some(selected) = self.selected_offer()
        {
            new_index = offers.iter().position(|offer| offer.command == selected.command).unwrap_or(0);
        }
        self.selected_index = new_index;
        self.offers = offers;
    }

    pub(crate) fn selected_offer(&self) -> Option<&SourceOffer> {
        self.offers.get(self.selected_index)
    }

    /// Returns whether the next Enter attaches to the selected engine.
    pub(crate) fn asks_to_attach(&self) -> bool {
        self.asked_command.is_some() && self.selected_offer().map(|offer| &offer.command) == self.asked_command.as_ref()
    }

    /// Applies `action`. Breaks with the chosen command, or without one if the user quits.
    pub(crate) fn apply_action(&mut self, action: Action) -> ControlFlow<Option<Vec<String>>> {
        // At least two rows, so that a page moves further than a single step. Before the first draw, the number is 0.
        let page_rows = self.page_rows.max(2) as isize;
        // To attach to a running engine, the user is asked for a second Enter or click. Any other action means no.
        let is_confirmed = self.asks_to_attach();
        self.asked_command = None;
        match action {
            Action::Quit => return ControlFlow::Break(None),
            Action::ShowHelp => self.shows_help = !self.shows_help,
            // Esc never quits, so that pressing it once too often is harmless.
            Action::GoBack => self.shows_help = false,
            Action::OpenSelection => return self.open_selection(is_confirmed),
            // A second click on the same line opens it.
            Action::SelectRow(index) if index == self.selected_index && self.has_moved => {
                return self.open_selection(is_confirmed);
            }
            Action::SelectRow(index) => self.select(index),
            Action::MoveSelection(offset) => self.move_selection(offset),
            Action::MovePage(pages) => self.move_selection(pages * page_rows),
            // The picker has no other actions.
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// Breaks with the command of the selected offer. For an engine that the user has not confirmed, notes the question and continues.
    fn open_selection(&mut self, is_confirmed: bool) -> ControlFlow<Option<Vec<String>>> {
        let Some(chosen) = self.selected_offer() else {
            return ControlFlow::Continue(());
        };
        let command = chosen.command.clone();
        if chosen.kind == SourceKind::Engine && !is_confirmed {
            self.asked_command = Some(command);
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(Some(command))
    }

    fn move_selection(&mut self, offset: isize) {
        self.select(self.selected_index.saturating_add_signed(offset));
    }

    fn select(&mut self, index: usize) {
        self.has_moved = true;
        self.selected_index = index.min(self.offers.len().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTINUE: ControlFlow<Option<Vec<String>>> = ControlFlow::Continue(());

    fn offer(kind: SourceKind, title: &str) -> SourceOffer {
        SourceOffer { kind, title: title.into(), note: String::new(), command: vec![title.into()] }
    }

    fn demos() -> Vec<SourceOffer> {
        vec![offer(SourceKind::Demo, "race"), offer(SourceKind::Demo, "backlog")]
    }

    #[test]
    fn engines_are_listed_first_and_the_selection_is_kept() {
        let mut picker = SourcePicker::default();
        assert_eq!(picker.apply_action(Action::OpenSelection), CONTINUE, "no offers");
        picker.replace_offers(demos());
        assert_eq!(picker.selected_offer().map(|o| &*o.title), Some("race"));
        picker.replace_offers([demos(), vec![offer(SourceKind::Engine, "sglang")]].concat());
        assert_eq!(
            picker.selected_offer().map(|o| &*o.title),
            Some("sglang"),
            "the first offer is selected by default"
        );
        assert_eq!(picker.apply_action(Action::MoveSelection(isize::MAX)), CONTINUE);
        picker.replace_offers(demos());
        assert_eq!(picker.selected_offer().map(|o| &*o.title), Some("backlog"));
        assert_eq!(picker.apply_action(Action::OpenSelection), ControlFlow::Break(Some(vec!["backlog".into()])));
    }

    #[test]
    fn a_live_engine_is_attached_to_only_after_a_second_enter() {
        let mut picker = SourcePicker::default();
        let attach = ControlFlow::Break(Some(vec!["sglang".into()]));
        picker.replace_offers([demos(), vec![offer(SourceKind::Engine, "sglang")]].concat());
        assert_eq!((picker.apply_action(Action::OpenSelection), picker.asks_to_attach()), (CONTINUE, true));
        assert_eq!((picker.apply_action(Action::GoBack), picker.asks_to_attach()), (CONTINUE, false));
        assert_eq!(picker.apply_action(Action::OpenSelection), CONTINUE);
        assert_eq!(picker.apply_action(Action::OpenSelection), attach);
        assert_eq!(picker.apply_action(Action::OpenSelection), CONTINUE);
        picker.replace_offers([demos(), vec![offer(SourceKind::Engine, "vllm")]].concat());
        assert!(!picker.asks_to_attach(), "another engine is another question");
        assert_eq!(picker.apply_action(Action::OpenSelection), CONTINUE);
        let clicks = [Action::SelectRow(0), Action::SelectRow(0), Action::SelectRow(0)];
        assert_eq!(clicks.map(|click| picker.apply_action(click).is_break()), [false, false, true]);
    }

    #[test]
    fn one_click_selects_and_the_next_opens() {
        let mut picker = SourcePicker::default();
        picker.replace_offers(demos());
        assert_eq!(picker.apply_action(Action::SelectRow(1)), CONTINUE);
        assert_eq!(picker.apply_action(Action::SelectRow(1)), ControlFlow::Break(Some(vec!["backlog".into()])));
        assert_eq!(picker.apply_action(Action::GoBack), CONTINUE, "Esc never leaves");
        assert_eq!(picker.apply_action(Action::Quit), ControlFlow::Break(None));
    }
}
