//! Follows the log of a Dynamo worker. From release 1.6 on, only this log maps SGLang's request ids to those of the frontend.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use probe_user::discover::Process;

/// Maximum number of bytes read at once, and maximum line length.
const MOST: usize = 1 << 20;

/// Followed logs.
#[derive(Default)]
pub(super) struct Logs {
    all: Vec<Log>,
}

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
        self.all.push(Log {
            path: path.to_owned(),
            file,
            line: Vec::new(),
        });
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

    /// Passes each new pair of ids to `see`: the frontend's and SGLang's.
    pub(super) fn poll(&mut self, mut see: impl FnMut(&str, &str)) {
        for log in &mut self.all {
            if let Err(error) = log.poll(&mut see) {
                tracing::debug!("{}: {error}", log.path.display());
            }
        }
    }
}

impl Log {
    fn poll(&mut self, see: &mut impl FnMut(&str, &str)) -> std::io::Result<()> {
        let before = self.line.len();
        (&mut self.file).take(MOST as u64).read_to_end(&mut self.line)?;
        if self.line.len() == before {
            return self.look_for_another();
        }
        let Some(end) = self.line.iter().rposition(|&byte| byte == b'\n') else {
            if self.line.len() > MOST {
                self.line.clear();
            }
            return Ok(());
        };
        for line in self.line[..end].split(|&byte| byte == b'\n') {
            if let Some((context, rid)) = std::str::from_utf8(line).ok().and_then(submitted) {
                see(context, rid);
            }
        }
        self.line.drain(..=end);
        Ok(())
    }

    /// Reopens a rotated log and rewinds a truncated one.
    fn look_for_another(&mut self) -> std::io::Result<()> {
        let (ours, there) = (self.file.metadata()?, std::fs::metadata(&self.path)?);
        if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
            self.file = File::open(&self.path)?;
            self.line.clear();
        } else if there.len() < self.file.stream_position()? {
            self.file.rewind()?;
            self.line.clear();
        }
        Ok(())
    }
}

/// Parses `Submitted SGLang Request ID: RID, Context: ID` with any text around it.
fn submitted(line: &str) -> Option<(&str, &str)> {
    let (_, said) = line.split_once("Submitted SGLang Request ID: ")?;
    let (rid, rest) = said.split_once(", Context: ")?;
    let id = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let context = rest.find(|c| !id(c)).map_or(rest, |end| &rest[..end]);
    (!rid.is_empty() && rid.chars().all(id) && !context.is_empty()).then_some((context, rid))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_line_is_known_in_text_and_in_json() {
        let plain =
            "2026-05-07T08:00:00.1Z  INFO decode_handler.generate: Submitted SGLang Request ID: 8f3a, Context: 1b-2c";
        let json = r#"{"level":"INFO","message":"Submitted SGLang Request ID: 8f3a, Context: 1b-2c","file":"x"}"#;
        for line in [plain, json] {
            assert_eq!(submitted(line), Some(("1b-2c", "8f3a")), "{line}");
        }
        for line in [
            "",
            "Submitted SGLang Request ID: , Context: a",
            "Submitted SGLang Request ID: a b, Context: c",
        ] {
            assert_eq!(submitted(line), None, "{line}");
        }
    }

    #[test]
    fn lines_come_in_pieces_and_logs_are_moved_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("worker.log");
        std::fs::write(&path, "Submitted SGLang Request ID: old, Context: old\n").expect("a log");
        let mut logs = Logs::default();
        logs.follow(&path).expect("it is there");
        let mut seen = Vec::new();
        let mut poll = |logs: &mut Logs| logs.poll(|context, rid| seen.push(format!("{context}={rid}")));
        let mut log = std::fs::OpenOptions::new().append(true).open(&path).expect("a log");
        write!(log, "Submitted SGLang Request").expect("half a line");
        poll(&mut logs);
        writeln!(log, " ID: r1, Context: c1").expect("the rest");
        poll(&mut logs);
        std::fs::rename(&path, folder.path().join("worker.log.1")).expect("moved");
        std::fs::write(&path, "Submitted SGLang Request ID: r2, Context: c2\n").expect("another");
        poll(&mut logs);
        poll(&mut logs);
        assert_eq!(seen, ["c1=r1", "c2=r2"]);
    }
}
