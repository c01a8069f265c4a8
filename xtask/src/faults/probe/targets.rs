//! Targets that exit, exec or freeze while the probe attaches.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use probe_user::{Options, Probe, Target};
use rustix::process::Signal;

use super::{Bench, CAPTURE, Checks, Load, Objects, Pair, Seen, Sender, Told, attach};

/// A load with a known count, so that every record can be accounted for.
const COUNTED: Load = Load {
    count: 2_000,
    connections: 2,
    rate: 4_000,
    sizes: "small",
    ..Load::STEADY
};

/// Kills a sender at varying times during attach while the same probe observes the receiver throughout.
pub(super) fn dies(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let rounds = if bench.long { 100 } else { 10 };
    let endless = Load { count: 0, ..COUNTED };
    let mut pair = Pair::start(bench, endless, dir)?;
    pair.sender.go()?;
    let endpoint = format!("ipc://{}", dir.join("hop").display());
    let own = std::process::id();
    let (mut held, mut told, mut refused) = (Objects::default(), Told::default(), 0);
    let mut probe = attach(&[pair.receiver.pid()], Options::default())?;
    for round in 0..rounds {
        let name = format!("victim{round}");
        let load = Load {
            first: 100 + round * 10,
            ..endless
        };
        let mut victim = Sender::start(bench, &name, &endpoint, load, dir)?;
        victim.go()?;
        let pid = victim.pid();
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(u64::from(round) * 80 / u64::from(rounds)));
            victim.kill()
        });
        // Killed before, during or after attach: either an error, or a target whose exit is reported.
        refused += u32::from(probe.add(&[Target { pid, capture: CAPTURE }]).is_err());
        killer.join().expect("it only kills")?;
        told.read_for(&mut probe, Duration::from_millis(150))?;
        held.merge(Objects::of(own)?);
    }
    checks.equal(
        "ends that were told, or refused",
        &u64::from(rounds),
        &(told.exited + u64::from(refused)),
    );
    checks.equal("the receiver is watched all the time", &true, &(told.taken > 100));
    drop(probe);
    let left = held.gone_within(Duration::from_secs(10));
    checks.equal(
        "programs, links and maps left in the kernel",
        &Objects::default(),
        &left,
    );
    let arrived = pair.end()?;
    arrived.exactly(checks);
    Ok(Seen {
        messages: arrived.messages(),
        told: format!(
            "{rounds} of them, {} ends told; the other sender: {arrived}",
            told.exited
        ),
    })
}

/// A process loses its probes on exec. After a second attach, all its messages are observed.
pub(super) fn execs(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let mut pair = Pair::start(bench, COUNTED, dir)?;
    let mut probe = pair.attach(Options::default())?;
    pair.sender.become_another()?;
    let mut told = Told::default();
    told.read_for(&mut probe, Duration::from_millis(200))?;
    drop(probe);
    let mut probe = pair.attach(Options::default())?;
    pair.sender.go()?;
    all_told(&mut probe, checks)?;
    drop(probe);
    let arrived = pair.end()?;
    arrived.exactly(checks);
    Ok(Seen {
        messages: arrived.messages(),
        told: format!("{arrived}, each seen sent and taken"),
    })
}

/// Method of freezing a process.
pub(super) trait Still {
    fn freeze(&self, sender: &Sender) -> Result<()>;
    fn thaw(&self, sender: &Sender) -> Result<()>;
}

pub(super) struct Signals;

impl Still for Signals {
    fn freeze(&self, sender: &Sender) -> Result<()> {
        sender.signal(Signal::STOP)
    }

    fn thaw(&self, sender: &Sender) -> Result<()> {
        sender.signal(Signal::CONT)
    }
}

/// Checks that attaching to a frozen process takes no longer than usual, and that its later messages are observed.
pub(super) fn frozen(bench: &Bench, how: &impl Still, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let mut pair = Pair::start(bench, COUNTED, dir)?;
    how.freeze(&pair.sender)?;
    let begun = Instant::now();
    let probe = pair.attach(Options::default());
    let took = begun.elapsed();
    how.thaw(&pair.sender)?;
    let mut probe = probe?;
    checks.equal(
        &format!("the attach does not wait ({took:?})"),
        &true,
        &(took < Duration::from_secs(10)),
    );
    pair.sender.go()?;
    all_told(&mut probe, checks)?;
    // Detach while it is frozen, too.
    how.freeze(&pair.sender)?;
    let begun = Instant::now();
    drop(probe);
    let took_leaving = begun.elapsed();
    how.thaw(&pair.sender)?;
    checks.equal(
        &format!("the detach does not wait ({took_leaving:?})"),
        &true,
        &(took_leaving < Duration::from_secs(10)),
    );
    let arrived = pair.end()?;
    arrived.exactly(checks);
    Ok(Seen {
        messages: arrived.messages(),
        told: format!(
            "attached in {} ms, detached in {} ms; {arrived}, each seen sent and taken",
            took.as_millis(),
            took_leaving.as_millis()
        ),
    })
}

/// A cgroup for freezing its processes.
struct Freezer {
    place: PathBuf,
    /// Control file and its values, of cgroup v2 or v1.
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezer {
    fn make() -> Result<Self> {
        let name = format!("tokengap-faults-{}", std::process::id());
        let versions = [
            ("/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", ["1", "0"]),
            ("/sys/fs/cgroup", "cgroup.freeze", ["1", "0"]),
        ];
        for (root, file, words) in versions {
            let place = Path::new(root).join(&name);
            if fs::create_dir(&place).is_err() {
                continue;
            }
            let freezer = Self { place, file, words };
            if freezer.place.join(file).exists() {
                return Ok(freezer);
            }
        }
        anyhow::bail!("no cgroup with a freezer can be made here")
    }

    fn say(&self, file: &str, word: &str) -> Result<()> {
        let path = self.place.join(file);
        fs::write(&path, word).with_context(|| format!("writing {word} to {}", path.display()))
    }
}

impl Still for Freezer {
    fn freeze(&self, sender: &Sender) -> Result<()> {
        self.say("cgroup.procs", &sender.pid().to_string())?;
        self.say(self.file, self.words[0])
    }

    fn thaw(&self, _: &Sender) -> Result<()> {
        self.say(self.file, self.words[1])
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // Thaw first: a frozen process cannot exit. At most an empty folder remains.
        let _ = self.say(self.file, self.words[1]);
        for _ in 0..100 {
            if fs::remove_dir(&self.place).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(super) fn in_freezer(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    match Freezer::make() {
        Ok(freezer) => frozen(bench, &freezer, dir, checks),
        Err(why) => Ok(Seen {
            messages: 0,
            told: format!("SKIPPED: {why}"),
        }),
    }
}

/// Checks that the probe reports every message of [`COUNTED`] at both ends.
fn all_told(probe: &mut Probe, checks: &mut Checks) -> Result<()> {
    let wanted = u64::from(COUNTED.count * COUNTED.connections);
    let mut told = Told::default();
    told.read_until(probe, |told| told.taken >= wanted)?;
    checks.equal(
        "sent and taken, as told",
        &(wanted, wanted, 0),
        &(told.sent, told.taken, told.lost),
    );
    Ok(())
}
