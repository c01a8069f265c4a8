//! Request ids announced on request planes, by the name of the response stream that will answer the request.

use std::borrow::Cow;

use trace::event::Chunk;

use super::recent::Recent;
use adapter::decode::ReadResponseId;

/// Maximum number of requests whose response has not begun, by each kind of id.
pub(super) const MAX_WAITING: usize = 16_384;

/// A response stream of which a request plane has announced the request.
#[derive(Clone, Debug)]
pub(super) struct AnnouncedStream {
    /// The stream's name.
    pub(super) subject: String,
    /// The frontend's id.
    pub(super) context: String,
    /// The engine's id, which frames carry as well, once it is known.
    pub(super) rid: Option<String>,
}

impl AnnouncedStream {
    /// Request id of an event on this stream. The event has the stream's name in its place: `name`, followed by `#` and the index of a
    /// choice other than the first. `None` for an event of another stream.
    pub(super) fn request_id_of(&self, name: &str) -> Option<Cow<'_, str>> {
        let choice_suffix = name.strip_prefix(self.subject.as_str())?;
        // The engine's id, or the frontend's while that is unknown.
        let id = self.rid.as_ref().unwrap_or(&self.context);
        if choice_suffix.is_empty() {
            return Some(Cow::Borrowed(id));
        }
        Some(Cow::Owned(format!("{id}{choice_suffix}")))
    }
}

/// Request ids on the hops by the ids that responses show, for engines whose responses show another id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResponseIds {
    choices: Recent<Vec<ChoiceRequest>>,
}

/// A choice of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChoiceRequest {
    index: u32,
    /// Id of its request; `None` if two live requests claim it.
    rid: Option<String>,
}

impl ResponseIds {
    /// Records the requests of a frame. `read_response_id` reads the id of the response and the index of the choice from a request's id.
    pub(super) fn record_requests(&mut self, read_response_id: ReadResponseId, chunks: &[Chunk<'_>]) {
        for chunk in chunks {
            if let Some((id, index)) = read_response_id(chunk.rid) {
                self.record_choice(id, index, chunk.rid);
            }
        }
    }

    /// Records that a choice of a response carries the output of request `rid`. A client may ask for several choices, each of which is a
    /// request of the engine.
    fn record_choice(&mut self, response_id: &str, index: u32, rid: &str) {
        let Some(choices) = self.choices.values.get_mut(response_id) else {
            self.choices.insert(response_id, vec![ChoiceRequest { index, rid: Some(rid.to_owned()) }], MAX_WAITING);
            return;
        };
        let Some(choice) = choices.iter_mut().find(|choice| choice.index == index) else {
            choices.push(ChoiceRequest { index, rid: Some(rid.to_owned()) });
            return;
        };
        let is_claimed_by_another = choice.rid.as_deref() != Some(rid);
        if is_claimed_by_another {
            // Better no request than the wrong one.
            choice.rid = None;
        }
    }

    /// Id of the request whose output a choice of a response carries; `None` if it is unknown.
    pub(super) fn find_request(&self, response_id: &str, choice_index: u32) -> Option<&str> {
        let choices = self.choices.values.get(response_id)?;
        let choice = choices.iter().find(|choice| choice.index == choice_index)?;
        choice.rid.as_deref()
    }

    /// Forgets a response that has ended. Later requests may have its id again.
    pub(super) fn forget_response(&mut self, response_id: &str) {
        self.choices.remove(response_id);
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
        assert_eq!((ids.find_request("cmpl-a", 0), ids.choices.values.len()), (Some("cmpl-a-0-22222222"), 1));
    }
}
