//! Drives a source through the analysis to its report: one loop for every source, with a screen or without.

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use trace::report::{Report, ReportInput};
use trace::{Analysis, Config, MonoNs};

use crate::cli::LiveArgs;
use crate::observer::{Nobody, Observer, Progress, Run, Stage, Wish};
use crate::own;
use crate::screen::Screen;
use crate::source::{Flow, Source};

/// Sleep when a source has nothing: short beside a frame interval, long beside a wake-up.
const IDLE: Duration = Duration::from_millis(2);
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
    let cannot_draw = |term: std::ffi::OsString| term.is_empty() || term == "dumb";
    std::io::stdout().is_terminal() && !std::env::var_os("TERM").is_none_or(cannot_draw)
}

/// Runs `source` until it ends, `--duration` is over, the reader leaves or a signal comes, then prints the report.
pub(crate) fn run(mut source: impl Source, args: &LiveArgs) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for SIGINT, SIGTERM and SIGHUP")?;
    let mut analysis = Analysis::new(Config {
        limits: args.limits(),
        ..Config::default()
    });
    let observer: Box<dyn Observer> = if is_headless(args) {
        Box::new(Progress::default())
    } else {
        Box::new(Screen::open(args.keep())?)
    };
    let degraded = drive(&mut source, &mut analysis, args, &signals, observer);
    let report = report(&analysis, &source, &degraded, args.slowest);
    print(&report, args.json)?;
    let failed = args.fail_on.is_some_and(|least| report.worst() >= Some(least));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn report(analysis: &Analysis, source: &impl Source, degraded: &[String], slowest: usize) -> Report {
    analysis.report(&ReportInput {
        wall: Some((MonoNs::now(), trace::clock::wall_ns())),
        slowest,
        cpu_ns: Some(own::cpu_ns()),
        rss_bytes: own::rss_bytes(),
        degraded: source
            .degraded()
            .into_iter()
            .chain(degraded.iter().cloned())
            .map(Value::from)
            .collect(),
        wire: source.wire(),
        sampling: source.sampling(),
        demo: source.truth(),
        ..ReportInput::of(source.kind())
    })
}

/// Lets events flow until the run is over; gives back what was given up on the way. The observer is gone afterwards.
fn drive(
    source: &mut impl Source,
    analysis: &mut Analysis,
    args: &LiveArgs,
    signals: &Signals,
    mut observer: Box<dyn Observer>,
) -> Vec<String> {
    let mut degraded: Vec<String> = Vec::new();
    let start = Instant::now();
    let mut next_tick = start;
    let mut deadline = None;
    let mut flow = Flow::Idle;
    let mut wishes = 0;
    loop {
        if flow != Flow::Ended {
            let polled = catch_unwind(AssertUnwindSafe(|| {
                source.poll(&mut |event| {
                    analysis.apply(event);
                    observer.event(event);
                })
            }));
            let Ok(polled) = polled else {
                drop(observer);
                degraded.push("analysis: it failed and was left off; the traffic went on (this is a bug)".into());
                eprintln!(
                    "tokengap: the analysis failed; the traffic goes on unobserved until this process is asked to end"
                );
                signals.wait();
                source.stop();
                return degraded;
            };
            flow = polled;
        }
        let now = Instant::now();
        if now >= next_tick {
            analysis.tick(MonoNs::now());
            next_tick = now + TICK;
        }
        let stage = match (flow, deadline) {
            (Flow::Ended, _) => Stage::Ended,
            (_, Some(_)) => Stage::Ending,
            (_, None) => Stage::Running,
        };
        let wish = catch_unwind(AssertUnwindSafe(|| {
            look_on(&mut *observer, analysis, source, &degraded, stage, args.slowest)
        }));
        let wish = match wish {
            Ok(Ok(wish)) => wish,
            Ok(Err(error)) => {
                observer = Box::new(Nobody);
                degraded.push(format!("screen: {error:#}"));
                Wish::End
            }
            Err(_) => {
                observer = Box::new(Nobody);
                degraded.push("screen: it failed and was left off; the run went on (this is a bug)".into());
                Wish::None
            }
        };
        wishes += usize::from(wish == Wish::End);
        let over = args.duration.is_some_and(|d| now - start >= d);
        let asked = signals.seen() + wishes;
        if deadline.is_none() && (over || asked > 0) {
            source.stop();
            deadline = Some(now + DRAIN);
        }
        match flow {
            Flow::Ended if deadline.is_some() || wish != Wish::Stay => return degraded,
            Flow::Ended | Flow::Idle => thread::sleep(IDLE),
            Flow::Busy => {}
        }
        if asked > 1 || deadline.is_some_and(|d| now >= d) {
            degraded.push("end: what was still under way was not waited for".into());
            return degraded;
        }
    }
}

fn look_on(
    observer: &mut dyn Observer,
    analysis: &Analysis,
    source: &impl Source,
    degraded: &[String],
    stage: Stage,
    slowest: usize,
) -> anyhow::Result<Wish> {
    observer.turn(&Run {
        analysis,
        source: source.kind(),
        stage,
        degraded: &|| source.degraded().into_iter().chain(degraded.iter().cloned()).collect(),
        under_way: &|| source.under_way(),
        report: &|| report(analysis, source, degraded, slowest),
    })
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

/// Counts SIGINT, SIGTERM and SIGHUP: the first asks to drain, the second to leave at once.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn install() -> std::io::Result<Self> {
        let count = Arc::new(AtomicUsize::new(0));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let seen = Arc::clone(&count);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        Ok(Self(count))
    }

    fn seen(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn wait(&self) {
        while self.seen() == 0 {
            thread::sleep(TICK);
        }
    }
}
