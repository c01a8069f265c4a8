//! Progress of long work: one line on stderr, only on a terminal.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

use recording::{ReadError, Recording, analyse};
use trace::{Analysis, ReportInput};

/// Delay before the line is shown.
const DELAY: Duration = Duration::from_millis(300);
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Control sequence that returns to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// The line, removed on drop.
pub(crate) struct Progress {
    /// One word such as `exporting`.
    activity: &'static str,
    started_at: Instant,
    drawn_at: Option<Instant>,
}

impl Progress {
    /// Creates a line labelled `activity`, one word such as `exporting`.
    pub(crate) fn labelled(activity: &'static str) -> Self {
        Self { activity, started_at: Instant::now(), drawn_at: None }
    }

    /// Shows on a terminal that `done_bytes` of `total_bytes` are processed. Does nothing in the first moments, because short work needs no
    /// progress. Also does nothing if the line was drawn just now.
    pub(crate) fn draw_position_if_due(&mut self, done_bytes: u64, total_bytes: u64) {
        let elapsed = self.started_at.elapsed();
        let was_drawn_just_now = self.drawn_at.is_some_and(|drawn| drawn.elapsed() < REDRAW_INTERVAL);
        if elapsed < DELAY || was_drawn_just_now || !stderr().is_terminal() {
            return;
        }
        self.drawn_at = Some(Instant::now());
        // An empty file has no bytes to divide by.
        let share = done_bytes as f64 / total_bytes.max(1) as f64;
        // Nothing is known about the rest before the first byte is done.
        let left = if done_bytes == 0 { String::new() } else { describe_time_left(elapsed, share) };
        // A terminal that is gone is no reason to stop the work.
        let _ = write!(stderr(), "{CLEAR_LINE}{} {:.0} %{left}", self.activity, 100.0 * share);
    }
}

/// Time until all is done, if the work goes on as fast as it did for this share of it.
fn describe_time_left(elapsed: Duration, share: f64) -> String {
    format!(", {:.0} s left", elapsed.as_secs_f64() * (1.0 - share).max(0.0) / share)
}

/// Replays `recording` completely, with a progress line.
pub(crate) fn analyse_recording(recording: &Recording) -> Result<(Analysis, ReportInput), ReadError> {
    let mut progress = Progress::labelled("reading");
    analyse(recording, engines::FACTS, &mut |done, all| progress.draw_position_if_due(done, all))
}

impl Drop for Progress {
    /// Clears the line of the progress.
    fn drop(&mut self) {
        if self.drawn_at.is_some() {
            // Nothing can be done about a terminal that is gone.
            let _ = write!(stderr(), "{CLEAR_LINE}");
        }
    }
}
