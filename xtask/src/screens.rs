//! `cargo xtask screens`: docs/SCREENS.md, the real screens of the demo as tmux shows them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::tmux::Tmux;

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

    /// The tokengap to take them from; by default a release build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary).with_context(|| format!("there is no {}", binary.display()))?,
        None => build()?,
    };
    let mut page = String::from(
        "# Screens\n\nAs a terminal of 100x30 shows them. Made by `cargo xtask screens` from the demo; nothing is drawn by hand.\n",
    );
    for (scenario, what, shots) in SCENARIOS {
        let tmux = Tmux::run((100, 30), &format!("{} demo --scenario {scenario}", binary.display()))?;
        sleep(WARM);
        writeln!(page, "\n## `tokengap demo --scenario {scenario}`\n\nPlays {what}.")?;
        for (title, answers, keys) in &SHOTS[..shots] {
            tmux.press(keys)?;
            sleep(SETTLE);
            let pane = tmux.pane()?;
            writeln!(page, "\n### {title}\n\n{answers}\n\n```text\n{}\n```", pane.trim_end())?;
        }
    }
    std::fs::write(&options.output, page).with_context(|| format!("cannot write {}", options.output))?;
    println!("{} is written", options.output);
    Ok(())
}

/// A release build of this tree's tokengap.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let built = Command::new("cargo").args(["build", "--release", "-p", "tui"]).status();
    ensure!(
        built.context("cargo does not run")?.success(),
        "tokengap does not build"
    );
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    std::fs::canonicalize(Path::new(&target).join("release/tokengap")).context("no tokengap was built")
}
