//! The scheduler: continuous batching, with one frame per step that contains every running request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::network::Outlet;
use super::requests::{Clients, Request};
use crate::demo::encode::{Engine, Row, Stats};
use crate::demo::scenario::Load;
use crate::demo::truth::Account;

/// State of the scheduler.
pub(super) struct Scheduler {
    pub(super) engine: Engine,
    pub(super) load: Load,
    pub(super) clients: Clients,
    pub(super) outlet: Outlet,
    pub(super) account: Account,
    /// Set to end the simulation: no new requests start, and all running ones get their last chunk.
    pub(super) ending: Arc<AtomicBool>,
}

impl Scheduler {
    /// Serves requests until the simulation ends.
    pub(super) async fn run(&mut self) -> anyhow::Result<()> {
        let mut waiting: VecDeque<Request> = (0..self.load.running / 2).map(|_| self.clients.next()).collect();
        let mut running: Vec<Request> = Vec::with_capacity(self.load.running);
        let mut step = Instant::now();
        let mut arrival = step;
        for steps in 1.. {
            step = (step + self.load.step).max(Instant::now());
            sleep_until(step).await;
            let ending = self.ending.load(Ordering::Relaxed);
            while arrival <= step {
                arrival += Duration::from_secs_f64(self.clients.wait());
                if self.account.open() + waiting.len() < self.load.open {
                    waiting.push_back(self.clients.next());
                }
            }
            if !ending {
                let free = (self.load.running - running.len()).min(waiting.len());
                running.extend(waiting.drain(..free));
            }
            if !running.is_empty() {
                let stats = Stats { running: running.len(), waiting: waiting.len(), step: steps };
                let frame = self.step(&mut running, ending, stats);
                self.outlet.send(frame).await?;
            }
            if ending {
                break;
            }
        }
        Ok(())
    }

    /// Forward pass: a chunk for each running request. Requests that end leave the batch.
    fn step(&self, running: &mut Vec<Request>, last: bool, stats: Stats) -> Vec<u8> {
        let mut ids = Vec::with_capacity(running.len() * self.load.burst as usize);
        let steps: Vec<_> = running
            .iter_mut()
            .map(|request| {
                let (new, from) = (request.is_new(), ids.len());
                if new {
                    self.account.request();
                }
                let finish = request.step(self.load.burst, last, &mut ids);
                (new, from..ids.len(), finish)
            })
            .collect();
        let rows: Vec<_> = running
            .iter()
            .zip(&steps)
            .map(|(request, (new, range, finish))| Row {
                rid: &request.rid,
                worker: request.worker.as_deref(),
                finish: *finish,
                prompt_tail: if *new { &request.prompt_tail } else { &[] },
                ids: &ids[range.clone()],
                prompt_tokens: request.prompt_tokens,
                completion_tokens: request.generated,
                ..Row::default()
            })
            .collect();
        let frame = self.engine.step(&rows, stats);
        self.account.count(|truth| {
            truth.chunks += rows.len() as u64;
            truth.tokens += ids.len() as u64;
        });
        let mut finishes = steps.iter().map(|(.., finish)| finish.is_some());
        running.retain(|_| !finishes.next().unwrap_or(false));
        frame
    }
}
