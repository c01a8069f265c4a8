//! Differences between the text of responses and the text that was sent.

/// Numbers of responses by their first difference from the text that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Differences {
    /// Text is missing before an event or at the end, or comes later.
    pub(super) missing: u64,
    /// The text of an event is repeated.
    pub(super) repeated: u64,
    /// An event has other text.
    pub(super) changed: u64,
    /// A field such as tool calls contains text in another form.
    pub(super) elsewhere: u64,
    /// The first of them that is not `elsewhere`: its request, and the number of tokens before the difference.
    pub(super) first: Option<(String, u32)>,
}

/// First difference of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Missing,
    Repeated,
    Changed,
    Elsewhere,
}

impl Differences {
    pub(super) fn add(&mut self, difference: Difference, rid: &str, tokens: u32) {
        let number = match difference {
            Difference::Missing => &mut self.missing,
            Difference::Repeated => &mut self.repeated,
            Difference::Changed => &mut self.changed,
            Difference::Elsewhere => &mut self.elsewhere,
        };
        *number += 1;
        if difference != Difference::Elsewhere && self.first.is_none() {
            self.first = Some((rid.to_owned(), tokens));
        }
    }

    /// Describes them.
    pub(in super::super) fn degraded(&self) -> Vec<String> {
        let mut degraded = Vec::new();
        if let Some((rid, tokens)) = &self.first {
            degraded.push(format!(
                "egress: the text of {} responses is not the text that was sent: missing in {}, repeated in {}, changed in {}; their later tokens are not judged; first: request {rid} after token {tokens}",
                self.missing + self.repeated + self.changed,
                self.missing,
                self.repeated,
                self.changed
            ));
        }
        if self.elsewhere > 0 {
            degraded.push(format!(
                "egress: {} responses carried text in tool calls or other fields; their later tokens are not judged",
                self.elsewhere
            ));
        }
        degraded
    }
}
