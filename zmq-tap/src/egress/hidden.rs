//! Warnings about responses that could not be read or counted.

use super::server::Tls;
use super::{Server, Unreadable};

impl Server {
    /// Whether deliveries are observable. They are not if all traffic is encrypted or carries text only.
    pub fn shows_deliveries(&self) -> bool {
        let by_tls = self.tls.is_some_and(|tls| tls.hidden() > 0);
        let hidden = self.text_only > 0 || by_tls || self.unreadable.iter().any(|(why, _)| why.hides_responses());
        !hidden || self.deliveries > 0
    }

    /// Details of a reason, appended to its text.
    fn more(&self, why: Unreadable) -> String {
        match why {
            Unreadable::Tls => "; run with --tls".to_owned(),
            Unreadable::Grpc => format!(" ({} messages)", self.grpc_messages),
            _ => String::new(),
        }
    }

    /// Describes the traffic that was not observable, with counts.
    pub fn degraded(&self) -> Vec<String> {
        let hidden = self.unreadable.iter().filter(|(why, _)| why.hides_responses());
        let mut degraded: Vec<String> = hidden
            .map(|(why, times)| {
                format!(
                    "egress: cannot read the deliveries of {times} connections or responses: {why}{}",
                    self.more(*why)
                )
            })
            .collect();
        if let Some(hidden) = self.tls.map(Tls::hidden).filter(|hidden| *hidden > 0) {
            degraded.push(format!(
                "egress: cannot read the deliveries of {hidden} connections: another library than OpenSSL encrypts them"
            ));
        }
        if self.text_only > 0 {
            degraded.push(format!(
                "egress: {} responses carried text without token ids; their number of delivered tokens is not observable",
                self.text_only
            ));
        }
        degraded.extend(self.texts.differences.degraded());
        if self.texts.evicted > 0 {
            degraded.push(format!(
                "egress: the text of {} requests was evicted to free memory; their responses are not judged",
                self.texts.evicted
            ));
        }
        let content = &self.content;
        if content.ambiguous + content.unknown > 0 {
            degraded.push(format!(
                "egress: by content, {} response streams to a frontend match several requests of the engine and {} match none; {} requests were evicted to free memory",
                content.ambiguous, content.unknown, content.evicted
            ));
        }
        if self.unnamed > 0 {
            degraded.push(format!(
                "egress: {} response streams to a frontend do not identify their request of the engine: each is judged only by its own sums",
                self.unnamed
            ));
        }
        degraded
    }
}
