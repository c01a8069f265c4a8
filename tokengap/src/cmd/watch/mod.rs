//! `tokengap watch`: shows runs that other tokengap processes serve, with one screen or one report for all of them.

mod pod;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;
use session::remote::{RemoteOptions, RemoteRun};
use session::sink::Sink;
use session::telemetry::AccessToken;
use session::{Observer, RunOptions, Running, Session, Signals};
use trace::Config;
use tui::{RunView, Screen};

use self::pod::Pod;
use crate::app::FinishedRun;
use crate::args::{LimitArgs, OutcomeArgs, ReportArgs, ScreenArgs, parse_duration, parse_size};
use crate::cmd::pair::{self, RunningServer};
use crate::headless::Progress;
use crate::{app, confinement, named_file};

/// Watch runs that other tokengap processes serve (--metrics): the same screen, for one pod or several.
///
/// The numbers begin with the part of the run that the source keeps (--metrics-past). An unreachable source is retried.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap watch 127.0.0.1:9464\n  tokengap watch --token-file metrics.token 10.0.0.7:9464 10.0.0.8:9464"
)]
pub(crate) struct Args {
    /// Address of a served run: HOST:PORT. Repeatable.
    #[arg(value_name = "HOST:PORT", required = true, value_parser = parse_address)]
    addresses: Vec<String>,

    /// File with the token of the sources, if they use one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    outcome: OutcomeArgs,

    /// Stop after this time, for example 5s, 2m or 1h 30m.
    #[arg(long, value_name = "T", value_parser = parse_duration)]
    duration: Option<Duration>,

    #[command(flatten)]
    report: ReportArgs,

    /// Record to FILE. With several sources, one file each, with the source's address in its name.
    #[arg(long, value_name = "FILE", help_heading = "Recording")]
    record: Option<PathBuf>,

    /// Maximum size of a recording, for example 500MiB or 2GiB. At the limit, the recording ends.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Recording")]
    record_max_size: Option<u64>,

    /// Replace files that exist.
    #[arg(long, help_heading = "Recording")]
    force: bool,

    #[command(flatten)]
    screen: ScreenArgs,

    // A lower limit of the source takes precedence.
    #[command(flatten)]
    limits: LimitArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let token = args.token_file.as_ref().map(|path| AccessToken::of_file(path, named_file::open(path))).transpose()?;
    let ports = args.addresses.iter().filter_map(|address| address.rsplit_once(':')?.1.parse().ok());
    let here = (!args.outcome.is_headless()).then(|| Path::new("report.json"));
    confinement::confine_watch(ports, &[args.record.as_deref(), here]);
    let sources =
        args.addresses.iter().map(|address| RemoteOptions { address: address.clone(), token: token.clone() }).collect();
    let screen = if args.outcome.is_headless() { None } else { Some(Screen::open(&args.screen.options())?) };
    let watched = watch_runs(args, sources, screen)?;
    let code = app::print_reports(&watched, args.outcome)?;
    if watched.iter().all(|one| app::saw_nothing(&one.report)) {
        bail!("no traffic was received from {}", args.addresses.join(", "));
    }
    Ok(code)
}

/// Watches until the user quits, `--duration` is over, a signal arrives or, without a screen, every source has ended.
fn watch_runs(args: &Args, sources: Vec<RemoteOptions>, screen: Option<Screen>) -> anyhow::Result<Vec<FinishedRun>> {
    let signals = Signals::install()?;
    let remotes = RemoteRun::start(sources)?;
    let several = remotes.len() > 1;
    let screen = screen.map(|mut screen| {
        screen.watch_runs(remotes.len());
        Rc::new(RefCell::new(screen))
    });
    let config = Config {
        limits: args.limits.limits(),
        engines: engines::FACTS,
        chunk_history: args.screen.chunk_history(args.outcome),
        recent_seconds: ScreenArgs::recent_seconds(args.outcome),
    };
    let runs = remotes.into_iter().enumerate().map(|(run_index, remote)| {
        let observer: Box<dyn Observer> = match &screen {
            Some(screen) => Box::new(RunView { screen: Rc::clone(screen), run_index }),
            None => Box::new(Progress::default()),
        };
        let session = Session::new(&config, observer, Sink::none("watch", &config), args.report.slowest);
        let screen = screen.clone().map(|screen| RunView { screen, run_index });
        Running::new(Pod::new(remote, screen, args, several), session)
    });
    let mut runs: Vec<_> = runs.collect();
    let run_options = RunOptions { join: None, duration: args.duration, reload: None, alarm: &app::print_message };
    session::run(&mut runs, &signals, run_options);
    // Restore the terminal before printing anything.
    for run in &mut runs {
        run.source.leave_screen();
        run.session.remove_observer();
    }
    drop(screen);
    let servers: Option<Vec<RunningServer<'_>>> =
        runs.iter().map(|run| run.source.as_pair_server(run.session.analysis())).collect();
    let pairs = servers.map_or_else(Vec::new, |servers| pair::join_runs(&servers, args.report.slowest));
    let mut finished: Vec<FinishedRun> = runs.into_iter().map(|run| run.source.finish(run.session)).collect();
    pair::add_to_reports(&mut finished, pairs);
    Ok(finished)
}

/// Parses `HOST:PORT`, also as a URL.
fn parse_address(text: &str) -> Result<String, String> {
    let hint = "expected an address like 127.0.0.1:9464";
    if text.starts_with("https://") {
        return Err("tokengap serves http only: forward the port with SSH or kubectl, and watch 127.0.0.1:PORT".into());
    }
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    match rest.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|p| p > 0) => {
            Ok(rest.to_owned())
        }
        _ => Err(format!("{text:?} is not an address to connect to; {hint}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        assert_eq!(parse_address("pod-7.ns:9464").as_deref(), Ok("pod-7.ns:9464"));
        assert_eq!(parse_address("[::1]:9464").as_deref(), Ok("[::1]:9464"));
        assert_eq!(parse_address("http://127.0.0.1:9464/").as_deref(), Ok("127.0.0.1:9464"));
        for wrong in ["", "pod-7", "9464", ":9464", "pod-7:0", "pod-7:x", "tcp://pod-7:9464", "https://pod-7:9464"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
