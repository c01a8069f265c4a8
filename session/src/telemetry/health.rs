//! State of the run for `/healthz`, which needs no token and therefore contains no names.

use jiff::Timestamp;
use serde_json::{Value, json};
use trace::MonoNs;
use trace::clock::Anchor;
use trace::event::{Event, What};

/// A pause that ends the flow of tokens, in nanoseconds.
const PAUSE_NS: u64 = 10_000_000_000;

/// When tokens flowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenFlow {
    /// First token after the last pause.
    since: MonoNs,
    /// Last token; `None` before the first.
    last: Option<MonoNs>,
}

impl TokenFlow {
    pub(super) fn event(&mut self, event: &Event<'_>) {
        let has_tokens = match &event.what {
            What::Sent(frame) => !frame.chunks.is_empty(),
            What::Received(received) => received.frame.as_ref().is_some_and(|frame| !frame.chunks.is_empty()),
            What::Delivered(_) => true,
            _ => false,
        };
        if has_tokens {
            if self.last.is_none_or(|last| event.at.since(last) >= PAUSE_NS) {
                self.since = event.at;
            }
            self.last = self.last.max(Some(event.at));
        }
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

impl RunHealth {
    pub(super) fn to_json(self) -> Value {
        let Self { is_running, is_attached, flow, now } = self;
        if !is_running {
            return Self::dead("the run has ended");
        }
        let pause_ns = flow.last.map(|last| now.mono.since(last));
        let (since, reason) = match pause_ns {
            None => (None, Some("no token was observed yet".to_owned())),
            Some(ns) if ns >= PAUSE_NS => (None, Some(format!("no token for {} s", ns / 1_000_000_000))),
            Some(_) => (Some(wall(now.wall_ns_at(flow.since))), None),
        };
        json!({"alive": true, "attached": is_attached, "tokens_since": since, "no_tokens_reason": reason})
    }

    /// State of a run that is not alive.
    pub(super) fn dead(reason: &str) -> Value {
        json!({"alive": false, "reason": reason})
    }
}

fn wall(ns: u64) -> Option<String> {
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
        flow.event(&Event::new(MonoNs(at * SECOND), What::Sent(Frame::token_ids(id, 10, &[chunk]))));
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
}
