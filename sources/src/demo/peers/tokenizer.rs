//! The `TokenizerManager`: an event loop that reads requests from its socket and sends them to a scheduler. It receives frames and appends
//! each chunk to the `out_list` of its request. It then wakes the request's waiter, which runs some turns later.
//!
//! The loop receives a message every two turns, and a waiter runs `waiter_turns` after it is woken. Both numbers are measured on the real
//! process (docs/internals/WIRE.md). Chunks therefore meet in an `out_list` only while messages are queued, and the two numbers determine
//! how many do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adapter::decode::Decode;
use anyhow::Context;
use trace::event::ArrivalTimes;
use trace::{FrameId, MonoNs};

use super::Stage;
use super::clock::{Busy, Clock};
use super::network::{Inbox, InboxMessage, Outlet, Parts, Queue};
use super::report::PeerAction;
use super::requests::{Arrived, ClientSocket, DemoRequest, text_of};
use super::waiter::WaiterState;
use crate::demo::encode::RequestRow;
use crate::demo::random::Random;

/// Turns between two calls of `await recv_pyobj()` while messages are queued.
const TURNS_A_MESSAGE: u64 = 2;
/// Time on the event loop that a request takes: chat template and tokenisation.
const TOKENISATION: Duration = Duration::from_micros(200);
/// A request that is sent so long after it was read is late.
const LATE: Duration = Duration::from_secs(1);
/// Number of tokens of the prompt whose text is in the request: the message must fit one pickle frame.
const TEXT_TOKENS: usize = 256;

pub(super) struct Tokenizer {
    stage: Stage,
    inbox: Inbox,
    clients: ClientSocket,
    /// Requests whose images are prepared.
    prepared: Queue<ReadRequest>,
    /// Connections to the schedulers, which serve requests in turn.
    schedulers: Vec<Outlet>,
    dispatch_count: usize,
    decoder: Box<dyn Decode>,
    event_loop_time: Busy,
    clock: Clock,
    states_by_rid: HashMap<Arc<str>, WaiterState>,
    /// Waiters that will run, in this order.
    woken_waiters: VecDeque<WokenWaiter>,
    /// Number of the event loop's current turn.
    current_turn: u64,
    wakeup_count: u64,
}

/// A waiter that will run.
struct WokenWaiter {
    /// The turn in which it runs; `None` if it waits until no message is left.
    run_at_turn: Option<u64>,
    rid: Arc<str>,
}

impl WokenWaiter {
    /// Whether it runs in this turn. A waiter without a fixed turn runs once the inbox is drained.
    fn is_due(&self, current_turn: u64, is_drained: bool) -> bool {
        self.run_at_turn.map_or(is_drained, |turn| turn <= current_turn)
    }
}

/// A request that was read from its socket.
struct ReadRequest {
    read_at: MonoNs,
    request: DemoRequest,
}

impl Tokenizer {
    /// A tokenizer without requests, that serves `clients`, sends their requests to `schedulers` and receives frames from `inbox`.
    pub(super) fn new(
        stage: Stage,
        inbox: Inbox,
        clients: ClientSocket,
        schedulers: Vec<Outlet>,
        random: Random,
    ) -> Self {
        Self {
            decoder: stage.script.engine.decoder(),
            clock: Clock::new(&stage.script, random),
            stage,
            inbox,
            clients,
            prepared: Queue::default(),
            schedulers,
            dispatch_count: 0,
            event_loop_time: Busy::new(),
            states_by_rid: HashMap::new(),
            woken_waiters: VecDeque::new(),
            current_turn: 0,
            wakeup_count: 0,
        }
    }

    /// Runs the event loop: serves requests, processes messages of the scheduler, and runs the waiters of requests that have new chunks. A
    /// waiter is the coroutine that passes the chunks of one request to its client.
    pub(super) async fn run_event_loop(mut self) -> anyhow::Result<()> {
        let mut next_message_turn = 0;
        loop {
            if self.has_nothing_to_do() {
                // In a fixed order, so that a run can be repeated.
                tokio::select! {
                    biased;
                    () = self.inbox.wait_for_item() => {}
                    () = self.clients.wait_for_item() => {}
                    () = self.prepared.wait_for_item() => {}
                }
                self.wakeup_count += 1;
            }
            self.current_turn += 1;
            self.serve_requests().await?;
            // Between two messages, the loop runs other tasks for some turns.
            if self.current_turn >= next_message_turn
                && let Some(InboxMessage { id, parts: message }) = self.inbox.take_oldest()
            {
                self.process_message(id, &message).await?;
                next_message_turn = self.current_turn + TURNS_A_MESSAGE;
            }
            let is_drained = self.inbox.is_empty();
            while let Some(waiter) =
                self.woken_waiters.pop_front_if(|first| first.is_due(self.current_turn, is_drained))
            {
                self.run_waiter(&waiter.rid);
            }
        }
    }

    /// Whether no waiter is due, and no message or request is queued.
    fn has_nothing_to_do(&self) -> bool {
        self.woken_waiters.is_empty() && self.inbox.is_empty() && self.clients.is_empty() && self.prepared.is_empty()
    }

    /// Reads and prepares requests, and sends prepared ones to a scheduler, as SGLang's `generate_request` does.
    async fn serve_requests(&mut self) -> anyhow::Result<()> {
        while let Some(Arrived { at: arrived, request }) = self.clients.take_oldest() {
            let read_at = self.stage.reports.now();
            self.add_waiter(&request, ArrivalTimes { arrived, read: read_at, connection: None });
            // Preparation, such as that of images, runs beside the event loop.
            let Some(preparation) = request.preparation else {
                self.event_loop_time.spend_time(TOKENISATION).await;
                self.send_request(ReadRequest { read_at, request }).await?;
                continue;
            };
            let prepared = self.prepared.clone();
            tokio::spawn(async move {
                tokio::time::sleep(preparation).await;
                prepared.push(ReadRequest { read_at, request });
            });
        }
        while let Some(request) = self.prepared.take_oldest() {
            self.send_request(request).await?;
        }
        Ok(())
    }

    /// Adds the state of a request's waiter, which is idle until the first chunk of the request.
    fn add_waiter(&mut self, request: &DemoRequest, arrival: ArrivalTimes) {
        let phase = self.clock.current_phase_and_report_change(&self.stage.reports);
        let mut state = WaiterState::new(&request.rid, phase.mode, phase.clients_add_up);
        state.arrival = Some(arrival);
        state.leaves_after = request.leaves_after;
        self.states_by_rid.insert(Arc::clone(&request.rid), state);
    }

    /// Sends a prepared request to the next scheduler, as SGLang's `_send_one_request` does.
    async fn send_request(&mut self, ReadRequest { read_at, mut request }: ReadRequest) -> anyhow::Result<()> {
        let Stage { script, account, reports, sent_requests, .. } = &self.stage;
        let preparation = Duration::from_nanos(reports.now().since(read_at));
        // The message states when the request was read, before its preparation.
        let read_wall_time =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(preparation);
        if preparation >= LATE {
            account.update_truth(|truth| truth.requests_dispatched_late += 1);
        }
        let prompt = std::mem::take(&mut request.prompt);
        let message = script.engine.encode_request_parts(&RequestRow {
            rid: &request.rid,
            worker: request.worker.as_deref(),
            text: &text_of(&prompt[..prompt.len().min(TEXT_TOKENS)]),
            prompt: &prompt,
            arrived: read_wall_time.as_secs_f64(),
            ..RequestRow::default()
        });
        sent_requests.insert(Arc::clone(&request.rid), request);
        // Data-parallel schedulers get requests in turn.
        let scheduler_index = self.dispatch_count % self.schedulers.len();
        self.dispatch_count += 1;
        self.schedulers[scheduler_index].send(message).await
    }

    /// Processes one message, up to the call for the next one, as SGLang's `handle_loop` does.
    async fn process_message(&mut self, id: FrameId, message: &Parts) -> anyhow::Result<()> {
        self.stage.reports.push(PeerAction::Received { id, wakeup: Some(self.wakeup_count) });
        let phase = self.clock.current_phase_and_report_change(&self.stage.reports);
        let pause = self.clock.take_due_pause();
        let chunks = self.queue_chunks_and_count(message)?;
        self.event_loop_time.spend_time(phase.cost.for_chunks(chunks) + pause).await;
        self.stage.reports.push(PeerAction::Processed(id));
        Ok(())
    }

    /// Appends each chunk of a message to the `out_list` of its request, as SGLang's `_handle_batch_output` does, and wakes the waiter that
    /// passes them to the client. Returns the number of chunks.
    fn queue_chunks_and_count(&mut self, message: &Parts) -> anyhow::Result<u32> {
        let parts: Vec<&[u8]> = message.iter().map(|part| &part[..]).collect();
        let batch = self.decoder.decode(&parts).context("the demo's tokenizer cannot read a frame")?;
        for chunk in batch.chunks() {
            let tokens = chunk.listed.unwrap_or(0);
            let is_finished = chunk.finish.is_some();
            let Some(state) = self.states_by_rid.get_mut(chunk.rid) else {
                // The client has left. SGLang logs "Received output for rid=.. but the state was deleted".
                self.stage.account.count_discarded_chunk(tokens, is_finished);
                continue;
            };
            state.queue_chunk(tokens, chunk.completion_tokens, is_finished);
            // Further chunks until the waiter runs wait in its list.
            if !state.is_woken {
                state.is_woken = true;
                let run_at_turn = self.stage.script.waiter_turns.map(|turns| self.current_turn + u64::from(turns));
                self.woken_waiters.push_back(WokenWaiter { run_at_turn, rid: Arc::clone(state.rid()) });
            }
        }
        Ok(batch.chunks().len() as u32)
    }

    /// Runs the coroutine that waits for the request. It passes the queued chunks to the client, and reports that. The request ends with
    /// its last chunk, or if the client leaves.
    fn run_waiter(&mut self, rid: &Arc<str>) {
        // Without a state, the request has ended.
        let Some(state) = self.states_by_rid.get_mut(rid) else { return };
        let mut finished = false;
        let Stage { script, account, reports, departures, .. } = &self.stage;
        // The response begins only once.
        if let Some(times) = state.arrival.take() {
            reports.push(PeerAction::Responds { rid: Arc::clone(rid), times });
        }
        state.pass_queued_chunks(script.waiter, account, |given| {
            finished |= given.finished;
            reports.push(PeerAction::Delivered(given));
        });
        if !finished && let Some(tokens) = state.left_after() {
            account.update_truth(|truth| truth.clients_left += 1);
            reports.push(PeerAction::ClientLeft { rid: Arc::clone(rid), tokens });
            departures.insert(Arc::clone(rid), reports.now());
            finished = true;
        }
        if finished {
            self.states_by_rid.remove(rid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use trace::HopId;
    use trace::engine::Waiter;

    use super::super::{Network, Reports};
    use super::*;
    use crate::demo::encode::{BatchRow, Class, Finish, SglangRelease, encode_batch};
    use crate::demo::scenario::{Cost, Scenario, Script, TokenizerPhase};
    use crate::demo::truth::{Account, Truth};

    const REQUESTS: u64 = 64;
    const STEPS: u32 = 200;

    fn rids() -> Vec<String> {
        (0..REQUESTS).map(|i| format!("{i:032x}")).collect()
    }

    /// Frames for 64 requests of 200 tokens, all queued before the tokenizer starts.
    fn queued(account: &Account) -> Inbox {
        let inbox = Inbox::default();
        let rids = rids();
        for _ in &rids {
            account.count_opened_request();
            account.count_started_request();
        }
        for step in 1..=STEPS {
            let row = |rid| BatchRow {
                rid,
                finish: (step == STEPS).then_some(Finish::Length(STEPS)),
                ids: &[13],
                prompt_tokens: 7,
                completion_tokens: step,
                ..BatchRow::default()
            };
            let rows: Vec<_> = rids.iter().map(|rid| row(rid)).collect();
            let id = FrameId { hop: HopId(0), lane: 0, seq: step.into() };
            let parts = vec![encode_batch(SglangRelease::V0_5_9, Class::TokenIds, &rows, false).into()];
            inbox.push(InboxMessage { id, parts });
        }
        inbox
    }

    async fn play(waiter: Waiter, waiter_turns: u8) -> Truth {
        let free = TokenizerPhase { cost: Cost::default(), ..Scenario::Race.script().phases[0] };
        let phases = Vec::leak(vec![free]);
        let script =
            Script { waiter, waiter_turns: Some(waiter_turns), phases, pauses: false, ..Scenario::Race.script() };
        let stage = Stage::new(script, 1, Path::new("/demo"), Reports::new(), Network::sockets());
        let account = stage.account.clone();
        let mut tokenizer =
            Tokenizer::new(stage, queued(&account), ClientSocket::default(), Vec::new(), Random::new(1));
        for rid in rids() {
            let state = WaiterState::new(&rid, free.mode, free.clients_add_up);
            tokenizer.states_by_rid.insert(rid.into(), state);
        }
        let all_served = async {
            while account.open_requests() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            failed = tokenizer.run_event_loop() => panic!("{failed:?}"),
            () = all_served => account.truth(),
        }
    }

    /// With the same queue, the real `TokenizerManager` of 0.5.6 and 0.5.9 lost 6,400 of 12,800 chunks with CPython 3.11 (3 turns). With
    /// 3.12 (1 turn) it lost none.
    #[tokio::test]
    async fn a_queued_backlog_loses_as_many_chunks_as_the_real_tokenizer() {
        let python_3_11 = play(Waiter::KeepsLast, 3).await;
        assert_eq!((python_3_11.chunks_dropped, python_3_11.tokens_lost, python_3_11.rids_affected), (6400, 6400, 64));
        let python_3_12 = play(Waiter::KeepsLast, 1).await;
        assert_eq!(python_3_12.chunks_dropped, 0);
    }

    #[tokio::test]
    async fn a_queued_backlog_is_merged_by_later_releases() {
        let merged = play(Waiter::Merges, 3).await;
        assert_eq!((merged.chunks_dropped, merged.chunks_merged, merged.tokens_claimed), (0, 6400, 12_800));
    }
}
