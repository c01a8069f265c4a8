//! The simulated engine: its processes are tasks, its sockets are real ZMQ sockets.

mod clock;
mod forwarder;
#[cfg(test)]
mod memory;
mod network;
mod report;
mod requests;
mod scheduler;
mod tokenizer;
mod waiter;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use trace::MonoNs;

use super::random::Random;
use super::scenario::Script;
use super::topology::{self, HopPlan, ReceiverRole};
use super::truth::{Account, DemoTruth};
use forwarder::{Forwarder, ForwarderRole};
#[cfg(test)]
pub(super) use memory::{Memory, Sent};
pub(super) use network::Network;
use network::Outlet;
pub(super) use report::{PeerAction, PeerEvent, Reports};
use requests::{ByRid, ClientSocket, Clients, DemoRequest};
use scheduler::Scheduler;
use tokenizer::Tokenizer;

/// Interval of checks whether all clients have received their last tokens.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State shared by all peers.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) script: Script,
    seed: u64,
    pub(super) hops: Vec<HopPlan>,
    pub(super) account: Account,
    pub(super) reports: Reports,
    network: Network,
    /// Requests on their way to a scheduler.
    sent_requests: ByRid<DemoRequest>,
    /// When clients left.
    departures: ByRid<MonoNs>,
    /// Set to end the simulation.
    pub(super) ending: Arc<AtomicBool>,
}

impl Stage {
    /// An arrangement of peers with its sockets in `folder`. The same seed gives the same requests.
    pub(super) fn new(script: Script, seed: u64, folder: &Path, reports: Reports, network: Network) -> Self {
        let hops = topology::plan_hops(script.engine, script.route, folder);
        Self {
            script,
            seed,
            hops,
            account: Account::default(),
            reports,
            network,
            sent_requests: ByRid::default(),
            departures: ByRid::default(),
            ending: Arc::default(),
        }
    }

    /// Ground truth so far.
    pub(super) fn truth(&self) -> DemoTruth {
        DemoTruth { scenario: self.script.name.clone(), seed: self.seed, truth: self.account.truth() }
    }

    /// Binds every inbox, connects, and starts the peers. The inner future lasts until every client has received its last tokens.
    pub(super) async fn open(&self) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let mut random = Random::new(self.seed);
        let mut inboxes = Vec::with_capacity(self.hops.len());
        for hop in &self.hops {
            inboxes.push(self.network.bind(hop).await?);
        }
        // Connect in the order of the path, because reports list hops in this order.
        let mut outlets = Vec::with_capacity(self.script.route.schedulers);
        for _ in 0..self.script.route.schedulers {
            outlets.push(self.network.connect(&self.hops[0]).await?);
        }
        let mut others = JoinSet::new();
        let mut request_inboxes = Vec::new();
        let mut sockets = Vec::new();
        for (hop, inbox) in self.hops.iter().zip(inboxes) {
            let stage = self.clone();
            let role = match hop.to {
                ReceiverRole::Router => ForwarderRole::Router(self.outlets(ReceiverRole::Detokenizer).await?),
                ReceiverRole::Detokenizer => ForwarderRole::Detokenizer(self.outlets(ReceiverRole::Tokenizer).await?),
                ReceiverRole::Tokenizer => {
                    let socket = ClientSocket::default();
                    sockets.push(socket.clone());
                    let schedulers = self.outlets(ReceiverRole::Scheduler).await?;
                    let schedulers = schedulers.into_iter().map(|(_, outlet)| outlet).collect();
                    others.spawn(Tokenizer::new(stage, inbox, socket, schedulers, random.fork()).run());
                    continue;
                }
                ReceiverRole::Scheduler => {
                    request_inboxes.push(inbox);
                    continue;
                }
            };
            others.spawn(Forwarder { stage, inbox, role }.run());
        }
        let workers: Vec<Arc<str>> = match self.script.route.workers {
            1 => Vec::new(),
            _ => self.hops_to(ReceiverRole::Tokenizer).map(|hop| hop.listen.as_str().into()).collect(),
        };
        let mut serving = JoinSet::new();
        for (inbox, outlet) in request_inboxes.into_iter().zip(outlets) {
            serving.spawn(Scheduler::new(self.clone(), inbox, outlet).run());
        }
        serving.spawn(Clients::new(self.script.load, workers, sockets, random.fork()).run(self.clone()));
        let account = self.account.clone();
        Ok(async move {
            let all_served = async {
                while let Some(ended) = serving.join_next().await {
                    ended.context("a demo scheduler, or its clients, failed")??;
                }
                while account.open() > 0 {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Ok(())
            };
            // The others run as long as messages arrive; one that returns has failed.
            tokio::select! {
                served = all_served => served,
                failed = others.join_next() => {
                    failed.context("the demo has no peers")?.context("a demo peer ended early")?
                }
            }
        })
    }

    fn hops_to(&self, receiver: ReceiverRole) -> impl Iterator<Item = &HopPlan> {
        self.hops.iter().filter(move |hop| hop.to == receiver)
    }

    /// Connects to every receiver with this role.
    async fn outlets(&self, receiver: ReceiverRole) -> anyhow::Result<Vec<(Arc<str>, Outlet)>> {
        let mut outlets = Vec::new();
        for hop in self.hops_to(receiver) {
            outlets.push((hop.listen.as_str().into(), self.network.connect(hop).await?));
        }
        Ok(outlets)
    }
}
