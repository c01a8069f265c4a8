//! Follows the log of a worker, which may be all that maps the engine's request ids to those of the frontend.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use foreign::{ExpectedFile, ReadError, RegularFile};
use probe_user::discover::Process;
use probe_user::process_files::{self, FileStatus};

/// Maximum number of bytes read at once, and maximum line length.
const MAX_LINE: usize = 1 << 20;

/// File descriptors of a process's standard output and error.
const STANDARD_OUTPUT: u32 = 1;
const STANDARD_ERROR: u32 = 2;

#[derive(Default)]
pub(super) struct WorkerLogs {
    logs: Vec<FollowedLog>,
}

struct FollowedLog {
    source: LogPlace,
    file: RegularFile,
    /// The last line, of which the end was not written yet.
    unfinished_line: Vec<u8>,
}

/// Where a log is found again after its rotation.
#[derive(Clone, Debug)]
enum LogPlace {
    /// A file that the user named.
    Named(PathBuf),
    /// Standard output or error of a process.
    Stream { pid: u32, descriptor: u32 },
}

impl LogPlace {
    /// Path in log messages.
    fn path(&self) -> PathBuf {
        match self {
            Self::Named(path) => path.clone(),
            Self::Stream { pid, descriptor } => PathBuf::from(format!("/proc/{pid}/fd/{descriptor}")),
        }
    }

    /// Opens the file that is at this place now, which may be another one after a rotation.
    fn open_current(&self, expected: ExpectedFile) -> Result<RegularFile, ReadError> {
        match self {
            Self::Named(path) => process_files::open_user_named_regular(path, expected),
            Self::Stream { pid, descriptor } => process_files::open_output(*pid, *descriptor),
        }
    }

    /// Status of the file that is at this place now.
    fn current_status(&self) -> Result<FileStatus, ReadError> {
        match self {
            Self::Named(path) => process_files::user_named_file_status(path),
            Self::Stream { pid, descriptor } => process_files::output_status(*pid, *descriptor),
        }
    }
}

impl WorkerLogs {
    /// Follows a log from its current end.
    pub(super) fn follow_log(&mut self, path: &Path) -> std::io::Result<()> {
        self.follow_source(LogPlace::Named(path.to_owned())).map_err(Into::into)
    }

    /// Follows the standard output and error of a worker if they are regular files.
    pub(super) fn follow_output(&mut self, process: &Process) {
        for descriptor in [STANDARD_OUTPUT, STANDARD_ERROR] {
            let source = LogPlace::Stream { pid: process.id.pid, descriptor };
            // Most write to a terminal or a pipe, which cannot be followed.
            match self.follow_source(source.clone()) {
                Ok(()) | Err(ReadError::NotRegular | ReadError::UnexpectedFileSystem) => {}
                Err(error) => tracing::info!("{} cannot be followed: {error}", source.path().display()),
            }
        }
    }

    /// Follows a log from its current end, unless it is already followed.
    fn follow_source(&mut self, source: LogPlace) -> Result<(), ReadError> {
        let file = source.open_current(ExpectedFile::ANY)?;
        // Standard output and error may be one file.
        let is_followed = self.logs.iter().any(|log| log.file.device == file.device && log.file.inode == file.inode);
        if !is_followed {
            file.file().seek(SeekFrom::End(0))?;
            self.logs.push(FollowedLog { source, file, unfinished_line: Vec::new() });
        }
        Ok(())
    }

    /// Passes each new line of all logs to `handle_line`. A log that cannot be read is tried again at the next call.
    pub(super) fn read_new_lines(&mut self, mut handle_line: impl FnMut(&str)) {
        for log in &mut self.logs {
            if let Err(error) = log.read_new_lines(&mut handle_line) {
                tracing::debug!("{}: {error}", log.source.path().display());
            }
        }
    }
}

impl FollowedLog {
    /// Reads at most `MAX_LINE` new bytes and passes the complete lines that are valid UTF-8. The rest of the last line waits for the next
    /// call.
    fn read_new_lines(&mut self, handle_line: &mut impl FnMut(&str)) -> std::io::Result<()> {
        let length_before = self.unfinished_line.len();
        self.file.file().take(MAX_LINE as u64).read_to_end(&mut self.unfinished_line)?;
        // Without new bytes, the log may have been rotated.
        if self.unfinished_line.len() == length_before {
            return self.reopen_if_rotated_or_rewind_if_truncated();
        }
        let Some(last_line_end) = self.unfinished_line.iter().rposition(|&byte| byte == b'\n') else {
            // The start of a longer line is dropped.
            if self.unfinished_line.len() > MAX_LINE {
                self.unfinished_line.clear();
            }
            return Ok(());
        };
        for line in self.unfinished_line[..last_line_end].split(|&byte| byte == b'\n') {
            if let Ok(line) = std::str::from_utf8(line) {
                handle_line(line);
            }
        }
        self.unfinished_line.drain(..=last_line_end);
        Ok(())
    }

    /// Reopens a rotated log and rewinds a truncated one.
    fn reopen_if_rotated_or_rewind_if_truncated(&mut self) -> std::io::Result<()> {
        let current = self.source.current_status()?;
        let is_same_file = self.file.device == current.device && self.file.inode == current.inode;
        if !is_same_file {
            // A link in place of the rotated file must not lead to a file of another user.
            let same_owner = ExpectedFile { owner_uid: Some(self.file.owner_uid), ..ExpectedFile::ANY };
            self.file = self.source.open_current(same_owner)?;
            self.unfinished_line.clear();
        } else if current.size_bytes < self.file.file().stream_position()? {
            self.file.file().rewind()?;
            self.unfinished_line.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

    use super::*;

    #[test]
    fn partial_lines_are_joined_and_rotated_logs_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker.log");
        std::fs::write(&path, "old\n").expect("a log");
        let mut logs = WorkerLogs::default();
        logs.follow_log(&path).expect("it is there");
        let mut seen = Vec::new();
        let mut poll = |logs: &mut WorkerLogs| logs.read_new_lines(|line| seen.push(line.to_owned()));
        let mut log = std::fs::OpenOptions::new().append(true).open(&path).expect("a log");
        write!(log, "the first").expect("half a line");
        poll(&mut logs);
        writeln!(log, " line").expect("the rest");
        poll(&mut logs);
        std::fs::rename(&path, folder.path().join("worker.log.1")).expect("moved");
        std::fs::write(&path, "another\n").expect("another");
        poll(&mut logs);
        poll(&mut logs);
        assert_eq!(seen, ["the first line", "another"]);
    }

    #[test]
    fn a_log_that_becomes_a_fifo_or_a_terminal_is_not_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker.log");
        std::fs::write(&path, "old\n").expect("a log");
        let mut logs = WorkerLogs::default();
        logs.follow_log(&path).expect("it is there");
        for kind in [FileType::Fifo, FileType::CharacterDevice] {
            std::fs::remove_file(&path).expect("removed");
            // The null device: opening a terminal would make it the controlling one.
            let made = mknodat(CWD, &path, kind, Mode::RUSR, makedev(1, 3));
            if kind == FileType::CharacterDevice && made.is_err() {
                return eprintln!("SKIPPED: a device cannot be made here");
            }
            made.expect("made");
            logs.read_new_lines(|line| panic!("{line}"));
            assert_eq!(
                logs.logs[0].read_new_lines(&mut |_| ()).expect_err("refused").to_string(),
                "not a regular file"
            );
        }
        assert!(logs.follow_log(&path).is_err());
    }
}
