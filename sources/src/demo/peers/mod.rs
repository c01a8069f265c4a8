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
use forwarder::{Forwarder, ForwarderRole, PeerOutlet};
#[cfg(test)]
pub(super) use memory::{Memory, Sent};
use network::Inbox;
pub(super) use network::Network;
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

    /// Binds every inbox, connects, and starts the peers: the simulated processes and their clients. The future that is returned lasts
    /// until every client has received its last tokens.
    pub(super) async fn start_peers(&self) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let mut random = Random::new(self.seed);
        let mut inboxes = Vec::with_capacity(self.hops.len());
        for hop in &self.hops {
            inboxes.push(self.network.bind(hop).await?);
        }
        // Connect in the order of the path, because reports list hops in this order. The schedulers send on the first hop.
        let mut outlets = Vec::with_capacity(self.script.route.schedulers);
        for _ in 0..self.script.route.schedulers {
            outlets.push(self.network.connect(&self.hops[0]).await?);
        }
        let Receivers { tasks, request_inboxes, client_sockets } = self.start_receivers(inboxes, &mut random).await?;
        let workers: Vec<Arc<str>> = match self.script.route.workers {
            // A single tokenizer is not addressed by name.
            1 => Vec::new(),
            _ => self.hops_to(ReceiverRole::Tokenizer).map(|hop| hop.listen.as_str().into()).collect(),
        };
        let mut serving = JoinSet::new();
        for (inbox, outlet) in request_inboxes.into_iter().zip(outlets) {
            serving.spawn(Scheduler::new(self.clone(), inbox, outlet).serve_requests());
        }
        let clients = Clients::new(self.script.load, workers, client_sockets, random.fork());
        serving.spawn(clients.send_requests(self.clone()));
        Ok(await_end(serving, tasks, self.account.clone()))
    }

    /// Connects and starts the peers that receive tokens, one for each hop. `inboxes` are in the order of the hops. The inboxes of hops to
    /// schedulers are only returned, because the schedulers start later.
    async fn start_receivers(&self, inboxes: Vec<Inbox>, random: &mut Random) -> anyhow::Result<Receivers> {
        let mut receivers =
            Receivers { tasks: JoinSet::new(), request_inboxes: Vec::new(), client_sockets: Vec::new() };
        for (hop, inbox) in self.hops.iter().zip(inboxes) {
            let stage = self.clone();
            match hop.to {
                ReceiverRole::Router => {
                    let role = ForwarderRole::Router(self.connect_to(ReceiverRole::Detokenizer).await?);
                    receivers.tasks.spawn(Forwarder { stage, inbox, role }.forward_messages());
                }
                ReceiverRole::Detokenizer => {
                    let role = ForwarderRole::Detokenizer(self.connect_to(ReceiverRole::Tokenizer).await?);
                    receivers.tasks.spawn(Forwarder { stage, inbox, role }.forward_messages());
                }
                ReceiverRole::Tokenizer => {
                    let socket = ClientSocket::default();
                    receivers.client_sockets.push(socket.clone());
                    let schedulers = self.connect_to(ReceiverRole::Scheduler).await?;
                    let schedulers = schedulers.into_iter().map(|scheduler| scheduler.outlet).collect();
                    let tokenizer = Tokenizer::new(stage, inbox, socket, schedulers, random.fork());
                    receivers.tasks.spawn(tokenizer.run_event_loop());
                }
                ReceiverRole::Scheduler => receivers.request_inboxes.push(inbox),
            }
        }
        Ok(receivers)
    }

    /// Hops whose receivers have this role.
    fn hops_to(&self, receiver: ReceiverRole) -> impl Iterator<Item = &HopPlan> {
        self.hops.iter().filter(move |hop| hop.to == receiver)
    }

    /// Connects to every receiver with this role.
    async fn connect_to(&self, receiver: ReceiverRole) -> anyhow::Result<Vec<PeerOutlet>> {
        let mut outlets = Vec::new();
        for hop in self.hops_to(receiver) {
            let outlet = self.network.connect(hop).await?;
            outlets.push(PeerOutlet { endpoint: hop.listen.as_str().into(), outlet });
        }
        Ok(outlets)
    }
}

/// The peers that receive tokens, which run as long as messages arrive, and what the other peers need of them.
struct Receivers {
    tasks: JoinSet<anyhow::Result<()>>,
    /// Inboxes of the schedulers.
    request_inboxes: Vec<Inbox>,
    /// Sockets of the tokenizers, to which clients connect.
    client_sockets: Vec<ClientSocket>,
}

/// Waits until the schedulers and the clients have ended and no request is open. A receiver that ends earlier has failed.
async fn await_end(
    mut serving: JoinSet<anyhow::Result<()>>,
    mut receivers: JoinSet<anyhow::Result<()>>,
    account: Account,
) -> anyhow::Result<()> {
    let all_served = async {
        while let Some(ended) = serving.join_next().await {
            ended.context("a demo scheduler, or its clients, failed")??;
        }
        while account.open_requests() > 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    };
    tokio::select! {
        served = all_served => served,
        // A receiver runs as long as messages arrive.
        failed = receivers.join_next() => {
            failed.context("the demo has no peers")?.context("a demo peer ended early")?
        }
    }
}
