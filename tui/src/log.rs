//! Destination of log lines: stderr, or a bounded buffer while a screen uses the same terminal.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outputs::report::hostile::{indent_following_lines, lines as replace_controls};

/// Maximum number of buffered lines; older ones are only counted.
const MAX_LINES: usize = 500;

/// Process-wide buffer, because the log is process-wide.
static BUFFER: Mutex<LogBuffer> = Mutex::new(LogBuffer { is_holding: false, lines: VecDeque::new(), evicted_lines: 0 });

struct LogBuffer {
    is_holding: bool,
    lines: VecDeque<String>,
    evicted_lines: u64,
}

/// Holds back log lines while it exists; dropping it writes them to stderr.
pub(crate) struct LogHold(());

impl LogHold {
    /// Starts holding lines back if stderr is a terminal. A file receives lines immediately.
    pub(crate) fn begin() -> Self {
        lock_buffer().is_holding = std::io::stderr().is_terminal();
        Self(())
    }

    /// Describes the log: its newest line, and the number of lines since the hold began. `None` if no line is held.
    pub(crate) fn describe_newest_line() -> Option<String> {
        let buffer = lock_buffer();
        let line = buffer.lines.back()?.trim_end();
        let count = buffer.evicted_lines + buffer.lines.len() as u64;
        Some(format!("log ({count} lines, shown at the end): {line}"))
    }
}

impl Drop for LogHold {
    /// Ends the hold, and writes the held lines to stderr.
    fn drop(&mut self) {
        let mut buffer = lock_buffer();
        buffer.is_holding = false;
        let mut out = std::io::stderr().lock();
        if buffer.evicted_lines > 0 {
            // If stderr is closed, a write error cannot be reported anywhere.
            let _ = writeln!(
                out,
                "tokengap: {} older log lines were dropped while the screen was up",
                buffer.evicted_lines
            );
        }
        for line in buffer.lines.drain(..) {
            let _ = out.write_all(line.as_bytes());
        }
        buffer.evicted_lines = 0;
    }
}

fn lock_buffer() -> MutexGuard<'static, LogBuffer> {
    BUFFER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writer of one formatted line; `tracing_subscriber` writes each line in one call.
pub struct LogLineWriter;

impl Write for LogLineWriter {
    /// Holds the line back while a screen is open, else writes it to stderr.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // A message may quote text from the wire, with line breaks and characters that control the terminal.
        let line = replace_controls(&indent_following_lines(&String::from_utf8_lossy(bytes)));
        let mut buffer = lock_buffer();
        if !buffer.is_holding {
            // Unlocked first, so that a slow stderr does not block the other threads that log.
            drop(buffer);
            std::io::stderr().write_all(line.as_bytes())?;
            return Ok(bytes.len());
        }
        // The newest lines say most about a failure.
        if buffer.lines.len() == MAX_LINES {
            buffer.lines.pop_front();
            buffer.evicted_lines += 1;
        }
        buffer.lines.push_back(line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
