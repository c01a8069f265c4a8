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
    pub(super) finished: bool,
    pub(super) state: S,
}

/// Current position of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Last request of the stream.
    pub(super) last: u32,
    /// Predicted request that did not follow because a new one was inserted before it.
    missed: u32,
}

impl Default for Place {
    fn default() -> Self {
        Self { last: NONE, missed: NONE }
    }
}

/// All requests of a block, in all streams. Writer and reader keep identical state.
#[derive(Debug)]
pub(super) struct Chain<S>(pub(super) Vec<Link<S>>);

impl<S> Default for Chain<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Chain<S> {
    pub(super) fn get(&self, at: u32) -> Option<&Link<S>> {
        self.0.get(at as usize)
    }

    pub(super) fn link(&mut self, at: u32) -> &mut Link<S> {
        &mut self.0[at as usize]
    }

    pub(super) fn push(&mut self, text: u32, state: S) -> u32 {
        self.0.push(Link { text, next: NONE, finished: false, state });
        self.0.len() as u32 - 1
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
        if let Some(last) = self.0.get_mut(place.last as usize) {
            last.next = actual;
        }
        if actual != expected {
            place.missed = expected;
        }
        place.last = actual;
    }
}

/// Maps a stream and the text index of a rid to the request's link.
pub(super) type Links = HashMap<(u32, u32), u32>;
