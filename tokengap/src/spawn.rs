//! Start of the processes that serve this one.

use std::os::fd::OwnedFd;
use std::process::Command;

use anyhow::Context as _;
use probe_user::{channel, discarded_output};

/// Starts a process with a socket as its standard input. Returns the other end. An error names the process by `process_description`.
pub(crate) fn spawn_with_socket(mut command: Command, process_description: &str) -> anyhow::Result<OwnedFd> {
    let (our_end, child_end) = channel::message_pair().context("cannot create a socket pair")?;
    let started = discarded_output().and_then(|output| command.stdin(child_end).stdout(output).spawn());
    started.with_context(|| format!("cannot start {process_description}"))?;
    Ok(our_end)
}
