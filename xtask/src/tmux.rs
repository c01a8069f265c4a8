//! A terminal for running a program and reading its screen: tmux, with a separate server.

use std::process::Command;

use anyhow::{Context, bail};

/// A tmux server with one pane, ended when dropped.
pub(crate) struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// Runs a shell command in a pane with these columns and rows.
    pub(crate) fn run((columns, rows): (u16, u16), command: &str) -> anyhow::Result<Self> {
        let tmux = Self {
            folder: tempfile::tempdir()?,
        };
        let command = format!("export LC_ALL=C.UTF-8; {command}");
        let (columns, rows) = (columns.to_string(), rows.to_string());
        tmux.ask(&["new-session", "-d", "-x", &columns, "-y", &rows, &command])?;
        Ok(tmux)
    }

    /// Text of the pane.
    pub(crate) fn pane(&self) -> anyhow::Result<String> {
        self.ask(&["capture-pane", "-p"])
    }

    /// Text of the pane, with colours and weights as SGR sequences.
    pub(crate) fn coloured(&self) -> anyhow::Result<String> {
        self.ask(&["capture-pane", "-e", "-p"])
    }

    /// Sends keys, by their tmux names.
    pub(crate) fn press(&self, keys: &[&str]) -> anyhow::Result<()> {
        self.ask(&[&["send-keys"], keys].concat()).map(drop)
    }

    /// Process id of the pane's program.
    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        let pid = self.ask(&["display-message", "-p", "#{pane_pid}"])?;
        pid.trim()
            .parse()
            .with_context(|| format!("tmux names no process: {pid:?}"))
    }

    fn ask(&self, args: &[&str]) -> anyhow::Result<String> {
        let socket = self.folder.path().join("tmux");
        let output = Command::new("tmux")
            .arg("-S")
            .arg(socket)
            .args(["-f", "/dev/null"])
            .args(args)
            .output();
        let output = output.context("tmux does not run; install it to take screens")?;
        if !output.status.success() {
            bail!("tmux {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // The server also exits with its pane.
        let _ = self.ask(&["kill-server"]);
    }
}
