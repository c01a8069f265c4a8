//! Drives a source through the analysis to its report: one loop for every source, with a screen or without.

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

/// How often time-dependent detectors look.
const TICK: Duration = Duration::from_millis(100);
/// How long a source may take to hand over what is under way once it was asked to end.
const DRAIN: Duration = Duration::from_secs(40);

/// Whether a run with these flags has no screen.
pub(crate) fn is_headless(args: &LiveArgs) -> bool {
    args.headless || args.json || !has_terminal()
}

/// Whether stdout is a terminal that a screen can be drawn on.
pub(crate) fn has_terminal() -> bool {
    no_terminal().is_none()
}

/// Why no screen can be drawn; `None` where one can.
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

/// Says that there is no screen and why, where none can be drawn.
pub(crate) fn tell_no_terminal() {
    if let Some(why) = no_terminal() {
        errln!("tokengap: the screen is off: {why}; --headless runs without one");
    }
}

/// Runs `source` until it ends, `--duration` is over, the reader leaves or a signal comes, then prints the report.
pub(crate) fn run(source: impl Source, args: &LiveArgs) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for signals")?;
    conclude(&watch(source, args, &signals)?, args.json, args.fail_on)
}

/// Runs `source` likewise, and gives the report.
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

/// Prints the report; the exit code says whether its findings are too bad.
pub(crate) fn conclude(report: &Report, json: bool, fail_on: Option<Severity>) -> anyhow::Result<ExitCode> {
    print(report, json)?;
    let failed = fail_on.is_some_and(|least| is_too_bad(report, least));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Whether the report has a finding that is at least so severe.
pub(crate) fn is_too_bad(report: &Report, least: Severity) -> bool {
    report.worst() >= Some(least)
}

/// Lets events flow until the run is over.
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
            run.give_up("end: what was still under way was not waited for".into());
            return;
        }
    }
}

/// The analysis has failed: what the engine's messages pass through goes on until somebody asks for the end or `over` comes, and ends in
/// order. Where nothing passes through us, nothing keeps us.
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
    // It may fail again at every message, and has been said once.
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
        // What is observed is handed over to nobody: a source in the path has its own work to do there.
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

/// The configuration anew, as far as it can change under way.
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

/// Counts SIGINT, SIGTERM and SIGHUP: the first asks to drain, the second to leave at once. SIGUSR1 asks for a dump. Where there is a
/// configuration file, SIGHUP asks to read it again instead.
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

    /// Hears none: they are somebody else's business.
    pub(crate) fn none() -> Self {
        Self {
            reloads: Arc::default(),
            reload: Arc::default(),
            ends: Arc::default(),
            dump: Arc::default(),
        }
    }

    /// How often the run was asked to end.
    pub(crate) fn seen(&self) -> usize {
        self.ends.load(Ordering::Relaxed)
    }

    /// Whether a dump was asked for since the last call.
    fn take_dump(&self) -> bool {
        self.dump.swap(false, Ordering::Relaxed)
    }

    /// SIGHUP asks to read the configuration again, and not to end.
    fn reloads(&self, there_is_a_file: bool) {
        self.reloads.store(there_is_a_file, Ordering::Relaxed);
    }

    /// Whether the configuration is to be read again.
    fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}
