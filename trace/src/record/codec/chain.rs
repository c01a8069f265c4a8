//! Prediction of the order of requests. A frame lists its requests mostly in the order of the previous frame, minus finished ones and plus
//! new ones. So the predicted request is the one that last followed its neighbour in any frame.

use hashbrown::HashMap;

/// No link.
pub(super) const NONE: u32 = u32::MAX;

/// Maximum number of ended requests skipped in a prediction.
const STEPS: usize = 8;

/// One request in one stream. A stream is a lane, or all deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<S> {
    /// Index of its rid among the block's texts.
    pub(super) text: u32,
    next: u32,
    /// It has ended, so it is not expected again.
    finished: bool,
    pub(super) state: S,
}

/// Current position of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    last: u32,
    /// Predicted request that did not follow because a new one was inserted before it.
    missed: u32,
}

impl Default for Place {
    fn default() -> Self {
        Self { last: NONE, missed: NONE }
    }
}

impl Place {
    /// Last request of the stream.
    pub(super) fn last(self) -> u32 {
        self.last
    }
}

/// All requests of a block, in all streams. Writer and reader keep identical state.
#[derive(Debug)]
pub(super) struct Chain<S> {
    links: Vec<Link<S>>,
}

impl<S> Default for Chain<S> {
    fn default() -> Self {
        Self { links: Vec::new() }
    }
}

impl<S> Chain<S> {
    pub(super) fn clear(&mut self) {
        self.links.clear();
    }

    pub(super) fn len(&self) -> u32 {
        self.links.len() as u32
    }

    pub(super) fn get(&self, at: u32) -> Option<&Link<S>> {
        self.links.get(at as usize)
    }

    pub(super) fn state(&mut self, at: u32) -> &mut S {
        &mut self.links[at as usize].state
    }

    pub(super) fn push(&mut self, text: u32, state: S) -> u32 {
        self.links.push(Link { text, next: NONE, finished: false, state });
        self.links.len() as u32 - 1
    }

    pub(super) fn set_finished(&mut self, at: u32, finished: bool) {
        self.links[at as usize].finished = finished;
    }

    /// Predicted next request if the order is unchanged.
    pub(super) fn expected(&self, place: Place) -> u32 {
        match self.skip_finished(self.get(place.last).map_or(NONE, |l| l.next)) {
            NONE => self.skip_finished(place.missed),
            next => next,
        }
    }

    fn skip_finished(&self, mut at: u32) -> u32 {
        for _ in 0..STEPS {
            match self.get(at) {
                Some(link) if link.finished => at = link.next,
                _ => break,
            }
        }
        at
    }

    /// Advances the stream to request `actual`, where `expected` was predicted.
    pub(super) fn advance(&mut self, place: &mut Place, expected: u32, actual: u32) {
        if let Some(last) = self.links.get_mut(place.last as usize) {
            last.next = actual;
        }
        if actual != expected {
            place.missed = expected;
        }
        place.last = actual;
    }
}

/// Maps a stream and the text index of a rid to the request's link.
#[derive(Debug, Default)]
pub(super) struct Links(HashMap<(u32, u32), u32>);

impl Links {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn find(&self, stream: u32, text: u32) -> Option<u32> {
        self.0.get(&(stream, text)).copied()
    }

    pub(super) fn insert(&mut self, stream: u32, text: u32, at: u32) {
        self.0.insert((stream, text), at);
    }
}
