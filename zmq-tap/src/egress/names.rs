//! Request ids announced on request planes, by the name of the response stream that will answer the request.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use super::event::Said;

/// Maximum number of streams that have not begun.
const MOST_WAITING: usize = 16_384;

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
    id: String,
    is_rid: bool,
}

impl Streams {
    /// Records that stream `subject` will answer the request `context`. `rid` is `SGLang`'s id of it, if known.
    pub(super) fn keep(&mut self, subject: &str, context: &str, rid: Option<&str>) {
        if self.order.len() == MOST_WAITING
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_subject.remove(&oldest);
        }
        let named = Named {
            subject: subject.to_owned(),
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
    /// Whether the id is `SGLang`'s own, which frames carry as well.
    pub(super) fn is_rid(&self) -> bool {
        self.is_rid
    }

    /// `SGLang`'s id if known, otherwise the frontend's.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Sets `SGLang`'s id once it is known.
    pub(super) fn becomes(&mut self, rid: String) {
        (self.id, self.is_rid) = (rid, true);
    }

    /// Replaces the stream's name with the request's id.
    pub(super) fn rename<'a>(&'a self, said: &Said<'a>) -> Option<Said<'a>> {
        let choice = said.rid.strip_prefix(self.subject.as_str())?;
        let rid = if choice.is_empty() {
            Cow::Borrowed(&*self.id)
        } else {
            Cow::Owned(format!("{}{choice}", self.id))
        };
        Some(Said { rid, ..said.clone() })
    }
}

/// `SGLang`'s request ids by the frontends' ids, from a worker's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    by_context: HashMap<String, String>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl Told {
    pub(super) fn keep(&mut self, context: &str, rid: &str) {
        if self.order.len() == MOST_WAITING
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_never_wanted_are_bounded() {
        let mut streams = Streams::default();
        for n in 0..=MOST_WAITING {
            streams.keep(&n.to_string(), "context", None);
        }
        assert_eq!(
            (streams.by_subject.len(), streams.order.len()),
            (MOST_WAITING, MOST_WAITING)
        );
        assert_eq!(streams.take("0"), None);
        assert!(
            streams
                .take("1")
                .is_some_and(|named| named.id == "context" && !named.is_rid())
        );
        assert_eq!(streams.order.len(), MOST_WAITING - 1);
    }
}
