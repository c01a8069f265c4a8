//! Targets that exit, exec or freeze while the probe attaches.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use probe_user::{Probe, ProbeOptions, Target};
use rustix::process::Signal;

use super::{CAPTURE, Counts, FaultChecks, KernelObjects, Peer, PeerLoad, PeerPair, attach};

/// A load with a known count, so that every record can be accounted for.
const COUNTED: PeerLoad = PeerLoad { count: 2_000, connections: 2, rate: 4_000, sizes: "small", ..PeerLoad::STEADY };

/// Kills a sender at varying times during attach while the same probe observes the receiver throughout.
pub(super) fn dies(long: bool, endpoint: &str, checks: &mut FaultChecks) -> Result<()> {
    let rounds = if long { 100 } else { 10 };
    let endless = PeerLoad { count: 0, ..COUNTED };
    let mut pair = PeerPair::start(endless, endpoint)?;
    pair.sender.go()?;
    let own = std::process::id();
    let mut objects = KernelObjects::default();
    let mut counts = Counts::default();
    let mut refused = 0;
    let mut probe = attach(&[pair.receiver.pid()], ProbeOptions::default())?;
    for round in 0..rounds {
        let mut victim = Peer::sender(endpoint, PeerLoad { first: 100 + round * 10, ..endless })?;
        victim.go()?;
        let pid = victim.pid();
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(u64::from(round) * 80 / u64::from(rounds)));
            drop(victim);
        });
        // Whether killed before, during or after attach, the result is an error or a reported exit.
        refused += u32::from(probe.add_targets(&[Target { pid, capture: CAPTURE }]).is_err());
        killer.join().expect("the killer thread does not panic");
        counts.read_for(&mut probe, Duration::from_millis(150))?;
        objects.add_held_by(own)?;
    }
    checks.equal("reported exits and refused attaches", &u64::from(rounds), &(counts.exited + u64::from(refused)));
    checks.holds("the receiver is observed throughout", counts.received > 100);
    drop(probe);
    objects.check_freed(checks);
    let arrived = pair.end(checks)?;
    checks.outcome = format!("{rounds} rounds, {} exits reported; the other sender: {arrived}", counts.exited);
    Ok(())
}

/// A process loses its probes on exec. After a second attach, all its messages are observed.
pub(super) fn execs(_: bool, endpoint: &str, checks: &mut FaultChecks) -> Result<()> {
    let mut pair = PeerPair::start(COUNTED, endpoint)?;
    let mut probe = attach(&pair.pids(), ProbeOptions::default())?;
    pair.sender.become_another()?;
    let mut counts = Counts::default();
    counts.read_for(&mut probe, Duration::from_millis(200))?;
    drop(probe);
    let mut probe = attach(&pair.pids(), ProbeOptions::default())?;
    pair.sender.go()?;
    all_reported(&mut probe, checks)?;
    drop(probe);
    checks.outcome = pair.end(checks)? + ", each observed at both ends";
    Ok(())
}

fn set_stopped(sender: &Peer, stop: bool) -> Result<()> {
    sender.signal(if stop { Signal::STOP } else { Signal::CONT })
}

/// SIGSTOP before the attach and SIGCONT after it.
pub(super) fn stopped(_: bool, endpoint: &str, checks: &mut FaultChecks) -> Result<()> {
    frozen(&set_stopped, endpoint, checks)
}

/// Checks that attaching to a frozen process takes no longer than usual, and that its later messages are observed.
fn frozen(freeze: &dyn Fn(&Peer, bool) -> Result<()>, endpoint: &str, checks: &mut FaultChecks) -> Result<()> {
    let mut pair = PeerPair::start(COUNTED, endpoint)?;
    freeze(&pair.sender, true)?;
    let begun = Instant::now();
    let probe = attach(&pair.pids(), ProbeOptions::default());
    let attach_time = begun.elapsed();
    freeze(&pair.sender, false)?;
    let mut probe = probe?;
    let limit = Duration::from_secs(10);
    checks.holds(&format!("attaching to a frozen process does not wait ({attach_time:?})"), attach_time < limit);
    pair.sender.go()?;
    all_reported(&mut probe, checks)?;
    // Also detach while the process is frozen.
    freeze(&pair.sender, true)?;
    let begun = Instant::now();
    drop(probe);
    let detach_time = begun.elapsed();
    freeze(&pair.sender, false)?;
    checks.holds(&format!("detaching from a frozen process does not wait ({detach_time:?})"), detach_time < limit);
    let attached = attach_time.as_millis();
    let detached = detach_time.as_millis();
    let arrived = pair.end(checks)?;
    checks.outcome =
        format!("attached in {attached} ms, detached in {detached} ms; {arrived}, each observed at both ends");
    Ok(())
}

/// A cgroup for freezing its processes.
struct Freezer {
    place: PathBuf,
    /// Control file and its values, of cgroup v2 or v1.
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezer {
    /// Makes a cgroup in the first of the places where one can be frozen.
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
        anyhow::bail!("cannot create a cgroup with a freezer")
    }

    /// Writes a word to a control file of the cgroup.
    fn write(&self, file: &str, word: &str) -> Result<()> {
        let path = self.place.join(file);
        fs::write(&path, word).with_context(|| format!("writing {word} to {}", path.display()))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // Thaw first: a frozen process cannot exit. At most an empty folder remains.
        let _ = self.write(self.file, self.words[1]);
        for _ in 0..100 {
            if fs::remove_dir(&self.place).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Freezes the sender with a cgroup before the attach, and thaws it after.
pub(super) fn in_freezer(_: bool, endpoint: &str, checks: &mut FaultChecks) -> Result<()> {
    match Freezer::make() {
        Ok(freezer) => {
            let set_frozen = |sender: &Peer, freeze: bool| {
                freezer.write("cgroup.procs", &sender.pid().to_string())?;
                freezer.write(freezer.file, freezer.words[usize::from(!freeze)])
            };
            frozen(&set_frozen, endpoint, checks)
        }
        Err(why) => {
            checks.outcome = format!("SKIPPED: {why}");
            Ok(())
        }
    }
}

/// Checks that the probe reports every message of [`COUNTED`] at both ends.
fn all_reported(probe: &mut Probe, checks: &mut FaultChecks) -> Result<()> {
    let wanted = u64::from(COUNTED.count * COUNTED.connections);
    let mut counts = Counts::default();
    counts.read_until(probe, |counts| counts.received >= wanted)?;
    checks.equal(
        "messages reported as sent, received and lost",
        &(wanted, wanted, 0),
        &(counts.sent, counts.received, counts.lost),
    );
    Ok(())
}
