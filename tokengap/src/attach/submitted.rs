//! Follows the log of a worker, which may be all that maps the engine's request ids to those of the frontend.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use probe_user::discover::Process;

/// Maximum number of bytes read at once, and maximum line length.
const MAX_LINE: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Logs(Vec<Log>);

struct Log {
    path: PathBuf,
    file: File,
    /// Unfinished last line.
    line: Vec<u8>,
}

impl Logs {
    /// Follows a log from its current end.
    pub(super) fn follow(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(0))?;
        self.0.push(Log { path: path.to_owned(), file, line: Vec::new() });
        Ok(())
    }

    /// Follows the standard output and error of a worker if they are regular files.
    pub(super) fn follow_output(&mut self, process: &Process) {
        let mut known = Vec::new();
        for stream in [1, 2] {
            let path = PathBuf::from(format!("/proc/{}/fd/{stream}", process.id.pid));
            let Some(found) = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file) else {
                continue;
            };
            let name = (found.dev(), found.ino());
            if known.contains(&name) {
                continue;
            }
            known.push(name);
            if let Err(error) = self.follow(&path) {
                tracing::info!("{} cannot be followed: {error}", path.display());
            }
        }
    }

    /// Passes each new line to `handle_line`.
    pub(super) fn poll(&mut self, mut handle_line: impl FnMut(&str)) {
        for log in &mut self.0 {
            if let Err(error) = log.poll(&mut handle_line) {
                tracing::debug!("{}: {error}", log.path.display());
            }
        }
    }
}

impl Log {
    fn poll(&mut self, handle_line: &mut impl FnMut(&str)) -> std::io::Result<()> {
        let before = self.line.len();
        (&mut self.file).take(MAX_LINE as u64).read_to_end(&mut self.line)?;
        if self.line.len() == before {
            return self.check_rotation();
        }
        let Some(end) = self.line.iter().rposition(|&byte| byte == b'\n') else {
            if self.line.len() > MAX_LINE {
                self.line.clear();
            }
            return Ok(());
        };
        for line in self.line[..end].split(|&byte| byte == b'\n') {
            if let Ok(line) = std::str::from_utf8(line) {
                handle_line(line);
            }
        }
        self.line.drain(..=end);
        Ok(())
    }

    /// Reopens a rotated log and rewinds a truncated one.
    fn check_rotation(&mut self) -> std::io::Result<()> {
        let (opened, current) = (self.file.metadata()?, std::fs::metadata(&self.path)?);
        if (opened.dev(), opened.ino()) != (current.dev(), current.ino()) {
            self.file = File::open(&self.path)?;
            self.line.clear();
        } else if current.len() < self.file.stream_position()? {
            self.file.rewind()?;
            self.line.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn partial_lines_are_joined_and_rotated_logs_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker.log");
        std::fs::write(&path, "old\n").expect("a log");
        let mut logs = Logs::default();
        logs.follow(&path).expect("it is there");
        let mut seen = Vec::new();
        let mut poll = |logs: &mut Logs| logs.poll(|line| seen.push(line.to_owned()));
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
}
