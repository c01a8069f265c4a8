//! `tokengap replay`: plays a recording on the live screen, or prints its report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use outputs::report::Report;
use recording::Recording;
use replay::playback::Playback;
use session::playback::Speed;
use session::sink::Sink;
use session::{RunHooks, RunOptions, Running, Session, Signals};
use trace::Config;
use tui::Screen;

use crate::app;
use crate::args::{OutcomeArgs, ReportArgs, ScreenArgs};
use crate::confinement;
use crate::headless;
use crate::progress;

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

/// `tokengap replay`: plays a recording on the screen, or prints its report.
pub(crate) fn run_replay(args: &Args) -> anyhow::Result<ExitCode> {
    // The screen can export a report into the working folder. The name stands for any file there.
    let exported = if args.outcome.is_headless() { None } else { Some(Path::new("report.json")) };
    confinement::confine_to_files(&[&args.file], &[exported]);
    let recording = Recording::open(&args.file)?;
    if args.outcome.is_headless() {
        if !args.outcome.asks_for_report() {
            headless::print_why_screen_is_off();
        }
        return print_whole_report(&recording, args);
    }
    play_on_screen(&recording, args)
}

/// Plays the recording on the screen. Then prints its report, if it was played to its end.
fn play_on_screen(recording: &Recording, args: &Args) -> anyhow::Result<ExitCode> {
    let playback =
        Playback::new(recording, args.speed).with_context(|| format!("{} contains no events", args.file.display()))?;
    let signals = Signals::install().context("cannot listen for signals")?;
    let config = Config {
        engines: engines::FACTS,
        chunk_history: args.screen.chunk_history(args.outcome),
        ..recording.header().config
    };
    let sink = Sink::none(&recording.header().source, &config);
    let screen = Box::new(Screen::open(&args.screen.options())?.into_observer());
    let session = Session::new(&config, screen, sink, args.report.slowest);
    let options = RunOptions { hooks: RunHooks::default(), duration: None, reload: None, alarm: &app::print_message };
    let mut runs = vec![Running::new(playback, session)];
    session::run_sessions(&mut runs, &signals, options);
    // No other run has joined, because there are no hooks.
    let only_run = runs.remove(0);
    let Running { source: playback, session, .. } = only_run;
    let report = session.finish(&playback, &app::print_message);
    if !playback.has_ended() {
        errln!(
            "tokengap: stopped before the end of the recording; --headless prints the report of the whole recording"
        );
        return Ok(ExitCode::SUCCESS);
    }
    app::print_report(&report, args.outcome)
}

/// Prints the report of the whole recording.
fn print_whole_report(recording: &Recording, args: &Args) -> anyhow::Result<ExitCode> {
    let (analysis, mut input) = progress::analyse_recording(recording)?;
    input.slowest = args.report.slowest;
    app::print_report(&Report::of(&analysis, &input), args.outcome)
}
