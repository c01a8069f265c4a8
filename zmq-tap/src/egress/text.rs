//! Comparison of the text in responses with the text that was sent, for responses whose events count no tokens.
//!
//! The ends of the sent chunks are kept as digests until a response has carried them. An event carries the chunks whose text it equals. The
//! tokens of a chunk without text, such as an incomplete character, come with the next text.

use std::collections::{HashMap, VecDeque};

use trace::HopId;
use trace::event::{Chunk, Finish, Frame, Kind};

use super::digest::Digest;

/// Maximum number of requests whose text is kept for comparison.
const MAX_REQUESTS: usize = 16_384;
/// Maximum number of chunks kept for one request.
const MAX_CHUNKS: usize = 65_536;
/// Maximum number of chunks kept for all requests.
const MAX_ALL_CHUNKS: usize = 1 << 20;
/// Number of events after missing text during which the text may still come, out of order.
const HELD: usize = 8;

/// Text of one choice in one event, by the fields that carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChoiceText {
    /// Text of a completion, or content of a chat.
    pub content: Digest,
    /// Reasoning, which comes before the content.
    pub reasoning: Digest,
    /// Whether other fields, such as tool calls, contain anything.
    pub elsewhere: bool,
    /// Whether it is of a completion, to which no parser applies.
    pub completion: bool,
}

impl ChoiceText {
    fn pieces(self) -> impl Iterator<Item = Digest> {
        [self.reasoning, self.content]
            .into_iter()
            .filter(|piece| !piece.is_empty())
    }
}

/// Texts of requests that no response has carried yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    requests: HashMap<String, Sent>,
    /// Oldest first.
    order: VecDeque<String>,
    /// Number of chunks kept for all requests.
    chunks: usize,
    /// Whether chats contain exactly the text that was sent: no parser moves or removes any. Otherwise missing text is not proven lost.
    pub exact: bool,
    /// Number of requests evicted because a limit was reached.
    pub evicted: u64,
    /// Responses whose text is not the text that was sent.
    pub differences: Differences,
    /// Deliveries to report.
    ready: Vec<Carried>,
}

/// Numbers of responses by their first difference from the text that was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Text is missing before an event or at the end, or comes later.
    pub missing: u64,
    /// The text of an event is repeated.
    pub repeated: u64,
    /// An event has other text.
    pub changed: u64,
    /// A field such as tool calls contains text in another form.
    pub elsewhere: u64,
    /// The first of them that is not `elsewhere`: its request, and the number of tokens before the difference.
    pub first: Option<(String, u32)>,
}

/// First difference of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    Missing,
    Repeated,
    Changed,
    Elsewhere,
}

impl Differences {
    fn add(&mut self, difference: Difference, rid: &str, tokens: u32) {
        let number = match difference {
            Difference::Missing => &mut self.missing,
            Difference::Repeated => &mut self.repeated,
            Difference::Changed => &mut self.changed,
            Difference::Elsewhere => &mut self.elsewhere,
        };
        *number += 1;
        if difference != Difference::Elsewhere && self.first.is_none() {
            self.first = Some((rid.to_owned(), tokens));
        }
    }

    /// Describes them.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded = Vec::new();
        if let Some((rid, tokens)) = &self.first {
            degraded.push(format!(
                "egress: the text of {} responses is not the text that was sent: missing in {}, repeated in {}, changed in {}; their later tokens are not judged; first: request {rid} after token {tokens}",
                self.missing + self.repeated + self.changed,
                self.missing,
                self.repeated,
                self.changed
            ));
        }
        if self.elsewhere > 0 {
            degraded.push(format!(
                "egress: {} responses carried text in tool calls or other fields; their later tokens are not judged",
                self.elsewhere
            ));
        }
        degraded
    }
}

/// Text of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    hop: HopId,
    /// Ends of the chunks that no response has carried yet.
    pending: VecDeque<End>,
    /// End of the last chunk.
    last: End,
    /// End of the text that the response has carried.
    carried: End,
    /// Text of the last event.
    event: Digest,
    /// Deliveries after missing text, until it is clear that the text does not come later.
    held: Vec<Carried>,
    /// Whether the last chunk has ended the request regularly.
    finished: bool,
    /// Whether the text is compared. Not once a chunk was missed, or an event had other text.
    compared: bool,
    /// Whether the response had other text.
    differs: bool,
}

/// A position in the output of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    text: Digest,
    tokens: u32,
}

/// Tokens whose text an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) tokens: u32,
    /// Number of tokens up to the last of them.
    pub(super) completion_tokens: u32,
}

impl Texts {
    /// Records the text of a frame.
    pub fn sent(&mut self, frame: &Frame<'_>) {
        if frame.kind != Kind::Text {
            return;
        }
        for chunk in frame.chunks {
            if let Some(count) = chunk.completion_tokens {
                self.enter(frame.id.hop, chunk, count);
            }
        }
    }

    fn enter(&mut self, hop: HopId, chunk: &Chunk<'_>, count: u32) {
        let rid = chunk.rid;
        // Without ids, several new tokens may also be a missed chunk.
        let most = chunk.listed.unwrap_or(1);
        if !self.requests.contains_key(rid) {
            // Its first chunks were not observed, or its response has ended early.
            if count > most {
                return;
            }
            if self.order.len() == MAX_REQUESTS {
                self.evict_oldest();
            }
            self.order.push_back(rid.to_owned());
            let sent = Sent {
                hop,
                pending: VecDeque::new(),
                last: End::default(),
                carried: End::default(),
                event: Digest::default(),
                held: Vec::new(),
                finished: false,
                compared: true,
                differs: false,
            };
            self.requests.insert(rid.to_owned(), sent);
        }
        // A router forwards the chunks on another hop.
        let follows = |sent: &&mut Sent| sent.compared && sent.hop == hop;
        let Some(sent) = self.requests.get_mut(rid).filter(follows) else {
            return;
        };
        let new = count.checked_sub(sent.last.tokens);
        let continues = new.is_some_and(|new| new <= most);
        let Some(text) = chunk.text.filter(|_| continues && sent.pending.len() < MAX_CHUNKS) else {
            return self.doubt(rid);
        };
        sent.last = End {
            text: sent.last.text.then(Digest::of(text)),
            tokens: count,
        };
        sent.finished = matches!(chunk.finish, Some(Finish::Length | Finish::Stop));
        sent.pending.push_back(sent.last);
        self.chunks += 1;
        while self.chunks > MAX_ALL_CHUNKS && self.order.len() > 1 {
            self.evict_oldest();
        }
    }

    /// Compares an event of a response. Returns its number of tokens, or `None` if it is unknown. Text that is missing before an event is lost
    /// only if `all_observed`: no earlier event of the response was missed. Deliveries to report are in [`Texts::ready`].
    pub(super) fn carried(&mut self, rid: &str, text: &ChoiceText, finished: bool, all_observed: bool) -> Option<u32> {
        let may_skip = all_observed && (self.exact || text.completion);
        let sent = self.requests.get_mut(rid).filter(|sent| sent.compared)?;
        let (before, begin) = (sent.pending.len(), sent.carried.tokens);
        let mut tokens = 0;
        let mut compare = || {
            for piece in text.pieces() {
                tokens += sent.carry(piece, may_skip).ok_or_else(|| sent.difference(piece))?;
            }
            match () {
                () if text.elsewhere => Err(Difference::Elsewhere),
                () if finished => {
                    tokens += sent.carry_rest(may_skip).ok_or(Difference::Missing)?;
                    Ok(())
                }
                () => Ok(()),
            }
        };
        let compared = compare();
        self.chunks -= before - sent.pending.len();
        let completion_tokens = sent.carried.tokens;
        if let Err(difference) = compared {
            sent.differs = true;
            self.differences.add(difference, rid, completion_tokens);
            self.doubt(rid);
            return None;
        }
        if tokens > 0 || finished {
            let follows_missing_text = begin + tokens < completion_tokens || !sent.held.is_empty();
            let held = if follows_missing_text {
                &mut sent.held
            } else {
                &mut self.ready
            };
            held.push(Carried {
                tokens,
                completion_tokens,
            });
            if finished || sent.held.len() > HELD {
                self.ready.append(&mut sent.held);
            }
        }
        Some(tokens)
    }

    /// Takes the deliveries that can be reported.
    pub(super) fn ready(&mut self) -> std::vec::Drain<'_, Carried> {
        self.ready.drain(..)
    }

    /// Ends the comparison of a response that ended without an event that finishes it. Returns the number of its last tokens.
    pub(super) fn ended(&mut self, rid: &str, all_observed: bool) -> Option<u32> {
        let unfinished = |sent: &&Sent| sent.compared && (!sent.pending.is_empty() || !sent.held.is_empty());
        self.requests.get(rid).filter(unfinished)?;
        self.carried(rid, &ChoiceText::default(), true, all_observed)
    }

    /// Stops the comparison for a request: a part of it is unknown.
    pub(super) fn doubt(&mut self, rid: &str) {
        if let Some(sent) = self.requests.get_mut(rid) {
            self.chunks -= std::mem::take(&mut sent.pending).len();
            sent.held.clear();
            sent.compared = false;
        }
    }

    /// Forgets a request whose response has ended. Returns whether the response had other text.
    pub(super) fn forget(&mut self, rid: &str) -> bool {
        let Some(sent) = self.requests.remove(rid) else {
            return false;
        };
        self.chunks -= sent.pending.len();
        if let Some(at) = self.order.iter().position(|known| known == rid) {
            self.order.remove(at);
        }
        sent.differs
    }

    fn evict_oldest(&mut self) {
        if let Some(oldest) = self.order.pop_front() {
            let sent = self.requests.remove(&oldest);
            self.evicted += u64::from(sent.as_ref().is_some_and(|sent| sent.compared));
            self.chunks -= sent.map_or(0, |sent| sent.pending.len());
        }
    }
}

impl Sent {
    /// Finds the chunks with this text, the earliest ones if several have it, and returns their number of tokens. Skips earlier chunks only
    /// if `may_skip`: their text is lost.
    fn carry(&mut self, text: Digest, may_skip: bool) -> Option<u32> {
        let starts = std::iter::once(self.carried).chain(self.pending.iter().copied());
        let candidates = if may_skip { usize::MAX } else { 1 };
        let (start, place) = starts.take(candidates).find_map(|start| {
            let end = start.text.len() + text.len();
            let place = self.pending.partition_point(|known| known.text.len() < end);
            let fits = self.pending.get(place)?.text == start.text.then(text);
            fits.then_some((start, place))
        })?;
        self.carried = self.pending.drain(..=place).next_back()?;
        self.event = text;
        Some(self.carried.tokens - start.tokens)
    }

    /// How an event differs that `carry` has not found.
    fn difference(&self, text: Digest) -> Difference {
        if text == self.event {
            Difference::Repeated
        } else if self.clone().carry(text, true).is_some() {
            Difference::Missing
        } else {
            Difference::Changed
        }
    }

    /// Number of tokens without text at the end of a response. `None` if the response ends before the text. With `may_skip`, the text that is
    /// missing at the end of a finished request is lost.
    fn carry_rest(&mut self, may_skip: bool) -> Option<u32> {
        let begin = if self.last.text == self.carried.text {
            self.carried
        } else {
            let at_end = |end: &&End| end.text == self.last.text;
            *self.pending.iter().find(at_end).filter(|_| may_skip && self.finished)?
        };
        self.carried = self.last;
        self.pending.clear();
        Some(self.last.tokens - begin.tokens)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trace::FrameId;
    use trace::event::IdColumn;

    use super::*;

    /// A chunk after which the request has `count` tokens.
    fn chunk(rid: &str, count: u32) -> Chunk<'_> {
        Chunk {
            listed: Some(1),
            completion_tokens: Some(count),
            text: Some("a"),
            ..Chunk::new(rid)
        }
    }

    /// Sends chunks on a hop, each with its number of new tokens and its text.
    fn send(texts: &mut Texts, hop: u16, chunks: &[(u32, &str)]) {
        let mut count = texts.requests.get("a").map_or(0, |sent| sent.last.tokens);
        for (new, text) in chunks {
            count += new;
            let chunk = Chunk {
                listed: Some(*new),
                text: Some(text),
                ..chunk("a", count)
            };
            texts.sent(&Frame {
                id: FrameId {
                    hop: HopId(hop),
                    lane: 0,
                    seq: 0,
                },
                bytes: 0,
                kind: Kind::Text,
                ids: IdColumn::Delta,
                chunks: &[chunk],
            });
        }
    }

    fn sent(chunks: &[(u32, &str)]) -> Texts {
        let mut texts = Texts::default();
        send(&mut texts, 0, chunks);
        texts
    }

    fn content(text: &str) -> ChoiceText {
        ChoiceText {
            content: Digest::of(text),
            ..ChoiceText::default()
        }
    }

    /// Deliveries of events, each with its tokens and all tokens up to it, and `None` where the tokens are unknown. The last event finishes
    /// the response.
    fn events(texts: &mut Texts, events: &[&str]) -> Vec<Option<(u32, u32)>> {
        let mut found = Vec::new();
        for (at, text) in events.iter().enumerate() {
            if texts
                .carried("a", &content(text), at + 1 == events.len(), true)
                .is_none()
            {
                found.push(None);
            }
            let ready = texts
                .ready()
                .map(|carried| Some((carried.tokens, carried.completion_tokens)));
            found.extend(ready);
        }
        found
    }

    #[test]
    fn an_event_carries_the_chunks_whose_text_it_equals() {
        let mut texts = sent(&[(1, "Hel"), (2, "lo"), (1, ","), (1, " you")]);
        let found = events(&mut texts, &["", "Hello", ", you", ""]);
        assert_eq!(found, [Some((3, 3)), Some((2, 5)), Some((0, 5))]);
        assert_eq!(texts.chunks, 0);
    }

    #[test]
    fn tokens_without_text_come_with_the_next_text_or_at_the_end() {
        let mut texts = sent(&[(1, "a"), (1, ""), (1, "\u{e9}"), (1, "")]);
        let found = events(&mut texts, &["a", "\u{e9}", ""]);
        assert_eq!(found, [Some((1, 1)), Some((2, 3)), Some((1, 4))]);
    }

    #[test]
    fn missing_text_is_lost_only_if_no_parser_removes_text() {
        let chunks = [(1, "a"), (1, "b"), (2, "c"), (1, "d")];
        let mut texts = sent(&chunks);
        assert_eq!(events(&mut texts, &["a", "c", "d"]), [Some((1, 1)), None, None]);
        let mut texts = sent(&chunks);
        texts.exact = true;
        assert_eq!(texts.clone().carried("a", &content("c"), false, false), None);
        let found = events(&mut texts, &["a", "c", "d"]);
        assert_eq!(found, [Some((1, 1)), Some((2, 4)), Some((1, 5))]);
        assert_eq!(texts.chunks, 0);
    }

    #[test]
    fn text_missing_at_the_end_is_lost_if_the_request_finished() {
        for (finish, last) in [
            (None, None),
            (Some(Finish::Abort), None),
            (Some(Finish::Length), Some((1, 5))),
        ] {
            let mut texts = sent(&[(1, "a"), (2, "b")]);
            texts.exact = true;
            for (count, text) in [(4, "c"), (5, "")] {
                let chunk = Chunk {
                    finish,
                    text: Some(text),
                    ..chunk("a", count)
                };
                texts.enter(HopId(0), &chunk, count);
            }
            assert_eq!(events(&mut texts, &["a", ""]), [Some((1, 1)), last], "{finish:?}");
        }
    }

    proptest! {
        /// Events with whole chunks carry all tokens. Without some of these events, no token is counted twice, and text is either carried,
        /// lost, or unknown.
        #[test]
        fn events_of_whole_chunks_are_counted(
            chunks in prop::collection::vec((0..3_u32, "[ab]{0,2}"), 1..20),
            ends in prop::collection::vec(any::<bool>(), 20),
            omitted in prop::option::of(0..20_usize),
        ) {
            let mut texts = Texts {
                exact: true,
                ..Texts::default()
            };
            let (mut count, mut written) = (0, vec![String::new()]);
            for ((new, text), ends) in chunks.iter().zip(&ends) {
                count += new;
                let chunk = Chunk {
                    listed: Some(*new),
                    text: Some(text),
                    finish: Some(Finish::Stop),
                    ..chunk("a", count)
                };
                texts.enter(HopId(0), &chunk, count);
                let event = written.last_mut().expect("an event");
                event.push_str(text);
                if *ends && !event.is_empty() {
                    written.push(String::new());
                }
            }
            let omitted = omitted.filter(|omitted| *omitted < written.len()).map(|omitted| written.remove(omitted));
            written.push(String::new());
            let events: Vec<&str> = written.iter().map(String::as_str).collect();
            let found = self::events(&mut texts, &events);
            prop_assert_eq!(texts.chunks, 0);
            let tokens: u32 = found.iter().flatten().map(|(tokens, _)| tokens).sum();
            prop_assert!(tokens <= count);
            prop_assert!(found.iter().all(Option::is_some), "{found:?}");
            if omitted.is_none_or(|text| text.is_empty()) {
                prop_assert_eq!(tokens, count);
            }
        }
    }

    #[test]
    fn differences_are_told_apart() {
        let after = |observed: &[&str]| {
            let mut texts = sent(&[(1, "a"), (1, "b"), (1, "c")]);
            events(&mut texts, observed);
            let Differences {
                missing,
                repeated,
                changed,
                first,
                ..
            } = texts.differences;
            (missing, repeated, changed, first.map(|(_, tokens)| tokens))
        };
        assert_eq!(after(&["a", "c"]), (1, 0, 0, Some(1)));
        assert_eq!(after(&["a", "b", ""]), (1, 0, 0, Some(2)));
        assert_eq!(after(&["ab", "ab"]), (0, 1, 0, Some(2)));
        assert_eq!(after(&["a", "x", "y"]), (0, 0, 1, Some(1)));
        assert_eq!(after(&["a", "bc"]), (0, 0, 0, None));
    }

    #[test]
    fn text_missing_in_a_completion_is_lost() {
        let mut texts = sent(&[(1, "a"), (1, "b"), (1, "c")]);
        let completion = ChoiceText {
            completion: true,
            ..content("c")
        };
        assert_eq!(texts.carried("a", &completion, false, true), Some(1));
        assert_eq!(texts.ready().next(), None, "the text may still come");
        assert_eq!(texts.carried("a", &ChoiceText::default(), true, true), Some(0));
        let ready: Vec<_> = texts.ready().map(|carried| carried.completion_tokens).collect();
        assert_eq!(ready, [3, 3]);
    }

    #[test]
    fn text_that_comes_later_is_not_lost() {
        let mut texts = sent(&[(1, "a"), (1, "b"), (1, "c"), (1, "d")]);
        texts.exact = true;
        assert_eq!(events(&mut texts, &["a", "c", "b", "d"]), [Some((1, 1)), None, None]);
        assert_eq!(texts.differences.missing + texts.differences.changed, 1);
    }

    #[test]
    fn other_text_repeated_text_swapped_text_and_a_missing_end_are_unknown() {
        for observed in [
            &["a", "x"][..],
            &["a", "a"],
            &["b", "a"],
            &["a", "b"],
            &["ab", "c", "c"],
        ] {
            for exact in [false, true] {
                let mut texts = sent(&[(1, "a"), (1, "b"), (1, "c")]);
                texts.exact = exact;
                assert_eq!(events(&mut texts, observed).last(), Some(&None), "{observed:?}");
                assert_eq!(texts.chunks, 0, "{observed:?}");
            }
        }
    }

    #[test]
    fn text_in_other_fields_is_unknown_and_reasoning_precedes_content() {
        let mut texts = sent(&[(1, "a"), (1, "b")]);
        let both = ChoiceText {
            reasoning: Digest::of("a"),
            ..content("b")
        };
        assert_eq!(texts.carried("a", &both, true, true), Some(2));
        let mut texts = sent(&[(1, "a")]);
        let elsewhere = ChoiceText {
            elsewhere: true,
            ..content("a")
        };
        assert_eq!(texts.carried("a", &elsewhere, false, true), None);
    }

    #[test]
    fn a_request_of_which_a_chunk_was_missed_is_unknown() {
        // The first chunk of the request was not observed, or one in the middle.
        for (first, second) in [(3, 4), (1, 3)] {
            let mut texts = Texts::default();
            for count in [first, second] {
                texts.enter(HopId(0), &chunk("a", count), count);
            }
            assert_eq!(texts.carried("a", &content("a"), false, true), None);
            assert_eq!(texts.chunks, 0);
        }
    }

    #[test]
    fn a_forwarded_frame_counts_once() {
        let mut texts = sent(&[(1, "a"), (1, "b")]);
        let known = texts.clone();
        send(&mut texts, 1, &[(0, "b")]);
        assert_eq!(texts, known);
    }

    #[test]
    fn memory_is_bounded_and_a_forgotten_request_leaves_nothing() {
        let mut texts = Texts::default();
        for n in 0..=MAX_REQUESTS {
            texts.enter(HopId(0), &chunk(&n.to_string(), 1), 1);
        }
        assert_eq!(
            (texts.evicted, texts.requests.len(), texts.chunks),
            (1, MAX_REQUESTS, MAX_REQUESTS)
        );
        for n in 1..=MAX_REQUESTS {
            texts.forget(&n.to_string());
        }
        assert_eq!((texts.requests.len(), texts.order.len(), texts.chunks), (0, 0, 0));
    }
}
