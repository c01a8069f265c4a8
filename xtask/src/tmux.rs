//! A terminal to run a program in and to look at: tmux, with a server of its own.

use std::process::Command;

use anyhow::{Context, bail};

/// A tmux server with one pane, ended with this value.
pub(crate) struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// Runs a shell command in a pane of that many columns and rows.
    pub(crate) fn run((columns, rows): (u16, u16), command: &str) -> anyhow::Result<Self> {
        let tmux = Self {
            folder: tempfile::tempdir()?,
        };
        let command = format!("export LC_ALL=C.UTF-8; {command}");
        let (columns, rows) = (columns.to_string(), rows.to_string());
        tmux.ask(&["new-session", "-d", "-x", &columns, "-y", &rows, &command])?;
        Ok(tmux)
    }

    /// What the pane shows.
    pub(crate) fn pane(&self) -> anyhow::Result<String> {
        self.ask(&["capture-pane", "-p"])
    }

    /// What the pane shows, with colours and weights as SGR sequences.
    pub(crate) fn coloured(&self) -> anyhow::Result<String> {
        self.ask(&["capture-pane", "-e", "-p"])
    }

    /// Presses keys, as tmux names them.
    pub(crate) fn press(&self, keys: &[&str]) -> anyhow::Result<()> {
        self.ask(&[&["send-keys"], keys].concat()).map(drop)
    }

    /// The process in the pane.
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
        // It ends with its pane in any case.
        let _ = self.ask(&["kill-server"]);
    }
}
