//! Fields of a batch in the simulated releases, in definition order, which is the order of the pickle.

use std::sync::LazyLock;

use engines::sglang::wire::fields;

/// A release whose output the demo can write. The frames differ: the second release has no timing columns, the third packs token ids into
/// `array('q')`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::demo) enum Release {
    /// Last release whose waiters keep only one chunk.
    V0_5_9,
    /// First release whose waiters merge queued chunks.
    V0_5_10,
    /// Has several detokenizers behind a router.
    V0_5_13,
}

/// Values of `sglang.__version__`.
const VERSIONS: [&str; 3] = ["0.5.9", "0.5.10", "0.5.13"];

/// Class of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    TokenIds,
    Text,
}

const CLASSES: [&str; 2] = ["BatchTokenIDOutput", "BatchStrOutput"];

/// By release and class.
static FIELDS: LazyLock<[[&[&str]; 2]; 3]> = LazyLock::new(|| {
    VERSIONS.map(|version| CLASSES.map(|class| fields(class, version).expect("the table has this release")))
});

const LOAD: [&str; 4] = ["dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs"];
const LOAD_REST: [&str; 6] =
    ["max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate", "utilization", "max_running_requests"];

impl Release {
    pub(in crate::demo) fn version(self) -> &'static str {
        VERSIONS[self as usize]
    }

    /// Returns whether token ids are `array('q')` instead of lists.
    pub(super) fn packs_ids(self) -> bool {
        self == Self::V0_5_13
    }

    /// Returns whether the detokenizer copies the scheduler's load into its own batches.
    pub(super) fn text_carries_load(self) -> bool {
        self != Self::V0_5_13
    }

    /// Fields of a batch.
    pub(super) fn fields(self, class: Class) -> &'static [&'static str] {
        FIELDS[self as usize][class as usize]
    }

    /// Fields of `GetLoadsReqOutput` up to the first that is `None` on a server without metrics.
    pub(super) fn load_fields(self) -> [&'static [&'static str]; 3] {
        let tokens: &[_] = match self {
            Self::V0_5_9 | Self::V0_5_10 => &["num_used_tokens"],
            Self::V0_5_13 => &["num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens"],
        };
        [&LOAD, tokens, &LOAD_REST]
    }
}

impl Class {
    pub(super) fn name(self) -> &'static str {
        CLASSES[self as usize]
    }
}
