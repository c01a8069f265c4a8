//! How far long work has come: a bar on stderr, where that is a terminal and the work takes longer than a moment.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trace::Analysis;
use trace::record::{ReadError, Recording, analyse};
use trace::report::ReportInput;

/// Work that is done sooner needs no bar.
const MOMENT: Duration = Duration::from_millis(300);

/// The bar; it is gone when this is dropped.
pub(crate) struct Progress {
    what: &'static str,
    began: Instant,
    quiet: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of `what`, in one word: `exporting`.
    pub(crate) fn of(what: &'static str) -> Self {
        Self {
            what,
            began: Instant::now(),
            quiet: false,
            bar: None,
        }
    }

    /// No bar: what the work writes goes to the same terminal.
    pub(crate) fn none() -> Self {
        let mut progress = Self::of("");
        progress.quiet = true;
        progress
    }

    /// `done` of `all` bytes are.
    pub(crate) fn at(&mut self, done: u64, all: u64) {
        if self.quiet || (self.bar.is_none() && self.began.elapsed() < MOMENT) {
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

/// Replays all of `recording`, with a bar.
pub(crate) fn analysed(recording: &Recording) -> Result<(Analysis, ReportInput), ReadError> {
    let mut progress = Progress::of("reading");
    analyse(recording, &mut |done, all| progress.at(done, all))
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
