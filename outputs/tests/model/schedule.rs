//! Proptest strategies: the configuration of a server, and a schedule of steps for its processes and its observer.

use proptest::collection::vec;
use proptest::prelude::*;
use trace::engine::{Mode, Waiter};
use trace::event::IdColumn;

use crate::events::Part;

/// How a waiter of the tokenizer treats queued chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    #[default]
    KeepsLast,
    YieldsAll,
    Merges,
    Cumulative,
}

impl Policy {
    /// Output mode and waiter that the source reports.
    pub(crate) fn behaviour(self) -> (Mode, Waiter) {
        match self {
            Self::KeepsLast => (Mode::Incremental, Waiter::KeepsLast),
            Self::YieldsAll => (Mode::Incremental, Waiter::YieldsAll),
            Self::Merges => (Mode::Incremental, Waiter::Merges),
            Self::Cumulative => (Mode::Cumulative, Waiter::KeepsLast),
        }
    }
}

/// The path from the schedulers to the tokenizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Path {
    #[default]
    Direct,
    /// Through a detokenizer.
    Detokenizer,
    /// Through a detokenizer and a router to this many tokenizer workers, each with its own hop.
    Workers(u16),
}

/// Content of the token id column, and its declaration in the layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Column {
    #[default]
    New,
    All,
    /// New ids or all ids, with a layout that does not say which.
    NewUndeclared,
    AllUndeclared,
    Absent,
}

impl Column {
    pub(crate) fn declared(self) -> IdColumn {
        match self {
            Self::New => IdColumn::Delta,
            Self::All => IdColumn::Cumulative,
            Self::NewUndeclared | Self::AllUndeclared => IdColumn::Undecided,
            Self::Absent => IdColumn::Absent,
        }
    }

    /// Whether a chunk by itself shows its own tokens, and therefore the number of tokens before it.
    pub(crate) fn shows_tokens(self) -> bool {
        self == Self::New
    }

    /// Number of ids listed for `part`; `None` without a column.
    pub(crate) fn listed(self, part: &Part) -> Option<u32> {
        match self {
            Self::New | Self::NewUndeclared => Some(part.tokens),
            Self::All | Self::AllUndeclared => Some(part.reported),
            Self::Absent => None,
        }
    }
}

/// A server, and its observable stages.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the run, read by its name")]
pub(crate) struct Shape {
    pub(crate) policy: Policy,
    pub(crate) path: Path,
    pub(crate) column: Column,
    /// Number of schedulers, each with its own connection.
    pub(crate) ranks: u32,
    pub(crate) receives_observed: bool,
    pub(crate) deliveries_observed: bool,
    /// Whether the ends of responses are observed, and whether their tokens are counted.
    pub(crate) answers_observed: bool,
    pub(crate) answers_counted: bool,
    /// Events do not advance the clock.
    pub(crate) equal_timestamps: bool,
    /// Number of steps before observation begins.
    pub(crate) attached_after: usize,
    /// Clients reuse a rid after its request is over.
    pub(crate) rids_reused: bool,
    /// All requests use one of two rids, even while another request with it is live.
    pub(crate) rids_shared: bool,
}

/// Visibility of a receiving process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    Observed,
    Unobserved,
    /// Unobserved, and not identified either.
    Unidentified,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Observation {
    /// Sends and receives of frames on the hops at this position of the path.
    Frames(usize),
    Receives(usize),
    Content(usize),
    Deliveries,
    Answers,
}

/// A step of the schedule. Most indices are reduced modulo the number of candidates.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A scheduler sends a frame: (request, new tokens, whether it finishes) each.
    Send {
        rank: u32,
        parts: Vec<(usize, u32, bool)>,
    },
    /// An intermediate process receives frames and forwards each. `hop` selects one of the connections with queued frames.
    Forward {
        hop: usize,
        frames: u8,
    },
    /// A tokenizer receives frames of a connection in one wakeup.
    Receive {
        lane: usize,
        frames: u8,
    },
    /// The waiter of a request wakes and serves its client.
    Serve {
        request: usize,
    },
    /// A client disconnects: its waiter ends, and the scheduler aborts the request with its next chunk.
    Disconnect {
        request: usize,
    },
    /// A scheduler retracts a request and computes its tokens again.
    Retract {
        request: usize,
    },
    AbortQueued {
        rank: u32,
    },
    /// The next frame of a scheduler is lost before it enters the hop.
    LoseFrame {
        rank: u32,
    },
    /// The next `count` observations of a kind are missed. The source reports that at once, or with its next observation of the hop.
    Miss {
        kind: Observation,
        count: u8,
        at_once: bool,
    },
    /// Observation of a tokenizer worker starts or stops, or the worker can no longer be identified.
    SetVisibility {
        worker: u16,
        visibility: Visibility,
    },
    /// The engine restarts and loses all frames and requests.
    Restart,
    /// Time advances, in milliseconds.
    Wait(u32),
    Tick,
}

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![Policy::KeepsLast, Policy::YieldsAll, Policy::Merges, Policy::Cumulative])
}

fn columns() -> impl Strategy<Value = Column> {
    prop::sample::select(vec![Column::New, Column::All, Column::NewUndeclared, Column::AllUndeclared, Column::Absent])
}

fn paths() -> impl Strategy<Value = Path> {
    prop_oneof![Just(Path::Direct), Just(Path::Detokenizer), (1_u16..4).prop_map(Path::Workers)]
}

/// Any server, observed completely and from its start.
pub(crate) fn fully_observed() -> impl Strategy<Value = Shape> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let release = (policies(), columns());
    (release, paths(), 1_u32..4, flags).prop_map(|((policy, column), path, ranks, flags)| Shape {
        policy,
        path,
        column,
        ranks,
        receives_observed: true,
        deliveries_observed: true,
        answers_observed: flags.2,
        answers_counted: flags.3,
        equal_timestamps: flags.0,
        attached_after: 0,
        // Counts alone do not show that another request has the rid.
        rids_reused: flags.1 && column.shows_tokens(),
        rids_shared: false,
    })
}

/// One hop from the scheduler to the tokenizer with new ids, observed completely. No rid is reused.
pub(crate) fn direct() -> impl Strategy<Value = Shape> {
    fully_observed().prop_map(|shape| Shape { path: Path::Direct, column: Column::New, rids_reused: false, ..shape })
}

/// Any server, with some stages possibly unobserved and observation possibly starting late.
pub(crate) fn partly_observed() -> impl Strategy<Value = Shape> {
    let late = prop_oneof![2 => Just(0_usize), 1 => 0_usize..80];
    let observed = (any::<bool>(), any::<bool>(), any::<bool>());
    (fully_observed(), observed, late).prop_map(|(shape, observed, attached_after)| Shape {
        receives_observed: observed.0,
        deliveries_observed: observed.1,
        rids_reused: observed.2,
        attached_after,
        ..shape
    })
}

/// Any server whose clients give live requests the same rid.
pub(crate) fn shared_rids() -> impl Strategy<Value = Shape> {
    fully_observed().prop_map(|shape| Shape { column: Column::New, rids_shared: true, ..shape })
}

/// A server whose chunks do not show their own tokens, observed from some later step on.
pub(crate) fn joined_late() -> impl Strategy<Value = Shape> {
    let ambiguous = columns().prop_filter("the column does not show tokens", |column| !column.shows_tokens());
    (partly_observed(), ambiguous, 1_usize..80).prop_map(|(shape, column, attached_after)| Shape {
        column,
        attached_after,
        ..shape
    })
}

fn request() -> impl Strategy<Value = usize> {
    0_usize..9
}

/// Frames with up to `tokens` new tokens per request.
fn sends(tokens: u32) -> impl Strategy<Value = Step> {
    let part = (0_usize..3, 0_u32..=tokens, prop::bool::weighted(0.06));
    (0_u32..3, vec(part, 1..4)).prop_map(|(rank, parts)| Step::Send { rank, parts })
}

fn ordinary() -> BoxedStrategy<Step> {
    prop_oneof![
        8 => sends(4),
        6 => (0_usize..2, 1_u8..5).prop_map(|(hop, frames)| Step::Forward { hop, frames }),
        6 => (0_usize..4, 1_u8..5).prop_map(|(lane, frames)| Step::Receive { lane, frames }),
        8 => request().prop_map(|request| Step::Serve { request }),
        1 => prop_oneof![0_u32..50, 0_u32..2_000, Just(31_000_u32)].prop_map(Step::Wait),
        2 => Just(Step::Tick),
    ]
    .boxed()
}

fn unusual() -> BoxedStrategy<Step> {
    prop_oneof![
        3 => request().prop_map(|request| Step::Disconnect { request }),
        1 => (0_u32..3).prop_map(|rank| Step::AbortQueued { rank }),
    ]
    .boxed()
}

fn missed_observation() -> BoxedStrategy<Step> {
    let kind = prop_oneof![
        (0_usize..3).prop_map(Observation::Frames),
        (0_usize..3).prop_map(Observation::Receives),
        (0_usize..3).prop_map(Observation::Content),
        Just(Observation::Deliveries),
        Just(Observation::Answers),
    ];
    (kind, 1_u8..6, any::<bool>()).prop_map(|(kind, count, at_once)| Step::Miss { kind, count, at_once }).boxed()
}

fn visibility_change() -> BoxedStrategy<Step> {
    let visibility = prop::sample::select(vec![Visibility::Observed, Visibility::Unobserved, Visibility::Unidentified]);
    (0_u16..3, visibility).prop_map(|(worker, visibility)| Step::SetVisibility { worker, visibility }).boxed()
}

/// Schedules in which observation of tokenizers starts and stops; the server may lose frames.
pub(crate) fn visibility_changes() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![36 => ordinary(), 2 => unusual(), 1 => server_fault(), 4 => visibility_change(), 1 => missed_observation()],
        1..250,
    )
}

pub(crate) fn healthy() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![20 => ordinary(), 1 => unusual()], 1..250)
}

/// Schedules of a healthy server that retracts requests, whose clients stay.
pub(crate) fn retracting() -> impl Strategy<Value = Vec<Step>> {
    let retract = request().prop_map(|request| Step::Retract { request });
    vec(prop_oneof![20 => ordinary(), 1 => retract], 1..250)
}

/// Schedules of a server that only loses frames.
pub(crate) fn lossy() -> impl Strategy<Value = Vec<Step>> {
    let lose = (0_u32..3).prop_map(|rank| Step::LoseFrame { rank });
    vec(prop_oneof![20 => ordinary(), 1 => unusual(), 1 => lose], 1..250)
}

fn server_fault() -> BoxedStrategy<Step> {
    prop_oneof![
        3 => request().prop_map(|request| Step::Retract { request }),
        2 => (0_u32..3).prop_map(|rank| Step::LoseFrame { rank }),
        1 => Just(Step::Restart),
    ]
    .boxed()
}

/// Schedules with server faults, observed completely.
pub(crate) fn faulty() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![24 => ordinary(), 1 => unusual(), 1 => server_fault()], 1..250)
}

pub(crate) fn faulty_with_misses() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![24 => ordinary(), 1 => unusual(), 1 => server_fault(), 2 => missed_observation()], 1..250)
}

/// Schedules with missed observations on a server that loses no frames.
pub(crate) fn healthy_with_misses() -> impl Strategy<Value = Vec<Step>> {
    let retract = request().prop_map(|request| Step::Retract { request });
    vec(prop_oneof![48 => ordinary(), 2 => unusual(), 1 => retract, 4 => missed_observation()], 1..250)
}

/// Like [`faulty_with_misses`], with large chunks, so that counts pass the limit above which an observed first chunk counts as a late join.
pub(crate) fn large_chunks() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![8 => sends(40), 16 => ordinary(), 1 => unusual(), 1 => server_fault(), 2 => missed_observation()],
        1..250,
    )
}
