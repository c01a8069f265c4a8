//! Slowdown of an engine at full speed by an observer. One engine drains its queue while tokengap, empty traps and py-spy take turns, with
//! unobserved stretches in between. Each observed stretch is compared with its unobserved neighbours in the same process. Two processes of
//! the same program differ by more than the effect measured here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use probe_user::floor::{Floor, Traps};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{ATTACHING, Args, SETTLE, attach};
use crate::bench::quartiles::Quartiles;
use crate::bench::{aims, venv};
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::process::Process;
use crate::e2e::session::{Session, Setting, mono_ns};
use crate::e2e::setup::Home;
use crate::e2e::tap::Relay;
use crate::e2e::truth::Taken;

/// Duration of a stretch with one observer or none.
const STRETCH: Duration = Duration::from_millis(600);

/// Observer of a stretch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    /// Index of the tokengap program.
    Tokengap(usize),
    /// The first program with `--no-wakeups`, so without event loop polls.
    NoWakeups,
    /// Empty eBPF programs at tokengap's probe points: the kernel's cost of the traps alone.
    Traps,
    PySpy,
}

/// Observers that take turns.
struct Watchers<'a> {
    programs: &'a [PathBuf],
    py_spy: Option<&'a Path>,
}

impl Watchers<'_> {
    /// Endless sequence of all observers, each between two unobserved stretches.
    fn turns(&self) -> impl Iterator<Item = Way> {
        let programs = (0..self.programs.len()).map(Way::Tokengap);
        let peers = self.py_spy.map(|_| Way::PySpy);
        let watched: Vec<_> = programs.chain([Way::NoWakeups, Way::Traps]).chain(peers).collect();
        watched.into_iter().cycle().flat_map(|way| [Way::Alone, way])
    }
}

pub(super) fn measure(args: &Args, home: &Home, engine: &Engine, programs: &[PathBuf]) -> Result<()> {
    let mut setting = Setting::new(engine);
    setting.plan = Plan {
        requests: args.requests,
        tokens: args.frames,
        ..Plan::PLAIN
    };
    setting.gap_ms = 0;
    setting.backlog = true;
    let py_spy = (!args.no_peer).then(|| venv::with("py-spy")).and_then(|installed| {
        installed
            .map(|programs| programs.join("py-spy"))
            .inspect_err(|error| println!("SKIPPED: py-spy cannot be installed: {error:#}"))
            .ok()
    });
    let watchers = Watchers {
        programs,
        py_spy: py_spy.as_deref(),
    };
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        rounds.push(round(home, &setting, &watchers)?);
    }
    println!(
        "{:28} {:>9} {:>9} {:>16} {:>13} {:>9} {:>16}",
        format!("{} TokenizerManager", args.release),
        "stretches",
        "frames/s",
        "over unwatched",
        "CPU us/frame",
        "speed",
        "(quarters)"
    );
    let alone = rounds.iter().flatten().filter(|(way, _)| *way == Way::Alone);
    let medians = |of: fn(&Speed) -> f64| Quartiles::of(alone.clone().map(|(_, speed)| of(speed)));
    let (Some(frames_s), Some(cpu_us)) = (medians(|speed| speed.frames_s), medians(|speed| speed.cpu_us)) else {
        bail!("the engine took too few frames for a single stretch: more --frames")
    };
    println!(
        "{:28} {:9} {:9.0} {:>16} {:13.1}",
        "nothing attached",
        alone.count(),
        frames_s.median,
        "",
        cpu_us.median
    );
    let watched = |way, name: &str| {
        let threes = rounds.iter().flat_map(|speeds| speeds.windows(3));
        let pairs: Vec<_> = threes.filter_map(|three| pair(three, way)).collect();
        let of = |of: fn(&Pair) -> f64| Quartiles::of(pairs.iter().map(of));
        let (frames_s, cpu_us) = (of(|pair| pair.watched.frames_s)?, of(|pair| pair.watched.cpu_us)?);
        let (rate, speed) = (of(|pair| pair.rate)?, of(|pair| pair.speed)?);
        println!(
            "{name:28} {:9} {:9.0} {:16.3} {:13.1} {:9.3} {:>16}",
            pairs.len(),
            frames_s.median,
            rate.median,
            cpu_us.median,
            speed.median,
            format!("({:.3}..{:.3})", speed.low, speed.high)
        );
        Some(speed.median)
    };
    let own: Vec<_> = programs
        .iter()
        .enumerate()
        .map(|(n, program)| {
            let name = match programs {
                [_] => "tokengap, attached".to_owned(),
                _ => program.display().to_string(),
            };
            watched(Way::Tokengap(n), &name)
        })
        .collect();
    let beside = [
        ("`--no-wakeups`", watched(Way::NoWakeups, "the same, --no-wakeups")),
        ("the traps alone", watched(Way::Traps, "empty traps at its places")),
        ("py-spy record", watched(Way::PySpy, "py-spy record, 100 Hz")),
    ];
    let beside: Vec<_> = beside
        .into_iter()
        .filter_map(|(name, speed)| Some((name, speed?)))
        .collect();
    let [speed] = own[..] else { return Ok(()) };
    let speed = speed.context("no stretch with tokengap lies between two without: more --frames")?;
    aims::came("target", speed, &beside)
}

/// Engine speed in one stretch.
#[derive(Clone, Copy)]
struct Speed {
    frames_s: f64,
    /// CPU microseconds of the tokenizer's thread per frame.
    cpu_us: f64,
}

/// An observed stretch, and its speed relative to the unobserved ones before and after it.
struct Pair {
    watched: Speed,
    /// Ratio by frames per second.
    rate: f64,
    /// Ratio by CPU time.
    speed: f64,
}

fn pair(three: &[(Way, Speed)], wanted: Way) -> Option<Pair> {
    let &[(Way::Alone, before), (way, watched), (Way::Alone, after)] = three else {
        return None;
    };
    (way == wanted).then(|| Pair {
        watched,
        rate: watched.frames_s * 2.0 / (before.frames_s + after.frames_s),
        speed: f64::midpoint(before.cpu_us, after.cpu_us) / watched.cpu_us,
    })
}

/// A time span and the CPU nanoseconds of the tokenizer's thread in it.
struct Stretch {
    way: Way,
    from_ns: u64,
    to_ns: u64,
    cpu_ns: u64,
}

impl Stretch {
    /// `None` if the engine had no frames to receive during part of the stretch.
    fn speed(&self, taken: &[Taken]) -> Option<Speed> {
        let (first, last) = (taken.first()?, taken.last()?);
        if self.from_ns < first.at_ns || self.to_ns > last.at_ns {
            return None;
        }
        let at = |ns| taken.partition_point(|taken| taken.at_ns < ns);
        let frames = at(self.to_ns)
            .checked_sub(at(self.from_ns))
            .filter(|frames| *frames > 0)? as f64;
        Some(Speed {
            frames_s: frames * 1e9 / (self.to_ns - self.from_ns) as f64,
            cpu_us: self.cpu_ns as f64 / 1e3 / frames,
        })
    }
}

/// Runs one engine; returns its stretches in order.
fn round(home: &Home, setting: &Setting, watchers: &Watchers<'_>) -> Result<Vec<(Way, Speed)>> {
    let dir = tempfile::tempdir()?;
    let mut session = Session::start(home, setting, &Relay::Absent, dir.path())?;
    let pid = session.tokenizer_pid();
    session.go()?;
    thread::scope(|scope| {
        let stretches = scope.spawn(|| stretches(pid, watchers, dir.path()));
        let outcome = session.finish()?;
        let stretches = stretches.join().map_err(|_| anyhow::anyhow!("watching failed"))??;
        let taken = outcome.receiver.taken;
        anyhow::Ok(
            stretches
                .into_iter()
                .filter_map(|stretch| Some((stretch.way, stretch.speed(&taken)?)))
                .collect(),
        )
    })
}

/// Attaches and detaches observers until the engine ends.
fn stretches(pid: u32, watchers: &Watchers<'_>, dir: &Path) -> Result<Vec<Stretch>> {
    let mut stretches = Vec::new();
    for way in watchers.turns() {
        let attached = match (way, watchers.py_spy) {
            (Way::Tokengap(n), _) => {
                attach(&watchers.programs[n], pid, dir, &[]).map(|process| Some(Attached::Tokengap(process)))
            }
            (Way::NoWakeups, _) => attach(&watchers.programs[0], pid, dir, &["--no-wakeups"])
                .map(|process| Some(Attached::Tokengap(process))),
            (Way::Traps, _) => Floor::attach(pid, Traps::All)
                .map(|floor| Some(Attached::Traps(floor)))
                .map_err(Into::into),
            (Way::PySpy, Some(py_spy)) => sampled(py_spy, pid, dir).map(Some),
            (Way::Alone, _) | (Way::PySpy, None) => Ok(None),
        };
        let attached = match attached {
            Ok(attached) => attached,
            Err(_) if ends(pid) => break,
            Err(error) => return Err(error),
        };
        let (from_ns, before) = (mono_ns(), on_cpu(pid));
        thread::sleep(STRETCH);
        let (to_ns, after) = (mono_ns(), on_cpu(pid));
        let (Some(before), Some(after)) = (before, after) else {
            break;
        };
        let watched = match attached.map(Attached::end) {
            Some(Err(_)) if ends(pid) => break,
            Some(watched) => watched?,
            None => true,
        };
        if !watched {
            continue;
        }
        stretches.push(Stretch {
            way,
            from_ns,
            to_ns,
            cpu_ns: after - before,
        });
    }
    Ok(stretches)
}

/// Whether the engine is about to end: it closes its sockets some time before it exits.
fn ends(pid: u32) -> bool {
    (0..100).any(|_| {
        thread::sleep(Duration::from_millis(50));
        on_cpu(pid).is_none()
    })
}

enum Attached {
    Tokengap(Process),
    Traps(Floor),
    /// py-spy, and the file that it writes.
    PySpy(Child, PathBuf),
}

impl Attached {
    /// Stops the observer; returns whether it had collected data. py-spy sometimes stops without samples.
    fn end(self) -> Result<bool> {
        match self {
            Self::Tokengap(process) => {
                process.signal(Signal::INT)?;
                let report: Value = serde_json::from_str(&process.end_well(ATTACHING)?.join("\n"))?;
                let lost = &report["self"]["events_missed"];
                ensure!(lost == 0, "{lost} observations were lost");
            }
            Self::Traps(floor) => drop(floor),
            Self::PySpy(mut child, samples) => {
                if let Some(pid) = Pid::from_raw(child.id() as i32) {
                    // It also exits with its target.
                    let _ = kill_process(pid, Signal::INT);
                }
                child.wait()?;
                return Ok(fs::metadata(&samples).is_ok_and(|file| file.len() > 0));
            }
        }
        Ok(true)
    }
}

/// Samples the process's stacks until stopped.
fn sampled(program: &Path, pid: u32, dir: &Path) -> Result<Attached> {
    let samples = dir.join("py-spy.txt");
    let mut command = Command::new(program);
    command.args(["record", "--rate", "100", "--format", "raw"]);
    command.args(["--pid", &pid.to_string(), "--output"]).arg(&samples);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.with_context(|| program.display().to_string())?;
    thread::sleep(SETTLE);
    if let Some(status) = child.try_wait()? {
        bail!("{command:?}: {status}: it does not sample");
    }
    Ok(Attached::PySpy(child, samples))
}

/// CPU nanoseconds of a process's main thread; `None` after exit, when the command line is empty even if the process is not reaped.
fn on_cpu(pid: u32) -> Option<u64> {
    fs::read(format!("/proc/{pid}/cmdline"))
        .ok()
        .filter(|line| !line.is_empty())?;
    let spent = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    spent.split(' ').next()?.parse().ok().filter(|spent| *spent > 0)
}
