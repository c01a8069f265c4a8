//! Drives a source through the analysis to its report: one loop for every source.

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use trace::report::{Report, ReportInput};
use trace::{Analysis, Config, MonoNs};

use crate::cli::LiveArgs;
use crate::live::Summary;
use crate::source::{Flow, Source};

/// Sleep when a source has nothing: short beside a frame interval, long beside a wake-up.
const IDLE: Duration = Duration::from_millis(2);
/// How often time-dependent detectors look.
const TICK: Duration = Duration::from_millis(100);
/// How long a source may take to hand over what is under way once it was asked to end.
const DRAIN: Duration = Duration::from_secs(40);

/// Whether a run with these flags has no screen.
pub(crate) fn is_headless(args: &LiveArgs) -> bool {
    args.headless || args.json || !std::io::stdout().is_terminal()
}

/// Runs `source` until it ends, `--duration` is over or a signal comes, then prints the report.
pub(crate) fn run(mut source: impl Source, args: &LiveArgs) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for SIGINT and SIGTERM")?;
    let mut analysis = Analysis::new(Config {
        limits: args.limits(),
        ..Config::default()
    });
    let mut summary = (!is_headless(args)).then(Summary::new);
    let outcome = drive(&mut source, &mut analysis, args.duration, &signals, summary.as_mut())?;

    let report = analysis.report(&ReportInput {
        cpu_ns: Some(cpu_ns()),
        rss_bytes: rss_bytes(),
        degraded: source.degraded().into_iter().chain(outcome.degraded).map(Value::from).collect(),
        wire: source.wire(),
        demo: source.truth(),
        ..ReportInput::of(source.kind())
    });
    print(&report, args.json)?;
    let failed = args.fail_on.is_some_and(|least| report.worst() >= Some(least));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// What a run has to say beside the analysis.
#[derive(Default)]
struct Outcome {
    degraded: Vec<String>,
}

fn drive(
    source: &mut impl Source,
    analysis: &mut Analysis,
    duration: Option<Duration>,
    signals: &Signals,
    mut summary: Option<&mut Summary>,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let start = Instant::now();
    let mut next_tick = start;
    let mut deadline = None;
    let mut progress = Progress::default();
    loop {
        let flow = match catch_unwind(AssertUnwindSafe(|| source.poll(&mut |event| analysis.apply(event)))) {
            Ok(flow) => flow,
            Err(_) => {
                outcome
                    .degraded
                    .push("analysis: it failed and was left off; the traffic went on (this is a bug)".into());
                eprintln!(
                    "tokengap: the analysis failed; the traffic goes on unobserved until this process is asked to end"
                );
                signals.wait();
                source.stop();
                return Ok(outcome);
            }
        };
        let now = Instant::now();
        if now >= next_tick {
            analysis.tick(MonoNs::now());
            next_tick = now + TICK;
            match summary.as_mut() {
                Some(summary) => summary.update(analysis)?,
                None => progress.tell(deadline.and_then(|_| source.under_way()), now),
            }
        }
        let over = duration.is_some_and(|d| now - start >= d);
        if deadline.is_none() && (over || signals.seen() > 0) {
            source.stop();
            deadline = Some(now + DRAIN);
        }
        match flow {
            Flow::Ended => return Ok(outcome),
            Flow::Idle => thread::sleep(IDLE),
            Flow::Busy => {}
        }
        if signals.seen() > 1 || deadline.is_some_and(|d| now >= d) {
            outcome
                .degraded
                .push("end: what was still under way was not waited for".into());
            return Ok(outcome);
        }
    }
}

/// Says on stderr what a run without a screen waits for, once a second.
#[derive(Default)]
struct Progress {
    last: Option<Instant>,
}

impl Progress {
    fn tell(&mut self, under_way: Option<String>, now: Instant) {
        let Some(under_way) = under_way else { return };
        if now - *self.last.get_or_insert(now) >= Duration::from_secs(1) {
            self.last = Some(now);
            eprintln!("tokengap: {under_way}");
        }
    }
}

fn print(report: &Report, json: bool) -> anyhow::Result<()> {
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

/// CPU time of this process so far.
fn cpu_ns() -> u64 {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

/// Resident memory from /proc/self/statm; `None` where there is no such file.
fn rss_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Counts SIGINT and SIGTERM: the first asks to drain, the second to leave at once.
struct Signals(Arc<AtomicUsize>);

impl Signals {
    fn install() -> std::io::Result<Self> {
        let count = Arc::new(AtomicUsize::new(0));
        let mut signals =
            signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
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
