//! An engine for tests of the generic crate.

use trace::Config;
use trace::engine::{Behaviour, Drops, Engines, Facts, Mode, OutputModeRule, StageNames, Waiter};

/// A release that drops queued chunks in incremental mode.
pub(crate) const DROPS: &str = "0.5.9";
/// The first release that merges them.
const MERGES: &str = "0.5.10";
const FLAG: &str = "--incremental";

#[derive(Debug)]
pub(crate) struct Example;

/// A registry with only the example engine.
pub(crate) const ENGINES: Engines = Engines(&[&Example]);

/// Default limits, with the example engine.
#[allow(dead_code, reason = "shared by several test programs")]
pub(crate) fn config() -> Config {
    Config { engines: ENGINES, ..Config::default() }
}

/// Stage at which the scheduler hands a request's first output to its socket.
pub(crate) const FIRST_SENT: &str = "first_output_stream";
/// Stage at which the tokenizer processes a request's first output.
pub(crate) const FIRST_RECEIVED: &str = "tokenizer_first_token";

impl Facts for Example {
    fn name(&self) -> &'static str {
        "example"
    }

    fn title(&self) -> &'static str {
        "Example"
    }

    fn behaviour(&self, version: &str) -> Behaviour {
        let waiter = match version {
            DROPS => Waiter::KeepsLast,
            _ if version >= MERGES => Waiter::Merges,
            _ => return Behaviour::default(),
        };
        Behaviour {
            waiter: Some(waiter),
            token_path: Some(OutputModeRule::ByFlag(FLAG)),
            text_path: Some(OutputModeRule::Always(Mode::Cumulative)),
        }
    }

    fn source(&self) -> &'static str {
        "scheduler"
    }

    fn receiver(&self) -> &'static str {
        "tokenizer"
    }

    fn unstreamed_tokens(&self) -> Option<u32> {
        Some(50)
    }

    fn health_check_prefix(&self) -> &'static str {
        "HEALTH_CHECK"
    }

    fn stages(&self) -> &'static StageNames {
        &StageNames {
            first_sent: FIRST_SENT,
            first_received: FIRST_RECEIVED,
            first_delivered: "first_token_received",
            discarded: "output_discarded",
            ends: &["request_finished", "decode_finished"],
            order: &[
                "request_received",
                "transfer_done",
                "waiting_to_running",
                "first_token_generated",
                FIRST_SENT,
                FIRST_RECEIVED,
                "first_token_received",
                "decode_finished",
                "request_finished",
            ],
        }
    }

    fn abort_delay_ns(&self) -> Option<u64> {
        Some(2_000_000_000)
    }

    fn advice_for_busy_role(&self, _role: &str, _runs_several: bool) -> &'static str {
        "--workers spreads it"
    }

    fn drops(&self) -> Option<Drops> {
        Some(Drops { fixed_in: MERGES, flag: FLAG })
    }
}
