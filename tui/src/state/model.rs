//! What the screen shows, as plain values read from the analysis a few times a second.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use trace::ThreadId;
use trace::detect::Severity;
use trace::ledger::Summary;
use trace::report::bar::Segment;

use super::history::{History, HopSample, Sample, ThreadSample};
use super::hot::HotTable;
use super::pods::PodLine;
use super::query::Query;
use super::request::{Detail, HopEnds};
use super::row::Row;
use super::table::Table;
use super::threads::ThreadLine;
use super::ui::Sort;
use crate::replay::Position;
use crate::sink::Writing;

/// How something is doing. The order is the order of alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Health {
    /// Nothing can be said.
    #[default]
    Unknown,
    /// Nothing is wrong.
    Good,
    /// Worth knowing.
    Info,
    /// Worth a look.
    Warning,
    /// Users feel it.
    Critical,
}

impl Health {
    /// From the least alarming on.
    pub(crate) const ALL: [Self; 5] = [Self::Good, Self::Info, Self::Warning, Self::Critical, Self::Unknown];

    /// The word that stands beside the colour.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unseen",
            Self::Good => "ok",
            Self::Info => "info",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
        }
    }
}

impl From<Severity> for Health {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Info,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

/// Everything that is shown. `None` in any part is "not observable with what is attached".
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// The source: `demo`, `tap`.
    pub(crate) source: String,
    /// How far the run has come: `live`, `ending`, `ended`.
    pub(crate) doing: &'static str,
    /// What is known of the engine, in words.
    pub(crate) engine: String,
    /// Since the first event.
    pub(crate) running_ns: u64,
    pub(crate) verdict: Verdict,
    pub(crate) flow: Flow,
    pub(crate) gap: GapLine,
    pub(crate) chunks: ChunkSums,
    pub(crate) itl: Itl,
    /// Hops of one name as one, in the order of the path.
    pub(crate) hops: Vec<HopLine>,
    pub(crate) ends: Vec<HopEnds>,
    /// Where the time of first tokens went over the run.
    pub(crate) path: Vec<Segment>,
    pub(crate) table: Table,
    /// Finished requests that the ledger keeps and the table leaves out.
    pub(crate) rows_left_out: u64,
    /// Finished requests that only the totals know of: no filter finds them.
    pub(crate) rows_forgotten: u64,
    /// Pinned requests that are over, by rid, for when the ledger has forgotten them.
    pub(crate) pinned: BTreeMap<String, Summary>,
    pub(crate) detail: Option<Detail>,
    pub(crate) findings: Vec<FindingLine>,
    /// The engine's threads; `None` where they are not watched.
    pub(crate) threads: Option<Vec<ThreadLine>>,
    /// The functions they ran in, by role; empty where no stacks are read.
    pub(crate) hot: Vec<HotTable>,
    pub(crate) own: Own,
    /// Where a recording is played; `None` on live sources.
    pub(crate) position: Option<Position>,
    /// What is being written of the run.
    pub(crate) writing: Writing,
    /// The runs that are watched from elsewhere, and which of them this is; none on other sources.
    pub(crate) pods: Vec<PodLine>,
    pub(crate) pod: usize,
    pub(crate) history: History<Sample>,
    /// By the hops' name.
    pub(crate) hop_history: HashMap<String, History<HopSample>>,
    pub(crate) thread_history: HashMap<ThreadId, History<ThreadSample>>,
    /// Wall clock at the start of the run, in nanoseconds since the epoch; `None` where it is not known.
    pub(crate) wall_start_ns: Option<u64>,
    /// Chunks merged and lost when the newest second of the history began.
    pub(super) harm_before: Option<Harm>,
    /// And when the history was last entered.
    pub(super) harm: Option<Harm>,
}

/// The worst there is to say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) health: Health,
    pub(crate) text: String,
}

/// Chunks that did not leave by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Harm {
    pub(crate) merged: u64,
    pub(crate) lost: u64,
}

/// What passes now, and what has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flow {
    pub(crate) tokens_per_s: f64,
    pub(crate) frames_per_s: f64,
    pub(crate) chunks_per_s: f64,
    pub(crate) live: u64,
    pub(crate) seen: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) tokens_sent: u64,
    pub(crate) tokens_taken: Option<u64>,
    pub(crate) tokens_delivered: Option<u64>,
}

/// A distribution of nanoseconds in brief.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// The first-token gap: the last ten seconds against the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GapLine {
    /// Sends and takes are both seen, so that there can be one.
    pub(crate) seen: bool,
    pub(crate) window: Option<Spread>,
    pub(crate) whole: Option<Spread>,
    pub(crate) worst_rid: String,
    /// Requests whose first token is waiting now, and the longest wait so far.
    pub(crate) open: Option<(u64, u64)>,
}

/// What became of chunks, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkSums {
    pub(crate) sent: u64,
    pub(crate) taken: Option<u64>,
    pub(crate) delivered: Option<u64>,
    pub(crate) coalesced: Option<u64>,
    pub(crate) dropped: Option<u64>,
    pub(crate) tokens_lost: Option<u64>,
    pub(crate) dropped_predicted: Option<u64>,
    pub(crate) coalesced_predicted: Option<u64>,
    pub(crate) missing_on_wire: u64,
}

/// Inter-token latency over the whole run: the 50th, 90th and 99th percentile in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Itl {
    /// As the engine sent.
    pub(crate) sent: Option<[u64; 3]>,
    /// As the client was given; `None` where deliveries are not seen.
    pub(crate) client: Option<[u64; 3]>,
}

/// Hops of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HopLine {
    pub(crate) name: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) health: Health,
    pub(crate) frames_per_s: f64,
    pub(crate) chunks_per_s: f64,
    pub(crate) bytes_per_s: f64,
    pub(crate) frames: u64,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    pub(crate) undecoded: u64,
    /// Why frames could not be read, and how many.
    pub(crate) reasons: Vec<(String, u64)>,
    pub(crate) backlog: Option<u64>,
    pub(crate) backlog_max: Option<u64>,
    /// How long the frame at the head of the queue has waited.
    pub(crate) oldest_ns: Option<u64>,
    pub(crate) residence: Option<Spread>,
    /// Frames by residence over the whole run, in the classes of [`CLASSES`].
    pub(crate) residence_classes: Vec<u64>,
    pub(crate) relay: Option<Spread>,
    pub(crate) handling: Option<Spread>,
    /// How long the receiving process keeps a chunk before it sends it on; `None` at the end of the path.
    pub(crate) inside: Option<Spread>,
    /// Share of the run for which receivers had a frame in hand.
    pub(crate) busy: Option<f64>,
    pub(crate) wakeup_frames_max: Option<u64>,
    /// Bytes in the receivers' kernel queues: now, and the most there were.
    pub(crate) kernel_bytes: Option<(u64, u64)>,
    /// The most frames in libzmq's own queues, behind the kernel's.
    pub(crate) inbox_max: Option<u64>,
    /// The hops behind the line.
    pub(crate) members: Vec<Member>,
}

/// Upper bounds of the classes of a residence histogram, in nanoseconds; the last class has none.
pub(crate) const CLASSES: [u64; 7] = [
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    5_000_000_000,
    20_000_000_000,
];

/// One of several hops of a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Member {
    pub(crate) worker: Option<u16>,
    pub(crate) endpoint: String,
    pub(crate) frames: u64,
    pub(crate) chunks: u64,
    pub(crate) backlog: Option<u64>,
    /// Share of the run for which it had a frame in hand.
    pub(crate) busy: Option<f64>,
}

/// A finding as shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FindingLine {
    pub(crate) kind: String,
    pub(crate) health: Health,
    /// The last look still found it.
    pub(crate) active: bool,
    /// When it began, from the start of the run.
    pub(crate) at_ns: u64,
    pub(crate) summary: String,
    pub(crate) hop: String,
    pub(crate) rid: String,
    /// The numbers by name, in words.
    pub(crate) evidence: Vec<(String, String)>,
    pub(crate) advice: Option<String>,
}

/// What watching costs, and what it missed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Own {
    /// Share of one core over the last second.
    pub(crate) cpu: Option<f64>,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) events: u64,
    pub(crate) missed: u64,
    pub(crate) undecoded: u64,
    /// What could not be watched, or was given up, each with the line that fixes it where there is one.
    pub(crate) degraded: Vec<String>,
}

impl Model {
    /// Puts the table's rows in the order the reader asked for.
    pub(crate) fn arrange(&mut self, filter: &Query, sort: Sort, pins: &BTreeSet<String>) {
        self.table.arrange(filter, sort, pins);
    }

    /// The row shown at `place`.
    pub(crate) fn visible(&self, place: usize) -> Option<&Row> {
        self.table.visible(place)
    }

    /// How many rows are shown.
    pub(crate) fn visible_count(&self) -> usize {
        self.table.visible_count()
    }

    /// Where `rid` is shown.
    pub(crate) fn place(&self, rid: &str) -> Option<usize> {
        self.table.place(rid)
    }

    /// The worst request shown; `None` when nothing is wrong with any.
    pub(crate) fn worst(&self) -> Option<&Row> {
        self.table.worst()
    }
}
