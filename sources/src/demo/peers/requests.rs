//! Client side of the load: the requests, their lengths and their ends.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::demo::encode::{Finish, READ_OFFSET};
use crate::demo::random::Random;
use crate::demo::scenario::{Lengths, Load, PROMPT, Requests};

/// Upper bound of token ids (size of a common vocabulary).
const VOCABULARY: u32 = 151_643;

/// A request in the scheduler's running batch.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) rid: Arc<str>,
    /// `http_worker_ipc`, if there are several tokenizer workers.
    pub(super) worker: Option<Arc<str>>,
    pub(super) prompt_tokens: u32,
    pub(super) prompt_tail: [i64; READ_OFFSET],
    /// Tokens generated so far.
    pub(super) generated: u32,
    /// Number of tokens at which it ends.
    target: u32,
    ending: Ending,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Length,
    Stop,
    Abort,
    /// Ends by a limit of zero tokens, because only prefill is requested.
    Prefill,
}

impl Request {
    /// Appends the tokens of the next step to `ids`, at most `burst`. Returns the finish reason with the last one.
    pub(super) fn step(&mut self, burst: u32, last_step: bool, ids: &mut Vec<i64>) -> Option<Finish> {
        let count = self.random.between(1, burst).min(self.target - self.generated);
        ids.extend((0..count).map(|_| token(&mut self.random)));
        self.generated += count;
        if self.generated < self.target && !last_step {
            return None;
        }
        Some(match (self.ending, ids.last()) {
            (Ending::Abort, _) => Finish::Abort,
            (Ending::Prefill, _) => Finish::Length(0),
            (Ending::Stop, Some(&last)) if self.generated == self.target => Finish::Stop(last),
            _ => Finish::Length(self.generated),
        })
    }
}

/// Generates requests. Each has its own random stream, so its content does not depend on timing.
#[derive(Debug)]
pub(super) struct Clients {
    load: Load,
    workers: Vec<Arc<str>>,
    random: Random,
    /// Remaining rids of a group of requests. The number is the end of a request that only warms up the prefix cache.
    together: VecDeque<(String, Option<u32>)>,
    groups: u32,
    /// Number of requests so far.
    turn: usize,
}

/// Number of prompts in a batch, and of samples of a prompt.
const GROUP: usize = 4;

impl Clients {
    pub(super) fn new(load: Load, workers: Vec<Arc<str>>, random: Random) -> Self {
        Self { load, workers, random, together: VecDeque::new(), groups: 0, turn: 0 }
    }

    /// Rid of the next request, and the number of tokens at which it ends if only prefill is requested.
    fn name(&mut self, random: &mut Random) -> (String, Option<u32>) {
        let mut fresh = || format!("{:016x}{:016x}", random.next(), random.next());
        match self.load.come {
            Requests::Single => (fresh(), None),
            Requests::Chats => (format!("chatcmpl-{:016x}-{:08x}", random.next(), random.next() as u32), None),
            Requests::Prefill => (fresh(), Some(1)),
            Requests::Groups => self.together.pop_front().unwrap_or_else(|| {
                self.groups += 1;
                let own = fresh();
                if self.groups % 2 == 1 {
                    // In a batch with one rid from the client, the prompts are numbered.
                    self.together.extend((0..GROUP).map(|n| (format!("{own}_{n}"), None)));
                } else {
                    // For n samples of a prompt: one request for the prefix alone, then one per sample, each with its own rid.
                    self.together.push_back((own, Some(0)));
                    self.together.extend((0..GROUP).map(|_| (fresh(), None)));
                }
                self.together.pop_front().unwrap_or_default()
            }),
        }
    }

    /// Seconds until the next request.
    pub(super) fn wait(&mut self) -> f64 {
        self.random.wait(1.0 / self.load.arrivals)
    }

    pub(super) fn next(&mut self) -> Request {
        let mut random = self.random.fork();
        let (rid, prefill) = self.name(&mut random);
        // HTTP workers accept connections in turn.
        self.turn += 1;
        let worker = self.turn.checked_rem(self.workers.len());
        let answer = length(self.load.answer, &mut random);
        let (ending, target) = if let Some(target) = prefill {
            (Ending::Prefill, target)
        } else if random.chance(self.load.aborts) {
            (Ending::Abort, random.between(1, answer))
        } else if random.chance(0.7) {
            (Ending::Stop, answer)
        } else {
            (Ending::Length, answer)
        };
        Request {
            rid: rid.into(),
            worker: worker.map(|worker| Arc::clone(&self.workers[worker])),
            prompt_tokens: length(PROMPT, &mut random),
            prompt_tail: std::array::from_fn(|_| token(&mut random)),
            generated: 0,
            target,
            ending,
            random,
        }
    }
}

fn token(random: &mut Random) -> i64 {
    random.between(0, VOCABULARY - 1).into()
}

fn length(lengths: Lengths, random: &mut Random) -> u32 {
    (random.log_normal(lengths.median, lengths.sigma) as u32).clamp(lengths.min, lengths.max)
}
