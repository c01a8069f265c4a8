//! Tokens of a response's events: by the counts that the events show, or by comparing their text with the text that was sent.

use trace::event::{AnswerContent, AnswerFinish, AnswerForm};

use super::{OpenResponse, RequestPart};
use crate::event::{Completion, EventSink, ResponseForm};
use crate::fields::common_finish;
use crate::text::Texts;
use crate::{Limits, Server};

impl RequestPart {
    /// Adds the tokens of an event to those of its request. `self.tokens` are those that observed events listed. `self.tokens_so_far` also
    /// includes those of missed events, if the response states them.
    #[inline]
    pub(super) fn add_tokens(&mut self, completion: &Completion<'_>) {
        let tokens_before = self.tokens_so_far;
        self.count_event_for_content(completion, tokens_before);
        let listed_tokens = completion.tokens.unwrap_or(0);
        self.tokens = if lists_all_ids(completion) { listed_tokens } else { self.tokens.saturating_add(listed_tokens) };
        // A total that the event states shows the tokens of missed events, too.
        let summed_up = tokens_before.map(|before| before.saturating_add(listed_tokens));
        self.tokens_so_far = completion.tokens_so_far.or(summed_up);
        self.is_counted &= completion.tokens.is_some();
        self.may_lack_tokens |= may_lack_removed_text(completion);
    }

    /// Whether the events had fewer tokens than the response states, because a parser removed the text of the others.
    pub(super) fn lacks_tokens(&self) -> bool {
        self.may_lack_tokens && self.stated_tokens.is_some_and(|stated| self.tokens < stated)
    }

    /// Adds an event to the description of an HTTP response's content: its finish reason, and the number of events with output.
    /// `tokens_before`: number of the request's tokens up to the previous event, if known.
    fn count_event_for_content(&mut self, completion: &Completion<'_>, tokens_before: Option<u32>) {
        let Some(form) = answer_form(completion.form) else { return };
        let content = self.content.get_or_insert(AnswerContent::new(form));
        content.finish = common_finish(content.finish, finish_of_event(completion));
        let new_tokens = new_tokens_of_event(completion, tokens_before);
        let has_tokens = new_tokens.is_some_and(|tokens| tokens > 0);
        // The text of the engine's own endpoint is not read, so each of its events may have some.
        let may_have_text = !completion.text.is_empty() || form == AnswerForm::Generate;
        if has_tokens || may_have_text {
            content.events = content.events.saturating_add(1);
        }
        if has_tokens {
            content.event_tokens_max = content.event_tokens_max.max(new_tokens);
        }
    }
}

/// Whether the event lists all ids of its request so far: as many as the count that it states. The first event of an incremental response
/// also does, with the same result.
#[inline]
fn lists_all_ids(completion: &Completion<'_>) -> bool {
    completion.form != ResponseForm::OpenAi && completion.stated_tokens == completion.tokens
}

/// Whether tokens may be missing in the event's count. Log probabilities of a chat lack the tokens of text that a parser removed. Only
/// continuous usage would count these.
#[inline]
fn may_lack_removed_text(completion: &Completion<'_>) -> bool {
    let has_continuous_usage = completion.tokens_so_far.is_some();
    completion.logprobs.is_some() && !has_continuous_usage && !completion.text.completion
}

/// Form of an HTTP response to a client. `None` for other responses, whose content is not described.
#[inline]
fn answer_form(form: ResponseForm) -> Option<AnswerForm> {
    match form {
        ResponseForm::OpenAi => Some(AnswerForm::OpenAi),
        ResponseForm::Generate => Some(AnswerForm::Generate),
        ResponseForm::WorkerStream | ResponseForm::GrpcText => None,
    }
}

/// Finish reason of an event. A finishing event whose reason was not read counts as one with another reason.
#[inline]
fn finish_of_event(completion: &Completion<'_>) -> Option<AnswerFinish> {
    if completion.finished { completion.finish.or(Some(AnswerFinish::Other)) } else { None }
}

/// Number of tokens that are new in the event, if it shows them. `tokens_before`: number of the request's tokens up to the previous event.
#[inline]
fn new_tokens_of_event(completion: &Completion<'_>, tokens_before: Option<u32>) -> Option<u32> {
    if let Some(tokens_so_far) = completion.tokens_so_far
        && let Some(tokens_before) = tokens_before
        && let Some(new_tokens) = tokens_so_far.checked_sub(tokens_before)
    {
        return Some(new_tokens);
    }
    // An event of the engine's own endpoint may list the ids of earlier tokens, too.
    if completion.form == ResponseForm::OpenAi { completion.tokens } else { None }
}

impl OpenResponse {
    /// Number of tokens in an event, by what the event shows: the total so far of its request (continuous usage), or else its ids, or else
    /// its log probabilities. `None` if an earlier event or this one shows no count. An event without text counts as 0 tokens, unless
    /// `is_compared`: the tokens are counted by comparing the text with the text that was sent.
    pub(super) fn count_tokens(
        &self,
        completion: &Completion<'_>,
        limits: &Limits,
        is_compared: bool,
        sink: &mut EventSink<'_>,
    ) -> Option<u32> {
        // The earlier events of the request.
        let part = self.find_part(&completion.rid);
        if part.is_some_and(|part| !part.is_counted) {
            return None;
        }
        let listed = completion.tokens.or(completion.logprobs);
        let Some(tokens_so_far) = completion.tokens_so_far else {
            let counts_as_empty = !is_compared && has_no_token(completion, part);
            return if counts_as_empty { Some(listed.unwrap_or(0)) } else { listed };
        };
        if let Some(tokens_before) = self.tokens_before_event(part, limits) {
            return tokens_so_far.checked_sub(tokens_before);
        }
        if listed.is_none() {
            // The total includes an unknown number of tokens of missed events, so nothing shows how many this event has.
            sink.report_missed_event();
            return Some(0);
        }
        listed
    }

    /// Number of the request's tokens before the present event. `None` if an earlier event was missed. `part` has the request's earlier
    /// events; `None` if there are none.
    #[inline]
    fn tokens_before_event(&self, part: Option<&RequestPart>, limits: &Limits) -> Option<u32> {
        match part {
            Some(part) => part.tokens_so_far,
            // Above the limit, an earlier event may have been left out.
            None if self.is_fully_observed && self.parts.len() < limits.requests => Some(0),
            None => None,
        }
    }

    /// Counts the tokens of an event that shows no count, by comparing its text with the text that the engine sent for its request. `None`
    /// if they are unknown, or if the event needs no comparison. Once an event with output shows a count, later ones are not compared.
    pub(super) fn count_tokens_by_text(&self, completion: &Completion<'_>, server: &mut Server) -> Option<u32> {
        let rid = &*completion.rid;
        match completion.form {
            ResponseForm::OpenAi => {}
            // A worker's stream lists ids.
            ResponseForm::WorkerStream => return None,
            // Their text is not compared, so the kept text of the request is of no use.
            ResponseForm::Generate | ResponseForm::GrpcText => {
                server.texts.stop_comparison(rid);
                return None;
            }
        }
        // The earlier events of the request.
        let part = self.find_part(rid);
        let are_earlier_counted = part.is_none_or(|part| part.is_counted);
        if completion.tokens.is_some() || !are_earlier_counted {
            end_comparison_by_event(completion, &mut server.texts);
            return None;
        }
        let are_all_events_observed = match part {
            // `None` since an event was missed.
            Some(part) => part.tokens_so_far.is_some(),
            None => self.is_fully_observed,
        };
        server.texts.compare_event(rid, &completion.text, completion.finished, are_all_events_observed)
    }
}

/// Whether an event that shows no count has no token. `part` has the earlier events of its request.
#[inline]
fn has_no_token(completion: &Completion<'_>, part: Option<&RequestPart>) -> bool {
    // At the end it may have a token without text, unless earlier events showed their tokens.
    let has_counted_tokens = part.is_some_and(|part| part.tokens > 0);
    let may_have_last_token = completion.finished && !has_counted_tokens;
    // An event without text has the role at the start of a chat.
    completion.text.is_empty() && !may_have_last_token
}

/// Ends the comparison of a request's text event by event, unless the event has no output.
#[inline]
fn end_comparison_by_event(completion: &Completion<'_>, texts: &mut Texts) {
    // The role at the start of a chat, or the usage at its end.
    let is_without_output = completion.tokens == Some(0) && completion.text.is_empty();
    if is_without_output {
        return;
    }
    // Chats may have tool calls, which are compared at the end of the response. A completion (`text.completion`) has none.
    if completion.text.completion {
        texts.stop_comparison(&completion.rid);
    } else {
        texts.defer_comparison_to_end(&completion.rid, &completion.text);
    }
}
