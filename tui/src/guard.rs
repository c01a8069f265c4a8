//! A process that outlives ours: should we be killed, it puts back what we had moved.
//!
//! It waits for the end of a pipe whose other end only we hold, so that any death of ours, also by SIGKILL, ends it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, bail};

/// What the guard says when it watches.
pub(crate) const READY: &[u8] = b"watching\n";

/// The guard. Dropping it lets it go, when everything has been given back.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pipe: Option<ChildStdin>,
}

/// What the guard of a run clears away once nobody needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Afterwards<'a> {
    /// When this process has ended ...
    pub(crate) child: u32,
    /// ... this folder is removed.
    pub(crate) remove: &'a Path,
}

impl Guard {
    /// Starts a guard of what is moved in `folders`; returns when it watches.
    pub(crate) fn start(folders: &[PathBuf], afterwards: Option<Afterwards<'_>>) -> anyhow::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("guard");
        for folder in folders {
            command.arg("--folder").arg(folder);
        }
        if let Some(Afterwards { child, remove }) = afterwards {
            command
                .arg("--child")
                .arg(child.to_string())
                .arg("--remove")
                .arg(remove);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the guard")?;
        let pipe = process.stdin.take();
        let mut said = [0; READY.len()];
        let watches = process.stdout.take().map(|mut out| out.read_exact(&mut said));
        if !matches!(watches, Some(Ok(()))) || said != READY {
            let _ = process.kill();
            let _ = process.wait();
            bail!("the guard does not watch: without it a crash of tokengap would leave the engine's sockets moved");
        }
        Ok(Self { process, pipe })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A word first: an end alone means that we were killed.
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.process.wait();
    }
}
