//! What there is to watch, and which of it the reader has in hand: the start of `tokengap` without arguments.

use crate::action::Action;

/// What an offer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Engine,
    Published,
    Recording,
    Demo,
}

impl Kind {
    /// The head of its group.
    pub(crate) fn head(self) -> &'static str {
        match self {
            Self::Engine => "engines that run here",
            Self::Published => "runs that other tokengaps publish here",
            Self::Recording => "recordings in this folder",
            Self::Demo => "demos: an engine with a known fault, played in this process",
        }
    }
}

/// Something to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) kind: Kind,
    pub(crate) title: String,
    pub(crate) note: String,
    /// What to type after `tokengap` for the same.
    pub(crate) command: Vec<String>,
}

/// The offers and the reader's place among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pick {
    offers: Vec<Offer>,
    at: usize,
    /// The reader has moved: what is selected stays so while offers come and go.
    moved: bool,
    /// Engines have been looked for.
    pub(crate) looked: bool,
    /// What could not be looked at, and what would grant it.
    pub(crate) blind: Vec<String>,
    /// The keys are shown.
    pub(crate) help: bool,
    /// Rows a page has; the view says it after every draw.
    pub(crate) page: usize,
}

/// How picking ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Run this after `tokengap`.
    Run(Vec<String>),
    Leave,
}

impl Pick {
    /// Replaces the offers of `kind`.
    pub(crate) fn offer(&mut self, kind: Kind, offers: Vec<Offer>) {
        let selected = self.selected().filter(|_| self.moved).map(|o| o.command.clone());
        self.offers.retain(|o| o.kind != kind);
        self.offers.extend(offers);
        self.offers.sort_by_key(|o| o.kind);
        let found = selected.and_then(|command| self.offers.iter().position(|o| o.command == command));
        self.at = found.unwrap_or(0);
    }

    /// All of them, in the order of their groups.
    pub(crate) fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// The one in hand.
    pub(crate) fn selected(&self) -> Option<&Offer> {
        self.offers.get(self.at)
    }

    /// Its place.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Does what `action` asks; a choice ends the picking.
    pub(crate) fn apply(&mut self, action: Action) -> Option<Choice> {
        let page = self.page.max(2) as isize;
        match action {
            Action::Quit => return Some(Choice::Leave),
            Action::Help => self.help = !self.help,
            // Whoever presses Esc once too often is still here.
            Action::Back => self.help = false,
            Action::Open => return self.selected().map(|o| Choice::Run(o.command.clone())),
            // The second click on the same line opens it.
            Action::Pick(place) if place == self.at && self.moved => return self.apply(Action::Open),
            Action::Pick(place) => self.walk_to(place),
            Action::Move(by) => self.walk_to(self.at.saturating_add_signed(by)),
            Action::Page(by) => self.walk_to(self.at.saturating_add_signed(by * page)),
            Action::Home => self.walk_to(0),
            Action::End => self.walk_to(usize::MAX),
            _ => {}
        }
        None
    }

    fn walk_to(&mut self, place: usize) {
        self.moved = true;
        self.at = place.min(self.offers.len().saturating_sub(1));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn offer(kind: Kind, title: &str) -> Offer {
        Offer {
            kind,
            title: title.into(),
            note: String::new(),
            command: vec![title.into()],
        }
    }

    #[test]
    fn engines_come_first_and_what_was_chosen_stays_chosen() {
        let mut pick = Pick::default();
        assert_eq!(pick.apply(Action::Open), None, "there is nothing yet");
        pick.offer(
            Kind::Demo,
            vec![offer(Kind::Demo, "race"), offer(Kind::Demo, "backlog")],
        );
        assert_eq!(pick.selected().map(|o| &*o.title), Some("race"));
        pick.offer(Kind::Engine, vec![offer(Kind::Engine, "sglang")]);
        assert_eq!(pick.selected().map(|o| &*o.title), Some("sglang"), "nobody had chosen");
        pick.apply(Action::End);
        pick.offer(Kind::Engine, Vec::new());
        assert_eq!(pick.selected().map(|o| &*o.title), Some("backlog"));
        assert_eq!(pick.apply(Action::Open), Some(Choice::Run(vec!["backlog".into()])));
    }

    #[test]
    fn one_click_selects_and_the_next_opens() {
        let mut pick = Pick::default();
        pick.offer(
            Kind::Demo,
            vec![offer(Kind::Demo, "race"), offer(Kind::Demo, "backlog")],
        );
        assert_eq!(pick.apply(Action::Pick(1)), None);
        assert_eq!(pick.apply(Action::Pick(1)), Some(Choice::Run(vec!["backlog".into()])));
        assert_eq!(pick.apply(Action::Back), None, "Esc never leaves");
        assert_eq!(pick.apply(Action::Quit), Some(Choice::Leave));
    }
}
