//! Reads one response and its frames with the reader and the analysis of `attach`.

use std::sync::{Arc, Mutex};

use probe_user::egress::ConnectionStep;
use responses::{Detokenize, ResponseReader, TokenStream};
use serde::Deserialize;
use serde_json::Value;
use sources::translate::{Clients, read_step};
use trace::event::{
    Answer, Capabilities, Chunk, Engine, Event, Finish, Frame, Hop, IdColumn, Kind, Received, ToolCallOutcome,
    ToolCalls, UnjudgedReason, What,
};
use trace::path::Ends;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

/// Time between two steps.
const STEP_NS: u64 = 1_000_000;

/// A line of `testbed/healthy`.
#[derive(Debug, Deserialize)]
pub(super) struct Response {
    /// Parsers of tool calls and of reasoning.
    parsers: (String, String),
    stream: bool,
    /// Whether no parser applies.
    exact: bool,
    /// Request of each choice.
    rids: Vec<String>,
    /// Arguments of the calls that the model wrote, by choice.
    calls: Vec<Vec<Value>>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Step {
    /// Text that the server writes.
    Written(String),
    /// A chunk: request id, text, number of tokens, finish reason, number of tokens so far.
    Chunk(String, Sent, u32, Option<String>, Option<u32>),
}

/// Text in a frame, or the text of each id in it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Sent {
    Text(String),
    Ids(Vec<String>),
}

impl Step {
    fn written(&self) -> Option<&str> {
        match self {
            Self::Written(text) => Some(text),
            Self::Chunk(..) => None,
        }
    }
}

/// Result of the analysis for a choice, or for the whole response.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
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
struct Table(Mutex<Vec<String>>);

impl Detokenize for Table {
    fn begin(&self) -> TokenStream {
        TokenStream::default()
    }

    fn step(&self, _stream: &mut TokenStream, id: u32, text: &mut String) -> bool {
        let table = self.0.lock().expect("no step panics");
        table.get(id as usize).is_some_and(|of_id| {
            text.push_str(of_id);
            true
        })
    }
}

impl Response {
    /// Parser of the tool calls.
    pub(super) fn parser(&self) -> &str {
        &self.parsers.0
    }

    /// Number of generated tokens.
    pub(super) fn tokens(&self) -> u64 {
        let tokens = self.steps.iter().map(|step| match step {
            Step::Chunk(_, _, tokens, ..) => u64::from(*tokens),
            Step::Written(_) => 0,
        });
        tokens.sum()
    }

    /// Verdicts on its choices.
    pub(super) fn judge(&self, engine: &str, version: &str) -> Vec<Verdict> {
        let table = Arc::new(Table::default());
        let format = engines::find(engine).and_then(|found| found.formats.first());
        let response_id = format.and_then(|format| format.response_id);
        let mut clients = Clients { is_observed: true, response_id, ..Clients::default() };
        clients.server.texts.exact = self.exact;
        if response_id.is_some() {
            clients.server.texts.detokenizer = Some(table.clone());
        }
        let mut run = Run::new(engine, version);
        let mut reader = ResponseReader::default();
        let written: usize = self.steps.iter().filter(|step| matches!(step, Step::Written(_))).count();
        let mut left = written;
        let mut seen_chunks = std::collections::HashSet::new();
        for step in &self.steps {
            match step {
                Step::Chunk(rid, sent, tokens, finish, so_far) => {
                    let mut ids = Vec::new();
                    let (text, kind) = match sent {
                        Sent::Text(text) => (Some(&**text), Kind::Text),
                        Sent::Ids(texts) => {
                            let mut table = table.0.lock().expect("no step panics");
                            for text in texts {
                                ids.push(table.len() as i64);
                                table.push(text.clone());
                            }
                            (None, Kind::TokenIds)
                        }
                    };
                    let chunk = Chunk {
                        listed: Some(*tokens),
                        completion_tokens: *so_far,
                        prompt_tokens: (so_far.is_some() || seen_chunks.insert(rid)).then_some(2),
                        finish: finish.as_deref().map(finish_of),
                        ids: &ids,
                        text,
                        ..Chunk::new(rid)
                    };
                    let chunks = [chunk];
                    let frame = Frame {
                        id: FrameId::new(HopId(0), 0, run.frames),
                        forwarded: None,
                        bytes: 100,
                        kind,
                        ids: IdColumn::Delta,
                        chunks: &chunks,
                    };
                    clients.record_frame(&frame, None);
                    run.sent(frame);
                }
                Step::Written(text) => {
                    let bytes = self.bytes(text, left == written, left == 1);
                    left -= 1;
                    let at = run.tick();
                    let written = ConnectionStep::Bytes { bytes: &bytes, begins: true };
                    read_step(&mut reader, written, at, &mut clients.server, &mut |event| run.enter(event));
                }
            }
        }
        run.verdicts(self, &clients.server.degraded())
    }

    /// Whether the arguments of a call in the response are those that the model wrote.
    fn is_as_modelled(&self, rid: &str, call: usize) -> bool {
        let Some(choice) = self.rids.iter().position(|known| known == rid) else {
            return true;
        };
        let mut calls: Vec<(Value, String)> = Vec::new();
        for text in self.steps.iter().filter_map(Step::written) {
            for data in text.split("data: ") {
                let Ok(event) = serde_json::from_str::<Value>(data.trim()) else {
                    continue;
                };
                let choices = event["choices"].as_array().cloned().unwrap_or_default();
                for event in choices.iter().filter(|event| event["index"] == choice) {
                    let message = if self.stream { &event["delta"] } else { &event["message"] };
                    for (place, part) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
                        let index = if part["index"].is_null() { place.into() } else { part["index"].clone() };
                        let at = calls.iter().position(|(known, _)| *known == index).unwrap_or_else(|| {
                            calls.push((index, String::new()));
                            calls.len() - 1
                        });
                        calls[at].1 += part["function"]["arguments"].as_str().unwrap_or_default();
                    }
                }
            }
        }
        let value = calls.get(call).and_then(|(_, written)| serde_json::from_str(written).ok());
        value.is_some_and(|value| self.calls[choice].contains(&value))
    }

    /// Whether the response lacks calls that the model wrote.
    fn has_fewer_calls(&self, rid: &str, calls: &ToolCalls) -> bool {
        let choice = self.rids.iter().position(|known| known == rid);
        choice.is_some_and(|choice| self.calls[choice].len() >= (calls.calls + calls.absent) as usize)
    }

    /// Bytes of a piece of the response on the connection.
    fn bytes(&self, text: &str, first: bool, last: bool) -> Vec<u8> {
        if !self.stream {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
            return format!("{head}{}\r\n\r\n{text}", text.len()).into_bytes();
        }
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        let head = if first { head } else { "" };
        let end = if last { "0\r\n\r\n" } else { "" };
        format!("{head}{:x}\r\n{text}\r\n{end}", text.len()).into_bytes()
    }
}

fn finish_of(reason: &str) -> Finish {
    match reason {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        "abort" => Finish::Abort,
        _ => Finish::Other,
    }
}

/// The analysis of one response.
struct Run {
    analysis: Analysis,
    now: u64,
    frames: u64,
    /// Answers: request, number of tokens, and the tool calls.
    answers: Vec<(String, Option<u32>, Option<ToolCalls>)>,
}

impl Run {
    fn new(engine: &str, version: &str) -> Self {
        let config = Config { engines: engines::FACTS, ..Config::default() };
        let mut run = Self { analysis: Analysis::new(config), now: STEP_NS, frames: 0, answers: Vec::new() };
        let ends = if engine == "vllm" { ["engine-core", "api-server"] } else { ["detokenizer", "tokenizer"] };
        let capabilities =
            Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED | Capabilities::DELIVERED;
        let hop = Hop::new(HopId(0), Ends::new(ends[0], ends[1]), capabilities);
        run.apply(What::Hop(Hop { endpoint: "ipc:///tmp/t", origin: true, last: true, ..hop }));
        let engine = Engine { version: Some(version), ..Engine::default() };
        run.apply(What::Engine(engine));
        run
    }

    fn tick(&mut self) -> MonoNs {
        self.now += STEP_NS;
        MonoNs(self.now)
    }

    fn apply(&mut self, what: What<'_>) {
        let at = self.tick();
        self.analysis.apply(&Event { at, what });
    }

    fn sent(&mut self, frame: Frame<'_>) {
        self.frames += 1;
        self.apply(What::Sent(frame));
        self.apply(What::Received(Received::new(frame.id)));
        self.apply(What::Processed(frame.id));
    }

    fn enter(&mut self, event: &Event<'_>) {
        if let What::Answered(Answer { rid, tokens, tool_calls, .. }) = event.what {
            self.answers.push((rid.to_owned(), tokens, tool_calls));
        }
        self.analysis.apply(event);
    }

    fn verdicts(mut self, response: &Response, degraded: &[String]) -> Vec<Verdict> {
        for _ in 0..4 {
            self.now += 1_000_000_000;
            self.analysis.tick(MonoNs(self.now));
        }
        let of = |(rid, tokens, calls): &(String, Option<u32>, Option<ToolCalls>)| match (
            tokens,
            calls.as_ref().filter(|calls| calls.reason.is_none_or(|reason| reason == UnjudgedReason::Differs)),
        ) {
            (_, Some(calls)) => match calls.outcome {
                ToolCallOutcome::Complete => Verdict::EqualCalls,
                ToolCallOutcome::Rewritten => Verdict::Unjudged("calls in another form"),
                ToolCallOutcome::Unfinished => Verdict::Unjudged("calls cut by the length limit"),
                ToolCallOutcome::Unjudged => Verdict::Unjudged("calls that differ"),
                ToolCallOutcome::Absent if response.has_fewer_calls(rid, calls) => Verdict::Unjudged("calls left out"),
                ToolCallOutcome::Absent => Verdict::Accused("absent calls"),
                _ if response.is_as_modelled(rid, calls.call as usize - 1) => Verdict::Accused("damaged-tool-calls"),
                _ => Verdict::Changed,
            },
            (Some(_), None) => Verdict::Equal,
            (None, None) => Verdict::Unjudged(reason(degraded)),
        };
        let answers = self.answers.iter().map(of);
        let findings = self.analysis.findings().into_iter().map(|finding| finding.kind);
        // Events with several chunks are merged chunks. Damaged calls have their verdict above.
        let accused = findings.filter(|kind| !["merged-chunks", "damaged-tool-calls"].contains(kind));
        answers.chain(accused.map(Verdict::Accused)).collect()
    }
}

/// Why the number of delivered tokens is unknown.
fn reason(degraded: &[String]) -> &'static str {
    let all = degraded.join("; ");
    let reasons = [
        ("changed", "text changed by its parser"),
        ("missing", "text left out or moved by its parser"),
        ("repeated", "text repeated by its parser"),
    ];
    let found =
        reasons.iter().find(|(how, _)| all.contains(&format!("{how} in ")) && !all.contains(&format!("{how} in 0")));
    if let Some((_, reason)) = found {
        reason
    } else if all.contains("in tool calls or other fields") {
        "text in other fields"
    } else {
        "text without counts"
    }
}
