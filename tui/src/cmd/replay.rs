//! `tokengap replay`: plays a recording on the live screen, or prints its report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use trace::detect::Severity;
use trace::record::Recording;

use crate::app::{self, Signals};
use crate::cli::{ScreenArgs, severity};
use crate::confinement;
use crate::drive::Drive;
use crate::progress;
use crate::replay::{self, Player, Recorded, Speed};
use crate::screen::Screen;
use crate::sink::Sink;

/// Play a recording on the screen of the live run, or print the report that the live run would have printed.
///
/// Every clock is the recording's. Without a terminal it is analysed as fast as can be.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap replay run.tgap\n  tokengap replay run.tgap --speed 8x\n  tokengap replay run.tgap --json > report.json"
)]
pub(crate) struct Args {
    /// The recording, or a hindsight ring.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// How fast to play it: 0.25x, 0.5x, 1x, 2x, ... 64x, max.
    #[arg(long, value_name = "SPEED", default_value_t)]
    speed: Speed,

    /// No screen: analyse it, then print the report. Implied when stdout is not a terminal.
    #[arg(long)]
    headless: bool,

    /// Print the report as JSON, schema tokengap.report/1 (implies --headless).
    #[arg(long)]
    json: bool,

    /// Exit with 1 when a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", value_parser = severity)]
    fail_on: Option<Severity>,

    /// Requests to list in the report as the slowest, of those that are kept in detail; 0 lists none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    slowest: usize,

    #[command(flatten)]
    screen: ScreenArgs,
}

/// Restricts the process to the access this command needs.
pub(crate) fn confine(args: &Args) {
    // The screen can export a report into the working folder.
    let here = (!is_headless(args)).then(|| Path::new("report.json"));
    confinement::files(&[&args.file], &[here]);
}

fn is_headless(args: &Args) -> bool {
    args.headless || args.json || !app::has_terminal()
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let recording = Recording::open(&args.file)?;
    if is_headless(args) {
        if !args.headless && !args.json {
            app::tell_no_terminal();
        }
        return print(&recording, args);
    }
    let about = Recorded::of(&recording);
    let span = recording
        .span()
        .with_context(|| format!("nothing was recorded in {}", args.file.display()))?;
    let signals = Signals::install().context("cannot listen for signals")?;
    let config = recording.header().config;
    let sink = Sink::none(&recording.header().source, &config);
    let mut run = Drive::new(&config, Box::new(Screen::open(&args.screen)?), sink, args.slowest);
    let mut player = Player::new(span, args.speed);
    let played = replay::drive(&recording, &mut run, &about, &mut player, &signals);
    if let Err(error) = &played {
        run.give_up(format!("recording: {error}"));
    }
    let report = run.finish(&about);
    if !player.has_ended() {
        errln!("tokengap: it was not played to its end; --headless prints the report of all of it");
        return Ok(ExitCode::SUCCESS);
    }
    app::conclude(&report, args.json, args.fail_on)
}

/// Prints the report of the whole recording.
fn print(recording: &Recording, args: &Args) -> anyhow::Result<ExitCode> {
    let (analysis, mut input) = progress::analysed(recording)?;
    input.slowest = args.slowest;
    app::conclude(&analysis.report(&input), args.json, args.fail_on)
}
