//! Facts about vLLM for the analysis.

use trace::engine::{Behaviour, Facts, Mode, OutputModeRule, SentTime, SentTimes, Version, VersionRange, Waiter};

use super::NAME;

/// vLLM.
#[derive(Debug)]
pub struct Vllm;

/// First release that merges several waiting outputs of one request into one event (`RequestOutputCollector`).
const MERGES_FROM: &str = "0.8.2";
/// First release whose engine sends `ENGINE_CORE_DEAD` when it dies.
pub(super) const DEAD_FROM: &str = "0.8.5";

/// First release whose outputs have a list of events.
const EVENTS_FROM: &str = "0.7.3";

/// Behaviour of the releases of a range such as `0.8.3..0.8.4` when several outputs of one request wait. `None` if they differ or are not
/// known.
pub(super) fn waiter_of_releases(releases: &str) -> Option<Waiter> {
    let range: VersionRange = releases.parse().ok()?;
    let merges_from: Version = MERGES_FROM.parse().ok()?;
    match (range.first >= merges_from, range.last >= merges_from) {
        (true, true) => Some(Waiter::Merges),
        (false, false) => Some(Waiter::YieldsAll),
        // The range has releases of both kinds.
        _ => None,
    }
}

impl Facts for Vllm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn title(&self) -> &'static str {
        "vLLM"
    }

    fn behaviour(&self, version: &str) -> Behaviour {
        let new_only = Some(OutputModeRule::Always(Mode::Incremental));
        Behaviour { waiter: waiter_of_releases(version), token_path: new_only, text_path: new_only }
    }

    fn source(&self) -> &'static str {
        "engine core"
    }

    fn receiver(&self) -> &'static str {
        "API server"
    }

    /// An aborted request no longer appears in messages, and the API server aborts a request that matched a stop string.
    fn ends_silently(&self) -> bool {
        true
    }

    fn aborts_by_prefix(&self) -> bool {
        false
    }

    /// Its chat endpoint writes no event for tokens that a parser of tool calls or reasoning holds back (seen in 2025, vLLM issue 27482).
    fn unlisted_ids(&self) -> &'static str {
        "vLLM's parsers of tool calls and reasoning hold tokens back, and the ids of tokens without an event of their own are \
         listed in none: count by `usage`, not by `token_ids`, or read the ids from a request without these parsers"
    }

    /// All messages are taken out of ZMQ before any response is written.
    fn queues_after_receive(&self) -> bool {
        true
    }

    /// Which of its own times the release sends. A request's first output has its events, unless statistics are off.
    fn sent_times(&self, version: Option<&str>) -> SentTimes {
        let range = version.and_then(|version| version.parse::<VersionRange>().ok());
        let first_with_events = EVENTS_FROM.parse::<Version>().ok();
        if let (Some(range), Some(first)) = (range, first_with_events)
            && range.last < first
        {
            // Neither the entries nor the end of the prefill.
            return SentTimes::both(SentTime::Never("vLLM sends its own times from 0.7.3 on"));
        }
        SentTimes {
            // When a request enters the queue and a batch.
            entries: SentTime::OnlyIf("vLLM sends its own times from 0.7.3 on, and not with --disable-log-stats"),
            prefill_end: SentTime::Never("vLLM does not send the end of the prefill"),
        }
    }

    fn balance(&self) -> &'static str {
        "all API servers accept on one port, and a client's connection stays with the one that accepted it: let clients or the load \
         balancer open more connections and reconnect regularly"
    }

    fn queue_relief(&self) -> &'static str {
        "add replicas; a higher --max-num-seqs or --gpu-memory-utilization makes room if memory allows (`Waiting` in its log); with \
         --kv-transfer-config, a request also waits there for its cache from the other server"
    }

    /// `EngineCoreProc.process_input_sockets` runs on a thread of its own.
    fn late_receive(&self) -> &'static str {
        "a thread of its own receives requests: it lacked a CPU or the GIL, or did not run; `py-spy dump --native` shows what the process does"
    }

    /// `EngineCoreProc.run_busy_loop` takes requests from that thread's queue.
    fn late_intake(&self) -> &'static str {
        "its main thread takes requests between its steps: a smaller --max-num-batched-tokens shortens them"
    }

    /// Flags that relieve a busy process of this role.
    fn advice_for_busy_role(&self, role: &str, _runs_several: bool) -> &'static str {
        match role {
            // The role as named in hops, and as named for users.
            "api-server" | "API server" => {
                "a higher --api-server-count spreads its work over processes; a larger --stream-interval makes fewer and larger events"
            }
            _ => "a larger --stream-interval makes fewer and larger events",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_merged_from_the_release_of_the_collector_on() {
        assert_eq!(waiter_of_releases("0.8.1"), Some(Waiter::YieldsAll));
        assert_eq!(waiter_of_releases("0.8.2"), Some(Waiter::Merges));
        assert_eq!(waiter_of_releases("0.32.0..0.33.0"), Some(Waiter::Merges));
        assert_eq!(waiter_of_releases("0.7.3..0.8.2"), None);
        assert_eq!(waiter_of_releases("main"), None);
    }
}
