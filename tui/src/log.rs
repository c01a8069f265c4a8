//! Destination of log lines: stderr, or a bounded buffer while a screen uses the same terminal.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trace::report::hostile::lines;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of buffered lines; older ones are only counted.
const KEPT: usize = 500;

/// Process-wide buffer, because the log is process-wide.
static HELD: Mutex<Held> = Mutex::new(Held {
    holding: false,
    lines: VecDeque::new(),
    forgotten: 0,
});

struct Held {
    holding: bool,
    lines: VecDeque<String>,
    forgotten: u64,
}

/// Creates writers for `tracing_subscriber`.
pub(crate) struct Writer;

/// Holds back log lines; dropping it writes them to stderr.
pub(crate) struct Hold(());

impl Hold {
    /// Starts holding lines back if stderr is a terminal. A file receives lines immediately.
    pub(crate) fn begin() -> Self {
        held().holding = std::io::stderr().is_terminal();
        Self(())
    }

    /// Newest held line, and the total number of held lines.
    pub(crate) fn newest() -> Option<(String, u64)> {
        let held = held();
        let line = held.lines.back()?;
        Some((line.trim_end().to_owned(), held.forgotten + held.lines.len() as u64))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = held();
        held.holding = false;
        let mut out = std::io::stderr().lock();
        // Write errors cannot be reported if stderr is closed.
        if held.forgotten > 0 {
            let _ = writeln!(
                out,
                "tokengap: {} older log lines were dropped while the screen was up",
                held.forgotten
            );
        }
        for line in held.lines.drain(..) {
            let _ = out.write_all(line.as_bytes());
        }
        held.forgotten = 0;
    }
}

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line
    }
}

/// Writer of one formatted line; `tracing_subscriber` writes each line in one call.
pub(crate) struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut held = held();
        if !held.holding {
            drop(held);
            std::io::stderr().write_all(lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
            return Ok(bytes.len());
        }
        if held.lines.len() == KEPT {
            held.lines.pop_front();
            held.forgotten += 1;
        }
        held.lines.push_back(lines(&String::from_utf8_lossy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
