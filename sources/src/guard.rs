//! Handle of the process that outlives tokengap and restores moved sockets if tokengap is killed.
//!
//! It waits on a pipe whose other end only tokengap holds, so any death of tokengap wakes it, including SIGKILL.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, bail};
use confine::Account;
use zmq_tap::splice::Folder;

/// Message of the guard once it is watching.
pub const READY: &[u8] = b"watching\n";

/// Message to the guard that everything was restored.
const DONE: &[u8] = b"done\n";

/// Handle of the guard. Drop it after everything has been restored.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    pipe: Option<ChildStdin>,
}

/// Cleanup by the guard of `tokengap run`.
#[derive(Clone, Copy, Debug)]
pub struct Cleanup<'a> {
    /// Process to wait for.
    pub child: u32,
    /// Folder to remove once `child` has exited.
    pub remove: &'a Path,
}

impl Guard {
    /// Starts a guard for sockets moved in `folders`, and returns once it is watching. It takes the user and group of `account`. If this
    /// process is killed, the guard restores the sockets, and does the cleanup `afterwards`.
    pub fn start(
        folders: &[Folder],
        account: Option<Account>,
        afterwards: Option<Cleanup<'_>>,
    ) -> anyhow::Result<Self> {
        for folder in folders {
            // By descriptor, because the owner of the folder may exchange it for another.
            folder.set_inheritable(true).context("cannot pass a folder to the guard")?;
        }
        let started = guard_command(folders, account, afterwards).spawn();
        for folder in folders {
            // Taken back even if the start failed, so that no other child inherits the folder.
            folder.set_inheritable(false).context("cannot take back a folder passed to the guard")?;
        }
        let mut process = started.context("cannot start the guard")?;
        let pipe = process.stdin.take();
        if !wait_for_ready_message(&mut process) {
            // Both fail if the guard has exited by itself.
            let _ = process.kill();
            let _ = process.wait();
            bail!("the guard is not running: without it, a crash of tokengap would leave the engine's sockets moved");
        }
        Ok(Self { process, pipe })
    }
}

/// The command of a guard for these folders, which it inherits.
fn guard_command(folders: &[Folder], account: Option<Account>, afterwards: Option<Cleanup<'_>>) -> Command {
    // The program that runs now, even if its file was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg("guard");
    for folder in folders {
        // Without a file name, this is the folder itself.
        let shown_path = folder.shown("");
        command.arg("--folder").arg(folder.path()).arg("--shown").arg(shown_path);
    }
    if let Some(Account { user, group }) = account {
        command.arg("--user").arg(user.to_string()).arg("--group").arg(group.to_string());
    }
    if let Some(Cleanup { child, remove }) = afterwards {
        command.arg("--child").arg(child.to_string()).arg("--remove").arg(remove);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Waits for the message of the guard that it is watching. Returns false if it sends something else, or ends.
fn wait_for_ready_message(process: &mut Child) -> bool {
    let mut message = [0; READY.len()];
    let has_answered = process.stdout.take().is_some_and(|mut out| out.read_exact(&mut message).is_ok());
    has_answered && message == READY
}

impl Drop for Guard {
    /// Ends the guard, which then leaves the sockets alone.
    fn drop(&mut self) {
        // Without this message, the guard would treat the end of the pipe as a kill.
        if let Some(mut pipe) = self.pipe.take() {
            // A guard that has exited already needs no message.
            let _ = pipe.write_all(DONE);
        }
        // The guard ends at the message, and is reaped here.
        let _ = self.process.wait();
    }
}
