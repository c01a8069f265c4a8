//! Watching runs of other tokengap processes, with one screen or one report for all of them.

mod pod;
mod report;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use session::sink::Sink;
use session::{Observer, RunOptions, Running, Session, Signals};
use trace::Config;
use trace::report::Report;
use tui::{PodView, Screen};

pub(crate) use self::report::conclude;

use self::pod::Pod;
use crate::app;
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
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) link: &'static str,
    pub(crate) missed: u64,
    pub(crate) gaps: u64,
    pub(crate) report: Report,
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
    let config = Config {
        limits: options.limits,
        engines: engines::FACTS,
        ..Config::default()
    };
    let pod = |(place, watcher)| {
        let observer: Box<dyn Observer> = match &screen {
            Some(screen) => Box::new(PodView::new(Rc::clone(screen), place)),
            None => Box::new(Progress::default()),
        };
        let session = Session::new(&config, observer, Sink::none("watch", &config), options.slowest);
        let screen = screen.clone().map(|screen| (screen, place));
        (Pod::new(watcher, screen, options, several), session)
    };
    let mut pods: Vec<_> = watchers.into_iter().enumerate().map(pod).collect();
    let mut runs: Vec<_> = pods
        .iter_mut()
        .map(|(pod, session)| Running::new(pod, session))
        .collect();
    let run_options = RunOptions {
        duration: options.duration,
        reload: None,
        alarm: &app::print_message,
    };
    session::run(&mut runs, &signals, run_options);
    // Restore the terminal before printing anything.
    for (pod, session) in &mut pods {
        pod.leave_screen();
        session.dismiss();
    }
    drop(screen);
    Ok(pods.into_iter().map(|(pod, session)| pod.finish(session)).collect())
}
