//! Several runs on one screen.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use session::{Observer, Run, ScreenCommand};
use trace::{Analysis, Event};

use super::Screen;

/// Observer of one run that forwards to the screen shared by all runs.
pub struct PodView {
    screen: Rc<RefCell<Screen>>,
    place: usize,
}

impl PodView {
    /// Creates an observer of the run with index `place`.
    pub fn new(screen: Rc<RefCell<Screen>>, place: usize) -> Self {
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

    fn restart(&mut self) {
        self.screen.borrow_mut().restart_run(self.place);
    }

    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        let mut screen = self.screen.borrow_mut();
        if screen.shown == self.place {
            screen.turn(run)
        } else {
            Ok(ScreenCommand::Stay)
        }
    }

    fn sleep(&mut self, time: Duration) {
        self.screen.borrow_mut().sleep(time);
    }
}
