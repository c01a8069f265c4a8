//! The scenarios. Each one only describes an engine and its load.

use std::time::Duration;

use trace::engine::{Mode, Waiter};
use trace::words::names;

use super::encode::{DemoEngine, SglangRelease};

/// Workload of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`about` describes them")]
pub enum Scenario {
    Healthy,
    SkipTokenizer,
    Backlog,
    Race,
    Merge,
    Regression,
    Router,
    TokenizerWorkers,
    Detokenizers,
    Uneven,
    DataParallel,
    Prefill,
    Decode,
    Sampling,
    Vllm,
    SlowTokenisation,
    SchedulerStopped,
    Abandoned,
}

names! { Scenario {
    Healthy = "healthy",
    SkipTokenizer = "skip-tokenizer",
    Backlog = "backlog",
    Race = "race",
    Merge = "merge",
    Regression = "regression",
    Router = "router",
    TokenizerWorkers = "tokenizer-workers",
    Detokenizers = "detokenizers",
    Uneven = "uneven",
    DataParallel = "data-parallel",
    Prefill = "prefill",
    Decode = "decode",
    Sampling = "sampling",
    Vllm = "vllm",
    SlowTokenisation = "slow-tokenisation",
    SchedulerStopped = "scheduler-stopped",
    Abandoned = "abandoned",
} }

/// Definition of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) name: String,
    /// Engine and release whose frames the peers write.
    pub(super) engine: DemoEngine,
    pub(super) route: ProcessCounts,
    pub(super) load: DemoLoad,
    /// Costs of a router and of a detokenizer.
    pub(super) router: Cost,
    pub(super) detokenizer: Cost,
    /// One in this many requests changes its detokenizer midway, as after restarting a router with a different number of them.
    pub(super) strays: Option<u32>,
    /// Behaviour of a waiter with several queued chunks.
    pub(super) waiter: Waiter,
    /// Event loop turns between waking a waiter and running it: 3 inside `asyncio.wait_for` up to CPython 3.11, 1 from 3.12, and more with
    /// another thread in between. The loop receives a message every 2 turns. `None` if waiters run only when no message is left (vLLM).
    pub(super) waiter_turns: Option<u8>,
    /// Phases that alternate, each for [`Self::phase`].
    pub(super) phases: &'static [TokenizerPhase],
    pub(super) phase: Duration,
    /// Whether the tokenizer pauses, as for garbage collection or to tokenize a long prompt on the event loop.
    pub(super) pauses: bool,
    /// Times at which the scheduler freezes; `None` if it never does.
    pub(super) freezes: Option<Freezes>,
}

/// Times at which a process freezes, as if it were stopped or compiled something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freezes {
    /// Time until the first.
    pub(super) first: Duration,
    pub(super) length: Duration,
    /// Time from the start of one to the start of the next.
    pub(super) interval: Duration,
}

/// Number of processes per role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessCounts {
    /// Number of data-parallel schedulers.
    pub(super) schedulers: usize,
    /// Number of detokenizers. 0 means `--skip-tokenizer-init`; several have a router in front.
    pub(super) detokenizers: usize,
    /// Number of tokenizer workers. Each of several has its own inbox.
    pub(super) workers: usize,
}

/// Cost of a frame, and of each chunk in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    per_frame: Duration,
    per_chunk: Duration,
}

impl Cost {
    /// Cost of a frame with this number of chunks.
    pub(super) fn for_chunks(self, chunks: u32) -> Duration {
        self.per_frame + self.per_chunk * chunks
    }
}

/// Form of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestForm {
    /// Single requests.
    Single,
    /// Alternately batches of four prompts, and four samples of one prompt.
    Groups,
    /// Single requests that end after prefill (`FINISH_LENGTH(length=0)`).
    Prefill,
    /// Single requests with the ids of vLLM's chat endpoint.
    Chats,
}

/// Requests, and how the scheduler serves them.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoLoad {
    /// Time between frames.
    pub(super) step: Duration,
    /// Maximum number of running requests.
    pub(super) running: usize,
    /// Maximum number of open requests; clients delay further ones.
    pub(super) open: usize,
    /// New requests per second.
    pub(super) arrivals: f64,
    pub(super) answer: Lengths,
    /// Maximum number of tokens per request and step (above 1 for speculative decoding).
    pub(super) burst: u32,
    /// Share of requests that end because their client disconnects midway.
    pub(super) aborts: f64,
    /// Share of requests whose client disconnects, and whose abort never reaches the scheduler.
    pub(super) leavers: f64,
    /// Time for which a pool of threads prepares the images of a request; `None` for text.
    pub(super) preparation_ms: Option<MsBounds>,
    pub(super) form: RequestForm,
}

/// Bounds of times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct MsBounds {
    pub(super) least: u32,
    pub(super) most: u32,
}

/// Log-normal lengths in tokens, clamped at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub(super) min: u32,
    pub(super) median: f64,
    pub(super) sigma: f64,
    pub(super) max: u32,
}

/// Delivery mode of the tokenizer during a phase, and its cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenizerPhase {
    /// Mode for requests that start in this phase.
    pub(super) mode: Mode,
    /// Set if their clients treat all received tokens as new.
    pub(super) clients_add_up: bool,
    pub(super) cost: Cost,
}

const fn milliseconds(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const DIRECT: ProcessCounts = ProcessCounts { schedulers: 1, detokenizers: 0, workers: 1 };
const DETOKENIZER: ProcessCounts = ProcessCounts { detokenizers: 1, ..DIRECT };
const fn cost_in_us(per_frame: u64, per_chunk: u64) -> Cost {
    Cost { per_frame: Duration::from_micros(per_frame), per_chunk: Duration::from_micros(per_chunk) }
}

/// Cost that causes no waits.
const LIGHT: Cost = cost_in_us(40, 8);

/// Lengths of all prompts.
pub(super) const PROMPT: Lengths = Lengths { min: 8, median: 400.0, sigma: 1.2, max: 6000 };
const ANSWER: Lengths = Lengths { min: 4, median: 80.0, sigma: 0.7, max: 600 };

/// Easily keeps up, and delivers all tokens so far.
const QUICK: TokenizerPhase =
    TokenizerPhase { mode: Mode::Cumulative, clients_add_up: false, cost: cost_in_us(300, 15) };
/// Needs 23 ms per frame of 128 requests.
const SLOW: TokenizerPhase = TokenizerPhase { cost: cost_in_us(1000, 170), ..QUICK };
/// Delivers only new tokens.
const DELTAS: TokenizerPhase = TokenizerPhase { mode: Mode::Incremental, cost: cost_in_us(300, 30), ..QUICK };
/// Delivers all tokens so far, to clients that treat them as new.
const ADDED_UP: TokenizerPhase = TokenizerPhase { clients_add_up: true, cost: cost_in_us(300, 50), ..QUICK };
/// Delivers only new tokens, at a cost too high for a frame every 10 ms.
const COSTLY_DELTAS: TokenizerPhase = TokenizerPhase { cost: cost_in_us(300, 250), ..DELTAS };
/// One request per frame.
const SMALL_FRAMES: TokenizerPhase = TokenizerPhase { cost: cost_in_us(60, 20), ..DELTAS };

impl Scenario {
    /// Description for the help.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Healthy => "Everything keeps up: scheduler, detokenizer, tokenizer",
            Self::SkipTokenizer => "No detokenizer (--skip-tokenizer-init): the scheduler sends to the tokenizer",
            Self::Backlog => "A tokenizer slower than the scheduler: first tokens wait, but nothing is lost",
            Self::Race => "A tokenizer that pauses, and keeps only the last queued chunk: tokens are lost",
            Self::Merge => "The same pauses on a release that merges queued chunks: nothing is lost",
            Self::Regression => "Alternates between inflated token counts and a tokenizer that cannot keep up",
            Self::Router => "Detokenizers behind a router, and tokenizer workers (--workers, default 2)",
            Self::TokenizerWorkers => "One detokenizer for several tokenizer workers (--workers, default 4)",
            Self::Detokenizers => {
                "Detokenizers that cannot keep up (--workers, default 4). With 8, their router is the bottleneck. Compare with `tokengap diff`"
            }
            Self::Uneven => {
                "Four detokenizers for two tokenizer workers, so two are idle. Some requests change detokenizer midway"
            }
            Self::DataParallel => "Data-parallel schedulers that share one detokenizer (--workers, default 4)",
            Self::Prefill => "The prefill server of a disaggregated pair: one frame per request, with its first token",
            Self::Decode => "The decode server of such a pair: its first frame has the token from prefill",
            Self::Sampling => {
                "Batch requests and parallel sampling (n > 1): one rid per prompt and sample, and one to warm up the cache"
            }
            Self::Vllm => {
                "vLLM: an engine core, and an API server that pauses. Waiting chunks are merged, and nothing is lost"
            }
            Self::SlowTokenisation => {
                "Images that take 1.2 to 2.5 s to prepare: requests reach the scheduler late, and TTFT is long"
            }
            Self::SchedulerStopped => {
                "A scheduler that freezes for 3 s: all streams pause, and requests wait on their way to it"
            }
            Self::Abandoned => "Clients that leave, whose aborts never reach the scheduler: it generates for nobody",
        }
    }

    pub(super) fn script(self) -> Script {
        Script { name: self.as_str().to_owned(), ..self.description() }
    }

    /// Everything but the name.
    fn description(self) -> Script {
        let load = DemoLoad {
            step: milliseconds(12),
            running: 64,
            open: 128,
            arrivals: 45.0,
            answer: ANSWER,
            burst: 1,
            aborts: 0.02,
            leavers: 0.0,
            preparation_ms: None,
            form: RequestForm::Single,
        };
        match self {
            Self::Healthy => Script {
                name: String::new(),
                engine: DemoEngine::Sglang(SglangRelease::V0_5_9),
                route: DETOKENIZER,
                load,
                router: LIGHT,
                detokenizer: LIGHT,
                strays: None,
                waiter: Waiter::KeepsLast,
                waiter_turns: Some(1),
                phases: &[QUICK],
                phase: milliseconds(1000),
                pauses: false,
                freezes: None,
            },
            Self::SkipTokenizer => Script { route: DIRECT, phases: &[DELTAS], ..Self::Healthy.description() },
            // As in the original report: a token every 13 ms, and up to 850 open requests.
            Self::Backlog => Script {
                route: DIRECT,
                load: DemoLoad { step: milliseconds(13), running: 128, open: 850, arrivals: 120.0, ..load },
                waiter_turns: Some(3),
                phases: &[SLOW],
                ..Self::Healthy.description()
            },
            Self::Race => Script {
                route: DIRECT,
                load: DemoLoad { step: milliseconds(10), running: 96, arrivals: 80.0, burst: 4, ..load },
                waiter_turns: Some(3),
                phases: &[DELTAS],
                pauses: true,
                ..Self::Healthy.description()
            },
            Self::Merge => Script {
                engine: DemoEngine::Sglang(SglangRelease::V0_5_10),
                waiter: Waiter::Merges,
                waiter_turns: Some(12),
                ..Self::Race.description()
            },
            Self::Regression => Script {
                engine: DemoEngine::Sglang(SglangRelease::V0_5_10),
                waiter: Waiter::Merges,
                route: DIRECT,
                load: DemoLoad { step: milliseconds(10), running: 96, arrivals: 80.0, ..load },
                waiter_turns: Some(3),
                phases: &[ADDED_UP, COSTLY_DELTAS],
                phase: milliseconds(2500),
                ..Self::Healthy.description()
            },
            Self::Router => Script {
                engine: DemoEngine::Sglang(SglangRelease::V0_5_13),
                route: ProcessCounts { detokenizers: 2, workers: 2, ..DIRECT },
                load: DemoLoad { step: milliseconds(25), running: 64, open: 96, arrivals: 20.0, ..load },
                waiter: Waiter::Merges,
                phases: &[SMALL_FRAMES],
                ..Self::Healthy.description()
            },
            Self::TokenizerWorkers => {
                Script { route: ProcessCounts { workers: 4, ..DETOKENIZER }, ..Self::Router.description() }
            }
            // Chunks per second: the load is 2,000, a detokenizer can process 200, the router 1,100.
            Self::Detokenizers => Script {
                route: ProcessCounts { detokenizers: 4, workers: 8, ..DIRECT },
                load: DemoLoad {
                    step: milliseconds(24),
                    running: 48,
                    open: 128,
                    arrivals: 500.0,
                    answer: Lengths { max: 24, median: 12.0, ..ANSWER },
                    ..load
                },
                router: cost_in_us(40, 900),
                detokenizer: cost_in_us(40, 5000),
                ..Self::Router.description()
            },
            Self::Uneven => Script {
                route: ProcessCounts { detokenizers: 4, workers: 2, ..DIRECT },
                strays: Some(20),
                ..Self::Router.description()
            },
            Self::DataParallel => Script {
                route: ProcessCounts { schedulers: 4, ..DETOKENIZER },
                load: DemoLoad { running: 20, arrivals: 12.0, ..load },
                ..Self::Healthy.description()
            },
            Self::Prefill => Script {
                route: DIRECT,
                load: DemoLoad {
                    arrivals: 200.0,
                    answer: Lengths { min: 1, max: 1, ..ANSWER },
                    aborts: 0.0,
                    form: RequestForm::Prefill,
                    ..load
                },
                phases: &[DELTAS],
                ..Self::Healthy.description()
            },
            Self::Decode => Self::SkipTokenizer.description(),
            Self::Sampling => {
                Script { load: DemoLoad { form: RequestForm::Groups, ..load }, ..Self::SkipTokenizer.description() }
            }
            Self::Vllm => Script {
                engine: DemoEngine::Vllm,
                load: DemoLoad {
                    step: milliseconds(10),
                    running: 96,
                    arrivals: 80.0,
                    // An aborted request stops appearing on the wire, so that only its client knows that it is over.
                    aborts: 0.0,
                    form: RequestForm::Chats,
                    ..load
                },
                waiter: Waiter::Merges,
                waiter_turns: None,
                ..Self::Race.description()
            },
            Self::SlowTokenisation => Script {
                load: DemoLoad { arrivals: 20.0, preparation_ms: Some(MsBounds { least: 1200, most: 2500 }), ..load },
                ..Self::Healthy.description()
            },
            Self::SchedulerStopped => Script {
                load: DemoLoad { arrivals: 18.0, running: 128, ..load },
                freezes: Some(Freezes {
                    first: milliseconds(2000),
                    length: milliseconds(3000),
                    interval: milliseconds(12_000),
                }),
                ..Self::Healthy.description()
            },
            // Responses that take 10 s.
            Self::Abandoned => Script {
                load: DemoLoad {
                    arrivals: 3.0,
                    answer: Lengths { median: 900.0, sigma: 0.2, max: 2000, ..ANSWER },
                    aborts: 0.0,
                    leavers: 0.25,
                    ..load
                },
                ..Self::Healthy.description()
            },
        }
    }

    /// The script of the scenario with a different number of the workers it is about; `None` if it is not about workers.
    pub(super) fn script_with_worker_count(self, workers: usize) -> Option<Script> {
        let script = self.script();
        let route = match self {
            Self::Router => ProcessCounts { detokenizers: workers, workers, ..script.route },
            Self::TokenizerWorkers => ProcessCounts { workers, ..script.route },
            Self::Detokenizers => ProcessCounts { detokenizers: workers, ..script.route },
            Self::DataParallel => ProcessCounts { schedulers: workers, ..script.route },
            _ => return None,
        };
        Some(Script { route, ..script })
    }
}
