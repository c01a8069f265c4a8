//! Watching runs of other tokengap processes, with one screen or one report for all of them.

mod pod;
mod report;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use session::Signals;
use session::idle::IdleTimer;
use session::{Observer, ScreenCommand, Stage};
use trace::report::Report;
use tui::{PodView, Screen};

pub(crate) use self::report::conclude;

use self::pod::Pod;
use crate::headless::Progress;

/// Interval of connection checks and updates of the run list.
const UPDATE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of messages per source and turn, so that other sources and keys get their turn.
const MESSAGES_A_TURN: usize = 8;

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
    let screen = screen.map(|mut screen| {
        screen.watch(watchers.len());
        Rc::new(RefCell::new(screen))
    });
    let several = watchers.len() > 1;
    let mut pods: Vec<Pod> = Vec::new();
    for (place, watcher) in watchers.into_iter().enumerate() {
        let observer: Box<dyn Observer> = match &screen {
            Some(screen) => Box::new(PodView::new(Rc::clone(screen), place)),
            None => Box::new(Progress::default()),
        };
        pods.push(Pod::new(watcher, observer, options, several));
    }
    run_loop(&mut pods, screen.as_ref(), options.duration, &signals);
    // Restore the terminal before printing anything.
    pods.iter_mut().for_each(Pod::dismiss);
    drop(screen);
    Ok(pods.into_iter().map(Pod::finish).collect())
}

fn run_loop(pods: &mut [Pod], screen: Option<&Rc<RefCell<Screen>>>, duration: Option<Duration>, signals: &Signals) {
    let start = Instant::now();
    let mut next_update = start;
    let mut idle_timer = IdleTimer::default();
    loop {
        let mut busy = false;
        for (place, pod) in pods.iter_mut().enumerate() {
            for _ in 0..MESSAGES_A_TURN {
                if !pod.turn() {
                    break;
                }
                busy = true;
                if let (Some(past), Some(screen)) = (pod.take_past(), screen) {
                    screen.borrow_mut().take_over(place, past);
                }
            }
        }
        let now = Instant::now();
        if now >= next_update {
            next_update = now + UPDATE_INTERVAL;
            for pod in pods.iter_mut() {
                pod.update_link(now);
            }
            if let Some(screen) = screen {
                screen
                    .borrow_mut()
                    .set_pods(pods.iter().map(|pod| pod.line(now)).collect());
            }
        }
        let shown = screen.map(|screen| screen.borrow().shown());
        let turns = pods
            .iter_mut()
            .enumerate()
            .filter(|(place, _)| shown.is_none_or(|s| s == *place));
        let commands: Vec<ScreenCommand> = turns.map(|(_, pod)| pod.show(Stage::Running)).collect();
        let expired = duration.is_some_and(|d| now - start >= d) || signals.seen() > 0;
        let ended = screen.is_none() && pods.iter().all(Pod::has_ended);
        if expired || ended || commands.contains(&ScreenCommand::End) {
            return;
        }
        if busy {
            idle_timer.end();
            continue;
        }
        match screen {
            Some(screen) => screen.borrow_mut().sleep(idle_timer.length(now)),
            None => thread::sleep(idle_timer.length(now)),
        }
    }
}
