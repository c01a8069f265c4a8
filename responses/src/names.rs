//! Request ids announced on request planes, by the name of the response stream that will answer the request.

use std::borrow::Cow;

use trace::event::Chunk;

use super::recent::Recent;
use adapter::decode::ReadResponseId;

/// Maximum number of requests whose response has not begun, by each kind of id.
pub(super) const MAX_WAITING: usize = 16_384;

/// The request of a stream.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) subject: String,
    /// The frontend's id.
    pub(super) context: String,
    /// The engine's id, which frames carry as well, once it is known.
    pub(super) rid: Option<String>,
}

impl Named {
    /// Request id of an event that has the stream's name and the index of a choice.
    pub(super) fn request_id(&self, name: &str) -> Option<Cow<'_, str>> {
        let choice = name.strip_prefix(self.subject.as_str())?;
        let id = self.rid.as_ref().unwrap_or(&self.context);
        Some(if choice.is_empty() { Cow::Borrowed(id) } else { Cow::Owned(format!("{id}{choice}")) })
    }
}

/// Request ids on the hops by the ids that responses show, for engines whose responses show another id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResponseIds(Recent<ChoiceRequests>);

/// Index of a choice, and the id of its request; `None` if two live requests claim it.
type ChoiceRequests = Vec<(u32, Option<String>)>;

impl ResponseIds {
    /// Records the requests of a frame.
    pub(super) fn record_requests(&mut self, response_id: ReadResponseId, chunks: &[Chunk<'_>]) {
        for chunk in chunks {
            if let Some((id, choice)) = response_id(chunk.rid) {
                self.record_choice(id, choice, chunk.rid);
            }
        }
    }

    /// Records that choice `choice` of response `id` carries the output of request `rid`.
    fn record_choice(&mut self, id: &str, choice: u32, rid: &str) {
        let Some(choices) = self.0.values.get_mut(id) else {
            self.0.insert(id, vec![(choice, Some(rid.to_owned()))], MAX_WAITING);
            return;
        };
        match choices.iter_mut().find(|(known, _)| *known == choice) {
            Some((_, known)) if known.as_deref() == Some(rid) => {}
            // Better no request than the wrong one.
            Some((_, known)) => *known = None,
            None => choices.push((choice, Some(rid.to_owned()))),
        }
    }

    /// Request whose output this choice carries.
    pub(super) fn find_request(&self, id: &str, choice: u32) -> Option<&str> {
        let choices = self.0.values.get(id)?;
        choices.iter().find(|(known, _)| *known == choice)?.1.as_deref()
    }

    /// Forgets a response that has ended. Later requests may have its id again.
    pub(super) fn forget_response(&mut self, id: &str) {
        self.0.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_id_of_two_live_requests_names_neither() {
        let mut ids = ResponseIds::default();
        ids.record_choice("cmpl-a", 0, "cmpl-a-0-11111111");
        ids.record_choice("cmpl-a", 1, "cmpl-a-1-11111111");
        ids.record_choice("cmpl-a", 0, "cmpl-a-0-11111111");
        assert_eq!(ids.find_request("cmpl-a", 0), Some("cmpl-a-0-11111111"));
        ids.record_choice("cmpl-a", 0, "cmpl-a-0-22222222");
        assert_eq!((ids.find_request("cmpl-a", 0), ids.find_request("cmpl-a", 1)), (None, Some("cmpl-a-1-11111111")));
        ids.forget_response("cmpl-a");
        ids.record_choice("cmpl-a", 0, "cmpl-a-0-22222222");
        assert_eq!((ids.find_request("cmpl-a", 0), ids.0.values.len()), (Some("cmpl-a-0-22222222"), 1));
    }
}
