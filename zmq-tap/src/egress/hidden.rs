//! Warnings about responses that could not be read or counted.

use super::Server;

impl Server {
    /// Whether deliveries are observable. They are not if all traffic is encrypted or carries text only.
    pub fn shows_deliveries(&self) -> bool {
        let hidden = self.text_only > 0 || self.unreadable.iter().any(|(why, _)| why.hides_responses());
        !hidden || self.deliveries > 0
    }

    /// Describes the traffic that was not observable, with counts.
    pub fn degraded(&self) -> Vec<String> {
        let hidden = self.unreadable.iter().filter(|(why, _)| why.hides_responses());
        let mut degraded: Vec<String> = hidden
            .map(|(why, times)| {
                format!(
                    "egress: on {times} connections or responses of the server the deliveries cannot be read: {why}"
                )
            })
            .collect();
        if self.text_only > 0 {
            degraded.push(format!(
                "egress: {} answers carried text without token ids; how many tokens they delivered is not observable",
                self.text_only
            ));
        }
        let content = &self.content;
        if content.ambiguous + content.unknown > 0 {
            degraded.push(format!(
                "egress: by what they carry, {} Dynamo response streams could be several of SGLang's requests and {} none; {} requests were \
                 given up for want of room",
                content.ambiguous, content.unknown, content.forgotten
            ));
        }
        if self.nameless > 0 {
            degraded.push(format!(
                "egress: {} Dynamo response streams do not say which of SGLang's requests they answer: each is judged by its own sums, beside \
                 the frames",
                self.nameless
            ));
        }
        degraded
    }
}
