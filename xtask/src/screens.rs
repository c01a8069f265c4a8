//! `cargo xtask screens`: docs/SCREENS.md, the real screens of the demo as tmux shows them.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// A screen: its title, what it answers, and the keys that lead to it from the one before.
const SHOTS: &[(&str, &str, &[&str])] = &[
    ("Overview", "Is it sick, where, since when.", &["1"]),
    (
        "Requests",
        "All requests, worst first; `/` filters, `<` and `>` sort.",
        &["2"],
    ),
    (
        "Request",
        "The selected request chunk by chunk: what waited, what was merged, what was lost.",
        &["Enter"],
    ),
    ("Hops", "Where frames wait, and for how long.", &["4"]),
    (
        "Findings",
        "What was found, since when, on what evidence, and what to do.",
        &["5"],
    ),
    ("Help", "Made from the table that the keys are bound by.", &["?"]),
];
const SCENARIOS: [(&str, &str, usize); 2] = [
    (
        "race",
        "an engine that keeps only the last queued chunk: tokens are lost",
        SHOTS.len(),
    ),
    (
        "backlog",
        "a tokenizer that is too slow: first tokens wait for seconds",
        1,
    ),
];
/// Long enough for the demo to fall ill.
const WARM: Duration = Duration::from_secs(15);
const SETTLE: Duration = Duration::from_millis(800);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the screens go.
    #[arg(long, value_name = "FILE", default_value = "docs/SCREENS.md")]
    output: String,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let built = Command::new("cargo")
        .args(["build", "--release", "-p", "tui"])
        .status()
        .context("cargo does not run")?;
    ensure!(built.success(), "tokengap does not build");
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let binary = std::fs::canonicalize(Path::new(&target).join("release/tokengap")).context("no tokengap was built")?;
    let mut page = String::from(
        "# Screens\n\nAs a terminal of 100x30 shows them. Made by `cargo xtask screens` from the demo; nothing is drawn by hand.\n",
    );
    for (scenario, what, shots) in SCENARIOS {
        let tmux = Tmux::run(&format!("{} demo --scenario {scenario}", binary.display()))?;
        sleep(WARM);
        writeln!(page, "\n## `tokengap demo --scenario {scenario}`\n\nPlays {what}.")?;
        for (title, answers, keys) in &SHOTS[..shots] {
            tmux.ask(&[&["send-keys"], *keys].concat())?;
            sleep(SETTLE);
            let pane = tmux.ask(&["capture-pane", "-p"])?;
            writeln!(page, "\n### {title}\n\n{answers}\n\n```text\n{}\n```", pane.trim_end())?;
        }
    }
    std::fs::write(&options.output, page).with_context(|| format!("cannot write {}", options.output))?;
    println!("{} is written", options.output);
    Ok(())
}

/// A tmux server with one pane, ended with this value.
struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    fn run(command: &str) -> anyhow::Result<Self> {
        let tmux = Self {
            folder: tempfile::tempdir()?,
        };
        let command = format!("LC_ALL=C.UTF-8 exec {command}");
        tmux.ask(&["new-session", "-d", "-x", "100", "-y", "30", &command])?;
        Ok(tmux)
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
