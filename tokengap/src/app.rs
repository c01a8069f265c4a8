//! A live command from its flags to its report: outputs, observer, run, exit code.

use std::process::ExitCode;

use anyhow::{Context, bail};
use outputs::report::hostile::EscapeForm;
use outputs::report::{Clock, HopLine, Report};
use recording::{RecordedPayload, RecordingHeader};
use session::sink::Sink;
use session::telemetry::{MetricsOptions, Telemetry};
use session::{LiveSource, Observer, RunOptions, Running, Session, Signals};
use trace::Config;
use trace::detect::Severity;
use tui::Screen;

use crate::args::{LiveArgs, OutcomeArgs, ScreenArgs};
use crate::config::Configured;
use crate::headless::{self, Progress};
use crate::output;

/// Returns whether the run observed no traffic.
pub(crate) fn saw_nothing(report: &Report) -> bool {
    let frames = |hop: &HopLine| hop.frames_sent.max(hop.frames_received).unwrap_or(0);
    report.hops.iter().all(|hop| frames(hop) == 0)
        && report.own.frames_undecoded == 0
        && report.answers.as_ref().is_none_or(|answers| answers.seen == 0)
}

/// Runs `source` until it ends, `--duration` is over, the user quits or a signal arrives. Then prints the report.
///
/// `endpoint` is from [`TelemetryArgs::endpoint_options`], which must be called before the confinement.
///
/// [`TelemetryArgs::endpoint_options`]: crate::args::TelemetryArgs::endpoint_options
pub(crate) fn run_to_exit_code(
    source: impl LiveSource,
    args: &LiveArgs,
    endpoint: Option<MetricsOptions>,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for signals")?;
    print_report(&run_to_report(source, args, endpoint, &signals)?, args.outcome)
}

/// Runs `source` as [`run`] does, and returns the report. Fails if the source could observe nothing.
pub(crate) fn run_to_report(
    mut source: impl LiveSource,
    args: &LiveArgs,
    endpoint: Option<MetricsOptions>,
    signals: &Signals,
) -> anyhow::Result<Report> {
    let config = Config {
        limits: args.limits.limits(),
        engines: engines::FACTS,
        chunk_history: args.screen.chunk_history(args.outcome),
        recent_seconds: ScreenArgs::recent_seconds(args.outcome),
    };
    let files = args.record.recording_files();
    if files.payload == RecordedPayload::Tokens {
        source.keep_ids();
    }
    let sink = Sink::open(&files, source.kind(), &config)?;
    let header = RecordingHeader { payload: files.payload, ..RecordingHeader::of(source.kind(), config) };
    let telemetry = Telemetry::open(endpoint, args.telemetry.push_options().as_ref(), &header, engines::FACTS)?;
    if let Some(bound) = telemetry.listen_address() {
        errln!("tokengap: metrics at http://{bound}/metrics");
        if args.telemetry.insecure && !bound.ip().is_loopback() {
            errln!(
                "tokengap: no token is required (--insecure): anyone who can reach {bound} can read metrics, report, recording and events, with request ids but no text"
            );
        }
    }
    if !args.outcome.asks_for_report() {
        headless::report_no_terminal();
    }
    let observer: Box<dyn Observer> = if args.outcome.is_headless() {
        Box::new(Progress::default())
    } else {
        Box::new(Screen::open(&args.screen.options())?.into_observer())
    };
    let mut session = Session::new(&config, observer, sink, args.report.slowest).with_telemetry(telemetry);
    let mut configured = Configured::at_start(args)?;
    let mut reload =
        configured.as_mut().map(|configured| |session: &mut Session| apply_reloaded_config(session, configured));
    let options = RunOptions {
        duration: args.duration,
        reload: reload.as_mut().map(|reload| reload as &mut dyn FnMut(&mut Session)),
        alarm: &print_message,
    };
    session::run(&mut [Running::new(&mut source, &mut session)], signals, options);
    let report = session.finish(&source, &print_message);
    let before = signals.seen();
    args.telemetry.keep_serving(|| signals.seen() > before);
    if let Some(failure) = source.failure()
        && saw_nothing(&report)
    {
        bail!(failure);
    }
    Ok(report)
}

/// Prints a message of the run on standard error.
pub(crate) fn print_message(message: &str) {
    errln!("tokengap: {message}");
}

/// Prints the report and returns the exit code for `--fail-on`.
pub(crate) fn print_report(report: &Report, outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    output::write_result(None, &report_text(report, outcome.json)?, form(outcome.json), false)?;
    Ok(exit_code(report.severity, outcome.fail_on))
}

/// Exit code for `--fail-on`, with the severity of the worst finding.
pub(crate) fn exit_code(worst: Option<Severity>, fail_on: Option<Severity>) -> ExitCode {
    ExitCode::from(u8::from(fail_on.is_some_and(|min| worst >= Some(min))))
}

/// Reads the configuration again and applies the settings that can change during a run.
fn apply_reloaded_config(session: &mut Session, configured: &mut Configured) {
    match configured.reload() {
        Ok((args, message)) => {
            session.update_limits(args.report.slowest, args.record.dump_rules());
            session.notify(message);
        }
        Err(error) => session.notify(format!("! configuration not reloaded: {error:#}")),
    }
}

/// How a result with or without `--json` is escaped.
pub(crate) fn form(json: bool) -> EscapeForm {
    if json { EscapeForm::Json } else { EscapeForm::Text }
}

/// The report as it is printed.
pub(crate) fn report_text(report: &Report, json: bool) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string(report)? + "\n" } else { report.to_text(&Clock::of(report, None)) })
}
