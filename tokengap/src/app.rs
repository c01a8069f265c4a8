//! A live command from its flags to its report: outputs, observer, run, exit code.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use session::sink::Sink;
use session::telemetry::Telemetry;
use session::{Observer, RunOptions, Session, Signals, Source};
use trace::Config;
use trace::detect::Severity;
use trace::record::Payload;
use trace::report::{HopLine, Report};
use tui::Screen;

use crate::args::LiveArgs;
use crate::config::Configured;
use crate::headless::Progress;

/// Returns whether a run with these flags has no screen.
pub(crate) fn is_headless(args: &LiveArgs) -> bool {
    args.headless || args.json || !has_terminal()
}

/// Returns whether stdout is a terminal that can show the screen.
pub(crate) fn has_terminal() -> bool {
    no_terminal().is_none()
}

/// Reason why no screen can be drawn; `None` if it can.
fn no_terminal() -> Option<String> {
    if !std::io::stdout().is_terminal() {
        return Some(String::from("standard output is not a terminal"));
    }
    match std::env::var_os("TERM") {
        None => Some(String::from("TERM is not set")),
        Some(term) if term.is_empty() || term == "dumb" => {
            Some(format!("TERM={} does not support one", term.display()))
        }
        Some(_) => None,
    }
}

/// Prints why the screen is off, if it cannot be drawn.
pub(crate) fn report_no_terminal() {
    if let Some(why) = no_terminal() {
        errln!("tokengap: the screen is off: {why}; --headless runs without one");
    }
}

/// Returns whether the run observed no traffic.
pub(crate) fn saw_nothing(report: &Report) -> bool {
    let frames = |hop: &HopLine| hop.frames_sent.max(hop.frames_received).unwrap_or(0);
    report.hops.iter().all(|hop| frames(hop) == 0)
        && report.own.frames_undecoded == 0
        && report.answers.as_ref().is_none_or(|answers| answers.seen == 0)
}

/// Runs `source` until it ends, `--duration` is over, the user quits or a signal arrives. Then prints the report.
pub(crate) fn run(source: impl Source, args: &LiveArgs) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for signals")?;
    conclude(&watch(source, args, &signals)?, args.json, args.fail_on)
}

/// Runs `source` as [`run`] does, and returns the report.
pub(crate) fn watch(mut source: impl Source, args: &LiveArgs, signals: &Signals) -> anyhow::Result<Report> {
    let config = Config {
        limits: args.limits(),
        engines: engines::FACTS,
        ..Config::default()
    };
    let files = args.record.files();
    if files.payload == Payload::Tokens {
        source.keep_ids();
    }
    let mut sink = Sink::open(&files, source.kind(), &config)?;
    if let Some(feed) = args.feed.options()? {
        sink.publish(feed, Box::<tui::Model>::default())?;
    }
    let telemetry = Telemetry::open(args.telemetry.metrics, args.telemetry.push().as_ref(), source.kind())?;
    if let Some(bound) = telemetry.bound() {
        errln!("tokengap: metrics at http://{bound}/metrics");
        if !bound.ip().is_loopback() {
            errln!(
                "tokengap: metrics have no authentication: anyone who can reach {bound} can read them (numbers and hop names, no request ids)"
            );
        }
    }
    if !args.headless && !args.json {
        report_no_terminal();
    }
    let observer: Box<dyn Observer> = if is_headless(args) {
        Box::new(Progress::default())
    } else {
        Box::new(Screen::open(&args.screen.options())?)
    };
    let mut session = Session::new(&config, observer, sink, args.report.slowest).with_telemetry(telemetry);
    let mut configured = Configured::at_start(args)?;
    let mut reload = configured
        .as_mut()
        .map(|configured| |session: &mut Session| reload(session, configured));
    let terms = RunOptions {
        duration: args.duration,
        reload: reload.as_mut().map(|reload| reload as &mut dyn FnMut(&mut Session)),
        alarm: &print_message,
    };
    session::run(&mut source, &mut session, signals, terms);
    let report = session.finish(&source, &print_message);
    let before = signals.seen();
    args.telemetry.linger(|| signals.seen() > before);
    Ok(report)
}

/// Prints a message of the run on standard error.
pub(crate) fn print_message(message: &str) {
    errln!("tokengap: {message}");
}

/// Prints the report and returns the exit code for `fail_on`.
pub(crate) fn conclude(report: &Report, json: bool, fail_on: Option<Severity>) -> anyhow::Result<ExitCode> {
    print(report, json)?;
    let failed = fail_on.is_some_and(|min| has_finding_of(report, min));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Returns whether the report has a finding of at least this severity.
pub(crate) fn has_finding_of(report: &Report, min: Severity) -> bool {
    report.worst() >= Some(min)
}

/// Reads the configuration again and applies the settings that can change during a run.
fn reload(session: &mut Session, configured: &mut Configured) {
    match configured.reread() {
        Ok((args, message)) => {
            session.retune(args.report.slowest, args.record.rules());
            session.notify(message);
        }
        Err(error) => session.notify(format!("! configuration not reloaded: {error:#}")),
    }
}

pub(crate) fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", report.to_text())?;
    }
    out.flush()?;
    Ok(())
}
