//! Runs without a screen: the reason, and the lines that the run prints instead.

use std::time::{Duration, Instant};

use session::{Observer, Run, RunStage, ScreenCommand};

use crate::output;

/// Returns whether stdout is a terminal that can show the screen.
pub(crate) fn has_terminal() -> bool {
    missing_terminal_reason().is_none()
}

/// Reason why no screen can be drawn; `None` if it can.
fn missing_terminal_reason() -> Option<String> {
    if !output::is_terminal() {
        return Some(String::from("standard output is not a terminal"));
    }
    let Some(term) = std::env::var_os("TERM") else { return Some(String::from("TERM is not set")) };
    if term.is_empty() || term == "dumb" {
        return Some(format!("TERM={} does not support one", term.display()));
    }
    None
}

/// Prints why the screen is off, if it cannot be drawn.
pub(crate) fn print_why_screen_is_off() {
    if let Some(why) = missing_terminal_reason() {
        errln!("tokengap: the screen is off: {why}; --headless runs without one");
    }
}

/// Prints once a second what a run is waiting for while it ends.
#[derive(Default)]
pub(crate) struct Progress {
    last_shown: Option<Instant>,
    /// Number of the notice that was printed last.
    last_notice: u64,
}

impl Observer for Progress {
    /// Prints a new notice. While the run ends, also prints once a second what the end waits for. Never returns a command.
    fn show_run(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        if run.notice.number != self.last_notice {
            self.last_notice = run.notice.number;
            errln!("tokengap: {}", run.notice.text);
        }
        // The end can take long, such as for open requests of the demo.
        if run.stage == RunStage::Ending {
            // The first call only starts the interval, so that a quick end prints nothing.
            let last_shown = *self.last_shown.get_or_insert_with(Instant::now);
            if last_shown.elapsed() >= Duration::from_secs(1) {
                self.last_shown = Some(Instant::now());
                if let Some(pending) = run.about.pending() {
                    errln!("tokengap: {pending}");
                }
            }
        }
        Ok(ScreenCommand::None)
    }
}
