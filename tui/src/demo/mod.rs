//! `tokengap demo`: an engine played in this process, over real ZMQ sockets and through the real relay.
//!
//! The peers write the frames of real releases byte for byte ([`encode`]), pass them on as the real processes do
//! ([`peers`]) and keep their own account of what was lost ([`truth`]). In place of a probe they report what they take,
//! handle and deliver; [`timeline`] joins that with what the relay saw. The ledger gets nothing else.

mod encode;
mod events;
mod peers;
mod play;
mod random;
mod scenario;
mod timeline;
mod topology;
mod truth;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use tempfile::TempDir;
use trace::event::{Event, Lost, LostCause};
use trace::{FrameId, HopId, MonoNs};
use zmq_tap::relay::{Direction, Observation, Observations, Options, Pair, Payload, Relay};

use events::Teller;
use peers::{Reports, Stage};
use play::Play;
use random::Random;
pub(crate) use scenario::Scenario;
use scenario::Script;
use timeline::{Moment, Timeline};
use topology::HopPlan;
use truth::Account;
pub(crate) use truth::DemoTruth;

use crate::source::{Flow, Source};

/// What to play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DemoOptions {
    /// Which scenario.
    pub(crate) scenario: Scenario,
    /// The same seed plays the same requests.
    pub(crate) seed: u64,
}

/// Frames and reports taken over in one turn: some milliseconds of work, so that ticks and signals are not kept waiting.
const FRAMES_A_TURN: usize = 256;
const REPORTS_A_TURN: usize = 8192;

/// A running demo.
pub(crate) struct Demo {
    script: Script,
    seed: u64,
    hops: Vec<HopPlan>,
    account: Account,
    reports: Reports,
    observations: Arc<Observations>,
    timeline: Timeline,
    teller: Teller,
    announced: bool,
    // Dropped in this order: the peers, the relay that they talk through, the folder with its sockets.
    play: Play,
    relay: Option<Relay>,
    _folder: TempDir,
}

impl Demo {
    /// Makes a private folder for the sockets, starts the relay in it and the peers around the relay.
    pub(crate) fn start(options: &DemoOptions) -> anyhow::Result<Self> {
        Self::play(options.scenario.script(), options.seed)
    }

    fn play(script: Script, seed: u64) -> anyhow::Result<Self> {
        // Mode 0700: nobody else's process can reach the sockets.
        let folder = tempfile::Builder::new().prefix("tokengap-").tempdir();
        let folder = folder.context("cannot make a folder for the demo's sockets; set TMPDIR to a writable one")?;
        let hops = topology::hops(script.path, folder.path());
        let relay = start_relay(&hops, folder.path())?;
        let (account, reports) = (Account::default(), Reports::new());
        let stage = Stage {
            script: script.clone(),
            hops: hops.clone(),
            account: account.clone(),
            reports: reports.clone(),
            ending: Arc::new(AtomicBool::new(false)),
        };
        let play = Play::start(stage, Random::new(seed))?;
        Ok(Self {
            teller: Teller::new(script.release.version(), script.waiter),
            script,
            seed,
            hops,
            account,
            reports,
            observations: relay.observations(),
            timeline: Timeline::default(),
            announced: false,
            play,
            relay: Some(relay),
            _folder: folder,
        })
    }

    /// The peers' own account so far; final once [`Source::poll`] has said [`Flow::Ended`].
    pub(crate) fn account(&self) -> DemoTruth {
        DemoTruth {
            scenario: self.script.name,
            seed: self.seed,
            truth: self.account.truth(),
        }
    }

    fn announce(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let at = MonoNs::now();
        sink(&Event {
            at,
            what: self.teller.engine(self.script.phases[0].mode),
        });
        self.hops.iter().for_each(|hop| sink(&hop.announce(at)));
        self.announced = true;
    }

    /// Takes over what the relay observed and the peers report; whether there was anything.
    fn collect(&mut self) -> bool {
        let mut busy = false;
        // Reports first: the frame of a report that is taken over now was passed on before.
        for event in std::iter::from_fn(|| self.reports.next()).take(REPORTS_A_TURN) {
            self.timeline.told(event);
            busy = true;
        }
        match self.reports.take_dropped() {
            0 => {}
            count => {
                let lost = Lost {
                    hop: None,
                    count,
                    cause: LostCause::QueueFull,
                };
                self.timeline.seen(MonoNs::now(), Moment::Lost(lost));
            }
        }
        for _ in 0..FRAMES_A_TURN {
            let Some(observation) = self.observations.poll() else {
                break;
            };
            self.observed(observation);
            busy = true;
        }
        busy
    }

    fn observed(&mut self, observation: Observation) {
        match observation {
            Observation::Frame {
                pair,
                direction: Direction::Forward,
                lane,
                seq,
                read_at,
                written_at,
                bytes,
                payload,
            } => {
                let id = FrameId {
                    hop: HopId(pair),
                    lane,
                    seq,
                };
                let message = match payload {
                    Payload::Whole(message) => Ok(message),
                    Payload::Multipart(_) => Err("multipart".to_owned()),
                    Payload::NotKept(why) => Err(why.to_string()),
                };
                self.timeline.seen(read_at, Moment::Sent { id, bytes, message });
                self.timeline.seen(written_at, Moment::Forwarded(id));
            }
            Observation::Lost { pair, count, cause, .. } => {
                let lost = Lost {
                    hop: Some(HopId(pair)),
                    count,
                    cause,
                };
                self.timeline.seen(MonoNs::now(), Moment::Lost(lost));
            }
            Observation::Unread { pair, at, .. } => {
                let lost = Lost {
                    hop: Some(HopId(pair)),
                    count: 1,
                    cause: LostCause::Unframed,
                };
                self.timeline.seen(at, Moment::Lost(lost));
            }
            Observation::Frame { .. } | Observation::Opened { .. } | Observation::Closed { .. } => {}
        }
    }

    /// Tells everything that is due; whether there was anything.
    fn tell(&mut self, last: bool, sink: &mut dyn FnMut(&Event<'_>)) -> bool {
        let (now, mut busy) = (MonoNs::now(), false);
        while let Some((at, moment)) = self.timeline.next(now, last) {
            self.teller.tell(at, &moment, sink);
            busy = true;
        }
        busy
    }
}

impl Source for Demo {
    fn kind(&self) -> trace::report::SourceKind {
        trace::report::SourceKind::Demo
    }

    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        if !self.announced {
            self.announce(sink);
        }
        if self.play.is_over()
            && let Some(relay) = self.relay.take()
        {
            if let Err(error) = self.play.join() {
                tracing::error!("the demo failed, so its account is not to be trusted: {error:#}");
            }
            // The peers' connections are closed, so that this does not wait for anything.
            relay.stop();
        }
        let collected = self.collect();
        let ended = self.relay.is_none() && !collected;
        if self.tell(ended, sink) || collected {
            Flow::Busy
        } else if ended {
            Flow::Ended
        } else {
            Flow::Idle
        }
    }

    fn stop(&mut self) {
        self.play.end();
    }

    fn truth(&self) -> Option<serde_json::Value> {
        serde_json::to_value(self.account()).ok()
    }
}

fn start_relay(hops: &[HopPlan], folder: &Path) -> anyhow::Result<Relay> {
    let pairs = hops
        .iter()
        .map(|hop| {
            Ok(Pair {
                listen: hop.listen.parse()?,
                upstream: hop.upstream.parse()?,
            })
        })
        .collect::<anyhow::Result<Vec<_>>>();
    let pairs = pairs.with_context(|| format!("{} cannot hold the demo's sockets", folder.display()))?;
    Relay::start(pairs, Options::default()).context("cannot start the demo's relay")
}
