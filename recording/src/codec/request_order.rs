//! Prediction of the order of requests. A frame lists its requests mostly in the order of the previous frame, minus finished ones and plus
//! new ones. So the predicted request is the one that last followed its neighbour in any frame.

use hashbrown::HashMap;

/// Index of no link.
pub(super) const NO_LINK: u32 = u32::MAX;

/// Maximum number of ended requests skipped in a prediction.
const MAX_SKIPPED: usize = 8;

/// One request in one stream. A stream is a lane, or all deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLink<S> {
    /// Index of its rid among the block's texts.
    pub(super) text: u32,
    /// Link of the request that last followed it.
    next: u32,
    /// It has ended, so it is not expected again.
    pub(super) is_finished: bool,
    pub(super) state: S,
}

/// Current position of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPosition {
    /// Link of the stream's last request.
    pub(super) last_link: u32,
    /// Link of the predicted request that did not follow because a new one was inserted before it.
    skipped_link: u32,
}

impl Default for StreamPosition {
    fn default() -> Self {
        Self { last_link: NO_LINK, skipped_link: NO_LINK }
    }
}

/// All requests of a block, in all streams. Writer and reader keep identical state.
#[derive(Debug)]
pub(super) struct RequestOrder<S> {
    links: Vec<RequestLink<S>>,
}

impl<S> Default for RequestOrder<S> {
    fn default() -> Self {
        Self { links: Vec::new() }
    }
}

impl<S> RequestOrder<S> {
    /// Forgets all requests, for a new block.
    pub(super) fn clear(&mut self) {
        self.links.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// The link with this index; `None` if there is none, as for [`NO_LINK`].
    pub(super) fn get(&self, index: u32) -> Option<&RequestLink<S>> {
        self.links.get(index as usize)
    }

    /// The link with this index, which must exist.
    pub(super) fn link_mut(&mut self, index: u32) -> &mut RequestLink<S> {
        &mut self.links[index as usize]
    }

    /// Adds a request, and returns the index of its link.
    pub(super) fn add_request(&mut self, text: u32, state: S) -> u32 {
        self.links.push(RequestLink { text, next: NO_LINK, is_finished: false, state });
        self.links.len() as u32 - 1
    }

    /// Index of the link (entry) of the request that is predicted to come next, or [`NO_LINK`]. Requests probably come in the order of the
    /// last frame.
    pub(super) fn predict_next_link(&self, position: StreamPosition) -> u32 {
        let successor = self.get(position.last_link).map_or(NO_LINK, |last| last.next);
        let next = self.first_unfinished_link_from(successor);
        if next == NO_LINK {
            // A new request has no successor yet. It took the place of the request that was expected, which probably comes next.
            return self.first_unfinished_link_from(position.skipped_link);
        }
        next
    }

    /// Follows the order of the last frame from the link `link_index` on, to the link of the first request that has not ended. Returns
    /// [`NO_LINK`] at the end of the order.
    fn first_unfinished_link_from(&self, mut link_index: u32) -> u32 {
        // Limited, because the links of ended requests may form a circle. Then an ended request is returned.
        for _ in 0..MAX_SKIPPED {
            let Some(link) = self.get(link_index) else { break };
            if !link.is_finished {
                break;
            }
            link_index = link.next;
        }
        link_index
    }

    /// Moves the position in a stream of chunks or deliveries to its next request, and learns its order for the next prediction.
    /// `actual_link` is the index of that request's link (entry), and `predicted_link` the index that was expected.
    pub(super) fn advance_position(&mut self, position: &mut StreamPosition, predicted_link: u32, actual_link: u32) {
        if let Some(last) = self.links.get_mut(position.last_link as usize) {
            // The order of the last frame is the prediction for the next.
            last.next = actual_link;
        }
        if actual_link != predicted_link {
            // The expected request may follow behind this one.
            position.skipped_link = predicted_link;
        }
        position.last_link = actual_link;
    }
}

/// Index of a request's link, by its stream and the text index of its rid.
pub(super) type RequestLinks = HashMap<(u32, u32), u32>;
