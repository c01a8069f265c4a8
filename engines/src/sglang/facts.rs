//! Facts about SGLang for the analysis.

use trace::engine::{Behaviour, Drops, Facts, SentTime, SentTimes, StageNames, Version, VersionRange};

use super::NAME;
use super::releases::{DROPS_FIXED_IN, ReleaseBehaviour};

/// SGLang.
#[derive(Debug)]
pub struct SgLang;

/// First release whose `OpenAI` endpoints cut text with incremental output.
const CUTS_FROM: &str = "0.5.10";
/// First release whose `OpenAI` endpoints write all text with incremental output.
const CUTS_FIXED_IN: &str = "0.5.17";

/// First release that aborts every request whose client disconnected.
const ABANDONS_FIXED_IN: &str = "0.5.20";
/// The same for an unknown release.
const MAY_ABANDON: &str = "if the release is older than SGLang 0.5.20, upgrade (pull request 35255): before it, the abort of a request whose \
                           client disconnected may never reach the scheduler, and `/abort_request` has no effect; until then, limit \
                           `max_tokens`, or restart the server to free its slots";

/// First release with columns of times in its messages.
const TIME_COLUMNS_FROM: &str = "0.5.5";
/// First release with `time_stats` instead.
const TIME_STATS_FROM: &str = "0.5.10rc0";
/// Why times may be absent in an unknown release.
const MAY_SEND_TIMES: &str = "SGLang sends its own times from 0.5.5 on, and from 0.5.10 on only with --enable-metrics";

/// Stages in log lines (docs/reference/import.md).
const STAGES: StageNames = StageNames {
    first_sent: "first_output_stream",
    first_received: "tokenizer_first_token",
    first_delivered: "first_token_received",
    discarded: "output_after_state_deleted",
    ends: &["completion", "decode_completion", "request_finished", "decode_finished", "finish_logged"],
    order: &[
        "request_received",
        "receive_logged",
        "request_sent_to_scheduler",
        "api_server_dispatch_finish",
        "wait_queue_entry",
        "transfer_done",
        "waiting_to_running",
        "forward_entry",
        "prefill_finished",
        "first_token_generated",
        "first_output_stream",
        "output_send",
        "tokenizer_first_token",
        "tokenizer_event_set",
        "first_token_received",
        "response_sent_to_client",
        "completion",
        "decode_completion",
        "decode_finished",
        "request_finished",
        "finish_logged",
    ],
};

/// Stages of the two halves of a request: both servers receive it at once, so the halves overlap.
const STAGE_CHAINS: &[&[&str]] = &[
    &[
        "prefill_bootstrap_queue_entry",
        "prefill_bootstrap_done",
        "prefill_wait_queue_entry",
        "prefill_forward_entry",
        "prefill_completion",
    ],
    &[
        "decode_prealloc_queue_entry",
        "decode_bootstrap_done",
        "decode_transfer_queue_entry",
        "decode_wait_queue_entry",
        "decode_forward_entry",
        "decode_completion",
    ],
];

impl Facts for SgLang {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "SGLang"
    }

    fn behaviour(&self, version: &str) -> Behaviour {
        ReleaseBehaviour::of_version(version).behaviour
    }

    fn source(&self) -> &'static str {
        "scheduler"
    }

    fn receiver(&self) -> &'static str {
        "tokenizer"
    }

    /// `DEFAULT_FORCE_STREAM_INTERVAL` of `scheduler_output_processor_mixin.py`.
    fn unstreamed_tokens(&self) -> Option<u32> {
        Some(50)
    }

    fn health_check_prefix(&self) -> &'static str {
        "HEALTH_CHECK"
    }

    fn stages(&self) -> &'static StageNames {
        &STAGES
    }

    fn stage_chains(&self) -> &'static [&'static [&'static str]] {
        STAGE_CHAINS
    }

    fn checked_sender(&self) -> &'static str {
        "detokenizer"
    }

    /// Only the Rust server's hop has such waits.
    fn late_send(&self) -> &'static str {
        "the scheduler generates nothing while it passes a batch to its Rust server: either the queue between them is full, because a thread \
         of the server is stopped or slow (the busiest one is named), or another Python thread holds the GIL, which is not observed"
    }

    fn late_inside(&self) -> &'static str {
        "batches wait in a queue of the Rust server, whose threads share the scheduler's process and CPUs: if its busiest thread hardly \
         is waiting for a CPU, it is the bottleneck; if it does, give the process more cores; if none is busy, one of them is stopped or blocked"
    }

    /// Threads of the Rust server: one takes batches from the queue, and each of the others turns the tokens of its share of the requests
    /// into text.
    fn server_threads(&self) -> &'static [&'static str] {
        &["from-scheduler", "detokenizer"]
    }

    fn balance(&self) -> &'static str {
        "the detokenizer is selected by crc32 of the tokenizer worker's endpoint modulo the number of detokenizers: with few tokenizer \
         workers or an unlucky hash, some are idle; more tokenizer workers balance the load"
    }

    /// `TokenizerManager.create_abort_task`, a background task of each streamed response. It aborts only if its rid is in use.
    fn abort_delay_ns(&self) -> Option<u64> {
        Some(2_000_000_000)
    }

    /// Flags that relieve a busy process of this role. `runs_several`: whether the engine already runs several processes of the role.
    fn advice_for_busy_role(&self, role: &str, runs_several: bool) -> &'static str {
        match role {
            "tokenizer" if runs_several => {
                "a higher --tokenizer-worker-num adds more; a larger --stream-interval makes fewer and larger chunks"
            }
            "tokenizer" => {
                "--tokenizer-worker-num spreads its work over processes; a larger --stream-interval makes fewer and larger chunks"
            }
            "worker" => {
                "a higher --tokenizer-worker-num spreads its work; a larger --stream-interval makes fewer and larger chunks"
            }
            "detokenizer" if runs_several => {
                "a higher --detokenizer-worker-num adds more; a larger --stream-interval makes fewer and larger chunks"
            }
            "detokenizer" => {
                "--detokenizer-worker-num, where the release has it, spreads its work over processes; a larger --stream-interval makes \
                 fewer and larger chunks"
            }
            _ => "a larger --stream-interval makes fewer and larger chunks",
        }
    }

    fn queue_relief(&self) -> &'static str {
        "add replicas; a higher --max-running-requests or --mem-fraction-static makes room if memory allows (`#running-req` and `#queue-req` in \
         its log)"
    }

    fn late_receive(&self) -> &'static str {
        "the scheduler receives requests between its steps: a smaller --chunked-prefill-size shortens them"
    }

    /// `Scheduler.handle_generate_request` puts a request with a grammar that is not compiled yet into a queue of its own.
    fn late_intake(&self) -> &'static str {
        "the scheduler compiles the grammar of structured output before it queues a request, and queues requests between its steps: send the \
         same schema again rather than new ones, and a smaller --chunked-prefill-size shortens its steps"
    }

    fn drops(&self) -> Option<Drops> {
        Some(Drops { fixed_in: DROPS_FIXED_IN, flag: "--stream-output" })
    }

    /// Cause and fix of requests that go on without a client; empty if the release always aborts them. Up to 0.5.19, the tokenizer may
    /// delete the state of a request whose client disconnected, and then sends no abort, because the state is missing
    /// (sgl-project/sglang#36333, fixed by #35255).
    fn advice_on_abandoned_requests(&self, version: Option<&str>) -> &'static str {
        let range = version.and_then(|version| version.parse::<VersionRange>().ok());
        let fixed = ABANDONS_FIXED_IN.parse::<Version>().ok();
        // The release is not known.
        let (Some(range), Some(fixed)) = (range, fixed) else { return MAY_ABANDON };
        let is_surely_unfixed = range.last < fixed;
        let is_surely_fixed = range.first >= fixed;
        if is_surely_unfixed {
            "fixed in SGLang 0.5.20 (pull request 35255): before it, the abort of a request whose client disconnected may never reach the \
             scheduler, and `/abort_request` has no effect; until then, limit `max_tokens`, or restart the server to free its slots"
        } else if is_surely_fixed {
            ""
        } else {
            MAY_ABANDON
        }
    }

    /// Which of its own times the release sends: when a request enters the queue and a batch (the entries), and when its prefill ends. From
    /// 0.5.5 on, it sends columns of times, without a usable end of the prefill. From 0.5.10rc0 on, it sends `time_stats` instead.
    fn sent_times(&self, version: Option<&str>) -> SentTimes {
        let range = version.and_then(|version| version.parse::<VersionRange>().ok());
        let columns_from = TIME_COLUMNS_FROM.parse::<Version>().ok();
        let stats_from = TIME_STATS_FROM.parse::<Version>().ok();
        let (Some(range), Some(columns_from), Some(stats_from)) = (range, columns_from, stats_from) else {
            return SentTimes::both(SentTime::OnlyIf(MAY_SEND_TIMES));
        };
        let has_no_times = range.last < columns_from;
        let has_time_stats = range.first >= stats_from;
        let has_time_columns = range.first >= columns_from && range.last < stats_from;
        if has_no_times {
            SentTimes::both(SentTime::Never("SGLang sends its own times from 0.5.5 on"))
        } else if has_time_stats {
            SentTimes::both(SentTime::OnlyIf("SGLang sends its own times only with --enable-metrics"))
        } else if has_time_columns {
            SentTimes {
                entries: SentTime::Always,
                prefill_end: SentTime::Never(
                    "SGLang sends the end of the prefill by the monotonic clock from 0.5.10 on, with --enable-metrics",
                ),
            }
        } else {
            // The releases of the range differ.
            SentTimes::both(SentTime::OnlyIf(MAY_SEND_TIMES))
        }
    }

    /// The release that fixes an error which loses text, and the flag that exposes a server to it. The `OpenAI` endpoints cut new text by
    /// the length of the text before: chats in 0.5.10, completions up to 0.5.16. `None` for releases without the error.
    fn text_loss_of_release(&self, version: &str) -> Option<Drops> {
        let range: VersionRange = version.parse().ok()?;
        let first: Version = CUTS_FROM.parse().ok()?;
        let fixed: Version = CUTS_FIXED_IN.parse().ok()?;
        let cuts = first <= range.first && range.last < fixed;
        cuts.then_some(Drops { fixed_in: CUTS_FIXED_IN, flag: "--incremental-streaming-output" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_before_the_fix_are_said_to_abandon_requests() {
        for older in ["0.5.9", "0.5.19", "0.5.15..0.5.19"] {
            assert!(SgLang.advice_on_abandoned_requests(Some(older)).starts_with("fixed in SGLang 0.5.20"), "{older}");
        }
        for unknown in [None, Some("unknown"), Some("0.5.16..0.5.23")] {
            assert!(
                SgLang.advice_on_abandoned_requests(unknown).starts_with("if the release is older than SGLang 0.5.20"),
                "{unknown:?}"
            );
        }
        assert_eq!(
            [
                SgLang.advice_on_abandoned_requests(Some("0.5.20")),
                SgLang.advice_on_abandoned_requests(Some("0.5.20..0.5.23"))
            ],
            ["", ""]
        );
    }

    #[test]
    fn the_reason_for_absent_times_follows_from_the_release() {
        let never = |version| matches!(SgLang.sent_times(Some(version)).entries, SentTime::Never(_));
        assert!(never("0.5.4.post3") && never("0.4.0..0.5.3") && !never("0.5.5"));
        for columns in ["0.5.5", "0.5.9", "0.5.5.post2..0.5.6.post2"] {
            let SentTimes { entries, prefill_end } = SgLang.sent_times(Some(columns));
            assert!(entries == SentTime::Always && matches!(prefill_end, SentTime::Never(_)), "{columns}");
        }
        for stats in ["0.5.10rc0", "0.5.23", "0.5.12..0.5.13.post1"] {
            let SentTimes { entries, prefill_end } = SgLang.sent_times(Some(stats));
            assert!(entries == prefill_end && entries != SentTime::OnlyIf(MAY_SEND_TIMES), "{stats}");
        }
        for unknown in [None, Some("unknown"), Some("0.5.4..0.5.6"), Some("0.5.9..0.5.10")] {
            assert_eq!(SgLang.sent_times(unknown).entries, SentTime::OnlyIf(MAY_SEND_TIMES), "{unknown:?}");
        }
    }

    #[test]
    fn releases_that_cut_text_are_known() {
        let cuts = |version| SgLang.text_loss_of_release(version).is_some();
        assert!(cuts("0.5.10") && cuts("0.5.16") && cuts("0.5.12..0.5.13.post1"));
        assert!(!cuts("0.5.9") && !cuts("0.5.17") && !cuts("0.5.16..0.5.17") && !cuts("unknown"));
    }
}
