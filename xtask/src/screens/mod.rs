//! `cargo xtask screens`: captures demo screens in tmux for docs/reference/gallery.md and other pages.

mod built;
mod picture;
mod retake;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::tmux::Tmux;

/// A screen: its title, the question it answers, and the keys that lead to it from the previous one.
type Shot = (&'static str, &'static str, &'static [&'static str]);

const LIVE: &[Shot] = &[
    ("Overview", "The worst finding, its hop and its beginning.", &["1"]),
    (
        "Requests",
        "All requests, worst first; `/` filters, `<` and `>` sort.",
        &["2"],
    ),
    (
        "Request",
        "The selected request chunk by chunk: queue wait, merged and lost chunks.",
        &["Enter"],
    ),
    ("Hops", "Queue wait and backlog of each hop.", &["4"]),
    (
        "Findings",
        "Findings with their beginning, evidence and advice.",
        &["5"],
    ),
    ("Help", "Every key.", &["?"]),
];
const REPLAYED: &[Shot] = &[
    (
        "The next finding",
        "`f` goes to where it begins and pauses.",
        &["0", "f"],
    ),
    (
        "A moment",
        "`t` goes to a time; every number is that moment's.",
        &["t", "0:12", "Enter"],
    ),
];
const OFFERED: &[Shot] = &[(
    "What there is to watch",
    "Enter runs what the line at the bottom says.",
    &[],
)];

/// One run of the program, with its screens.
struct Scene {
    /// Arguments of `tokengap`.
    arguments: &'static str,
    about: &'static str,
    /// Long enough for the demo to fall ill.
    warm: Duration,
    shots: &'static [Shot],
}

const SCENES: [Scene; 4] = [
    Scene {
        arguments: "",
        about: "Without arguments: engines, recordings in the folder, demos.",
        warm: Duration::from_secs(3),
        shots: OFFERED,
    },
    Scene {
        arguments: "demo --scenario race",
        about: "Plays an engine that keeps only the last queued chunk: tokens are lost.",
        warm: WARM,
        shots: LIVE,
    },
    Scene {
        arguments: "demo --scenario backlog",
        about: "Plays a tokenizer that is too slow: first tokens wait for seconds.",
        warm: WARM,
        shots: LIVE.split_at(1).0,
    },
    Scene {
        arguments: "replay race.tgap",
        about: "The first of these runs, recorded with `--record race.tgap`.",
        warm: Duration::from_secs(4),
        shots: REPLAYED,
    },
];
const SIZE: (u16, u16) = (100, 30);
const WARM: Duration = Duration::from_secs(15);
const SETTLE: Duration = Duration::from_millis(1_500);
/// Arguments of the run in the picture.
const PICTURED: &str = "demo --scenario race --theme dark";
/// Arguments of the run that is recorded for the replay.
const RECORD: &str = "demo --scenario race --headless --duration 20s --record race.tgap";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the screens go.
    #[arg(long, value_name = "FILE", default_value = "docs/reference/gallery.md")]
    output: String,

    /// A page whose blocks are replaced where a comment says how. Repeatable.
    #[arg(long, value_name = "FILE", default_values = ["docs/screens.md", "docs/recordings.md"])]
    guide: Vec<PathBuf>,

    /// Where the README's picture goes.
    #[arg(long, value_name = "FILE", default_value = "docs/overview.svg")]
    picture: PathBuf,

    /// Write the picture only.
    #[arg(long)]
    only_picture: bool,

    /// The tokengap to take them from; by default a release build of this tree.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let binary = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary).with_context(|| format!("there is no {}", binary.display()))?,
        None => build()?,
    };
    let shown = Tmux::run(SIZE, &format!("exec {} {PICTURED}", binary.display()))?;
    sleep(WARM);
    let drawn = picture::svg(&shown.coloured()?, SIZE)?;
    std::fs::write(&options.picture, drawn).with_context(|| format!("cannot write {}", options.picture.display()))?;
    println!("{} is written", options.picture.display());
    if options.only_picture {
        return Ok(());
    }
    let mut page =
        String::from("# Screens\n\nScreens of a terminal of 100x30. `cargo xtask screens` takes them from the demo.\n");
    let folder = tempfile::tempdir()?;
    let mut record = Command::new(&binary);
    let recorded = record.current_dir(folder.path()).args(RECORD.split(' ')).output();
    let recorded = recorded.context("the demo does not run")?;
    ensure!(
        recorded.status.success(),
        "tokengap {RECORD}: {}",
        String::from_utf8_lossy(&recorded.stderr)
    );
    for path in &options.guide {
        let page = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (page, replaced) = retake::retake(&page, &binary, folder.path())?;
        std::fs::write(path, page)?;
        println!("{replaced} blocks of {} are replaced", path.display());
    }
    for scene in &SCENES {
        let line = format!("tokengap {}", scene.arguments);
        writeln!(page, "\n## `{}`\n\n{}", line.trim_end(), scene.about)?;
        let command = format!(
            "cd {}; exec {} {}",
            folder.path().display(),
            binary.display(),
            scene.arguments
        );
        let tmux = Tmux::run(SIZE, &command)?;
        sleep(scene.warm);
        for (title, answers, keys) in scene.shots {
            for key in *keys {
                tmux.press(&[key])?;
                sleep(SETTLE);
            }
            let pane = tmux.pane()?;
            writeln!(page, "\n### {title}\n\n{answers}\n\n```text\n{}\n```", pane.trim_end())?;
        }
    }
    std::fs::write(&options.output, page).with_context(|| format!("cannot write {}", options.output))?;
    println!("{} is written", options.output);
    Ok(())
}

/// A release build of this tree's tokengap; reuses an existing one that is newer than its sources.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let program = Path::new(&target).join("release/tokengap");
    if !built::is_current(&program, Path::new(".")) {
        let built = Command::new("cargo").args(["build", "--release", "-p", "tui"]).status();
        ensure!(
            built.context("cargo does not run")?.success(),
            "tokengap does not build"
        );
    }
    std::fs::canonicalize(program).context("no tokengap was built")
}
