//! What can happen, as proptest makes it up: the shape of a server, and a schedule of steps that its processes and we go through.

use proptest::collection::vec;
use proptest::prelude::*;
use trace::event::IdColumn;

use crate::told::Part;

/// What a waiter of the tokenizer does with the chunks that it finds queued.
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
    /// By a detokenizer.
    Detokenizer,
    /// By a detokenizer and a router to this many tokenizer workers, each with a hop of its own.
    Workers(u16),
}

/// What a release puts into the column of token ids, and what its layout says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// The new ones.
    New,
    /// All so far.
    All,
    /// Either, of a layout that does not tell.
    NewUntold,
    AllUntold,
    /// Nothing.
    Absent,
}

impl Column {
    /// What the layout says.
    pub(crate) fn claim(self) -> IdColumn {
        match self {
            Self::New => IdColumn::Delta,
            Self::All => IdColumn::Cumulative,
            Self::NewUntold | Self::AllUntold => IdColumn::Undecided,
            Self::Absent => IdColumn::Absent,
        }
    }

    /// Whether any chunk by itself shows which tokens are its own, and so how many came before it.
    pub(crate) fn shows_tokens(self) -> bool {
        self == Self::New
    }

    /// How many ids stand there for `part`.
    pub(crate) fn listed(self, part: &Part) -> Option<u32> {
        match self {
            Self::New | Self::NewUntold => Some(part.tokens),
            Self::All | Self::AllUntold => Some(part.said),
            Self::Absent => None,
        }
    }
}

/// A server, and what of it can be observed at all.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the run, read by its name"
)]
pub(crate) struct Shape {
    pub(crate) policy: Policy,
    pub(crate) path: Path,
    pub(crate) column: Column,
    /// Schedulers, each with a connection of its own.
    pub(crate) ranks: u32,
    pub(crate) takes_seen: bool,
    pub(crate) deliveries_seen: bool,
    /// The ends of answers, and whether their tokens can be counted.
    pub(crate) answers_seen: bool,
    pub(crate) answers_counted: bool,
    /// The clock does not move between two events.
    pub(crate) equal_stamps: bool,
    /// Steps that are over when observation begins.
    pub(crate) attached_after: usize,
    /// Clients use a rid again once its request is over.
    pub(crate) rids_again: bool,
}

/// What is known of a process that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Yes,
    No,
    /// Nor is it known who receives.
    Unknown,
}

/// Which observations are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Frames, send and take, on the hop of this place of the path.
    Frames(usize),
    /// Their takes alone.
    Takes(usize),
    /// What frames say, on this hop.
    Content(usize),
    /// Deliveries.
    Deliveries,
    /// Ends of answers.
    Answers,
}

/// What happens next. Numbers choose among what there is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A scheduler sends a frame: (request, new tokens, whether it finishes) each.
    Send { rank: u32, parts: Vec<(usize, u32, bool)> },
    /// A process on the way takes frames of the hop at this place of the path and sends each on.
    Pass { hop: usize, frames: u8 },
    /// A tokenizer takes frames of a connection in one wakeup.
    Take { lane: usize, frames: u8 },
    /// The waiter of a request wakes and serves its client.
    Serve { request: usize },
    /// A client leaves: its waiter is gone, and the scheduler ends the request with its next chunk.
    Leave { request: usize },
    /// A scheduler retracts a request, which computes its tokens again.
    Retract { request: usize },
    /// A request is aborted before it has run.
    AbortQueued { rank: u32 },
    /// The next frame of a scheduler never leaves it.
    Cut { rank: u32 },
    /// The next observations of a sort are lost; whether the source says so at once, or when it next sees the hop.
    Blind { what: Sight, count: u8, at_once: bool },
    /// A tokenizer, by its number, is watched from now on, or no more: by its own end, or because who receives is not known.
    Watch { worker: u16, sight: Watched },
    /// The engine is restarted: what was in it is gone.
    Restart,
    /// Time passes, in milliseconds.
    Wait(u32),
    /// The analysis looks.
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

/// Any server of which everything is seen, from its beginning.
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
    })
}

/// Any server of which some stages may not be seen, perhaps from its middle on.
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

/// A server whose chunks do not show what came before them, seen from its middle on.
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

/// Frames of up to so many new tokens a request.
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

/// Tokenizers that are watched for a while only.
fn watching() -> BoxedStrategy<Step> {
    let sight = prop::sample::select(vec![Watched::Yes, Watched::No, Watched::Unknown]);
    (0_u16..3, sight)
        .prop_map(|(worker, sight)| Step::Watch { worker, sight })
        .boxed()
}

/// A server whose processes come and go in our sight, and which is well; or not.
pub(crate) fn coming_and_going() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![36 => ordinary(), 2 => unusual(), 1 => trouble(), 4 => watching(), 1 => blinding()],
        1..250,
    )
}

/// What a healthy server does.
pub(crate) fn healthy() -> impl Strategy<Value = Vec<Step>> {
    vec(prop_oneof![20 => ordinary(), 1 => unusual()], 1..250)
}

/// A server in trouble: frames that vanish, retractions, a restart.
fn trouble() -> BoxedStrategy<Step> {
    prop_oneof![
        3 => request().prop_map(|request| Step::Retract { request }),
        2 => (0_u32..3).prop_map(|rank| Step::Cut { rank }),
        1 => Just(Step::Restart),
    ]
    .boxed()
}

/// Whatever can happen to it, and to us.
pub(crate) fn anything() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![24 => ordinary(), 1 => unusual(), 1 => trouble(), 2 => blinding()],
        1..250,
    )
}

/// Whatever can happen to us, while the server is well: no wire loses anything.
pub(crate) fn blinded() -> impl Strategy<Value = Vec<Step>> {
    let retract = request().prop_map(|request| Step::Retract { request });
    vec(
        prop_oneof![48 => ordinary(), 2 => unusual(), 1 => retract, 4 => blinding()],
        1..250,
    )
}

/// A server that sends many tokens at once, and whatever can happen to it, and to us: counts come to where a first chunk seen is no
/// more taken for a beginning, and pass it.
pub(crate) fn long_chunks() -> impl Strategy<Value = Vec<Step>> {
    vec(
        prop_oneof![8 => sends(40), 16 => ordinary(), 1 => unusual(), 1 => trouble(), 2 => blinding()],
        1..250,
    )
}
