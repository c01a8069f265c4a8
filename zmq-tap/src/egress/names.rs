//! Request ids announced on request planes, by the name of the response stream that will answer the request.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use trace::event::Chunk;

use crate::decode::ReadResponseId;

/// Maximum number of streams that have not begun.
const MAX_WAITING: usize = 16_384;

/// Streams that were announced and have not begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    by_subject: HashMap<String, Named>,
    /// Oldest first. Streams that never begin are evicted from this end.
    order: VecDeque<String>,
}

/// The request of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    subject: String,
    context: String,
    id: String,
    is_rid: bool,
}

impl Streams {
    /// Records that stream `subject` will answer the request `context`. `rid` is the engine's id of it, if known.
    pub(super) fn insert(&mut self, subject: &str, context: &str, rid: Option<&str>) {
        if self.order.len() == MAX_WAITING
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_subject.remove(&oldest);
        }
        let named = Named {
            subject: subject.to_owned(),
            context: context.to_owned(),
            id: rid.unwrap_or(context).to_owned(),
            is_rid: rid.is_some(),
        };
        if self.by_subject.insert(subject.to_owned(), named).is_none() {
            self.order.push_back(subject.to_owned());
        }
    }

    /// Removes and returns the request of a stream that begins.
    pub(super) fn take(&mut self, subject: &str) -> Option<Named> {
        let named = self.by_subject.remove(subject)?;
        // Streams begin in about the order of their requests, so the search is short.
        if let Some(at) = self.order.iter().position(|known| known == subject) {
            self.order.remove(at);
        }
        Some(named)
    }
}

impl Named {
    /// Whether the id is the engine's own, which frames carry as well.
    pub(super) fn is_rid(&self) -> bool {
        self.is_rid
    }

    /// The engine's id if known, otherwise the frontend's.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The frontend's id.
    pub(super) fn context(&self) -> &str {
        &self.context
    }

    /// Sets the engine's id once it is known.
    pub(super) fn set_rid(&mut self, rid: String) {
        (self.id, self.is_rid) = (rid, true);
    }

    /// Request id of an event that has the stream's name and the index of a choice.
    pub(super) fn rename(&self, name: &str) -> Option<Cow<'_, str>> {
        let choice = name.strip_prefix(self.subject.as_str())?;
        Some(if choice.is_empty() { Cow::Borrowed(&*self.id) } else { Cow::Owned(format!("{}{choice}", self.id)) })
    }
}

/// The engine's request ids by the frontends' ids, from a worker's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedIds {
    by_context: HashMap<String, String>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl LoggedIds {
    pub(super) fn insert(&mut self, context: &str, rid: &str) {
        if self.order.len() == MAX_WAITING
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_context.remove(&oldest);
        }
        if self.by_context.insert(context.to_owned(), rid.to_owned()).is_none() {
            self.order.push_back(context.to_owned());
        }
    }

    /// Removes and returns the id of a request whose stream begins.
    pub(super) fn take(&mut self, context: &str) -> Option<String> {
        let rid = self.by_context.remove(context)?;
        if let Some(at) = self.order.iter().position(|known| known == context) {
            self.order.remove(at);
        }
        Some(rid)
    }
}

/// Request ids on the hops by the ids that responses show, for engines whose responses show another id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseIds {
    /// Index of a choice, and the id of its request; `None` if two live requests claim it.
    by_response: HashMap<String, Vec<(u32, Option<String>)>>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl ResponseIds {
    /// Records the requests of a frame.
    pub fn sent(&mut self, read: ReadResponseId, chunks: &[Chunk<'_>]) {
        for chunk in chunks {
            if let Some((id, choice)) = read(chunk.rid) {
                self.keep(id, choice, chunk.rid);
            }
        }
    }

    /// Records that choice `choice` of response `id` carries the output of request `rid`.
    fn keep(&mut self, id: &str, choice: u32, rid: &str) {
        if let Some(choices) = self.by_response.get_mut(id) {
            match choices.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, known)) if known.as_deref() == Some(rid) => {}
                Some((_, known)) => *known = None,
                None => choices.push((choice, Some(rid.to_owned()))),
            }
            return;
        }
        if self.order.len() == MAX_WAITING
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_response.remove(&oldest);
        }
        self.by_response.insert(id.to_owned(), vec![(choice, Some(rid.to_owned()))]);
        self.order.push_back(id.to_owned());
    }

    /// Request whose output this choice carries.
    pub(super) fn find(&self, id: &str, choice: u32) -> Option<&str> {
        let choices = self.by_response.get(id)?;
        choices.iter().find(|(known, _)| *known == choice)?.1.as_deref()
    }

    /// Forgets a response that has ended. Later requests may have its id again.
    pub(super) fn forget(&mut self, id: &str) {
        if self.by_response.remove(id).is_some()
            && let Some(at) = self.order.iter().position(|known| known == id)
        {
            self.order.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_id_of_two_live_requests_names_neither() {
        let mut ids = ResponseIds::default();
        ids.keep("cmpl-a", 0, "cmpl-a-0-11111111");
        ids.keep("cmpl-a", 1, "cmpl-a-1-11111111");
        ids.keep("cmpl-a", 0, "cmpl-a-0-11111111");
        assert_eq!(ids.find("cmpl-a", 0), Some("cmpl-a-0-11111111"));
        ids.keep("cmpl-a", 0, "cmpl-a-0-22222222");
        assert_eq!((ids.find("cmpl-a", 0), ids.find("cmpl-a", 1)), (None, Some("cmpl-a-1-11111111")));
        ids.forget("cmpl-a");
        ids.keep("cmpl-a", 0, "cmpl-a-0-22222222");
        assert_eq!((ids.find("cmpl-a", 0), ids.order.len()), (Some("cmpl-a-0-22222222"), 1));
    }

    #[test]
    fn unclaimed_names_are_bounded() {
        let mut streams = Streams::default();
        for n in 0..=MAX_WAITING {
            streams.insert(&n.to_string(), "context", None);
        }
        assert_eq!((streams.by_subject.len(), streams.order.len()), (MAX_WAITING, MAX_WAITING));
        assert_eq!(streams.take("0"), None);
        assert!(streams.take("1").is_some_and(|named| named.id == "context" && !named.is_rid()));
        assert_eq!(streams.order.len(), MAX_WAITING - 1);
    }
}
