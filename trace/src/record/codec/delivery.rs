//! Deliveries: one record each. A delivery as predicted takes one byte in addition to its time.

use super::bytes::{Malformed, Put};
use super::chain::{Chain, Link, NONE, Place};
use super::codes::Code;
use super::decoder::Decoder;
use super::encoder::Encoder;
use crate::engine::Mode;
use crate::event::{Delivery, Response};

/// Values of the last deliveries of one request.
#[derive(Clone, Copy, Debug)]
struct Given {
    completion: Option<u32>,
    step: u32,
    tokens: u32,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            completion: Some(0),
            step: 1,
            tokens: 1,
        }
    }
}

impl Given {
    fn completion(&self) -> Option<u32> {
        self.completion.map(|n| n.wrapping_add(self.step))
    }

    /// Predicted number of tokens for the delivery's count.
    fn tokens(&self, mode: Mode, completion: Option<u32>) -> u32 {
        match (mode, completion, self.completion) {
            (Mode::Cumulative, Some(n), _) => n,
            (Mode::Incremental, Some(n), Some(before)) => n.wrapping_sub(before),
            _ => self.tokens,
        }
    }

    fn take(&mut self, delivery: &Delivery<'_>) {
        let step = delivery.completion_tokens.zip(self.completion);
        self.step = step.map_or(1, |(n, before)| n.wrapping_sub(before));
        self.completion = delivery.completion_tokens;
        self.tokens = delivery.tokens;
    }
}

/// Deliveries of a block. Writer and reader keep identical state.
#[derive(Debug)]
pub(super) struct Deliveries {
    chain: Chain<Given>,
    place: Place,
    mode: Mode,
}

impl Default for Deliveries {
    fn default() -> Self {
        Self {
            chain: Chain::default(),
            place: Place::default(),
            mode: Mode::Incremental,
        }
    }
}

impl Deliveries {
    pub(super) fn clear(&mut self) {
        self.chain.clear();
        self.place = Place::default();
        self.mode = Mode::Incremental;
    }

    fn take(&mut self, expected: u32, at: u32, delivery: &Delivery<'_>) {
        self.mode = delivery.mode;
        self.chain.state(at).take(delivery);
        self.chain.came(&mut self.place, expected, at);
        self.chain.set_over(at, delivery.finished);
    }
}

/// Flags of mispredicted fields.
mod odd {
    pub(super) const WHOSE: u8 = 1;
    pub(super) const TOKENS: u8 = 1 << 1;
    pub(super) const MODE: u8 = 1 << 2;
    pub(super) const COMPLETION: u8 = 1 << 3;
    pub(super) const FINISHED: u8 = 1 << 4;
    /// The response is not streamed with token ids: its kind follows.
    pub(super) const RESPONSE: u8 = 1 << 5;
}

impl Encoder {
    /// Writes the mispredicted fields of a delivery. Returns whether there are none.
    pub(super) fn delivery(&mut self, delivery: &Delivery<'_>) -> bool {
        let expected = self.given.chain.expected(self.given.place);
        let known = self.given.chain.get(expected);
        let mut odd = 0;
        let at = if known.is_some_and(|link| self.texts.is(link.text, delivery.rid)) {
            expected
        } else {
            odd |= odd::WHOSE;
            let (text, new) = self.texts.place(delivery.rid, &mut self.columns);
            let known = if new { None } else { self.links.find(NONE, text) };
            known.unwrap_or_else(|| {
                let at = self.given.chain.push(text, Given::default());
                self.links.insert(NONE, text, at);
                at
            })
        };
        let Some(&Link { text, state: given, .. }) = self.given.chain.get(at) else {
            return false;
        };
        let completion = given.completion();
        let tokens = given.tokens(delivery.mode, delivery.completion_tokens);
        let mark = |is_odd: bool, field: u8| if is_odd { field } else { 0 };
        odd |= mark(delivery.tokens != tokens, odd::TOKENS)
            | mark(delivery.mode != self.given.mode, odd::MODE)
            | mark(delivery.completion_tokens != completion, odd::COMPLETION)
            | mark(delivery.finished, odd::FINISHED)
            | mark(delivery.response != Response::Streamed, odd::RESPONSE);
        if odd != 0 {
            let column = &mut self.columns.delivery;
            column.push(odd);
            if odd & odd::WHOSE != 0 {
                column.number(u64::from(text));
                column.number(u64::from(at));
            }
            if odd & odd::MODE != 0 {
                column.push(delivery.mode.code());
            }
            if odd & odd::COMPLETION != 0 {
                column.near(delivery.completion_tokens, completion);
            }
            if odd & odd::TOKENS != 0 {
                column.near(Some(delivery.tokens), Some(tokens));
            }
            if odd & odd::RESPONSE != 0 {
                column.push(delivery.response.code());
            }
        }
        self.given.take(expected, at, delivery);
        odd == 0
    }
}

impl<'b> Decoder<'_, 'b> {
    pub(super) fn delivery(&mut self, as_expected: bool) -> Result<Delivery<'b>, Malformed> {
        let column = &mut self.columns.delivery;
        let deliveries = &mut self.state.given;
        let odd = if as_expected { 0 } else { column.byte()? };
        let expected = deliveries.chain.expected(deliveries.place);
        let mut at = expected;
        if odd & odd::WHOSE != 0 {
            let text = column.small()?;
            self.texts.named(text)?;
            at = column.small()?;
            if at == deliveries.chain.len() {
                deliveries.chain.push(text, Given::default());
            }
        }
        let link = deliveries.chain.get(at);
        let &Link { text, state: given, .. } = link.ok_or(Malformed("a delivery to nobody"))?;
        let mut mode = deliveries.mode;
        if odd & odd::MODE != 0 {
            mode = Mode::of(column.byte()?)?;
        }
        let mut completion_tokens = given.completion();
        if odd & odd::COMPLETION != 0 {
            completion_tokens = column.near(completion_tokens)?;
        }
        let mut tokens = given.tokens(mode, completion_tokens);
        if odd & odd::TOKENS != 0 {
            let near = column.near(Some(tokens))?;
            tokens = near.ok_or(Malformed("a delivery without a count"))?;
        }
        let mut response = Response::Streamed;
        if odd & odd::RESPONSE != 0 {
            response = Response::of(column.byte()?)?;
        }
        let delivery = Delivery {
            rid: self.texts.get(text)?,
            tokens,
            mode,
            completion_tokens,
            finished: odd & odd::FINISHED != 0,
            response,
        };
        deliveries.take(expected, at, &delivery);
        Ok(delivery)
    }
}
