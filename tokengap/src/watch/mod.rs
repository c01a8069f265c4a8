//! Watching runs of other tokengap processes, with one screen or one report for all of them.

mod pod;

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use session::sink::Sink;
use session::{Observer, RunOptions, Running, Session, Signals};
use trace::Config;
use trace::report::Report;
use tui::{RunView, Screen};

use self::pod::Pod;
use crate::app;
use crate::args::OutcomeArgs;
use crate::headless::Progress;

/// Options of the command.
pub(crate) struct Options {
    /// Sources to watch.
    pub(crate) sources: Vec<feed::WatchOptions>,
    pub(crate) limits: trace::ledger::Limits,
    pub(crate) slowest: usize,
    pub(crate) duration: Option<Duration>,
    pub(crate) record: Option<PathBuf>,
    pub(crate) record_max_size: Option<u64>,
    pub(crate) force: bool,
}

/// Result of one run.
#[derive(Serialize)]
pub(crate) struct Watched {
    pod: String,
    endpoint: String,
    /// State of the connection at the end.
    state: String,
    /// Missed records, and the number of gaps they form.
    records_missed: u64,
    gaps: u64,
    pub(crate) report: Report,
}

/// Schema name of several reports in one document.
const SCHEMA: &str = "tokengap.watch/1";

#[derive(Serialize)]
struct All<'a> {
    schema: &'static str,
    pods: &'a [Watched],
}

/// Watches until the user quits, `--duration` is over, a signal arrives or, without a screen, every source has ended.
pub(crate) fn run(options: &Options, screen: Option<Screen>) -> anyhow::Result<Vec<Watched>> {
    let signals = Signals::install()?;
    let watchers = feed::Watcher::start(options.sources.clone())?;
    let several = watchers.len() > 1;
    let screen = screen.map(|mut screen| {
        screen.watch(watchers.len());
        Rc::new(RefCell::new(screen))
    });
    let config = Config { limits: options.limits, engines: engines::FACTS };
    let pod = |(place, watcher)| {
        let observer: Box<dyn Observer> = match &screen {
            Some(screen) => Box::new(RunView(Rc::clone(screen), place)),
            None => Box::new(Progress::default()),
        };
        let session = Session::new(&config, observer, Sink::none("watch", &config), options.slowest);
        let screen = screen.clone().map(|screen| (screen, place));
        (Pod::new(watcher, screen, options, several), session)
    };
    let mut pods: Vec<_> = watchers.into_iter().enumerate().map(pod).collect();
    let mut runs: Vec<_> = pods.iter_mut().map(|(pod, session)| Running::new(pod, session)).collect();
    let run_options = RunOptions { duration: options.duration, reload: None, alarm: &app::print_message };
    session::run(&mut runs, &signals, run_options);
    // Restore the terminal before printing anything.
    for (pod, session) in &mut pods {
        pod.leave_screen();
        session.dismiss();
    }
    drop(screen);
    Ok(pods.into_iter().map(|(pod, session)| pod.finish(session)).collect())
}

/// Prints the reports and returns the exit code for `--fail-on` over all of them.
pub(crate) fn conclude(watched: &[Watched], outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    if let [one] = watched {
        return app::conclude(&one.report, outcome);
    }
    let mut out = std::io::stdout().lock();
    if outcome.json {
        let (schema, pods) = (SCHEMA, watched);
        serde_json::to_writer(&mut out, &All { schema, pods }).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        for one in watched {
            writeln!(out, "=== {} ({}): {}\n", one.pod, one.endpoint, one.state)?;
            write!(out, "{}", one.report.to_text())?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    let worst = watched.iter().filter_map(|one| one.report.worst()).max();
    let failed = outcome.fail_on.is_some_and(|min| worst >= Some(min));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
