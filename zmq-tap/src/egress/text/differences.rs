//! Differences between the text of responses and the text that was sent.

/// Numbers of responses by their first difference from the text that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Differences {
    /// Numbers by [`Difference`].
    pub(super) counts: [u64; 4],
    /// The first of them that is not [`Difference::Elsewhere`]: its request, and the number of tokens before the difference.
    pub(super) first: Option<(String, u32)>,
}

/// First difference of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Text is missing before an event or at the end, or comes later.
    Missing,
    /// The text of an event is repeated.
    Repeated,
    /// An event has other text.
    Changed,
    /// A field such as tool calls contains text in another form.
    Elsewhere,
}

impl Differences {
    pub(super) fn add(&mut self, difference: Difference, rid: &str, tokens: u32) {
        self.counts[difference as usize] += 1;
        if difference != Difference::Elsewhere && self.first.is_none() {
            self.first = Some((rid.to_owned(), tokens));
        }
    }

    /// Describes them.
    pub(in super::super) fn degraded(&self) -> Vec<String> {
        let [missing, repeated, changed, elsewhere] = self.counts;
        let mut degraded = Vec::new();
        if let Some((rid, tokens)) = &self.first {
            degraded.push(format!(
                "egress: the text of {} responses is not the text that was sent: missing in {missing}, repeated in {repeated}, changed in {changed}; their later tokens are not judged; first: request {rid} after token {tokens}",
                missing + repeated + changed
            ));
        }
        if elsewhere > 0 {
            degraded.push(format!(
                "egress: {elsewhere} responses carried text in tool calls or other fields; their later tokens are not judged"
            ));
        }
        degraded
    }
}
