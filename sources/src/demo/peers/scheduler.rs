//! The scheduler: continuous batching, with one frame per step that contains every running request.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adapter::decode::Excerpt;
use anyhow::Context;
use tokio::time::{Instant, sleep, sleep_until};
use trace::MonoNs;

use super::Stage;
use super::network::{Inbox, InboxMessage, Outlet};
use super::report::PeerAction;
use super::requests::DemoRequest;
use crate::demo::encode::{BatchRow, Finish, Stats};

/// Chunks for so long after the client left show that no abort arrived.
const ABANDONED: Duration = Duration::from_secs(5);

/// State of the scheduler.
pub(super) struct Scheduler {
    stage: Stage,
    inbox: Inbox,
    outlet: Outlet,
    /// Received requests that no batch has room for.
    waiting: VecDeque<DemoRequest>,
    running: Vec<DemoRequest>,
    /// The wall clock's lead over the monotonic clock in seconds.
    wall_clock_lead: f64,
    /// When it freezes next; `None` if it never does.
    next_freeze: Option<Instant>,
}

impl Scheduler {
    /// A scheduler without requests, that receives from `inbox` and sends frames to `outlet`.
    pub(super) fn new(stage: Stage, inbox: Inbox, outlet: Outlet) -> Self {
        let wall_clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let wall_clock_lead = wall_clock - to_seconds(stage.reports.now());
        Self { stage, inbox, outlet, waiting: VecDeque::new(), running: Vec::new(), wall_clock_lead, next_freeze: None }
    }

    /// Serves requests until the simulation ends. Then all requests of clients get their last chunk.
    pub(super) async fn serve_requests(mut self) -> anyhow::Result<()> {
        let load = self.stage.script.load;
        let mut step_end = Instant::now();
        self.next_freeze = self.stage.script.freezes.map(|freezes| step_end + freezes.first);
        for step_number in 1.. {
            let due_freeze = self.take_due_freeze_and_plan_next(step_end);
            if let Some(length) = due_freeze {
                sleep(length).await;
            }
            self.receive_requests()?;
            let is_ending = self.stage.ending.load(Ordering::Relaxed);
            self.fill_batch(load.running);
            // The forward pass takes one step. After a delay, the scheduler does not catch up, as a GPU would not.
            step_end = (step_end + load.step).max(Instant::now());
            sleep_until(step_end).await;
            if !self.running.is_empty() {
                let stats = Stats { running: self.running.len(), waiting: self.waiting.len(), step: step_number };
                // At the end of the simulation, each step is the last one of its requests.
                let frame = self.finish_forward_pass_and_encode_frame(is_ending, stats);
                self.outlet.send(vec![frame.into()]).await?;
            }
            let is_idle = self.running.is_empty() && self.waiting.is_empty();
            if is_ending && is_idle && self.stage.account.unsent_requests() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Length of the freeze, during which the scheduler does nothing, that the script plans for the end of the last step. `None` if none is
    /// due. Counts it in the ground truth, and plans the next one.
    fn take_due_freeze_and_plan_next(&mut self, step_end: Instant) -> Option<Duration> {
        let freezes = self.stage.script.freezes?;
        let due = self.next_freeze?;
        if due > step_end {
            return None;
        }
        self.next_freeze = Some(due + freezes.interval);
        self.stage.account.update_truth(|truth| truth.scheduler_freezes += 1);
        Some(freezes.length)
    }

    /// Receives all messages with requests that are in the inbox, without waiting for more, as SGLang's `recv_requests` does. The requests
    /// then wait for room in the batch.
    fn receive_requests(&mut self) -> anyhow::Result<()> {
        let Stage { script, reports, sent_requests, .. } = &self.stage;
        let read_requests = script.engine.format().read_requests;
        while let Some(InboxMessage { id, parts }) = self.inbox.take_oldest() {
            // Nothing wakes up a scheduler, which looks for messages between two steps.
            reports.push(PeerAction::Received { id, wakeup: None });
            let parts: Vec<_> = parts.iter().map(|part| Excerpt::whole(part)).collect();
            let mut named_requests = Vec::new();
            read_requests(&parts, &mut named_requests).context("the demo's scheduler cannot read a request")?;
            for named in named_requests {
                // The message only names the request. What the simulation needs of it is handed over beside the socket.
                let mut request = sent_requests.take(named.rid).context("a request that no tokenizer sent")?;
                request.times.queued = to_seconds(reports.now());
                self.waiting.push_back(request);
            }
            reports.push(PeerAction::Processed(id));
        }
        Ok(())
    }

    /// Moves waiting requests into the batch of at most `max_requests` requests.
    fn fill_batch(&mut self, max_requests: usize) {
        let joining = (max_requests - self.running.len()).min(self.waiting.len());
        let batch_entered = to_seconds(self.stage.reports.now());
        for mut request in self.waiting.drain(..joining) {
            request.times.batch_entered = batch_entered;
            self.running.push(request);
        }
    }

    /// The end of a forward pass: encodes a frame with a chunk for each running request. Requests that end leave the batch. In the last
    /// step, all of them end.
    fn finish_forward_pass_and_encode_frame(&mut self, is_last_step: bool, stats: Stats) -> Vec<u8> {
        let now = self.stage.reports.now();
        let mut ids = Vec::new();
        let steps = self.generate_tokens_into(is_last_step, now, &mut ids);
        let frame = self.encode_frame(&steps, &ids, stats);
        self.stage.account.update_truth(|truth| {
            truth.chunks += steps.len() as u64;
            truth.tokens += ids.len() as u64;
        });
        for (request, step) in self.running.iter_mut().zip(&steps) {
            self.stage.count_abandoned_tokens(request, step.ids.len() as u32, now);
        }
        for (request, step) in std::mem::take(&mut self.running).into_iter().zip(&steps) {
            let goes_on = step.finish.is_none();
            if goes_on {
                self.running.push(request);
            }
        }
        frame
    }

    /// Encodes a frame with a row for each running request. `steps` are in the order of the requests, and `ids` has their new tokens.
    fn encode_frame(&self, steps: &[RequestStep], ids: &[i64], stats: Stats) -> Vec<u8> {
        let mut rows = Vec::with_capacity(steps.len());
        for (request, step) in self.running.iter().zip(steps) {
            rows.push(BatchRow {
                rid: &request.rid,
                worker: request.worker.as_deref(),
                finish: step.finish,
                prompt_tail: if step.is_first { &request.prompt_tail } else { &[] },
                ids: &ids[step.ids.clone()],
                prompt_tokens: request.prompt_tokens,
                completion_tokens: request.generated,
                times: request.times,
                wall_clock_lead: self.wall_clock_lead,
                ..BatchRow::default()
            });
        }
        self.stage.script.engine.encode_step(&rows, stats)
    }

    /// Appends the new tokens of all running requests to `ids`. Returns the step of each.
    fn generate_tokens_into(&mut self, is_last_step: bool, now: MonoNs, ids: &mut Vec<i64>) -> Vec<RequestStep> {
        let Stage { account, script, .. } = &self.stage;
        let burst = script.load.burst;
        let mut steps = Vec::with_capacity(self.running.len());
        for request in &mut self.running {
            let is_first = request.generated == 0;
            // The first step of a request is the end of its prefill.
            if is_first {
                account.count_started_request();
                request.times.prefill_finished = to_seconds(now);
            }
            let from = ids.len();
            let finish = request.append_tokens_of_step(burst, is_last_step, ids);
            steps.push(RequestStep { is_first, ids: from..ids.len(), finish });
        }
        steps
    }
}

/// Result of a forward pass for one request.
struct RequestStep {
    /// Whether it made the first token.
    is_first: bool,
    /// Place of its tokens among those of the batch.
    ids: Range<usize>,
    /// Set if the request ends.
    finish: Option<Finish>,
}

/// Seconds of the monotonic clock, as Python's `time.perf_counter` returns them.
fn to_seconds(at: MonoNs) -> f64 {
    at.0 as f64 / 1e9
}

impl Stage {
    /// Counts tokens that are sent after the request's client left, once that is longer ago than [`ABANDONED`]. They are a part of the
    /// truth with which tests compare what tokengap reports.
    fn count_abandoned_tokens(&self, request: &mut DemoRequest, new_tokens: u32, now: MonoNs) {
        let Some(left_at) = self.departures.get(&request.rid) else { return };
        request.tokens_abandoned += new_tokens;
        let may_abort_still_arrive = Duration::from_nanos(now.since(left_at)) < ABANDONED;
        if may_abort_still_arrive {
            return;
        }
        if request.is_abandoned {
            self.account.update_truth(|truth| truth.tokens_abandoned += u64::from(new_tokens));
        } else {
            request.is_abandoned = true;
            self.account.update_truth(|truth| {
                truth.requests_abandoned += 1;
                // All tokens since the client left, which were not counted before.
                truth.tokens_abandoned += u64::from(request.tokens_abandoned);
            });
        }
    }
}
