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

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;

use super::encode::Engine;
use super::random::Random;
use super::scenario::Script;
use super::topology::{HopPlan, Receiver};
use super::truth::Account;
use forwarder::{Forwarder, Role};
#[cfg(test)]
pub(super) use memory::Memory;
pub(super) use network::Network;
use network::Outlet;
pub(super) use report::{Fingerprint, PeerAction, PeerEvent, Reports};
use requests::Clients;
use scheduler::Scheduler;
use tokenizer::Tokenizer;

/// Interval of checks whether all clients have received their last tokens.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// State shared by all peers.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) script: Script,
    pub(super) hops: Vec<HopPlan>,
    pub(super) account: Account,
    pub(super) reports: Reports,
    pub(super) network: Network,
    /// Set to end the simulation.
    pub(super) ending: Arc<AtomicBool>,
}

impl Stage {
    /// Binds every inbox and connects, calls `ready`, and runs until every client has received its last tokens.
    pub(super) async fn play(self, mut random: Random, ready: impl FnOnce()) -> anyhow::Result<()> {
        let mut inboxes = Vec::with_capacity(self.hops.len());
        for hop in &self.hops {
            inboxes.push(self.network.bind(hop)?);
        }
        // Connect in the order of the path, because reports list hops in this order.
        let mut outlets = Vec::with_capacity(self.script.route.schedulers);
        for _ in 0..self.script.route.schedulers {
            outlets.push(self.network.connect(&self.hops[0]).await?);
        }
        let mut peers = JoinSet::new();
        for (hop, inbox) in self.hops.iter().zip(inboxes) {
            let (reports, engine) = (self.reports.clone(), self.script.engine);
            let (role, cost) = match hop.to {
                Receiver::Router => {
                    let (outlets, strays) = (self.outlets(Receiver::Detokenizer).await?, self.script.strays);
                    (Role::Router { outlets, strays }, self.script.router)
                }
                Receiver::Detokenizer => {
                    (Role::Detokenizer(self.outlets(Receiver::Tokenizer).await?), self.script.detokenizer)
                }
                Receiver::Tokenizer => {
                    let (account, script, random) = (self.account.clone(), self.script.clone(), random.fork());
                    peers.spawn(Tokenizer::new(hop.id, inbox, reports, account, script, random).run());
                    continue;
                }
            };
            let Engine::Sglang(release) = engine else {
                anyhow::bail!("{} has a detokenizer, and vLLM has none", self.script.name);
            };
            peers.spawn(Forwarder { hop: hop.id, inbox, reports, release, cost, role }.run());
        }
        let workers: Vec<Arc<str>> = match self.script.route.workers {
            1 => Vec::new(),
            _ => self.hops_to(Receiver::Tokenizer).map(|hop| hop.listen.as_str().into()).collect(),
        };
        let mut schedulers = JoinSet::new();
        for outlet in outlets {
            let mut scheduler = Scheduler {
                engine: self.script.engine,
                load: self.script.load,
                clients: Clients::new(self.script.load, workers.clone(), random.fork()),
                outlet,
                account: self.account.clone(),
                ending: Arc::clone(&self.ending),
            };
            schedulers.spawn(async move { scheduler.run().await });
        }
        ready();
        let account = self.account.clone();
        let all_served = async {
            while let Some(ended) = schedulers.join_next().await {
                ended.context("a demo scheduler failed")??;
            }
            while account.open() > 0 {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        // Peers run as long as messages arrive; one that returns has failed.
        tokio::select! {
            served = all_served => served,
            failed = peers.join_next() => failed.context("the demo has no peers")?.context("a demo peer ended early")?,
        }
    }

    fn hops_to(&self, receiver: Receiver) -> impl Iterator<Item = &HopPlan> {
        self.hops.iter().filter(move |hop| hop.to == receiver)
    }

    /// Connects to every receiver with this role.
    async fn outlets(&self, receiver: Receiver) -> anyhow::Result<Vec<(Arc<str>, Outlet)>> {
        let mut outlets = Vec::new();
        for hop in self.hops_to(receiver) {
            outlets.push((hop.listen.as_str().into(), self.network.connect(hop).await?));
        }
        Ok(outlets)
    }
}
