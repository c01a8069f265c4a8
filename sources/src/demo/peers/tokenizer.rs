//! The `TokenizerManager`: an event loop that receives frames and appends each chunk to the `out_list` of its request. It then wakes the
//! request's waiter, which runs some turns later.
//!
//! The loop receives a message every two turns, and a waiter runs `waiter_turns` after it is woken. Both numbers are measured on the real
//! process (docs/internals/WIRE.md). Chunks therefore meet in an `out_list` only while messages are queued, and the two numbers determine
//! how many do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use adapter::decode::Decode;
use anyhow::Context;
use trace::FrameId;

use super::Stage;
use super::clock::{Busy, Clock};
use super::network::Inbox;
use super::report::PeerAction;
use super::waiter::State;
use crate::demo::random::Random;
use crate::demo::scenario::Phase;

/// Turns between two calls of `await recv_pyobj()` while messages are queued.
const TURNS_A_MESSAGE: u64 = 2;

pub(super) struct Tokenizer {
    stage: Stage,
    inbox: Inbox,
    decoder: Box<dyn Decode>,
    busy: Busy,
    clock: Clock,
    states: HashMap<Arc<str>, State>,
    due: VecDeque<WokenWaiter>,
    turn: u64,
    wakeup: u64,
}

/// A waiter that will run.
struct WokenWaiter {
    /// The turn in which it runs; `None` if it waits until no message is left.
    turn: Option<u64>,
    rid: Arc<str>,
}

impl Tokenizer {
    pub(super) fn new(stage: Stage, inbox: Inbox, random: Random) -> Self {
        Self {
            decoder: stage.script.engine.decoder(),
            clock: Clock::new(&stage.script, random),
            stage,
            inbox,
            busy: Busy::new(),
            states: HashMap::new(),
            due: VecDeque::new(),
            turn: 0,
            wakeup: 0,
        }
    }

    /// Runs the event loop.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut next_take = 0;
        loop {
            if self.due.is_empty() && self.inbox.is_empty() {
                self.inbox.wait().await;
                self.wakeup += 1;
            }
            self.turn += 1;
            if self.turn >= next_take
                && let Some((id, message)) = self.inbox.take()
            {
                self.handle(id, &message).await?;
                next_take = self.turn + TURNS_A_MESSAGE;
            }
            let drained = self.inbox.is_empty();
            while let Some(waiter) =
                self.due.pop_front_if(|waiter| waiter.turn.map_or(drained, |turn| turn <= self.turn))
            {
                self.wake(&waiter.rid);
            }
        }
    }

    /// `handle_loop`: processes one message, up to the call for the next one.
    async fn handle(&mut self, id: FrameId, message: &[u8]) -> anyhow::Result<()> {
        self.stage.reports.push(PeerAction::Received { id, wakeup: self.wakeup });
        let phase = self.clock.phase(&self.stage.reports);
        let pause = self.clock.pause();
        let chunks = self.enter(message, phase)?;
        self.busy.spend(phase.cost.of(chunks) + pause).await;
        self.stage.reports.push(PeerAction::Processed(id));
        Ok(())
    }

    /// `_handle_batch_output`: appends each chunk to the `out_list` of its request. Returns the number of chunks.
    fn enter(&mut self, message: &[u8], phase: Phase) -> anyhow::Result<u32> {
        let batch = self.decoder.decode(&[message]).context("the demo's tokenizer cannot read a frame")?;
        for chunk in batch.chunks() {
            if !self.states.contains_key(chunk.rid) {
                let state = State::new(chunk.rid, phase.mode, phase.clients_add_up);
                self.states.insert(Arc::clone(state.rid()), state);
            }
            let state = self.states.get_mut(chunk.rid).context("a request without a state")?;
            state.queue(chunk.listed.unwrap_or(0), chunk.completion_tokens, chunk.finish.is_some());
            if !std::mem::replace(&mut state.woken, true) {
                let turn = self.stage.script.waiter_turns.map(|turns| self.turn + u64::from(turns));
                self.due.push_back(WokenWaiter { turn, rid: Arc::clone(state.rid()) });
            }
        }
        Ok(batch.chunks().len() as u32)
    }

    fn wake(&mut self, rid: &Arc<str>) {
        let Some(state) = self.states.get_mut(rid) else { return };
        let mut finished = false;
        let Stage { script, account, reports, .. } = &self.stage;
        state.wake(script.waiter, account, |given| {
            finished |= given.finished;
            reports.push(PeerAction::Delivered(given));
        });
        if finished {
            self.states.remove(rid);
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
    use crate::demo::encode::{Class, Finish, Release, Row, batch};
    use crate::demo::scenario::{Cost, Scenario, Script};
    use crate::demo::truth::{Account, Truth};

    const REQUESTS: u64 = 64;
    const STEPS: u32 = 200;

    /// Frames for 64 requests of 200 tokens, all queued before the tokenizer starts.
    fn queued(account: &Account) -> Inbox {
        let inbox = Inbox::default();
        let rids: Vec<_> = (0..REQUESTS).map(|i| format!("{i:032x}")).collect();
        for _ in &rids {
            account.request();
        }
        for step in 1..=STEPS {
            let row = |rid| Row {
                rid,
                finish: (step == STEPS).then_some(Finish::Length(STEPS)),
                ids: &[13],
                prompt_tokens: 7,
                completion_tokens: step,
                ..Row::default()
            };
            let rows: Vec<_> = rids.iter().map(|rid| row(rid)).collect();
            let id = FrameId { hop: HopId(0), lane: 0, seq: step.into() };
            inbox.push(id, batch(Release::V0_5_9, Class::TokenIds, &rows, false).into());
        }
        inbox
    }

    async fn play(waiter: Waiter, waiter_turns: u8) -> Truth {
        let free = Phase { cost: Cost::default(), ..Scenario::Race.script().phases[0] };
        let phases = Vec::leak(vec![free]);
        let script =
            Script { waiter, waiter_turns: Some(waiter_turns), phases, pauses: false, ..Scenario::Race.script() };
        let stage = Stage::new(script, 1, Path::new("/demo"), Reports::new(), Network::sockets());
        let account = stage.account.clone();
        let tokenizer = Tokenizer::new(stage, queued(&account), Random::new(1));
        let all_served = async {
            while account.open() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            failed = tokenizer.run() => panic!("{failed:?}"),
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
