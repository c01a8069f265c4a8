//! Observer of a run without a screen.

use std::time::{Duration, Instant};

use session::{Observer, Run, ScreenCommand, Stage};

/// Prints once a second what a run is waiting for while it ends.
#[derive(Default)]
pub(crate) struct Progress {
    last_shown: Option<Instant>,
    notice: u64,
}

impl Observer for Progress {
    fn turn(&mut self, run: &Run<'_>) -> anyhow::Result<ScreenCommand> {
        if run.notice.0 != self.notice {
            self.notice = run.notice.0;
            errln!("tokengap: {}", run.notice.1);
        }
        if run.stage == Stage::Ending
            && self.last_shown.get_or_insert_with(Instant::now).elapsed() >= Duration::from_secs(1)
        {
            self.last_shown = Some(Instant::now());
            if let Some(pending) = run.about.pending() {
                errln!("tokengap: {pending}");
            }
        }
        Ok(ScreenCommand::None)
    }
}
