//! Clients: their requests, the lengths of prompts and answers, and how requests end.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adapter::decode::EngineSeconds;
use tokio::time::{Instant, sleep_until};
use trace::MonoNs;

use super::Stage;
use super::network::Queue;
use crate::demo::encode::{Finish, READ_OFFSET};
use crate::demo::random::Random;
use crate::demo::scenario::{DemoLoad, Lengths, PROMPT, RequestForm};

/// Upper bound of token ids (size of a common vocabulary).
const VOCABULARY: u32 = 151_643;

/// A request, and what the model will generate for it.
#[derive(Debug)]
pub(super) struct DemoRequest {
    pub(super) rid: Arc<str>,
    /// `http_worker_ipc`, if there are several tokenizer workers.
    pub(super) worker: Option<Arc<str>>,
    /// Empty once it is on its way to the scheduler.
    pub(super) prompt: Vec<i64>,
    pub(super) prompt_tokens: u32,
    pub(super) prompt_tail: [i64; READ_OFFSET],
    /// Time that the preparation of its images takes outside of the event loop; `None` for text.
    pub(super) preparation: Option<Duration>,
    /// Number of tokens after which its client leaves; `None` if it stays.
    pub(super) leaves_after: Option<u32>,
    /// Moments at the scheduler.
    pub(super) times: EngineSeconds,
    /// Tokens sent since its client left.
    pub(super) tokens_abandoned: u32,
    pub(super) is_abandoned: bool,
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

/// How a request ends, and at how many tokens.
struct PlannedEnd {
    ending: Ending,
    target: u32,
}

impl DemoRequest {
    /// Generates the tokens of the next step, at most `max_tokens`, and appends them to `ids`. Returns why the request ends; `None` if it
    /// goes on. In the last step of the demo, every request ends.
    pub(super) fn append_tokens_of_step(
        &mut self,
        max_tokens: u32,
        is_last_step: bool,
        ids: &mut Vec<i64>,
    ) -> Option<Finish> {
        // Prefill makes one token.
        let max_tokens = if self.generated == 0 { 1 } else { max_tokens };
        let count = self.random.draw_between(1, max_tokens).min(self.target - self.generated);
        ids.extend((0..count).map(|_| draw_token(&mut self.random)));
        self.generated += count;
        if self.generated < self.target && !is_last_step {
            return None;
        }
        Some(self.finish_after(ids.last().copied()))
    }

    /// Finish reason of a request that ends after the token `last_id`.
    fn finish_after(&self, last_id: Option<i64>) -> Finish {
        let is_complete = self.generated == self.target;
        match self.ending {
            Ending::Abort => Finish::Abort,
            // The client has asked for no token, only for the prefill.
            Ending::Prefill => Finish::Length(0),
            // A request that the end of the demo cuts short ends by its length.
            Ending::Stop if is_complete && let Some(id) = last_id => Finish::Stop(id),
            Ending::Stop | Ending::Length => Finish::Length(self.generated),
        }
    }
}

/// A request in the socket of a tokenizer.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) at: MonoNs,
    pub(super) request: DemoRequest,
}

/// The socket of a tokenizer that clients connect to.
pub(super) type ClientSocket = Queue<Arrived>;

/// What messages do not carry, by rid.
#[derive(Debug)]
pub(super) struct ByRid<T> {
    values: Arc<Mutex<HashMap<Arc<str>, T>>>,
}

impl<T> Default for ByRid<T> {
    fn default() -> Self {
        Self { values: Arc::default() }
    }
}

impl<T> Clone for ByRid<T> {
    fn clone(&self) -> Self {
        Self { values: Arc::clone(&self.values) }
    }
}

impl<T> ByRid<T> {
    pub(super) fn insert(&self, rid: Arc<str>, value: T) {
        self.lock().insert(rid, value);
    }

    pub(super) fn take(&self, rid: &str) -> Option<T> {
        self.lock().remove(rid)
    }

    /// The value for this request, if there is one.
    pub(super) fn get(&self, rid: &str) -> Option<T>
    where
        T: Copy,
    {
        self.lock().get(rid).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, T>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Generates requests. Each has its own random stream, so its content does not depend on timing.
#[derive(Debug)]
pub(super) struct Clients {
    load: DemoLoad,
    workers: Vec<Arc<str>>,
    /// One for each worker.
    sockets: Vec<ClientSocket>,
    random: Random,
    /// Remaining requests of a group.
    rest_of_group: VecDeque<ChosenRid>,
    groups: u32,
    /// Number of requests so far.
    worker_turn: usize,
}

/// Id of a request that is not created yet.
#[derive(Debug, Default)]
struct ChosenRid {
    rid: String,
    /// Number of tokens at which it ends, if only prefill is requested.
    prefill_tokens: Option<u32>,
}

impl ChosenRid {
    fn of_answer(rid: String) -> Self {
        Self { rid, prefill_tokens: None }
    }

    fn of_prefill(rid: String, tokens: u32) -> Self {
        Self { rid, prefill_tokens: Some(tokens) }
    }
}

/// A random request id of 32 hex digits.
fn fresh_rid(random: &mut Random) -> String {
    format!("{:016x}{:016x}", random.next_u64(), random.next_u64())
}

/// Least and largest number of tokens after which a client leaves.
const MIN_TOKENS_OF_LEAVER: u32 = 5;
const MAX_TOKENS_OF_LEAVER: u32 = 60;
/// Share of the requests without an abort that end at a stop token. The others end by their length.
const SHARE_OF_STOPS: f64 = 0.7;
/// Number of prompts in a batch, and of samples of a prompt.
const GROUP_SIZE: usize = 4;

impl Clients {
    pub(super) fn new(load: DemoLoad, workers: Vec<Arc<str>>, sockets: Vec<ClientSocket>, random: Random) -> Self {
        Self { load, workers, sockets, random, rest_of_group: VecDeque::new(), groups: 0, worker_turn: 0 }
    }

    /// Sends requests until the simulation ends.
    pub(super) async fn send_requests(mut self, stage: Stage) -> anyhow::Result<()> {
        let schedulers = stage.script.route.schedulers;
        // Half of a full batch, so that the load is typical from the start.
        let initial_requests = self.load.running / 2 * schedulers;
        for _ in 0..initial_requests {
            self.send_request(&stage);
        }
        let mean_interval_s = 1.0 / (self.load.arrivals * schedulers as f64);
        let mut arrival = Instant::now();
        loop {
            arrival += Duration::from_secs_f64(self.random.draw_wait(mean_interval_s));
            sleep_until(arrival).await;
            if stage.ending.load(Ordering::Relaxed) {
                return Ok(());
            }
            // At the limit, this arrival is skipped.
            if stage.account.open_requests() < self.load.open {
                self.send_request(&stage);
            }
        }
    }

    /// Sends a new request to the next worker.
    fn send_request(&mut self, stage: &Stage) {
        // Also advances the turn, which selects the worker and its socket.
        let request = self.create_request();
        stage.account.count_opened_request();
        let socket_index = self.worker_turn % self.sockets.len();
        self.sockets[socket_index].push(Arrived { at: stage.reports.now(), request });
    }

    /// Chooses the rid of the next request.
    fn choose_rid(&mut self, random: &mut Random) -> ChosenRid {
        match self.load.form {
            RequestForm::Single => ChosenRid::of_answer(fresh_rid(random)),
            // The form of the ids of chat completions.
            RequestForm::Chats => {
                ChosenRid::of_answer(format!("chatcmpl-{:016x}-{:08x}", random.next_u64(), random.next_u64() as u32))
            }
            // A prefill server generates the first token only.
            RequestForm::Prefill => ChosenRid::of_prefill(fresh_rid(random), 1),
            RequestForm::Groups => {
                if self.rest_of_group.is_empty() {
                    self.choose_rids_of_group(random);
                }
                self.rest_of_group.pop_front().unwrap_or_default()
            }
        }
    }

    /// Chooses the rids of a group of requests: alternately those of a batch, and those of samples of one prompt.
    fn choose_rids_of_group(&mut self, random: &mut Random) {
        self.groups += 1;
        let group_rid = fresh_rid(random);
        let is_batch = self.groups % 2 == 1;
        if is_batch {
            // In a batch with one rid from the client, the prompts are numbered.
            for prompt in 0..GROUP_SIZE {
                self.rest_of_group.push_back(ChosenRid::of_answer(format!("{group_rid}_{prompt}")));
            }
        } else {
            // For n samples of a prompt: one request for the prefix alone, then one per sample, each with its own rid.
            self.rest_of_group.push_back(ChosenRid::of_prefill(group_rid, 0));
            for _ in 0..GROUP_SIZE {
                self.rest_of_group.push_back(ChosenRid::of_answer(fresh_rid(random)));
            }
        }
    }

    /// The worker that accepts the next connection. HTTP workers do so in turn. A single one has no name, so the list is then empty.
    fn choose_next_worker(&mut self) -> Option<Arc<str>> {
        self.worker_turn += 1;
        let index = self.worker_turn.checked_rem(self.workers.len())?;
        Some(Arc::clone(&self.workers[index]))
    }

    /// Plans how a request ends. A request of only the prefill ends after `prefill_tokens`, any other after at most `answer_tokens`.
    fn plan_end(&self, prefill_tokens: Option<u32>, answer_tokens: u32, random: &mut Random) -> PlannedEnd {
        if let Some(target) = prefill_tokens {
            PlannedEnd { ending: Ending::Prefill, target }
        } else if random.draw_chance(self.load.aborts) {
            PlannedEnd { ending: Ending::Abort, target: random.draw_between(1, answer_tokens) }
        } else if random.draw_chance(SHARE_OF_STOPS) {
            PlannedEnd { ending: Ending::Stop, target: answer_tokens }
        } else {
            PlannedEnd { ending: Ending::Length, target: answer_tokens }
        }
    }

    /// Creates the next request. All draws are from its own random stream, in this order, so that a run with the same seed is the same run.
    fn create_request(&mut self) -> DemoRequest {
        let mut random = self.random.fork();
        let ChosenRid { rid, prefill_tokens } = self.choose_rid(&mut random);
        let worker = self.choose_next_worker();
        let answer_tokens = draw_length(self.load.answer, &mut random);
        let PlannedEnd { ending, target } = self.plan_end(prefill_tokens, answer_tokens, &mut random);
        let prompt_tokens = draw_length(PROMPT, &mut random);
        let prompt: Vec<i64> = (0..prompt_tokens).map(|_| draw_token(&mut random)).collect();
        let preparation = self.load.preparation_ms.map(|ms| random.draw_between(ms.least, ms.most));
        let client_leaves = random.draw_chance(self.load.leavers);
        let leaves_after = client_leaves.then(|| random.draw_between(MIN_TOKENS_OF_LEAVER, MAX_TOKENS_OF_LEAVER));
        DemoRequest {
            rid: rid.into(),
            worker,
            prompt_tokens,
            // The last `READ_OFFSET` ids, or zeros for a shorter prompt.
            prompt_tail: prompt.last_chunk().copied().unwrap_or_default(),
            prompt,
            preparation: preparation.map(|ms| Duration::from_millis(ms.into())),
            leaves_after,
            times: EngineSeconds::default(),
            tokens_abandoned: 0,
            is_abandoned: false,
            generated: 0,
            target,
            ending,
            random,
        }
    }
}

fn draw_token(random: &mut Random) -> i64 {
    random.draw_between(0, VOCABULARY - 1).into()
}

fn draw_length(lengths: Lengths, random: &mut Random) -> u32 {
    (random.draw_log_normal(lengths.median, lengths.sigma) as u32).clamp(lengths.min, lengths.max)
}

/// Words for token ids, so that messages have realistic sizes.
const WORDS: &str = "the of and to in is that for it as with was on are by this token stream schedule latency request between \
                     measured throughput";

/// Text of these ids: a word for each.
pub(super) fn text_of(ids: &[i64]) -> String {
    let words: Vec<&str> = WORDS.split(' ').collect();
    ids.iter().flat_map(|id| [" ", words[*id as usize % words.len()]]).collect()
}
