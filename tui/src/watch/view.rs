//! Observer of one run that forwards to the screen shared by all runs.

use std::cell::RefCell;
use std::rc::Rc;

use trace::{Analysis, Event};

use crate::observer::{Observer, Run, Wish};
use crate::screen::Screen;

pub(super) struct PodView {
    screen: Rc<RefCell<Screen>>,
    place: usize,
}

impl PodView {
    pub(super) fn new(screen: Rc<RefCell<Screen>>, place: usize) -> Self {
        Self { screen, place }
    }
}

impl Observer for PodView {
    fn event(&mut self, event: &Event<'_>) {
        self.screen.borrow_mut().observe(self.place, event);
    }

    fn tick(&mut self, analysis: &Analysis) {
        self.screen.borrow_mut().model(self.place).remember(analysis);
    }

    fn anew(&mut self) {
        self.screen.borrow_mut().forget(self.place);
    }

    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<Wish> {
        self.screen.borrow_mut().turn(run)
    }
}
