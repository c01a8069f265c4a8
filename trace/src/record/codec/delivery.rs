//! Deliveries: one record each. A delivery as predicted takes one byte in addition to its time.

use super::bytes::{Cursor, Malformed, Put};
use super::chain::{Chain, Link, Links, NONE, Place};
use super::codes::Code;
use super::columns::Columns;
use super::text::{Reading, Texts};
use crate::engine::Mode;
use crate::event::{Delivery, Response};

/// State after the last delivery of one request.
#[derive(Clone, Copy, Debug)]
struct DeliveryState {
    completion: Option<u32>,
    step: u32,
    tokens: u32,
}

impl Default for DeliveryState {
    fn default() -> Self {
        Self { completion: Some(0), step: 1, tokens: 1 }
    }
}

impl DeliveryState {
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
    chain: Chain<DeliveryState>,
    place: Place,
    mode: Mode,
}

impl Default for Deliveries {
    fn default() -> Self {
        Self { chain: Chain::default(), place: Place::default(), mode: Mode::Incremental }
    }
}

impl Deliveries {
    pub(super) fn clear(&mut self) {
        self.chain.clear();
        self.place = Place::default();
        self.mode = Mode::Incremental;
    }

    /// Writes the mispredicted fields of a delivery. Returns whether there are none.
    pub(super) fn write(
        &mut self,
        delivery: &Delivery<'_>,
        texts: &mut Texts,
        links: &mut Links,
        columns: &mut Columns<Vec<u8>>,
    ) -> bool {
        let expected = self.chain.expected(self.place);
        let known = self.chain.get(expected);
        let mut flags = 0;
        let at = if known.is_some_and(|link| texts.is(link.text, delivery.rid)) {
            expected
        } else {
            flags |= flags::WHOSE;
            let (text, new) = texts.place(delivery.rid, columns);
            let known = if new { None } else { links.find(NONE, text) };
            known.unwrap_or_else(|| {
                let at = self.chain.push(text, DeliveryState::default());
                links.insert(NONE, text, at);
                at
            })
        };
        let Some(&Link { text, state: given, .. }) = self.chain.get(at) else {
            return false;
        };
        let completion = given.completion();
        let tokens = given.tokens(delivery.mode, delivery.completion_tokens);
        let mark = |differs: bool, field: u8| if differs { field } else { 0 };
        flags |= mark(delivery.tokens != tokens, flags::TOKENS)
            | mark(delivery.mode != self.mode, flags::MODE)
            | mark(delivery.completion_tokens != completion, flags::COMPLETION)
            | mark(delivery.finished, flags::FINISHED)
            | mark(delivery.response != Response::Streamed, flags::RESPONSE)
            | mark(delivery.without_text != 0, flags::WITHOUT_TEXT);
        if flags != 0 {
            let column = &mut columns.delivery;
            column.push(flags);
            if flags & flags::WHOSE != 0 {
                column.number(u64::from(text));
                column.number(u64::from(at));
            }
            if flags & flags::MODE != 0 {
                column.push(delivery.mode.code());
            }
            if flags & flags::COMPLETION != 0 {
                column.near(delivery.completion_tokens, completion);
            }
            if flags & flags::TOKENS != 0 {
                column.near(Some(delivery.tokens), Some(tokens));
            }
            if flags & flags::RESPONSE != 0 {
                column.push(delivery.response.code());
            }
            if flags & flags::WITHOUT_TEXT != 0 {
                column.number(u64::from(delivery.without_text));
            }
        }
        self.take(expected, at, delivery);
        flags == 0
    }

    pub(super) fn read<'b>(
        &mut self,
        predicted: bool,
        column: &mut Cursor<'_>,
        texts: &mut Reading<'b>,
    ) -> Result<Delivery<'b>, Malformed> {
        let flags = if predicted { 0 } else { column.byte()? };
        let expected = self.chain.expected(self.place);
        let mut at = expected;
        if flags & flags::WHOSE != 0 {
            let text = column.small()?;
            texts.named(text)?;
            at = column.small()?;
            if at == self.chain.len() {
                self.chain.push(text, DeliveryState::default());
            }
        }
        let link = self.chain.get(at);
        let &Link { text, state: given, .. } = link.ok_or(Malformed("delivery without a request"))?;
        let mut mode = self.mode;
        if flags & flags::MODE != 0 {
            mode = Mode::of(column.byte()?)?;
        }
        let mut completion_tokens = given.completion();
        if flags & flags::COMPLETION != 0 {
            completion_tokens = column.near(completion_tokens)?;
        }
        let mut tokens = given.tokens(mode, completion_tokens);
        if flags & flags::TOKENS != 0 {
            let near = column.near(Some(tokens))?;
            tokens = near.ok_or(Malformed("a delivery without a count"))?;
        }
        let mut response = Response::Streamed;
        if flags & flags::RESPONSE != 0 {
            response = Response::of(column.byte()?)?;
        }
        let mut without_text = 0;
        if flags & flags::WITHOUT_TEXT != 0 {
            without_text = column.small()?;
        }
        let delivery = Delivery {
            rid: texts.get(text)?,
            tokens,
            mode,
            completion_tokens,
            finished: flags & flags::FINISHED != 0,
            response,
            without_text,
        };
        self.take(expected, at, &delivery);
        Ok(delivery)
    }

    fn take(&mut self, expected: u32, at: u32, delivery: &Delivery<'_>) {
        self.mode = delivery.mode;
        self.chain.state(at).take(delivery);
        self.chain.advance(&mut self.place, expected, at);
        self.chain.set_finished(at, delivery.finished);
    }
}

/// Flags of mispredicted fields.
mod flags {
    pub(super) const WHOSE: u8 = 1;
    pub(super) const TOKENS: u8 = 1 << 1;
    pub(super) const MODE: u8 = 1 << 2;
    pub(super) const COMPLETION: u8 = 1 << 3;
    pub(super) const FINISHED: u8 = 1 << 4;
    /// The response is not streamed with token ids: its kind follows.
    pub(super) const RESPONSE: u8 = 1 << 5;
    /// The number of chunks without text follows.
    pub(super) const WITHOUT_TEXT: u8 = 1 << 6;
}
