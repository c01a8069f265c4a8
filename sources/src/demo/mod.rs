//! `tokengap demo`: an engine simulated in this process, over real ZMQ sockets and through the real relay.
//!
//! The peers write the frames of real releases byte for byte ([`encode`]) and forward them as the real processes do ([`peers`]). They also
//! keep the ground truth of lost tokens ([`truth`]). In place of a probe, they report when requests arrived, frames were received and
//! processed, and tokens delivered; [`join`] merges these reports with the observations of the tap. The ledger gets no other input.

mod encode;
mod join;
mod peers;
mod random;
mod scenario;
mod topology;
mod truth;

#[cfg(test)]
mod tests;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use anyhow::Context;
use serde_json::Value;
use session::{About, Flow, LiveSource};
use tempfile::TempDir;
use tokio::sync::oneshot;
use trace::MonoNs;
use trace::event::{Event, Missed, MissedCause, What};
use zmq_tap::relay::{Pair, RelayOptions};

use join::Join;
use peers::{Network, Reports, Stage};
pub use scenario::Scenario;
use scenario::Script;
use topology::HopPlan;
use truth::DemoTruth;

use crate::tap::{Tap, TapHop};

/// Maximum number of reports per poll. Bounds a poll to some milliseconds, so that ticks and signals are not delayed.
const REPORTS_A_TURN: usize = 8192;

/// A socket address is limited to 108 bytes, of which the demo's part of the path needs about 30.
const LONGEST_PARENT: usize = 70;

/// A running simulation.
pub struct Demo {
    stage: Stage,
    join: Join,
    is_announced: bool,
    // Drop order matters: first the peers, then the tap they communicate through, then the folder with its sockets.
    play: Play,
    tap: Tap,
    _folder: TempDir,
}

impl Demo {
    /// Creates a private folder for the sockets, starts the relay in it, and starts the peers. The same seed gives the same requests.
    /// `workers` is the number of those that the scenario is about, and `phase` the only phase to run, counted from 1.
    pub fn start(scenario: Scenario, seed: u64, workers: Option<u8>, phase: Option<usize>) -> anyhow::Result<Self> {
        let mut script = match workers {
            None => scenario.script(),
            Some(workers) => script_with_workers(scenario, workers.into())?,
        };
        if let Some(phase) = phase {
            keep_only_phase(&mut script, phase)?;
        }
        Self::start_in(private_folder()?, script, seed)
    }

    /// Starts the peers and a tap between them, with the sockets in `folder`, which is removed with the demo.
    fn start_in(folder: TempDir, script: Script, seed: u64) -> anyhow::Result<Self> {
        let stage = Stage::new(script, seed, folder.path(), Reports::new(), Network::sockets());
        let tap = start_tap(&stage.hops, folder.path())?;
        let play = Play::start(&stage)?;
        Ok(Self { join: Join::new(stage.script.clone()), stage, is_announced: false, play, tap, _folder: folder })
    }

    /// Ground truth so far; final once [`LiveSource::poll`] has returned [`Flow::Ended`].
    pub fn account(&self) -> DemoTruth {
        self.stage.truth()
    }

    /// Passes reports of the peers on to the join. Reports that were dropped are emitted as missed. Returns whether there were any reports.
    fn collect_reports(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> bool {
        let has_reports = add_reports(&self.stage.reports, &mut self.join);
        let dropped = self.stage.reports.take_dropped();
        if dropped > 0 {
            sink(&Event::new(MonoNs::now(), What::Missed(Missed::new(None, dropped, MissedCause::QueueFull))));
        }
        has_reports
    }

    /// Stops the tap once every client has received its last tokens. A failure of the peers is logged.
    fn stop_tap_after_play(&mut self) {
        if self.play.is_over() {
            if let Err(error) = self.play.join() {
                tracing::error!("the demo failed, so its results are unreliable: {error:#}");
            }
            self.tap.stop();
        }
    }
}

impl About for Demo {
    fn kind(&self) -> &'static str {
        "demo"
    }

    fn pending(&self) -> Option<String> {
        let open = self.stage.account.open_requests();
        (open > 0).then(|| format!("{open} requests of the demo are still waiting for their last tokens"))
    }

    fn wire_json(&self) -> Option<Value> {
        self.tap.wire_json()
    }

    fn demo_truth_json(&self) -> Option<Value> {
        serde_json::to_value(self.account()).ok()
    }
}

impl LiveSource for Demo {
    fn keep_ids(&mut self) {
        self.tap.keep_ids();
    }

    /// Emits the new events of the tap, which relays the messages of the simulated processes (the peers). In between, emits what the peers
    /// report themselves, in order of time. Ends once the tap has ended and no report is left.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        if !self.is_announced {
            self.is_announced = true;
            sink(&Event::new(MonoNs::now(), self.join.engine()));
        }
        self.stop_tap_after_play();
        let reported = self.collect_reports(sink);
        // Puts reports and events in order.
        let join = &mut self.join;
        let reports = &self.stage.reports;
        let flow = self.tap.poll(&mut |event| {
            // What preceded the event may have been reported since the last collection.
            add_reports(reports, join);
            join.pass_event_after_earlier_reports(event, sink);
        });
        // After the tap's end, no further frame can belong to a waiting report.
        let passes_all = flow == Flow::Ended && !reported;
        let has_passed = self.join.pass_ready_reports(MonoNs::now(), passes_all, sink);
        if reported || flow == Flow::Busy || has_passed {
            Flow::Busy
        } else if passes_all {
            Flow::Ended
        } else {
            Flow::Idle
        }
    }

    fn stop(&mut self) {
        self.stage.ending.store(true, Ordering::Relaxed);
    }
}

/// The script of a scenario with this number of workers. Fails if the scenario is not about workers.
fn script_with_workers(scenario: Scenario, workers: usize) -> anyhow::Result<Script> {
    scenario.script_with_worker_count(workers).with_context(|| {
        let name = scenario.script().name;
        format!("{name} has a fixed number of workers: --workers works with router, tokenizer-workers, detokenizers and data-parallel")
    })
}

/// Removes all phases of a script but the one with this number, counted from 1. Fails if there is no such phase.
fn keep_only_phase(script: &mut Script, number: usize) -> anyhow::Result<()> {
    let phases = script.phases;
    let phase_count = phases.len();
    let only_phase = number.checked_sub(1).and_then(|index| phases.get(index..=index));
    script.phases = only_phase
        .with_context(|| format!("{} has phases 1 to {phase_count}: there is no phase {number}", script.name))?;
    Ok(())
}

/// Passes reports of the peers on to the join. Returns whether there were any.
fn add_reports(reports: &Reports, join: &mut Join) -> bool {
    let mut has_reports = false;
    for report in std::iter::from_fn(|| reports.next()).take(REPORTS_A_TURN) {
        join.add_report(report);
        has_reports = true;
    }
    has_reports
}

/// A simulation in progress.
struct Play {
    /// Dropped to end the simulation without waiting for work in flight.
    end_signal: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Play {
    /// Binds and connects all sockets, then starts the peers.
    fn start(stage: &Stage) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the demo's runtime")?;
        let peers = runtime.block_on(stage.start_peers())?;
        let (end_signal, ended) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("demo-peers".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        played = peers => played,
                        _ = ended => Ok(()),
                    }
                })
            })
            .context("cannot start the demo's thread")?;
        Ok(Self { end_signal: Some(end_signal), thread: Some(thread) })
    }

    /// Returns whether every client has received its last tokens, or a peer has failed.
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread and returns its result, once.
    fn join(&mut self) -> anyhow::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(played)) => played,
            Some(Err(_)) => anyhow::bail!("the demo's peers crashed. Please report this bug."),
            None => Ok(()),
        }
    }
}

impl Drop for Play {
    /// Ends the simulation, and waits for its thread.
    fn drop(&mut self) {
        drop(self.end_signal.take());
        if let Err(error) = self.join() {
            tracing::error!("{error:#}");
        }
    }
}

/// Creates a folder that no other user's process can access.
fn private_folder() -> anyhow::Result<TempDir> {
    let parent = std::env::temp_dir();
    // The kernel limits the path of a socket to 108 bytes.
    let parent = if parent.as_os_str().len() > LONGEST_PARENT { Path::new("/tmp") } else { &parent };
    let create_in = |parent: &Path| {
        tempfile::Builder::new().prefix("tokengap-").permissions(Permissions::from_mode(0o700)).tempdir_in(parent)
    };
    // A container's root may have no temporary folder; the working folder may be usable. If neither is, the first error is reported.
    let folder = create_in(parent).or_else(|error| create_in(Path::new(".")).map_err(|_| error));
    folder.with_context(|| {
        let parent = parent.display();
        format!("cannot create a folder for the demo's sockets in {parent}; set TMPDIR to a writable folder")
    })
}

/// Starts a tap in front of the receiver of each hop.
fn start_tap(hops: &[HopPlan], folder: &Path) -> anyhow::Result<Tap> {
    let taps = hops.iter().map(tap_hop).collect::<anyhow::Result<_>>();
    let taps = taps.with_context(|| format!("{} cannot hold the demo's sockets", folder.display()))?;
    let options = RelayOptions { formats: engines::FORMATS, ..RelayOptions::default() };
    Tap::start(taps, options).context("cannot start the demo's relay")
}

/// Hop for the tap to announce, with the additional capabilities of the peers.
fn tap_hop(hop: &HopPlan) -> anyhow::Result<TapHop> {
    let pair = Pair { listen: hop.listen.parse()?, upstream: hop.upstream.parse()? };
    Ok(TapHop {
        ends: Some(hop.ends.to_owned()),
        worker: hop.worker,
        further_capabilities: hop.reported(),
        origin: hop.is_origin(),
        last: hop.is_last(),
        carries_requests: hop.carries_requests(),
        ..TapHop::new(pair)
    })
}
