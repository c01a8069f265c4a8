//! `tokengap watch`: shows runs that other tokengap processes serve, with one screen or one report for all of them.

mod pod;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::bail;
use outputs::report::RunReport;
use replay::watch::{RemoteOptions, RemoteRun, RemoteRuns};
use session::sink::Sink;
use session::telemetry::AccessToken;
use session::{Observer, RunHooks, RunOptions, Running, Session, Signals};
use trace::Config;
use tui::{RunView, Screen};

use self::pod::Pod;
use crate::args::{LimitArgs, OutcomeArgs, ReportArgs, ScreenArgs, parse_duration, parse_size};
use crate::cmd::live_pairs::LivePairs;
use crate::cmd::pair::{self, RunningServer};
use crate::headless::Progress;
use crate::{app, confinement, named_file};

/// Time after the start in which the list of runs is opened if the source has several. Later, the user may read another tab.
const LIST_TIME: Duration = Duration::from_secs(3);

/// Watch runs that other tokengap processes serve (--metrics): the same screen, for one pod or several.
///
/// The numbers begin with the part of the run that the source keeps (--metrics-past). An unreachable source is retried.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap watch 127.0.0.1:9464\n  tokengap watch --token-file metrics.token 10.0.0.7:9464 10.0.0.8:9464"
)]
pub(crate) struct Args {
    /// Address of a served run: HOST:PORT, for all engines that it watches, or HOST:PORT/ENGINE. Repeatable.
    #[arg(value_name = "HOST:PORT", required = true, value_parser = parse_address)]
    addresses: Vec<RunAddress>,

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

/// `tokengap watch`: shows the runs that other tokengaps serve.
pub(crate) fn run_watch(args: &Args) -> anyhow::Result<ExitCode> {
    let token = match &args.token_file {
        Some(path) => Some(AccessToken::read_opened_file(path, named_file::open(path))?),
        None => None,
    };
    let ports = args.addresses.iter().filter_map(RunAddress::port);
    // The screen can export a report into the working folder. The name stands for any file there.
    let exported = if args.outcome.is_headless() { None } else { Some(Path::new("report.json")) };
    confinement::confine_watch(ports, &[args.record.as_deref(), exported]);
    let mut sources = Vec::new();
    for run in &args.addresses {
        sources.push(RemoteOptions { address: run.address.clone(), engine: run.engine.clone(), token: token.clone() });
    }
    let screen = if args.outcome.is_headless() { None } else { Some(Screen::open(&args.screen.options())?) };
    let watched = watch_runs(args, sources, screen)?;
    let code = app::print_reports(&watched, args.outcome)?;
    if watched.iter().all(|run| run.report.saw_nothing()) {
        let addresses: Vec<&str> = args.addresses.iter().map(|run| run.address.as_str()).collect();
        bail!("no traffic was received from {}", addresses.join(", "));
    }
    Ok(code)
}

/// Watches the runs of these sources, and returns a report for each. Ends when the user quits, when `--duration` is over, or at a signal.
/// Without a screen, also ends once every source has ended.
fn watch_runs(args: &Args, sources: Vec<RemoteOptions>, screen: Option<Screen>) -> anyhow::Result<Vec<RunReport>> {
    let signals = Signals::install()?;
    let (mut remotes, first) = RemoteRuns::start(sources)?;
    let are_several = first.len() > 1;
    let screen = screen.map(|screen| prepare_shared_screen(screen, first.len()));
    let config = Config {
        limits: args.limits.limits(),
        engines: engines::FACTS,
        chunk_history: args.screen.chunk_history(args.outcome),
    };
    let mut live_pairs = LivePairs::new(screen.clone(), args.report.slowest);
    let mut maker = PodMaker { args, config, screen, run_count: 0, began: Instant::now() };
    let mut runs: Vec<Running<Pod>> = Vec::new();
    for remote in first {
        runs.push(maker.create_run(remote, are_several));
    }
    let mut join = || {
        let remote = remotes.next_run()?;
        Some(maker.start_further_run(remote))
    };
    let mut compare = |runs: &mut [Running<Pod>]| live_pairs.update_pairs_if_due(runs, pair_servers);
    let hooks = RunHooks { join: Some(&mut join), compare: Some(&mut compare) };
    let run_options = RunOptions { hooks, duration: args.duration, reload: None, alarm: &app::print_message };
    session::run_sessions(&mut runs, &signals, run_options);
    // The screen restores the terminal once its last owner is gone, which must be before anything is printed.
    for run in &mut runs {
        run.source.leave_screen();
        run.session.remove_observer();
    }
    // Both share the screen.
    drop(live_pairs);
    drop(maker);
    Ok(finish_runs(runs, args.report.slowest))
}

/// Ends the runs and returns their reports, with the pairs of prefill and decode servers among them.
fn finish_runs(runs: Vec<Running<Pod>>, slowest: usize) -> Vec<RunReport> {
    let pairs = pair::join_runs(&pair_servers(&runs), slowest);
    let mut finished: Vec<RunReport> = runs.into_iter().map(|run| run.source.finish(run.session)).collect();
    pair::add_pairs_to_reports(&mut finished, pairs);
    finished
}

/// Prepares the screen for these runs, which share it. With several runs, the list shows first which one has a problem.
fn prepare_shared_screen(mut screen: Screen, run_count: usize) -> Rc<RefCell<Screen>> {
    screen.watch_runs(run_count);
    if run_count > 1 {
        screen.open_run_list();
    }
    Rc::new(RefCell::new(screen))
}

/// Makes the runs of remote engines, which share a screen.
struct PodMaker<'a> {
    args: &'a Args,
    config: Config,
    /// `None` without a screen.
    screen: Option<Rc<RefCell<Screen>>>,
    run_count: usize,
    began: Instant,
}

impl PodMaker<'_> {
    /// Connects a remote run with its analysis and with its place on the screen. If `has_own_recording`, the run records to a file of its
    /// own.
    fn create_run(&mut self, remote: RemoteRun, has_own_recording: bool) -> Running<Pod> {
        let run_index = self.run_count;
        self.run_count += 1;
        let observer: Box<dyn Observer> = match self.view(run_index) {
            Some(view) => Box::new(view),
            None => Box::new(Progress::default()),
        };
        // The run opens its recording itself, once it knows the header of the source.
        let sink = Sink::none("watch", &self.config);
        let session = Session::new(&self.config, observer, sink, self.args.report.slowest);
        Running::new(Pod::new(remote, self.view(run_index), self.args, has_own_recording), session)
    }

    /// Makes a run that joins the others: a further engine of a source.
    fn start_further_run(&mut self, remote: RemoteRun) -> Running<Pod> {
        if let Some(screen) = &self.screen {
            screen.borrow_mut().add_run();
            // The second run at the start means that the source has several engines.
            if self.run_count == 1 && self.began.elapsed() < LIST_TIME {
                screen.borrow_mut().open_run_list();
            }
        }
        let are_several = true;
        self.create_run(remote, are_several)
    }

    /// Place of a run on the screen; `None` without a screen.
    fn view(&self, run_index: usize) -> Option<RunView> {
        self.screen.clone().map(|screen| RunView { screen, run_index })
    }
}

/// The runs that may belong to servers of a pair. Leaves out sources that were never reached.
fn pair_servers(runs: &[Running<Pod>]) -> Vec<RunningServer<'_>> {
    let numbered = runs.iter().enumerate();
    numbered.filter_map(|(index, run)| run.source.as_pair_server(index, run.session.analysis())).collect()
}

/// Address of a source, and one of its engines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunAddress {
    address: String,
    /// `None` for all engines of the source.
    engine: Option<String>,
}

impl RunAddress {
    /// The port to connect to, which a parsed address always has.
    fn port(&self) -> Option<u16> {
        let (_host, port) = self.address.rsplit_once(':')?;
        port.parse().ok()
    }
}

/// Parses `HOST:PORT` and `HOST:PORT/ENGINE`, also as a URL.
fn parse_address(text: &str) -> Result<RunAddress, String> {
    let hint = "expected an address like 127.0.0.1:9464 or 127.0.0.1:9464/sglang:30000";
    if text.starts_with("https://") {
        return Err("tokengap serves http only: forward the port with SSH or kubectl, and watch 127.0.0.1:PORT".into());
    }
    // An engine's name follows the first slash. Without a slash it is empty, and so is the port without a colon.
    let rest = text.strip_prefix("http://").unwrap_or(text);
    let (address, engine) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let has_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if host.is_empty() || !has_port {
        return Err(format!("{text:?} is not an address to connect to; {hint}"));
    }
    let engine = if engine.is_empty() { None } else { Some(engine.to_owned()) };
    Ok(RunAddress { address: address.to_owned(), engine })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        let all_engines = |address: &str| Ok(RunAddress { address: address.to_owned(), engine: None });
        assert_eq!(parse_address("pod-7.ns:9464"), all_engines("pod-7.ns:9464"));
        assert_eq!(parse_address("[::1]:9464"), all_engines("[::1]:9464"));
        assert_eq!(parse_address("http://127.0.0.1:9464/"), all_engines("127.0.0.1:9464"));
        let of_engine = parse_address("http://gpu-7:9464/sglang:Qwen/Qwen3").expect("an address");
        assert_eq!(
            (of_engine.address.as_str(), of_engine.engine.as_deref()),
            ("gpu-7:9464", Some("sglang:Qwen/Qwen3"))
        );
        for wrong in ["", "pod-7", "9464", ":9464", "pod-7:0", "pod-7:x", "tcp://pod-7:9464", "https://pod-7:9464"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
