//! Run loop that feeds any source to the analysis until the report, with or without a screen.

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use trace::detect::Severity;
use trace::report::Report;
use trace::{Config, MonoNs};

use crate::cli::LiveArgs;
use crate::config::Configured;
use crate::drive::Drive;
use crate::observer::{Observer, Progress, Stage, Wish};
use crate::rest::{self, Rest};
use crate::screen::Screen;
use crate::service::{self, Watchdog};
use crate::sink::{Sink, Tokens};
use crate::source::{Flow, Source};
use crate::telemetry::{self, Telemetry};

/// Interval of ticks for time-dependent detectors.
const TICK: Duration = Duration::from_millis(100);
/// Time for a source to drain after it was asked to end.
const DRAIN: Duration = Duration::from_secs(40);

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
        Some(term) if term.is_empty() || term == "dumb" => Some(format!("TERM={} cannot show one", term.display())),
        Some(_) => None,
    }
}

/// Prints why the screen is off, if it cannot be drawn.
pub(crate) fn tell_no_terminal() {
    if let Some(why) = no_terminal() {
        errln!("tokengap: the screen is off: {why}; --headless runs without one");
    }
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
        ..Config::default()
    };
    if args.record.payload == Tokens::Tokens {
        source.keep_ids();
    }
    let mut sink = Sink::open(&args.record, source.kind(), &config)?;
    sink.publish(&args.feed)?;
    let telemetry = Telemetry::open(&args.telemetry, source.kind())?;
    if !args.headless && !args.json {
        tell_no_terminal();
    }
    let observer: Box<dyn Observer> = if is_headless(args) {
        Box::new(Progress::default())
    } else {
        Box::new(Screen::open(&args.screen)?)
    };
    let mut run = Drive::new(&config, observer, sink, args.slowest).telling(telemetry);
    let mut configured = Configured::at_start(args)?;
    signals.reloads(configured.is_some());
    service::ready();
    drive(&mut source, &mut run, args.duration, signals, &mut configured);
    service::stopping();
    let report = run.finish(&source);
    let before = signals.seen();
    telemetry::linger(&args.telemetry, || signals.seen() > before);
    Ok(report)
}

/// Prints the report and returns the exit code for `fail_on`.
pub(crate) fn conclude(report: &Report, json: bool, fail_on: Option<Severity>) -> anyhow::Result<ExitCode> {
    print(report, json)?;
    let failed = fail_on.is_some_and(|least| is_too_bad(report, least));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Returns whether the report has a finding of at least this severity.
pub(crate) fn is_too_bad(report: &Report, least: Severity) -> bool {
    report.worst() >= Some(least)
}

/// Polls the source until the run is over.
fn drive(
    source: &mut impl Source,
    run: &mut Drive,
    duration: Option<Duration>,
    signals: &Signals,
    configured: &mut Option<Configured>,
) {
    let mut watchdog = Watchdog::new();
    let start = Instant::now();
    let mut next_tick = start;
    let mut deadline = None;
    let mut flow = Flow::Idle;
    let mut rest = Rest::default();
    let mut wishes = 0;
    loop {
        let ticks = Instant::now() >= next_tick;
        let observed = catch_unwind(AssertUnwindSafe(|| {
            if flow != Flow::Ended {
                flow = source.poll(&mut |event| run.event(event));
            }
            if ticks {
                run.tick(MonoNs::now(), &*source);
            }
        }));
        if observed.is_err() {
            run.dismiss();
            run.give_up("analysis: it failed and was left off; the traffic went on (this is a bug)".into());
            go_on_unobserved(source, duration.map(|d| start + d), signals, &mut watchdog);
            return;
        }
        let now = Instant::now();
        if ticks {
            next_tick = now + TICK;
            watchdog.tick(now);
        }
        if let Some(configured) = configured.as_mut().filter(|_| signals.take_reload()) {
            service::reloading();
            reload(run, configured);
            service::ready();
        }
        if signals.take_dump() {
            run.dump("SIGUSR1", &*source);
        }
        let stage = match (flow, deadline) {
            (Flow::Ended, _) => Stage::Ended,
            (_, Some(_)) => Stage::Ending,
            (_, None) => Stage::Running,
        };
        let wish = run.turn(&*source, stage, None);
        wishes += usize::from(wish == Wish::End);
        let over = duration.is_some_and(|d| now - start >= d);
        let asked = signals.seen() + wishes;
        if deadline.is_none() && (over || asked > 0) {
            source.stop();
            deadline = Some(now + DRAIN);
        }
        match flow {
            Flow::Ended if deadline.is_some() || wish != Wish::Stay => return,
            Flow::Ended | Flow::Idle => run.rest(rest.length(now)),
            Flow::Busy => rest.end(),
        }
        if asked > 1 || deadline.is_some_and(|d| now >= d) {
            run.give_up("end: stopped before all frames in flight were read".into());
            return;
        }
    }
}

/// Continues after a failure of the analysis. A source in the traffic path keeps relaying until it is asked to end or `over` is reached;
/// any other source stops at once.
fn go_on_unobserved(source: &mut impl Source, over: Option<Instant>, signals: &Signals, watchdog: &mut Watchdog) {
    let in_the_path = source.is_in_the_path();
    errln!(
        "tokengap: the analysis failed; {}",
        if in_the_path {
            "the traffic goes on unobserved until this process is asked to end"
        } else {
            "this run ends, which leaves the engine as it was"
        }
    );
    // The panic may repeat at every message and has been reported once.
    std::panic::set_hook(Box::new(|_| {}));
    let mut deadline = None;
    loop {
        let now = Instant::now();
        watchdog.tick(now);
        let asked = !in_the_path || signals.seen() > 0 || over.is_some_and(|over| now >= over);
        if asked && deadline.is_none() {
            source.stop();
            deadline = Some(now + DRAIN);
        }
        // Polling keeps the traffic flowing; its observations are discarded.
        match catch_unwind(AssertUnwindSafe(|| source.poll(&mut |_| {}))) {
            Ok(Flow::Ended) => return,
            Ok(Flow::Idle) => thread::sleep(rest::SHORT),
            Ok(Flow::Busy) | Err(_) => {}
        }
        if signals.seen() > 1 || deadline.is_some_and(|deadline| now >= deadline) {
            return;
        }
    }
}

/// Reads the configuration again and applies the settings that can change during a run.
fn reload(run: &mut Drive, configured: &mut Configured) {
    match configured.reread() {
        Ok((args, said)) => {
            run.retune(&args);
            run.say(said);
        }
        Err(error) => run.say(format!("! the configuration stays as it was: {error:#}")),
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

/// Counts SIGINT, SIGTERM and SIGHUP: the first drains, the second exits at once. SIGUSR1 dumps the hindsight ring. With a configuration
/// file, SIGHUP reloads it instead.
pub(crate) struct Signals {
    reloads: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
    ends: Arc<AtomicUsize>,
    dump: Arc<AtomicBool>,
}

impl Signals {
    pub(crate) fn install() -> std::io::Result<Self> {
        let (ends, dump) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])?;
        let (reloads, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (seen, asked) = (Arc::clone(&ends), Arc::clone(&dump));
        let (may, again) = (Arc::clone(&reloads), Arc::clone(&reload));
        thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if signal == SIGUSR1 {
                    asked.store(true, Ordering::Relaxed);
                } else if signal == SIGHUP && may.load(Ordering::Relaxed) {
                    again.store(true, Ordering::Relaxed);
                } else {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Self {
            reloads,
            reload,
            ends,
            dump,
        })
    }

    /// Ignores signals, which are handled elsewhere.
    pub(crate) fn none() -> Self {
        Self {
            reloads: Arc::default(),
            reload: Arc::default(),
            ends: Arc::default(),
            dump: Arc::default(),
        }
    }

    /// Number of requests to end the run.
    pub(crate) fn seen(&self) -> usize {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns whether a dump was requested since the last call.
    fn take_dump(&self) -> bool {
        self.dump.swap(false, Ordering::Relaxed)
    }

    /// Sets whether SIGHUP reloads the configuration instead of ending the run.
    fn reloads(&self, there_is_a_file: bool) {
        self.reloads.store(there_is_a_file, Ordering::Relaxed);
    }

    /// Returns whether a reload was requested since the last call.
    fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}
