//! Targets that exit, exec or freeze while the probe attaches.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use probe_user::{Probe, ProbeOptions, Target};
use rustix::process::Signal;

use super::{CAPTURE, Counts, FaultChecks, FaultSetup, KernelObjects, Peer, PeerLoad, PeerPair, attach_probe};

/// A load with a known count, so that every record can be accounted for.
const COUNTED: PeerLoad = PeerLoad { count: 2_000, connections: 2, rate: 4_000, sizes: "small", ..PeerLoad::STEADY };

/// Time from the start of an attach to the latest kill.
const LATEST_KILL_MS: u64 = 80;
/// Time in which the probe reports the exit of a killed process.
const EXIT_REPORT_TIME: Duration = Duration::from_millis(150);

/// Kills senders while a probe attaches to them, each at another time, and observes the receiver throughout. Each attach must be refused,
/// or the exit be reported.
pub(super) fn kill_target_at_attach(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    let rounds = if setup.is_long { 100 } else { 10 };
    let endless = PeerLoad { count: 0, ..COUNTED };
    let mut pair = PeerPair::start(endless, &setup.endpoint)?;
    pair.sender.start_sending()?;
    let own = std::process::id();
    let mut objects = KernelObjects::default();
    let mut counts = Counts::default();
    let mut refused = 0;
    let mut probe = attach_probe(&[pair.receiver.pid()], ProbeOptions::default())?;
    for round in 0..rounds {
        // No other sender uses these numbers for its connections, of which each has less than ten.
        let first_connection = 100 + round * 10;
        let mut victim = Peer::start_sender(&setup.endpoint, PeerLoad { first: first_connection, ..endless })?;
        victim.start_sending()?;
        // The later the round, the later the attach is interrupted.
        let kill_after = Duration::from_millis(u64::from(round) * LATEST_KILL_MS / u64::from(rounds));
        // Whether killed before, during or after attach, the result is an error or a reported exit.
        refused += u32::from(!try_attach_while_killing(&mut probe, victim, kill_after));
        counts.read_for(&mut probe, EXIT_REPORT_TIME)?;
        objects.add_objects_held_by(own)?;
    }
    checks.expect_equal(
        "reported exits and refused attaches",
        &u64::from(rounds),
        &(counts.exited + u64::from(refused)),
    );
    checks.expect_true("the receiver is observed throughout", counts.received > 100);
    drop(probe);
    objects.wait_and_check_freed(checks);
    let arrived = pair.finish_and_compare_sides(checks)?;
    checks.outcome = format!("{rounds} rounds, {} exits reported; the other sender: {arrived}", counts.exited);
    Ok(())
}

/// Adds a sender to the targets of the probe, and kills it after this time, whether it is attached by then or not. Returns whether the
/// probe accepted it.
fn try_attach_while_killing(probe: &mut Probe, victim: Peer, kill_after: Duration) -> bool {
    let pid = victim.pid();
    let killer = thread::spawn(move || {
        thread::sleep(kill_after);
        // Dropping a peer kills it.
        drop(victim);
    });
    let attached = probe.add_targets(&[Target { pid, capture: CAPTURE }]);
    killer.join().expect("the killer thread does not panic");
    attached.is_ok()
}

/// Makes a process exec another program, by which it loses its probes. After a second attach, all its messages must be observed.
pub(super) fn exec_target_and_attach_again(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    let mut pair = PeerPair::start(COUNTED, &setup.endpoint)?;
    let mut probe = attach_probe(&pair.pids(), ProbeOptions::default())?;
    pair.sender.exec_again()?;
    // The first probe is read while the process execs, and its counts are not compared.
    Counts::default().read_for(&mut probe, Duration::from_millis(200))?;
    drop(probe);
    let mut probe = attach_probe(&pair.pids(), ProbeOptions::default())?;
    pair.sender.start_sending()?;
    expect_all_reported(&mut probe, checks)?;
    drop(probe);
    checks.outcome = pair.finish_and_compare_sides(checks)? + ", each observed at both ends";
    Ok(())
}

/// How a process is frozen.
enum FreezeMethod {
    /// By SIGSTOP, and thawed by SIGCONT.
    Signals,
    Cgroup(CgroupFreezer),
}

impl FreezeMethod {
    /// Freezes the sender's process.
    fn freeze(&self, sender: &Peer) -> Result<()> {
        match self {
            Self::Signals => sender.send_signal(Signal::STOP),
            Self::Cgroup(freezer) => freezer.set_state(sender, freezer.frozen_word),
        }
    }

    /// Lets the frozen process of the sender go on.
    fn thaw(&self, sender: &Peer) -> Result<()> {
        match self {
            Self::Signals => sender.send_signal(Signal::CONT),
            Self::Cgroup(freezer) => freezer.set_state(sender, freezer.thawed_word),
        }
    }
}

/// Freezes the sender by SIGSTOP before the attach, and thaws it by SIGCONT after it.
pub(super) fn stop_target(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    attach_to_frozen(&FreezeMethod::Signals, setup, checks)
}

/// Checks that attaching to a frozen process takes no longer than usual, and that its later messages are observed.
fn attach_to_frozen(method: &FreezeMethod, setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    let mut pair = PeerPair::start(COUNTED, &setup.endpoint)?;
    method.freeze(&pair.sender)?;
    let begun = Instant::now();
    let probe = attach_probe(&pair.pids(), ProbeOptions::default());
    let attach_time = begun.elapsed();
    // Thawed before an error of the attach is returned.
    method.thaw(&pair.sender)?;
    let mut probe = probe?;
    // Waiting for the process would take until it is thawed.
    let limit = Duration::from_secs(10);
    checks.expect_true(&format!("attaching to a frozen process does not wait ({attach_time:?})"), attach_time < limit);
    pair.sender.start_sending()?;
    expect_all_reported(&mut probe, checks)?;
    // Also detach while the process is frozen.
    method.freeze(&pair.sender)?;
    let begun = Instant::now();
    drop(probe);
    let detach_time = begun.elapsed();
    method.thaw(&pair.sender)?;
    checks
        .expect_true(&format!("detaching from a frozen process does not wait ({detach_time:?})"), detach_time < limit);
    let attached = attach_time.as_millis();
    let detached = detach_time.as_millis();
    let arrived = pair.finish_and_compare_sides(checks)?;
    checks.outcome =
        format!("attached in {attached} ms, detached in {detached} ms; {arrived}, each observed at both ends");
    Ok(())
}

/// A cgroup for freezing its processes.
struct CgroupFreezer {
    folder: PathBuf,
    /// Name of the control file, of cgroup v2 or v1.
    file: &'static str,
    /// Content of the control file that freezes.
    frozen_word: &'static str,
    thawed_word: &'static str,
}

impl CgroupFreezer {
    /// Makes a cgroup that can be frozen, below the first root where that is possible.
    fn create() -> Result<Self> {
        let name = format!("tokengap-faults-{}", std::process::id());
        // Each with the folder where it is mounted, the control file of its freezer, and the words that freeze and thaw.
        let versions = [
            ("/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", ["1", "0"]),
            ("/sys/fs/cgroup", "cgroup.freeze", ["1", "0"]),
        ];
        for (root, file, [frozen_word, thawed_word]) in versions {
            let folder = Path::new(root).join(&name);
            // This version is not mounted, or is read-only.
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let freezer = Self { folder, file, frozen_word, thawed_word };
            if freezer.folder.join(file).exists() {
                return Ok(freezer);
            }
        }
        anyhow::bail!("cannot create a cgroup with a freezer")
    }

    /// Moves the process into the cgroup, and freezes or thaws that: `word` is one of the two control words.
    fn set_state(&self, sender: &Peer, word: &str) -> Result<()> {
        self.write_control_file("cgroup.procs", &sender.pid().to_string())?;
        self.write_control_file(self.file, word)
    }

    /// Writes a word to a control file of the cgroup.
    fn write_control_file(&self, file: &str, word: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, word).with_context(|| format!("writing {word} to {}", path.display()))
    }
}

impl Drop for CgroupFreezer {
    /// Thaws the processes, and removes the cgroup as soon as they have exited, but waits only two seconds for that.
    fn drop(&mut self) {
        // Thaw first: a frozen process cannot exit. At most an empty folder remains.
        let _ = self.write_control_file(self.file, self.thawed_word);
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Freezes the sender with a cgroup before the attach, and thaws it after. Skipped where no cgroup can be made.
pub(super) fn attach_to_target_frozen_by_cgroup(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    match CgroupFreezer::create() {
        Ok(freezer) => attach_to_frozen(&FreezeMethod::Cgroup(freezer), setup, checks),
        Err(why) => {
            checks.outcome = format!("SKIPPED: {why}");
            Ok(())
        }
    }
}

/// Checks that the probe reports every message of [`COUNTED`] at both ends.
fn expect_all_reported(probe: &mut Probe, checks: &mut FaultChecks) -> Result<()> {
    let wanted = u64::from(COUNTED.count * COUNTED.connections);
    let mut counts = Counts::default();
    counts.read_until(probe, |counts| counts.received >= wanted)?;
    checks.expect_equal(
        "messages reported as sent, received and lost",
        &(wanted, wanted, 0),
        &(counts.sent, counts.received, counts.lost),
    );
    Ok(())
}
