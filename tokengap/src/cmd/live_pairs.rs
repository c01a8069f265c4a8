//! Prefill/decode pairs among the runs on the screen, joined while they run.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tui::Screen;

use crate::cmd::pair::{self, RunningServer};

/// Interval of joins while the list of runs is shown.
const JOIN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of finished requests of each server that a join reads, because the runs wait for it.
const NEWEST_FINISHED: usize = 2_000;

/// Joins the pairs for the list of runs.
pub(crate) struct LivePairs {
    /// `None` without a screen.
    screen: Option<Rc<RefCell<Screen>>>,
    next_join: Instant,
}

impl LivePairs {
    pub(crate) fn new(screen: Option<Rc<RefCell<Screen>>>) -> Self {
        Self { screen, next_join: Instant::now() }
    }

    /// Whether the list of runs is shown and its pairs are due.
    pub(crate) fn are_due(&self) -> bool {
        let is_shown = self.screen.as_ref().is_some_and(|screen| screen.borrow().shows_run_list());
        is_shown && Instant::now() >= self.next_join
    }

    /// Joins these servers and shows their pairs.
    pub(crate) fn update(&mut self, servers: &[RunningServer<'_>]) {
        if let Some(screen) = &self.screen {
            screen.borrow_mut().set_pairs(pair::lines_of_newest(servers, NEWEST_FINISHED));
        }
        self.next_join = Instant::now() + JOIN_INTERVAL;
    }
}
