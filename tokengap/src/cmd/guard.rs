//! `tokengap guard`: hidden command, started by [`sources::guard`].

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use confine::{Account, Plan, Work};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sources::guard::READY;
use zmq_tap::splice::{Folder, Restored, restore_sockets};

use super::ignore_ending_signals;
use crate::{confinement, output};

/// The guard: waits for the end of its standard input, then restores moved sockets.
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    /// Directories in which sockets may have been moved.
    #[arg(long, value_name = "DIR")]
    folder: Vec<PathBuf>,

    /// Path of each folder in messages.
    #[arg(long, value_name = "DIR")]
    shown: Vec<PathBuf>,

    /// User that owns the sockets.
    #[arg(long, value_name = "UID", requires = "group")]
    user: Option<u32>,

    /// Group of that user.
    #[arg(long, value_name = "GID", requires = "user")]
    group: Option<u32>,

    /// Wait for this process to end, then remove the folder of --remove.
    #[arg(long, value_name = "PID", requires = "remove")]
    child: Option<u32>,

    /// Folder to remove at the end.
    #[arg(long, value_name = "DIR", requires = "child")]
    remove: Option<PathBuf>,
}

/// The guard of a splice or a run: waits for the end of tokengap, and moves the sockets back if tokengap did not.
pub(crate) fn run_guard(args: &Args) -> anyhow::Result<ExitCode> {
    // Survive whatever ends tokengap: detach from the terminal and ignore its signals. The detachment fails in a process that leads a group
    // already. The guard goes on without it.
    let _ = rustix::process::setsid();
    ignore_ending_signals()?;
    let folders = open_folders(args)?;
    // Moving the sockets back needs only the rights of their owner. Without these arguments, that is the user of this process.
    if let (Some(user), Some(group)) = (args.user, args.group) {
        let plan = Plan::new(Work::Move);
        confinement::change_account_and_confine(Account { user, group }, plan)?;
    }
    let child_pid = args.child.and_then(|pid| Pid::from_raw(pid as i32));
    // Opened now, because the pid may be reused later.
    let child = child_pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    output::raw_stdout().write_all(READY)?;
    let has_restored_itself = wait_for_end_and_check_restored();
    if has_restored_itself {
        return Ok(ExitCode::SUCCESS);
    }
    errln!("tokengap has exited; moving the engine's sockets back");
    for folder in &folders {
        move_sockets_back(folder)?;
    }
    if let (Some(child), Some(folder)) = (child, &args.remove) {
        // The command may still use its folder.
        wait_for_exit(&child);
        // The command may have removed its folder already, and nobody is left to read an error.
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the process of this descriptor has exited, however long.
fn wait_for_exit(process: &OwnedFd) {
    let no_timeout = None;
    // The descriptor becomes readable at the exit. A poll that a signal interrupts is repeated.
    while poll(&mut [PollFd::new(process, PollFlags::IN)], no_timeout).is_err() {}
}

/// Opens the folders in which sockets may have been moved.
fn open_folders(args: &Args) -> anyhow::Result<Vec<Folder>> {
    let mut folders = Vec::new();
    for (path, shown) in args.folder.iter().zip(&args.shown) {
        folders.push(Folder::open(path, shown)?);
    }
    Ok(folders)
}

/// Blocks until tokengap ends, however it ends: the kernel then closes its end of the pipe. Returns whether tokengap has written a message
/// before, which says that it has restored the sockets itself.
fn wait_for_end_and_check_restored() -> bool {
    let mut message = String::new();
    // An error is such an end, too.
    let _ = std::io::stdin().read_to_string(&mut message);
    !message.is_empty()
}

/// Restores the sockets of a folder, and prints each outcome but that of other users' sockets.
fn move_sockets_back(folder: &Folder) -> anyhow::Result<()> {
    for restored in restore_sockets(folder)? {
        if !matches!(restored, Restored::OfAnother(_)) {
            errln!("tokengap: {}", describe_restored(&restored));
        }
    }
    Ok(())
}

/// Describes the outcome for one socket.
pub(crate) fn describe_restored(restored: &Restored) -> String {
    match restored {
        Restored::Back(path) => format!("{}: the engine's socket has been restored", path.display()),
        Restored::WasBack(path) => format!("{}: was not moved", path.display()),
        Restored::Superseded(path) => {
            format!("{}: nothing to restore: the engine has exited or is listening again", path.display())
        }
        Restored::Held(path) => format!("{}: in use by a running tokengap; stop it first", path.display()),
        Restored::Refused(path, why) => format!("{}: not changed: {why}", path.display()),
        Restored::OfAnother(path) => format!("{}: not examined: its note belongs to another user", path.display()),
    }
}
