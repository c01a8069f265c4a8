//! Reads one response and its frames with the reader and the analysis of `attach`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use responses::{Detokenize, ResponseReader, TokenStream};
use serde::Deserialize;
use serde_json::Value;
use sources::translate::Clients;
use trace::event::{
    Answer, Capabilities, Chunk, Engine, Event, Finish, Frame, Hop, IdColumn, Kind, Received, ToolCallOutcome,
    ToolCalls, UnjudgedReason, What,
};
use trace::path::Ends;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

/// Time between two steps.
const STEP_NS: u64 = 1_000_000;
/// Number of tokens of each prompt that a frame states.
const PROMPT_TOKENS: u32 = 2;

/// A line of `testbed/healthy`.
#[derive(Debug, Deserialize)]
pub(super) struct ServedResponse {
    parsers: ServerParsers,
    stream: bool,
    /// Whether no parser applies.
    exact: bool,
    /// Request of each choice.
    rids: Vec<String>,
    /// Arguments of the calls that the model wrote, by choice.
    calls: Vec<Vec<Value>>,
    steps: Vec<Step>,
}

/// Names of a server's parsers; in the file, a list of these fields in this order.
#[derive(Debug, Deserialize)]
struct ServerParsers {
    tool_calls: String,
    #[expect(dead_code, reason = "the verdicts are listed by the parser of tool calls only")]
    reasoning: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Step {
    /// Text that the server writes.
    Written(String),
    /// Chunk that the engine sends.
    Chunk(SentChunk),
}

/// One chunk; in the file, a list of these fields in this order.
#[derive(Debug, Deserialize)]
struct SentChunk {
    rid: String,
    content: SentContent,
    tokens: u32,
    finish_reason: Option<String>,
    /// Number of the request's tokens so far.
    completion_tokens: Option<u32>,
}

/// Text in a frame, or the text of each id in it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SentContent {
    Text(String),
    Ids(Vec<String>),
}

impl Step {
    /// The text that the server writes; `None` if the engine sends a chunk.
    fn written_text(&self) -> Option<&str> {
        match self {
            Self::Written(text) => Some(text),
            Self::Chunk(_) => None,
        }
    }
}

/// Result of the analysis for a choice, or for the whole response.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResponseVerdict {
    /// Each token of the text was delivered.
    Equal,
    /// The arguments of each call are those that the engine sent.
    EqualCalls,
    /// Why the rest of it is not judged.
    Unjudged(&'static str),
    /// A finding that the response deserves: its parser changed the arguments.
    Changed,
    /// A finding that it does not deserve.
    Accused(&'static str),
}

/// Gives each id its text in the file.
#[derive(Debug, Default)]
struct IdTable {
    texts: Mutex<Vec<String>>,
}

impl IdTable {
    /// A new id for each of these texts.
    fn add_ids(&self, texts: &[String]) -> Vec<i64> {
        let mut table = self.texts.lock().expect("no step panics");
        let first_id = table.len() as i64;
        table.extend_from_slice(texts);
        (first_id..table.len() as i64).collect()
    }
}

/// Detokenizes as the engine did: each id has its own text.
impl Detokenize for IdTable {
    fn begin(&self) -> TokenStream {
        TokenStream::default()
    }

    /// Adds the text of the id. Returns whether the id is known.
    fn step(&self, _stream: &mut TokenStream, id: u32, text: &mut String) -> bool {
        let table = self.texts.lock().expect("no step panics");
        let Some(text_of_id) = table.get(id as usize) else { return false };
        text.push_str(text_of_id);
        true
    }
}

impl ServedResponse {
    /// Parser of the tool calls.
    pub(super) fn tool_call_parser(&self) -> &str {
        &self.parsers.tool_calls
    }

    /// Number of generated tokens.
    pub(super) fn token_count(&self) -> u64 {
        let tokens = self.steps.iter().map(|step| match step {
            Step::Chunk(chunk) => u64::from(chunk.tokens),
            Step::Written(_) => 0,
        });
        tokens.sum()
    }

    /// Clients of the server, whose responses are compared with the frames: with the text of the frames, or with that of their ids, which
    /// `table` has. Ids are compared only for an engine whose responses name their requests.
    fn observed_clients(&self, engine: &str, table: &Arc<IdTable>) -> Clients {
        let format = engines::find(engine).and_then(|found| found.formats.first());
        let response_id = format.and_then(|format| format.response_id);
        let mut clients = Clients { is_observed: true, response_id, ..Clients::default() };
        clients.server.texts.exact = self.exact;
        if response_id.is_some() {
            clients.server.texts.detokenizer = Some(table.clone());
        }
        clients
    }

    /// Enters the frames and the bytes of the response into a new analysis, in the order of the steps. Returns its verdicts on the choices.
    pub(super) fn judge_choices(&self, engine: &str, version: &str) -> Vec<ResponseVerdict> {
        let table = Arc::new(IdTable::default());
        let mut clients = self.observed_clients(engine, &table);
        let mut run = ResponseRun::new(engine, version);
        let mut reader = ResponseReader::default();
        let piece_count = self.steps.iter().filter_map(Step::written_text).count();
        let mut pieces_written = 0;
        let mut seen_rids = HashSet::new();
        for step in &self.steps {
            match step {
                Step::Chunk(sent) => {
                    let is_first_of_request = seen_rids.insert(sent.rid.as_str());
                    run.send_chunk_as_frame(sent, is_first_of_request, &table, &mut clients);
                }
                Step::Written(text) => {
                    pieces_written += 1;
                    let is_first = pieces_written == 1;
                    let is_last = pieces_written == piece_count;
                    let bytes = self.bytes_of_piece(text, is_first, is_last);
                    let at = run.advance_clock();
                    // The server writes each piece with one call.
                    let is_start_of_write = true;
                    reader.read_bytes(at, &bytes, is_start_of_write, &mut clients.server, &mut |event| {
                        run.apply_from_reader(event);
                    });
                }
            }
        }
        run.end_and_judge_answers(self, &clients.server.degraded_lines())
    }

    /// Whether the response has the arguments of a call as the model wrote them. True for an unknown request, so that a
    /// finding about it is an accusation.
    fn has_arguments_as_modelled(&self, rid: &str, call_index: usize) -> bool {
        let Some(choice) = self.choice_index(rid) else { return true };
        let written = self.written_call_arguments(choice);
        let arguments = written.get(call_index).and_then(|arguments| serde_json::from_str(arguments).ok());
        arguments.is_some_and(|arguments: Value| self.calls[choice].contains(&arguments))
    }

    /// Index of the choice of this request; `None` if the response has no such request.
    fn choice_index(&self, rid: &str) -> Option<usize> {
        self.rids.iter().position(|known| known == rid)
    }

    /// The arguments of each call of a choice as the server wrote them, put together from all its events.
    fn written_call_arguments(&self, choice_index: usize) -> Vec<String> {
        // Each call with the arguments that were written so far, in the order of their first parts.
        let mut calls: Vec<CallPart> = Vec::new();
        for text in self.steps.iter().filter_map(Step::written_text) {
            for data in text.split("data: ") {
                // Other lines, such as `[DONE]`, are no JSON.
                let Ok(event) = serde_json::from_str::<Value>(data.trim()) else { continue };
                for part in self.tool_call_parts_in(&event, choice_index) {
                    match calls.iter_mut().find(|call| call.index == part.index) {
                        Some(call) => call.arguments += &part.arguments,
                        None => calls.push(part),
                    }
                }
            }
        }
        calls.into_iter().map(|call| call.arguments).collect()
    }

    /// The parts of a choice's calls in one event, or in the body of a response that is no stream.
    fn tool_call_parts_in(&self, event: &Value, choice_index: usize) -> Vec<CallPart> {
        let mut parts = Vec::new();
        for listed in event["choices"].as_array().into_iter().flatten() {
            if listed["index"] != choice_index {
                continue;
            }
            let message = if self.stream { &listed["delta"] } else { &listed["message"] };
            for (position, call) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
                // Only the calls of a stream have an index.
                let index = if call["index"].is_null() { position.into() } else { call["index"].clone() };
                let arguments = call["function"]["arguments"].as_str().unwrap_or_default().to_owned();
                parts.push(CallPart { index, arguments });
            }
        }
        parts
    }

    /// Whether the model wrote at least as many calls as the response has and lacks together. Then the server left out the absent ones.
    fn has_left_out_calls(&self, rid: &str, calls: &ToolCalls) -> bool {
        self.choice_index(rid).is_some_and(|choice| self.calls[choice].len() >= (calls.calls + calls.absent) as usize)
    }

    /// Bytes of a piece of the response on the connection. A response that is no stream has one piece.
    fn bytes_of_piece(&self, text: &str, is_first: bool, is_last: bool) -> Vec<u8> {
        if !self.stream {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
            return format!("{head}{}\r\n\r\n{text}", text.len()).into_bytes();
        }
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        // Each piece is an HTTP chunk, which begins with its length in hexadecimal. An empty chunk ends the response.
        let head = if is_first { head } else { "" };
        let end = if is_last { "0\r\n\r\n" } else { "" };
        format!("{head}{:x}\r\n{text}\r\n{end}", text.len()).into_bytes()
    }
}

/// Part of a tool call in one event.
struct CallPart {
    index: Value,
    arguments: String,
}

/// The finish that an engine's frame states with this reason.
fn finish_from_reason(reason: &str) -> Finish {
    match reason {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        "abort" => Finish::Abort,
        _ => Finish::Other,
    }
}

/// The analysis of one response.
struct ResponseRun {
    analysis: Analysis,
    now_ns: u64,
    frames: u64,
    answers: Vec<ReadAnswer>,
}

/// What the reader of responses says of one answer.
struct ReadAnswer {
    rid: String,
    tokens: Option<u32>,
    tool_calls: Option<ToolCalls>,
}

impl ResponseRun {
    /// Begins the analysis of an engine with one hop on which everything is observed.
    fn new(engine: &str, version: &str) -> Self {
        let config = Config { engines: engines::FACTS, ..Config::default() };
        let mut run = Self { analysis: Analysis::new(config), now_ns: STEP_NS, frames: 0, answers: Vec::new() };
        let ends = if engine == "vllm" { ["engine-core", "api-server"] } else { ["detokenizer", "tokenizer"] };
        let capabilities =
            Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED | Capabilities::DELIVERED;
        let hop = Hop::new(HopId(0), Ends::new(ends[0], ends[1]), capabilities);
        run.apply(What::Hop(Hop { endpoint: "ipc:///tmp/t", origin: true, last: true, ..hop }));
        let engine = Engine { version: Some(version), ..Engine::default() };
        run.apply(What::Engine(engine));
        run
    }

    /// Advances the clock by a step, and returns its new time.
    fn advance_clock(&mut self) -> MonoNs {
        self.now_ns += STEP_NS;
        MonoNs(self.now_ns)
    }

    /// Applies an event one step after the event before.
    fn apply(&mut self, what: What<'_>) {
        let at = self.advance_clock();
        self.analysis.apply(&Event { at, what });
    }

    /// Puts this chunk into a frame, and applies the events of a frame that is sent, received and processed on the hop. Notes the frame in
    /// `clients`, for the comparison with the response. New token ids get their texts in `table`. `is_first` says that the chunk is the
    /// first one of its request.
    fn send_chunk_as_frame(&mut self, sent: &SentChunk, is_first: bool, table: &IdTable, clients: &mut Clients) {
        let mut ids = Vec::new();
        let mut text = None;
        let kind = match &sent.content {
            SentContent::Text(sent_text) => {
                text = Some(sent_text.as_str());
                Kind::Text
            }
            SentContent::Ids(texts) => {
                ids = table.add_ids(texts);
                Kind::TokenIds
            }
        };
        let states_prompt = sent.completion_tokens.is_some() || is_first;
        let chunks = [Chunk {
            listed: Some(sent.tokens),
            completion_tokens: sent.completion_tokens,
            prompt_tokens: states_prompt.then_some(PROMPT_TOKENS),
            finish: sent.finish_reason.as_deref().map(finish_from_reason),
            ids: &ids,
            text,
            ..Chunk::new(&sent.rid)
        }];
        let only_connection = 0;
        let frame = Frame {
            id: FrameId::new(HopId(0), only_connection, self.frames),
            forwarded: None,
            // Any size will do.
            bytes: 100,
            kind,
            ids: IdColumn::Delta,
            chunks: &chunks,
        };
        let format_reader = None;
        clients.record_frame(&frame, format_reader);
        self.frames += 1;
        self.apply(What::Sent(frame));
        self.apply(What::Received(Received::new(frame.id)));
        self.apply(What::Processed(frame.id));
    }

    /// Applies an event of the reader of responses, and keeps an answer for the verdicts.
    fn apply_from_reader(&mut self, event: &Event<'_>) {
        if let What::Answered(Answer { rid, tokens, tool_calls, .. }) = event.what {
            self.answers.push(ReadAnswer { rid: rid.to_owned(), tokens, tool_calls });
        }
        self.analysis.apply(event);
    }

    /// Ends the run, and judges each answer and each finding.
    fn end_and_judge_answers(mut self, response: &ServedResponse, degraded: &[String]) -> Vec<ResponseVerdict> {
        // Detectors run once more in each of the four seconds after the last event.
        for _ in 0..4 {
            self.now_ns += 1_000_000_000;
            self.analysis.tick(MonoNs(self.now_ns));
        }
        let mut verdicts = Vec::new();
        for answer in &self.answers {
            verdicts.push(answer.verdict(response, degraded));
        }
        for finding in self.analysis.findings() {
            // Events with several chunks are merged chunks. Damaged calls have their verdict above.
            if !["merged-chunks", "damaged-tool-calls"].contains(&finding.kind) {
                verdicts.push(ResponseVerdict::Accused(finding.kind));
            }
        }
        verdicts
    }
}

impl ReadAnswer {
    /// Verdict on the answer. `degraded` are the source's limits, which name what its reader could not compare.
    fn verdict(&self, response: &ServedResponse, degraded: &[String]) -> ResponseVerdict {
        // Calls that were compared with the frames decide, otherwise the text.
        if let Some(calls) = &self.tool_calls
            && calls.reason.is_none_or(|reason| reason == UnjudgedReason::Differs)
        {
            return self.verdict_on_calls(calls, response);
        }
        // The reader counts the tokens of a text only if it equals that of the frames.
        if self.tokens.is_some() {
            return ResponseVerdict::Equal;
        }
        ResponseVerdict::Unjudged(reason_not_judged(degraded))
    }

    /// Verdict on the answer by its tool calls.
    fn verdict_on_calls(&self, calls: &ToolCalls, response: &ServedResponse) -> ResponseVerdict {
        match calls.outcome {
            ToolCallOutcome::Complete => ResponseVerdict::EqualCalls,
            ToolCallOutcome::Rewritten => ResponseVerdict::Unjudged("calls in another form"),
            ToolCallOutcome::Unfinished => ResponseVerdict::Unjudged("calls cut by the length limit"),
            ToolCallOutcome::Unjudged => ResponseVerdict::Unjudged("calls that differ"),
            ToolCallOutcome::Absent => {
                if response.has_left_out_calls(&self.rid, calls) {
                    ResponseVerdict::Unjudged("calls left out")
                } else {
                    ResponseVerdict::Accused("absent calls")
                }
            }
            _ => {
                // The arguments of a call are damaged. Calls are numbered from 1.
                let index = calls.call as usize - 1;
                if response.has_arguments_as_modelled(&self.rid, index) {
                    ResponseVerdict::Accused("damaged-tool-calls")
                } else {
                    ResponseVerdict::Changed
                }
            }
        }
    }
}

/// Why the number of delivered tokens is unknown.
fn reason_not_judged(degraded: &[String]) -> &'static str {
    let all = degraded.join("; ");
    let reasons = [
        ("changed", "text changed by its parser"),
        ("missing", "text left out or moved by its parser"),
        ("repeated", "text repeated by its parser"),
    ];
    for (how, reason) in reasons {
        // A count of 0 gives no reason.
        let is_counted = all.contains(&format!("{how} in ")) && !all.contains(&format!("{how} in 0"));
        if is_counted {
            return reason;
        }
    }
    if all.contains("in tool calls or other fields") { "text in other fields" } else { "text without counts" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_lists_the_steps_of_a_response_and_its_chunks_by_place() {
        let line = r#"{"parsers":["",""],"stream":true,"exact":true,"rids":["a"],"calls":[[]],
            "steps":[["a","Hi",1,null,null],["a",["H","i"],2,"stop",2],"data: [DONE]\n\n"]}"#;
        let response: ServedResponse = serde_json::from_str(line).expect("read");
        assert_eq!(response.token_count(), 3);
        let [Step::Chunk(text), Step::Chunk(ids), Step::Written(end)] = response.steps.as_slice() else {
            panic!("{:?}", response.steps)
        };
        assert!(matches!(&text.content, SentContent::Text(sent) if sent == "Hi"), "{text:?}");
        assert!(matches!(&ids.content, SentContent::Ids(sent) if sent.len() == 2), "{ids:?}");
        assert_eq!((ids.finish_reason.as_deref(), ids.completion_tokens), (Some("stop"), Some(2)));
        assert_eq!(end, "data: [DONE]\n\n");
    }
}
