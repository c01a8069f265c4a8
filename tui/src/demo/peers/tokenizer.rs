//! The `TokenizerManager`: an event loop that takes frames, puts each chunk into its request's `out_list` and wakes the
//! request's waiter, which runs some turns later.
//!
//! The loop takes a message every two turns and a waiter needs `waiter_turns` from its wake-up call to its run (both
//! measured on the real one, docs/WIRE.md). So chunks meet in an `out_list` only while messages are queued, and how many
//! do follows from those two numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use tokio::time::Instant;
use trace::HopId;
use zmq_tap::wire::Decoder;

use super::super::random::Random;
use super::super::scenario::{Pauses, Phase, Script};
use super::super::truth::Account;
use super::busy::Busy;
use super::inbox::Inbox;
use super::report::{Did, Fingerprint, Reports};
use super::waiter::{Queued, State};

/// Turns from one `await recv_pyobj()` to the next while messages are queued.
const TURNS_A_MESSAGE: u64 = 2;

/// One tokenizer worker.
pub(super) struct Tokenizer {
    hop: HopId,
    inbox: Inbox,
    decoder: Decoder,
    reports: Reports,
    account: Account,
    script: Script,
    busy: Busy,
    clock: Clock,
    states: HashMap<Arc<str>, State>,
    /// Waiters that were woken, with the turn in which they run.
    due: VecDeque<(u64, Arc<str>)>,
    turn: u64,
    wakeup: u64,
}

impl Tokenizer {
    pub(super) fn new(hop: HopId, inbox: Inbox, reports: Reports, account: Account, script: Script, random: Random) -> Self {
        let clock = Clock::new(&script, random);
        Self {
            hop,
            inbox,
            decoder: Decoder::default(),
            reports,
            account,
            script,
            busy: Busy::new(),
            clock,
            states: HashMap::new(),
            due: VecDeque::new(),
            turn: 0,
            wakeup: 0,
        }
    }

    /// The event loop.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut next_take = 0;
        loop {
            if self.due.is_empty() && self.inbox.is_empty() {
                self.inbox.wait().await;
                self.wakeup += 1;
            }
            self.turn += 1;
            if self.turn >= next_take
                && let Some(message) = self.inbox.take()
            {
                self.handle(&message).await?;
                next_take = self.turn + TURNS_A_MESSAGE;
            }
            while let Some((_, rid)) = self.due.pop_front_if(|(turn, _)| *turn <= self.turn) {
                self.wake(&rid);
            }
        }
    }

    /// `handle_loop`: one message, from its take to the request for the next one.
    async fn handle(&mut self, message: &Bytes) -> anyhow::Result<()> {
        let (hop, print) = (self.hop, Fingerprint::of(message));
        self.reports.tell(Did::Taken { hop, print, wakeup: self.wakeup });
        let phase = self.clock.phase(&self.reports);
        let pause = self.clock.pause();
        let chunks = self.enter(message, phase)?;
        self.busy.spend(phase.per_frame + phase.per_chunk * chunks + pause).await;
        self.reports.tell(Did::Handled { hop, print });
        Ok(())
    }

    /// `_handle_batch_output`: each chunk into its request's `out_list`; how many there were.
    fn enter(&mut self, message: &[u8], phase: Phase) -> anyhow::Result<u32> {
        let batch = self.decoder.decode(message).context("the demo's tokenizer cannot read a frame")?;
        for i in 0..batch.len() {
            let chunk = batch.chunk(i);
            let chunk_of = Queued {
                tokens: batch.tokens(i).count() as u32,
                completion_tokens: chunk.completion_tokens.context("a chunk without a count")?,
                finished: chunk.finish.is_some(),
            };
            if !self.states.contains_key(chunk.rid) {
                let state = State::new(chunk.rid, phase.mode, phase.clients_add_up);
                self.states.insert(Arc::clone(state.rid()), state);
            }
            let state = self.states.get_mut(chunk.rid).context("a request without a state")?;
            state.queue(chunk_of);
            if !std::mem::replace(&mut state.woken, true) {
                self.due.push_back((self.turn + self.script.waiter_turns, Arc::clone(state.rid())));
            }
        }
        Ok(batch.len() as u32)
    }

    fn wake(&mut self, rid: &Arc<str>) {
        let Some(state) = self.states.get_mut(rid) else { return };
        let mut finished = false;
        state.wake(self.script.waiter, &self.account, |given| {
            finished |= given.finished;
            self.reports.tell(Did::Delivered(given));
        });
        if finished {
            self.states.remove(rid);
        }
    }
}

/// What time it is in the scenario: which phase is played, and when the loop stands still.
struct Clock {
    phases: &'static [Phase],
    phase: Duration,
    pauses: Option<Pauses>,
    next_pause: Instant,
    start: Instant,
    current: usize,
    random: Random,
}

impl Clock {
    fn new(script: &Script, random: Random) -> Self {
        let start = Instant::now();
        let mut clock = Self {
            phases: script.phases,
            phase: script.phase,
            pauses: script.pauses,
            next_pause: start,
            start,
            current: 0,
            random,
        };
        clock.plan_pause();
        clock
    }

    /// The phase that is on; a change of mode is reported.
    fn phase(&mut self, reports: &Reports) -> Phase {
        let count = (self.start.elapsed().as_nanos() / self.phase.as_nanos().max(1)) as usize;
        let current = count % self.phases.len();
        if current != self.current {
            self.current = current;
            reports.tell(Did::Serves(self.phases[current].mode));
        }
        self.phases[current]
    }

    /// How long the loop stands still now.
    fn pause(&mut self) -> Duration {
        match self.pauses {
            Some(pauses) if Instant::now() >= self.next_pause => {
                self.plan_pause();
                let (least, most) = (pauses.least.as_micros() as u32, pauses.most.as_micros() as u32);
                Duration::from_micros(u64::from(self.random.between(least, most)))
            }
            _ => Duration::ZERO,
        }
    }

    fn plan_pause(&mut self) {
        if let Some(pauses) = self.pauses {
            self.next_pause = Instant::now() + Duration::from_secs_f64(self.random.wait(pauses.every.as_secs_f64()));
        }
    }
}
