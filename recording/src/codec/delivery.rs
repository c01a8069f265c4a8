//! Deliveries: one record each. A delivery as predicted takes one byte in addition to its time.

use trace::engine::Mode;
use trace::event::{Delivery, Response};

use super::bytes::{Cursor, Fields, Malformed, Put};
use super::chain::{Chain, Link, Links, NONE, Place};
use super::columns::Columns;
use super::text::{Reading, Texts};

/// Flags of mispredicted fields.
const WHOSE: u8 = 1;
const TOKENS: u8 = 1 << 1;
const MODE: u8 = 1 << 2;
const COMPLETION: u8 = 1 << 3;
const FINISHED: u8 = 1 << 4;
/// The response is not streamed with token ids: its kind follows.
const RESPONSE: u8 = 1 << 5;
/// The number of chunks without text follows.
const WITHOUT_TEXT: u8 = 1 << 6;

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
        self.chain.0.clear();
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
            flags |= WHOSE;
            let (text, new) = texts.place(delivery.rid, columns);
            let known = if new { None } else { links.get(&(NONE, text)).copied() };
            known.unwrap_or_else(|| {
                let at = self.chain.push(text, DeliveryState::default());
                links.insert((NONE, text), at);
                at
            })
        };
        let Link { text, state: given, .. } = *self.chain.link(at);
        let completion = given.completion();
        let tokens = given.tokens(delivery.mode, delivery.completion_tokens);
        let mark = |differs: bool, field: u8| if differs { field } else { 0 };
        flags |= mark(delivery.tokens != tokens, TOKENS)
            | mark(delivery.mode != self.mode, MODE)
            | mark(delivery.completion_tokens != completion, COMPLETION)
            | mark(delivery.finished, FINISHED)
            | mark(delivery.response != Response::Streamed, RESPONSE)
            | mark(delivery.without_text != 0, WITHOUT_TEXT);
        if flags != 0 {
            let column = &mut columns.delivery;
            column.push(flags);
            if flags & WHOSE != 0 {
                column.number(u64::from(text));
                column.number(u64::from(at));
            }
            self.fields(flags, given, column, &mut { *delivery }).expect("a column in memory takes every field");
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
        if flags & WHOSE != 0 {
            let text = column.small()?;
            texts.named(text)?;
            at = column.small()?;
            if at as usize == self.chain.0.len() {
                self.chain.push(text, DeliveryState::default());
            }
        }
        let link = self.chain.get(at);
        let &Link { text, state: given, .. } = link.ok_or(Malformed("delivery without a request"))?;
        let mut delivery = Delivery::new(texts.get(text)?, 0, None);
        self.fields(flags, given, column, &mut delivery)?;
        self.take(expected, at, &delivery);
        Ok(delivery)
    }

    /// Writes or reads the fields of a delivery, except its rid. Those without a flag are as predicted.
    fn fields(
        &self,
        flags: u8,
        given: DeliveryState,
        column: &mut impl Fields,
        delivery: &mut Delivery<'_>,
    ) -> Result<(), Malformed> {
        let differs = |field: u8| flags & field != 0;
        column.code(differs(MODE), &mut delivery.mode, self.mode)?;
        column.near(differs(COMPLETION), &mut delivery.completion_tokens, given.completion())?;
        let expected = given.tokens(delivery.mode, delivery.completion_tokens);
        let mut tokens = Some(delivery.tokens);
        column.near(differs(TOKENS), &mut tokens, Some(expected))?;
        delivery.tokens = tokens.ok_or(Malformed("a delivery without a count"))?;
        delivery.finished = differs(FINISHED);
        column.code(differs(RESPONSE), &mut delivery.response, Response::Streamed)?;
        column.index(differs(WITHOUT_TEXT), &mut delivery.without_text, 0)
    }

    fn take(&mut self, expected: u32, at: u32, delivery: &Delivery<'_>) {
        self.mode = delivery.mode;
        self.chain.advance(&mut self.place, expected, at);
        let link = self.chain.link(at);
        link.state.take(delivery);
        link.finished = delivery.finished;
    }
}
