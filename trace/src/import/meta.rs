//! Times that the engine reports in a finished request's `meta_info`.

use super::item::{Item, Rid, Statement};
use super::text::{epoch_ns, number};

/// Time fields in the engine's records (seconds since the epoch), with the stage and the process of each.
const TIMES: [(&str, &str, &str); 9] = [
    ("request_received_ts", "request_received", "tokenizer"),
    ("request_sent_to_scheduler_ts", "request_sent_to_scheduler", "tokenizer"),
    (
        "api_server_dispatch_finish_ts",
        "api_server_dispatch_finish",
        "tokenizer",
    ),
    ("forward_entry_time", "forward_entry", "scheduler"),
    ("prefill_finished_ts", "prefill_finished", "scheduler"),
    ("prefill_finished_time", "prefill_finished", "scheduler"),
    ("response_sent_to_client_ts", "response_sent_to_client", "tokenizer"),
    ("decode_finished_ts", "decode_finished", "tokenizer"),
    ("request_finished_ts", "request_finished", "tokenizer"),
];

/// Times in a finished request's `meta_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Meta {
    times: [Option<f64>; TIMES.len()],
    /// Seconds from its arrival to its first token at the tokenizer (0.5.10 and later).
    first_token: Option<f64>,
    tokens: Option<u32>,
}

impl Meta {
    pub(super) fn set(&mut self, key: &str, number: f64) {
        match key {
            "first_token_latency" => self.first_token = Some(number),
            "completion_tokens" if (0.0..4e9).contains(&number) => self.tokens = Some(number as u32),
            _ => {
                if let Some(place) = TIMES.iter().position(|t| t.0 == key) {
                    self.times[place] = Some(number);
                }
            }
        }
    }

    /// Parses the text of a Python dict after the last `'meta_info': `. No output text can follow that.
    pub(super) fn of_repr(text: &str) -> Self {
        let mut meta = Self::default();
        let Some(at) = text.rfind("'meta_info': {") else {
            return meta;
        };
        let text = &text[at..];
        for (key, ..) in TIMES {
            if let Some(number) = number(text, &format!("'{key}': ")) {
                meta.set(key, number);
            }
        }
        for key in ["first_token_latency", "completion_tokens"] {
            if let Some(number) = number(text, &format!("'{key}': ")) {
                meta.set(key, number);
            }
        }
        meta
    }

    pub(super) fn emit<'l>(&self, rid: Rid<'l>, sink: &mut dyn FnMut(Item<'l>)) -> bool {
        let mut ended = false;
        let mut stage = |name, role, seconds: f64| {
            let Some(wall_ns) = epoch_ns(seconds) else { return };
            ended |= matches!(name, "request_finished" | "decode_finished");
            let statement = Statement::Stage {
                rid,
                name,
                tokens: self.tokens.filter(|_| ended),
                pending: None,
            };
            sink(Item {
                wall_ns: Some(wall_ns),
                role,
                statement,
            });
        };
        for ((_, name, role), seconds) in TIMES.into_iter().zip(self.times) {
            if let Some(seconds) = seconds {
                stage(name, role, seconds);
            }
        }
        if let (Some(received), Some(latency)) = (self.times[0], self.first_token) {
            stage("first_token", "tokenizer", received + latency);
        }
        ended
    }
}
