//! Proptest strategies: the configuration of a server, and a schedule of steps for its processes and its observer.

use proptest::collection::vec;
use proptest::prelude::*;
use trace::event::IdColumn;

use crate::told::Part;

/// How a waiter of the tokenizer treats queued chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    KeepsLast,
    YieldsAll,
    Merges,
    Cumulative,
}

/// The path from the schedulers to the tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// One hop.
    Direct,
    /// Through a detokenizer.
    Detokenizer,
    /// Through a detokenizer and a router to this many tokenizer workers, each with its own hop.
    Workers(u16),
}

/// Content of the token id column, and the layout's claim about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// New ids.
    New,
    /// All ids so far.
    All,
    /// New ids or all ids, with a layout that does not say which.
    NewUntold,
    AllUntold,
    /// No ids.
    Absent,
}

impl Column {
    /// Claim of the layout.
    pub(crate) fn claim(self) -> IdColumn {
        match self {
            Self::New => IdColumn::Delta,
            Self::All => IdColumn::Cumulative,
            Self::NewUntold | Self::AllUntold => IdColumn::Undecided,
            Self::Absent => IdColumn::Absent,
        }
    }

    /// Whether each chunk alone shows its own tokens, and so the number of tokens before it.
    pub(crate) fn shows_tokens(self) -> bool {
        self == Self::New
    }

    /// Number of ids listed for `part`; `None` without a column.
    pub(crate) fn listed(self, part: &Part) -> Option<u32> {
        match self {
            Self::New | Self::NewUntold => Some(part.tokens),
            Self::All | Self::AllUntold => Some(part.said),
            Self::Absent => None,
        }
    }
}

/// A server, and its observable stages.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the run, read by its name"
)]
pub(crate) struct Shape {
    pub(crate) policy: Policy,
    pub(crate) path: Path,
    pub(crate) column: Column,
    /// Number of schedulers, each with its own connection.
    pub(crate) ranks: u32,
    pub(crate) takes_seen: bool,
    pub(crate) deliveries_seen: bool,
    /// Whether the ends of responses are observed, and whether their tokens are counted.
    pub(crate) answers_seen: bool,
    pub(crate) answers_counted: bool,
    /// Events do not advance the clock.
    pub(crate) equal_stamps: bool,
    /// Number of steps before observation begins.
    pub(crate) attached_after: usize,
    /// Clients reuse a rid after its request is over.
    pub(crate) rids_again: bool,
    /// All requests have one of two rids, whether or not another one with it is live.
    pub(crate) rids_shared: bool,
}

/// Observation of a receiving process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Yes,
    No,
    /// Unobserved, and not identified either.
    Unknown,
}

/// Kind of observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Sends and receives of frames on the hops at this position of the path.
    Frames(usize),
    /// Receives only.
    Takes(usize),
    /// Content of frames.
    Content(usize),
    /// Deliveries.
    Deliveries,
    /// Ends of responses.
    Answers,
}

/// A step of the schedule. Most indices are reduced modulo the number of candidates.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A scheduler sends a frame: (request, new tokens, whether it finishes) each.
    Send { rank: u32, parts: Vec<(usize, u32, bool)> },
    /// An intermediate process receives frames and forwards each. `hop` selects one of the connections with queued frames.
    Pass { hop: usize, frames: u8 },
    /// A tokenizer receives frames of a connection in one wakeup.
    Take { lane: usize, frames: u8 },
    /// The waiter of a request wakes and serves its client.
    Serve { request: usize },
    /// A client disconnects: its waiter ends, and the scheduler aborts the request with its next chunk.
    Leave { request: usize },
    /// A scheduler retracts a request and computes its tokens again.
    Retract { request: usize },
    /// A request is aborted in the queue.
    AbortQueued { rank: u32 },
    /// The next frame of a scheduler is lost before it enters the hop.
    Cut { rank: u32 },
    /// The next `count` observations of a kind are missed. The source reports that at once, or with its next observation of the hop.
    Blind { what: Sight, count: u8, at_once: bool },
    /// Observation of a tokenizer worker starts or stops, or the worker can no longer be identified.
    Watch { worker: u16, sight: Watched },
    /// The engine restarts and loses all frames and requests.
    Restart,
    /// Time advances, in milliseconds.
    Wait(u32),
    /// The analysis gets a tick.
    Tick,
}

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![
        Policy::KeepsLast,
        Policy::YieldsAll,
        Policy::Merges,
        Policy::Cumulative,
    ])
}

fn columns() -> impl Strategy<Value = Column> {
    prop::sample::select(vec![
        Column::New,
        Column::All,
        Column::NewUntold,
        Column::AllUntold,
        Column::Absent,
    ])
}

fn paths() -> impl Strategy<Value = Path> {
    prop_oneof![
        Just(Path::Direct),
        Just(Path::Detokenizer),
        (1_u16..4).prop_map(Path::Workers)
    ]
}

/// Any server, observed completely and from its start.
pub(crate) fn watched() -> impl Strategy<Value = Shape> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let release = (policies(), columns());
    (release, paths(), 1_u32..4, flags).prop_map(|((policy, column), path, ranks, flags)| Shape {
        policy,
        path,
        column,
        ranks,
        takes_seen: true,
        deliveries_seen: true,
        answers_seen: flags.2,
        answers_counted: flags.3,
        equal_stamps: flags.0,
        attached_after: 0,
        // Counts alone do not show that another request has the rid.
        rids_again: flags.1 && column.shows_tokens(),
        rids_shared: false,
    })
}

/// Any server, with some stages possibly unobserved and observation possibly starting late.
pub(crate) fn glimpsed() -> impl Strategy<Value = Shape> {
    let late = prop_oneof![2 => Just(0_usize), 1 => 0_usize..80];
    let seen = (any::<bool>(), any::<bool>(), any::<bool>());
    (watched(), seen, late).prop_map(|(shape, seen, attached_after)| Shape {
        takes_seen: seen.0,
        deliveries_seen: seen.1,
        rids_again: seen.2,
        attached_after,
        ..shape
    })
}

/// Any server whose clients give live requests the same rid.
pub(crate) fn shared() -> impl Strategy<Value = Shape> {
    watched().prop_map(|shape| Shape {
        column: Column::New,
        rids_shared: true,
        ..shape
    })
}

/// A server whose chunks do not show their own tokens, observed from some later step on.
pub(crate) fn joined_late() -> impl Strategy<Value = Shape> {
    let vague = columns().prop_filter("it shows", |column| !column.shows_tokens());
    (glimpsed(), vague, 1_usize..80).prop_map(|(shape, column, attached_after)| Shape {
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
        6 => (0_usize..2, 1_u8..5).prop_map(|(hop, frames)| Step::Pass { hop, frames }),
        6 => (0_usize..4, 1_u8..5).prop_map(|(lane, frames)| Step::Take { lane, frames }),
        8 => request().prop_map(|request| Step::Serve { request }),
        1 => prop_oneof![0_u32..50, 0_u32..2_000, Just(31_000_u32)].prop_map(Step::Wait),
        2 => Just(Step::Tick),
    ]
    .boxed()
}

fn unusual() -> BoxedStrategy<Step> {
    prop_oneof![
        3 => request().prop_map(|request| Step::Leave { request }),
        1 => (0_u32..3).prop_map(|rank| Step::AbortQueued { rank }),
    ]
    .boxed()
}

fn blinding() -> BoxedStrategy<Step> {
    let what = prop_oneof![
        (0_usize..3).prop_map(Sight::Frames),
        (0_usize..3).prop_map(Sight::Takes),
        (0_usize..3).prop_map(Sight::Content),
        Just(Sight::Deliveries),
        Just(Sight::Answers),
    ];
    (what, 1_u8..6, any::<bool>())
        .prop_map(|(what, count, at_once)| Step::Blind { what, count, at_once })
        .boxed()
}

/// Changes in which tokenizers are observed.
fn watching() -> BoxedStrategy<Step> {
    let sight = prop::sample::select(vec![Watched::Yes, Watched::No, Watched::Unknown]);
    (0_u16..3, sight)
        .prop_map(|(worker, sight)| Step::Watch { worker, sight })
        .boxed()
}

/// Schedules in which observation of tokenizers starts and stops; the server may lose frames.
pub(crate) fn coming_and_going() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![36 => ordinary(), 2 => unusual(), 1 => trouble(), 4 => watching(), 1 => blinding()],
        1..250,
    )
}

/// Schedules of a healthy server.
pub(crate) fn healthy() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![20 => ordinary(), 1 => unusual()], 1..250)
}

/// Server faults: retractions, lost frames, restarts.
fn trouble() -> BoxedStrategy<Step> {
    prop_oneof![
        3 => request().prop_map(|request| Step::Retract { request }),
        2 => (0_u32..3).prop_map(|rank| Step::Cut { rank }),
        1 => Just(Step::Restart),
    ]
    .boxed()
}

/// Schedules with server faults, observed completely.
pub(crate) fn faulty() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![24 => ordinary(), 1 => unusual(), 1 => trouble()], 1..250)
}

/// Schedules with server faults and missed observations.
pub(crate) fn anything() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![24 => ordinary(), 1 => unusual(), 1 => trouble(), 2 => blinding()],
        1..250,
    )
}

/// Schedules with missed observations on a server that loses no frames.
pub(crate) fn blinded() -> impl Strategy<Value = Vec<Step>> {
    let retract = request().prop_map(|request| Step::Retract { request });
    vec(
        prop_oneof![48 => ordinary(), 2 => unusual(), 1 => retract, 4 => blinding()],
        1..250,
    )
}

/// Like [`anything`], with large chunks, so that counts pass the limit above which an observed first chunk counts as a late join.
pub(crate) fn long_chunks() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![8 => sends(40), 16 => ordinary(), 1 => unusual(), 1 => trouble(), 2 => blinding()],
        1..250,
    )
}
