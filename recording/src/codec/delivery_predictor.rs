//! Deliveries: one record each. A delivery as predicted takes one byte in addition to its time.

use trace::engine::Mode;
use trace::event::{Delivery, Response};

use super::bytes::{ColumnCursor, FieldTransfer, MalformedBlock, PutNumber};
use super::chunk_predictor::flag_if;
use super::columns::BlockColumns;
use super::request_order::{NO_LINK, RequestLink, RequestLinks, RequestOrder, StreamPosition};
use super::text::{TextReader, TextTable};

/// Flags of mispredicted fields.
const REQUEST: u8 = 1;
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
    /// Number of new tokens in the last delivery.
    completion_step: u32,
    tokens: u32,
}

impl Default for DeliveryState {
    /// Predicts that the first delivery has one token.
    fn default() -> Self {
        Self { completion: Some(0), completion_step: 1, tokens: 1 }
    }
}

impl DeliveryState {
    /// Predicted token count: that of the last delivery, plus as many new tokens as it had. `None` if the last delivery has no count.
    fn predicted_completion(&self) -> Option<u32> {
        self.completion.map(|last_completion| last_completion.wrapping_add(self.completion_step))
    }

    /// Predicted number of tokens of a delivery with the token count `token_count`.
    fn predicted_tokens(&self, mode: Mode, token_count: Option<u32>) -> u32 {
        // Without counts, most deliveries have as many tokens as the one before.
        let Some(token_count) = token_count else { return self.tokens };
        match mode {
            Mode::Cumulative => token_count,
            Mode::Incremental => self.completion.map_or(self.tokens, |before| token_count.wrapping_sub(before)),
        }
    }

    /// Records a delivery, from which the next one is predicted.
    fn record_delivery(&mut self, delivery: &Delivery<'_>) {
        // Most deliveries have one token.
        self.completion_step = 1;
        if let Some(completion) = delivery.completion_tokens
            && let Some(last_completion) = self.completion
        {
            self.completion_step = completion.wrapping_sub(last_completion);
        }
        self.completion = delivery.completion_tokens;
        self.tokens = delivery.tokens;
    }
}

/// Deliveries of a block. Writer and reader keep identical state.
#[derive(Debug)]
pub(super) struct DeliveryPredictor {
    order: RequestOrder<DeliveryState>,
    position: StreamPosition,
    mode: Mode,
}

impl Default for DeliveryPredictor {
    /// State at the begin of a block.
    fn default() -> Self {
        Self { order: RequestOrder::default(), position: StreamPosition::default(), mode: Mode::Incremental }
    }
}

impl DeliveryPredictor {
    /// Forgets all predictions, for a new block.
    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.position = StreamPosition::default();
        self.mode = Mode::Incremental;
    }

    /// Writes the mispredicted fields of a delivery, and advances the predictions. Returns `true` if all fields are as predicted; then
    /// nothing is written. A link is the entry of a request in the predicted order.
    pub(super) fn write_delivery_unless_predicted(
        &mut self,
        delivery: &Delivery<'_>,
        texts: &mut TextTable,
        links: &mut RequestLinks,
        columns: &mut BlockColumns<Vec<u8>>,
    ) -> bool {
        let predicted_index = self.order.predict_next_link(self.position);
        let predicted_link = self.order.get(predicted_index);
        let is_request_predicted = predicted_link.is_some_and(|link| texts.is_text(link.text, delivery.rid));
        let link_index = if is_request_predicted {
            predicted_index
        } else {
            self.find_or_add_request_link(delivery.rid, texts, links, columns)
        };
        let RequestLink { text, state, .. } = *self.order.link_mut(link_index);
        let flags = flag_if(!is_request_predicted, REQUEST) | self.mispredicted_field_flags(state, delivery);
        if flags != 0 {
            let column = &mut columns.delivery;
            column.push(flags);
            if flags & REQUEST != 0 {
                column.put_number(u64::from(text));
                column.put_number(u64::from(link_index));
            }
            // The function needs a mutable delivery only to read into it, so it gets a copy.
            let mut copy = *delivery;
            let written = self.write_or_read_fields(flags, state, column, &mut copy);
            written.expect("a column in memory takes every field");
        }
        self.advance_predictions(predicted_index, link_index, delivery);
        flags == 0
    }

    /// Index of the link of the request with this rid. A request that has no delivery in the block yet gets a new link.
    #[inline]
    fn find_or_add_request_link(
        &mut self,
        rid: &str,
        texts: &mut TextTable,
        links: &mut RequestLinks,
        columns: &mut BlockColumns<Vec<u8>>,
    ) -> u32 {
        let text = texts.add_text(rid, columns);
        // Links are found by lane and text. Deliveries belong to no lane, so `NO_LINK` stands for it.
        let known_index = if text.is_new { None } else { links.get(&(NO_LINK, text.index)).copied() };
        if let Some(index) = known_index {
            return index;
        }
        let index = self.order.add_request(text.index, DeliveryState::default());
        links.insert((NO_LINK, text.index), index);
        index
    }

    /// Flags of the fields of a delivery that differ from their prediction. `state` is that after the last delivery of its request.
    #[inline]
    fn mispredicted_field_flags(&self, state: DeliveryState, delivery: &Delivery<'_>) -> u8 {
        let predicted_completion = state.predicted_completion();
        let predicted_tokens = state.predicted_tokens(delivery.mode, delivery.completion_tokens);
        flag_if(delivery.tokens != predicted_tokens, TOKENS)
            | flag_if(delivery.mode != self.mode, MODE)
            | flag_if(delivery.completion_tokens != predicted_completion, COMPLETION)
            | flag_if(delivery.finished, FINISHED)
            | flag_if(delivery.response != Response::Streamed, RESPONSE)
            | flag_if(delivery.without_text != 0, WITHOUT_TEXT)
    }

    /// Reads a delivery, which has no bytes in the column if it `is_predicted`. A link is the entry of a request in the predicted order.
    pub(super) fn read_delivery<'b>(
        &mut self,
        is_predicted: bool,
        column: &mut ColumnCursor<'_>,
        texts: &mut TextReader<'b>,
    ) -> Result<Delivery<'b>, MalformedBlock> {
        let flags = if is_predicted { 0 } else { column.read_byte()? };
        let predicted_index = self.order.predict_next_link(self.position);
        let is_of_other_request = flags & REQUEST != 0;
        let link_index =
            if is_of_other_request { self.read_unchecked_link_index(column, texts)? } else { predicted_index };
        let link = self.order.get(link_index);
        let &RequestLink { text, state, .. } = link.ok_or(MalformedBlock("delivery without a request"))?;
        // Only the rid is final. The next call sets all other fields.
        let mut delivery = Delivery::new(texts.get(text)?, 0, None);
        self.write_or_read_fields(flags, state, column, &mut delivery)?;
        self.advance_predictions(predicted_index, link_index, &delivery);
        Ok(delivery)
    }

    /// Reads the request of a delivery whose request was not predicted. Returns the index of the request's link, which is its entry in the
    /// predicted order. The caller must check the index, because a damaged block may have any.
    #[inline]
    fn read_unchecked_link_index(
        &mut self,
        column: &mut ColumnCursor<'_>,
        texts: &mut TextReader<'_>,
    ) -> Result<u32, MalformedBlock> {
        // Index of the text with the rid.
        let text = column.read_u32()?;
        // The text itself is not needed. The call counts it as read if it is new in the block.
        texts.get_text_or_take_new(text)?;
        let index = column.read_u32()?;
        // The index after the last one stands for a new request.
        if index as usize == self.order.len() {
            self.order.add_request(text, DeliveryState::default());
        }
        Ok(index)
    }

    /// Writes the fields of a delivery to the column, or reads them from there, except its rid. `flags` has a bit for each field that is
    /// not as predicted; the others take no bytes. One function writes and reads, so that both use the same order of fields.
    fn write_or_read_fields(
        &self,
        flags: u8,
        state: DeliveryState,
        column: &mut impl FieldTransfer,
        delivery: &mut Delivery<'_>,
    ) -> Result<(), MalformedBlock> {
        // The mode comes first, because the predictions below depend on it.
        column.write_or_read_code(flags & MODE != 0, &mut delivery.mode, self.mode)?;
        column.write_or_read_optional(
            flags & COMPLETION != 0,
            &mut delivery.completion_tokens,
            state.predicted_completion(),
        )?;
        let predicted_tokens = state.predicted_tokens(delivery.mode, delivery.completion_tokens);
        // The column holds optional numbers, but a delivery always has its number of tokens.
        let mut tokens = Some(delivery.tokens);
        column.write_or_read_optional(flags & TOKENS != 0, &mut tokens, Some(predicted_tokens))?;
        delivery.tokens = tokens.ok_or(MalformedBlock("a delivery without a count"))?;
        delivery.finished = flags & FINISHED != 0;
        column.write_or_read_code(flags & RESPONSE != 0, &mut delivery.response, Response::Streamed)?;
        // Without the flag, all chunks have text.
        column.write_or_read_number(flags & WITHOUT_TEXT != 0, &mut delivery.without_text, 0)
    }

    /// Advances the predictions after a delivery. `link_index` is its request, and `predicted_link` is the request that was expected.
    fn advance_predictions(&mut self, predicted_link: u32, link_index: u32, delivery: &Delivery<'_>) {
        self.mode = delivery.mode;
        self.order.advance_position(&mut self.position, predicted_link, link_index);
        let link = self.order.link_mut(link_index);
        link.state.record_delivery(delivery);
        link.is_finished = delivery.finished;
    }
}
