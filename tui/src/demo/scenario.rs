//! The scenarios: each is one description of an engine and its load, nothing more.

use std::time::Duration;

use trace::engine::{Mode, Waiter};

use super::encode::Release;

/// What the demo plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// Everything keeps up: scheduler, detokenizer, tokenizer.
    Healthy,
    /// The tokenizer is slower than the scheduler: first tokens wait for seconds, nothing is lost.
    Backlog,
    /// A tokenizer that keeps only the last queued chunk and pauses now and then: tokens are lost.
    Race,
    /// The same pauses on a release that merges queued chunks: nothing is lost, deliveries come in lumps.
    Coalesce,
    /// By turns: clients that add up cumulative output (inflated counts), and deltas that cost more than there is time for.
    Regression,
    /// Two detokenizers behind a router, two tokenizer workers: more hops, more frames.
    Router,
}

/// A scenario as data.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) name: &'static str,
    /// Whose frames the peers write.
    pub(super) release: Release,
    pub(super) route: Route,
    pub(super) load: Load,
    /// What a waiter does with several queued chunks.
    pub(super) waiter: Waiter,
    /// Loop turns from a waiter's wake-up call to its run: 3 inside `asyncio.wait_for` up to CPython 3.11, 1 from 3.12,
    /// more where another thread stands between. The loop takes a message every 2 turns.
    pub(super) waiter_turns: u8,
    /// Played in turn, for [`Self::phase`] each.
    pub(super) phases: &'static [Phase],
    pub(super) phase: Duration,
    /// The tokenizer's pauses: garbage collection, a long prompt being tokenized on the event loop.
    pub(super) pauses: Option<Pauses>,
}

/// The way of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Scheduler to tokenizer (`--skip-tokenizer-init`).
    Direct,
    /// Scheduler, detokenizer, tokenizer.
    Detokenizer,
    /// Scheduler, router, two detokenizers, two tokenizer workers.
    Router,
}

/// Requests and how the scheduler serves them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// From frame to frame.
    pub(super) step: Duration,
    /// Requests that run at once.
    pub(super) running: usize,
    /// Requests that clients have open at once; beyond it they wait with the next one.
    pub(super) open: usize,
    /// New requests a second.
    pub(super) arrivals: f64,
    pub(super) prompt: Lengths,
    pub(super) answer: Lengths,
    /// Most tokens a request gets in one step (speculative decoding above 1).
    pub(super) burst: u32,
    /// Share of requests whose client goes away half-way.
    pub(super) aborts: f64,
}

/// Log-normal lengths in tokens, cut off at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub(super) least: u32,
    pub(super) median: f64,
    pub(super) sigma: f64,
    pub(super) most: u32,
}

/// How the tokenizer hands tokens out for a while, and what it costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    /// What requests that begin in it are given.
    pub(super) mode: Mode,
    /// Their clients take everything for new tokens.
    pub(super) clients_add_up: bool,
    pub(super) per_frame: Duration,
    pub(super) per_chunk: Duration,
}

/// When the tokenizer's event loop stands still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// Mean time between them.
    pub(super) every: Duration,
    pub(super) least: Duration,
    pub(super) most: Duration,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

const PROMPT: Lengths = Lengths {
    least: 8,
    median: 400.0,
    sigma: 1.2,
    most: 8000,
};
const ANSWER: Lengths = Lengths {
    least: 4,
    median: 80.0,
    sigma: 0.7,
    most: 600,
};

/// Keeps up easily, and gives all tokens so far.
const QUICK: Phase = Phase {
    mode: Mode::Cumulative,
    clients_add_up: false,
    per_frame: us(300),
    per_chunk: us(15),
};
/// Needs 23 ms for a frame of 128 requests.
const SLOW: Phase = Phase {
    per_frame: us(1000),
    per_chunk: us(170),
    ..QUICK
};
/// New tokens only.
const DELTAS: Phase = Phase {
    mode: Mode::Incremental,
    per_chunk: us(30),
    ..QUICK
};
/// All tokens so far, to clients that take them for new ones.
const ADDED_UP: Phase = Phase {
    clients_add_up: true,
    per_chunk: us(50),
    ..QUICK
};
/// New tokens only, at a cost that a frame every 10 ms does not leave time for.
const COSTLY_DELTAS: Phase = Phase {
    per_chunk: us(250),
    ..DELTAS
};
/// One request a frame.
const SMALL_FRAMES: Phase = Phase {
    per_frame: us(60),
    per_chunk: us(20),
    ..DELTAS
};

impl Scenario {
    pub(super) fn script(self) -> Script {
        let load = Load {
            step: ms(12),
            running: 64,
            open: 128,
            arrivals: 45.0,
            prompt: PROMPT,
            answer: ANSWER,
            burst: 1,
            aborts: 0.02,
        };
        match self {
            Self::Healthy => Script {
                name: "healthy",
                release: Release::V0_5_9,
                route: Route::Detokenizer,
                load,
                waiter: Waiter::KeepsLast,
                waiter_turns: 1,
                phases: &[QUICK],
                phase: ms(1000),
                pauses: None,
            },
            // As in the report: a token every 13 ms, up to 850 requests open.
            Self::Backlog => Script {
                name: "backlog",
                route: Route::Direct,
                load: Load {
                    step: ms(13),
                    running: 128,
                    open: 850,
                    arrivals: 120.0,
                    ..load
                },
                waiter_turns: 3,
                phases: &[SLOW],
                ..Self::Healthy.script()
            },
            Self::Race => Script {
                name: "race",
                route: Route::Direct,
                load: Load {
                    step: ms(10),
                    running: 96,
                    arrivals: 80.0,
                    burst: 4,
                    ..load
                },
                waiter_turns: 3,
                phases: &[DELTAS],
                pauses: Some(Pauses {
                    every: ms(700),
                    least: ms(40),
                    most: ms(150),
                }),
                ..Self::Healthy.script()
            },
            Self::Coalesce => Script {
                name: "coalesce",
                release: Release::V0_5_10,
                waiter: Waiter::Merges,
                waiter_turns: 12,
                ..Self::Race.script()
            },
            Self::Regression => Script {
                name: "regression",
                release: Release::V0_5_10,
                waiter: Waiter::Merges,
                route: Route::Direct,
                load: Load {
                    step: ms(10),
                    running: 96,
                    arrivals: 80.0,
                    ..load
                },
                waiter_turns: 3,
                phases: &[ADDED_UP, COSTLY_DELTAS],
                phase: ms(2500),
                ..Self::Healthy.script()
            },
            Self::Router => Script {
                name: "router",
                release: Release::V0_5_13,
                route: Route::Router,
                load: Load {
                    step: ms(25),
                    running: 48,
                    open: 96,
                    arrivals: 20.0,
                    ..load
                },
                waiter: Waiter::Merges,
                phases: &[SMALL_FRAMES],
                ..Self::Healthy.script()
            },
        }
    }
}
