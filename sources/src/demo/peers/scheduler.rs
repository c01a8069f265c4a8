//! The scheduler: continuous batching, with one frame per step that contains every running request.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::Stage;
use super::network::Outlet;
use super::requests::{Clients, Request};
use crate::demo::encode::{Row, Stats};

/// State of the scheduler.
pub(super) struct Scheduler {
    pub(super) stage: Stage,
    pub(super) clients: Clients,
    pub(super) outlet: Outlet,
}

impl Scheduler {
    /// Serves requests until the simulation ends. Then no new requests start, and all running ones get their last chunk.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let load = self.stage.script.load;
        let mut waiting: VecDeque<Request> = (0..load.running / 2).map(|_| self.clients.next()).collect();
        let mut running: Vec<Request> = Vec::with_capacity(load.running);
        let mut step = Instant::now();
        let mut arrival = step;
        for steps in 1.. {
            step = (step + load.step).max(Instant::now());
            sleep_until(step).await;
            let ending = self.stage.ending.load(Ordering::Relaxed);
            while arrival <= step {
                arrival += Duration::from_secs_f64(self.clients.wait());
                if self.stage.account.open() + waiting.len() < load.open {
                    waiting.push_back(self.clients.next());
                }
            }
            if !ending {
                let free = (load.running - running.len()).min(waiting.len());
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
        let account = &self.stage.account;
        let burst = self.stage.script.load.burst;
        let mut ids = Vec::with_capacity(running.len() * burst as usize);
        let steps: Vec<_> = running
            .iter_mut()
            .map(|request| {
                let new = request.generated == 0;
                let from = ids.len();
                if new {
                    account.request();
                }
                let finish = request.step(burst, last, &mut ids);
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
        let frame = self.stage.script.engine.step(&rows, stats);
        account.count(|truth| {
            truth.chunks += rows.len() as u64;
            truth.tokens += ids.len() as u64;
        });
        let mut finishes = steps.iter().map(|(.., finish)| finish.is_some());
        running.retain(|_| !finishes.next().unwrap_or(false));
        frame
    }
}
