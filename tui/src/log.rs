//! Destination of log lines: stderr, or a bounded buffer while a screen uses the same terminal.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outputs::report::hostile::{indented, lines};

/// Maximum number of buffered lines; older ones are only counted.
const MAX_LINES: usize = 500;

/// Process-wide buffer, because the log is process-wide.
static BUFFER: Mutex<Buffer> = Mutex::new(Buffer { holding: false, lines: VecDeque::new(), evicted: 0 });

struct Buffer {
    holding: bool,
    lines: VecDeque<String>,
    evicted: u64,
}

/// Holds back log lines; dropping it writes them to stderr.
pub(crate) struct LogHold(());

impl LogHold {
    /// Starts holding lines back if stderr is a terminal. A file receives lines immediately.
    pub(crate) fn begin() -> Self {
        buffer().holding = std::io::stderr().is_terminal();
        Self(())
    }

    /// Newest held line, and the total number of held lines.
    pub(crate) fn newest() -> Option<(String, u64)> {
        let buffer = buffer();
        let line = buffer.lines.back()?;
        Some((line.trim_end().to_owned(), buffer.evicted + buffer.lines.len() as u64))
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        let mut buffer = buffer();
        buffer.holding = false;
        let mut out = std::io::stderr().lock();
        // Write errors cannot be reported if stderr is closed.
        if buffer.evicted > 0 {
            let _ = writeln!(out, "tokengap: {} older log lines were dropped while the screen was up", buffer.evicted);
        }
        for line in buffer.lines.drain(..) {
            let _ = out.write_all(line.as_bytes());
        }
        buffer.evicted = 0;
    }
}

fn buffer() -> MutexGuard<'static, Buffer> {
    BUFFER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writer of one formatted line; `tracing_subscriber` writes each line in one call.
pub struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = lines(&indented(&String::from_utf8_lossy(bytes)));
        let mut buffer = buffer();
        if !buffer.holding {
            drop(buffer);
            return std::io::stderr().write_all(line.as_bytes()).map(|()| bytes.len());
        }
        if buffer.lines.len() == MAX_LINES {
            buffer.lines.pop_front();
            buffer.evicted += 1;
        }
        buffer.lines.push_back(line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
