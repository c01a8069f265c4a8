//! Process that outlives tokengap and restores moved sockets if tokengap is killed.
//!
//! It waits on a pipe whose other end only tokengap holds, so any death of tokengap wakes it, including SIGKILL.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, bail};

/// Message of the guard once it is watching.
pub(crate) const READY: &[u8] = b"watching\n";

/// Handle of the guard. Drop it after everything has been restored.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pipe: Option<ChildStdin>,
}

/// Cleanup by the guard of `tokengap run`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cleanup<'a> {
    /// Process to wait for.
    pub(crate) child: u32,
    /// Folder to remove once `child` has exited.
    pub(crate) remove: &'a Path,
}

impl Guard {
    /// Starts a guard for sockets moved in `folders`, and returns once it is watching.
    pub(crate) fn start(folders: &[PathBuf], afterwards: Option<Cleanup<'_>>) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("guard");
        for folder in folders {
            command.arg("--folder").arg(folder);
        }
        if let Some(Cleanup { child, remove }) = afterwards {
            command
                .arg("--child")
                .arg(child.to_string())
                .arg("--remove")
                .arg(remove);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the guard")?;
        let pipe = process.stdin.take();
        let mut message = [0; READY.len()];
        let watches = process.stdout.take().map(|mut out| out.read_exact(&mut message));
        if !matches!(watches, Some(Ok(()))) || message != READY {
            let _ = process.kill();
            let _ = process.wait();
            bail!("the guard is not running: without it, a crash of tokengap would leave the engine's sockets moved");
        }
        Ok(Self { process, pipe })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Without this message, the guard would treat the end of the pipe as a kill.
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.process.wait();
    }
}
