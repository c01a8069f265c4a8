//! Facts about SGLang for the analysis.

use trace::engine::{Behaviour, Drops, Facts, StageNames};

use super::NAME;
use super::releases::{DROPS_FIXED_IN, Release};

/// SGLang.
#[derive(Debug)]
pub struct SgLang;

/// Stages in log lines (docs/reference/import.md).
const STAGES: StageNames = StageNames {
    first_sent: "first_output_stream",
    first_received: "tokenizer_first_token",
    ends: &["request_finished", "decode_finished", "finish_logged"],
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
        "decode_finished",
        "request_finished",
        "finish_logged",
    ],
};

impl Facts for SgLang {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "SGLang"
    }

    fn behaviour(&self, version: &str) -> Behaviour {
        Release::of(version).behaviour
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

    fn balance(&self) -> &'static str {
        "the detokenizer is selected by crc32 of the tokenizer worker's endpoint modulo the number of detokenizers: with few tokenizer \
         workers or an unlucky hash, some are idle; more tokenizer workers balance the load"
    }

    fn relief(&self, role: &str) -> &'static str {
        match role {
            "tokenizer" => {
                "--tokenizer-worker-num spreads its work over processes; a larger --stream-interval makes fewer and larger chunks"
            }
            "worker" => {
                "a higher --tokenizer-worker-num spreads its work; a larger --stream-interval makes fewer and larger chunks"
            }
            "detokenizer" => {
                "--detokenizer-worker-num, where the release has it, spreads its work over processes; a larger --stream-interval makes \
                 fewer and larger chunks"
            }
            _ => "a larger --stream-interval makes fewer and larger chunks",
        }
    }

    fn drops(&self) -> Option<Drops> {
        Some(Drops {
            fixed_in: DROPS_FIXED_IN,
            flag: "--stream-output",
        })
    }
}
