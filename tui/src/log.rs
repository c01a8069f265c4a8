//! Where log lines go: to stderr, or, while a screen is up on the terminal that stderr is, into a short memory.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trace::report::hostile::lines;
use tracing_subscriber::fmt::MakeWriter;

/// Lines kept while a screen is up; older ones are counted only.
const KEPT: usize = 500;

/// The memory. Process-wide, because the log is.
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

/// Makes writers for `tracing_subscriber`.
pub(crate) struct Writer;

/// Holds log lines back until it is dropped; then they are written to stderr.
pub(crate) struct Hold(());

impl Hold {
    /// Begins to hold, if stderr is a terminal: a file may be written to all the time.
    pub(crate) fn begin() -> Self {
        held().holding = std::io::stderr().is_terminal();
        Self(())
    }

    /// The newest line held, and how many there were.
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
        // Nobody is left to be told when stderr is gone.
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

/// Takes one formatted line; `tracing_subscriber` writes each in one call.
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
