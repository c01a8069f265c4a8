//! The run loop, for every live source: polls it until the run is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use trace::MonoNs;

use crate::idle::{self, IdleTimer};
use crate::observer::{ScreenCommand, Stage};
use crate::service::{self, Watchdog};
use crate::session::Session;
use crate::signals::Signals;
use crate::source::{Flow, Source};

/// Interval of ticks for time-dependent detectors.
const TICK: Duration = Duration::from_millis(100);
/// Time for a source to drain after it was asked to end.
const DRAIN: Duration = Duration::from_secs(40);

/// Conditions of a run.
pub struct RunOptions<'a> {
    /// Time after which the run ends.
    pub duration: Option<Duration>,
    /// Called on SIGHUP to read the configuration again; without it SIGHUP ends the run.
    pub reload: Option<&'a mut dyn FnMut(&mut Session)>,
    /// Shows a message about a run that continues without its analysis.
    pub alarm: &'a dyn Fn(&str),
}

/// Runs `source` until it ends, `terms.duration` is over, the observer ends it or a signal arrives.
pub fn run(source: &mut dyn Source, session: &mut Session, signals: &Signals, mut terms: RunOptions<'_>) {
    signals.reloads(terms.reload.is_some());
    service::ready();
    poll(source, session, signals, &mut terms);
    service::stopping();
}

/// Polls the source until the run is over.
fn poll(source: &mut dyn Source, session: &mut Session, signals: &Signals, terms: &mut RunOptions<'_>) {
    let duration = terms.duration;
    let mut watchdog = Watchdog::new();
    let start = Instant::now();
    let mut next_tick = start;
    let mut deadline = None;
    let mut flow = Flow::Idle;
    let mut idle_timer = IdleTimer::default();
    let mut end_commands = 0;
    loop {
        let ticks = Instant::now() >= next_tick;
        let observed = catch_unwind(AssertUnwindSafe(|| {
            if flow != Flow::Ended {
                flow = source.poll(&mut |event| session.event(event));
            }
            if ticks {
                session.tick(MonoNs::now(), source);
            }
        }));
        if observed.is_err() {
            session.dismiss();
            session
                .give_up("analysis crashed and was disabled; traffic is still relayed. Please report this bug.".into());
            continue_without_analysis(source, duration.map(|d| start + d), signals, &mut watchdog, terms.alarm);
            return;
        }
        let now = Instant::now();
        if ticks {
            next_tick = now + TICK;
            watchdog.tick(now);
        }
        if let Some(reload) = terms.reload.as_mut().filter(|_| signals.take_reload()) {
            service::reloading();
            reload(session);
            service::ready();
        }
        if signals.take_dump() {
            session.dump("SIGUSR1", source);
        }
        let stage = match (flow, deadline) {
            (Flow::Ended, _) => Stage::Ended,
            (_, Some(_)) => Stage::Ending,
            (_, None) => Stage::Running,
        };
        let command = session.turn(source, stage, None);
        end_commands += usize::from(command == ScreenCommand::End);
        let expired = duration.is_some_and(|d| now - start >= d);
        let stop_requests = signals.seen() + end_commands;
        if deadline.is_none() && (expired || stop_requests > 0) {
            source.stop();
            deadline = Some(now + DRAIN);
        }
        match flow {
            Flow::Ended if deadline.is_some() || command != ScreenCommand::Stay => return,
            Flow::Ended | Flow::Idle => session.sleep(idle_timer.length(now)),
            Flow::Busy => idle_timer.end(),
        }
        if stop_requests > 1 || deadline.is_some_and(|d| now >= d) {
            session.give_up("end: stopped before all frames in flight were read".into());
            return;
        }
    }
}

/// Continues after a failure of the analysis. A source in the traffic path keeps relaying until it is asked to end or `over` is reached;
/// any other source stops at once.
fn continue_without_analysis(
    source: &mut dyn Source,
    end_at: Option<Instant>,
    signals: &Signals,
    watchdog: &mut Watchdog,
    alarm: &dyn Fn(&str),
) {
    let in_the_path = source.is_in_the_path();
    alarm(if in_the_path {
        "the analysis failed; traffic is relayed without being observed until this process is stopped"
    } else {
        "the analysis failed; this run ends and the engine is not affected"
    });
    // The panic may repeat at every message and has been reported once.
    std::panic::set_hook(Box::new(|_| {}));
    let mut deadline = None;
    loop {
        let now = Instant::now();
        watchdog.tick(now);
        let stop_requested = !in_the_path || signals.seen() > 0 || end_at.is_some_and(|end_at| now >= end_at);
        if stop_requested && deadline.is_none() {
            source.stop();
            deadline = Some(now + DRAIN);
        }
        // Polling keeps the traffic flowing; its observations are discarded.
        match catch_unwind(AssertUnwindSafe(|| source.poll(&mut |_| {}))) {
            Ok(Flow::Ended) => return,
            Ok(Flow::Idle) => thread::sleep(idle::SHORT),
            Ok(Flow::Busy) | Err(_) => {}
        }
        if signals.seen() > 1 || deadline.is_some_and(|deadline| now >= deadline) {
            return;
        }
    }
}
