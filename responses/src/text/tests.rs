//! Events against the chunks that were sent.

use proptest::prelude::*;
use trace::FrameId;
use trace::event::{Finish, IdColumn};

use super::*;

/// A chunk after which the request has `count` tokens.
fn chunk(rid: &str, count: u32) -> Chunk<'_> {
    Chunk { listed: Some(1), completion_tokens: Some(count), text: Some("a"), ..Chunk::new(rid) }
}

/// Chunks of a request, each with its number of new tokens and its text.
fn sent(chunks: &[(u32, &str)]) -> Texts {
    let (mut texts, mut count) = (Texts::default(), 0);
    for (new, text) in chunks {
        count += new;
        let chunk = Chunk { listed: Some(*new), text: Some(text), ..chunk("a", count) };
        send(&mut texts, Kind::Text, IdColumn::Delta, chunk);
    }
    texts
}

/// Sends a frame with this chunk.
fn send(texts: &mut Texts, kind: Kind, ids: IdColumn, chunk: Chunk<'_>) {
    let id = FrameId::new(HopId(0), 0, 0);
    texts.record_frame(&Frame { id, bytes: 0, forwarded: None, kind, ids, chunks: &[chunk] });
}

fn content(text: &str) -> ChoiceText<'static> {
    ChoiceText { content: Digest::of_text(text), ..ChoiceText::default() }
}

/// Deliveries of events, each with its tokens and all tokens up to it, and `None` where the tokens are unknown. The last event finishes
/// the response.
fn events(texts: &mut Texts, events: &[&str]) -> Vec<Option<(u32, u32)>> {
    let mut found = Vec::new();
    for (at, text) in events.iter().enumerate() {
        if texts.compare_event("a", &content(text), at + 1 == events.len(), true).is_none() {
            found.push(None);
        }
        let ready = texts.take_ready_deliveries().map(|carried| Some((carried.tokens, carried.completion_tokens)));
        found.extend(ready);
    }
    found
}

#[test]
fn an_event_carries_the_chunks_whose_text_it_equals() {
    let mut texts = sent(&[(1, "Hel"), (2, "lo"), (1, ","), (1, " you")]);
    let found = events(&mut texts, &["", "Hello", ", you", ""]);
    assert_eq!(found, [Some((3, 3)), Some((2, 5)), Some((0, 5))]);
    assert_eq!(texts.bytes, 0);
}

#[test]
fn tokens_without_text_come_with_the_next_text_or_at_the_end() {
    let mut texts = sent(&[(1, "a"), (1, ""), (1, "\u{e9}"), (1, "")]);
    let found = events(&mut texts, &["a", "\u{e9}", ""]);
    assert_eq!(found, [Some((1, 1)), Some((2, 3)), Some((1, 4))]);
}

#[test]
fn chunks_without_text_are_no_merged_ones() {
    let mut texts = sent(&[(1, "a"), (1, ""), (1, "\u{e9}"), (1, "b"), (1, "c"), (1, ""), (1, "")]);
    let mut found = Vec::new();
    for (text, finished) in [("a", false), ("\u{e9}", false), ("bc", false), ("", true)] {
        texts.compare_event("a", &content(text), finished, true);
        found.extend(texts.take_ready_deliveries().map(|carried| (carried.tokens, carried.without_text)));
    }
    assert_eq!(found, [(1, 0), (2, 1), (2, 0), (2, 2)]);
}

#[test]
fn missing_text_is_lost_only_if_no_parser_removes_text() {
    let chunks = [(1, "a"), (1, "b"), (2, "c"), (1, "d")];
    let mut texts = sent(&chunks);
    assert_eq!(events(&mut texts, &["a", "c", "d"]), [Some((1, 1)), None, None]);
    let mut texts = sent(&chunks);
    texts.exact = true;
    assert_eq!(texts.clone().compare_event("a", &content("c"), false, false), None);
    let found = events(&mut texts, &["a", "c", "d"]);
    assert_eq!(found, [Some((1, 1)), Some((2, 4)), Some((1, 5))]);
    assert_eq!(texts.bytes, 0);
}

#[test]
fn text_missing_at_the_end_is_lost_if_the_request_finished() {
    for (finish, last) in [(None, None), (Some(Finish::Abort), None), (Some(Finish::Length), Some((1, 5)))] {
        let mut texts = sent(&[(1, "a"), (2, "b")]);
        texts.exact = true;
        for (count, text) in [(4, "c"), (5, "")] {
            let chunk = Chunk { finish, text: Some(text), ..chunk("a", count) };
            texts.record_chunk(HopId(0), &chunk);
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
            texts.record_chunk(HopId(0), &chunk);
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
        prop_assert_eq!(texts.bytes, 0);
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
        let Differences { counts: [missing, repeated, changed, _], first } = texts.differences;
        (missing, repeated, changed, first.map(|first| first.tokens_before))
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
    let completion = ChoiceText { completion: true, ..content("c") };
    assert_eq!(texts.compare_event("a", &completion, false, true), Some(1));
    assert_eq!(texts.take_ready_deliveries().next(), None, "the text may still come");
    assert_eq!(texts.compare_event("a", &ChoiceText::default(), true, true), Some(0));
    let ready: Vec<_> = texts.take_ready_deliveries().map(|carried| carried.completion_tokens).collect();
    assert_eq!(ready, [3, 3]);
}

#[test]
fn text_that_comes_later_is_not_lost() {
    let mut texts = sent(&[(1, "a"), (1, "b"), (1, "c"), (1, "d")]);
    texts.exact = true;
    assert_eq!(events(&mut texts, &["a", "c", "b", "d"]), [Some((1, 1)), None, None]);
    let [missing, _, changed, _] = texts.differences.counts;
    assert_eq!(missing + changed, 1);
}

#[test]
fn other_text_repeated_text_swapped_text_and_a_missing_end_are_unknown() {
    for observed in [&["a", "x"][..], &["a", "a"], &["b", "a"], &["a", "b"], &["ab", "c", "c"]] {
        for exact in [false, true] {
            let mut texts = sent(&[(1, "a"), (1, "b"), (1, "c")]);
            texts.exact = exact;
            assert_eq!(events(&mut texts, observed).last(), Some(&None), "{observed:?}");
            _ = texts.forget_request_and_compare_calls("a", true);
            assert_eq!(texts.bytes, 0, "{observed:?}");
        }
    }
}

#[test]
fn text_in_other_fields_is_unknown_and_reasoning_precedes_content() {
    let mut texts = sent(&[(1, "a"), (1, "b")]);
    let both = ChoiceText { reasoning: Digest::of_text("a"), ..content("b") };
    assert_eq!(texts.compare_event("a", &both, true, true), Some(2));
    let mut texts = sent(&[(1, "a")]);
    let elsewhere = ChoiceText { elsewhere: true, ..content("a") };
    assert_eq!(texts.compare_event("a", &elsewhere, false, true), None);
}

#[test]
fn a_request_of_which_a_chunk_was_missed_is_unknown() {
    // The first chunk of the request was not observed, or one in the middle.
    for (first, second) in [(3, 4), (1, 3)] {
        let mut texts = Texts::default();
        for count in [first, second] {
            texts.record_chunk(HopId(0), &chunk("a", count));
        }
        assert_eq!(texts.compare_event("a", &content("a"), false, true), None);
        assert_eq!(texts.bytes, 0);
    }
}

#[test]
fn a_forwarded_frame_counts_once() {
    let mut texts = sent(&[(1, "a"), (1, "b")]);
    texts.record_chunk(HopId(1), &chunk("a", 2));
    assert_eq!(texts.requests.values.len(), 1);
    assert_eq!(events(&mut texts, &["a", "b"]), [Some((1, 1)), Some((1, 2))]);
}

#[test]
fn memory_is_bounded_and_a_forgotten_request_leaves_nothing() {
    let mut texts = Texts::default();
    for n in 0..=MAX_REQUESTS {
        texts.record_chunk(HopId(0), &chunk(&n.to_string(), 1));
    }
    assert_eq!((texts.evicted, texts.requests.values.len()), (1, MAX_REQUESTS));
    for n in 1..=MAX_REQUESTS {
        _ = texts.forget_request_and_compare_calls(&n.to_string(), true);
    }
    assert_eq!((texts.requests.values.len(), texts.bytes), (0, 0));
}

/// Spells each id as a letter: `a` for 0. Ids from 26 on are unknown.
#[derive(Debug)]
struct Letters;

impl Detokenize for Letters {
    fn begin(&self) -> TokenStream {
        TokenStream::default()
    }

    fn step(&self, _stream: &mut TokenStream, id: u32, text: &mut String) -> bool {
        text.extend(char::from_digit(id + 10, 36));
        id < 26
    }
}

/// Frames of one request with these ids, without text and counts. The first states the prompt's length if `begins`.
fn sent_ids(frames: &[&[i64]], finish: Finish, begins: bool) -> Texts {
    let mut texts = Texts { detokenizer: Some(Arc::new(Letters)), ..Texts::default() };
    for (at, ids) in frames.iter().enumerate() {
        let chunk = Chunk {
            listed: Some(ids.len() as u32),
            ids,
            prompt_tokens: (begins && at == 0).then_some(7),
            finish: (at + 1 == frames.len()).then_some(finish),
            ..Chunk::new("a")
        };
        send(&mut texts, Kind::TokenIds, IdColumn::Uncounted, chunk);
    }
    texts
}

fn completion(text: &str) -> ChoiceText<'static> {
    ChoiceText { completion: true, ..content(text) }
}

#[test]
fn the_text_of_ids_is_compared_and_a_stop_token_has_none() {
    let mut texts = sent_ids(&[&[0], &[1, 2], &[3]], Finish::Length, true);
    assert_eq!(events(&mut texts, &["a", "bcd", ""]), [Some((1, 1)), Some((3, 4)), Some((0, 4))]);
    let mut texts = sent_ids(&[&[0], &[1], &[25]], Finish::Stop, true);
    assert_eq!(events(&mut texts, &["a", "b", ""]), [Some((1, 1)), Some((1, 2)), Some((1, 3))]);
}

#[test]
fn missing_text_of_ids_is_lost_once_the_rest_has_come() {
    let frames: [&[i64]; 4] = [&[0], &[1], &[2], &[3]];
    for (begins, expected) in [(true, Some(1)), (false, None)] {
        let mut texts = sent_ids(&frames, Finish::Length, begins);
        assert_eq!(texts.compare_event("a", &completion("a"), false, true), Some(1));
        assert_eq!(texts.compare_event("a", &completion("c"), false, true), expected);
        assert_eq!(texts.take_ready_deliveries().count(), 1, "the rest may have the missing text");
        assert_eq!(texts.compare_event("a", &completion("d"), true, true), expected);
        assert_eq!(texts.take_ready_deliveries().count(), if begins { 2 } else { 0 });
    }
}

#[test]
fn ids_are_not_compared_after_missed_frames_or_unknown_ones() {
    let mut texts = sent_ids(&[&[0], &[1]], Finish::Length, true);
    texts.record_missed_frames();
    assert_eq!(texts.compare_event("a", &completion("a"), false, true), None);
    let mut texts = sent_ids(&[&[0], &[26]], Finish::Length, true);
    assert_eq!((texts.compare_event("a", &completion("a"), false, true), texts.bytes), (None, 0));
    // Without the first chunk and the first event.
    let mut texts = sent_ids(&[&[0], &[1]], Finish::Length, false);
    assert_eq!((texts.compare_event("a", &completion("a"), false, false), texts.bytes), (None, 0));
    // Frames with counts and text do not depend on others.
    let mut texts = sent(&[(1, "a")]);
    texts.record_missed_frames();
    assert_eq!(texts.compare_event("a", &content("a"), false, true), Some(1));
}
