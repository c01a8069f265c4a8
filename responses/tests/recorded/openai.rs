//! Responses of `/v1/completions` and `/v1/chat/completions`, in the form of vLLM 0.32.0.

use proptest::prelude::*;
use trace::engine::Mode;
use trace::event::{AnswerEnd, Chunk, Kind};

use super::{Connection, Observed, frame, send_text};

const CHAT: &str = "chatcmpl-8135776a25397c1d";
const TEXT: &str = "cmpl-afe432b644745c15";

/// Option of a request that makes its events count their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Ids,
    Logprobs,
    Usage,
}

/// An event of choice `choice` with `new` tokens, after which the choice has `so_far`.
#[derive(Clone, Copy, Debug)]
struct Step {
    choice: u32,
    new: u32,
    so_far: u32,
    finished: bool,
}

/// The events of one choice with these numbers of tokens.
fn steps(choice: u32, tokens: &[u32]) -> Vec<Step> {
    let mut so_far = 0;
    let step = |(at, &new): (usize, &u32)| {
        so_far += new;
        Step { choice, new, so_far, finished: at + 1 == tokens.len() }
    };
    tokens.iter().enumerate().map(step).collect()
}

fn list(count: u32, item: &str) -> String {
    vec![item; count as usize].join(",")
}

fn usage(asked: Asked, completion: u32) -> String {
    match asked {
        Asked::Usage => {
            let total = completion + 9;
            format!(r#","usage":{{"prompt_tokens":9,"total_tokens":{total},"completion_tokens":{completion}}}"#)
        }
        _ => String::new(),
    }
}

/// Text, finish reason, token ids and usage of an event.
fn fields(asked: Asked, step: Step) -> [String; 4] {
    let ids = match asked {
        Asked::Ids => format!("[{}]", list(step.new, "1207")),
        _ => "null".to_owned(),
    };
    let finish = if step.finished { "\"length\"" } else { "null" };
    [list(step.new, " tok"), finish.to_owned(), ids, usage(asked, step.so_far)]
}

/// The first event of a choice of a chat.
fn role(asked: Asked, choice: u32) -> String {
    let prompt = if asked == Asked::Ids { "[1,2,3]" } else { "null" };
    let usage = usage(asked, 0);
    format!(
        r#"{{"id":"{CHAT}","object":"chat.completion.chunk","created":1764000000,"model":"m","choices":[{{"index":{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":{prompt}{usage}}}"#
    )
}

fn chat(asked: Asked, step: Step) -> String {
    let Step { choice, new, .. } = step;
    let [text, finish, ids, usage] = fields(asked, step);
    let entry = r#"{"token":" tok","logprob":-0.6931,"bytes":[32,116,111,107],"top_logprobs":[{"token":" tok","logprob":-0.6931,"bytes":[32,116,111,107]}]}"#;
    let logprobs = match asked {
        Asked::Logprobs => format!(r#"{{"content":[{}]}}"#, list(new, entry)),
        _ => "null".to_owned(),
    };
    format!(
        r#"{{"id":"{CHAT}","object":"chat.completion.chunk","created":1764000000,"model":"m","choices":[{{"index":{choice},"delta":{{"content":"{text}"}},"logprobs":{logprobs},"finish_reason":{finish},"token_ids":{ids}}}]{usage}}}"#
    )
}

fn completion(asked: Asked, step: Step) -> String {
    let Step { choice, new, .. } = step;
    let [text, finish, ids, usage] = fields(asked, step);
    let logprobs = match asked {
        Asked::Logprobs => format!(
            r#"{{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}}"#,
            list(new, "0"),
            list(new, "-0.6931"),
            list(new, r#"" tok""#),
            list(new, r#"{" tok":-0.6931}"#),
        ),
        _ => "null".to_owned(),
    };
    format!(
        r#"{{"id":"{TEXT}","object":"text_completion","created":1764000000,"model":"m","choices":[{{"index":{choice},"text":"{text}","logprobs":{logprobs},"finish_reason":{finish},"stop_reason":null,"prompt_token_ids":null,"token_ids":{ids}}}]{usage}}}"#
    )
}

/// The event after the last choice (`include_usage`).
fn total(id: &str, tokens: u32) -> String {
    let usage = usage(Asked::Usage, tokens);
    format!(r#"{{"id":"{id}","object":"text_completion","created":1764000000,"model":"m","choices":[]{usage}}}"#)
}

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// Each event as the server writes it.
fn writes(events: &[String]) -> Vec<Vec<u8>> {
    let chunk = |data: &str| {
        let data = format!("data: {data}\n\n");
        format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
    };
    let events = events.iter().map(String::as_str).chain(["[DONE]"]).map(chunk);
    std::iter::once(HEAD.to_vec()).chain(events).chain([b"0\r\n\r\n".to_vec()]).collect()
}

/// A JSON response.
fn with_head(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Maps request id `1_ID` to choice 1 of response `ID`.
fn response_id(rid: &str) -> Option<(&str, u32)> {
    let (choice, id) = rid.split_once('_')?;
    Some((id, choice.parse().ok()?))
}

fn chunk(rid: &str) -> Chunk<'_> {
    Chunk { listed: Some(1), ..Chunk::new(rid) }
}

/// A connection to an engine whose frames name the requests of both endpoints.
fn connection() -> Connection {
    let mut connection = Connection::new(None);
    let rids: Vec<String> = [0, 1].iter().flat_map(|n| [CHAT, TEXT].map(|id| format!("{n}_{id}"))).collect();
    let chunks: Vec<_> = rids.iter().map(|rid| chunk(rid)).collect();
    connection.server.record_frame(&frame(0, Kind::TokenIds, &chunks), Some(response_id));
    connection
}

/// The connection after these events of a response.
fn observed(mut connection: Connection, events: &[String]) -> Connection {
    connection.feed(&writes(events).concat(), true);
    connection
}

fn delivered(rid: &str, tokens: u32, finished: bool) -> Observed {
    Observed::Delivered(rid.to_owned(), tokens, None, finished, Mode::Incremental)
}

fn answered(rid: &str, tokens: Option<u32>, stated: Option<u32>) -> Observed {
    Observed::Answered(rid.to_owned(), tokens, stated, AnswerEnd::Whole)
}

/// Events of both endpoints, in which a request's second delivery has three tokens.
fn responses(asked: Asked) -> [(&'static str, Vec<String>); 2] {
    let steps = steps(0, &[1, 3, 1]);
    let chats = std::iter::once(role(asked, 0)).chain(steps.iter().map(|&step| chat(asked, step)));
    let texts = steps.iter().map(|&step| completion(asked, step));
    [(CHAT, chats.chain([total(CHAT, 5)]).collect()), (TEXT, texts.chain([total(TEXT, 5)]).collect())]
}

#[test]
fn ids_log_probabilities_and_continuous_usage_count_the_tokens_of_each_event() {
    for asked in [Asked::Ids, Asked::Logprobs, Asked::Usage] {
        for (id, events) in responses(asked) {
            let (connection, rid) = (observed(connection(), &events), format!("0_{id}"));
            let expected = [
                delivered(&rid, 1, false),
                delivered(&rid, 3, false),
                delivered(&rid, 1, true),
                answered(&rid, Some(5), Some(5)),
            ];
            assert_eq!(connection.events, expected, "{asked:?} {id}");
            assert_eq!((connection.server.counted, connection.server.text_only), (1, 0));
        }
    }
}

#[test]
fn a_response_without_any_count_is_text() {
    for (id, events) in responses(Asked::Nothing) {
        let (connection, rid) = (observed(connection(), &events), format!("0_{id}"));
        let text = Observed::Delivered(rid.clone(), 0, None, false, Mode::Cumulative);
        assert_eq!(connection.events, [text, answered(&rid, None, Some(5))], "{id}");
        assert_eq!(connection.server.text_only, 1);
    }
}

/// SGLang leaves out events without text, and its usage includes tokens that its tokenizer lost.
#[test]
fn counts_of_an_engine_that_is_not_known_to_be_exact_are_ignored() {
    for asked in [Asked::Logprobs, Asked::Usage] {
        for (id, events) in responses(asked) {
            let connection = observed(Connection::new(None), &events);
            let text = Observed::Delivered(id.to_owned(), 0, None, false, Mode::Cumulative);
            assert_eq!(connection.events, [text, answered(id, None, Some(5))], "{asked:?} {id}");
        }
    }
}

/// A connection to a server whose frames carried this text for request [`CHAT`], one chunk of two tokens for each.
fn sent(texts: &[&str]) -> Connection {
    let mut connection = Connection::new(None);
    for (n, text) in (1..).zip(texts) {
        let chunk = Chunk { listed: Some(2), completion_tokens: Some(2 * n), text: Some(text), ..chunk(CHAT) };
        send_text(&mut connection.server, n, chunk);
    }
    connection
}

/// An event of SGLang 0.5.9 with one field of a delta.
fn delta(field: &str, text: &str) -> String {
    let text = serde_json::to_string(text).expect("a string");
    format!(
        r#"{{"id":"{CHAT}","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"role":null,"{field}":{text},"tool_calls":null}},"logprobs":null,"finish_reason":null,"matched_stop":null}}],"usage":null}}"#
    )
}

fn stop() -> String {
    format!(
        r#"{{"id":"{CHAT}","choices":[{{"index":0,"delta":{{"role":null,"content":null,"reasoning_content":null,"tool_calls":null}},"logprobs":null,"finish_reason":"stop","matched_stop":2}}],"usage":null}}"#
    )
}

fn counted(tokens: u32, so_far: u32, finished: bool) -> Observed {
    Observed::Delivered(CHAT.to_owned(), tokens, Some(so_far), finished, Mode::Incremental)
}

#[test]
fn text_is_counted_by_the_text_that_was_sent() {
    let mut connection = sent(&["<think>", "a \"b\"\n", "\u{e9}", "</s>", ""]);
    let events = [
        role(Asked::Nothing, 0),
        delta("reasoning_content", "<think>"),
        delta("content", "a \"b\"\n\u{e9}"),
        delta("content", "</s>"),
        stop(),
        total(CHAT, 10),
    ];
    let bytes = writes(&events).concat();
    for piece in bytes.chunks(7) {
        connection.feed(piece, false);
    }
    let expected = [
        counted(2, 2, false),
        counted(4, 6, false),
        counted(2, 8, false),
        counted(2, 10, true),
        answered(CHAT, Some(10), Some(10)),
    ];
    assert_eq!(connection.events, expected);
    assert_eq!(connection.server.degraded_lines(), Vec::<String>::new());
}

/// SGLang 0.5.9 names the last choice in the events that finish the others.
#[test]
fn a_response_without_a_finishing_event_ends_with_its_last_tokens() {
    let connection = observed(sent(&["a", ""]), &[delta("content", "a")]);
    let expected = [counted(2, 2, false), counted(2, 4, true), answered(CHAT, Some(4), None)];
    assert_eq!(connection.events, expected);
    let connection = observed(sent(&["a", "b"]), &[delta("content", "a")]);
    let unknown = Observed::Delivered(CHAT.to_owned(), 0, None, false, Mode::Cumulative);
    let expected = [counted(2, 2, false), unknown, answered(CHAT, None, None)];
    assert_eq!(connection.events, expected);
    assert!(connection.server.degraded_lines()[0].contains("missing in 1"));
}

#[test]
fn other_text_leaves_the_rest_unjudged_with_the_reason() {
    let unknown = Observed::Delivered(CHAT.to_owned(), 0, None, false, Mode::Cumulative);
    for (event, reason) in [
        (delta("content", "c"), "missing in 1, repeated in 0, changed in 0"),
        (delta("content", "a"), "missing in 0, repeated in 1, changed in 0"),
        (delta("content", "d"), "missing in 0, repeated in 0, changed in 1"),
        (delta("function_call", "b"), "tool calls or other fields"),
    ] {
        let events = [delta("content", "a"), event, delta("content", "c"), stop()];
        let connection = observed(sent(&["a", "b", "c"]), &events);
        let expected = [counted(2, 2, false), unknown.clone(), answered(CHAT, None, None)];
        assert_eq!(connection.events, expected, "{reason}");
        let degraded = connection.server.degraded_lines();
        assert!(degraded.len() == 1 && degraded[0].contains(reason), "{degraded:?}");
    }
}

#[test]
fn the_message_of_a_body_is_counted_by_its_text() {
    let mut connection = sent(&["a", "b"]);
    let body = format!(
        r#"{{"id":"{CHAT}","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"ab","reasoning_content":null,"tool_calls":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"completion_tokens":4}}}}"#
    );
    connection.feed(&with_head(&body), true);
    assert_eq!(connection.events, [counted(4, 4, true), answered(CHAT, Some(4), Some(4))]);
}

#[test]
fn each_choice_has_its_own_continuous_usage() {
    let (first, second) = (steps(0, &[1, 2, 2]), steps(1, &[2, 1, 4]));
    let mut events = vec![role(Asked::Usage, 0), role(Asked::Usage, 1)];
    for (&a, &b) in first.iter().zip(&second) {
        events.extend([chat(Asked::Usage, a), chat(Asked::Usage, b)]);
    }
    events.push(total(CHAT, 12));
    let connection = observed(connection(), &events);
    let (a, b) = (format!("0_{CHAT}"), format!("1_{CHAT}"));
    let expected = [
        delivered(&a, 1, false),
        delivered(&b, 2, false),
        delivered(&a, 2, false),
        delivered(&b, 1, false),
        delivered(&a, 2, true),
        delivered(&b, 4, true),
        answered(&a, Some(5), Some(5)),
        answered(&b, Some(7), Some(7)),
    ];
    assert_eq!(connection.events, expected);
}

#[test]
fn an_echoed_prompt_is_not_counted_as_output() {
    let echo = format!(
        r#"{{"id":"{TEXT}","choices":[{{"index":0,"text":"a tok","logprobs":{{"text_offset":[0,1],"token_logprobs":[null,-0.5],"tokens":["a"," tok"],"top_logprobs":[null,{{" tok":-0.5}}]}},"finish_reason":null}}]}}"#
    );
    let last = completion(Asked::Logprobs, steps(0, &[1])[0]);
    let connection = observed(connection(), &[echo, last]);
    let rid = format!("0_{TEXT}");
    let text = Observed::Delivered(rid.clone(), 0, None, false, Mode::Cumulative);
    assert_eq!(connection.events, [text, answered(&rid, None, None)]);
}

/// vLLM's Rust frontend ends a stream with an event that contains only the finish reason.
#[test]
fn a_last_event_without_text_and_count_ends_a_counted_response() {
    let last = format!(r#"{{"id":"{TEXT}","choices":[{{"index":0,"text":"","finish_reason":"stop"}}]}}"#);
    let step = Step { finished: false, ..steps(0, &[1])[0] };
    for asked in [Asked::Ids, Asked::Logprobs] {
        let connection = observed(connection(), &[completion(asked, step), last.clone()]);
        let rid = format!("0_{TEXT}");
        let expected = [delivered(&rid, 1, false), delivered(&rid, 0, true), answered(&rid, Some(1), None)];
        assert_eq!(connection.events, expected, "{asked:?}");
    }
    // If no earlier event was counted, it may also be a token without text.
    let connection = observed(connection(), &[last]);
    assert_eq!(connection.server.text_only, 1);
}

#[test]
fn log_probabilities_of_a_chat_prove_no_loss() {
    // vLLM writes none for text that a parser removes.
    let total = format!(r#"{{"id":"{CHAT}","choices":[]{}}}"#, usage(Asked::Usage, 9));
    let steps = steps(0, &[3, 2]);
    let events = [chat(Asked::Logprobs, steps[0]), chat(Asked::Logprobs, steps[1]), total];
    let connection = observed(connection(), &events);
    let rid = format!("0_{CHAT}");
    let expected = [delivered(&rid, 3, false), delivered(&rid, 2, true), answered(&rid, None, Some(9))];
    assert_eq!(connection.events, expected);
}

#[test]
fn the_usage_of_a_body_counts_its_tokens() {
    let body = format!(
        r#"{{"id":"{CHAT}","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":" tok tok"}},"logprobs":null,"finish_reason":"stop","token_ids":null}}]{}}}"#,
        usage(Asked::Usage, 2)
    );
    let mut connection = connection();
    connection.feed(&with_head(&body), true);
    let rid = format!("0_{CHAT}");
    assert_eq!(connection.events, [delivered(&rid, 2, true), answered(&rid, Some(2), Some(2))]);
}

#[test]
fn the_first_usage_after_missed_events_counts_none_of_them() {
    for (id, events) in responses(Asked::Usage) {
        let (writes, rid) = (writes(&events), format!("0_{id}"));
        // The end of a response: events of 3 tokens and of 1, the total, the marker, the last chunk.
        let rest = writes.len() - 5;
        let ends = [delivered(&rid, 1, true), answered(&rid, None, Some(5))];
        let mut gap = connection();
        gap.feed(&writes[..rest].concat(), true);
        gap.missed();
        gap.feed(&writes[rest..].concat(), true);
        // The gap, the search for the next event, and its count.
        let begin =
            [&[delivered(&rid, 1, false)][..], &[Observed::Missed, Observed::Missed, Observed::Missed]].concat();
        assert_eq!(gap.events, [&begin[..], &ends].concat(), "{id}");
        let mut late = connection();
        late.feed(&writes[rest..].concat(), true);
        assert_eq!(late.events, [&[Observed::Missed][..], &ends].concat(), "{id}");
    }
}

#[test]
fn a_response_that_began_before_the_first_observed_frame_is_answered_once() {
    for (asked, stated) in [(Asked::Ids, None), (Asked::Usage, Some(5))] {
        let (id, events) = responses(asked)[0].clone();
        let (writes, rid) = (writes(&events), format!("0_{id}"));
        let mut connection = Connection::new(None);
        // The head, the role and the first token; then a frame names the request.
        connection.feed(&writes[..3].concat(), true);
        connection.server.record_frame(&frame(0, Kind::TokenIds, &[chunk(&rid)]), Some(response_id));
        connection.feed(&writes[3..].concat(), true);
        let answers = connection.events.iter().filter(|event| matches!(event, Observed::Answered(..)));
        assert_eq!(answers.collect::<Vec<_>>(), [&answered(&rid, None, stated)], "{asked:?}");
        assert_eq!(connection.server.counted + connection.server.text_only, 1, "{asked:?}");
    }
}

fn any_response() -> impl Strategy<Value = (Asked, Vec<Step>, bool)> {
    let asked = prop::sample::select(vec![Asked::Nothing, Asked::Ids, Asked::Logprobs, Asked::Usage]);
    let tokens = prop::collection::vec(1_u32..5, 1..8);
    (asked, tokens, any::<bool>()).prop_map(|(asked, tokens, is_chat)| (asked, steps(0, &tokens), is_chat))
}

fn written((asked, steps, is_chat): &(Asked, Vec<Step>, bool)) -> Vec<Vec<u8>> {
    let event = |&step: &Step| {
        if *is_chat { chat(*asked, step) } else { completion(*asked, step) }
    };
    let begin = is_chat.then(|| role(*asked, 0));
    writes(&begin.into_iter().chain(steps.iter().map(event)).collect::<Vec<_>>())
}

fn tokens(events: &[Observed]) -> Vec<u32> {
    let tokens = |event: &Observed| match event {
        Observed::Delivered(_, tokens, ..) => Some(*tokens),
        _ => None,
    };
    events.iter().filter_map(tokens).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn events_are_independent_of_read_boundaries(response in any_response(), lengths in prop::collection::vec(1_usize..400, 1..20)) {
        let bytes = written(&response).concat();
        let (mut whole, mut cut) = (connection(), connection());
        whole.feed(&bytes, true);
        cut.pieces(&bytes, &lengths);
        prop_assert_eq!(&cut.events, &whole.events);
        let all: Vec<u32> = response.1.iter().map(|step| step.new).collect();
        prop_assert_eq!(tokens(&whole.events), if response.0 == Asked::Nothing { vec![0] } else { all });
    }

    #[test]
    fn a_gap_loses_events_and_invents_none(response in any_response(), from: prop::sample::Index, length in 1_usize..900) {
        prop_assume!(response.0 != Asked::Nothing);
        let bytes = written(&response).concat();
        let from = from.index(bytes.len());
        let to = bytes.len().min(from + length);
        let mut connection = connection();
        connection.feed(&bytes[..from], true);
        connection.missed();
        connection.feed(&bytes[to..], false);
        let mut left = response.1.iter();
        for tokens in tokens(&connection.events) {
            // An event without a known count may still report the end.
            prop_assert!(tokens == 0 || left.any(|step| step.new == tokens), "{tokens} out of nothing");
        }
    }
}
