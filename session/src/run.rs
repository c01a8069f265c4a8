//! The run loop: polls any sources, each with its session, until the run is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::observer::{RunStage, ScreenCommand};
use crate::session::Session;
use crate::signals::Signals;
use crate::source::{Flow, Source};

/// Interval of ticks for time-dependent detectors.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// Sleep between messages. Shorter than the frame interval of a busy engine, but long compared to a wake-up.
pub const SHORT_SLEEP: Duration = Duration::from_millis(4);
/// Sleep after a quiet period: the tick interval, so that such a run wakes only for ticks. Observations are queued meanwhile: the probe's
/// ring buffer and the relay's queue hold several hundred milliseconds of a busy engine. A key ends the sleep.
const LONG_SLEEP: Duration = TICK_INTERVAL;
/// Sleep of a run that has been at rest for long. A run of many idle engines mostly wakes for ticks, which then come half as often.
const REST_SLEEP: Duration = Duration::from_millis(200);
/// Idle time after which a run is at rest.
const REST_PERIOD: Duration = Duration::from_secs(5);
/// Idle time after which sleeps become long. Short, because an idle engine still polls its sockets now and then.
const QUIET_PERIOD: Duration = Duration::from_millis(40);
/// Time for a source to drain after it was asked to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(40);

/// A comparison of all runs.
pub type CompareRuns<'a, S> = dyn FnMut(&mut [Running<S>]) + 'a;

/// Functions of a command that are called at every tick, beside its runs.
pub struct RunHooks<'a, S> {
    /// Returns a further run that joins the others, if there is one.
    pub join: Option<&'a mut dyn FnMut() -> Option<Running<S>>>,
    /// Compares the runs with each other, and tells each the result.
    pub compare: Option<&'a mut CompareRuns<'a, S>>,
}

impl<S> Default for RunHooks<'_, S> {
    fn default() -> Self {
        Self { join: None, compare: None }
    }
}

/// Conditions of runs.
pub struct RunOptions<'a, S> {
    /// Called at every tick.
    pub hooks: RunHooks<'a, S>,
    /// Time after which the run ends.
    pub duration: Option<Duration>,
    /// Called on SIGHUP to read the configuration again; without it SIGHUP ends the run.
    pub reload: Option<&'a mut dyn FnMut(&mut Session)>,
    /// Shows a message about a run that continues without its analysis.
    pub alarm: &'a dyn Fn(&str),
}

/// Polls the sources until all have ended, `options.duration` is over, an observer ends the run or a signal arrives. Tells the service
/// manager of the start and the end.
pub fn run_sessions<S: Source>(runs: &mut Vec<Running<S>>, signals: &Signals, options: RunOptions<'_, S>) {
    signals.set_reload_on_hangup(options.reload.is_some());
    notify_service_manager(&[NotifyState::Ready]);
    run_loop(runs, signals, options);
    notify_service_manager(&[NotifyState::Stopping]);
}

/// Polls the runs and their observers until all have ended. The first request to end stops the sources, which then drain; the second ends
/// the loop at once.
fn run_loop<S: Source>(runs: &mut Vec<Running<S>>, signals: &Signals, mut options: RunOptions<'_, S>) {
    let mut watchdog = Watchdog::new();
    let mut idle_timer = IdleTimer::default();
    let start = Instant::now();
    let mut next_tick = start;
    // Set once the sources were asked to end.
    let mut drain_deadline = None;
    let mut end_commands = 0;
    loop {
        let is_tick_due = Instant::now() >= next_tick;
        for run in &mut *runs {
            run.poll_source_and_process_tick(is_tick_due, options.alarm);
        }
        // No run joins the others while they drain.
        if is_tick_due && drain_deadline.is_none() {
            add_further_runs(runs, &mut options);
            compare_runs_or_disable_comparison(runs, &mut options);
        }
        // After the polls, which may have taken long.
        let now = Instant::now();
        if is_tick_due {
            next_tick = now + TICK_INTERVAL;
            watchdog.notify_if_due(now);
        }
        if let Some(reload) = &mut options.reload
            && signals.take_reload()
        {
            notify_reloading();
            for run in &mut *runs {
                reload(&mut run.session);
            }
            notify_service_manager(&[NotifyState::Ready]);
        }
        let is_dump_requested = signals.take_dump();
        let mut is_kept_open = false;
        for run in &mut *runs {
            if is_dump_requested {
                run.session.dump_hindsight_ring("SIGUSR1", &run.source);
            }
            match run.show_run_and_execute_playback(drain_deadline.is_some()) {
                ScreenCommand::None => {}
                ScreenCommand::End => end_commands += 1,
                _ => is_kept_open = true,
            }
        }
        let end_requests = signals.end_request_count() + end_commands;
        let is_duration_over = options.duration.is_some_and(|duration| now - start >= duration);
        let must_end = is_duration_over || end_requests > 0 || runs.iter().all(Running::is_pointless);
        if drain_deadline.is_none() && must_end {
            for run in &mut *runs {
                run.source.stop();
            }
            drain_deadline = Some(now + DRAIN_TIMEOUT);
        }
        // A screen keeps runs open after their end, until the user ends them.
        let have_all_ended = runs.iter().all(|run| run.flow == Flow::Ended);
        if have_all_ended && (drain_deadline.is_some() || !is_kept_open) {
            // A source whose runs have all ended may have named further ones since the last tick.
            let must_go_on = drain_deadline.is_none() && add_further_runs(runs, &mut options);
            if !must_go_on {
                return;
            }
        }
        if runs.iter().any(|run| run.flow == Flow::Busy) {
            idle_timer.end_idle_period();
        } else if let Some(run) = runs.first_mut() {
            // With several runs, any observer notices a key.
            run.session.sleep(idle_timer.next_sleep_time(now));
        }
        if end_requests > 1 || drain_deadline.is_some_and(|deadline| now >= deadline) {
            for run in runs.iter_mut().filter(|run| run.flow != Flow::Ended) {
                run.session.add_degraded_line("end: stopped before all frames in flight were read".into());
            }
            return;
        }
    }
}

/// Adds the runs that are ready to join the others. Returns whether there were any.
fn add_further_runs<S>(runs: &mut Vec<Running<S>>, options: &mut RunOptions<'_, S>) -> bool {
    let Some(join) = &mut options.hooks.join else { return false };
    let run_count = runs.len();
    runs.extend(std::iter::from_fn(join));
    runs.len() > run_count
}

/// Compares the runs with each other, if the command has a comparison. A panic in the comparison disables it and ends no run.
fn compare_runs_or_disable_comparison<S>(runs: &mut [Running<S>], options: &mut RunOptions<'_, S>) {
    let Some(compare) = &mut options.hooks.compare else { return };
    if catch_unwind(AssertUnwindSafe(|| compare(runs))).is_err() {
        options.hooks.compare = None;
        (options.alarm)("the comparison of the runs failed and is left out; the runs are observed on");
    }
}

/// A source and its session.
pub struct Running<S> {
    /// The source.
    pub source: S,
    /// Its session.
    pub session: Session,
    /// Result of the last poll.
    flow: Flow,
}

impl<S: Source> Running<S> {
    /// Connects a source with its session.
    pub fn new(source: S, session: Session) -> Self {
        Self { source, session, flow: Flow::Idle }
    }

    /// Lets the source pass its new events to the session. At a tick, lets the analysis look for findings. A panic in the analysis disables
    /// the analysis and is reported to `alarm`. The source is still polled, because traffic may depend on it.
    fn poll_source_and_process_tick(&mut self, is_tick_due: bool, alarm: &dyn Fn(&str)) {
        let Self { source, session, flow } = self;
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // A live source has no more events after its end. A recording may be rewound.
            if *flow != Flow::Ended || !source.is_live() {
                *flow = source.poll(session);
            }
            // The ticks of a recording are among its records.
            if is_tick_due && source.is_live() {
                session.process_tick(source.observed_until(), source);
            }
        }));
        let is_first_panic = polled.is_err() && !self.session.has_failed();
        if is_first_panic {
            self.disable_analysis_and_alarm(alarm);
        }
    }

    /// Disables the analysis after its first panic, and reports that to `alarm`.
    fn disable_analysis_and_alarm(&mut self, alarm: &dyn Fn(&str)) {
        self.session.disable_analysis();
        alarm(if self.source.is_in_the_path() {
            "the analysis failed; traffic is relayed without being observed until this process is stopped"
        } else {
            "the analysis failed; this run ends and the engine is not affected"
        });
        // No message about further panics: this one may repeat at every event, and has been reported.
        std::panic::set_hook(Box::new(|_| {}));
    }

    /// Lets the observer show the run, and returns its command. A playback command is also passed to the source. `is_ending`: the sources
    /// were asked to end.
    fn show_run_and_execute_playback(&mut self, is_ending: bool) -> ScreenCommand {
        let stage = if self.flow == Flow::Ended {
            RunStage::Ended
        } else if is_ending {
            RunStage::Ending
        } else {
            RunStage::Running
        };
        let command = self.session.show_run(&self.source, stage);
        if let ScreenCommand::Play(play) = command {
            self.source.execute_playback_command(play, self.session.analysis());
        }
        command
    }

    /// Returns whether the analysis has failed and no traffic depends on the source.
    fn is_pointless(&self) -> bool {
        self.session.has_failed() && !self.source.is_in_the_path()
    }
}

/// Chooses the length of sleeps.
#[derive(Default)]
struct IdleTimer {
    idle_since: Option<Instant>,
}

impl IdleTimer {
    /// The next sleep is short again.
    fn end_idle_period(&mut self) {
        self.idle_since = None;
    }

    /// Length of the next sleep while idle: short between messages, longer after a quiet period, and longest at rest.
    fn next_sleep_time(&mut self, now: Instant) -> Duration {
        // The first call since the last message begins the idle period.
        let idle_since = *self.idle_since.get_or_insert(now);
        match now - idle_since {
            idle if idle < QUIET_PERIOD => SHORT_SLEEP,
            idle if idle < REST_PERIOD => LONG_SLEEP,
            _ => REST_SLEEP,
        }
    }
}

/// Sends keep-alive messages, twice per watchdog interval of the service manager.
struct Watchdog {
    /// `None` without a watchdog.
    interval: Option<Duration>,
    next_notification: Instant,
}

impl Watchdog {
    /// Reads the interval from the environment that the service manager has set. Half of it leaves time for a late message.
    fn new() -> Self {
        Self { interval: sd_notify::watchdog_enabled().map(|max| max / 2), next_notification: Instant::now() }
    }

    /// Tells the service manager that the run loop is alive, once an interval. Does nothing if the service manager has no watchdog for this
    /// process.
    fn notify_if_due(&mut self, now: Instant) {
        let Some(interval) = self.interval else { return };
        if now >= self.next_notification {
            self.next_notification = now + interval;
            notify_service_manager(&[NotifyState::Watchdog]);
        }
    }
}

/// Tells the service manager that the configuration is being reloaded.
fn notify_reloading() {
    // systemd rejects a reload notification without the time.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify_service_manager(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot notify the service manager of the reload: {error}"),
    }
}

/// Notifies the service manager. Does nothing if there is none.
fn notify_service_manager(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use trace::Config;

    use super::*;
    use crate::about::About;
    use crate::observer::NoObserver;
    use crate::sink::Sink;

    /// A source whose second poll panics, as a defect of the analysis would.
    struct Defective {
        in_the_path: bool,
        polls: u32,
        stopped: bool,
    }

    impl About for Defective {
        fn kind(&self) -> &'static str {
            "tap"
        }
    }

    impl Source for Defective {
        fn poll(&mut self, _: &mut Session) -> Flow {
            self.polls += 1;
            assert_ne!(self.polls, 2, "a defect");
            if self.stopped { Flow::Ended } else { Flow::Idle }
        }

        fn stop(&mut self) {
            self.stopped = true;
        }

        fn is_in_the_path(&self) -> bool {
            self.in_the_path
        }
    }

    #[test]
    fn sleeps_become_long_only_after_a_quiet_period() {
        let mut idle_timer = IdleTimer::default();
        let start = Instant::now();
        assert_eq!(idle_timer.next_sleep_time(start), SHORT_SLEEP);
        assert_eq!(idle_timer.next_sleep_time(start + SHORT_SLEEP), SHORT_SLEEP);
        assert_eq!(idle_timer.next_sleep_time(start + QUIET_PERIOD), LONG_SLEEP);
        assert_eq!(idle_timer.next_sleep_time(start + REST_PERIOD), REST_SLEEP);
        idle_timer.end_idle_period();
        assert_eq!(idle_timer.next_sleep_time(start + QUIET_PERIOD + LONG_SLEEP), SHORT_SLEEP);
    }

    /// A source without events.
    struct Silent {
        stopped: bool,
    }

    impl About for Silent {
        fn kind(&self) -> &'static str {
            "tap"
        }
    }

    impl Source for Silent {
        fn poll(&mut self, _: &mut Session) -> Flow {
            if self.stopped { Flow::Ended } else { Flow::Idle }
        }

        fn stop(&mut self) {
            self.stopped = true;
        }
    }

    #[test]
    fn a_defect_of_the_comparison_of_runs_ends_only_the_comparison() {
        let config = Config::default();
        let session = || Session::new(&config, Box::new(NoObserver), Sink::none("tap", &config), 0);
        let mut runs = [(); 2].map(|()| Running::new(Silent { stopped: false }, session())).into_iter().collect();
        let (alarms, mut comparisons) = (RefCell::new(Vec::new()), 0);
        let mut compare = |runs: &mut [Running<Silent>]| {
            comparisons += 1;
            assert_ne!(runs.len(), 2, "a defect");
        };
        run_sessions(
            &mut runs,
            &Signals::none(),
            RunOptions {
                hooks: RunHooks { compare: Some(&mut compare), ..RunHooks::default() },
                duration: Some(Duration::from_millis(400)),
                reload: None,
                alarm: &|message| alarms.borrow_mut().push(message.to_owned()),
            },
        );
        assert_eq!(comparisons, 1);
        assert!(alarms.borrow().len() == 1 && alarms.borrow()[0].contains("comparison"), "{alarms:?}");
        assert!(runs.iter().all(|run| run.source.stopped && !run.session.has_failed()));
    }

    /// A machine whose engines have all ended names them one after the other.
    #[test]
    fn runs_that_join_after_the_first_has_ended_are_not_left_out() {
        let config = Config::default();
        let session = || Session::new(&config, Box::new(NoObserver), Sink::none("watch", &config), 0);
        let ended = || Running::new(Silent { stopped: true }, session());
        let mut runs = vec![ended()];
        let mut further_runs = vec![ended(), ended()];
        let mut join = || further_runs.pop();
        run_sessions(
            &mut runs,
            &Signals::none(),
            RunOptions {
                hooks: RunHooks { join: Some(&mut join), ..RunHooks::default() },
                duration: None,
                reload: None,
                alarm: &|_| {},
            },
        );
        assert_eq!(runs.len(), 3);
    }

    #[test]
    fn a_defect_of_the_analysis_ends_a_run_only_if_no_traffic_depends_on_it() {
        for in_the_path in [true, false] {
            let config = Config::default();
            let session = Session::new(&config, Box::new(NoObserver), Sink::none("tap", &config), 0);
            let source = Defective { in_the_path, polls: 0, stopped: false };
            let mut runs = vec![Running::new(source, session)];
            let duration = Duration::from_millis(if in_the_path { 200 } else { 60_000 });
            let (alarms, start) = (RefCell::new(Vec::new()), Instant::now());
            run_sessions(
                &mut runs,
                &Signals::none(),
                RunOptions {
                    hooks: RunHooks::default(),
                    duration: Some(duration),
                    reload: None,
                    alarm: &|message| alarms.borrow_mut().push(message.to_owned()),
                },
            );
            assert_eq!(start.elapsed() >= duration, in_the_path);
            let Running { source, session, .. } = runs.remove(0);
            assert!(source.stopped && source.polls > 2, "{} polls", source.polls);
            let alarms = alarms.into_inner();
            assert!(alarms.len() == 1 && alarms[0].contains("the analysis failed"), "{alarms:?}");
            let report = session.finish(&source, &|_| {}).to_json();
            assert!(report.contains("analysis crashed and was disabled"), "{report}");
        }
    }
}
