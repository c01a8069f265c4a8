//! Fields of a batch in the simulated releases, in definition order, which is the order of the pickle.

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

impl Release {
    /// Value of `sglang.__version__`.
    pub(in crate::demo) fn version(self) -> &'static str {
        match self {
            Self::V0_5_9 => "0.5.9",
            Self::V0_5_10 => "0.5.10",
            Self::V0_5_13 => "0.5.13",
        }
    }

    /// Returns whether token ids are `array('q')` instead of lists.
    pub(super) fn packs_ids(self) -> bool {
        self == Self::V0_5_13
    }

    /// Returns whether the detokenizer copies the scheduler's load into its own batches.
    pub(super) fn text_carries_load(self) -> bool {
        self != Self::V0_5_13
    }

    /// Parts of a batch's field list, in order. `own` contains the fields that only one of the two classes has.
    pub(super) fn fields(self, own: &'static Own) -> [&'static [&'static str]; 8] {
        let (spec, tail): (&[_], _) = match self {
            Self::V0_5_9 => (&SPEC_0_5_9, own.tail_0_5_9),
            Self::V0_5_10 => (&SPEC_0_5_10, own.tail),
            Self::V0_5_13 => (&SPEC_0_5_13, own.tail),
        };
        let (indexer, timing): (&[_], &[_]) = match self {
            Self::V0_5_9 => (&[], &[]),
            Self::V0_5_10 => (&[], &TIMING),
            Self::V0_5_13 => (&["indexer_topk"], &TIMING),
        };
        [spec, own.head, tail, &LOGPROBS, &STATES, indexer, &REST, timing]
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

/// Fields of a batch class that the other class lacks or orders differently.
pub(super) struct Own {
    pub(super) class: &'static str,
    head: &'static [&'static str],
    tail_0_5_9: &'static [&'static str],
    tail: &'static [&'static str],
}

pub(super) const TOKEN_IDS: Own = Own {
    class: "BatchTokenIDOutput",
    head: &[
        "rids",
        "http_worker_ipcs",
        "finished_reasons",
        "decoded_texts",
        "decode_ids",
        "read_offsets",
        "output_ids",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "prompt_tokens",
    ],
    tail_0_5_9: &["completion_tokens", "cached_tokens"],
    tail: &["reasoning_tokens", "completion_tokens", "cached_tokens"],
};

pub(super) const TEXT: Own = Own {
    class: "BatchStrOutput",
    head: &["rids", "http_worker_ipcs", "finished_reasons", "output_strs", "output_ids", "prompt_tokens"],
    tail_0_5_9: &["completion_tokens", "cached_tokens"],
    tail: &["completion_tokens", "reasoning_tokens", "cached_tokens"],
};

const SPEC_0_5_9: [&str; 8] = [
    "spec_verify_ct",
    "spec_accepted_tokens",
    "spec_acceptance_histogram",
    "queue_time",
    "forward_entry_time",
    "prefill_launch_delay",
    "prefill_launch_latency",
    "prefill_finished_ts",
];
const SPEC_0_5_10: [&str; 3] = ["spec_verify_ct", "spec_accepted_tokens", "spec_acceptance_histogram"];
const SPEC_0_5_13: [&str; 3] = ["spec_verify_ct", "spec_num_correct_drafts", "spec_correct_drafts_histogram"];

const LOGPROBS: [&str; 12] = [
    "input_token_logprobs_val",
    "input_token_logprobs_idx",
    "output_token_logprobs_val",
    "output_token_logprobs_idx",
    "input_top_logprobs_val",
    "input_top_logprobs_idx",
    "output_top_logprobs_val",
    "output_top_logprobs_idx",
    "input_token_ids_logprobs_val",
    "input_token_ids_logprobs_idx",
    "output_token_ids_logprobs_val",
    "output_token_ids_logprobs_idx",
];

const STATES: [&str; 3] = ["output_token_entropy_val", "output_hidden_states", "routed_experts"];
const REST: [&str; 7] = [
    "placeholder_tokens_idx",
    "placeholder_tokens_val",
    "retraction_counts",
    "token_steps",
    "load",
    "customized_info",
    "cached_tokens_details",
];
const TIMING: [&str; 2] = ["dp_ranks", "time_stats"];

const LOAD: [&str; 4] = ["dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs"];
const LOAD_REST: [&str; 6] =
    ["max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate", "utilization", "max_running_requests"];
