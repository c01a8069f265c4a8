//! `tokengap replay`: plays a recording on the live screen, or prints its report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use session::Session;
use session::playback::{Player, Speed};
use session::replay::{self, Recorded};
use session::sink::Sink;
use trace::Config;
use trace::record::Recording;
use tui::Screen;

use session::Signals;

use crate::app;
use crate::args::{OutcomeArgs, ReportArgs, ScreenArgs};
use crate::confinement;
use crate::progress;
use crate::terminal;

/// Play a recording on the screen of the live run, or print the report that the live run would have printed.
///
/// All times are those of the recording. Without a terminal, it is analysed as fast as possible.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap replay run.tgap\n  tokengap replay run.tgap --speed 8x\n  tokengap replay run.tgap --json > report.json"
)]
pub(crate) struct Args {
    /// The recording, or a hindsight ring.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Playback speed: 0.25x, 0.5x, 1x, 2x, ... 64x, max.
    #[arg(long, value_name = "SPEED", default_value_t)]
    speed: Speed,

    #[command(flatten)]
    outcome: OutcomeArgs,

    #[command(flatten)]
    report: ReportArgs,

    #[command(flatten)]
    screen: ScreenArgs,
}

/// Restricts the process to the access this command needs.
pub(crate) fn confine(args: &Args) {
    // The screen can export a report into the working folder.
    let here = (!args.outcome.is_headless()).then(|| Path::new("report.json"));
    confinement::files(&[&args.file], &[here]);
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let recording = Recording::open(&args.file)?;
    if args.outcome.is_headless() {
        if !args.outcome.asks_for_report() {
            terminal::report_no_terminal();
        }
        return print(&recording, args);
    }
    let about = Recorded::of(&recording);
    let span = recording
        .span()
        .with_context(|| format!("{} contains no events", args.file.display()))?;
    let signals = Signals::install().context("cannot listen for signals")?;
    let config = Config {
        engines: engines::FACTS,
        ..recording.header().config
    };
    let sink = Sink::none(&recording.header().source, &config);
    let mut run = Session::new(
        &config,
        Box::new(Screen::open(&args.screen.options())?),
        sink,
        args.report.slowest,
    );
    let mut player = Player::new(span, args.speed);
    let played = replay::run(&recording, &mut run, &about, &mut player, &signals);
    if let Err(error) = &played {
        run.give_up(format!("recording: {error}"));
    }
    let report = run.finish(&about, &app::print_message);
    if !player.has_ended() {
        errln!(
            "tokengap: stopped before the end of the recording; --headless prints the report of the whole recording"
        );
        return Ok(ExitCode::SUCCESS);
    }
    app::conclude(&report, args.outcome)
}

/// Prints the report of the whole recording.
fn print(recording: &Recording, args: &Args) -> anyhow::Result<ExitCode> {
    let (analysis, mut input) = progress::analysed(recording)?;
    input.slowest = args.report.slowest;
    app::conclude(&analysis.report(&input), args.outcome)
}
