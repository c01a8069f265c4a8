//! Working folder of a page. Its blocks run in order, so that later ones can use the files of earlier ones.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::block::Block;

/// Run time of a live command, overriding the page's.
const LIVE: &str = "2s";
/// Time limit after which a command counts as hung.
const PATIENCE: Duration = Duration::from_mins(1);
/// Commands that run until stopped.
const ENDLESS: [&str; 5] = ["attach", "demo", "splice", "tap", "watch"];

pub(crate) struct Page {
    folder: tempfile::TempDir,
    path: OsString,
    /// Process id of the engine, which replaces the one on the page.
    pub(crate) engine: Option<u32>,
}

impl Page {
    pub(crate) fn new(binary: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let bin = folder.path().join(".bin");
        fs::create_dir(&bin)?;
        std::os::unix::fs::symlink(binary, bin.join("tokengap"))?;
        // Pages use sudo; provide a stand-in so that the commands also run without it.
        fs::write(bin.join("sudo"), "#!/bin/sh\nexec \"$@\"\n")?;
        fs::set_permissions(bin.join("sudo"), fs::Permissions::from_mode(0o755))?;
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&inherited)))?;
        Ok(Self {
            folder,
            path,
            engine: None,
        })
    }

    pub(crate) fn run(&mut self, block: &Block) -> Result<()> {
        if let Some(first) = &block.first {
            self.start(first)?.end()?;
        }
        if block.together {
            let mut running = Vec::new();
            for command in &block.commands {
                running.push(self.start(command)?);
                std::thread::sleep(Duration::from_millis(300));
            }
            return running.into_iter().try_for_each(Started::end);
        }
        block.commands.iter().try_for_each(|command| self.start(command)?.end())
    }

    fn start(&self, command: &str) -> Result<Started> {
        let said = self.folder.path().join(".said");
        let line = self.shortened(command);
        let child = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &line])
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said)?)
            .spawn()
            .context("starting bash")?;
        Ok(Started {
            // `doctor` and `--fail-on` report findings through the exit code.
            may_find: command.contains("doctor") || command.contains("--fail-on"),
            line,
            child,
            said,
        })
    }

    /// The command with a limited run time, and with the engine's process id.
    fn shortened(&self, command: &str) -> String {
        let mut words: Vec<&str> = command.split(' ').collect();
        let pid = self.engine.map(|pid| pid.to_string());
        for word in &mut words {
            if let (&mut "4711", Some(pid)) = (&mut *word, &pid) {
                *word = pid;
            }
        }
        let live = words
            .iter()
            .position(|word| *word == "tokengap")
            .filter(|at| words.get(at + 1).is_some_and(|command| ENDLESS.contains(command)));
        if let Some(at) = live {
            match words.iter().position(|word| *word == "--duration") {
                Some(flag) => words[flag + 1] = LIVE,
                None => drop(words.splice(at + 2..at + 2, ["--duration", LIVE])),
            }
        }
        words.join(" ")
    }
}

/// A running command.
struct Started {
    line: String,
    may_find: bool,
    child: Child,
    said: std::path::PathBuf,
}

impl Started {
    fn end(mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                bail!("`{}` has not ended within {PATIENCE:?}", self.line);
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let well = status.success() || (self.may_find && status.code() == Some(1));
        ensure!(
            well,
            "`{}` ended with {status}: {}",
            self.line,
            fs::read_to_string(&self.said)?.trim_end()
        );
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Both fail only if the process has already exited and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_commands_get_an_end_and_pages_an_engine() -> Result<()> {
        let mut page = Page::new(Path::new("/bin/true"))?;
        assert_eq!(
            page.shortened("sudo tokengap attach --pid 4711 > a.json"),
            "sudo tokengap attach --duration 2s --pid 4711 > a.json"
        );
        page.engine = Some(12);
        assert_eq!(
            page.shortened("tokengap splice --pid 4711 --duration 1m"),
            "tokengap splice --pid 12 --duration 2s"
        );
        assert_eq!(page.shortened("tokengap report a.tgap"), "tokengap report a.tgap");
        Ok(())
    }
}
