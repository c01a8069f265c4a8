//! State of the runs for `/healthz`, which needs no token. Names of engines are only for clients with access.

use jiff::Timestamp;
use serde_json::{Value, json};
use trace::MonoNs;
use trace::clock::Anchor;
use trace::event::{Event, What};

use crate::about::EngineIdentity;

const SECOND_NS: u64 = 1_000_000_000;
/// A pause that ends the flow of tokens, in nanoseconds.
const PAUSE_NS: u64 = 10 * SECOND_NS;

/// When tokens flowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenFlow {
    /// First token after the last pause.
    flow_began: MonoNs,
    /// Last token; `None` before the first.
    last_token_at: Option<MonoNs>,
}

impl TokenFlow {
    /// Records the time of an event that shows tokens. The first such event after a pause begins a new flow.
    pub(super) fn record_time_if_tokens(&mut self, event: &Event<'_>) {
        if !shows_tokens(&event.what) {
            return;
        }
        let is_after_pause = self.last_token_at.is_none_or(|last| event.at.since(last) >= PAUSE_NS);
        if is_after_pause {
            self.flow_began = event.at;
        }
        // Events of different processes may come out of order.
        self.last_token_at = self.last_token_at.max(Some(event.at));
    }
}

/// State of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunHealth {
    pub(super) is_running: bool,
    pub(super) is_attached: bool,
    pub(super) flow: TokenFlow,
    /// Both clocks now.
    pub(super) now: Anchor,
}

/// State of one of the runs; `None` if it does not answer.
pub(super) struct EngineHealth {
    /// Its engine, if the client may know it.
    pub(super) engine: Option<EngineIdentity>,
    pub(super) health: Option<RunHealth>,
}

/// Whether an event is of tokens on their way: in a frame with chunks, or in a delivery to a client.
fn shows_tokens(what: &What<'_>) -> bool {
    match what {
        What::Sent(frame) => !frame.chunks.is_empty(),
        What::Received(received) => received.frame.as_ref().is_some_and(|frame| !frame.chunks.is_empty()),
        What::Delivered(_) => true,
        _ => false,
    }
}

/// State of all runs together. Also has the state of each run if there are several, or if an engine is named.
pub(super) fn combined_health_json(runs: &[EngineHealth]) -> Value {
    // `None` if a run has not answered, which makes the whole dead.
    let answered: Option<Vec<RunHealth>> = runs.iter().map(|run| run.health).collect();
    let combined = answered.and_then(|answered| answered.into_iter().reduce(RunHealth::combine_with));
    let mut json = health_json(combined);
    if runs.len() > 1 || runs.iter().any(|run| run.engine.is_some()) {
        json["engines"] = runs.iter().map(engine_health_json).collect();
    }
    json
}

/// State of a run as JSON. Has the name, the port and the model of its engine, and its side of a pair (prefill or decode), if the client
/// may see them.
fn engine_health_json(run: &EngineHealth) -> Value {
    let mut json = health_json(run.health);
    if let Some(engine) = &run.engine {
        json["engine"] = engine.name.clone().into();
        json["port"] = engine.port.into();
        json["model"] = engine.model.clone().into();
        json["side"] = engine.side.into();
    }
    json
}

/// State of a run; `None` if it has not answered.
fn health_json(health: Option<RunHealth>) -> Value {
    health.map_or_else(|| RunHealth::dead_json("the run failed or is overloaded"), RunHealth::to_json)
}

impl RunHealth {
    /// The earliest start among those of the two runs in which tokens flow.
    fn earliest_flow_start(self, other: Self) -> MonoNs {
        match (self.has_flow(), other.has_flow()) {
            (true, true) => self.flow.flow_began.min(other.flow.flow_began),
            (true, false) => self.flow.flow_began,
            (false, _) => other.flow.flow_began,
        }
    }

    /// State of two runs together: alive if both are, and attached if one is. Tokens flow if they flow in one of the runs.
    fn combine_with(self, other: Self) -> Self {
        let flow_began = self.earliest_flow_start(other);
        Self {
            is_running: self.is_running && other.is_running,
            is_attached: self.is_attached || other.is_attached,
            flow: TokenFlow { flow_began, last_token_at: self.flow.last_token_at.max(other.flow.last_token_at) },
            // Both times are about now. Only that of a run that has ended differs, and it is not shown.
            now: other.now,
        }
    }

    /// Whether tokens flow: the last one is not longer ago than a pause.
    fn has_flow(&self) -> bool {
        self.flow.last_token_at.is_some_and(|last| self.now.mono.since(last) < PAUSE_NS)
    }

    /// Answer of `/healthz` for this run: since when tokens flow, or why none do.
    pub(super) fn to_json(self) -> Value {
        let Self { is_running, is_attached, flow, now } = self;
        if !is_running {
            return Self::dead_json("the run has ended");
        }
        let no_tokens_reason = self.no_tokens_reason();
        let tokens_since =
            if no_tokens_reason.is_none() { format_wall_time(now.wall_ns_at(flow.flow_began)) } else { None };
        json!({
            "alive": true,
            "attached": is_attached,
            "tokens_since": tokens_since,
            "no_tokens_reason": no_tokens_reason,
        })
    }

    /// Why no tokens flow; `None` if they do.
    fn no_tokens_reason(self) -> Option<String> {
        let Some(last_token_at) = self.flow.last_token_at else {
            return Some("no token was observed yet".to_owned());
        };
        let pause_ns = self.now.mono.since(last_token_at);
        if pause_ns < PAUSE_NS {
            return None;
        }
        Some(format!("no token for {} s", pause_ns / SECOND_NS))
    }

    /// State of a run that is not alive.
    pub(super) fn dead_json(reason: &str) -> Value {
        json!({"alive": false, "reason": reason})
    }
}

fn format_wall_time(ns: u64) -> Option<String> {
    let time = Timestamp::from_nanosecond(i128::from(ns)).ok()?;
    Some(format!("{time:.0}"))
}

#[cfg(test)]
mod tests {
    use trace::event::Frame;
    use trace::{Chunk, FrameId, HopId};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn send(flow: &mut TokenFlow, at: u64) {
        let id = FrameId::new(HopId(0), 0, at);
        let chunk = Chunk::counted("a", 1, 1);
        flow.record_time_if_tokens(&Event::new(MonoNs(at * SECOND), What::Sent(Frame::token_ids(id, 10, &[chunk]))));
    }

    #[test]
    fn tokens_flow_since_the_first_token_after_a_pause() {
        let mut flow = TokenFlow::default();
        let json = |flow: TokenFlow, at: u64| {
            let now = Anchor { mono: MonoNs(at * SECOND), wall_ns: (1_000 + at) * SECOND };
            RunHealth { is_running: true, is_attached: true, flow, now }.to_json()
        };
        assert_eq!(json(flow, 1)["no_tokens_reason"], "no token was observed yet");
        for at in [5, 6, 30, 35] {
            send(&mut flow, at);
        }
        let flowing = json(flow, 40);
        assert_eq!(
            (&flowing["tokens_since"], &flowing["no_tokens_reason"]),
            (&json!("1970-01-01T00:17:10Z"), &Value::Null)
        );
        let paused = json(flow, 47);
        assert_eq!((&paused["tokens_since"], &paused["no_tokens_reason"]), (&Value::Null, &json!("no token for 12 s")));
    }
    #[test]
    fn several_runs_are_alive_together_and_flow_if_one_does() {
        let now = Anchor { mono: MonoNs(40 * SECOND), wall_ns: 1_040 * SECOND };
        let run = |is_running, is_attached, seconds: &[u64]| {
            let mut flow = TokenFlow::default();
            for second in seconds {
                send(&mut flow, *second);
            }
            RunHealth { is_running, is_attached, flow, now }
        };
        let named = |name: &str, health| {
            let engine = EngineIdentity { name: name.to_owned(), port: Some(30_000), ..EngineIdentity::default() };
            EngineHealth { engine: Some(engine), health }
        };
        let waiting = || named("vllm:8000", Some(run(true, false, &[])));
        let health = combined_health_json(&[named("sglang:30000", Some(run(true, true, &[35, 38]))), waiting()]);
        assert_eq!((&health["alive"], &health["attached"]), (&json!(true), &json!(true)));
        assert_eq!(health["tokens_since"], "1970-01-01T00:17:15Z");
        let of_second = &health["engines"][1];
        assert_eq!((&of_second["engine"], &of_second["attached"]), (&json!("vllm:8000"), &json!(false)));
        assert_eq!(of_second["no_tokens_reason"], "no token was observed yet");
        for dead in [None, Some(run(false, false, &[35]))] {
            let health = combined_health_json(&[named("sglang:30000", dead), waiting()]);
            assert_eq!((&health["alive"], &health["engines"][1]["alive"]), (&json!(false), &json!(true)));
        }
        let one = combined_health_json(&[EngineHealth { engine: None, health: Some(run(true, true, &[39])) }]);
        assert_eq!((&one["alive"], &one["engines"]), (&json!(true), &Value::Null));
    }
}
