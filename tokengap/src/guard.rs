//! Process that outlives tokengap and restores moved sockets if tokengap is killed.
//!
//! It waits on a pipe whose other end only tokengap holds, so any death of tokengap wakes it, including SIGKILL.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use zmq_tap::splice::{Folder, Restored, restore};

use crate::output;

/// Message of the guard once it is watching.
const READY: &[u8] = b"watching\n";

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
            command.arg("--child").arg(child.to_string()).arg("--remove").arg(remove);
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

/// The guard: waits for the end of its standard input, then restores moved sockets.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Directories in which sockets may have been moved.
    #[arg(long, value_name = "DIR")]
    folder: Vec<PathBuf>,

    /// Wait for this process to end, then remove the folder of --remove.
    #[arg(long, value_name = "PID", requires = "remove")]
    child: Option<u32>,

    /// Folder to remove at the end.
    #[arg(long, value_name = "DIR", requires = "child")]
    remove: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Survive whatever ends tokengap: detach from the terminal and ignore its signals.
    let _ = rustix::process::setsid();
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, std::sync::Arc::default())?;
    }
    // Open the folders now: `/proc/PID/root` of a target stays valid after its path changes.
    let folders: Vec<Folder> = args.folder.iter().map(|path| Folder::open(path, path)).collect::<Result<_, _>>()?;
    let child = args.child.and_then(|pid| Pid::from_raw(pid as i32));
    let child = child.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    output::raw_stdout().write_all(READY)?;
    let mut message = String::new();
    let _ = std::io::stdin().read_to_string(&mut message);
    if !message.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    errln!("tokengap has exited; moving the engine's sockets back");
    for folder in &folders {
        for restored in restore(folder)? {
            errln!("tokengap: {}", describe(&restored));
        }
    }
    if let (Some(child), Some(folder)) = (child, &args.remove) {
        while poll(&mut [PollFd::new(&child, PollFlags::IN)], None).is_err() {}
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes the outcome for one socket.
pub(crate) fn describe(restored: &Restored) -> String {
    match restored {
        Restored::Back(path) => format!("{}: the engine's socket has been restored", path.display()),
        Restored::WasBack(path) => format!("{}: was not moved", path.display()),
        Restored::Superseded(path) => {
            format!("{}: nothing to restore: the engine has exited or is listening again", path.display())
        }
        Restored::Held(path) => format!("{}: in use by a running tokengap; stop it first", path.display()),
        Restored::Refused(path, why) => format!("{}: not changed: {why}", path.display()),
    }
}
