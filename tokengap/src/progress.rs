//! Progress bar on stderr for long work, shown only on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use recording::{ReadError, Recording, analyse};
use trace::{Analysis, ReportInput};

/// Delay before the bar is shown.
const MOMENT: Duration = Duration::from_millis(300);

/// The bar, removed on drop.
pub(crate) struct Progress {
    what: &'static str,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates a bar labelled `what`, one word such as `exporting`.
    pub(crate) fn labelled(what: &'static str) -> Self {
        Self { what, began: Instant::now(), bar: None }
    }

    /// Reports `done` of `all` bytes.
    pub(crate) fn set_position(&mut self, done: u64, all: u64) {
        if self.bar.is_none() && self.began.elapsed() < MOMENT {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %  {bytes_per_sec}  {eta} left");
            ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr())
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_message(self.what)
                .with_elapsed(self.began.elapsed())
        });
        bar.set_length(all);
        bar.set_position(done);
    }
}

/// Replays `recording` completely, with a bar.
pub(crate) fn analyse_recording(recording: &Recording) -> Result<(Analysis, ReportInput), ReadError> {
    let mut progress = Progress::labelled("reading");
    analyse(recording, engines::FACTS, &mut |done, all| progress.set_position(done, all))
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
